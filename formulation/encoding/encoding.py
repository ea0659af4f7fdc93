"""A cost network together with what its variables mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.precision import Precision
from ..bundles.branch_options import Placed
from ..network.network import Network
from ..placement.placement import Placement
from ..strategies.operator_options import Domain
from ..strategies.tensor_classes import Classes
from ..strategies.transitions import Table
from ..weights.storage import Storage


@dataclass(frozen=True)
class Encoding:
    """A network and what its variables mean; `codegen.decode` reads an assignment through it.

    `operators`, `weights` and `hubs` name the variables of nodes, with their options; `placed` says what further
    options stand for. Of nodes that can be computed in several ways, `modes` names the variable that says which is
    taken. The last option of an `optional` variable (before those that are placed) is to be unused. `recompute` names
    the variables of segments that may run again: option m is the m-th of `recompute_modes`.
    """

    pcg: PCG
    machine: Machine
    placement: Placement
    micro_batches: int
    precision: Precision
    optimizer: str
    network: Network
    classes: Classes
    operators: Mapping[int, tuple[int, Domain]]
    weights: Mapping[int, tuple[int, Storage]]
    hubs: Mapping[int, tuple[int, Table]]
    tables: Mapping[int, Table]
    placed: Mapping[int, tuple[Placed, ...]]
    modes: Mapping[int, int]
    optional: frozenset[int]
    recompute: Mapping[str, int]
    recompute_modes: tuple[str, ...]

    def way(self, assignment: Sequence[int], node: int) -> int | None:
        """The node that computes a tensor; None where nothing does, since nothing needs it."""
        if node not in self.modes:
            return None if self.unused(assignment, self.operators[node][0]) else node
        ways, number = self.pcg.members[node], self.option(assignment, self.modes[node])[0]
        return ways[number] if number < len(ways) else None

    def unused(self, assignment: Sequence[int], variable: int) -> bool:
        """Whether what a variable stands for is not needed."""
        last = len(self.network.variables[variable].cost) - len(self.placed.get(variable, ())) - 1
        return variable in self.optional and self.option(assignment, variable)[0] == last

    def option(self, assignment: Sequence[int], variable: int) -> tuple[int, Placed | None]:
        """The option of a variable, and the bundle that places it; then the option that this one stands for."""
        option, further = assignment[variable], self.placed.get(variable, ())
        ordinary = len(self.network.variables[variable].cost) - len(further)
        if option < ordinary:
            return option, None
        placed = further[option - ordinary]
        return placed.option, placed

    def recomputed(self, assignment: Sequence[int]) -> dict[str, str]:
        """The segments that run again, each with its mode."""
        found = {name: self.recompute_modes[assignment[variable]] for name, variable in self.recompute.items()}
        return {name: mode for name, mode in found.items() if mode != "none"}

    def settled(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment in which no hub is kept for segments of which none runs again: less memory, the same cost."""
        result, modes = list(assignment), set(self.recompute.values())
        wanted = {e.v for e in self.network.edges if e.u in modes and self.recompute_modes[assignment[e.u]] != "none"}
        asked = {e.v for e in self.network.edges if e.u in modes}
        for hub, table in self.hubs.values():
            if hub in asked - wanted and result[hub] >= len(table.codes):
                result[hub] -= len(table.codes)
        return tuple(result)

    @cached_property
    def options(self) -> int:
        """Options of all variables together."""
        return sum(len(v.cost) for v in self.network.variables)
