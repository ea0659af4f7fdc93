"""The outer choice: mesh, placement and number of micro-batches, each a cost network of its own.

Best first over (placement, micro-batches). Every network is solved without its capacity first: that bound also holds
for every multiple of the number of micro-batches, since no entry of a table falls when micro-batches are cut finer
(k·⌈x/k⌉ ≥ ⌈x⌉ for sizes and for nanoseconds, latencies are paid k times, kernels too). What it cannot discard, and what
does not fit the memory at that optimum, is solved with the capacity under the best objective so far as cutoff. Only
then it may compute segments again, which never pays where memory is no matter.
"""

import heapq
import time
from dataclasses import dataclass, replace
from math import inf

from ...formulation.encoding.encoding import Encoding
from ...formulation.network.network import INFINITE, Network, evaluate
from ...formulation.placement.placement import Placement
from ...model.errors import PartitaError
from ..elimination.memory_price import least_use_of
from ..elimination.order import TooWideError, compile_network
from ..protocol import INTERRUPTED, NO_LIMITS, Limits, Progress, Solution, Solver, Status
from .planning_problem import PlanningProblem, divisors


@dataclass(frozen=True)
class Found:
    """The best plan's network and assignment (None: none found), what is proved, and how the search went."""

    status: Status
    encoding: Encoding | None
    solution: Solution | None
    bound: int
    seconds: float
    solving: float  # of the seconds, those inside solvers
    solved: int
    discarded: int
    options: int
    interrupted: bool = False
    left_out: int = 0  # placements of too many axes
    unrewritten: frozenset[int] = frozenset()  # placements searched with the graph as it was given, by number
    near: bool = False  # whether the plan is proved within the gap that was asked for
    missing_bytes: int | None = None  # by how much the smallest of those that fit nowhere exceeds its capacity

    @property
    def objective(self) -> int | None:
        return self.solution.objective if self.solution else None


@dataclass(order=True, slots=True)
class _Candidate:
    """A network still to be asked: `bound` is below its solutions, `relaxed`: its optimum without capacity is known.

    Those that are `fine` wait until the best plan is known within COARSE.
    """

    fine: bool
    bound: int
    relaxed: bool
    k: int
    number: int


COARSE = 0.01
"""The gap to which all networks are solved before one is solved further: bounds this good come by pricing alone."""
FIRST = 0.1
"""The gap of the first plan, of which only a cost to compare with is wanted."""


def search(
    problem: PlanningProblem,
    backend: Solver,
    limits: Limits = NO_LIMITS,
) -> Found:
    """Solve the whole problem. Ends early on time or KeyboardInterrupt, with the best plan so far and its bound.

    The answer is optimal over all placements and numbers of micro-batches that are named, or says its bound.
    """
    return _Search(problem, backend, limits).run()


class _Search:
    def __init__(
        self,
        problem: PlanningProblem,
        backend: Solver,
        limits: Limits,
    ) -> None:
        self.problem, self.solver, self.limits = problem, backend, limits
        self.start = time.monotonic()
        self.best: tuple[Encoding, Solution] | None = None
        self.queue: list[_Candidate] = []
        self.asked: set[tuple[int, int]] = set()
        self.unproved: list[int] = []  # bounds of networks that were left before they were proved
        self.solved = self.discarded = self.options = 0
        self.solving = 0.0
        self.missing: int | None = None
        self.roomy: set[tuple[int, int]] = set()  # placements and numbers of micro-batches of which something may fit
        self.refusal: PartitaError | None = None
        self.interrupted = False
        self.axes = 0  # the most for which elimination is quick
        self.rich = 0  # the most for which it is so with all ways to compute nodes
        self.unrewritten: set[int] = set()
        self.too_wide: list[_Candidate] = []
        self.floor = problem.floor_ns()

    @property
    def objective(self) -> int:
        if self.best is None:
            return min(INFINITE, self.limits.cutoff or INFINITE)
        assert self.best[1].objective is not None
        return self.best[1].objective

    @property
    def reach(self) -> int:
        """What is not proved to cost this much is still asked."""
        return self.limits.ceiling(self.best[1].objective if self.best else None)

    def left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self.start)

    def run(self) -> Found:
        fitting = self.problem.fits()
        self.problem = replace(self.problem, micro_batches=fitting or self.problem.micro_batches[-1:])
        first = min(self.problem.micro_batches)
        for number in range(len(self.problem.placements)):
            self._push(_Candidate(False, self.floor, False, first, number))
        candidate: _Candidate | None = None
        try:
            self.rich = quick_axes(self.problem, plain=False)
            self.axes = quick_axes(self.problem, plain=True) if self.problem.plain else self.rich
            self._dive()
            while self.queue and self.left() > 0 and not self.interrupted:
                candidate = heapq.heappop(self.queue)
                self._consider(candidate)
        except KeyboardInterrupt:
            self.interrupted = True
            if candidate is not None:
                self.unproved.append(candidate.bound)
        if self.refusal is not None and not self.solved:
            raise self.refusal
        waiting = [c.bound for c in self.queue if c.bound < self.objective]
        self.discarded += len(self.queue) - len(waiting)
        bound = min([self.objective, *self.unproved, *waiting])
        return Found(
            self._status(bound),
            self.best[0] if self.best else None,
            self.best[1] if self.best else None,
            bound,
            time.monotonic() - self.start,
            self.solving,
            self.solved,
            self.discarded,
            self.options,
            self.interrupted,
            len({c.number for c in self.too_wide}),
            frozenset(self.unrewritten),
            self.best is not None and bound >= self.reach,
            self.missing,
        )

    def _consider(self, candidate: _Candidate) -> None:
        """Ask a candidate now, later, or not at all."""
        if candidate.bound >= self.reach:
            self.discarded += 1
            self.unproved.append(candidate.bound)
        elif len(self.problem.placements[candidate.number].sizes) > self.axes:
            self.too_wide.append(candidate)
        elif not candidate.fine and candidate.bound >= self.limits.within(COARSE).ceiling(self.objective):
            heapq.heappush(self.queue, replace(candidate, fine=True))
        else:
            self._ask(candidate)

    def _dive(self) -> None:
        """A first plan soon, with as few micro-batches as fit: one axis for nodes, one for devices of a node."""
        places = self.problem.placements

        def order(number: int) -> tuple[bool, int]:
            found = places[number]
            apart = all(sum(factor > 1 for factor in level) <= 1 for level in zip(*found.matrix, strict=True))
            return not apart or len(found.sizes) > min(2, self.axes), -len(found.sizes)

        number = min(range(len(places)), key=order)
        for k in sorted(self.problem.micro_batches):
            if self.best is None and self.left() > 0 and not self.interrupted:
                self._ask(_Candidate(False, 0, True, k, number), FIRST)

    def _status(self, bound: int) -> Status:
        if self.best is None:
            done = not self.interrupted and not self.unproved and not self.queue
            return Status.INFEASIBLE if done and self.limits.cutoff is None else Status.UNKNOWN
        return Status.OPTIMAL if bound == self.objective else Status.FEASIBLE

    def _push(self, candidate: _Candidate) -> None:
        key = (candidate.number, candidate.k)
        if candidate.relaxed or key not in self.asked:
            self.asked.add(key)
            heapq.heappush(self.queue, candidate)

    def _ask(self, candidate: _Candidate, coarse: float = COARSE) -> None:
        """Solve a candidate's network, first without its capacity; one that is not fine to the gap `coarse`."""
        placement = self.problem.placements[candidate.number]
        try:
            plain = len(placement.sizes) > self.rich
            encoding = self.problem.encoding(placement, candidate.k, plain, fast=not candidate.relaxed)
        except PartitaError as refusal:  # a fixed strategy, or the batch itself, cannot be cut so finely
            self.refusal = refusal
            return
        if plain:
            self.unrewritten.add(candidate.number)
        self.options = max(self.options, encoding.options)
        if candidate.relaxed:
            if not self._has_room(candidate, encoding.network):
                return
            gap = self.limits.gap if candidate.fine else max(coarse, self.limits.gap)
            later = replace(candidate, fine=coarse == COARSE)
            answer = self._solve(encoding.network, candidate.bound, gap, quick=not candidate.fine)
            self._offer(encoding, answer, candidate, later)
            return
        lifted = replace(encoding.network, capacities=(unbounded(encoding.network),))
        relaxed = self._solve(lifted, candidate.bound, self.limits.gap, fits=False)
        if relaxed.status is Status.INFEASIBLE:
            return
        bound = max(candidate.bound, relaxed.bound)
        fits = relaxed.assignment is not None and evaluate(encoding.network, relaxed.assignment).feasible
        if fits:
            self._offer(encoding, relaxed, candidate, None)
        if bound >= self.reach:
            self.discarded += 1
            self.unproved.append(bound)
            return
        if fits:
            self.roomy.add((candidate.number, candidate.k))
        if not (fits and relaxed.status is Status.OPTIMAL):
            self._push(_Candidate(candidate.fine, bound, True, candidate.k, candidate.number))
            # Finer ones need less memory, and cost no less than this.
            for k in self.problem.micro_batches:
                if k > candidate.k and k % candidate.k == 0 and not self._between(candidate.k, k):
                    self._push(_Candidate(candidate.fine, bound, False, k, candidate.number))

    def _has_room(self, candidate: _Candidate, network: Network) -> bool:
        """Whether anything of a candidate's network may fit the memory; what did with fewer micro-batches does."""
        if any(number == candidate.number and candidate.k % k == 0 for number, k in self.roomy):
            return True
        began = time.monotonic()
        missing = least_use(network) - network.capacities[0]
        self.solving += time.monotonic() - began
        if missing <= 0:
            self.roomy.add((candidate.number, candidate.k))
            return True
        self.discarded += 1
        self.missing = missing if self.missing is None else min(self.missing, missing)
        return False

    def _between(self, low: int, high: int) -> bool:
        return any(low < k < high and k % low == 0 and high % k == 0 for k in self.problem.micro_batches)

    def _solve(
        self, network: Network, bound: int, gap: float = 0.0, quick: bool = False, fits: bool = True
    ) -> Solution:
        """The solution of a network; unless it `fits` the memory, its incumbents are no plans yet, and not told."""

        def progress(p: Progress) -> None:
            if self.limits.progress is not None:
                seconds = time.monotonic() - self.start
                best = [x for x in (p.incumbent if fits else None, self.objective) if x is not None and x < INFINITE]
                waiting = [c.bound for c in self.queue]
                self.limits.progress(
                    Progress(min(best) if best else None, min([max(bound, p.bound), *waiting, *self.unproved]), seconds)
                )

        self.solved += 1
        cutoff = self.objective if self.objective < INFINITE else None
        began = time.monotonic()
        told = progress if self.limits.progress else None
        answer = self.solver.solve(network, Limits(self.left(), cutoff, told, gap, quick))
        self.solving += time.monotonic() - began
        self.interrupted |= answer.words == INTERRUPTED
        return answer

    def _offer(self, encoding: Encoding, solution: Solution, candidate: _Candidate, later: _Candidate | None) -> None:
        """Keep a solution if it is the best; what is not proved of its network is asked `later`, if it is not fine."""
        bound = max(solution.bound, candidate.bound)
        if solution.status not in (Status.OPTIMAL, Status.INFEASIBLE):
            if candidate.fine or later is None:
                self.unproved.append(bound)
            else:
                heapq.heappush(self.queue, replace(later, bound=bound))
        if solution.objective is not None and solution.objective < self.objective:
            assert self.floor <= solution.objective, (self.floor, solution.objective)
            self.best = encoding, solution


def quick_axes(problem: PlanningProblem, plain: bool) -> int:
    """For how many axes formulating and eliminating is quick."""
    work = works(problem, plain)
    return max((n for n in work if work[n] <= problem.most_work), default=1)


def works(problem: PlanningProblem, plain: bool) -> dict[int, float]:
    """The additions of formulating and of one elimination for meshes of so many axes.

    Judged by the shortest axis, which splits most; 0 where the problem limits no work.
    """
    most = max(len(p.sizes) for p in problem.placements)
    if most == 1 or problem.most_work == inf:
        return dict.fromkeys(range(1, most + 1), 0.0)
    hierarchy = problem.machine.hierarchy
    size, level = min((d, i) for i, n in enumerate(hierarchy) for d in divisors(n) if d > 1)
    narrow = Placement((size,), (tuple(size if i == level else 1 for i in range(len(hierarchy))),))
    try:
        encoding = problem.encoding(narrow, min(problem.micro_batches), plain, fast=True)
        circuit = compile_network(encoding.network)
    except TooWideError:
        return {1: 0.0} | dict.fromkeys(range(2, most + 1), inf)
    layouts = [len(table.codes) for table in {id(t): t for t in encoding.tables.values()}.values()]
    # A table's closure is cubic.
    return {n: circuit.work(n) + sum(float(x) ** (3 * n) for x in layouts) for n in range(1, most + 1)}


def unbounded(network: Network) -> int:
    """A capacity that no assignment reaches."""
    return sum(int(t.max()) for term in network.terms() for t in (term.use, term.extra) if t is not None)


def least_use(network: Network) -> int:
    """No more than any assignment uses of the first capacity, whatever it costs; 0 where that takes too long."""
    try:
        least = least_use_of(compile_network(network), 0)
    except TooWideError:
        return 0
    return INFINITE if least == inf else int(least)
