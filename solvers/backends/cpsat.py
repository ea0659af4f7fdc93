"""CP-SAT: parts of a network, or the whole, as one program (formulation in `cp_program.py`), anytime, with a bound."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...formulation.network.network import INFINITE, Network
from ..decomposition.decomposed import Decomposed
from ..decomposition.narrowing import Narrow
from ..elimination.circuit import Circuit
from ..elimination.factors import Factor, exact_in_floats, network_factors, reachable
from ..elimination.labels import LabelBounds, Listing, enumerate_labels
from ..elimination.memory_price import Price, search_within
from ..elimination.order import restrict
from ..elimination.tables import Tables, check_clock
from ..protocol import INTERRUPTED, NO_LIMITS, STOPPED, Limits, Proof, Search, Solution
from ..wide.solve_reduced import solve_instead, solve_reduced, unflattened
from ..wide.substitution import Reduced
from .cp_program import CopyLabels, CpProgram, build, trail

_MOST_TERMS = 3_000_000  # entries of all edges, or uses in all capacities; building a larger program takes minutes
_PER_PAIR = 4e-6  # seconds at most to add a pair to a program: far less where rows are equal
_COLUMNS = 1 << 15  # labels per chain in a program
TOO_LARGE = "too large for one program"
_Decode = Callable[[dict[int, int], list[list[int]]], tuple[int, ...] | None]

_EARLY, _EARLY_SHARE = 1.0, 0.15  # a stop this long before the time limit (seconds, share) is an interrupt


class CpSat(Decomposed):
    """CP-SAT on the parts of a network; where capacities bind, on counted copies of its chains."""

    def __init__(self) -> None:
        self.part_solver = _Parts()


class _Parts:
    """CP-SAT under the decomposition."""

    name, title, most = "cpsat", "CP-SAT", 4_000

    def prove(self, part: Narrow, least: int, until: float) -> int:
        assert part.reparametrized is not None
        network = unflattened(part.reparametrized)
        answer = CpSatPlain().solve(network, Limits(max(0.0, until - time.perf_counter()), cutoff=least))
        if answer.words == INTERRUPTED:
            raise KeyboardInterrupt
        return answer.bound if answer.objective is None else min(answer.bound, answer.objective)

    def close(self, circuit: Circuit, best: Price, search: Search) -> Solution:
        count = partial(count_within, circuit, best, search)
        return search_within(circuit, best, search, count, ("counting", "CP-SAT"))

    def whole(self, search: Search) -> Solution:
        if search.network.switches:
            return solve_whole(search) if CpSatPlain().accepts(search.network) else search.finish(TOO_LARGE)
        return solve_reduced(search, _solve_small)


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
            return search.finish(TOO_LARGE)
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


def count_within(circuit: Circuit, best: Price, search: Search, through: Tables, reach: int) -> bool:
    """Offer the best solution of cost up to `reach` and below the ceiling, if any; True if the search was complete."""
    max_total = best.max_total(circuit, reach)
    small = restrict(circuit, through, max_total)
    if small is None:
        return True
    tops = small.copies
    bounds = LabelBounds(np.array(best.price), max_total, _COLUMNS, search.until)
    listing = enumerate_labels(small, bounds, tops or (0,))
    chains = [
        CopyLabels(c.boundaries[0], c.boundaries[-1], len(c), labels.at, labels.time, use=labels.use)
        for c, labels in zip(search.network.chains, [listing.slots[top] for top in tops], strict=True)
    ]
    rest = sorted(small.below([small.root], stop=tops))
    factors = [small.factors[slot] for slot in rest if slot < len(small.factors)]
    variables = {v for f in factors for v in f.scope} | {v for c in chains for v in (c.first, c.last)}
    size = {v: len(small.kept[small.domain[v]]) for v in variables}
    program = build(factors, size, search.network.capacities, chains)
    left = sum(n > 1 for n in size.values()) + sum(len(c.time) for c in chains)
    search.proof = Proof(search.source, 1 + len(chains), len(search.network.variables), left)

    def decode(picks: dict[int, int], counts: list[list[int]]) -> tuple[int, ...] | None:
        walks = []
        for labels, ns in zip(chains, counts, strict=True):
            walk, missed = trail(picks[labels.first], labels.ends, ns)
            if missed:
                return None
            walks.append(walk)
        return _assemble(listing, picks, walks)

    return run(program, search, decode, reach + 1)


def _assemble(listing: Listing, picks: dict[int, int], walks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The assignment given by options outside of chains, and by each chain's labels in order."""
    circuit = listing.circuit
    for chain, one, walk in zip(circuit.network.chains, circuit.copies, walks, strict=True):
        for i, label in enumerate(walk):
            picks = picks | {chain.boundaries[i + 1]: int(listing.slots[one].at[1, label])}
    starts = [(one, label, i) for one, walk in zip(circuit.copies, walks, strict=True) for i, label in enumerate(walk)]
    return circuit.assemble(starts, listing.choose, picks)
