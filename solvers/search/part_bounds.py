"""Bounds and solutions of the parts of a model in one configuration, and what they imply for other parts.

A *part* (i, j) is the subgraph between two boundaries. A *query* asks for its least time with a number of micro-batches
in flight and with its ends and shared weights in given sets of layouts. One query's answer serves others:

- a bound holds for every more restrictive query: more in flight, or fewer layouts;
- a solution solves every less restrictive query that admits its layouts.

Parts that compute the same (equal layers) have one *kind* and share their answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...model.graph.layout import Layout

Layouts: TypeAlias = tuple[Layout, ...]
"""The layouts of the tensors that cross a boundary, or of a weight."""
Ends: TypeAlias = tuple[Layouts, Layouts, tuple[Layout | None, ...]]
"""The layouts of a solution at its left and right end, and of its shared weights (None: not in this part)."""


@dataclass(frozen=True, slots=True)
class LayoutSet:
    """A set of layouts: those in `layouts` if `listed`, else all others."""

    layouts: frozenset[Layouts] = frozenset()
    listed: bool = False

    def __contains__(self, layouts: Layouts) -> bool:
        return (layouts in self.layouts) == self.listed

    def is_subset_of(self, other: LayoutSet) -> bool:
        """True if this is a subset of `other`."""
        if self.listed:
            return all(layouts in other for layouts in self.layouts)
        return not other.listed and other.layouts <= self.layouts

    def split(self, layouts: Iterable[Layouts]) -> tuple[LayoutSet, ...]:
        """Singletons of the given layouts that are in this set, and the rest of it."""
        alone = tuple(dict.fromkeys(x for x in layouts if x in self))
        rest = self.layouts - {*alone} if self.listed else self.layouts | {*alone}
        sides = tuple(LayoutSet(frozenset({x}), True) for x in alone)
        return sides if self.listed and not rest else (*sides, LayoutSet(rest, self.listed))


ANY = LayoutSet()


@dataclass(frozen=True, slots=True)
class Query:
    """The least time of a part with `in_flight` micro-batches (0: ignoring the memory limit), in these layouts."""

    in_flight: int
    left: LayoutSet = ANY
    right: LayoutSet = ANY
    shared: tuple[LayoutSet, ...] = ()  # one per shared weight; ANY if not in this part

    def is_restriction_of(self, other: Query) -> bool:
        """True if every solution of this query also solves `other`."""
        return (
            self.in_flight >= other.in_flight
            and self.left.is_subset_of(other.left)
            and self.right.is_subset_of(other.right)
            and all(a.is_subset_of(b) for a, b in zip(self.shared, other.shared, strict=True))
        )

    def admits(self, ends: Ends) -> bool:
        stored = all(x is None or (x,) in side for x, side in zip(ends[2], self.shared, strict=True))
        return ends[0] in self.left and ends[1] in self.right and stored


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """The answer to a query: no solution takes less than `bound` ns (INFINITE: there is none).

    `objective`: ns of the solution found, with `assignment` of the part's network and room for `in_flight`
    micro-batches (None: none was found). `inside`: lower bound for every part that contains this one with at least as
    many in flight; ignoring memory, such bounds of disjoint parts add up. `missing`: lower bound on the bytes that a
    part lacks if it does not fit (0: unknown). `refusal`: why the part could not be encoded. `prices`: ns per byte that
    prove the bound where memory is scarce. `planned`: ns of the solution with all updates and messages, where the
    objective leaves some out.
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
    planned: int = 0


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Lower bound on the bytes that a part adds to any part that contains it; disjoint parts add up. `room`: capacity.

    Every shared weight adds its `shared` bytes once, in each part that has it.
    """

    bytes: int
    room: int
    shared: tuple[int, ...] = ()


@dataclass(slots=True)
class PartBounds:
    """All answers so far, by kind of part."""

    answers: dict[Hashable, list[tuple[Query, PartAnswer]]] = field(default_factory=dict)
    memory_needs: dict[Hashable, dict[int, MemoryNeed]] = field(default_factory=dict)  # by micro-batches in flight
    backward: dict[Hashable, dict[int, int]] = field(default_factory=dict)  # likewise: ns of a step, at least
    updated: dict[Hashable, dict[int, int]] = field(default_factory=dict)  # likewise: of all slots, and the update
    ending: dict[Hashable, dict[int, int]] = field(default_factory=dict)  # likewise: and K updates

    def add(self, kind: Hashable, query: Query, answer: PartAnswer) -> None:
        self.answers.setdefault(kind, []).append((query, answer))

    def replace(self, kind: Hashable, query: Query, worse: PartAnswer, answer: PartAnswer) -> None:
        """Add an answer in place of one whose solution is of no use; the bound of that one stays."""
        bare = replace(worse, objective=None, assignment=None, in_flight=0, ends=((), (), ()))
        self.answers[kind] = [(q, bare if a.assignment == worse.assignment else a) for q, a in self.answers[kind]]
        self.add(kind, query, answer)

    def inherit(self, other: PartBounds) -> None:
        """Take over the bounds that ignore memory from a configuration with a coarser split into micro-batches."""
        for kind, answers in other.answers.items():
            mine = self.answers.get(kind, [])
            for query, answer in answers:
                if query.in_flight == 0 and (query, PartAnswer(answer.bound, inside=answer.inside)) not in mine:
                    self.add(kind, query, PartAnswer(answer.bound, inside=answer.inside))

    def with_less_room(self, less: int) -> PartBounds:
        """All bounds, for parts with so much less memory, in which solutions may not fit."""
        bounds = {
            kind: [
                (query, replace(answer, objective=None, assignment=None, in_flight=0, ends=((), (), ())))
                for query, answer in answers
            ]
            for kind, answers in self.answers.items()
        }
        needs = {
            kind: {flight: replace(need, room=need.room - less) for flight, need in own.items()}
            for kind, own in self.memory_needs.items()
        }
        return PartBounds(bounds, needs, *self.copied_times())

    def copied_times(self) -> Iterator[dict[Hashable, dict[int, int]]]:
        """Copies of `backward`, `updated` and `ending`."""
        return ({k: {**own} for k, own in of.items()} for of in (self.backward, self.updated, self.ending))

    def bound(self, kind: Hashable, query: Query) -> int:
        """Lower bound on a query, in ns."""
        return max((a.bound for q, a in self.answers.get(kind, ()) if query.is_restriction_of(q)), default=0)

    def inside(self, kind: Hashable, in_flight: int) -> int:
        """Lower bound on every part that contains one of this kind, in ns."""
        found = self.answers.get(kind, ())
        return max((a.inside for q, a in found if q.in_flight == in_flight), default=0)

    def best(self, kind: Hashable, query: Query) -> PartAnswer | None:
        """The fastest known solution that the query admits; ties go to the earliest."""
        found = (
            a
            for _, a in self.answers.get(kind, ())
            if a.objective is not None and a.in_flight >= query.in_flight > 0 and query.admits(a.ends)
        )
        return min(found, key=lambda a: a.objective or 0, default=None)
