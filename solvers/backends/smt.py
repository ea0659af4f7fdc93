"""SMT: a small network, after reduction, as Booleans and weighted clauses for Z3 Optimize.

x[v,i]        variable v takes option i
y[e,i,j]      edge e = (u,v) joins option i of u to option j of v; only if that uses some capacity
min  the weights of violated soft clauses
s.t. (1) exactly one of x[v,·]                                                      ∀ v
     (2) ¬x[v,i] of weight c[v,i] - min_i c[v,i]                                     ∀ v, i
     (3) ¬x[u,i] ∨ ¬x[v,j] of weight c[e,i,j] - min c[e,·,·]; hard if forbidden          ∀ e, i, j
     (4) Σ m[v,i,r] x[v,i] + Σ m[e,i,j,r] y[e,i,j] ≤ M_r;  x[u,i] ∧ x[v,j] → y[e,i,j]    ∀ r (bytes)
"""

from typing import Any

import numpy as np

from ...formulation.network.network import INFINITE, Network
from ...formulation.network.without_switches import without_switches
from ..elimination.kernels import Ints
from ..elimination.transient_memory import EXTRAS, has_extras
from ..protocol import NO_LIMITS, STOPPED, Limits, Search, Solution
from ..wide.form import Flat, flattened
from ..wide.solve_reduced import CUT, reducible, solve_reduced
from ..wide.substitution import Reduced
from .z3_thread import checked

_MOST_PAIRS = 20_000  # entries of all edges


class SMT:
    """Exact, in exact arithmetic, for small networks; ignores chains, rejects transient memory."""

    name = "smt"

    def accepts(self, network: Network) -> bool:
        """True if there are at most 20,000 pairs and 100 capacities, and totals fit 64 bits."""
        if has_extras(network):
            return False
        network = without_switches(network).network
        pairs = sum(e.cost.size for e in network.edges)
        return pairs <= _MOST_PAIRS and len(network.capacities) <= 100 and reducible(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        if not self.accepts(network):
            return search.finish(EXTRAS if has_extras(network) else "too large for Z3, or totals beyond 2^60")
        return search.run(lambda: solve_reduced(search, _solve))


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
