"""The optimal cuts of one configuration, solving only the parts that matter.

A master problem (`shortest_cut`) chooses the cuts by the lower bounds of the parts. The chosen parts are solved, their
bounds rise, and the master chooses again; once every chosen part is solved, the choice is optimal. Both sides of a
boundary must agree on layouts: where they do not, its place is split into one for each layout that they took and one
for all others. So few parts, and few layouts, are ever solved. Layouts of shared weights are agreed on the same way.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import chain, pairwise, product
from math import ceil, inf
from time import monotonic
from typing import Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...model.graph.layout import Layout
from .interval_bounds import BoundTables, max_adjacent_sum, max_disjoint_sum, positions_by_kind
from .one_f_one_b_bound import OneFOneBBound
from .paired_cut import best_pairs
from .part_bounds import ANY, Layouts, LayoutSet, MemoryNeed, PartAnswer, Query
from .repeated_bound import BothWaysBound, FinishBound
from .shared_operators import Least
from .shortest_cut import CutPath, Times, best_path
from .slots_bound import SlotsBound
from .state import Effort, Level, Proved, Stages

_Key = TypeVar("_Key", bound=Hashable)

CLOSE = 1e-3
"""Share of a step that is not worth another search."""

_SLACK_SHARE = 0.25
"""Share of the gap that a bound may lose by leaving short stages unsolved."""

Place: TypeAlias = tuple[int, LayoutSet]
"""A boundary and the layouts allowed there."""


class Parts(Protocol):
    """The parts of a model in one configuration and their times."""

    @property
    def floors(self) -> Times:
        """[n, n]: lower bounds on the times of parts (i, j); disjoint parts add up. INFINITE where i >= j."""
        ...

    @property
    def transfer_floors(self) -> Times:
        """[2, n]: lower bounds on what receiving and sending over each boundary adds."""
        ...

    @property
    def finish_bound(self) -> FinishBound | None:
        """Bound on finish times, if the step is more than the sum of busy times."""
        ...

    @property
    def messages(self) -> Times | None:
        """[2, n]: the least messages across each boundary, ahead and back, that a step takes besides; None: none."""
        ...

    @property
    def slots(self) -> OneFOneBBound | SlotsBound | None:
        """Bound on the step, slot by slot."""
        ...

    @property
    def beside(self) -> Least:
        """What the devices take, at least, beside the stages."""
        ...

    @property
    def stages(self) -> npt.NDArray[np.bool_]:
        """[n, n]: True for parts that can be stages."""
        ...

    def kind(self, i: int, j: int) -> Hashable:
        """Equal for parts that compute the same, between boundaries of equal groups."""
        ...

    def group(self, boundary: int) -> Hashable:
        """Equal for boundaries that tensors of the same form cross."""
        ...

    def shared(self, i: int, j: int) -> tuple[bool, ...]:
        """For every shared weight: True if both this part and another one have it."""
        ...

    def solve(self, i: int, j: int, query: Query, effort: Effort) -> PartAnswer:
        """The least time of a part."""
        ...

    def as_planned(self, i: int, j: int, query: Query, answer: PartAnswer, effort: Effort) -> PartAnswer:
        """A solution that is short with its updates and messages, which the bound leaves out; or the answer itself."""
        ...

    def least_backward(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Lower bound on the backwards of a part in a step."""
        ...

    def least_updated(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Lower bound on all that a part does in a step, its updates included, but for messages."""
        ...

    def least_ending(self, i: int, j: int, in_flight: int, effort: Effort) -> int:
        """Lower bound on the slots of a part in a step, and on its update as many times as there are micro-batches."""
        ...

    def solve_without_long_updates(self, i: int, j: int, query: Query, effort: Effort, most: int) -> PartAnswer | None:
        """The least time of a part whose update takes no longer than `most`; None: it never takes longer."""
        ...

    def memory_need(self, i: int, j: int, in_flight: int) -> MemoryNeed:
        """Lower bound on the memory that a part adds to any part that contains it."""
        ...


def search_cuts(
    parts: Parts, configuration: Configuration, state: Proved, target: int, effort: Effort
) -> Stages | None:
    """Raise the bound of a configuration to `target`, or until its best plan is proved within the effort; that plan.

    `effort.cutoff`: plans with such a step are of no use; bounds may then be of the others, and no more than it.
    """
    return _CutSearch(parts, configuration, state, target, effort).run()


def raise_bound(parts: Parts, configuration: Configuration, state: Proved) -> None:
    """Raise the bound of a configuration by what is proved of its parts, without solving any."""
    _CutSearch(parts, configuration, state, INFINITE, Effort(Level.RELAXED)).raise_bound()


class _CutSearch:
    def __init__(self, parts: Parts, configuration: Configuration, state: Proved, target: int, effort: Effort) -> None:
        self.parts, self.configuration, self.state = parts, configuration, state
        self.target, self.effort = target, effort
        self.until, self.most_solved = monotonic() + effort.seconds, state.solved + effort.networks
        self.floors, self.transfer_floors, self.stages = parts.floors, parts.transfer_floors, parts.stages
        self.finish_bound, self.slots = parts.finish_bound, parts.slots
        self.closely = False  # True to look for the cuts of least bound more closely, once the parts of some are solved
        self.messages = None if parts.messages is None else parts.messages.sum(axis=0)
        self.beside_ns = parts.beside.ns - configuration.rounding_ns
        self.count = len(self.floors)
        self.kinds = positions_by_kind(parts.stages, parts.kind, parts.shared)
        self.bound_tables = BoundTables(state.known, self._groups, self._layout_sets)
        self.places, self.first = self._places()
        self.times: dict[tuple[int, tuple[LayoutSet, ...]], Times] = {}
        self.lower_bounds: dict[int, Times] = {}
        self.by_subparts: dict[int, Times] = {}
        self.without_long: set[tuple[Hashable, Query]] = set()  # solved without long updates
        self.raised: dict[tuple[str, int], Times] = {}
        self.has_shared = np.array([[parts.shared(i, j) for j in range(self.count)] for i in range(self.count)])

    def run(self) -> Stages | None:
        """Choose cuts and solve their parts until the choice is solved; the plan, if any."""
        state = self.state
        while True:
            chosen = self.raise_bound()
            if chosen is None:
                return None
            places, queries = chosen
            if state.bound >= self.target or monotonic() > self.until:
                return None
            if self._learn_ending(places, queries):
                continue
            query = self._next_query(places, queries)
            if query is not None:
                if state.solved >= self.most_solved:
                    return None
                self._solve_part(*query)
                if self.closely:
                    self._solve_rest(places, queries)
                self.closely = False
                continue
            if isinstance(self.slots, SlotsBound) and not self.closely and self.effort.level >= Level.PRICED:
                self.closely = True
                continue
            self.closely = False
            answers = [self._best(places, queries, s) for s in range(len(queries))]
            found = tuple(a for a in answers if a is not None)
            if len(found) < len(answers):  # a bounding level, or out of time
                return None
            layouts, storage = self._disagreements(places, found), self._storage_disagreements(places, found)
            if not layouts and not storage:
                if self._learn_backward(places, queries, found):
                    continue
                least = self._step_ns(places, [a.objective or 0 for a in found])
                state.is_near = state.bound >= least * (1 - CLOSE)
                planned = self._as_planned(places, queries, found)
                if self._learn_updates(places, queries, planned):
                    continue
                if self._forbid_long_updates(places, queries, found, planned):
                    continue
                step = self._step_ns(places, [a.objective or 0 for a in planned])
                return Stages(step, tuple(b for b, _ in places), tuple(planned))
            self.bound_tables.split(_split(state.layout_sets, layouts))
            if _split(state.shared, storage):
                self.bound_tables = BoundTables(state.known, self._groups, self._layout_sets)
            self.places, self.first = self._places()
            self.times = {}

    def raise_bound(self) -> tuple[list[Place], list[Query]] | None:
        """The master's choice: places and queries; None if there is no path."""
        chosen = self._choose()
        found = INFINITE if chosen is None else chosen[0]
        self.state.bound = max(self.state.bound, min(found, self.state.assumed))
        return None if chosen is None else chosen[1:]

    def _choose(self) -> tuple[int, list[Place], list[Query]] | None:
        """The least step not excluded by bounds, its places, and the query of every stage."""
        parts, p = self.parts, self.configuration.stages
        places = self.places
        best: tuple[int, list[Place], list[Query]] | None = None
        weights = range(len(parts.shared(0, self.count - 1)))
        for shared in product(*(self.state.shared.get(w, (ANY,)) for w in weights)):
            flights = [self._in_flight(s) for s in range(p)]
            times = {f: self._stage_times(f, shared) for f in set(flights)}
            path = self._best_path([times[f] for f in flights], flights)
            if path is None:
                continue
            step = min(path.objective + self.beside_ns, INFINITE)
            if best is not None and step >= best[0]:
                continue
            taken = [places[node] for node in path.nodes]
            queries = [self._query(taken[s], taken[s + 1], flights[s], shared) for s in range(p)]
            best = step, taken, queries
        return best

    def _best_path(self, busy: list[Times], flights: list[int]) -> CutPath | None:
        """The path over places with the least bound on the step if stages are busy so long."""
        at = np.array([b for b, _ in self.places])
        if self.slots is not None:
            larger, updated = ([of(f)[np.ix_(at, at)] for f in flights] for of in (self._larger_way, self._updated))
            ending = self._ending(flights[0])[np.ix_(at, at)]
            if isinstance(self.slots, SlotsBound):
                return self.slots.best_path(at, busy, larger, updated, ending, closely=self.closely)
            return self.slots.best_path(at, busy, larger, updated, ending)
        finish = self._finish_times(busy)
        if isinstance(self.finish_bound, BothWaysBound):
            return best_pairs(busy, finish, self.finish_bound.around[at])
        sent = None if self.messages is None else self.messages[at]
        return best_path(finish, self.configuration.rounds, self.configuration.devices, sent)

    def _finish_times(self, busy: list[Times]) -> list[Times]:
        """[p] arrays: bounds on each stage's finish time, between any two places."""
        if self.finish_bound is None:
            return busy
        at = np.array([b for b, _ in self.places])
        return [self.finish_bound.finish_time(s, at[:, None], at[None, :], times) for s, times in enumerate(busy)]

    def _stage_finish_times(self, places: list[Place], busy: Sequence[int]) -> Sequence[int]:
        """Bounds on the finish times of stages with these busy times, in two directions on those of their devices."""
        if self.finish_bound is None:
            return busy
        spans = enumerate(pairwise(b for b, _ in places))
        found = [int(self.finish_bound.finish_time(s, i, j, busy[s])) for s, (i, j) in spans]
        if isinstance(self.finish_bound, BothWaysBound):
            before = self.finish_bound.around[[b for b, _ in places]]
            pairs = ((min(s, len(busy) - 1 - s), own + busy[-1 - s]) for s, own in enumerate(busy))
            found = [max(own, int(before[d]) + both) for own, (d, both) in zip(found, pairs, strict=True)]
        return found

    def _step_ns(self, places: list[Place], busy: Sequence[int]) -> int:
        if self.slots is not None:
            bounds = [b for b, _ in places]
            stages = [(self._in_flight(s), ends) for s, ends in enumerate(pairwise(bounds))]
            larger, updated = ([int(of(f)[ends]) for f, ends in stages] for of in (self._larger_way, self._updated))
            ending = int(self._ending(self._in_flight(0))[stages[0][1]])
            return self.beside_ns + self.slots.step_ns(bounds, busy, larger, updated, ending)
        sent = 0 if self.messages is None else int(sum(self.messages[b] for b, _ in places))
        return self.beside_ns + sent + self.configuration.step_ns(self._stage_finish_times(places, busy))

    def _larger_way(self, in_flight: int) -> Times:
        """[n, n]: lower bounds on the backwards of every part, of 1F1B on the longer of both ways, in a step."""
        assert self.slots is not None
        return self._raised("backward", self.slots.larger_way, in_flight)

    def _updated(self, in_flight: int) -> Times:
        """[n, n]: lower bounds on all that every part does in a step, updates included; 0 where nothing is known."""
        return self._raised("updated", np.zeros_like(self.floors), in_flight)

    def _ending(self, in_flight: int) -> Times:
        """[n, n]: lower bounds on K times a micro-batch and the update of every part; 0 where nothing is known."""
        return self._raised("ending", np.zeros_like(self.floors), in_flight)

    def _learn_ending(self, places: list[Place], queries: list[Query]) -> bool:
        """Bound the last slots of the first stage with its update, before stages are solved; False if that is known."""
        if self.slots is None or self.effort.level < Level.PRICED or self.configuration.micro_batches == 1:
            return False
        first = [s == 0 for s in range(len(queries))]

        def least(i: int, j: int, in_flight: int, effort: Effort) -> int:
            return self.parts.least_ending(i, j, in_flight, replace(effort, rough=True))

        return self._learn(places, queries, first, self.state.known.ending, least)

    def _raised(self, which: Literal["backward", "updated", "ending"], least: Times, in_flight: int) -> Times:
        """The times of parts, raised to what is known of their kinds with no more micro-batches in flight."""
        if (which, in_flight) not in self.raised:
            found = self.raised[which, in_flight] = least.copy()
            known: Mapping[Hashable, Mapping[int, int]] = getattr(self.state.known, which)
            for kind, own in known.items():
                proved = max((ns for flight, ns in own.items() if flight <= in_flight), default=0)
                for starts, ends in self.kinds.get(kind, ()):
                    found[starts, ends] = np.maximum(found[starts, ends], proved)
        return self.raised[which, in_flight]

    def _learn_backward(self, places: list[Place], queries: list[Query], answers: Sequence[PartAnswer]) -> bool:
        """Bound backwards of stages where the step may depend on them; False if in none."""
        if self.slots is None:
            return False
        bounds, busy = [b for b, _ in places], [a.objective or 0 for a in answers]
        long = ceil(self._step_ns(places, busy) / (1 - Fraction(self.effort.gap) / 2))
        waiting = [ns > long for ns in self.slots.waiting_ns(bounds, busy)]
        return self._learn(places, queries, waiting, self.state.known.backward, self.parts.least_backward)

    def _learn_updates(self, places: list[Place], queries: list[Query], answers: Sequence[PartAnswer]) -> bool:
        """Bound slots and update of stages on whose end the step may depend; False if there are none."""
        if self.slots is None:
            return False
        bounds, busy = [b for b, _ in places], [a.objective or 0 for a in answers]
        short = self.state.bound / (1 - Fraction(self.effort.gap) / 2) * self.configuration.micro_batches
        ways = [int(self._larger_way(q.in_flight)[ends]) for q, ends in zip(queries, pairwise(bounds), strict=True)]
        last = self.slots.ends_ns(bounds, busy, ways, [a.planned for a in answers])
        late = [s > 0 and ns > short for s, ns in enumerate(last.tolist())]  # the first one's counts
        return self._learn(places, queries, late, self.state.known.updated, self.parts.least_updated)

    def _learn(
        self,
        places: list[Place],
        queries: list[Query],
        needed: Sequence[bool],
        known: dict[Hashable, dict[int, int]],
        least: Callable[[int, int, int, Effort], int],
    ) -> bool:
        """Find the `least` time of the stages that need it, and add it to what is `known`; False if all is known."""
        before, effort = self.state.solved, replace(self.effort, cutoff=None)
        for ((i, _), (j, _)), query, is_needed in zip(pairwise(places), queries, needed, strict=True):
            own = known.setdefault(self.parts.kind(i, j), {})
            if is_needed and query.in_flight not in own:
                own[query.in_flight] = least(i, j, query.in_flight, replace(effort, seconds=self.until - monotonic()))
                self.state.solved, self.raised = self.state.solved + 1, {}
        return self.state.solved > before

    def _as_planned(self, places: list[Place], queries: list[Query], answers: Sequence[PartAnswer]) -> list[PartAnswer]:
        """Solutions that are short in all that stages do, in the same layouts, where bounds count slots alone."""
        effort = replace(self.effort, cutoff=None, gap=max(CLOSE, self.effort.gap), seconds=self.until - monotonic())
        found = list[PartAnswer]()
        for (left, right), query, answer in zip(pairwise(places), queries, answers, strict=True):
            own = replace(
                query,
                left=_only(answer.ends[0]) if left[0] else query.left,
                right=_only(answer.ends[1]) if right[0] < self.count - 1 else query.right,
                shared=tuple(ANY if x is None else _only((x,)) for x in answer.ends[2]),
            )
            found.append(self.parts.as_planned(left[0], right[0], own, answer, effort))
        return found

    def _forbid_long_updates(
        self,
        places: list[Place],
        queries: list[Query],
        answers: Sequence[PartAnswer],
        planned: Sequence[PartAnswer],
    ) -> bool:
        """Solve stages again whose update alone makes the step too long, without such updates; False if none is.

        `planned`: the answers as they would be planned. What is proved then holds for all plans whose step is below the
        cutoff.
        """
        if self.slots is None or self.effort.cutoff is None:
            return False
        state, solved, cutoff = self.state, self.state.solved, self.effort.cutoff
        for s, (query, answer, full) in enumerate(zip(queries, answers, planned, strict=True)):
            (i, j), kind = (places[s][0], places[s + 1][0]), self.parts.kind(places[s][0], places[s + 1][0])
            first = min(int(starts.min()) for starts, _ in self.kinds[kind])  # of all parts that are alike
            slots = state.known.bound(kind, query)
            if self.configuration.waits_for_messages:  # no update waits for the message back, which is in the bound
                slots = int(self.slots.least_busy[i, j])
            before = int(self.slots.forward[first]) + slots
            long = full.planned - (full.objective or 0)
            if s == 0 or before + long < cutoff or (kind, query) in self.without_long:
                continue
            self.without_long.add((kind, query))
            effort = replace(self.effort, cutoff=None, seconds=self.until - monotonic())
            found = self.parts.solve_without_long_updates(i, j, query, effort, cutoff - 1 - before)
            if found is not None:
                state.known.replace(kind, query, answer, found)
                state.assumed, state.solved, self.times = min(state.assumed, cutoff), state.solved + 1, {}
                self.bound_tables.learn(kind, query, found.bound)
        return state.solved > solved

    def _places(self) -> tuple[list[Place], npt.NDArray[np.int64]]:
        """All places, and the index of the first one of every boundary."""
        sides = [self._layout_sets(self._group(b)) for b in range(self.count)]
        return [(b, side) for b, own in enumerate(sides) for side in own], np.cumsum([0, *map(len, sides)])

    def _group(self, boundary: int) -> Hashable:
        """The group of boundaries that are split alike; None at the ends of the model."""
        return (self.parts.group(boundary),) if 0 < boundary < self.count - 1 else None

    def _groups(self, kind: Hashable) -> tuple[Hashable, Hashable]:
        starts, ends = self.kinds[kind][0]
        return self._group(int(starts[0])), self._group(int(ends[0]))

    def _layout_sets(self, group: Hashable) -> tuple[LayoutSet, ...]:
        return (ANY,) if group is None else self.state.layout_sets.get(group, (ANY,))

    def _in_flight(self, stage: int) -> int:
        return 0 if self.effort.level is Level.RELAXED else self.configuration.in_flight(stage)

    def _query(self, left: Place, right: Place, in_flight: int, shared: Sequence[LayoutSet]) -> Query:
        return Query(in_flight, left[1], right[1], self._stored_sets(left[0], right[0], shared))

    def _stored_sets(self, i: int, j: int, shared: Sequence[LayoutSet]) -> tuple[LayoutSet, ...]:
        """The allowed layouts of the shared weights that a part has."""
        return tuple(x if has else ANY for has, x in zip(self.parts.shared(i, j), shared, strict=True))

    def _stage_times(self, in_flight: int, shared: tuple[LayoutSet, ...]) -> Times:
        """Lower bounds on the times of all parts between two places."""
        if (in_flight, shared) not in self.times:
            index = [b for b, _ in self.places]
            times = self.times[in_flight, shared] = self._lower_bounds(in_flight)[np.ix_(index, index)].copy()
            for kind in self.state.known.answers:
                self._raise_times(times, kind, in_flight, shared)
        return self.times[in_flight, shared]

    def _raise_times(self, times: Times, kind: Hashable, in_flight: int, shared: tuple[LayoutSet, ...]) -> None:
        """Raise the times of all parts of a kind to what is proved of them."""
        first = self.first
        for starts, ends in self.kinds.get(kind, ()):
            values = self.bound_tables.of(kind, in_flight, self._stored_sets(int(starts[0]), int(ends[0]), shared))
            left, right = map(np.arange, values.shape)
            at = (first[starts, None] + left)[:, :, None], (first[ends, None] + right)[:, None, :]
            times[at] = np.maximum(times[at], values)

    def _lower_bounds(self, in_flight: int) -> Times:
        """[n, n]: lower bounds that follow from the parts inside of every part; INFINITE if it cannot be a stage."""
        if in_flight not in self.lower_bounds:
            transfer_floors, answers = self.transfer_floors, self.state.known.answers.values()
            flights = sorted({q.in_flight for own in answers for q, _ in own if 0 < q.in_flight <= in_flight})
            most = reduce(np.maximum, map(self._bounds_by_subparts, flights), self._bounds_by_subparts(0))
            most = np.minimum(most + transfer_floors[0, :, None] + transfer_floors[1, None, :], INFINITE)
            self.lower_bounds[in_flight] = np.where(self.stages & self._fits(in_flight), most, INFINITE)
        return self.lower_bounds[in_flight]

    def _bounds_by_subparts(self, in_flight: int) -> Times:
        """[n, n]: lower bounds by one proved part within each part, plus the floors of the rest."""
        if in_flight not in self.by_subparts:
            known = self._proved_inside(in_flight)
            if in_flight == 0:
                found = max_disjoint_sum(np.maximum(self.floors, known))
            elif known.any():
                rest = self._bounds_by_subparts(0)
                found = max_adjacent_sum(max_adjacent_sum(rest, np.where(known > 0, known, -INFINITE)), rest)
            else:
                found = known
            self.by_subparts[in_flight] = found
        return self.by_subparts[in_flight]

    def _proved_inside(self, in_flight: int) -> Times:
        """[n, n]: what is proved of every part that contains part (i, j); 0 where nothing is."""
        found = np.zeros_like(self.floors)
        for kind in self.state.known.answers:
            value = self.state.known.inside(kind, in_flight)
            for starts, ends in self.kinds.get(kind, ()) if value else ():
                found[starts, ends] = np.maximum(found[starts, ends], value)
        return found

    def _fits(self, in_flight: int) -> npt.NDArray[np.bool_]:
        """[n, n]: False for parts that are proved not to fit, by the needs of the parts inside."""
        own, room = np.zeros_like(self.floors), np.full_like(self.floors, INFINITE)
        shared = np.zeros(len(self.parts.shared(0, self.count - 1)), dtype=np.int64)
        for kind, needs in self.state.known.memory_needs.items() if in_flight else ():
            for need in (need for flight, need in needs.items() if flight <= in_flight):
                shared = np.maximum(shared, need.shared or 0)
                for starts, ends in self.kinds.get(kind, ()):
                    own[starts, ends] = np.maximum(own[starts, ends], need.bytes)
                    for i, j in zip(starts, ends, strict=True):
                        room[: i + 1, j:] = np.minimum(room[: i + 1, j:], need.room)
        return max_disjoint_sum(own) + self.has_shared @ shared <= room

    def _next_query(self, places: list[Place], queries: list[Query]) -> tuple[int, int, Query, int] | None:
        """The longest chosen stage that is not settled: its part, query and cutoff; None if all are."""
        spans = [(places[s][0], places[s + 1][0]) for s in range(len(queries))]
        busy = [
            max(int(self._lower_bounds(q.in_flight)[i, j]), self.state.known.bound(self.parts.kind(i, j), q))
            for (i, j), q in zip(spans, queries, strict=True)
        ]
        for s in self._stages_to_solve(self._stage_finish_times(places, busy)):
            kind, cutoff = self.parts.kind(*spans[s]), self._cutoff(places, busy, s)
            if not self._is_settled(kind, queries[s], busy[s], cutoff):
                return (*spans[s], queries[s], cutoff)
        return None

    def _stages_to_solve(self, busy: Sequence[int]) -> list[int]:
        """Stages to solve, longest first; at bounding levels without those that can add little to the bound."""
        order, rounds = sorted(range(len(busy)), key=lambda s: -busy[s]), self.configuration.rounds
        rounds = self.configuration.devices if self.slots is not None else rounds
        slack = inf if rounds is None else _SLACK_SHARE * self.effort.gap * max(busy) * rounds
        while self.effort.level < Level.PRICED and len(order) > 1 and slack >= max(busy) - busy[order[-1]] > 0:
            slack -= max(busy) - busy[order.pop()]
        return order

    def _is_settled(self, kind: Hashable, query: Query, bound: int, cutoff: int) -> bool:
        """True if this effort cannot add anything to a part."""
        if bound >= INFINITE:
            return True
        best = self.state.known.best(kind, query)
        if best is not None and best.objective is not None and self._is_within_gap(best.objective, bound):
            return True
        return any(
            spent >= cutoff and (query == asked or self._has_answer_of(kind, query, asked))
            for (of, asked, level), spent in self.state.tried.items()
            if of == kind and level >= self.effort.level
        )

    def _has_answer_of(self, kind: Hashable, query: Query, wider: Query) -> bool:
        """True if the best solution of a wider query is one of this query too; a closer effort proves more of it."""
        best = self.state.known.best(kind, wider) if query.is_restriction_of(wider) else None
        known = best is not None and best.in_flight >= query.in_flight and query.admits(best.ends)
        return known and self.effort.level < Level.CLOSED

    def _is_within_gap(self, objective: int, bound: int) -> bool:
        return bound >= ceil(objective - abs(objective) * Fraction(self.effort.gap))

    def _cutoff(self, places: list[Place], busy: list[int], stage: int) -> int:
        """The least time of a stage with which the step reaches `target` if the others take their lower bounds."""
        if self.target >= INFINITE:
            return INFINITE
        low, high = busy[stage], self.target
        while low < high:
            middle = (low + high) // 2
            step = self._step_ns(places, [*busy[:stage], middle, *busy[stage + 1 :]])
            low, high = (low, middle) if step >= self.target else (middle + 1, high)
        return low

    def _solve_part(self, i: int, j: int, query: Query, cutoff: int) -> None:
        """Solve a part; where solutions are sought first for a rough bound, after which the master may drop it."""
        prices, level, kind = self.state.prices or self.effort.prices, self.effort.level, self.parts.kind(i, j)
        rough = level >= Level.PRICED and (kind, query) not in self.state.bounded
        effort = Effort(level, self.effort.gap, cutoff, self.until - monotonic(), prices, rough=rough)
        answer = self.parts.solve(i, j, query, effort)
        self.state.prices = answer.prices or self.state.prices
        self.state.bounded.add((kind, query))
        self.state.known.add(kind, query, answer)
        self.bound_tables.learn(kind, query, answer.bound)
        for key, times in self.times.items():
            self._raise_times(times, kind, *key)
        if not rough:
            self.state.tried[kind, query, level] = cutoff
        self.state.solved += 1
        self.state.refusal = self.state.refusal or answer.refusal
        if answer.missing is not None:
            before = self.state.missing
            self.state.missing = answer.missing if before is None else min(answer.missing, before)
        if answer.inside:
            self.lower_bounds, self.times = {}, {}
            self.by_subparts = {f: v for f, v in self.by_subparts.items() if 0 < query.in_flight != f}
        if answer.bound >= INFINITE and query.in_flight:
            self._learn_memory_needs(i, j, query.in_flight)

    def _learn_memory_needs(self, i: int, j: int, in_flight: int) -> None:
        """Find the memory needs of everything within a part that does not fit; they bound other parts too."""
        needs = self.state.known.memory_needs
        for a, b in ((i, j), *((k, k + 1) for k in range(i, j))):
            own = needs.setdefault(self.parts.kind(a, b), {})
            if in_flight not in own:
                own[in_flight] = self.parts.memory_need(a, b, in_flight)
        self.lower_bounds, self.times = {}, {}

    def _solve_rest(self, places: list[Place], queries: list[Query]) -> None:
        """Solve the other parts of the chosen cut, too, since to choose another one closely takes as long."""
        while self.state.solved < self.most_solved and monotonic() < self.until:
            query = self._next_query(places, queries)
            if query is None:
                return
            self._solve_part(*query)

    def _best(self, places: list[Place], queries: list[Query], stage: int) -> PartAnswer | None:
        kind = self.parts.kind(places[stage][0], places[stage + 1][0])
        return self.state.known.best(kind, queries[stage])

    def _disagreements(self, places: list[Place], answers: Sequence[PartAnswer]) -> dict[Hashable, list[Layouts]]:
        """Groups of boundaries at which neighbouring stages took different layouts, with these layouts."""
        layouts: dict[Hashable, list[Layouts]] = {}
        for s in range(1, len(answers)):
            before, after = answers[s - 1].ends[1], answers[s].ends[0]
            if before != after:
                layouts.setdefault(self._group(places[s][0]), []).extend((before, after))
        return layouts

    def _storage_disagreements(self, places: list[Place], answers: Sequence[PartAnswer]) -> dict[int, list[Layouts]]:
        """Shared weights that stages store in different layouts, with these layouts."""
        has = [self.parts.shared(places[s][0], places[s + 1][0]) for s in range(len(answers))]
        stored = {
            w: _taken(a.ends[2][w] for a, own in zip(answers, has, strict=True) if own[w]) for w in range(len(has[0]))
        }
        return {w: layouts for w, layouts in stored.items() if len(set(layouts)) > 1}


def _only(layouts: Layouts) -> LayoutSet:
    return LayoutSet(frozenset({layouts}), True)


def _split(sides: dict[_Key, tuple[LayoutSet, ...]], taken: Mapping[_Key, list[Layouts]]) -> dict[_Key, list[int]]:
    """Split the layouts taken off their sets; the number of sets that each one became."""
    parts = {key: [side.split(layouts) for side in sides.get(key, (ANY,))] for key, layouts in taken.items()}
    sides.update({key: tuple(chain.from_iterable(own)) for key, own in parts.items()})
    return {key: list(map(len, own)) for key, own in parts.items()}


def _taken(layouts: Iterable[Layout | None]) -> list[Layouts]:
    return [(layout,) for layout in layouts if layout is not None]
