"""One configuration, lazily: the master problem over what is known of the parts, until its optimum is known.

The master chooses the cuts for bounds alone. What it chose is asked of the parts, which raises bounds, and the master
chooses again; when all that it chose is known, that is the optimum. Both sides of a boundary must agree on layouts:
where they do not, the boundary is split into one place for each of the layouts that they took, and one for all others.
So few of the parts, and few of the layouts, are ever solved for. Weights that several stages have are agreed on alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import chain, pairwise, product
from math import ceil, inf
from time import monotonic
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...model.graph.layout import Layout
from .interval_bounds import added, around, positions
from .interval_table import Bounds
from .part_bounds import ANY, Answer, Letters, Need, Query, Side
from .shortest_cut import Times, best_path
from .state import Effort, Level, Stages, State
from .zero_bubble_bound import ZeroBubbleBound

_Key = TypeVar("_Key", bound=Hashable)

_LITTLE = 0.25
"""The part of the gap that a bound may be lower for stages that are not asked."""

Place: TypeAlias = tuple[int, Side]
"""A boundary, and the layouts that are meant there."""


class Parts(Protocol):
    """The parts of a model in one configuration, whose times can be asked for."""

    @property
    def floors(self) -> Times:
        """[n, n]: no time of part (i, j) is less, and those of disjoint parts add up; INFINITE where i >= j."""
        ...

    @property
    def handed(self) -> Times:
        """[n]: no less comes on top of it at a boundary."""
        ...

    @property
    def zero_bubble(self) -> ZeroBubbleBound | None:
        """Until when stages work, where that is not what they are busy."""
        ...

    @property
    def stages(self) -> npt.NDArray[np.bool_]:
        """[n, n]: which parts can be stages."""
        ...

    def kind(self, i: int, j: int) -> Hashable:
        """Equal for parts that compute the same, between boundaries of equal groups."""
        ...

    def group(self, boundary: int) -> Hashable:
        """Equal for boundaries that tensors of the same form cross."""
        ...

    def shared(self, i: int, j: int) -> tuple[bool, ...]:
        """Of every weight that several stages may have, whether this part has it and leaves it to others too."""
        ...

    def solve(self, i: int, j: int, query: Query, effort: Effort) -> Answer:
        """The least time of a part."""
        ...

    def need(self, i: int, j: int, in_flight: int) -> Need:
        """The least memory of a part inside of any other, whatever time it takes."""
        ...


def search_cuts(parts: Parts, configuration: Configuration, state: State, reach: int, effort: Effort) -> Stages | None:
    """Raise the bound of a configuration until it is `reach` or proved best within the effort; the best plan found.

    `effort.cutoff` is not used: it follows from `reach`.
    """
    return _CutSearch(parts, configuration, state, reach, effort).run()


def raise_bound(parts: Parts, configuration: Configuration, state: State) -> None:
    """Raise the bound of a configuration by what is known of its parts."""
    _CutSearch(parts, configuration, state, INFINITE, Effort(Level.RELAXED)).raise_bound()


class _CutSearch:
    def __init__(self, parts: Parts, configuration: Configuration, state: State, reach: int, effort: Effort) -> None:
        self.parts, self.configuration, self.state = parts, configuration, state
        self.reach, self.effort = reach, effort
        self.until = monotonic() + effort.seconds
        self.floors, self.handed, self.stages = parts.floors, parts.handed, parts.stages
        self.zero_bubble = parts.zero_bubble
        self.count = len(self.floors)
        self.kinds = positions(parts.stages, parts.kind, parts.shared)
        self.proved = Bounds(state.known, self._groups, self._sides)
        self.places, self.first = self._laid_out()
        self.times: dict[tuple[int, tuple[Side, ...]], Times] = {}
        self.least: dict[int, Times] = {}
        self.within: dict[int, Times] = {}
        self.has_shared = np.array([[parts.shared(i, j) for j in range(self.count)] for i in range(self.count)])

    def run(self) -> Stages | None:
        """Choose, ask, and choose again."""
        state = self.state
        while True:
            chosen = self.raise_bound()
            if chosen is None:
                return None
            places, queries = chosen
            if state.bound >= self.reach or monotonic() > self.until:
                return None
            wanted = self._wanted(places, queries)
            if wanted is not None:
                self._ask(*wanted)
                continue
            answers = [self._best(places, queries, s) for s in range(len(queries))]
            found = tuple(a for a in answers if a is not None)
            if len(found) < len(answers):  # without memory only bounds are wanted; else none was found in time
                return None
            apart, parted = self._disagreements(places, found), self._parted(places, found)
            if not apart and not parted:
                step = self._step_ns(places, [a.objective or 0 for a in found])
                return Stages(step, tuple(b for b, _ in places), found)
            self.proved.split(_split(state.sides, apart))
            if _split(state.shared, parted):
                self.proved = Bounds(state.known, self._groups, self._sides)
            self.places, self.first = self._laid_out()
            self.times = {}

    def raise_bound(self) -> tuple[list[Place], list[Query]] | None:
        """What the master chooses; None where there is no path."""
        chosen = self._choose()
        self.state.bound = max(self.state.bound, INFINITE if chosen is None else chosen[0])
        return None if chosen is None else chosen[1:]

    def _choose(self) -> tuple[int, list[Place], list[Query]] | None:
        """The least step that is not excluded: its cuts with the sides taken there, and what it asks of every stage."""
        parts, p = self.parts, self.configuration.stages
        places = self.places
        best: tuple[int, list[Place], list[Query]] | None = None
        weights = range(len(parts.shared(0, self.count - 1)))
        for shared in product(*(self.state.shared.get(w, (ANY,)) for w in weights)):
            flights = [self._in_flight(s) for s in range(p)]
            times = {f: self._times(f, shared) for f in set(flights)}
            path = best_path(
                self._ended([times[f] for f in flights]), self.configuration.rounds, self.configuration.devices
            )
            if path is None or (best is not None and path.objective >= best[0]):
                continue
            taken = [places[node] for node in path.nodes]
            queries = [self._query(taken[s], taken[s + 1], flights[s], shared) for s in range(p)]
            best = path.objective, taken, queries
        return best

    def _ended(self, busy: list[Times]) -> list[Times]:
        """Until when the stages work, from any place to any other."""
        if self.zero_bubble is None:
            return busy
        at = np.array([b for b, _ in self.places])
        return [self.zero_bubble.until(s, at[:, None], at[None, :], times) for s, times in enumerate(busy)]

    def _ends(self, places: list[Place], busy: Sequence[int]) -> Sequence[int]:
        """Until when stages work that are busy so long."""
        if self.zero_bubble is None:
            return busy
        spans = enumerate(pairwise(b for b, _ in places))
        return [int(self.zero_bubble.until(s, i, j, busy[s])) for s, (i, j) in spans]

    def _step_ns(self, places: list[Place], busy: Sequence[int]) -> int:
        return self.configuration.step_ns(self._ends(places, busy))

    def _laid_out(self) -> tuple[list[Place], npt.NDArray[np.int64]]:
        """All places, and the first of every boundary."""
        sides = [self._sides(self._group(b)) for b in range(self.count)]
        return [(b, side) for b, own in enumerate(sides) for side in own], np.cumsum([0, *map(len, sides)])

    def _group(self, boundary: int) -> Hashable:
        """Those whose sides are told apart alike; the ends of the model have none."""
        return (self.parts.group(boundary),) if 0 < boundary < self.count - 1 else None

    def _groups(self, kind: Hashable) -> tuple[Hashable, Hashable]:
        starts, ends = self.kinds[kind][0]
        return self._group(int(starts[0])), self._group(int(ends[0]))

    def _sides(self, group: Hashable) -> tuple[Side, ...]:
        return (ANY,) if group is None else self.state.sides.get(group, (ANY,))

    def _in_flight(self, stage: int) -> int:
        return 0 if self.effort.level is Level.RELAXED else self.configuration.in_flight(stage)

    def _query(self, left: Place, right: Place, in_flight: int, shared: Sequence[Side]) -> Query:
        return Query(in_flight, left[1], right[1], self._had(left[0], right[0], shared))

    def _had(self, i: int, j: int, shared: Sequence[Side]) -> tuple[Side, ...]:
        """How a part stores the weights that it shares with others."""
        return tuple(x if has else ANY for has, x in zip(self.parts.shared(i, j), shared, strict=True))

    def _times(self, in_flight: int, shared: tuple[Side, ...]) -> Times:
        """What is proved of every part between two places."""
        if (in_flight, shared) not in self.times:
            index = [b for b, _ in self.places]
            times = self.times[in_flight, shared] = self._least(in_flight)[np.ix_(index, index)].copy()
            for kind in self.state.known.answers:
                self._enter(times, kind, in_flight, shared)
        return self.times[in_flight, shared]

    def _enter(self, times: Times, kind: Hashable, in_flight: int, shared: tuple[Side, ...]) -> None:
        """Raise times by what is proved of the parts of a kind."""
        first = self.first
        for starts, ends in self.kinds.get(kind, ()):
            values = self.proved.of(kind, in_flight, self._had(int(starts[0]), int(ends[0]), shared))
            left, right = map(np.arange, values.shape)
            at = (first[starts, None] + left)[:, :, None], (first[ends, None] + right)[:, None, :]
            times[at] = np.maximum(times[at], values)

    def _least(self, in_flight: int) -> Times:
        """What every part takes at the least, as far as that follows from what is known of parts inside of it."""
        if in_flight not in self.least:
            handed, answers = self.handed, self.state.known.answers.values()
            flights = sorted({q.in_flight for own in answers for q, _ in own if 0 < q.in_flight <= in_flight})
            most = reduce(np.maximum, map(self._within, flights), self._within(0))
            most = np.minimum(most + handed[:, None] + handed[None, :], INFINITE)
            self.least[in_flight] = np.where(self.stages & self._fits(in_flight), most, INFINITE)
        return self.least[in_flight]

    def _within(self, in_flight: int) -> Times:
        """[n, n]: what follows for every part from one within of which that is known, and from the rest of it."""
        if in_flight not in self.within:
            known = self._inside(in_flight)
            if in_flight == 0:
                found = added(np.maximum(self.floors, known))
            elif known.any():
                rest = self._within(0)
                found = around(around(rest, np.where(known > 0, known, -INFINITE)), rest)
            else:
                found = known
            self.within[in_flight] = found
        return self.within[in_flight]

    def _inside(self, in_flight: int) -> Times:
        """[n, n]: what is proved of parts that have a part (i, j) within; 0 where nothing is."""
        found = np.zeros_like(self.floors)
        for kind in self.state.known.answers:
            value = self.state.known.inside(kind, in_flight)
            for starts, ends in self.kinds.get(kind, ()) if value else ():
                found[starts, ends] = np.maximum(found[starts, ends], value)
        return found

    def _fits(self, in_flight: int) -> npt.NDArray[np.bool_]:
        """[n, n]: which parts are not known to need more memory than they have, by what is known of parts inside."""
        own, room = np.zeros_like(self.floors), np.full_like(self.floors, INFINITE)
        shared = np.zeros(len(self.parts.shared(0, self.count - 1)), dtype=np.int64)
        for kind, needs in self.state.known.needs.items() if in_flight else ():
            for need in (need for flight, need in needs.items() if flight <= in_flight):
                shared = np.maximum(shared, need.shared or 0)
                for starts, ends in self.kinds.get(kind, ()):
                    own[starts, ends] = np.maximum(own[starts, ends], need.bytes)
                    for i, j in zip(starts, ends, strict=True):
                        room[: i + 1, j:] = np.minimum(room[: i + 1, j:], need.room)
        return added(own) + self.has_shared @ shared <= room

    def _wanted(self, places: list[Place], queries: list[Query]) -> tuple[int, int, Query, int] | None:
        """The stage of the chosen that takes longest and is not known yet: its part, what is asked, and the cutoff."""
        spans = [(places[s][0], places[s + 1][0]) for s in range(len(queries))]
        busy = [
            max(int(self._least(q.in_flight)[i, j]), self.state.known.bound(self.parts.kind(i, j), q))
            for (i, j), q in zip(spans, queries, strict=True)
        ]
        for s in self._worth(self._ends(places, busy)):
            kind, cutoff = self.parts.kind(*spans[s]), self._cutoff(places, busy, s)
            if not self._settled(kind, queries[s], busy[s], cutoff):
                return (*spans[s], queries[s], cutoff)
        return None

    def _worth(self, busy: Sequence[int]) -> list[int]:
        """Which stages to ask, the longest first; where a bound is sought, not those that can add little to it."""
        order, rounds = sorted(range(len(busy)), key=lambda s: -busy[s]), self.configuration.rounds
        slack = inf if rounds is None else _LITTLE * self.effort.gap * max(busy) * rounds
        while self.effort.level < Level.PRICED and len(order) > 1 and slack >= max(busy) - busy[order[-1]] > 0:
            slack -= max(busy) - busy[order.pop()]
        return order

    def _settled(self, kind: Hashable, query: Query, bound: int, cutoff: int) -> bool:
        """Whether no more is asked of a part with this effort."""
        if bound >= INFINITE:
            return True
        best = self.state.known.best(kind, query)
        if best is not None and best.objective is not None and self._close(best.objective, bound):
            return True
        return any(
            self.state.tried.get((kind, query, level), -1) >= cutoff for level in Level if level >= self.effort.level
        )

    def _close(self, objective: int, bound: int) -> bool:
        return bound >= ceil(objective - abs(objective) * Fraction(self.effort.gap))

    def _cutoff(self, places: list[Place], busy: list[int], stage: int) -> int:
        """The least time of a stage with which the step reaches `reach`, where the others take what is proved."""
        if self.reach >= INFINITE:
            return INFINITE
        low, high = busy[stage], self.reach
        while low < high:
            middle = (low + high) // 2
            step = self._step_ns(places, [*busy[:stage], middle, *busy[stage + 1 :]])
            low, high = (low, middle) if step >= self.reach else (middle + 1, high)
        return low

    def _ask(self, i: int, j: int, query: Query, cutoff: int) -> None:
        prices = self.state.prices or self.effort.prices
        effort = Effort(self.effort.level, self.effort.gap, cutoff, self.until - monotonic(), prices)
        answer = self.parts.solve(i, j, query, effort)
        self.state.prices = answer.prices or self.state.prices
        kind = self.parts.kind(i, j)
        self.state.known.add(kind, query, answer)
        self.proved.learn(kind, query, answer.bound)
        for key, times in self.times.items():
            self._enter(times, kind, *key)
        self.state.tried[kind, query, self.effort.level] = cutoff
        self.state.solved += 1
        self.state.refusal = self.state.refusal or answer.refusal
        if answer.missing is not None:
            before = self.state.missing
            self.state.missing = answer.missing if before is None else min(answer.missing, before)
        if answer.inside:
            self.least, self.times = {}, {}
            self.within = {f: v for f, v in self.within.items() if 0 < query.in_flight != f}
        if answer.bound >= INFINITE and query.in_flight:
            self._weigh(i, j, query.in_flight)

    def _weigh(self, i: int, j: int, in_flight: int) -> None:
        """Learn what all within a part that does not fit needs, which tells of other parts too."""
        needs = self.state.known.needs
        for a, b in ((i, j), *((k, k + 1) for k in range(i, j))):
            own = needs.setdefault(self.parts.kind(a, b), {})
            if in_flight not in own:
                own[in_flight] = self.parts.need(a, b, in_flight)
        self.least, self.times = {}, {}

    def _best(self, places: list[Place], queries: list[Query], stage: int) -> Answer | None:
        kind = self.parts.kind(places[stage][0], places[stage + 1][0])
        return self.state.known.best(kind, queries[stage])

    def _disagreements(self, places: list[Place], answers: Sequence[Answer]) -> dict[Hashable, list[Letters]]:
        """The groups of boundaries on whose layouts stages do not agree, with those taken."""
        apart: dict[Hashable, list[Letters]] = {}
        for s in range(1, len(answers)):
            before, after = answers[s - 1].ends[1], answers[s].ends[0]
            if before != after:
                apart.setdefault(self._group(places[s][0]), []).extend((before, after))
        return apart

    def _parted(self, places: list[Place], answers: Sequence[Answer]) -> dict[int, list[Letters]]:
        """The weights that stages do not store alike, with the layouts taken."""
        has = [self.parts.shared(places[s][0], places[s + 1][0]) for s in range(len(answers))]
        stored = {
            w: _taken(a.ends[2][w] for a, own in zip(answers, has, strict=True) if own[w]) for w in range(len(has[0]))
        }
        return {w: letters for w, letters in stored.items() if len(set(letters)) > 1}


def _split(sides: dict[_Key, tuple[Side, ...]], apart: Mapping[_Key, list[Letters]]) -> dict[_Key, list[int]]:
    """Look at each of these layouts by itself; into how many each side was split."""
    parts = {key: [side.split(letters) for side in sides.get(key, (ANY,))] for key, letters in apart.items()}
    sides.update({key: tuple(chain.from_iterable(own)) for key, own in parts.items()})
    return {key: list(map(len, own)) for key, own in parts.items()}


def _taken(layouts: Iterable[Layout | None]) -> list[Letters]:
    return [(layout,) for layout in layouts if layout is not None]
