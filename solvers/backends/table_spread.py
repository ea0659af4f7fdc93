"""Spreading the columns of embedding tables over the coordinates of an axis: CP-SAT over counts of equal units.

Each table t of r[t] rows is cut into K units of equal width; x[t,c] units of table t lie at coordinate c:

    x[t,c] ∈ {0 .. K}
    (1) Σ_c x[t,c] = K                        ∀ t
    (2) 1 <= Σ_t x[t,c] <= U                  ∀ c      time: columns looked up and sent
    (3) Σ_t r[t] x[t,c] <= M                  ∀ c      memory
    (4) m[c] >= m[c+1]                        breaks the symmetry of coordinates

Lexicographic minimum: U = ⌈TK/n⌉, always attained; then M; then the number of pieces, the pairs (t, c) with
x[t,c] > 0, for which M may grow by the share `SLACK`. Tables of equally many rows are one t with more units. The width
of units is tried from `unit_widths`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

from ...formulation.special.heuristic_spread import fullest, heuristic_counts
from ...formulation.special.table_spread import (
    NEAR,
    TableSpread,
    fewest_columns,
    fewest_elements,
    of_counts,
    unit_widths,
)
from ..protocol import Status

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver

GAP = 0.002
"""Relative gap at which the minimization of memory stops."""
SLACK = 0.005
"""Share of memory traded for fewer pieces."""
EFFORT = 0.2
"""CP-SAT's deterministic time limit per solve: about seconds, but reproducible."""
SEED = 1


@dataclass(frozen=True)
class Solved:
    """A spread, and lower bounds on the columns and elements of its fullest coordinate."""

    spread: TableSpread
    columns: int
    elements: int
    status: Status
    seconds: float

    @property
    def gap(self) -> float:
        """The larger relative gap of columns and elements."""
        largest = self.spread.largest
        return max(1 - self.columns / largest.columns, 1 - self.elements / largest.elements)


@lru_cache(maxsize=256)
def balanced(rows: tuple[int, ...], width: int, ranks: int, row: int = 1) -> TableSpread | None:
    """The spread of tables of these rows and `width` columns over `ranks` coordinates; None if columns are too few.

    A look-up moves a multiple of `row` columns.
    """
    solved = solve(rows, width, ranks, row)
    return None if solved is None else solved.spread


def solve(rows: tuple[int, ...], width: int, ranks: int, row: int = 1) -> Solved | None:
    """As `balanced`, with lower bounds for units of the widths that are tried."""
    start, best, bound = time.perf_counter(), None, 0
    widths, least = unit_widths(len(rows), width, ranks, row), fewest_elements(rows, width, ranks)
    columns = min((fewest_columns(len(rows), width, ranks, unit) for unit in widths), default=0)
    for unit in widths:
        counts, of_unit = heuristic_counts(rows, width // unit, ranks), least
        if unit * fullest(rows, counts) > NEAR * least:
            memory = _Model(rows, width // unit, ranks)
            memory.minimize_memory(counts)
            counts, of_unit = memory.counts, max(least, unit * memory.bound)
        if best is None or unit * fullest(rows, counts) < best[0]:
            best, bound = (unit * fullest(rows, counts), unit, counts), of_unit
        if best[0] <= NEAR * least:
            break
    if best is None:
        return None
    most, unit, counts = best
    pieces = _Model(rows, width // unit, ranks)
    pieces.minimize_pieces(counts, int(max(most, min(most * (1 + SLACK), NEAR * least)) // unit))
    spread = of_counts(rows, width, pieces.counts)
    proved = spread.largest.elements <= bound and spread.largest.columns <= columns
    seconds = time.perf_counter() - start
    return Solved(spread, columns, bound, Status.OPTIMAL if proved else Status.FEASIBLE, seconds)


def _held(rows: Sequence[int], counts: Sequence[int]) -> int:
    return sum(count * each for count, each in zip(rows, counts, strict=True))


class _Model:
    """Constraints (1) to (4); the solution is `counts[c][t]`, with a lower `bound`."""

    def __init__(self, rows: tuple[int, ...], units: int, ranks: int) -> None:
        from ortools.sat.python import cp_model

        self.rows, self.ranks = rows, ranks
        self.kinds = sorted(set(rows), reverse=True)
        self.of_kind = {kind: [t for t, count in enumerate(rows) if count == kind] for kind in self.kinds}
        self.units = units
        self.model: CpModel = cp_model.CpModel()
        self.solver: CpSolver = cp_model.CpSolver()
        self.solver.parameters.num_workers = 1  # reproducible
        self.solver.parameters.random_seed = SEED
        self.solver.parameters.max_deterministic_time = EFFORT
        self.counts: list[list[int]] = []
        self.bound = 0
        room = -(-len(rows) * units // ranks)
        # Variables
        self.x = {
            (kind, c): self.model.new_int_var(0, min(room, units * len(self.of_kind[kind])), f"x[{kind},{c}]")
            for kind in self.kinds
            for c in range(ranks)
        }
        # Constraints
        for kind in self.kinds:  # (1)
            self.model.add(sum(self.x[kind, c] for c in range(ranks)) == units * len(self.of_kind[kind]))
        for c in range(ranks):  # (2)
            self.model.add_linear_constraint(sum(self.x[kind, c] for kind in self.kinds), 1, room)
        self.held = [sum(kind * self.x[kind, c] for kind in self.kinds) for c in range(ranks)]
        for c in range(ranks - 1):  # (4)
            self.model.add(self.held[c] >= self.held[c + 1])

    def minimize_memory(self, hint: Sequence[Sequence[int]]) -> None:
        """Minimize M of (3)."""
        most = max(_held(self.rows, own) for own in hint)
        memory = self.model.new_int_var(-(-sum(self.rows) * self.units // self.ranks), most, "M")
        self.model.add(self.held[0] <= memory)  # (3), by (4)
        self.model.minimize(memory)
        self._hint(hint)
        self.model.add_hint(memory, most)
        self.solver.parameters.relative_gap_limit = GAP
        self._solve()

    def minimize_pieces(self, hint: Sequence[Sequence[int]], memory: int) -> None:
        """Minimize the number of (t, c) with x[t,c] > 0 within `memory`."""
        self.model.add(self.held[0] <= memory)
        used: dict[tuple[int, int], Any] = {}
        for (kind, c), x in self.x.items():
            tables = len(self.of_kind[kind])
            used[kind, c] = self.model.new_int_var(0, tables, f"used[{kind},{c}]")
            self.model.add(x <= self.units * used[kind, c])
        self.model.minimize(sum(used.values()))
        self._hint(hint)
        self._solve()

    def _hint(self, counts: Sequence[Sequence[int]]) -> None:
        self.counts = [list(own) for own in counts]
        order = sorted(counts, key=lambda own: -_held(self.rows, own))
        for c, own in enumerate(order):
            for kind, tables in self.of_kind.items():
                self.model.add_hint(self.x[kind, c], sum(own[t] for t in tables))

    def _solve(self) -> None:
        from ortools.sat.python import cp_model

        answer = self.solver.solve(self.model)
        if answer not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return
        self.bound = ceil(self.solver.best_objective_bound - 1e-6)
        self.counts = [[0] * len(self.rows) for _ in range(self.ranks)]
        for kind, tables in self.of_kind.items():  # table by table, coordinate by coordinate
            left = dict.fromkeys(tables, self.units)
            for c in range(self.ranks):
                count = self.solver.value(self.x[kind, c])
                for t in tables:
                    taken = min(left[t], count)
                    left[t], count = left[t] - taken, count - taken
                    self.counts[c][t] = taken
