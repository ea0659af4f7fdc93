"""Folds decomposed operators back together: an RMS norm from its square, mean, root and products, ..."""

from ...graph.pcg import Node
from ..translation import Index, Translation


def rms_norm(t: Translation, x: Index, other: Index) -> Index | None:
    """The RMS norm that `x * other` is, if `other` is 1 / sqrt(mean(x²) + eps), or the weight of an RMS norm `x`."""
    normalized = t.at(x)
    if normalized.op == "rms_norm" and len(normalized.inputs) == 1 and t.at(other).op == "parameter":
        if t.shape(other) != normalized.shape[-normalized["normalized"] :]:
            return None
        attributes = dict(normalized.attributes)
        return t.add("rms_norm", Index(normalized.inputs[0]), other, **attributes)
    root = t.at(other)
    if root.op != "rsqrt":
        return None
    shifted = _source(t, root)
    mean = _source(t, shifted) if shifted.op == "shift" else shifted
    if mean.op != "mean" or not mean["keepdim"] or not _is_square(t, _source(t, mean), x):
        return None
    rank, dims = len(t.shape(x)), mean["dims"]
    if dims != tuple(range(rank - len(dims), rank)):
        return None
    eps = shifted["value"] if shifted.op == "shift" else 0.0
    return t.add("rms_norm", x, shape=t.shape(x), normalized=len(dims), eps=eps)


def batch_mean(t: Translation, x: Index, number: float) -> Index | None:
    """The KL divergence that `x / number` is, if it divides a sum by the samples (PyTorch's `batchmean`)."""
    node = t.at(x)
    if node.op != "kl_div" or node["reduction"] != "sum" or (number,) != t.shape(node.inputs[0])[:1]:
        return None
    return t.add("kl_div", *map(Index, node.inputs), **dict(node.attributes) | {"reduction": "batchmean"})


def _source(t: Translation, node: Node) -> Node:
    return t.at(Index(node.inputs[0]))


def _is_square(t: Translation, node: Node, x: Index) -> bool:
    if node.op == "pow":
        return node["exponent"] == 2 and node.inputs == (x,)
    return node.op == "mul" and node.inputs == (x, x)
