"""The exact optimum of an RVD search: CP-SAT over layers of digit roles, as a check of the shortest paths.

Devices form a grid of digits q (`formulation.rvd.roles`); one side starts at the source, the other, backward, at the
target. A side has layers l = 0 .. L with at most one transition between consecutive layers. Per side:

    x[l,q,ρ] ∈ {0,1}    digit q has role ρ: R, V or a dim
    π[l,q] ∈ ℕ          its rank among the digits of its dim, outermost least
    y[l,k] ∈ {0,1}      transition k = (from a, to b, digits M) is taken, k = 0: none
    s[i] ∈ {0,1}        the last layer is state i
    min  Σ c[l] + j     (ns), both sides and their join
    s.t. (1) Σ_ρ x[l,q,ρ] = 1                                            ∀ l, q
         (2) Σ_k y[l,k] = 1, and k = 0 is followed by k = 0              ∀ l
         (3) y[l,k] → x[l,q,a], x[l+1,q,b] for q in M; the rest keeps its role
         (4) y[l,k], a a dim → π[l,q] > π[l,q'] for q in M, q' outside M in dim a
         (5) y[l,k], b a dim → π[l+1,q] > π[l+1,q'] for q in M, q' in dim b before; an all-to-all keeps M's order
         (6) a digit that does not move keeps π
         (7) (k, parts in all dims, c[l]) ∈ T                            ∀ l   prices of `formulation.rvd.prices`
         (8) the digits of a dim divide it                               ∀ l
         (9) Σ_i s[i] = 1, s[i] → the roles and orders of state i
        (10) (i, i', j) ∈ J: the price of a crossing, 0 for equal states

Nothing is pruned: transitions into V are included and all pairs of states are priced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...formulation.rvd.crossing import crossed, crossing
from ...formulation.rvd.grid import Grid, grids
from ...formulation.rvd.prices import Payload, prices_on
from ...formulation.rvd.roles import BY_OUTPUT, COLLECTIVES, KINDS, D, Roles, links
from ...formulation.rvd.search import send_receive
from ...formulation.rvd.state import State
from ...model.machine.machine import Machine
from ..protocol import NO_LIMITS, Limits, Status

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least cost over paths of at most `layers` transitions per side, with a proved bound."""

    status: Status
    cost_ns: int
    bound_ns: int
    layers: int
    seconds: float


class DigitMove(NamedTuple):
    """A move of digits between roles, in search direction; `kind`: that of the step in the path."""

    source: int
    target: int
    digits: tuple[int, ...]
    kind: str


def optimum(
    source: State,
    target: State,
    shape: tuple[int, ...],
    itemsize: int,
    machine: Machine,
    layers: int | None = None,
    limits: Limits = NO_LIMITS,
) -> Optimum:
    """The cost of the cheapest path with at most `layers` transitions per side, by default one more than digits.

    Direct sends from source to target count as a path. PartitaError: as for `search`.
    """
    start = time.perf_counter()
    direct = send_receive(source, target, shape, itemsize, machine).cost_ns
    a, b = source.canonical(), target.canonical()
    tensor = Payload(shape, itemsize, prices_on(machine))
    best, bound, status, most = direct, direct, Status.OPTIMAL, 0
    for one, other in product(grids(a, tensor.prices), grids(b, tensor.prices)):
        count = layers or 1 + max(one.devices.ndim, other.devices.ndim)
        left = limits.seconds - (time.perf_counter() - start)
        found, proved = _solve((one, other), tensor, count, a.devices == b.devices, direct, left)
        best, bound, most = min(best, found), min(bound, proved), max(most, count)
        status = Status.FEASIBLE if proved < found else status
    return Optimum(status, best, bound, most, time.perf_counter() - start)


def _solve(
    ends: tuple[Grid, Grid], tensor: Payload, layers: int, one_group: bool, most_ns: int, seconds: float
) -> tuple[int, int]:
    """The optimum over a pair of grids and a proved bound; `most_ns` if nothing is cheaper."""
    from ortools.sat.python import cp_model

    start, end = ends
    model = cp_model.CpModel()
    sides = [_Side(model, grid, tensor, layers, back) for grid, back in ((start, False), (end, True))]
    rows = _joins(start, sides[0].states, end, sides[1].states, tensor, one_group)
    # (10)
    join = model.new_int_var(0, most_ns, "j")
    model.add_allowed_assignments([sides[0].state, sides[1].state, join], [row for row in rows if row[2] <= most_ns])
    total = sum(sides[0].costs) + sum(sides[1].costs) + join
    model.add(total <= most_ns)
    model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = max(0.0, min(seconds, 1e6))
    answer = solver.solve(model)
    if answer == cp_model.INFEASIBLE:
        return most_ns, most_ns
    if answer == cp_model.OPTIMAL:
        return round(solver.objective_value), round(solver.objective_value)
    found = round(solver.objective_value) if answer == cp_model.FEASIBLE else most_ns
    return found, max(0, round(solver.best_objective_bound))


def _joins(
    start: Grid, sources: list[Roles], end: Grid, targets: list[Roles], tensor: Payload, one_group: bool
) -> list[tuple[int, int, int]]:
    """(i, i', ns) of all pairs of states that a crossing joins; 0 ns for equal states."""
    rows = []
    theirs = [(end.state(roles), end.counts(roles)) for roles in targets]
    for i, roles in enumerate(sources):
        ours, counts = start.state(roles), start.counts(roles)
        for k, (state, other) in enumerate(theirs):
            kind = crossing(counts, other, tensor)
            if kind is not None:
                ns = 0 if one_group and ours == state else crossed(ours, state, tensor, kind.kind).cost_ns
                rows.append((i, k, ns))
    return rows


class _Side:
    """Variables and constraints (1) to (9) of one side; `state` is the number of the state in the last layer."""

    def __init__(self, model: CpModel, grid: Grid, tensor: Payload, layers: int, backward: bool) -> None:
        self.model, self.grid, self.tensor, self.backward = model, grid, tensor, backward
        self.digits, self.roles = range(grid.devices.ndim), range(len(grid.start))
        self.states = [roles for roles in every_roles(len(self.digits), len(self.roles)) if self._divides(roles)]
        masks = [m for size in range(1, len(self.digits) + 1) for m in combinations(self.digits, size)]
        moves = links(len(self.roles), frozenset(KINDS), backward)
        self.choices = [DigitMove(link.source, link.target, mask, link.kind) for link in moves for mask in masks]
        top = (layers + 1) * max(len(self.digits), 1)
        self.x = [
            [[model.new_bool_var(f"x[{l},{q},{r}]") for r in self.roles] for q in self.digits]
            for l in range(layers + 1)
        ]
        self.rank = [[model.new_int_var(0, top, f"π[{l},{q}]") for q in self.digits] for l in range(layers + 1)]
        self.y = [[model.new_bool_var(f"y[{l},{k}]") for k in range(len(self.choices) + 1)] for l in range(layers)]
        self.costs = [self._layer(l) for l in range(layers)]
        for row in (q for layer in self.x for q in layer):
            model.add_exactly_one(row)  # (1)
        for role, digits in enumerate(grid.start):
            for place, q in enumerate(digits):
                model.add(self.x[0][q][role] == 1)
                model.add(self.rank[0][q] == place)
        self.state = self._last()

    def _divides(self, roles: Roles) -> bool:
        counts = self.grid.counts(roles)[D:]
        return all(size % parts == 0 for size, parts in zip(self.tensor.shape, counts, strict=True))

    def _layer(self, l: int) -> Any:
        """Adds (2) to (8) between layers l and l + 1; returns the cost of the transition."""
        model, x, rank, y = self.model, self.x[l : l + 2], self.rank[l : l + 2], self.y[l]
        model.add_exactly_one(y)  # (2)
        if l:
            model.add_implication(self.y[l - 1][0], y[0])
        for k, choice in enumerate(self.choices, 1):
            self._transition(choice, x, rank, y[k])
        for q in self.digits:
            moves = [y[k] for k, choice in enumerate(self.choices, 1) if q in choice.digits]
            for role in self.roles:  # (3), the rest
                model.add(x[0][q][role] == x[1][q][role]).only_enforce_if([m.negated() for m in moves])
            model.add(rank[0][q] == rank[1][q]).only_enforce_if([m.negated() for m in moves])  # (6)
        for dim, size in enumerate(self.tensor.shape):  # (8)
            for mask in product((0, 1), repeat=len(self.digits)):
                if size % self._product(mask):
                    model.add_bool_or([x[1][q][D + dim].negated() for q in self.digits if mask[q]])
        return self._cost(l)

    def _transition(self, choice: DigitMove, x: list[Any], rank: list[Any], taken: Any) -> None:
        a, b, digits, _ = choice
        model = self.model
        for q in digits:
            model.add_implication(taken, x[0][q][a])  # (3)
            model.add_implication(taken, x[1][q][b])
            for other in self.digits:
                if other in digits:
                    continue
                if a >= D:
                    model.add(rank[0][q] > rank[0][other]).only_enforce_if(taken, x[0][other][a])  # (4)
                if b >= D:
                    model.add(rank[1][q] > rank[1][other]).only_enforce_if(taken, x[0][other][b])  # (5)
        for q, other in combinations(digits, 2):
            if a >= D and b >= D:
                before, after = (model.new_bool_var("") for _ in range(2))
                for order, places in ((before, rank[0]), (after, rank[1])):
                    model.add(places[q] <= places[other]).only_enforce_if(order)
                    model.add(places[q] >= places[other]).only_enforce_if(order.negated())
                model.add(before == after).only_enforce_if(taken)
            elif b >= D:
                model.add(rank[1][q] != rank[1][other]).only_enforce_if(taken)

    def _product(self, mask: tuple[int, ...]) -> int:
        return prod(size for size, inside in zip(self.grid.devices.shape, mask, strict=True) if inside)

    def _cost(self, l: int) -> Any:
        """(7): the price of the transition, by the parts before it or, for `BY_OUTPUT`, after it."""
        model, tensor = self.model, self.tensor
        masks = list(product((0, 1), repeat=len(self.digits)))
        split = [[model.new_bool_var(f"d[{l},{q}]") for q in self.digits] for _ in range(2)]
        parts = []
        for layer, of_layer in enumerate(split):
            for q in self.digits:
                model.add(sum(self.x[l + layer][q][D:]) == of_layer[q])
            parts.append(model.new_int_var(1, self.grid.devices.size, f"parts[{l + layer}]"))
            model.add_allowed_assignments([*of_layer, parts[-1]], [(*mask, self._product(mask)) for mask in masks])
        whole = prod(tensor.shape) * tensor.itemsize
        sizes = sorted({self._product(mask) for mask in masks})
        cost = model.new_int_var(0, 2**53, f"c[{l}]")
        for k, choice in enumerate(self.choices, 1):
            # Backward, the input of a path step is the output of the search move.
            where = parts[(choice.kind in BY_OUTPUT) != self.backward]
            rows = [(size, self._price(choice, whole // size)) for size in sizes]
            model.add_allowed_assignments([where, cost], rows).only_enforce_if(self.y[l][k])
        model.add(cost == 0).only_enforce_if(self.y[l][0])
        return cost

    def _price(self, choice: DigitMove, size_bytes: int) -> int:
        prices = self.tensor.prices
        if choice.kind not in COLLECTIVES:
            return prices.local(size_bytes)
        return prices.collective(COLLECTIVES[choice.kind], self.grid.groups(choice.digits)).ns(size_bytes)

    def _last(self) -> Any:
        """Adds (9); returns the number of the last state."""
        model, x, rank = self.model, self.x[-1], self.rank[-1]
        number = model.new_int_var(0, len(self.states) - 1, "state")
        chosen = [model.new_bool_var(f"s[{i}]") for i in range(len(self.states))]
        model.add_exactly_one(chosen)
        for i, roles in enumerate(self.states):
            model.add(number == i).only_enforce_if(chosen[i])
            for role, digits in enumerate(roles):
                for q in digits:
                    model.add_implication(chosen[i], x[q][role])
                for outer, inner in pairwise(digits if role >= D else ()):
                    model.add(rank[outer] < rank[inner]).only_enforce_if(chosen[i])
        return number


def every_roles(digits: int, roles: int) -> Iterator[Roles]:
    """Every assignment of digits to roles: sets for R and V, sequences for dims."""
    for given in product(range(roles), repeat=digits):
        held = [tuple(q for q in range(digits) if given[q] == role) for role in range(roles)]
        yield from product(*([one] if role < D else list(permutations(one)) for role, one in enumerate(held)))
