"""pTensors, vTensors and masks (SuperScaler, section 3.1, Figures 5 to 7).

A pTensor is a tensor of the captured graph: a value, its gradient, or an updated parameter. A vTensor is the part of
a pTensor that one operator reads or writes: its mask is a box over the tensor's atoms and a share of its addends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from typing import NamedTuple, TypeAlias

from ...model.graph.layout import P, atom_of, is_split

Interval: TypeAlias = tuple[int, int]
"""Start and stop along one atom."""

Box: TypeAlias = tuple[Interval, ...]
"""One interval per atom, outermost first."""

Addends: TypeAlias = tuple[Fraction, Fraction]
"""Share of the sum: [0, 1) is the value itself, [1/4, 1/2) the second of four addends."""

ALL: Addends = (Fraction(0), Fraction(1))
_ALL_HASH = hash(ALL)


@dataclass(frozen=True, slots=True)
class Mask:
    """A part of a tensor: an interval per atom, and a share of the addends."""

    box: Box
    addends: Addends = ALL
    _hash: int = field(init=False, compare=False, repr=False)  # kept, since fractions are slow to hash

    def __post_init__(self) -> None:
        share = _ALL_HASH if self.addends is ALL else hash(self.addends)
        object.__setattr__(self, "_hash", hash((self.box, share)))

    def __hash__(self) -> int:
        return self._hash

    def cut(self, letter: int, parts: int, number: int) -> Mask:
        """Part `number` of `parts` along one letter; R and B leave the mask whole.

        Sizes need not divide: the last part is then smaller. Raises ValueError with the size if it would be empty.
        """
        if letter == P:
            least, most = self.addends
            share = (most - least) / parts
            return Mask(self.box, (least + number * share, least + (number + 1) * share))
        if not is_split(letter):
            return self
        atom = atom_of(letter)
        start, stop = self.box[atom]
        step = -(-(stop - start) // parts)  # as in the planner's layouts (`model.graph.layout.chunk`)
        if step * (parts - 1) >= stop - start:
            raise ValueError(stop - start)
        inner = (start + number * step, min(start + (number + 1) * step, stop))
        return Mask((*self.box[:atom], inner, *self.box[atom + 1 :]), self.addends)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.box)

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    @property
    def partial(self) -> bool:
        """True for an addend, False for the value."""
        return self.addends != ALL

    def __str__(self) -> str:
        """`[0:4, 8:16]`; for an addend `[0:4] addend 1/2`."""
        text = "[" + ", ".join(f"{start}:{stop}" for start, stop in self.box) + "]"
        if not self.partial:
            return text
        start, stop = self.addends
        return f"{text} addend {start / (stop - start) + 1}/{1 / (stop - start)}"


def whole(sizes: tuple[int, ...]) -> Mask:
    """The mask of a whole tensor with these atom sizes."""
    return Mask(tuple((0, size) for size in sizes))


def meet(a: Box, b: Box) -> Box | None:
    """Intersection of two boxes; None if empty (Figure 7)."""
    shared = tuple((max(s, t), min(e, f)) for (s, e), (t, f) in zip(a, b, strict=True))
    return None if any(start >= stop for start, stop in shared) else shared


def within(a: Box, b: Box) -> bool:
    """True if box `a` lies in box `b`."""
    return all(t <= s and e <= f for (s, e), (t, f) in zip(a, b, strict=True))


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box that contains all boxes."""
    sides = zip(*boxes, strict=True)
    return tuple((min(start for start, _ in side), max(stop for _, stop in side)) for side in sides)


def cells(box: Box, others: Iterable[Box]) -> list[Box]:
    """The cells of a box cut at the borders of all other boxes, last atom fastest.

    Every other box contains a cell or is disjoint from it.
    """
    near = [other for other in others if meet(box, other) is not None]
    cuts = []
    for atom, (start, stop) in enumerate(box):
        inner = {edge for other in near for edge in other[atom] if start < edge < stop}
        cuts.append(list(pairwise(sorted({start, stop, *inner}))))
    return list(product(*cuts))


def takes(reader: Addends, written: Addends) -> bool:
    """True if a reader of a share of the addends takes the addend `written`.

    A reader takes the addends that begin in its share, so readers that partition the addends take each once.
    """
    return reader is ALL or reader[0] <= written[0] < reader[1]


VALUE, GRADIENT, UPDATED, RECOMPUTED, SAVED = "value", "gradient", "updated", "recomputed", "saved"
STATES = "states"


class PTensor(NamedTuple):
    """A tensor of the captured graph. `kind`: the value of `node`, its gradient, the updated parameter, the recomputed
    value, the tensors saved for its backward, or the states of its optimizer."""

    kind: str
    node: int


@dataclass(slots=True, eq=False)  # they are looked up often: equal ones of a graph are one object (`Graph.part`)
class VTensor:
    """The part of a pTensor that one operator reads or writes.

    A gradient sums over all readers of the value; `via` names the reader (node, operand) that contributes this addend.
    """

    tensor: PTensor
    mask: Mask
    via: tuple[int, int] | None = None
