"""CP-SAT: the whole network as one program (`cp_program.py` has the formulation), anytime, with a bound."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...formulation.network.network import INFINITE, Network
from ..elimination.factors import Factor, exact_in_floats, network_factors, reachable
from ..elimination.tables import check_clock
from ..protocol import NO_LIMITS, STOPPED, Limits, Search, Solution
from ..wide.form import fits, flattened
from ..wide.solve_reduced import solve_smaller
from .cp_program import CpProgram, build, trail

_MOST_TERMS = 3_000_000  # entries of all edges, or uses in all capacities; beyond, the program alone takes minutes
_PER_PAIR = 4e-6  # seconds at most to build one into a program: far less where rows are equal
_Decode = Callable[[dict[int, int], list[list[int]]], tuple[int, ...] | None]

_EARLY, _EARLY_SHARE = 1.0, 0.15  # before its time, in seconds and as a share, a stop is an interrupt


class CpSat:
    """Exact for any network that reduction brings to a moderate size; chains are ignored.

    Networks with switches are solved as they stand.
    """

    name = "cpsat"

    def accepts(self, network: Network) -> bool:
        """True if reduction can add up the totals; what it leaves may be too large."""
        return CpSatPlain().accepts(network) if network.switches else fits(flattened(network))

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment, or the best found within the limits and a proved bound."""
        search = Search(network, limits, self.name)
        if network.switches:
            return search.run(lambda: solve_whole(search))
        return search.run(lambda: solve_smaller(search, CpSatPlain().solve))


class CpSatPlain:
    """CP-SAT on the network as it stands, without reduction: what others are held against."""

    name = "cpsat-plain"

    def accepts(self, network: Network) -> bool:
        """True if the totals are safe in 64 bits and the program is of a sensible size."""
        pairs = sum(term.cost.size for term in network.terms() if len(term.scope) > 1)
        return max(pairs, _uses(network)) <= _MOST_TERMS and exact_in_floats(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment, or the best found within the limits and a proved bound."""
        search = Search(network, limits, self.name)
        if not self.accepts(network):
            return search.finish("too large for one program")
        return search.run(lambda: solve_whole(search))


def _uses(network: Network) -> int:
    """How many uses of options and of pairs the capacities add up."""
    count = len(network.capacities)
    many = 0
    for term in network.terms():
        rows = count if term.rows is None else int((term.rows[:, 1] - term.rows[:, 0]).sum())
        many += 0 if term.use is None else rows * term.cost.size
    return many


def solve_whole(search: Search) -> Solution:
    """Solve the network of a search by one program, keeping what the search already knows."""
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
    """The factors, as long as there is time for each: else OutOfTimeError. `until` in seconds of `perf_counter`."""
    for factor in factors:
        check_clock(until - factor.time.size * _PER_PAIR)
        yield factor


def _solver(seconds: float) -> Any:
    """A CP-SAT solver that gives the same answer every time."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # deterministic, and quickest on counted programs
    solver.parameters.linearization_level = 2  # (2), (3) and (6) are where the bound comes from
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = seconds
    return solver


def run(program: CpProgram, search: Search, decode: _Decode, known_to: int = INFINITE) -> bool:
    """Offer the program's solutions below the search's ceiling, best last; whether there is proved to be no better.

    `decode` gives None for a solution that circulates apart from the way. The program's bound is the network's as
    far as `known_to`, the cost up to which it holds every solution.
    """
    from ortools.sat.python import cp_model

    constant, ceiling = search.network.constant, search.ceiling

    failures: list[BaseException] = []  # raised through CP-SAT, they would leave its signal handler behind

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
        _hear_interrupts()
        if failures:
            raise failures[0]
        if status in (cp_model.FEASIBLE, cp_model.UNKNOWN) and search.left > max(_EARLY, _EARLY_SHARE * allowed):
            raise KeyboardInterrupt  # CP-SAT keeps the signal to itself; nothing else ends it before its time
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return bool(status == cp_model.INFEASIBLE)
        apart = _cut_off(program, solver.value)
        if search.left <= 0 or not apart:
            return bool(status == cp_model.OPTIMAL and not apart)
        for chain, layouts in apart:
            program.cut(chain, layouts)


def _hear_interrupts() -> None:
    """Take back the terminal's interrupt: CP-SAT leaves it to the system, which would end the process at the next."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _cut_off(program: CpProgram, value: Callable[[Any], int]) -> list[tuple[int, set[int]]]:
    """The chains whose counts do not form one trail, with the layouts that it misses."""
    picks, counts = program.read(value)
    found = []
    for k, (columns, ns) in enumerate(zip(program.chains, counts, strict=True)):
        _, left = trail(picks[columns.first], columns.ends, ns)
        if left:
            found.append((k, left))
    return found
