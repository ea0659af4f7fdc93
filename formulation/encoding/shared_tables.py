"""What networks of parts of one model have in common: the options of equal nodes, prices of conversions, tables.

Everything is kept by what it is made of, so a network is the same whether or not others were made before.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from ...model.graph.pcg import PCG
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine
from ..network.network import SwitchTables
from ..placement.placement import Placement
from ..strategies.operand_cost import EdgeTables
from ..strategies.operator_options import OperatorOptions
from ..strategies.transitions import Transitions
from ..weights.storage import Storage


@dataclass
class PlacementTables:
    """What was made for one placement, number of micro-batches and so on; see `GraphOptions` and `encode`.

    `numbers` are those of the nodes of whole graphs, `tables` are of variables and edges, and of their switches, by how
    many micro-batches are in flight and the modes of segments.
    """

    transitions: Transitions
    found: list[OperatorOptions] = field(default_factory=list)
    kinds: dict[object, int] = field(default_factory=dict)
    numbers: dict[PCG, dict[int, int]] = field(default_factory=dict)
    storages: dict[object, Storage] = field(default_factory=dict)
    tables: dict[tuple[int, tuple[str, ...]], tuple[dict[object, EdgeTables], dict[object, SwitchTables]]] = field(
        default_factory=dict
    )


class SharedTables:
    """Shared by encodes of stages of a model: each takes what others made for the same placement, batch and so on."""

    def __init__(self) -> None:
        self._made: dict[Hashable, PlacementTables] = {}

    def made(
        self,
        machine: Machine,
        placement: Placement,
        flat: bool,
        transfer: CollectivePrice | None,
        others: Hashable,
    ) -> PlacementTables:
        """What there is for all this; `others`: what else tables depend on."""
        key = machine, placement, flat, transfer, others
        if key not in self._made:
            self._made[key] = PlacementTables(Transitions(machine, placement, flat, transfer))
        return self._made[key]
