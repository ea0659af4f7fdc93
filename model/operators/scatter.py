"""Scatters: the entries of `s` along a dim go to the places that ids name. Sums are linear in `s`, entry by entry.

A rank that has some of the entries (edges of a graph, tokens of an expert) computes an addend of the whole sum. Ids
have the dims of `s`, or size 1 where they are the same along a dim; they are not negative. Of entries with the same id
`scatter` keeps one, and PyTorch does not say which.
"""

from collections.abc import Sequence

from torch import Tensor

from ..graph.pcg import Node
from .operator import Operator


def _indices(node: Node, place: str) -> str:
    """The indices of a tensor of the node's rank, with `place` along the dim of the scatter."""
    return ", ".join(place if d == node["dim"] else f"d{d}" for d in range(len(node.shape)))


def _sum(node: Node, inputs: tuple[Node, ...]) -> str:
    """A product with ones where an entry goes: no entry is missing if entries are split."""
    entries = _indices(node, "k")
    return f"y[{_indices(node, 'j')}] = sum(k) f(ids[{entries}])[j] * s[{entries}]"


def _scatter(node: Node, inputs: tuple[Node, ...]) -> str:
    """Given distinct ids, linear in what is overwritten and what is written; a number written is not an addend.

    Of entries with the same id each rank may keep another one, so that their addends are not those of one entry.
    """
    whole = _indices(node, ":")
    if len(inputs) == 3 and not _distinct(inputs[1], node["dim"]):
        return _extreme(node, inputs)
    if len(inputs) == 2:
        return f"y[{_indices(node, 'j')}] = f(x[{whole}], ids[{whole}])[j]"
    return f"y[{_indices(node, 'j')}] = f(ids[{whole}])[j] * L(x[{whole}], s[{whole}])[j]"


def _distinct(ids: Node, dim: int) -> bool:
    """True for constant ids of which no two are equal."""
    return ids.op == "constant" and len(set(ids["values"])) == ids.numel == ids.shape[dim]


def _extreme(node: Node, inputs: tuple[Node, ...]) -> str:
    whole = _indices(node, ":")
    return f"y[{_indices(node, 'j')}] = f(x[{whole}], ids[{whole}], s[{whole}])[j]"


def _entries(node: Node, inputs: tuple[Node, ...]) -> int:
    return inputs[-1].numel


def scatter_add(s: Tensor, dim: int, ids: Tensor, size: int) -> Tensor:
    """Sums of the entries of `s` along `dim`, which gets `size` places."""
    shape = (*s.shape[:dim], size, *s.shape[dim + 1 :])
    return s.new_zeros(shape).scatter_add_(dim, ids.expand_as(s), s)


def _scatter_call(node: Node, names: Sequence[str]) -> str:
    x, ids, *values = names
    if not values:
        return f"{x}.scatter({node['dim']}, {ids}, {node['value']!r})"
    return f"{x}.scatter({node['dim']}, {ids}.expand_as({values[0]}), {values[0]})"


def _extreme_call(node: Node, names: Sequence[str]) -> str:
    x, ids, values = names
    own = "" if node["include_self"] else ", include_self=False"
    return f'{x}.scatter_reduce({node["dim"]}, {ids}.expand_as({values}), {values}, "{node["reduce"]}"{own})'


OPERATORS = (
    Operator(
        "scatter_add",
        ("ids", "s"),
        _sum,
        lambda node, names: f"scatter_add({names[1]}, {node['dim']}, {names[0]}, {node.shape[node['dim']]})",
        saved=("ids",),
        flops=_entries,
        reference=lambda node, x: scatter_add(x[1], node["dim"], x[0], node.shape[node["dim"]]),
    ),
    Operator("scatter", ("x", "ids", "s"), _scatter, _scatter_call, saved=("ids",), flops=_entries),
    # Largest, smallest or product of the entries of each place; backward shares gradients among equal entries.
    Operator(
        "scatter_reduce",
        ("x", "ids", "s"),
        _extreme,
        _extreme_call,
        saved=("x", "ids", "s", "y"),
        flops=_entries,
    ),
)
