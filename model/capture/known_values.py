"""Values of tensors that depend on no input and no parameter: constants, buffers with values, what is computed of them.

A mask is recognised by its value, however a module computes it. Values that are equal along dims are held once, so a
mask costs the same at any batch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ..graph.constants import ELEMENTWISE
from ..graph.dtypes import FLOATS
from ..graph.interpreter import computed
from ..graph.pcg import SOURCES, Node
from ..operators.operator import is_random, operator

MOST_BYTES = 2**28
"""Larger values are not computed."""
_COMPARED = 2**20
"""Most elements of a value that is searched for dims along which it is equal."""
_MASKED = -1e4
"""Addends of scores up to this one leave no share to a key."""


class KnownValues:
    """The values of nodes, computed when asked for.

    `buffers` has those of buffer nodes that are known, of which checkpoints may change those in `loaded`.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.buffers: Mapping[int, Tensor] = {}
        self.loaded: Collection[int] = ()
        self._found: dict[int, Known | None] = {}
        self._least: dict[int, int] = {}

    def of(self, index: int) -> Tensor | None:
        """The value of a node; floats in float64.

        None if it is unknown or too large, or if what follows from floats is something else in the module's own dtypes.
        """
        known = self._pair(index)
        return None if known is None else known[0]

    def _pair(self, index: int) -> "Known | None":
        if index not in self._found:
            self._found[index] = self._value(index)
        return self._found[index]

    def least(self, buffer: int) -> int:
        """The smallest value of an integer buffer; one without values is taken not to be negative."""
        if buffer not in self._least:
            values = self.buffers.get(buffer)
            self._least[buffer] = 0 if values is None or not values.numel() else int(values.min())
        return self._least[buffer]

    def _value(self, index: int) -> "Known | None":
        node = self._nodes[index]
        if node.op == "buffer" and index in self.buffers and index not in self.loaded:
            value = self.buffers[index].detach()
            return (value.double(), value) if value.is_floating_point() else (value, value)
        if node.op in SOURCES or is_random(node) or operator(node.op).updates:
            return None
        if node.op == "full":
            value = torch.tensor(node["value"], dtype=torch.float64 if isinstance(node["value"], float) else None)
            wide, own = (value.to(dtype).expand(node.shape) for dtype in (_held(node), getattr(torch, node.dtype)))
            return wide, own if node.dtype in FLOATS else wide
        given = []
        for source in node.inputs:
            known = self._pair(source)
            if known is None:
                return None
            given.append(known)
        exact = _computed(node, [pair[0] for pair in given], _held(node))
        if exact is None or (node.dtype not in FLOATS and all(pair[0] is pair[1] for pair in given)):
            return None if exact is None else (exact, exact)
        rounded = _computed(node, [pair[1] for pair in given], getattr(torch, node.dtype))
        if node.dtype in FLOATS:
            return None if rounded is None else (exact, rounded)
        return (exact, exact) if rounded is not None and torch.equal(once(rounded), once(exact)) else None


Known: TypeAlias = tuple[Tensor, Tensor]
"""A value with floats in float64, and as the module computes it; the same tensor twice for what is no float."""


def _computed(node: Node, given: list[Tensor], dtype: torch.dtype) -> Tensor | None:
    narrow = list(node.shape)
    if node.op in ELEMENTWISE:  # equal along a dim if all operands are
        rank = len(narrow)
        padded = [x.reshape((1,) * (rank - x.dim()) + tuple(x.shape)) if x.dim() < rank else x for x in given]
        for dim in range(rank):
            if all(x.shape[dim] == 1 or x.stride(dim) == 0 for x in padded):
                narrow[dim] = 1
                padded = [x.narrow(dim, 0, 1) for x in padded]
        given = padded
    itemsize = 1 if node.dtype in ("bool", "uint8", "int8") else 8
    if node.op != "expand" and torch.Size(narrow).numel() * itemsize > MOST_BYTES:
        return None
    with torch.no_grad():
        value = computed(node, given)
    if value.is_floating_point():
        value = value.to(dtype)
    return _equal_rows(value).expand(node.shape)


def _held(node: Node) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, node.dtype)
    return torch.float64 if dtype.is_floating_point else dtype


def _equal_rows(value: Tensor) -> Tensor:
    """A small value once for all entries of dim 0, if they are equal."""
    if value.dim() and value.shape[0] > 1 and value.stride(0) and 0 < value.numel() <= _COMPARED:
        first = value[:1]
        if torch.equal(value, first.expand(value.shape)):
            return first
    return value


def once(value: Tensor) -> Tensor:
    """The value with size 1 along the dims in which it is expanded."""
    for dim in range(value.dim()):
        if value.shape[dim] > 1 and value.stride(dim) == 0:
            value = value.narrow(dim, 0, 1)
    return value


def is_causal(mask: Tensor) -> bool:
    """True if a mask of scores [.., queries, keys], of truth values or addends, hides what follows each query alone.

    The last two dims have their full sizes: a mask that broadcasts over them is expanded before.
    """
    seen = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    leading = once(mask.movedim((-2, -1), (0, 1)))
    small = mask if leading.shape[:2] != mask.shape[-2:] else leading.movedim((0, 1), (-2, -1))
    if small.dtype == torch.bool:
        return bool((small == seen).all())
    return bool(((small == 0) == seen).all() and ((small <= _MASKED) | seen).all())


def hides_nothing(mask: Tensor) -> bool:
    """True if a mask of scores, of truth values or addends, leaves all of them as they are."""
    small = once(mask)
    return bool(small.all() if small.dtype == torch.bool else (small == 0).all())


def sees_something(mask: Tensor) -> bool:
    """True if a mask of scores, of truth values or addends, leaves every query a key."""
    small = once(mask)
    return bool((small if small.dtype == torch.bool else small > -torch.inf).any(-1).all())
