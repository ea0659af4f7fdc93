"""The reference interpreter: computes every node on whole tensors in float64, independently of emitted code.

Tests and the verifier compare against it, gradients included: autograd differentiates it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import PartitaError
from ..operators.loss import CLASSIFIED, POINTWISE
from ..operators.operator import operator
from .dtypes import FLOATS
from .pcg import PCG, SOURCES, Node

Noise: TypeAlias = Callable[[int, tuple[int, ...]], Tensor]
"""(number of the projection, shape) -> its weights."""

Mask: TypeAlias = Callable[[int, tuple[int, ...], float], Tensor]
"""(call site, shape, p) -> what dropout multiplies by: 0, or 1 / (1 - p)."""


def run(
    pcg: PCG,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    mask: Mask | None = None,
    noise: Noise | None = None,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """The tensor of every node (the loss is number `pcg.loss`), given inputs, parameters and buffers by name.

    Tensors that a stage receives are inputs too, under the names of their `receive` nodes. Floats are computed in
    `dtype`. Dropout raises ValueError without `mask`. `noise` gives the weights of projections (default: cosines of
    the element's index). Running statistics among `weights` that have `dtype` are updated in place.
    """
    values: list[Tensor] = []
    for node in pcg.nodes:
        if node.op in SOURCES or node.op == "receive":
            given = inputs if node.op in ("input", "receive") else weights
            parts = [given[name] for name in node.originals]
            value = torch.cat(parts) if len(parts) > 1 else parts[0]
            if tuple(value.shape) != node.shape:
                raise ValueError(f"{node.op} {node.name!r} has shape {tuple(value.shape)}, not {node.shape}")
            values.append(value.to(dtype) if value.is_floating_point() else value)
            continue
        value = _value(node, [values[i] for i in node.inputs], mask, noise or fixed_noise)
        value = value.to(dtype) if value.is_floating_point() else value
        value = value if node.gradient else value.detach()
        if tuple(value.shape) != node.shape:
            raise ValueError(f"{node.op} {node.name!r} computes shape {tuple(value.shape)}, not {node.shape}")
        values.append(value)
    return values


def check_shapes(pcg: PCG) -> None:
    """Compute every node on the meta device. Raises PartitaError naming the first node with another shape."""
    given_ones = (*SOURCES, "receive")
    sources = {n.name: torch.empty(n.shape, dtype=_dtype(n), device="meta") for n in pcg.nodes if n.op in given_ones}
    values: list[Tensor] = []
    with torch.device("meta"), torch.no_grad():
        for node in pcg.nodes:
            try:
                given = [values[i] for i in node.inputs]
                value = sources[node.name] if node.op in given_ones else _value(node, given, _ones, fixed_noise)
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
                raise PartitaError(f"{node.op} {node.name!r} cannot be computed: {error}") from error
            if tuple(value.shape) != node.shape:
                raise PartitaError(f"{node.op} {node.name!r} has shape {tuple(value.shape)}, not {node.shape}")
            values.append(value)


def _ones(site: int, shape: tuple[int, ...], p: float) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


def _value(node: Node, given: Sequence[Tensor], mask: Mask | None, noise: Noise) -> Tensor:
    if node.op == "dropout":
        if mask is None:
            raise ValueError(f"{node.name!r} has p = {node['p']}, but no mask was given")
        return given[0] * mask(node["site"], node.shape, node["p"])
    if node.op == "projection":
        return (given[0] * noise(node["site"], tuple(given[0].shape)).to(given[0].dtype)).sum()
    return _COMPUTE.get(node.op, _emitted)(node, given)


def _emitted(node: Node, x: Sequence[Tensor]) -> Tensor:
    """An operator added by a user: the expression that is emitted for it."""
    entry = operator(node.op)
    operands = dict(zip(entry.named(node), x, strict=True))
    if callable(entry.emit):
        text = entry.emit(node, list(operands))
    else:
        text = entry.emit.format(**{name: name for name in operands}, **dict(node.attributes))
    value: Tensor = eval(text, {"torch": torch, "F": F}, operands)
    return value


def fixed_noise(site: int, shape: tuple[int, ...]) -> Tensor:
    """Weights of a projection: cosines of the element's index."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) * 1.7 + site).cos().reshape(shape)


def _dtype(node: Node) -> torch.dtype:
    """A node's dtype; float64 for floats."""
    if node.dtype in FLOATS:
        return torch.float64
    dtype: torch.dtype = getattr(torch, node.dtype)
    return dtype


def _slice(node: Node, x: Sequence[Tensor]) -> Tensor:
    where = (slice(None),) * node["dim"] + (slice(node["start"], node["stop"], node["step"]),)
    return x[0][where]


def _norm(function: Callable[..., Tensor]) -> Callable[[Node, Sequence[Tensor]], Tensor]:
    def compute(node: Node, x: Sequence[Tensor]) -> Tensor:
        names = node.get("operands") or ("x", "w", "bias")[: len(x)]
        given = dict(zip(names, x, strict=True))
        shape = node.shape[len(node.shape) - node["normalized"] :]
        optional = {ours: given[name] for name, ours in (("w", "weight"), ("bias", "bias")) if name in given}
        return function(given["x"], shape, **optional, eps=node["eps"])

    return compute


def _moments(node: Node, x: Sequence[Tensor]) -> Tensor:
    """Sums of x and of its squares, per channel."""
    dims = [d for d in range(x[0].dim()) if d != 1]
    return torch.stack((x[0].sum(dims), x[0].pow(2).sum(dims)))


def _batch_norm(node: Node, x: Sequence[Tensor]) -> Tensor:
    """Normalize by the moments; update running statistics in place unless a cast made a copy of them."""
    given = dict(zip(node["operands"], x, strict=True))
    count = given["x"].numel() // given["x"].shape[1]
    mean, square = given["s"] / count
    variance = square - mean**2
    if "mean" in given:
        with torch.no_grad():
            for running, now in ((given["mean"], mean), (given["var"], variance * count / (count - 1))):
                running += node["momentum"] * (now - running)

    def along(channels: Tensor) -> Tensor:
        return channels.reshape(1, -1, *[1] * (given["x"].dim() - 2))

    y: Tensor = (given["x"] - along(mean)) / along(variance + node["eps"]).sqrt()
    y = y * along(given["w"]) if "w" in given else y
    return y + along(given["bias"]) if "bias" in given else y


def _local_batch_norm(node: Node, x: Sequence[Tensor]) -> Tensor:
    """As on one rank."""
    given = dict(zip(node["operands"], x, strict=True))
    running = given.get("mean"), given.get("var")
    return F.batch_norm(given["x"], *running, given.get("w"), given.get("bias"), True, node["momentum"], node["eps"])


def _attention(node: Node, x: Sequence[Tensor]) -> Tensor:
    """Softmax of the scaled, masked scores, times the values."""
    q, k, v = x[:3]
    if node.get("grouped"):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scale = node["scale"] if node["scale"] is not None else q.shape[-1] ** -0.5
    scores = q @ k.mT * scale
    if node["causal"]:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if len(x) > 3:
        scores = scores.masked_fill(~x[3], -torch.inf) if x[3].dtype == torch.bool else scores + x[3]
    result: Tensor = scores.softmax(-1) @ v
    return result


def _loss(node: Node, x: Sequence[Tensor]) -> Tensor:
    """PyTorch's loss; operands after the target and attributes are its keywords."""
    attributes = {name: value for name, value in node.attributes if name != "operands"}
    weights = dict(zip(operator(node.op).named(node)[2:], x[2:], strict=True))
    result: Tensor = getattr(F, node.op)(x[0], x[1], **weights, **attributes)
    return result


def _bag(node: Node, x: Sequence[Tensor]) -> Tensor:
    rows = x[0][x[1]]
    return (rows * x[2].unsqueeze(-1) if len(x) > 2 else rows).sum(1)


def _index(node: Node, x: Sequence[Tensor]) -> Tensor:
    found = x[0].index_select(node["dim"], x[1].flatten())
    return found.reshape(node.shape)


def _opaque(node: Node, x: Sequence[Tensor]) -> Tensor:
    def decode(value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        tag, *rest = value
        if tag == "@":
            return x[rest[0]]
        return getattr(torch, rest[0]) if tag == "dtype" else [decode(v) for v in rest]

    call: Any = torch.ops
    for part in node["target"].split("."):
        call = getattr(call, part)
    result = call(
        *(decode(v) for key, v in node["arguments"] if not key), **{k: decode(v) for k, v in node["arguments"] if k}
    )
    chosen: Tensor = result if node["output"] is None else result[node["output"]]
    return chosen


def _method(name: str, *attributes: str) -> Callable[[Node, Sequence[Tensor]], Tensor]:
    """A function of torch of all operands, then the attributes in order."""
    function = getattr(torch, name)
    return lambda node, x: function(*x, *(node[a] for a in attributes))


def _functional(name: str, *attributes: str, **renamed: str) -> Callable[[Node, Sequence[Tensor]], Tensor]:
    function = getattr(F, name)
    return lambda node, x: function(*x, *(node[a] for a in attributes), **{k: node[v] for k, v in renamed.items()})


def _keywords(name: str) -> Callable[[Node, Sequence[Tensor]], Tensor]:
    """A function of torch.nn.functional for the input's rank; attributes are its keywords."""

    def compute(node: Node, x: Sequence[Tensor]) -> Tensor:
        rank = next((len(node[size]) for size in ("kernel_size", "output_size") if node.get(size)), x[0].dim() - 2)
        result: Tensor = getattr(F, name.format(rank))(*x, **dict(node.attributes))
        return result

    return compute


def _group_norm(node: Node, x: Sequence[Tensor]) -> Tensor:
    """A layer norm of each group, then weight and bias by channel."""
    groups = x[0].reshape(x[0].shape[0], node["groups"], -1)
    centred = groups - groups.mean(-1, keepdim=True)
    result: Tensor = (centred / (centred.square().mean(-1, keepdim=True) + node["eps"]).sqrt()).reshape(node.shape)
    channel = (-1, *(1 for _ in node.shape[2:]))
    result = result * x[1].view(channel) if len(x) > 1 else result
    return result + x[2].view(channel) if len(x) > 2 else result


_COMPUTE: dict[str, Callable[[Node, Sequence[Tensor]], Tensor]] = {
    **{
        name: _method(name)
        for name in [
            "relu",
            "tanh",
            "sigmoid",
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "sin",
            "cos",
            "erf",
            "abs",
            "reciprocal",
            "logical_not",
            "neg",
            "add",
            "sub",
            "mul",
            "div",
            "maximum",
            "minimum",
            "matmul",
            "where",
        ]
    },
    "gelu": _functional("gelu", approximate="approximate"),
    "silu": _functional("silu"),
    "softplus": _functional("softplus"),
    "leaky_relu": _functional("leaky_relu", "slope"),
    "elu": _functional("elu", "alpha"),
    **{name: _functional(name) for name in ["selu", "mish", "relu6", "hardswish", "hardsigmoid", "logsigmoid"]},
    "prelu": _functional("prelu"),
    "hardtanh": _functional("hardtanh", "min_val", "max_val"),
    "pow": _method("pow", "exponent"),
    "power": _method("pow"),
    "clamp": _method("clamp", "min", "max"),
    "shift": lambda node, x: x[0] + node["value"],
    "scale": lambda node, x: x[0] * node["value"],
    "compare": lambda node, x: getattr(torch, node["relation"])(x[0], torch.tensor(node["value"])),
    "relate": lambda node, x: getattr(torch, node["relation"])(*x),
    "to": lambda node, x: x[0].to(_dtype(node)),
    "view": lambda node, x: x[0].reshape(node.shape),
    "permute": lambda node, x: x[0].permute(node["dims"]),
    "expand": lambda node, x: x[0].expand(node.shape),
    "slice": _slice,
    "part": lambda node, x: x[0].chunk(node["of"], node["dim"])[node["number"]],
    "cat": lambda node, x: torch.cat(list(x), node["dim"]),
    "contiguous": lambda node, x: x[0],
    "send": lambda node, x: x[0],
    "detach": lambda node, x: x[0].detach(),
    "full": lambda node, x: torch.full(node.shape, node["value"], dtype=_dtype(node)),
    "arange": lambda node, x: torch.arange(node["start"], node["stop"], node["step"], dtype=_dtype(node)),
    "constant": lambda node, x: torch.tensor(node["values"], dtype=_dtype(node)).reshape(node.shape),
    "tril": _method("tril", "diagonal"),
    "triu": _method("triu", "diagonal"),
    "sum": lambda node, x: x[0].sum(node["dims"], keepdim=node["keepdim"]),
    "mean": lambda node, x: x[0].sum(node["dims"], keepdim=node["keepdim"]) / node["count"],
    "amax": lambda node, x: x[0].amax(node["dims"], keepdim=node["keepdim"]),
    "cumsum": _method("cumsum", "dim"),
    "cumprod": _method("cumprod", "dim"),
    "logsumexp": lambda node, x: x[0].logsumexp(node["dims"], keepdim=node["keepdim"]),
    "norm": lambda node, x: torch.linalg.vector_norm(x[0], node["ord"], node["dims"], keepdim=node["keepdim"]),
    "flip": _method("flip", "dims"),
    "roll": _method("roll", "shifts", "dims"),
    "pad": lambda node, x: F.pad(x[0], node["pad"], node["mode"], node["value"] or None),
    "einsum": lambda node, x: torch.einsum(node["equation"], *x),
    "softmax": _method("softmax", "dim"),
    "log_softmax": _method("log_softmax", "dim"),
    "linear": lambda node, x: F.linear(*x),
    "linear_relu": lambda node, x: F.linear(*x).relu(),
    "layer_norm": _norm(F.layer_norm),
    "group_norm": _group_norm,
    **{
        name: _keywords(f"{name}{{}}d")
        for name in [
            "conv",
            "conv_transpose",
            "max_pool",
            "avg_pool",
            "adaptive_max_pool",
            "adaptive_avg_pool",
        ]
    },
    "interpolate": _keywords("interpolate"),
    "rms_norm": _norm(F.rms_norm),
    "moments": _moments,
    "batch_norm": _batch_norm,
    "local_batch_norm": _local_batch_norm,
    "embedding": lambda node, x: x[0][x[1]],
    "embedding_bag": _bag,
    "gather": lambda node, x: torch.take_along_dim(x[0], x[1], node["dim"]),
    "index": _index,
    "topk": lambda node, x: x[0].topk(node["k"], node["dim"], node["largest"]).indices,
    "searchsorted": lambda node, x: torch.searchsorted(*(i.contiguous() for i in x)),
    "attention": _attention,
    **dict.fromkeys([*POINTWISE, *CLASSIFIED], _loss),
    "opaque": _opaque,
}
