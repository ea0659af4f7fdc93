"""What networks of parts of one model share: the options of equal nodes, prices of conversions, tables.

Everything is cached by what it depends on, so a network does not depend on what was encoded before it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from ...model.graph.pcg import PCG
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine
from ..network.network import SwitchTables
from ..placement.placement import Placement
from ..strategies.graph_options import OptionsMemo
from ..strategies.operand_cost import EdgeTables
from ..strategies.transitions import Transitions
from ..weights.storage import Storage

TransitionKey: TypeAlias = tuple[Machine, Placement, bool, CollectivePrice | None]
"""The arguments of `Transitions`."""


@dataclass
class PlacementTables:
    """What was made for one placement, number of micro-batches, and so on.

    `numbers` are those that `options` gives the nodes of whole graphs. `tables` holds the tables of variables and
    edges, then those of switches, for each (micro-batches in flight, modes of segments).
    """

    transitions: Transitions
    options: OptionsMemo = field(default_factory=OptionsMemo)
    numbers: dict[PCG, dict[int, int]] = field(default_factory=dict)
    storages: dict[object, Storage] = field(default_factory=dict)
    tables: dict[tuple[int, tuple[str, ...]], tuple[dict[object, EdgeTables], dict[object, SwitchTables]]] = field(
        default_factory=dict
    )


class SharedTables:
    """The tables of the stages of a model, for each placement, batch, and so on."""

    def __init__(self) -> None:
        self._found: dict[Hashable, PlacementTables] = {}

    def of(self, transitions: TransitionKey, others: Hashable, both_ways: bool = False) -> PlacementTables:
        """The tables made so far; `others` is what else they depend on.

        `both_ways`: the first axis is that of the two directions of a pipeline.
        """
        key = transitions, others, both_ways
        if key not in self._found:
            self._found[key] = PlacementTables(Transitions(*transitions), OptionsMemo(both_ways=both_ways))
        return self._found[key]
