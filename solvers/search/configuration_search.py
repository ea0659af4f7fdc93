"""The configurations of one space: what is proved of each, and what is worked on next (see `search`)."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf, prod
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.placement.placement import Placement, Row
from ...model.errors import PartitaError
from ..protocol import Limits, Progress, Solver, Status
from .advance import Task, kept
from .candidate import Candidate, evenly_spread, plainness
from .cut_search import raise_bound
from .enumeration import Enumeration
from .merged_device_bound import MergedDeviceBound
from .part_networks import PartNetworks
from .pipeline_problem import PipelineProblem
from .result import ConfigurationSpace, OtherPlan, SearchResult
from .shared_operators import shares
from .single_stage import has_windows
from .state import BOUNDS, Effort, Level, Proved, Stages

FIRST_GAP = 0.1
"""Gap of the first plan, which only has to give a cost to compare with."""
ANY_GAP = 1.0
"""A gap that every plan meets: a glance at an order of axes, which ignores memory, ends with its first solution."""
GLANCED_AXES = 3
"""The fewest mesh axes whose orders are all glanced at; with fewer, a first plan takes little longer than a glance."""
COARSE_GAP = 0.01
"""Without pipelines, all networks are solved to this gap, which pricing alone proves, before any is solved further."""
LEADER_GAP = 0.25
"""The incumbent's configuration is solved to this share of the gap before others are closed: a better incumbent drops
more of them."""
BOUND_STEP = 1.5
"""Factor by which one call may raise a bound."""
MERGED_LEVELS = (Level.BOUNDED,)
"""Levels of merged devices: with plenty of memory this bound is the one that ignores it."""
OTHERS = 8
"""The most plans beside the best that a result has."""
FAR = 1.5
"""Multiple of the least bound above which a plan is so bad that one with more stages is sought out of turn."""
MERGED_NETWORKS = 16
"""The most networks solved for a bound on merged devices; where more are needed, the step is mostly far above it."""
DIVE_NETWORKS = 16
"""The most networks that a dive with more stages solves: those of 32 devices take seconds each."""
DIVE_REACH = 3.0
"""A begun configuration is continued out of turn only while its bound is below this multiple of the least bound."""


class Work(NamedTuple):
    """Work on a candidate: the levels to try in order, the target bound that ends it, and the level it then has.

    `networks`: the most networks to solve on all of them. `rough`: the cheapest bound suffices.
    """

    candidate: Candidate
    levels: tuple[Level, ...]
    gap: float
    target: int
    level_after: Level | None
    networks: float = inf
    rough: bool = False


_Family: TypeAlias = dict[int, Candidate]
"""The configurations of one pipeline row and mesh, by number of micro-batches."""


class ConfigurationSearch:
    """The search of one space; `next_task` gives what to do next, until all that may improve the plan is running."""

    def __init__(self, pipeline: PipelineProblem, space: ConfigurationSpace, solver: Solver, limits: Limits) -> None:
        self.pipeline, self.space, self.solver, self.limits = pipeline, space, solver, limits
        self.enumeration = Enumeration(pipeline, space)
        self.has_pipelines = space.has_pipelines
        self.bounds_first, self.alone = False, True
        self.start = time.monotonic()
        self.best: tuple[Configuration, Stages] | None = None
        self.found: dict[tuple[Row, tuple[Row, ...], int], tuple[Configuration, Stages]] = {}  # see `_keep`
        self.families: dict[tuple[Row, tuple[Row, ...]], _Family] = {}
        self.divided: list[Candidate] = []  # what stands for configurations that were divided
        self.heirs: list[Candidate] = []  # those of `divided` in which a plan is sought out of turn, the best first
        self.merged: dict[tuple[int, int], Candidate] = {}  # by stages and micro-batches
        self.prices: dict[tuple[int, int], tuple[float, ...]] = {}  # likewise
        self.prices_of: dict[bool, tuple[float, ...]] = {}  # of the last network, by whether memory is ignored
        self.plainest: list[_Family] = []  # for each number of stages, fewest first
        self.axis_orders: list[Candidate] = []  # glanced at, all of them, before a first plan of the best one is sought
        self.leader: Candidate | None = None  # the incumbent's
        self.target = limits.ceiling(None)  # configurations with a bound below it stay open
        self.formula_step: int | None = None  # the least of all plans, of those priced by slots by the formula
        self.running: deque[Work] = deque()
        self.interrupted = False

    @property
    def objective(self) -> int | None:
        return self.best[1].objective if self.best else None

    @property
    def cutoff(self) -> int | None:
        """Cost that a plan must beat."""
        return min((x for x in (self.objective, self.limits.cutoff) if x is not None), default=None)

    @property
    def is_done(self) -> bool:
        """True if no configuration is open, or an interrupt ended the search."""
        return self.interrupted or all(candidate.bound >= self.target for candidate in self._candidates())

    @property
    def interlaced(self) -> bool:
        """True if all plans are interlaced pipelines."""
        return self.pipeline.problem.interlaced is not None

    @property
    def repeated(self) -> bool:
        """True if all plans are pipelines that micro-batches pass several times."""
        return self.pipeline.problem.recycled is not None

    def left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self.start)

    # Configurations

    def enumerate(self) -> None:
        """Create every configuration with the bound that its arithmetic gives."""
        floor = 0 if self.has_pipelines else self.pipeline.problem.floor_ns()
        for made, further in self.enumeration:
            bound, k = floor, made.micro_batches
            if self.has_pipelines:
                beside_ns = MergedDeviceBound(self.pipeline, made, self.solver).beside.ns
                bound = evenly_spread(self.pipeline, made) + beside_ns
                twin = Candidate(made, Proved(bound=bound), has_part_bounds=True, merged=True)
                self.merged.setdefault((made.devices, k), twin)
            family = self.families.setdefault((made.row, made.matrix), {})
            family[k] = Candidate(made, Proved(bound=bound), reordered=further)
        several = len([*self._candidates()]) > 1
        self.bounds_first = several and not self.has_pipelines and has_windows(self.pipeline.problem)
        first = [key for key, family in self.families.items() if not any(c.reordered for c in family.values())]
        plain = {prod(key[0]): key for key in sorted(first, key=lambda key: plainness(*key), reverse=True)}
        self.plainest = [self.families[plain[p]] for p in sorted(plain)]
        self.axis_orders = self._glanced_orders() if self.bounds_first else []

    def _glanced_orders(self) -> list[Candidate]:
        """The plainest mesh in every order of its axes; none if these are few, or micro-batches of several numbers."""
        if not self.plainest:
            return []
        plainest, *others = self.plainest[0].values()
        alone = [c for c in self._candidates() if len(self._family(c)) == 1]
        sizes = sorted(plainest.configuration.placement.sizes)
        if others or len(sizes) < GLANCED_AXES:
            return []
        found = [c for c in alone if sorted(c.configuration.placement.sizes) == sizes]
        return sorted(found, key=attrgetter("order")) if len(found) > 1 else []

    def _pipeline(self, placement: Placement) -> PipelineProblem:
        return self.enumeration.pipeline_of(placement)

    def _parts(self, configuration: Configuration) -> PartNetworks:
        return PartNetworks(self._pipeline(configuration.placement), configuration, self.solver)

    # Choosing what runs next

    def next_task(self) -> Task | None:
        """What to do next; None: nothing, until more is recorded."""
        work = self._next_work() if self.left() > 0 else None
        if work is None:
            return None
        candidate = work.candidate
        candidate.running = True
        self.running.append(work)
        state = replace(candidate.state)  # the bound may be raised before the task is sent
        prices = state.prices or self.prices.get(candidate.size, ())
        if not self.has_pipelines:
            relaxed = work.levels[-1] is Level.RELAXED
            prices = state.prices_of.get(relaxed) or self.prices_of.get(relaxed, ())
        efforts = tuple(
            Effort(
                level,
                work.gap,
                self.cutoff,
                self.left(),
                prices,
                self._progress(candidate, level),
                rough=work.rough,
                networks=work.networks,
            )
            for level in work.levels
        )
        schedule = candidate.configuration.schedule
        step_ns = self.space.step_ns if schedule.priced_by_slots or schedule.interlaced else None
        return Task(
            pipeline=self.pipeline if candidate.merged else self._pipeline(candidate.configuration.placement),
            configuration=candidate.configuration,
            merged=candidate.merged,
            state=state,
            target=work.target,
            efforts=efforts,
            solver=self.solver,
            step_ns=step_ns,
            formula_target=replace(self.limits, gap=min(work.gap, self.limits.gap)).ceiling(self.formula_step),
        )

    def _progress(self, candidate: Candidate, level: Level) -> Callable[[Progress], None] | None:
        """Reports progress within a network; incumbents that ignore the memory limit are not plans yet."""
        callback = self.limits.progress
        if callback is None or self.has_pipelines:  # may run in another process
            return None

        def report(progress: Progress) -> None:
            found = progress.incumbent if level is not Level.RELAXED else None
            best = min((x for x in (found, self.cutoff) if x is not None), default=None)
            others = (c.bound for c in self._candidates() if c is not candidate)
            bound = min([max(candidate.bound, progress.bound), *others, *([] if best is None else [best])])
            callback(Progress(best, bound, time.monotonic() - self.start))

        return report

    def _next_work(self) -> Work | None:
        leader = self.leader
        if leader is not None and leader.divisible and leader.level is Level.PRICED and not leader.running:
            self._divide(leader)
            self.leader = leader = None
        first = self._next_heir() or self._next_glance() or self._dive()
        if first is not None:
            return first
        closer = None
        if leader is not None and not (leader.running or leader.level is Level.CLOSED or self._is_exhausted(leader)):
            limits = replace(self.limits, gap=self.limits.gap * LEADER_GAP)
            if leader.level is Level.PRICED and leader.bound < self.target and not self._is_behind(leader):
                return self._work(leader, (Level.CLOSED,), limits.gap, self.target)
            closer = self._work(leader, (Level.CLOSED,), limits.gap, limits.ceiling(self.objective))
        while (chosen := self._most_promising()) is not None:
            if chosen.level is Level.PRICED and closer is not None:  # a better incumbent may make this unnecessary
                return closer
            if not (chosen.merged or chosen.has_part_bounds):
                self._add_part_bounds(chosen)
            elif self._is_coarsely_solved(chosen):
                chosen.level = Level.PRICED
            elif chosen.divisible and chosen.level in (Level.BOUNDED, Level.PRICED):
                self._divide(chosen)
            else:
                return self._next_level(chosen)
        return None

    def _next_level(self, chosen: Candidate) -> Work:
        """The work that takes a configuration to its next level."""
        bounds = self.has_pipelines or self.bounds_first
        ladder = tuple(Level) if bounds else (Level.RELAXED, Level.PRICED, Level.CLOSED)
        if self._needs_memory(chosen):
            ladder = ladder[1:]
        following = next(level for level in ladder if chosen.level is None or level > chosen.level)
        levels = MERGED_LEVELS if chosen.merged else (following,)
        coarse = following is Level.PRICED and not self.has_pipelines
        gap = max(COARSE_GAP, self.limits.gap) if coarse else self.limits.gap
        target = self.target
        if chosen.single_stage and following is Level.BOUNDED:
            target = self._target_of_rough_bound(chosen)
        elif levels[-1] in BOUNDS and not chosen.single_stage:
            target = self._raised_target(chosen)
        return self._work(chosen, levels, gap, target)

    def _needs_memory(self, candidate: Candidate) -> bool:
        """True if a bound that ignores memory is not worth its time.

        In some order of the axes memory has a price, or does not suffice for the plan of a glance, and no other number
        of micro-batches would inherit the bound.
        """
        if not (self.bounds_first and len(self._family(candidate)) == 1):
            return False
        count = candidate.configuration.micro_batches
        alike = [c.state for c in self._candidates() if c.configuration.micro_batches == count]
        return any(state.scarce or state.lacks_room for state in alike)

    def _target_of_rough_bound(self, candidate: Candidate) -> int:
        """The target of a network's rough bound: past it, another one is to be solved first."""
        others = (c.bound for c in self._candidates() if c is not candidate and c.level is not Level.CLOSED)
        next_one = min((bound for bound in others if bound >= candidate.bound), default=INFINITE)
        return min(self.target, int(next_one * (1 + self.limits.gap)) + 1)

    def _next_heir(self) -> Work | None:
        """Work towards a plan with the best share of memory of those into which the incumbent's were divided."""
        if any(heir.running for heir in self.divided):
            return None
        while self.heirs:
            heir = self.heirs.pop(0)
            if heir.level is Level.BOUNDED and heir.bound < self.target:
                return self._work(heir, (Level.PRICED,), self.limits.gap, self.target)
        return None

    def _divide(self, candidate: Candidate) -> None:
        """Let others stand for a configuration, which share memory between stages and shared operators in all ways.

        Those of the incumbent's, or of one that is dived into, are its heirs.
        """
        own, parts = candidate.configuration, self._parts(candidate.configuration)
        least = parts.beside
        for share in shares(self.pipeline.problem, own, self.solver):
            known = candidate.state.known.with_less_room(share.bytes - least.bytes)
            state = replace(candidate.state.uncounted(), known=known, tried={}, bounded=set())
            made = replace(own, beside=(share.ns, share.bytes))
            raise_bound(self._parts(made), made, state)
            heir = Candidate(made, state, Level.BOUNDED, has_part_bounds=True, reordered=candidate.reordered)
            self.divided.append(heir)
            if candidate.dived or candidate is self.leader:
                self.heirs.append(heir)
        self.heirs.sort(key=attrgetter("order"))
        candidate.state.bound, candidate.level = INFINITE, Level.CLOSED

    @staticmethod
    def _work(candidate: Candidate, levels: tuple[Level, ...], gap: float, target: int) -> Work:
        return Work(candidate, levels, gap, target, levels[-1], MERGED_NETWORKS if candidate.merged else inf)

    def _is_coarsely_solved(self, candidate: Candidate) -> bool:
        """True if the bound of a network is already as good as a coarse solution would make it."""
        if self.has_pipelines or candidate.level not in BOUNDS:
            return False
        return candidate.bound >= self.limits.within(COARSE_GAP).ceiling(self.objective)

    def _is_behind(self, leader: Candidate) -> bool:
        """True if a configuration is left to be priced that no better plan of the leader's could exclude."""
        least = self.limits.ceiling(leader.bound)
        others = (c for c in self._candidates() if c is not leader and not (c.merged or self._is_exhausted(c)))
        return self.bounds_first and any(c.level in (None, *BOUNDS) and c.bound < least for c in others)

    def _is_exhausted(self, candidate: Candidate) -> bool:
        """True if the solver gave up on the candidate's next network, and no cheaper plan was found since."""
        limit = candidate.state.exhausted
        return limit is not None and self.cutoff is not None and self.cutoff >= limit

    @property
    def is_far(self) -> bool:
        """True if the best step so far is far above the least bound."""
        return self.cutoff is not None and self.cutoff > FAR * min(c.bound for c in self._candidates())

    def _next_glance(self) -> Work | None:
        """A glance at the next of `axis_orders`: a bound by one evaluation; a first plan of a bad one takes long."""
        for candidate in self.axis_orders:
            if candidate.bound < self.target and not candidate.glanced:
                candidate.glanced = True
                return Work(candidate, (Level.RELAXED,), ANY_GAP, self.target, None, rough=True)
        return None

    def _dive(self) -> Work | None:
        """Work towards a first plan: the plainest mesh with the fewest micro-batches that may fit.

        While the plan is far from the least bound, then with more stages.
        """
        if self.interlaced:
            return self._dive_interlaced() if self.best is None else None
        if self.best is not None:
            return self._dive_deeper()
        for candidate in self._first_dives():
            merged = self.merged.get(candidate.size)
            if candidate.running or candidate.bound >= self.target or candidate.dived:
                continue
            if merged is not None and merged.running:
                continue
            if merged is not None and merged.level is None and not merged.dived:
                merged.dived = True
                return self._work(merged, MERGED_LEVELS, self.limits.gap, self._raised_target(merged))
            candidate.dived, gap = True, max(FIRST_GAP, self.limits.gap)
            if candidate in self.axis_orders:  # the one that looked best needs more than a first plan
                levels = (Level.RELAXED, Level.PRICED)[self._needs_memory(candidate) :]  # glances may find no solution
                return self._work(candidate, levels, max(COARSE_GAP, self.limits.gap), self.target)
            if not self.has_pipelines:  # the bound that ignores memory comes later
                return Work(candidate, (Level.PRICED,), gap, self.target, None)
            last = Level.BOUNDED if candidate.configuration.devices == 1 else Level.PRICED
            levels = (Level.RELAXED, last) if candidate.level is None else (last,)  # where memory is not scarce
            return self._work(candidate, levels, gap, self.target)
        return None

    def _first_dives(self) -> list[Candidate]:
        """Where to dive for a first plan: as many micro-batches as are least; of several passes, at the least bound.

        With few micro-batches passes idle for most of a step, and nothing is learned of other numbers. Of `axis_orders`
        the one that looked best goes first.
        """
        if self.axis_orders:
            return sorted(self.axis_orders, key=attrgetter("order"))
        family = self.plainest[0] if self.plainest else {}
        if self.repeated:
            return sorted(family.values(), key=attrgetter("order"))
        return [candidate for _, candidate in sorted(family.items())]

    def _dive_interlaced(self) -> Work | None:
        """Work towards a first interlaced plan: stages of whole nodes, the plainest mesh, about the least bound."""
        if self.limits.cutoff is not None and not self.is_far:  # most often nothing is below it
            return None
        gap, family = max(FIRST_GAP, self.limits.gap), next(iter(self._nodes_first(self.plainest)), {})
        for candidate in family.values():
            if candidate.dived and candidate.level is Level.BOUNDED and candidate.bound < self.target:
                self._divide(candidate)
                return self._next_heir()
        known = sorted((c for c in family.values() if c.bound < self.target and not c.dived), key=attrgetter("order"))
        bounded = [c for c in known if self.merged[c.size].level is not None]
        enough = min((c.bound for c in bounded), default=INFINITE) * (1 - gap)
        for candidate in known:
            merged = self.merged[candidate.size]
            if candidate.running or merged.running:
                return None
            if merged.level is None and candidate.bound < enough:
                return self._work(merged, MERGED_LEVELS, self.limits.gap, self._raised_target(merged))
        if not bounded:
            return None
        bounded[0].dived = True
        return self._work(bounded[0], (Level.BOUNDED,), gap, self.target)

    def _nodes_first(self, families: Sequence[_Family]) -> list[_Family]:
        """Families of so many stages, those with a stage for every node first."""
        sizes = [size for size in self.pipeline.problem.machine.hierarchy if size > 1]
        nodes = sizes[0] if len(sizes) > 1 else 1
        return sorted(families, key=lambda family: next(iter(family.values())).configuration.devices != nodes)

    def _dive_deeper(self) -> Work | None:
        """Work towards a plan with more stages than those tried: the plainest mesh, at the split of least bound.

        Beside another search, with one number of stages only: such networks may take long.
        """
        for family in self._nodes_first(self.plainest[1:])[: None if self.alone else 1]:
            ours = self.objective is not None and self.objective == self.cutoff
            if not (ours and self.is_far) or any(c.running for c in family.values()):
                return None
            candidate = min(family.values(), key=lambda c: c.order)
            idle = candidate.level in (None, *BOUNDS) and not any(c.dived for c in family.values())
            if idle and candidate.bound < self.target:
                candidate.dived, gap = True, max(FIRST_GAP, self.limits.gap)
                work = self._work(candidate, (Level.BOUNDED, Level.PRICED), gap, self.target)
                return work._replace(networks=DIVE_NETWORKS)
        return None

    def _raised_target(self, candidate: Candidate) -> int:
        """The target of one bounding call: past it, another configuration may have the least bound."""
        return min(self.target, int(BOUND_STEP * candidate.bound)) if candidate.bound > 0 else self.target

    def _most_promising(self) -> Candidate | None:
        """The open candidate of least bound; but one slot is always for a begun one, which may give a better plan.

        With bounds first no candidate goes out of turn.
        """
        target = self.target
        open_ = (c for c in self._candidates() if c.bound < target and c.level is not Level.CLOSED)
        idle = [c for c in open_ if not (c.running or self._is_exhausted(c))]
        if self.bounds_first:
            chosen = min(idle, key=lambda c: (c.bound, c.order), default=None)
            return self._prerequisite(chosen) if chosen is not None and chosen.level is None else chosen
        near = DIVE_REACH * min((c.bound for c in idle), default=0)
        begun = [c for c in idle if c.level in BOUNDS and c.bound <= near]
        if begun and all(a.candidate.merged or a.levels[-1] < Level.BOUNDED for a in self.running):
            return min(begun, key=lambda c: (c.bound, c.order))
        while idle:
            chosen = min(idle, key=attrgetter("order"))
            first = chosen if chosen.level is not None else self._prerequisite(chosen)
            if not first.running:
                return first
            family = self._family(chosen)
            idle = [c for c in idle if c.level is not None or self._family(c) is not family]
        return None

    def _prerequisite(self, candidate: Candidate) -> Candidate:
        """The candidate whose bound an untouched candidate should wait for: its merged twin, or a coarser split."""
        merged = self.merged.get(candidate.size)
        return merged if merged is not None and merged.level is None else self._coarsest(candidate)

    def _coarsest(self, candidate: Candidate) -> Candidate:
        """The coarsest open split of the family; its bound that ignores memory holds for this candidate too."""
        k, family = candidate.configuration.micro_batches, self._family(candidate)
        coarser = (other for count, other in sorted(family.items()) if k % count == 0 and other.level is None)

        def is_open(other: Candidate) -> bool:
            merged = self.merged.get(other.size)
            return other.bound < self.target and (merged is None or merged.level is not None)

        return next(filter(is_open, coarser))

    def _add_part_bounds(self, candidate: Candidate) -> None:
        """Raise the bound by what is proved of parts, here and for coarser splits."""
        candidate.has_part_bounds, k, state = True, candidate.configuration.micro_batches, candidate.state
        coarser = [c.state for count, c in self._family(candidate).items() if count < k and k % count == 0]
        if candidate.single_stage:
            state.bound = max([state.bound, *(other.relaxed for other in coarser)])
            state.has_room |= any(other.has_room for other in coarser)
            return
        q, schedule = self.pipeline.problem, candidate.configuration.schedule
        delayed = schedule.delays_messages and q.space.hides_messages(q.machine)
        for other in () if delayed else coarser:  # the first message gets shorter
            state.known.inherit(other.known)
        raise_bound(self._parts(candidate.configuration), candidate.configuration, state)

    # Recording results

    def record(self, state: Proved, stages: Stages | None) -> None:
        work = self.running.popleft()
        candidate = work.candidate
        if work.level_after is not None and not work.target <= state.bound < self.target:
            candidate.level = work.level_after
        state.bound = max(state.bound, candidate.bound)  # other results may have raised it meanwhile
        candidate.state, candidate.running = state, False
        if work.level_after is None and self._needs_memory(candidate):
            candidate.level = Level.RELAXED if work.rough else Level.BOUNDED
        self.interrupted |= state.interrupted
        self.prices[candidate.size] = state.prices
        self.prices_of |= state.prices_of
        if candidate.merged:
            self._share_bound(candidate)
        if stages is not None:
            self.formula_step = min(self.formula_step or INFINITE, stages.formula_step or stages.objective)
            self._keep(candidate.configuration, stages)
        if stages is not None and stages.objective < min(self.objective or INFINITE, self.limits.cutoff or INFINITE):
            self.best, self.leader, self.heirs = (candidate.configuration, stages), candidate, []
            self.target = self.limits.ceiling(stages.objective)
        if work.levels[-1] is Level.RELAXED:
            for other in self._family(candidate).values():
                other.has_part_bounds &= other is candidate

    def beat(self, objective: int | None) -> None:
        """Let plans be better than one of another search, or of this one."""
        if objective is not None and objective < min(self.objective or INFINITE, self.limits.cutoff or INFINITE):
            self.limits = replace(self.limits, cutoff=objective)
            self.target = self.limits.ceiling(self.objective)

    def drop_running(self) -> None:
        """Forget what was begun and will not be recorded."""
        for work in self.running:
            work.candidate.running = False
        self.running.clear()

    def _keep(self, configuration: Configuration, stages: Stages) -> None:
        """Keep a plan if it is the best of its pipeline, mesh and micro-batches, whatever the order of the axes."""
        kind = configuration.row, tuple(sorted(configuration.matrix)), configuration.micro_batches
        if kind not in self.found or stages.objective < self.found[kind][1].objective:
            self.found[kind] = configuration, stages

    def _others(self) -> Iterator[OtherPlan]:
        """The next best of the plans that were kept."""
        plans = sorted(self.found.values(), key=lambda plan: plan[1].objective)
        for configuration, stages in [plan for plan in plans if plan != self.best][:OTHERS]:
            decode = partial(kept, self._parts(configuration), stages)
            yield OtherPlan(configuration, stages.objective, stages.bounds, decode)

    def _share_bound(self, merged: Candidate) -> None:
        """Apply a merged bound to all of its size; if memory was scarce, skip their bounds that ignore it."""
        for candidate in self._candidates():
            if candidate.size == merged.size:
                candidate.state.bound = max(candidate.bound, merged.bound)
                if merged.state.prices and candidate.level is None:
                    candidate.level = Level.RELAXED

    def _candidates(self) -> Iterator[Candidate]:
        return chain(self.divided, *(family.values() for family in self.families.values()))

    def _family(self, candidate: Candidate) -> _Family:
        return self.families[candidate.configuration.row, candidate.configuration.matrix]

    def bound(self) -> int:
        if self.interrupted and not self.families:
            return self.pipeline.problem.floor_ns()
        return min([INFINITE if self.objective is None else self.objective, *(c.bound for c in self._candidates())])

    def result(self) -> SearchResult:
        everything, bound, objective = [*self._candidates(), *self.merged.values()], self.bound(), self.objective
        if objective is None:
            status = Status.INFEASIBLE if bound >= INFINITE and not self.interrupted else Status.UNKNOWN
        else:
            status = Status.OPTIMAL if bound >= objective else Status.FEASIBLE
        configuration, stages = self.best or (None, None)
        proof = self.leader.state.proof if self.leader is not None else None
        states = [c.state for c in everything]
        worked, seconds = sum(s.seconds for s in states), time.monotonic() - self.start
        refusals = [s.refusal for s in states if s.refusal]
        missing = min((s.missing for s in states if s.missing is not None), default=None)
        if refusals and status is Status.INFEASIBLE and missing is None:
            raise PartitaError(refusals[0])
        return SearchResult(
            status,
            configuration,
            objective,
            bounds=stages.bounds if stages else (),
            stages=kept(self._parts(configuration), stages) if configuration and stages else (),
            bound=bound,
            seconds=seconds,
            configurations=len(everything) - len(self.merged) - len(self.divided),
            asked=sum(c.state.solved > 0 for family in self.families.values() for c in family.values()),
            solved=sum(s.solved for s in states),
            kept=sum(s.kept for s in states),
            options=max((s.options for s in states), default=0),
            solving=seconds * sum(s.solving for s in states) / worked if worked else 0.0,
            source=stages.source if stages else "",
            proof=proof or (stages.proof if stages else None),
            missing_bytes=missing,
            near=objective is not None and bound >= self.target,
            interrupted=self.interrupted,
            left_out=self.enumeration.left_out,
            exhausted=not self.interrupted and self.left() > 0,
            unrewritten=self._unrewritten(),
            axes=self.enumeration.axes,
            orders=self.enumeration.orders,
            orders_left_out=self.enumeration.orders_left_out,
            refused=sum(s.refused for s in states),
            solver_words=next((s.solver_words for s in states if s.solver_words), ""),
            others=tuple(self._others()),
        )

    def _unrewritten(self) -> tuple[Placement, ...]:
        """Placements, also inside stages, that were searched with the graph as captured, without rewritings."""
        searched = (c.configuration.placement for c in self._candidates() if c.state.options)
        return tuple(dict.fromkeys(p for p in searched if self._pipeline(p) is self.enumeration.captured))
