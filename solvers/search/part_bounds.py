"""What is known of the parts of a model in one configuration: bounds and solutions, and what follows from them.

A *part* (i, j) lies between two boundaries. A *query* asks for its least time with so many micro-batches in flight,
its ends and its shared weights in certain layouts. What holds for a query holds for others:

- a bound for those that ask for more: more in flight, or fewer layouts at an end;
- a solution for those that ask for less, as long as its layouts are among theirs.

Parts that compute the same (equal layers) have one *kind*, and share what is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ...model.graph.layout import Layout

Letters: TypeAlias = tuple[Layout, ...]
"""The layouts of the tensors that cross a boundary, or of a weight."""
Ends: TypeAlias = tuple[Letters, Letters, tuple[Layout | None, ...]]
"""What a solution of a part takes at its left and right, and how it stores weights that several stages have."""


@dataclass(frozen=True, slots=True)
class Side:
    """Which letters are meant: those named if `named`, else all but them."""

    letters: frozenset[Letters] = frozenset()
    named: bool = False

    def __contains__(self, letters: Letters) -> bool:
        return (letters in self.letters) == self.named

    def within(self, other: Side) -> bool:
        """Whether all that is meant here is meant there."""
        if self.named:
            return all(letters in other for letters in self.letters)
        return not other.named and other.letters <= self.letters

    def split(self, letters: Iterable[Letters]) -> tuple[Side, ...]:
        """Each of the letters that are meant alone, and the rest of this side."""
        alone = tuple(dict.fromkeys(x for x in letters if x in self))
        rest = self.letters - {*alone} if self.named else self.letters | {*alone}
        sides = tuple(Side(frozenset({x}), True) for x in alone)
        return sides if self.named and not rest else (*sides, Side(rest, self.named))


ANY = Side()


@dataclass(frozen=True, slots=True)
class Query:
    """The least time of a part: with so many micro-batches in flight (0: without a limit of memory)."""

    in_flight: int
    left: Side = ANY
    right: Side = ANY
    shared: tuple[Side, ...] = ()  # of every weight that several stages have; ANY where this part has it not

    def asks_no_less(self, other: Query) -> bool:
        """Whether what solves this query would solve the other one too."""
        return (
            self.in_flight >= other.in_flight
            and self.left.within(other.left)
            and self.right.within(other.right)
            and all(a.within(b) for a, b in zip(self.shared, other.shared, strict=True))
        )

    def admits(self, ends: Ends) -> bool:
        stored = all(x is None or (x,) in side for x, side in zip(ends[2], self.shared, strict=True))
        return ends[0] in self.left and ends[1] in self.right and stored


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave: no solution takes less than `bound` ns (INFINITE: there is none).

    `objective` ns with `assignment` (of the part's network) is one; None where none was found. It fits with `in_flight`
    micro-batches. `inside` is a bound for every part that has this one within, with as many in flight or more: where
    there is no limit of memory, such bounds of disjoint parts add up. Of a part that does not fit, `missing` bytes are
    missing at the least (0: nobody knows how many); `refusal` says why there is no network. `prices` of a byte prove
    the bound, where memory is scarce.
    """

    bound: int
    objective: int | None = None
    in_flight: int = 0
    ends: Ends = ((), (), ())
    assignment: tuple[int, ...] | None = None
    inside: int = 0
    missing: int | None = None
    refusal: str = ""
    prices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """A part needs so many bytes at the least inside of any other, where they add up; all that it is in has `room`.

    Weights that several stages have come on top, `shared` bytes each, in every part that has them.
    """

    bytes: int
    room: int
    shared: tuple[int, ...] = ()


@dataclass(slots=True)
class PartBounds:
    """All answers so far, by the kind of the part."""

    answers: dict[Hashable, list[tuple[Query, Answer]]] = field(default_factory=dict)
    needs: dict[Hashable, dict[int, Need]] = field(default_factory=dict)  # by micro-batches in flight

    def add(self, kind: Hashable, query: Query, answer: Answer) -> None:
        self.answers.setdefault(kind, []).append((query, answer))

    def inherit(self, other: PartBounds) -> None:
        """What holds without a limit of memory also holds where micro-batches are cut finer by a whole factor."""
        for kind, answers in other.answers.items():
            mine = self.answers.get(kind, [])
            for query, answer in answers:
                if query.in_flight == 0 and (query, Answer(answer.bound, inside=answer.inside)) not in mine:
                    self.add(kind, query, Answer(answer.bound, inside=answer.inside))

    def bound(self, kind: Hashable, query: Query) -> int:
        """What is proved of a query."""
        return max((a.bound for q, a in self.answers.get(kind, ()) if query.asks_no_less(q)), default=0)

    def inside(self, kind: Hashable, in_flight: int) -> int:
        """What is proved of parts that have one of this kind within."""
        found = self.answers.get(kind, ())
        return max((a.inside for q, a in found if q.in_flight == in_flight), default=0)

    def best(self, kind: Hashable, query: Query) -> Answer | None:
        """The fastest solution that is one of the query too; the earliest of them."""
        found = (
            a
            for _, a in self.answers.get(kind, ())
            if a.objective is not None and a.in_flight >= query.in_flight > 0 and query.admits(a.ends)
        )
        return min(found, key=lambda a: a.objective or 0, default=None)
