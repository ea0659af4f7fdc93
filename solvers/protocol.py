"""The protocol of the solvers of cost networks: limits, solutions, and the state of a search."""

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
from .gap import relative_gap
from .work import spent

# Words of solutions.
INTERRUPTED = "interrupted"
STOPPED = "stopped by the time limit"
NO_MEMORY = "out of memory"
INEXACT = "totals beyond 2^52 are not exact in floats"
PRICED = "only prices were requested"


class OutOfTimeError(Exception):
    """The time limit was reached within a step."""


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
    """The best cost so far and the proved bound (both ns), and the seconds since the start."""

    incumbent: int | None
    bound: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    The search ends once its bound reaches `cutoff` (only cheaper solutions count), or comes within the relative `gap`
    of the cutoff or of the best solution. `quick`: a cheap bound and solution instead of a proof; `rough`: cheapest
    bound only. `prices` (ns per byte of each capacity, after the weights of streams if there are windows) proved the
    bound of a similar problem: the first to try. `enough`: a bound at which a solver may stop where raising it takes
    long, as in networks too wide for elimination.
    """

    seconds: float = math.inf
    cutoff: int | None = None
    progress: Callable[[Progress], None] | None = None
    gap: float = 0.0
    quick: bool = False
    rough: bool = False
    prices: tuple[float, ...] = ()
    enough: int = INFINITE

    def within(self, gap: float) -> "Limits":
        """These limits with the larger of the two gaps."""
        return replace(self, gap=max(gap, self.gap))

    def reaching(self, bound: int) -> "Limits":
        """These limits with a cutoff so low that the search may end at this bound."""
        share = 1 - Fraction(self.gap) if bound > 0 else 1 + Fraction(self.gap)
        reached = math.ceil(bound / share)
        return replace(self, cutoff=reached if self.cutoff is None else min(self.cutoff, reached))

    def ceiling(self, objective: int | None) -> int:
        """The cost that a new solution must beat, given the incumbent's cost `objective`."""
        known = [x for x in (objective, self.cutoff) if x is not None]
        return math.ceil(min(known) - abs(min(known)) * Fraction(self.gap)) if known else INFINITE


@dataclass(frozen=True, slots=True)
class Proof:
    """What a backend proved of a network that was split: the different `parts` that it was given, their `variables`,
    and how many of these were `left` undecided by reductions. None were where reductions proved the answer.
    """

    backend: str
    parts: int = 0
    variables: int = 0
    left: int = 0

    def and_of(self, other: "Proof") -> "Proof":
        """Both proofs, of different networks."""
        return Proof(self.backend, self.parts + other.parts, self.variables + other.variables, self.left + other.left)


@dataclass(frozen=True, slots=True)
class Solution:
    """A solver's answer: an option per variable, its cost, and a lower bound (both ns) on every assignment's cost.

    `bound` is INFINITE when infeasible. `source` names the solver, `words` says how it ended. `prices` (ns per byte of
    each capacity, after the weights of streams if there are windows; empty if unknown) prove the bound, or one close to
    it. `proof`: what was left for the backend.
    """

    status: Status
    assignment: tuple[int, ...] | None
    objective: int | None
    bound: int
    seconds: float
    source: str
    words: str = ""
    prices: tuple[float, ...] = ()
    proof: Proof | None = None

    @property
    def gap(self) -> float | None:
        """The gap between objective and bound; None without an assignment or without a bound."""
        if self.objective is None or self.bound <= -INFINITE:
            return None
        return relative_gap(self.objective, self.bound)

    @property
    def refusal(self) -> str:
        """Why the solver gave no assignment though time was left: its words; empty if it has one or proves something.

        So it is where the network is too large for the solver, or has what it does not know.
        """
        ended = self.words in ("", INTERRUPTED, PRICED) or STOPPED in self.words
        return "" if self.status is not Status.UNKNOWN or ended else self.words


NO_LIMITS = Limits()


@runtime_checkable
class Solver(Protocol):
    """A backend. `solve` checks its answer with `evaluate`, and on an interrupt returns the best found so far."""

    name: str

    def accepts(self, network: Network) -> bool:
        """True if this backend can represent the network exactly."""
        ...

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
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
    """Every solver: the built-in ones, then those that installed packages provide."""
    return [_load(path) for path in _paths().values()]


def solver(name: str) -> Solver:
    """The solver of that name; raises PartitaError that lists the available ones."""
    paths = _paths()
    if name not in paths:
        raise PartitaError(f"no solver is called {name!r}; there are {', '.join(paths)}")
    return _load(paths[name])


def _paths() -> dict[str, str]:
    """Import paths by name: the built-in solvers, and the entry points `partita.solvers` of installed packages."""
    return BUILT_IN | {point.name: point.value for point in entry_points(group="partita.solvers")}


def _load(path: str) -> Solver:
    module, _, attribute = path.partition(":")
    if path in BUILT_IN.values():  # the checkout may be imported under another name
        module = __package__ + module.removeprefix("partita.solvers")
    backend: Solver = getattr(import_module(module), attribute)()
    return backend


@dataclass(slots=True)
class Search:
    """The state of one solve: incumbent, bound and clock. Every incumbent is checked by `evaluate`."""

    network: Network
    limits: Limits
    source: str
    assignment: tuple[int, ...] | None = None
    objective: int | None = None
    bound: int = -INFINITE
    prices: tuple[float, ...] = ()
    proof: Proof | None = None
    started: float = field(default_factory=time.perf_counter)
    begun: float = field(default_factory=spent)  # the work before it

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def work(self) -> float:
        """The work since the start, in seconds that do not depend on how busy the machine is."""
        return spent() - self.begun

    @property
    def until(self) -> float:
        """The deadline, in seconds of `time.perf_counter`."""
        return self.started + self.limits.seconds

    @property
    def left(self) -> float:
        """The seconds left, at least 0."""
        return max(0.0, self.limits.seconds - self.seconds)

    @property
    def ceiling(self) -> int:
        """The cost that a new solution must beat."""
        return self.limits.ceiling(self.objective)

    @property
    def done(self) -> bool:
        """True if the bound reached the ceiling or the time is up."""
        return self.bound >= self.ceiling or self.left <= 0

    def better(self, cost: int) -> bool:
        """True if a feasible assignment of this cost would be a new incumbent."""
        return self.objective is None or cost < self.objective

    def offer(self, assignment: tuple[int, ...]) -> bool:
        """Make an assignment the incumbent if it is feasible and cheaper; True if it is feasible."""
        verdict = evaluate(self.network, assignment)
        if verdict.feasible and self.better(verdict.cost):
            self.assignment, self.objective = assignment, verdict.cost
            self.report()
        return verdict.feasible

    def raise_bound(self, bound: int) -> None:
        """Record a lower bound on the cost of every assignment but the incumbent."""
        bound = bound if self.objective is None else min(bound, self.objective)
        if bound > self.bound:
            self.bound = bound
            self.report()

    def report(self) -> None:
        if self.limits.progress is not None:
            self.limits.progress(Progress(self.objective, self.bound, self.seconds))

    def run(self, solve: Callable[[], Solution]) -> Solution:
        """The result of `solve`, or on an interrupt, the time limit or a lack of memory, the best found so far."""
        try:
            return solve()
        except KeyboardInterrupt:
            return self.finish(INTERRUPTED)
        except SystemError as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):  # as compiled loops report what a signal's handler raised
                cause = cause.__cause__
            if not isinstance(cause, KeyboardInterrupt):
                raise
            return self.finish(INTERRUPTED)
        except OutOfTimeError:
            return self.finish(STOPPED)
        except MemoryError:
            return self.finish(NO_MEMORY)

    def finish(self, words: str = "", infeasible: bool = False) -> Solution:
        """The solution of this state; `infeasible` only if proved."""
        assert self.objective is None or self.bound <= self.objective, (self.bound, self.objective)
        if infeasible:
            assert self.assignment is None
            self.bound = INFINITE
        if infeasible:
            status = Status.INFEASIBLE
        elif self.objective is None:
            status = Status.UNKNOWN
        else:
            status = Status.OPTIMAL if self.objective == self.bound else Status.FEASIBLE
        found = status, self.assignment, self.objective, self.bound, self.seconds
        return Solution(*found, source=self.source, words=words, prices=self.prices, proof=self.proof)
