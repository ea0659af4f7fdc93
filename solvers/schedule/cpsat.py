"""The shortest schedule of a pipeline by CP-SAT.

    s[i] ∈ [0, H)        start of task i, of duration p[i]
    min  C, or P         makespan; or the longest time of a device from its first start to its last end, both with what
                         follows the last task of a device
    s.t. (1) s[j] >= s[i] + p[i] + lag[i,j]                      ∀ edges (i, j), those of `tightened` among them
         (2) intervals [s[i], s[i] + p[i]) of a device do not overlap
         (3) Σ_{h held at t} bytes[h] <= M[d]                    ∀ t, ∀ d: from the start of its taker to the end of
                                                                 its releaser (cumulative)
         (4) first[d] + head[i] <= s[i],  s[i] + p[i] + tail[i] <= first[d] + C or P     ∀ i on d; with C first = 0,
             head and tail are paths from the first task and to the end of the step, with P of the device's own
         (5) C, P >= the bound of one device

`evaluate` confirms what is found, and moves every task as early as its order allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...formulation.pipeline.evaluate import TimedOrders, evaluate
from ...formulation.pipeline.orders import Orders
from ...formulation.pipeline.problem import Problem, in_units, with_room
from ...model.errors import PartitaError
from ..protocol import STOPPED, Status
from .bounds import Row, heads, makespan_bound, period_bound, tails, tightened

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar

OBJECTIVES: dict[str, tuple[Callable[[Problem], int], Callable[[TimedOrders], int]]] = {
    "makespan": (makespan_bound, attrgetter("makespan_ns")),
    "period": (period_bound, attrgetter("period_ns")),
}
"""Objective -> its lower bound without search, and its value for a schedule."""

WORKERS = 2
"""Parallel searches of CP-SAT: one finds, one proves. Which of several shortest schedules is found may vary."""
SEED = 1
MEETING = 0.4
"""The share of the time spent on meeting the bound at once, which narrow domains make quicker than descending."""


@dataclass(frozen=True, slots=True)
class ScheduleAnswer:
    """The shortest schedule found, and the lower bound in ns (None: there is no schedule)."""

    status: Status
    schedule: TimedOrders | None
    objective_ns: int | None
    bound_ns: int | None
    seconds: float
    words: str = ""

    @property
    def orders(self) -> Orders:
        """The orders found. PartitaError: there are none."""
        if self.schedule is None:
            raise PartitaError(f"there are no orders: {self.status.value}, {self.words}")
        return self.schedule.orders


def solve(
    problem: Problem,
    objective: str = "makespan",
    known: Iterable[Orders] = (),
    seconds: float = 60.0,
    workers: int = WORKERS,
) -> ScheduleAnswer:
    """The shortest schedule; at least as good as the best of those `known` that fit the memory.

    `objective`: "makespan", or "period" for devices that go on with the next step without waiting for each other.
    PartitaError: an unknown objective; a known order that lacks a task or deadlocks.
    """
    start = time.perf_counter()
    if objective not in OBJECTIVES:
        raise PartitaError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)}")
    bounded, value = OBJECTIVES[objective]
    best: TimedOrders | None = min((s for orders in known if (s := fitting(problem, orders))), key=value, default=None)

    def answer(bound: int | None, words: str, status: Status | None = None) -> ScheduleAnswer:
        objective_ns = None if best is None else value(best)
        if status is None:
            status = Status.OPTIMAL if objective_ns == bound else Status.UNKNOWN if best is None else Status.FEASIBLE
        return ScheduleAnswer(status, best, objective_ns, bound, time.perf_counter() - start, words)

    for task in problem.tasks:
        for d in task.devices:
            room = problem.capacities[d]
            if room is not None and task.takes_bytes > room:
                return answer(None, f"{task.slot} takes {task.takes_bytes:,} of {room:,} bytes", Status.INFEASIBLE)
    bound = bounded(problem)
    if best is not None and value(best) == bound:
        return answer(bound, "known; proved by the bound of one device")
    small, unit = in_units(problem)
    low, high = -(-bound // unit), None if best is None else (value(best) - 1) // unit
    for share in (MEETING, 1.0):
        if high is not None and low > high:
            break
        aim = high if share == 1.0 else low
        program = OrderModel(small, objective, low, aim)
        if share == 1.0:
            program.pin()
        status, starts, proved = program.solve(share * (seconds - (time.perf_counter() - start)), workers)
        if status is Status.INFEASIBLE and aim is None:
            return answer(None, "proved by CP-SAT", status)
        low = aim + 1 if status is Status.INFEASIBLE and aim is not None else max(low, proved)
        if starts is not None:
            best = evaluate(problem, orders_of(problem, starts))
            high = (value(best) - 1) // unit
    # A makespan is a whole number of units. A period need not be: less than `low` of them would be `low` - 1 at most.
    proved = low * unit if objective == "makespan" else (low - 1) * unit + 1
    bound = max(bound, proved if best is None else min(proved, value(best)))
    return answer(bound, STOPPED if best is None or value(best) > bound else "proved by CP-SAT")


def refuted(problem: Problem, makespan_ns: int, seconds: float = 60.0, workers: int = WORKERS) -> bool:
    """True if CP-SAT proves from (1) to (4) alone, without our edges and bounds, that no schedule ends by then."""
    small, unit = in_units(problem)
    program = OrderModel(small, "makespan", 0, makespan_ns // unit, plain=True)
    return program.solve(seconds, workers)[0] is Status.INFEASIBLE


def fitting(problem: Problem, orders: Orders) -> TimedOrders | None:
    """The earliest schedule of these orders; None if a device lacks memory."""
    found = evaluate(with_room(problem, None), orders)
    fits = all(m is None or p <= m for p, m in zip(found.peak_bytes, problem.capacities, strict=True))
    return found if fits else None


def orders_of(problem: Problem, starts: Sequence[int]) -> Orders:
    """The tasks of every device by their starts."""
    return tuple(tuple(problem.tasks[i].slot for i in sorted(own, key=starts.__getitem__)) for own in problem.on_device)


def cp_sat(model: CpModel, seconds: float, workers: int = WORKERS) -> tuple[Status, CpSolver]:
    """Solve a model: the status, and the solver with its values."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = SEED
    solver.parameters.max_time_in_seconds = max(0.0, seconds)
    found = solver.solve(model)
    assert found != cp_model.MODEL_INVALID, model.validate()
    status = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
        cp_model.UNKNOWN: Status.UNKNOWN,
    }
    return status[found], solver


class OrderModel:
    """The model, for objectives from `low` to `high`. `plain`: (1) to (4) alone, without our edges and bounds."""

    def __init__(
        self, problem: Problem, objective: str, low: int, high: int | None = None, plain: bool = False
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.duration = problem, [task.duration_ns for task in problem.tasks]
        tight = problem if plain else tightened(problem)
        self.edges = tight.edges
        longest = sum(self.duration) + sum(edge.lag_ns for edge in problem.edges) + max(problem.closing_ns)
        high = longest if high is None else high
        none: Row = (0,) * len(problem.tasks)
        head, tail = (none, problem.closing_of) if plain else (heads(tight), tails(tight))
        self.model: CpModel = cp_model.CpModel()
        self.horizon = high if objective == "makespan" else longest
        # Variables
        self.start: list[IntVar] = [
            self.model.new_int_var(h or 0, max(h or 0, self.horizon - task.duration_ns - (t or 0)), str(task.slot))
            for task, h, t in zip(problem.tasks, head, tail, strict=True)
        ]
        self.cost: IntVar = self.model.new_int_var(low, max(low, high), objective)  # (5)
        interval = [
            self.model.new_fixed_size_interval_var(s, p, "") for s, p in zip(self.start, self.duration, strict=True)
        ]
        # Constraints
        for before, after, lag in tight.edges:  # (1)
            self.model.add(self.start[after] >= self.start[before] + (self.duration[before] + lag))
        for d, own in enumerate(problem.on_device):
            self.model.add_no_overlap([interval[i] for i in own])  # (2)
            self._memory(d)  # (3)
            first: Any = 0
            if objective == "period":
                first = self.model.new_int_var(0, self.horizon, "")
                head, tail = heads(tight, own), tails(tight, own, problem.closing_ns[d])
            for i in own:  # (4)
                self.model.add(first + (head[i] or 0) <= self.start[i])
                self.model.add(self.start[i] + (self.duration[i] + (tail[i] or 0)) <= first + self.cost)
        # Objective
        self.model.minimize(self.cost)

    def _memory(self, d: int) -> None:
        capacity, held = self.problem.capacities[d], [h for h in self.problem.holdings if h.device == d]
        if capacity is None:
            return
        spans: list[Any] = []
        for h in held:
            size = self.model.new_int_var(1, self.horizon, "")
            end = self.start[h.releaser] + self.duration[h.releaser]
            spans.append(self.model.new_interval_var(self.start[h.taker], size, end, ""))
        self.model.add_cumulative(spans, [h.bytes for h in held], capacity)

    def pin(self) -> None:
        """If one task precedes all others, start it at 0: any schedule can be shifted there."""
        begins = set(range(len(self.duration))) - {edge.after for edge in self.edges}
        if len(begins) == 1:
            self.model.add(self.start[begins.pop()] == 0)

    def hint(self, starts: Sequence[int]) -> None:
        """Suggest starts to the search."""
        for variable, start in zip(self.start, starts, strict=True):
            self.model.add_hint(variable, start)

    def solve(self, seconds: float, workers: int = WORKERS) -> tuple[Status, tuple[int, ...] | None, int]:
        """The status, the starts found, and the bound proved (if there is a schedule)."""
        status, solver = cp_sat(self.model, seconds, workers)
        if status is Status.INFEASIBLE:
            return status, None, 0
        starts = None if status is Status.UNKNOWN else tuple(solver.value(s) for s in self.start)
        bound = solver.best_objective_bound
        return status, starts, ceil(bound - 1e-6) if isfinite(bound) else 0
