"""What a solver of cost networks takes and gives."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from ..formulation.network.network import INFINITE, Network, evaluate
from ..model.errors import PartitaError

INTERRUPTED = "interrupted"
"""The words of a solution that an interrupt ended."""


STOPPED = "stopped by the time limit"
NO_MEMORY = "stopped for want of memory"
INEXACT = "totals beyond 2^52 are not exact in floats"
PRICED = "only prices were asked for"


class OutOfTimeError(Exception):
    """The time is up in the middle of a step."""


class TooManyError(Exception):
    """A list grew beyond its limit."""


class Status(Enum):
    """Why a solver stopped."""

    OPTIMAL = "optimal"  # the assignment is proved best
    FEASIBLE = "feasible"  # there is an assignment, perhaps not the best
    INFEASIBLE = "infeasible"  # proved: there is no assignment
    UNKNOWN = "unknown"  # neither found nor excluded, or the bound reached the cutoff


@dataclass(frozen=True, slots=True)
class Progress:
    """The best cost so far (ns), what is proved (ns), and the seconds since the start."""

    incumbent: int | None
    bound: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop. Only solutions of a cost below `cutoff` are wanted: a bound that reaches it ends the search.

    So does one within the share `gap` of the cutoff or of the best solution. `quick`: a bound and a solution are wanted
    that cost little, rather than a proof; `rough`: a bound that costs less still. `prices`: those of a byte of each
    capacity, ns, that proved a bound of a problem much like this one.
    """

    seconds: float = math.inf
    cutoff: int | None = None
    progress: Callable[[Progress], None] | None = None
    gap: float = 0.0
    quick: bool = False
    rough: bool = False
    prices: tuple[float, ...] = ()

    def within(self, gap: float) -> "Limits":
        """The same with this gap, or its own where that is larger."""
        return replace(self, gap=max(gap, self.gap))

    def ceiling(self, objective: int | None) -> int:
        """The cost below which a solution is still wanted, where one of cost `objective` is known."""
        known = [x for x in (objective, self.cutoff) if x is not None]
        return math.ceil(min(known) - abs(min(known)) * Fraction(self.gap)) if known else INFINITE


@dataclass(frozen=True, slots=True)
class Solution:
    """What a solver found: an option per variable with its cost, and a bound (ns) that no assignment goes below.

    `bound` is INFINITE when infeasible. `source` names the solver, `words` says how it went. `prices` of a byte of each
    capacity prove the bound, or one close to it, where the solver has any.
    """

    status: Status
    assignment: tuple[int, ...] | None
    objective: int | None
    bound: int
    seconds: float
    source: str
    words: str = ""
    prices: tuple[float, ...] = ()

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective: 0.0 when proved, None without an assignment."""
        if self.objective is None:
            return None
        if self.objective == self.bound:
            return 0.0
        return (self.objective - self.bound) / max(abs(self.objective), 1)


NO_LIMITS = Limits()


@runtime_checkable
class Solver(Protocol):
    """A backend. `solve` confirms its answer with `evaluate`; an interrupt returns the best found so far."""

    name: str

    def accepts(self, network: Network) -> bool:
        """Whether this backend can represent the network exactly."""
        ...

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment within the limits, and what is proved about it."""
        ...


BUILT_IN = {
    "auto": "partita.solvers.backends.auto:Auto",
    "elimination": "partita.solvers.backends.elimination:Elimination",
    "cpsat": "partita.solvers.backends.cpsat:CpSat",
    "cpsat-plain": "partita.solvers.backends.cpsat:CpSatPlain",
    "milp": "partita.solvers.backends.milp:MILP",
    "smt": "partita.solvers.backends.smt:SMT",
}


def solvers() -> list[Solver]:
    """Every solver: the built-in ones, then those that installed packages offer as `partita.solvers`."""
    offered = {point.name: point.value for point in entry_points(group="partita.solvers")}
    return [_load(path) for path in (BUILT_IN | offered).values()]


def solver(name: str) -> Solver:
    """The solver of that name; raises PartitaError naming those there are."""
    offered = {point.name: point.value for point in entry_points(group="partita.solvers")}
    known = BUILT_IN | offered
    if name not in known:
        raise PartitaError(f"no solver is called {name!r}; there are {', '.join(known)}")
    return _load(known[name])


def _load(path: str) -> Solver:
    module, _, attribute = path.partition(":")
    if path in BUILT_IN.values():  # the checkout may be imported under another name
        module = __package__ + module.removeprefix("partita.solvers")
    backend: Solver = getattr(import_module(module), attribute)()
    return backend


@dataclass(slots=True)
class Search:
    """The running state of one solve: the incumbent, the bound, and the clock. Every incumbent is evaluated."""

    network: Network
    limits: Limits
    source: str
    assignment: tuple[int, ...] | None = None
    objective: int | None = None
    bound: int = -INFINITE
    prices: tuple[float, ...] = ()
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def until(self) -> float:
        """When the time is up, in seconds of `time.perf_counter`."""
        return self.started + self.limits.seconds

    @property
    def left(self) -> float:
        """The seconds left, at least 0."""
        return max(0.0, self.limits.seconds - self.seconds)

    @property
    def ceiling(self) -> int:
        """The cost that a new solution must be below."""
        return self.limits.ceiling(self.objective)

    @property
    def done(self) -> bool:
        """Whether the bound reached what is known or wanted, or the time is up."""
        return self.bound >= self.ceiling or self.left <= 0

    def better(self, cost: int) -> bool:
        """Whether a feasible assignment of this cost would be the best so far."""
        return self.objective is None or cost < self.objective

    def offer(self, assignment: tuple[int, ...]) -> bool:
        """Keep an assignment if `evaluate` finds it feasible and the best so far; says whether it is feasible."""
        verdict = evaluate(self.network, assignment)
        if verdict.feasible and self.better(verdict.cost):
            self.assignment, self.objective = assignment, verdict.cost
            self.report()
        return verdict.feasible

    def raise_bound(self, bound: int) -> None:
        """Note a proved bound: no assignment costs less, unless it is the incumbent."""
        bound = bound if self.objective is None else min(bound, self.objective)
        if bound > self.bound:
            self.bound = bound
            self.report()

    def report(self) -> None:
        if self.limits.progress is not None:
            self.limits.progress(Progress(self.objective, self.bound, self.seconds))

    def run(self, solve: Callable[[], Solution]) -> Solution:
        """What `solve` returns; an interrupt, the time limit within a step of it, or too little memory keeps what was
        found so far."""
        try:
            return solve()
        except KeyboardInterrupt:
            return self.finish(INTERRUPTED)
        except OutOfTimeError:
            return self.finish(STOPPED)
        except MemoryError:
            return self.finish(NO_MEMORY)

    def finish(self, words: str = "", infeasible: bool = False) -> Solution:
        """The solution of this state; `infeasible` only when that is proved."""
        assert self.objective is None or self.bound <= self.objective, (self.bound, self.objective)
        if infeasible:
            assert self.assignment is None
            self.bound = INFINITE
        status = (
            Status.INFEASIBLE
            if infeasible
            else Status.UNKNOWN
            if self.objective is None
            else Status.OPTIMAL
            if self.objective == self.bound
            else Status.FEASIBLE
        )
        found = status, self.assignment, self.objective, self.bound, self.seconds
        return Solution(*found, source=self.source, words=words, prices=self.prices)
