"""The best placement of a mesh for several reductions at once: CP-SAT over the exponents of primes.

With e[p,i,l] the exponent of the prime p in the factor of axis i on level l, rows and columns have the right products
exactly if the exponents solve one transportation problem for each prime:

    (1) Σ_l e[p,i,l] = exponent of p in the size of axis i     ∀ p, i
    (2) Σ_i e[p,i,l] = exponent of p in the size of level l    ∀ p, l

The price of a reduction depends only on the matrix after merging neighbouring axes that are all reduced or all not
reduced (adding their exponents): b[k] are its exponents, T[k] the table of all such matrices and their prices.

    (3) (b[k], c[k]) ∈ T[k]                                    ∀ reductions k
    min Σ_k w[k] c[k]                                          (ns)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...formulation.placement.placement import (
    Placement,
    Row,
    arrangements,
    check_axes,
    check_reduced,
    of_rows,
    prime_factors,
)
from ...formulation.reduction.optimal import Best, optimal
from ...formulation.reduction.program import Reduction, ReductionProgram
from ...formulation.reduction.ranking import check_bytes
from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from ..protocol import NO_LIMITS, Limits, Status

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

Exponents: TypeAlias = dict[tuple[int, int, int], Any]  # (prime, axis, level) -> a CP-SAT variable
Run: TypeAlias = tuple[int, ...]  # neighbouring axes
Table: TypeAlias = dict[tuple[Row, ...], int]  # a matrix of runs -> ns

MOST_NS = 2**53  # a weighted sum of prices, exact in the floats that CP-SAT reports


class Demand(NamedTuple):
    """A reduction over `axes` of `size_bytes` per device, `weight` times per step."""

    axes: tuple[int, ...]
    size_bytes: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Joint:
    """A placement, the program of every reduction on it, their weighted time and a proved bound (ns)."""

    status: Status
    placement: Placement | None
    programs: tuple[ReductionProgram, ...]
    ns: int | None
    bound_ns: int
    seconds: float


def enumerate_matrices(hierarchy: Sequence[int], axes: Sequence[int]) -> tuple[Placement, ...]:
    """Every solution of (1) and (2), in descending order of the matrices.

    PartitaError: a size below 1, or axes that do not multiply to the devices.
    """
    from ortools.sat.python import cp_model

    levels, sizes = check_axes(hierarchy, axes)
    model = cp_model.CpModel()
    e = transportation(model, levels, sizes)
    found: list[tuple[Row, ...]] = []

    class Collect(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found.append(_matrix({key: self.value(x) for key, x in e.items()}, levels, sizes))

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.enumerate_all_solutions = True
    if solver.solve(model, Collect()) not in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
        raise KeyboardInterrupt  # there is no time limit, so nothing else stops it
    return tuple(of_rows(rows) for rows in sorted(found, reverse=True))


def best_placement(
    machine: Machine,
    axes: Sequence[int],
    reductions: Iterable[tuple[Sequence[int], int, int]],
    profile: str | None = None,
    limits: Limits = NO_LIMITS,
) -> Joint:
    """The placement that minimizes the weighted time of the reductions, each by its optimal program.

    A reduction is (axes, bytes per device, weight), as in `Demand`. `profile`: a cost profile, by default the
    machine's. PartitaError: axes whose product is not the number of devices, an empty reduction or an unknown axis,
    negative bytes, a weight below 1.
    """
    from ortools.sat.python import cp_model

    start = time.perf_counter()
    levels, sizes = check_axes(machine.hierarchy, axes)
    demands = tuple(check_demand(demand, sizes) for demand in reductions)
    tables = [_table(machine, sizes, demand, profile) for demand in demands]
    most_ns = sum(max(table.values()) * demand.weight for (_, table), demand in zip(tables, demands, strict=True))
    if most_ns > MOST_NS:
        raise PartitaError(f"the reductions take up to {most_ns / 1e9:.3g} s; the most is {MOST_NS / 1e9:.3g} s")
    # Variables
    model = cp_model.CpModel()
    e = transportation(model, levels, sizes)
    c = [model.new_int_var(0, max(table.values()), f"c[{k}]") for k, (_, table) in enumerate(tables)]
    # Constraint (3)
    for k, (runs, table) in enumerate(tables):
        _choose(model, e, c[k], levels, runs, table)
    # Objective
    model.minimize(sum(demand.weight * c[k] for k, demand in enumerate(demands)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = min(limits.seconds, 1e6)
    answer = solver.solve(model)
    seconds = time.perf_counter() - start
    if answer not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Joint(Status.UNKNOWN, None, (), None, 0, seconds)
    placement = of_rows(_matrix({key: solver.value(x) for key, x in e.items()}, levels, sizes))
    programs, ns = price(machine, placement, demands, profile)
    assert ns == round(solver.objective_value), (ns, solver.objective_value)  # priced on the whole matrix
    proved = answer == cp_model.OPTIMAL
    status = Status.OPTIMAL if proved else Status.FEASIBLE
    return Joint(status, placement, programs, ns, ns if proved else round(solver.best_objective_bound), seconds)


def by_enumeration(
    machine: Machine,
    axes: Sequence[int],
    reductions: Iterable[tuple[Sequence[int], int, int]],
    profile: str | None = None,
) -> Joint:
    """`best_placement` by exhaustive enumeration, as an independent check."""
    start = time.perf_counter()
    _, sizes = check_axes(machine.hierarchy, axes)
    demands = tuple(check_demand(demand, sizes) for demand in reductions)
    priced = ((*price(machine, p, demands, profile), p) for p in arrangements(machine.hierarchy, sizes))
    programs, ns, placement = min(priced, key=lambda found: found[1])
    return Joint(Status.OPTIMAL, placement, programs, ns, ns, time.perf_counter() - start)


def price(
    machine: Machine, placement: Placement, demands: Iterable[Demand], profile: str | None = None
) -> tuple[tuple[ReductionProgram, ...], int]:
    """The optimal program of every demand on a placement, and their weighted time (ns)."""
    found = [(_best(machine, placement, d.axes, d.size_bytes, profile), d.weight) for d in demands]
    return tuple(best.program for best, _ in found), sum(best.ns * weight for best, weight in found)


def transportation(model: CpModel, levels: Row, axes: Row) -> Exponents:
    """Adds the variables e[p,i,l] with (1) and (2) to a model; p runs over the primes of the devices."""
    e = {
        (p, i, l): model.new_int_var(0, min(_exponent(p, axis), _exponent(p, level)), f"e[{p},{i},{l}]")
        for p in _primes(prod(levels))
        for i, axis in enumerate(axes)
        for l, level in enumerate(levels)
    }
    for p in _primes(prod(levels)):
        for i, axis in enumerate(axes):
            model.add(sum(e[p, i, l] for l in range(len(levels))) == _exponent(p, axis))  # (1)
        for l, level in enumerate(levels):
            model.add(sum(e[p, i, l] for i in range(len(axes))) == _exponent(p, level))  # (2)
    return e


def check_demand(demand: tuple[Sequence[int], int, int], sizes: Row) -> Demand:
    """The demand with its axes ascending. PartitaError: an invalid demand."""
    axes, size_bytes, weight = demand
    reduced = check_reduced(sizes, axes)
    check_bytes(size_bytes)
    if not isinstance(weight, int) or weight < 1:
        raise PartitaError(f"a reduction with weight {weight}: a whole number of 1 or more is needed")
    return Demand(reduced, size_bytes, weight)


# Tables of prices


def merged(sizes: Row, reduced: Sequence[int]) -> tuple[tuple[Run, ...], tuple[int, ...]]:
    """Maximal runs of neighbouring axes that are all reduced or all not, and the indices of the reduced runs.

    Axes of size 1 are skipped. Digits within a level follow the order of axes, so a run has the groups of a single axis
    of its product.
    """
    alike = groupby((a for a, size in enumerate(sizes) if size > 1), lambda axis: axis in reduced)
    runs = [(is_reduced, tuple(run)) for is_reduced, run in alike]
    return tuple(run for _, run in runs), tuple(i for i, (is_reduced, _) in enumerate(runs) if is_reduced)


def _table(machine: Machine, sizes: Row, demand: Demand, profile: str | None) -> tuple[tuple[Run, ...], Table]:
    """The runs of a demand and T[k]: the time (ns) of its optimal program for every matrix of the runs."""
    runs, reduced = merged(sizes, demand.axes)
    found = arrangements(machine.hierarchy, [prod(sizes[a] for a in run) for run in runs] or [1])
    return runs, {p.matrix: _best(machine, p, reduced, demand.size_bytes, profile).ns for p in found}


def _choose(model: CpModel, e: Exponents, cost: Any, levels: Row, runs: tuple[Run, ...], table: Table) -> None:
    """Adds (3) for one reduction."""
    primes = _primes(prod(levels))
    b = []
    for p in primes:
        for i, run in enumerate(runs):
            for l, level in enumerate(levels):
                b.append(model.new_int_var(0, _exponent(p, level), f"{cost.name} b[{p},{i},{l}]"))
                model.add(b[-1] == sum(e[p, a, l] for a in run))
    rows = [(*(_exponent(p, f) for p in primes for row in matrix for f in row), ns) for matrix, ns in table.items()]
    model.add_allowed_assignments([*b, cost], rows)


def _best(machine: Machine, placement: Placement, axes: Sequence[int], size_bytes: int, profile: str | None) -> Best:
    return optimal(machine, Reduction(placement, tuple(axes)), size_bytes, profile=profile)


# Arithmetic


def _primes(n: int) -> list[int]:
    return sorted({*prime_factors(n)})


def _exponent(p: int, n: int) -> int:
    """The exponent of p in n."""
    return prime_factors(n).count(p)


def _matrix(values: dict[tuple[int, int, int], int], levels: Row, axes: Row) -> tuple[Row, ...]:
    """The parallelism matrix with these exponents."""
    primes = _primes(prod(levels))
    return tuple(
        tuple(prod(p ** values[p, i, l] for p in primes) for l in range(len(levels))) for i in range(len(axes))
    )
