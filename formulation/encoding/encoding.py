"""A cost network together with what its variables mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.precision import Precision
from ..bundles.branch_options import BundledOption
from ..network.network import Network
from ..placement.placement import Placement
from ..strategies.operator_options import OperatorOptions
from ..strategies.tensor_classes import Classes
from ..strategies.transitions import Table
from ..weights.storage import Storage
from .overlap import windows_of_layer


@dataclass(frozen=True)
class Encoding:
    """A network and what its variables mean; `codegen.decode` reads an assignment through it.

    `operators`, `weights` and `hubs` map nodes to their variable and its options. The options of a variable are its
    ordinary ones, then, if it is in `optional`, one for "unused", then those of bundles, described in `bundled`.
    `alternatives` maps a tensor with several alternatives to the variable that chooses among them. `recompute` maps a
    segment to its recomputation variable, whose option m is `recompute_modes[m]`. `together`: see `weights_together`.
    """

    pcg: PCG
    machine: Machine
    placement: Placement
    micro_batches: int
    precision: Precision
    optimizer: str
    network: Network
    classes: Classes
    operators: Mapping[int, tuple[int, OperatorOptions]]
    weights: Mapping[int, tuple[int, Storage]]
    hubs: Mapping[int, tuple[int, Table]]
    tables: Mapping[int, Table]
    bundled: Mapping[int, tuple[BundledOption, ...]]
    alternatives: Mapping[int, int]
    optional: frozenset[int]
    recompute: Mapping[str, int]
    recompute_modes: tuple[str, ...]
    together: Mapping[str, int]

    def computed_by(self, assignment: Sequence[int], node: int) -> int | None:
        """The alternative that computes a tensor; None if nothing needs the tensor."""
        if node not in self.alternatives:
            return None if self.unused(assignment, self.operators[node][0]) else node
        members, number = self.pcg.members[node], self.option(assignment, self.alternatives[node])[0]
        return members[number] if number < len(members) else None

    def unused(self, assignment: Sequence[int], variable: int) -> bool:
        """True if the assignment leaves what a variable decides on out of the program."""
        last = len(self.network.variables[variable].cost) - len(self.bundled.get(variable, ())) - 1
        return variable in self.optional and self.option(assignment, variable)[0] == last

    @property
    def backward_windows(self) -> tuple[int, ...]:
        """The windows of layers' backwards, those of the last micro-batch included."""
        each = windows_of_layer(self.micro_batches)
        return tuple(w for w in range(len(self.network.windows)) if w % each)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a device that no choice changes; the network's capacity is what they leave."""
        return self.machine.device.capacity_bytes - self.network.capacities[0]

    def option(self, assignment: Sequence[int], variable: int) -> tuple[int, BundledOption | None]:
        """The ordinary option that a variable takes, and the bundled option that stands for it, if any."""
        option, further = assignment[variable], self.bundled.get(variable, ())
        ordinary = len(self.network.variables[variable].cost) - len(further)
        if option < ordinary:
            return option, None
        placed = further[option - ordinary]
        return placed.option, placed

    def recomputed(self, assignment: Sequence[int]) -> dict[str, str]:
        """The recomputed segments, each with its mode."""
        found = {name: self.recompute_modes[assignment[variable]] for name, variable in self.recompute.items()}
        return {name: mode for name, mode in found.items() if mode != "none"}

    def settled(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment without hubs kept for segments that are not recomputed: less memory at equal cost."""
        result, modes = list(assignment), set(self.recompute.values())
        wanted = {e.v for e in self.network.edges if e.u in modes and self.recompute_modes[assignment[e.u]] != "none"}
        decided = {e.v for e in self.network.edges if e.u in modes}
        for hub, table in self.hubs.values():
            layouts = len(table.codes)
            if hub in decided - wanted and layouts <= result[hub] < 2 * layouts:
                result[hub] -= layouts
        return tuple(result)

    @cached_property
    def options(self) -> int:
        """Number of options, over all variables."""
        return sum(len(v.cost) for v in self.network.variables)
