"""Table look-ups: an access indexed by another.

Ids count from the start of the whole table, and none is negative. The gradient of what is looked up in is dense: as
large as the table, zeroed, then added to; or, of an embedding that is `sparse`, the rows looked up, with their ids.
Autograd keeps the ids.
"""

from collections.abc import Sequence

from ..graph.pcg import Node
from .operator import Operator, register


def _embedding(node: Node, names: Sequence[str]) -> str:
    table, ids = names
    return f"F.embedding({ids}, {table}{_sparse(node)})"


def _sparse(node: Node) -> str:
    return ", sparse=True" if node.get("sparse") else ""


def _bag(node: Node, inputs: tuple[Node, ...]) -> str:
    """The sum of the rows that a bag of ids names, each times its weight."""
    return "y[b, e] = sum(l) w[ids[b, l], e]" + (" * p[b, l]" if len(inputs) > 2 else "")


def _bag_work(node: Node, inputs: tuple[Node, ...]) -> int:
    return 2 * inputs[1].numel * node.shape[-1]


def _bag_call(node: Node, names: Sequence[str]) -> str:
    table, ids, *weights = names
    weighted = "".join(f", per_sample_weights={w}" for w in weights)
    return f'F.embedding_bag({ids}, {table}, mode="sum"{_sparse(node)}{weighted})'


def _gather(node: Node, inputs: tuple[Node, ...]) -> str:
    """One entry along `dim` for every id; elsewhere ids and tensor go together, or one of them has size 1."""
    names = [f"d{i}" for i in range(len(node.shape))]
    ids = f"ids[{', '.join(names)}]"
    inside = ", ".join(ids if d == node["dim"] else name for d, name in enumerate(names))
    return f"y[{', '.join(names)}] = x[{inside}]"


def _index(node: Node, inputs: tuple[Node, ...]) -> str:
    """The dims of the ids in the place of `dim`."""
    x, dim = inputs[0], node["dim"]
    names = [f"d{i}" for i in range(len(x.shape))]
    ids = [f"i{k}" for k in range(len(inputs[1].shape))]
    inside = [*names[:dim], f"ids[{', '.join(ids)}]", *names[dim + 1 :]]
    return f"y[{', '.join([*names[:dim], *ids, *names[dim + 1 :]])}] = x[{', '.join(inside)}]"


def _index_call(node: Node, names: Sequence[str]) -> str:
    x, ids = names
    return f"{x}[{':, ' * node['dim']}{ids}]"


register(Operator("embedding", ("w", "ids"), "y[b.., e] = w[ids[b..], e]", _embedding, saved=("ids",)))
register(Operator("embedding_bag", ("w", "ids", "p"), _bag, _bag_call, saved=("ids", "p"), flops=_bag_work))
register(
    Operator(
        "gather",
        ("x", "ids"),
        _gather,
        lambda node, names: f"{names[0]}.take_along_dim({names[1]}, {node['dim']})",
        saved=("ids",),
    )
)
register(Operator("index", ("x", "ids"), _index, _index_call, saved=("ids",)))
