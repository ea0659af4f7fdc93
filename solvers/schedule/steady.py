"""The shortest period of a pipeline by CP-SAT, and schedules for any number of micro-batches built on it.

First a modulo schedule of a problem whose tasks are run again and again: task i begins at q[i] T + φ[d] + r[i] on
device d, for the n-th time n T later.

    T ≥ 1;  r[i], φ[d] ∈ [0, T);  q[i] ∈ ℕ;  o[i,j] ∈ {0,1}       i is before j in the period of their device
    min  T, and then the last end of the first repetition
    s.t. (1) r[i] + p[i] <= T;  o[i,j] → r[j] >= r[i] + p[i];  ¬o[i,j] → r[i] >= r[j] + p[j]
         (2) (q[j] - q[i]) T + φ[e] - φ[d] + r[j] - r[i] >= p[i] + lag[i,j]             ∀ edges from i on d to j on e
         (3) Σ_x bytes[x] (q[release] - q[take] + [take ≤ a] - [release < a]) <= M[d]   ∀ a that take memory of d
         (4) r = 0 for one task of every device

(1) has no task that runs over the end of the period, since by (4) a period of a device begins with a task. Tasks of all
devices at once begin it together: then φ = 0. (2) has one linear constraint for every value of q[j] - q[i]. (3) counts
the copies of x in memory when a begins: how the order in the period tells take, a and release apart.

Then, for this T, the shortest schedule with enough repetitions that its middle repeats (`Steady`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from ...formulation.pipeline.evaluate import evaluate
from ...formulation.pipeline.orders import Orders
from ...formulation.pipeline.problem import Precedence, Problem, in_units
from ...formulation.pipeline.steady import RepetitionBound, Steady, repetitions, turns, windows
from ...model.errors import PartitaError
from ..protocol import Status
from .cpsat import MEETING, OrderModel, cp_sat, fitting, orders_of
from .repetition_bounds import repetition_bounds

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver


@dataclass(frozen=True, slots=True)
class SteadyAnswer:
    """A periodic schedule, and what is proved of its period and of its first and last repetitions.

    `period`: OPTIMAL where no schedule that repeats after one problem has a shorter period (where the floor's slope is
    the period, no schedule at all), INFEASIBLE where one repetition lacks memory. `makespan`: OPTIMAL where none with
    this middle is shorter.
    """

    period: Status
    makespan: Status
    steady: Steady | None
    seconds: float


def steady(problem: Problem, known: Iterable[Callable[[int], Orders]] = (), seconds: float = 60.0) -> SteadyAnswer:
    """The shortest period, and a schedule for any number of repetitions from a few on.

    `known`: orders by the number of repetitions, which may be shortest already. PartitaError: tasks on several devices
    but not on all.
    """
    start = time.perf_counter()
    low = ceil(max(bound.slope_ns for bound in repetition_bounds(problem)))
    period_status, period, begin = Modulo(problem, low).solve(seconds / 2)
    found, ends = None, Status.UNKNOWN
    if begin is not None:
        small, unit = in_units(problem, period)  # what differences must be stays so when times are rounded down to it
        begin = tuple(at // unit for at in begin)
        ends, found = _ends(small, period // unit, begin, known, seconds - (time.perf_counter() - start))
        found = found.in_ns(problem, unit)
    return SteadyAnswer(period_status, ends, found, time.perf_counter() - start)


class Modulo:
    """Constraints (1) to (4) with a period of at least `low`."""

    def __init__(self, problem: Problem, low: int) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.low, tasks = problem, low, problem.tasks
        self.model: CpModel = cp_model.CpModel()
        self.longest = max(low, sum(t.duration_ns for t in tasks) + sum(e.lag_ns for e in problem.edges))
        everywhere = [i for i, task in enumerate(tasks) if len(set(task.devices)) == problem.devices]
        partly = [t for i, t in enumerate(tasks) if len(set(t.devices)) > 1 and i not in everywhere]
        if partly:
            raise PartitaError(f"{partly[0].slot} is on devices {partly[0].devices}: a period is found for one or all")
        together = problem.devices > 1 and bool(everywhere)
        # Variables
        most = len(tasks) * max((self._apart(e) for e in problem.edges), default=1)
        self.T = self.model.new_int_var(low, self.longest, "T")
        self.r = [self.model.new_int_var(0, self.longest - t.duration_ns, f"r[{t.slot}]") for t in tasks]
        self.q = [self.model.new_int_var(0, most, f"q[{t.slot}]") for t in tasks]
        self.phi = [
            self.model.new_int_var(0, 0 if together or d == 0 else self.longest, f"φ[{d}]")
            for d in range(problem.devices)
        ]
        self.o: dict[tuple[int, int], Any] = {}
        # Constraints
        for own in problem.on_device:
            intervals = [self.model.new_fixed_size_interval_var(self.r[i], tasks[i].duration_ns, "") for i in own]
            self.model.add_no_overlap(intervals)  # (1)
            for i, j in combinations(own, 2):
                if (i, j) not in self.o:
                    self._order(i, j)  # (1)
            self.model.add(self.r[everywhere[0] if together else own[0]] == 0)  # (4)
        for i, task in enumerate(tasks):
            self.model.add(self.r[i] + task.duration_ns <= self.T)  # (1)
        for edge in problem.edges:
            self._edge(edge)  # (2)
        for d, capacity in enumerate(problem.capacities):
            self.model.add(self.phi[d] < self.T)
            if capacity is not None:
                self._memory(d, capacity)  # (3)

    def _order(self, i: int, j: int) -> None:
        before = self.model.new_bool_var(f"o[{i},{j}]")
        p = [task.duration_ns for task in self.problem.tasks]
        self.model.add(self.r[j] >= self.r[i] + p[i]).only_enforce_if(before)
        self.model.add(self.r[i] >= self.r[j] + p[j]).only_enforce_if(~before)
        self.o[i, j], self.o[j, i] = before, ~before

    def _apart(self, edge: Precedence) -> int:
        """Periods between two tasks from which on any places in the period will do: those differ by less than two."""
        return 2 - (-(self.problem.tasks[edge.before].duration_ns + edge.lag_ns) // self.low)

    def _edge(self, edge: Precedence) -> None:
        i, j, lag = edge
        wait, most = self.problem.tasks[i].duration_ns + lag, self._apart(edge)
        apart = [self.model.new_bool_var("") for _ in range(-1, most + 1)]
        self.model.add_exactly_one(apart)
        for k, chosen in enumerate(apart, -1):
            self.model.add(self.q[j] >= self.q[i] + k).only_enforce_if(chosen)
            if k < most:
                self.model.add(k * self.T + self._place(j) - self._place(i) >= wait).only_enforce_if(chosen)

    def _place(self, i: int) -> Any:
        """The start of task i within its period."""
        return self.phi[self.problem.tasks[i].devices[0]] + self.r[i]

    def _memory(self, d: int, capacity: int) -> None:
        held = [h for h in self.problem.holdings if h.device == d]
        for a in {i for h in held for i in h[:2] if self.problem.tasks[i].takes_bytes}:
            copies = [
                self.q[h.releaser]
                - self.q[h.taker]
                + (1 if a == h.taker else self.o[h.taker, a])
                - (0 if a == h.releaser else self.o[h.releaser, a])
                for h in held
            ]
            self.model.add(sum(h.bytes * count for h, count in zip(held, copies, strict=True)) <= capacity)

    def solve(self, seconds: float) -> tuple[Status, int, tuple[int, ...] | None]:
        """The status of the search for the least T, T, and the starts of the first repetition."""
        start = time.perf_counter()
        self.model.minimize(self.T)
        status, solver = cp_sat(self.model, seconds)
        if status not in (Status.OPTIMAL, Status.FEASIBLE):
            return status, 0, None
        T, begin = solver.value(self.T), self._starts(solver)
        last = self.model.new_int_var(0, max(begin) + self.longest, "last")
        self.model.add(self.T == T)
        for i, task in enumerate(self.problem.tasks):
            self.model.add(T * self.q[i] + self._place(i) + task.duration_ns <= last)
        for variable in (self.T, *self.r, *self.q, *self.phi):
            self.model.add_hint(variable, solver.value(variable))
        self.model.minimize(last)
        found, solver = cp_sat(self.model, seconds - (time.perf_counter() - start))
        return status, T, self._starts(solver) if found in (Status.OPTIMAL, Status.FEASIBLE) else begin

    def _starts(self, solver: CpSolver) -> tuple[int, ...]:
        return tuple(
            solver.value(self.T) * solver.value(q) + solver.value(self._place(i)) for i, q in enumerate(self.q)
        )


def _ends(
    problem: Problem,
    period: int,
    begin: Sequence[int],
    known: Iterable[Callable[[int], Orders]],
    seconds: float,
) -> tuple[Status, Steady]:
    """The shortest schedule whose middle is periodic, of as many repetitions as its first and last ones need."""
    inside = (max(begin) - min(begin)) // period + 1  # repetitions under way at once
    first, equal = inside, inside + windows(problem, period) + 1
    count, size = 2 * inside + equal, len(problem.tasks)
    whole = repetitions(problem, count)
    bound = max((b for b in repetition_bounds(problem) if b.beyond < count), key=lambda b: b.makespan_ns(count))
    pattern = tuple(start - min(begin) + n * period for n in range(count) for start in begin)
    best = _repeating(problem, period, count, pattern, bound)
    assert best is not None, "the pattern repeats from beginning to end"
    for orders in known:
        schedule = fitting(whole, orders(count))
        given = None if schedule is None else _repeating(problem, period, count, schedule.starts_ns, bound)
        best = best if given is None or given.ends_ns >= best.ends_ns else given
    middle = [
        (before, after)
        for i in range(size)
        for before, after in pairwise(range(first * size + i, (first + equal) * size + i, size))
    ]
    start, status = time.perf_counter(), Status.FEASIBLE
    for share in (MEETING, 1.0):
        if best.above_ns(count) == 0:
            return Status.OPTIMAL, best
        aim = bound.makespan_ns(count) if share < 1 else best.ends_ns - 1
        program = OrderModel(whole, "makespan", bound.makespan_ns(count), aim)
        for before, after in middle:
            program.model.add(program.start[after] == program.start[before] + period)
        if share == 1:
            program.hint(best.starts_ns)
        status, starts, _ = program.solve(share * (seconds - (time.perf_counter() - start)))
        for candidate in () if starts is None else (evaluate(whole, orders_of(whole, starts)).starts_ns, starts):
            found = _repeating(problem, period, count, candidate, bound)
            best = best if found is None or found.ends_ns >= best.ends_ns else found
    return Status.OPTIMAL if status in (Status.OPTIMAL, Status.INFEASIBLE) else Status.FEASIBLE, best


def _repeating(
    problem: Problem, period: int, count: int, starts: Sequence[int], bound: RepetitionBound
) -> Steady | None:
    """The periodic schedule of these starts; None if no period can be inserted."""
    turn = next(turns(problem, period, starts), None)
    return None if turn is None else Steady(problem, period, count, tuple(starts), turn, bound)
