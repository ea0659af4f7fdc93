"""CP-SAT: the whole network as one program (formulation in `cp_program.py`), anytime, with a bound."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...formulation.network.network import INFINITE, Network
from ..elimination.factors import Factor, exact_in_floats, network_factors, reachable
from ..elimination.tables import check_clock
from ..protocol import NO_LIMITS, STOPPED, Limits, Search, Solution
from ..wide.solve_reduced import reducible, solve_instead, solve_reduced, unflattened
from ..wide.substitution import Reduced
from .cp_program import CpProgram, build, trail

_MOST_TERMS = 3_000_000  # entries of all edges, or uses in all capacities; building a larger program takes minutes
_PER_PAIR = 4e-6  # seconds at most to add a pair to a program: far less where rows are equal
_Decode = Callable[[dict[int, int], list[list[int]]], tuple[int, ...] | None]

_EARLY, _EARLY_SHARE = 1.0, 0.15  # a stop this long before the time limit (seconds, share) is an interrupt


class CpSat:
    """Exact for any network that reduction brings to a moderate size; ignores chains, does not reduce switches."""

    name = "cpsat"

    def accepts(self, network: Network) -> bool:
        """True if totals fit 64 bits; the reduced network may still be too large."""
        return CpSatPlain().accepts(network) if network.switches else reducible(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        if network.switches:
            return search.run(lambda: solve_whole(search))
        return search.run(lambda: solve_reduced(search, _solve_small))


def _solve_small(search: Search, small: Reduced) -> Solution:
    return solve_instead(search, unflattened(small.flat), small.assignment, CpSatPlain().solve, small.cut)


class CpSatPlain:
    """CP-SAT on the network without reduction: the reference for the other backends."""

    name = "cpsat-plain"

    def accepts(self, network: Network) -> bool:
        """True if the totals are exact in floats and the program is of moderate size."""
        pairs = sum(term.cost.size for term in network.terms() if len(term.scope) > 1)
        return max(pairs, _uses(network)) <= _MOST_TERMS and exact_in_floats(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        if not self.accepts(network):
            return search.finish("too large for one program")
        return search.run(lambda: solve_whole(search))


def _uses(network: Network) -> int:
    """How many uses of options and pairs the capacity constraints sum."""
    total = 0
    for term in network.terms():
        rows = len(network.capacities) if term.rows is None else int((term.rows[:, 1] - term.rows[:, 0]).sum())
        total += 0 if term.use is None else rows * term.cost.size
    return total


def solve_whole(search: Search) -> Solution:
    """Solve a search's network by one program, starting from its incumbent and bound."""
    network = search.network
    size = {v: len(variable.cost) for v, variable in enumerate(network.variables)}
    factors = _in_time(network_factors(network), search.until)
    program = build(factors, size, reachable(network).capacities)
    if not run(program, search, lambda picks, _: tuple(picks[v] for v in range(len(picks)))):
        return search.finish(STOPPED)
    infeasible = search.objective is None and search.limits.cutoff is None
    search.raise_bound(INFINITE if infeasible else search.ceiling)
    return search.finish("proved by CP-SAT", infeasible)


def _in_time(factors: Iterable[Factor], until: float) -> Iterator[Factor]:
    """Yield the factors; OutOfTimeError if none can be added before `until` (of `perf_counter`)."""
    for factor in factors:
        check_clock(until - factor.time.size * _PER_PAIR)
        yield factor


def _solver(seconds: float) -> Any:
    """A deterministic CP-SAT solver."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # deterministic, and quickest on counted programs
    solver.parameters.linearization_level = 2  # (2), (3) and (6) are where the bound comes from
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = seconds
    return solver


def run(program: CpProgram, search: Search, decode: _Decode, known_to: int = INFINITE) -> bool:
    """Offer the program's solutions below the search's ceiling, best last; True if none better is proved to exist.

    `decode` returns None for a solution with a cycle besides the path (7). The program holds every solution of cost
    up to `known_to`, so its bound holds for the network up to there.
    """
    from ortools.sat.python import cp_model

    constant, ceiling = search.network.constant, search.ceiling

    failures: list[BaseException] = []  # raising through CP-SAT would leave its signal handler installed

    class Watch(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            try:
                assignment = decode(*program.read(self.value))
                if assignment is not None:
                    search.offer(assignment)
            except BaseException as error:
                failures.append(error)
                self.stop_search()

    def bound_grew(value: float) -> None:
        try:
            if value > -INFINITE:
                search.raise_bound(min(constant + round(value), known_to, ceiling))
        except BaseException as error:
            failures.append(error)
            solver.stop_search()

    while True:
        ceiling = search.ceiling
        if ceiling < INFINITE:
            program.model.add(program.cost <= ceiling - 1 - constant)
        allowed = min(search.left, 1e6)
        solver = _solver(allowed)
        solver.best_bound_callback = bound_grew
        status = solver.solve(program.model, Watch())
        _restore_interrupts()
        if failures:
            raise failures[0]
        if status in (cp_model.FEASIBLE, cp_model.UNKNOWN) and search.left > max(_EARLY, _EARLY_SHARE * allowed):
            raise KeyboardInterrupt  # CP-SAT swallowed the signal; nothing else ends it early
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return bool(status == cp_model.INFEASIBLE)
        cycles = _cycles(program, solver.value)
        if search.left <= 0 or not cycles:
            return bool(status == cp_model.OPTIMAL and not cycles)
        for chain, layouts in cycles:
            program.cut(chain, layouts)


def _restore_interrupts() -> None:
    """Reinstall Python's SIGINT handler: CP-SAT leaves the system's, which kills the process."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _cycles(program: CpProgram, value: Callable[[Any], int]) -> list[tuple[int, set[int]]]:
    """The chains whose counts do not form one trail, with the layouts that the trail misses."""
    picks, counts = program.read(value)
    found = []
    for k, (labels, ns) in enumerate(zip(program.chains, counts, strict=True)):
        _, missed = trail(picks[labels.first], labels.ends, ns)
        if missed:
            found.append((k, missed))
    return found
