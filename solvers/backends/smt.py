"""SMT: parts of a network, or a small network, as Booleans for Z3.

    x[v,i]        variable v takes option i
    y[e,i,j]      edge e = (u,v) joins option i of u to option j of v; only if that costs, or uses some capacity

Of a part Z3 proves that no solution costs less than the best known one, B more than the minima of all tables: unsat of

    (1) exactly one of x[v,·]                                                      ∀ v
    (2) x[u,i] → ∨ x[v,j] over the pairs (i,j) of cost at most B, and of v likewise     ∀ e, i
    (3) x[u,i] ∧ x[v,j] → y[e,i,j]                                                 ∀ pairs of cost 1 to B
    (4) Σ c[v,i] x[v,i] + Σ c[e,i,j] y[e,i,j] ≤ B - 1

with the part's own costs, so that the proof is Z3's; if it takes too long, with reparametrized ones (`narrowing.py`).
A whole network is minimised:

    min  the weights of violated soft clauses
    s.t. (1), and
     (2) ¬x[v,i] of weight c[v,i] - min_i c[v,i]                                     ∀ v, i
     (3) ¬x[u,i] ∨ ¬x[v,j] of weight c[e,i,j] - min c[e,·,·]; hard if forbidden          ∀ e, i, j
     (4) Σ m[v,i,r] x[v,i] + Σ m[e,i,j,r] y[e,i,j] ≤ M_r;  x[u,i] ∧ x[v,j] → y[e,i,j]    ∀ r (bytes)
"""

import math
import time
from typing import Any

import numpy as np

from ...formulation.network.network import INFINITE
from ...formulation.network.without_switches import without_switches
from ..decomposition.counted import CountedProgram, Decode, Terms
from ..decomposition.counted_linear import below
from ..decomposition.decomposed import Decomposed
from ..decomposition.narrowing import Narrow
from ..elimination.kernels import Ints
from ..protocol import STOPPED, Search, Solution
from ..wide.arcs import without_sums
from ..wide.form import Flat, flattened
from ..wide.solve_reduced import CUT, reducible, solve_reduced
from ..wide.substitution import Reduced
from .z3_thread import checked

_MOST_PAIRS = 20_000  # entries of all edges
_FIRST = 10.0  # seconds for a part with its own costs


class SMT(Decomposed):
    """Z3 on the parts of a network, in exact arithmetic; wide networks as a whole if they are small."""

    def __init__(self) -> None:
        self.part_solver = _Parts()


class _Parts:
    """Z3 under the decomposition."""

    name, title, most = "smt", "Z3", 1_500

    def prove(self, part: Narrow, least: int, until: float) -> int:
        assert part.flat is not None and part.reparametrized is not None
        own = without_sums(part.flat)
        tries = [own.flat] if own is not None else []
        for flat, share in zip((*tries, part.reparametrized), (*[_FIRST] * len(tries), math.inf), strict=True):
            left = until - time.perf_counter()
            if left > 0 and _none_below(flat, least, time.perf_counter() + min(share, left)) == "unsat":
                return least
        return -INFINITE

    def count(self, program: CountedProgram, search: Search, decode: Decode, known_to: int) -> bool:
        """Bisects the cost between what is proved and the best solution."""
        constant, low = search.network.constant, search.bound
        while low < (high := min(known_to, search.ceiling)):
            middle = high if search.objective is None or high == known_to else (low + high + 1) // 2
            status, values = _cheaper(program, middle - 1 - constant, search.until)
            if status == "unknown":
                return False
            if status == "unsat":
                low = middle
                search.raise_bound(low)
            elif not program.cut_cycles(values.__getitem__):
                assignment = decode(values.__getitem__)
                if assignment is None or not search.offer(assignment):
                    return False
        return True

    def whole(self, search: Search) -> Solution:
        network = search.network
        pairs = sum(e.cost.size for e in without_switches(network).network.edges)
        if pairs > _MOST_PAIRS or len(network.capacities) > 100 or not reducible(network):
            return search.finish("too large for Z3, or totals beyond 2^60")
        return solve_reduced(search, _solve)


def _cheaper(program: CountedProgram, budget: int, until: float) -> tuple[str, list[int]]:
    """Whether a counted program has a solution of cost up to `budget`: sat, unsat or unknown; its columns."""
    import z3

    found, context = below(program, budget, until - time.perf_counter()), z3.Context()
    solver = z3.Solver(ctx=context)
    z = [z3.Int(f"z[{k}]", context) for k in range(len(found.upper))]

    def total(terms: Terms) -> Any:
        return z3.Sum([amount * z[k] for amount, k in terms]) if terms else z3.IntVal(0, context)

    for column, low, upper in zip(z, found.low, found.upper, strict=True):
        solver.add(column >= low, column <= upper)
    for terms, right in found.rows:
        solver.add(total(terms) == right)
    solver.add(total([(cost, k) for k, cost in enumerate(found.cost) if cost]) <= found.budget)
    status = checked(solver, until)
    return status, [solver.model().eval(column, True).as_long() for column in z] if status == "sat" else []


def _none_below(flat: Flat, least: int, until: float) -> str:
    """Unsat if no choice of a network without capacities costs less than `least`, else sat or unknown."""
    import z3

    context, sizes, starts = z3.Context(), flat.sizes.tolist(), flat.start.tolist()
    budget = least - 1 - flat.constant
    solver = z3.SolverFor("QF_FD", ctx=context)
    x = [[z3.Bool(f"x[{v},{i}]", context) for i in range(n)] for v, n in enumerate(sizes)]
    paid: list[tuple[Any, int]] = []
    for v, row in enumerate(x):
        solver.add(z3.PbEq([(b, 1) for b in row], 1))  # (1)
        paid += zip(row, flat.cost[starts[v] : starts[v + 1]].tolist(), strict=True)
    for e, (u, v) in enumerate(flat.ends.tolist()):
        table = flat.table[flat.at[e] : flat.at[e + 1]].reshape(sizes[u], sizes[v])
        for one, other, allowed in ((x[u], x[v], table <= budget), (x[v], x[u], (table <= budget).T)):
            for b, fits in zip(one, allowed, strict=True):
                if not fits.all():
                    solver.add(z3.Or(z3.Not(b), *[other[j] for j in np.flatnonzero(fits)]))  # (2)
        for i, j in zip(*(k.tolist() for k in np.nonzero((table > 0) & (table <= budget))), strict=True):
            y = z3.Bool(f"y[{e},{i},{j}]", context)
            solver.add(z3.Or(z3.Not(x[u][i]), z3.Not(x[v][j]), y))  # (3)
            paid.append((y, int(table[i, j])))
    for b, cost in paid:
        if cost > budget:
            solver.add(z3.Not(b))
    terms = [(b, cost) for b, cost in paid if 0 < cost <= budget]
    if budget < 0:
        solver.add(z3.BoolVal(False, context))
    elif terms and budget < 1 << 31:
        solver.add(z3.PbLe(terms, budget))  # (4)
    elif terms:  # PbLe has 32 bits only
        solver.add(z3.Sum([z3.If(b, cost, 0) for b, cost in terms]) <= budget)
    return checked(solver, until)


def _solve(search: Search, small: Reduced) -> Solution:
    if len(small.flat.table) > _MOST_PAIRS:  # eliminated variables leave tables between neighbours
        small = Reduced(flattened(search.network))
    if search.left <= 0:
        return search.finish(STOPPED)
    status, best = _minimized(search, small)
    if status == "unsat":
        return search.finish("no solution, by Z3", infeasible=True)
    if status != "sat" or best is None:
        return search.finish(STOPPED)
    search.raise_bound(best)
    return search.finish("proved by Z3" if search.bound >= search.ceiling else CUT)


def _minimized(search: Search, small: Reduced) -> tuple[str, int | None]:
    """Offer Z3's models; returns sat (the last is optimal), unsat or unknown, and the last model's cost."""
    import z3

    context = z3.Context()
    solver, x = program(small.flat, context)
    failure: list[BaseException] = []  # only the last, popped when raised: its traceback would keep Z3's memory alive
    cost: int | None = None

    def found(model: Any) -> None:
        nonlocal cost
        try:
            choice = _read(x, model)
            cost = small.flat.price(choice)
            search.offer(small.assignment(choice))
        except BaseException as error:  # Z3 would swallow it
            if not (isinstance(error, z3.Z3Exception) and "canceled" in str(error)):  # raised at the time limit
                failure[:] = [error]

    solver.set_on_model(found)
    status = checked(solver, search.until, enough=lambda: bool(failure))
    if status == "sat":
        found(solver.model())
    if failure:
        raise failure.pop()
    return status, cost


def program(flat: Flat, context: Any) -> tuple[Any, list[list[Any]]]:
    """The Z3 problem of a network, and its variables x."""
    import z3

    solver = z3.Optimize(ctx=context)
    sizes, starts = flat.sizes.tolist(), flat.start.tolist()
    x = [[z3.Bool(f"x[{v},{i}]", context) for i in range(n)] for v, n in enumerate(sizes)]
    amounts: list[list[tuple[Any, int]]] = [[] for _ in flat.limits]
    for v, row in enumerate(x):
        solver.add(z3.PbEq([(b, 1) for b in row], 1))  # (1)
        for i, cost in enumerate(_above_least(flat.cost[starts[v] : starts[v + 1]])):
            _charge(solver, [row[i]], cost)  # (2)
    for p, v in enumerate(flat.piece_of.tolist()):
        for b, use in zip(x[v], flat.use[flat.use_at[p] : flat.use_at[p + 1]].tolist(), strict=True):
            for r in range(*flat.rows[p].tolist()) if use else ():
                amounts[r].append((b, use))
    for e, (u, v) in enumerate(flat.ends.tolist()):
        for k, cost in enumerate(_above_least(flat.table[flat.at[e] : flat.at[e + 1]])):
            pair = [x[u][k // sizes[v]], x[v][k % sizes[v]]]
            _charge(solver, pair, cost)  # (3)
            uses = [] if flat.pair_use is None else flat.pair_use[flat.at[e] + k].tolist()
            if any(uses):
                y = z3.Bool(f"y[{e},{k}]", context)
                solver.add(z3.Implies(z3.And(pair), y))
                for r, use in enumerate(uses):
                    amounts[r] += [(y, use)] if use else []
    for terms, limit in zip(amounts, flat.limits.tolist(), strict=True):
        if terms:
            solver.add(z3.Sum([z3.If(b, use, 0) for b, use in terms]) <= limit)  # (4); PbLe has 32 bits only
    return solver, x


def _charge(solver: Any, together: list[Any], cost: int | None) -> None:
    """Charge `cost` if all these Booleans hold; None forbids that."""
    import z3

    if cost != 0:
        clause = z3.Or([z3.Not(b) for b in together])
        if cost is None:
            solver.add(clause)
        else:
            solver.add_soft(clause, str(cost))


def _above_least(costs: Ints) -> list[int | None]:
    """The costs less their minimum; None where forbidden."""
    low = int(costs.min())
    return [None if c >= INFINITE else c - low for c in costs.tolist()]


def _read(x: list[list[Any]], model: Any) -> Ints:
    import z3

    picks = [next(i for i, b in enumerate(row) if z3.is_true(model.eval(b))) for row in x]
    return np.array(picks, np.int64)
