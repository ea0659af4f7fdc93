"""CP-SAT: parts of a network, or the whole, as one program (formulation in `counted.py`), anytime, with a bound."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from ...formulation.network.network import INFINITE, Network
from ..decomposition.counted import CountedProgram, Decode, build
from ..decomposition.decomposed import Decomposed
from ..decomposition.narrowing import Narrow
from ..elimination.factors import Factor, exact_in_floats, network_factors, reachable
from ..elimination.tables import check_clock
from ..protocol import INTERRUPTED, NO_LIMITS, STOPPED, Limits, Search, Solution
from ..wide.solve_reduced import solve_instead, solve_reduced, unflattened
from ..wide.substitution import Reduced

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

_MOST_TERMS = 3_000_000  # entries of all edges, or uses in all capacities; building a larger program takes minutes
_PER_PAIR = 4e-6  # seconds at most to add a pair to a program: far less where rows are equal
TOO_LARGE = "too large for one program"
_POLL = 0.05  # seconds


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

    def count(self, program: CountedProgram, search: Search, decode: Decode, known_to: int) -> bool:
        return run(program, search, decode, known_to)

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
    if not run(program, search, lambda value: tuple(pick for _, pick in sorted(program.read(value)[0].items()))):
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
    solver.parameters.catch_sigint_signal = False  # `_status` hears it
    return solver


def _status(solver: Any, model: "CpModel", watch: Any) -> Any:
    """How CP-SAT ends, in a thread of its own: an interrupt is raised in this one, and stops it."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.solve, model, watch)
        try:
            return running.result()
        finally:
            while not running.done():  # repeatedly: it may not have begun
                solver.stop_search()
                wait([running], _POLL)


def run(program: CountedProgram, search: Search, decode: Decode, known_to: int = INFINITE) -> bool:
    """CP-SAT on a counted program, as `Run` in `counted.py` says."""
    from ortools.sat.python import cp_model

    constant, ceiling = search.network.constant, search.ceiling
    model, columns, cost = _model(program)
    rows = len(program.rows)
    failures: list[BaseException] = []  # not to be raised through CP-SAT

    class Watch(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            try:
                assignment = decode(lambda column: int(self.value(columns[column])))
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
            model.add(cost <= ceiling - 1 - constant)
        solver = _solver(min(search.left, 1e6))
        solver.best_bound_callback = bound_grew
        status = _status(solver, model, Watch())
        if failures:
            raise failures[0]
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return bool(status == cp_model.INFEASIBLE)
        cycles = program.cut_cycles([int(solver.value(column)) for column in columns].__getitem__)
        if search.left <= 0 or not cycles:
            return bool(status == cp_model.OPTIMAL and not cycles)
        rows = _add_rows(model, columns, program, rows)


def _model(program: CountedProgram) -> tuple["CpModel", list[Any], Any]:
    """The program for CP-SAT: the model, a variable for every column, and the cost."""
    from ortools.sat.python.cp_model import CpModel, LinearExpr

    model = CpModel()
    columns = [model.new_bool_var("") if most == 1 else model.new_int_var(0, most, "") for most in program.upper]
    _add_rows(model, columns, program, 0)
    paid = [(b, cost) for b, cost in zip(columns, program.cost, strict=True) if cost]
    cost = LinearExpr.weighted_sum([b for b, _ in paid], [cost for _, cost in paid])
    model.minimize(cost)
    return model, columns, cost


def _add_rows(model: "CpModel", columns: list[Any], program: CountedProgram, first: int) -> int:
    """Add the rows of a program from `first` on; returns their number now."""
    from ortools.sat.python.cp_model import INT_MIN, LinearExpr

    for row in program.rows[first:]:
        terms = [(amount, columns[column]) for amount, column in row.terms if program.upper[column]]
        if row.equal and row.right == 1 and all(amount == 1 for amount, _ in terms):
            model.add_exactly_one([b for _, b in terms])
        else:
            total = LinearExpr.weighted_sum([b for _, b in terms], [amount for amount, _ in terms])
            model.add_linear_constraint(total, row.right if row.equal else INT_MIN, row.right)
    return len(program.rows)
