"""The state that all passes of an encoding share: variables, edges, cached tables, and what variables mean."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from ...model.machine.roofline import Roofline
from ..bundles.branch_options import BundledOption
from ..network.chains import Position
from ..network.network import Edge, Switch, Variable, Window
from ..placement.placement import Placement
from ..strategies.alternatives import Alternatives
from ..strategies.graph_options import GraphOptions, OperatorOptions
from ..strategies.operand_cost import EdgeTables, OperandCosts
from ..strategies.tensor_classes import Use, classes, find_cuts, find_cuts_beside, find_pairs, kept_between_passes
from ..strategies.transitions import Codes, Table
from ..weights.storage import Storage
from .encoding_options import EncodingOptions, StageContext
from .hub_retention import HubRetention
from .overlap import latency_shares, least_shares, weights_together
from .recomputable_segments import RecomputableSegments, possible_modes
from .shared_tables import PlacementTables, SharedTables

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What an edge stands for: the tensor class `base` goes to one reader (`use`), or to a hub (None).

    `source` is what it comes from: an "operator", a "weight" or a "hub". `key` is that of the edge's tables.
    """

    base: int
    source: str
    use: Use | None
    key: object


class NetworkBuilder:
    """A network under construction.

    `operators`, `weights` and `hubs` map nodes to their variable and its options; `alternatives` maps tensors with
    several alternatives to the variable that chooses one. `tables` caches tables by what they depend on: equal parts of
    a network share table objects, by which chains are found, and stages of one model share all of them.
    """

    def __init__(
        self,
        pcg: PCG,
        machine: Machine,
        placement: Placement,
        *,
        micro_batches: int,
        dtype: str,
        optimizer: str,
        options: EncodingOptions,
        stage: StageContext,
    ) -> None:
        self.pcg, self.machine, self.placement = pcg, machine, placement
        self.micro_batches, self.optimizer, self.stage = micro_batches, optimizer, stage
        self.options = replace(options, recompute=possible_modes(options.recompute, pcg.batch))
        self.dtype, self.precision = dtype, precision(dtype)
        self.roofline = Roofline(machine, self.precision.compute, options.space.compile)
        self.classes = classes(self.pcg)
        self.between_passes = kept_between_passes(self.pcg, self.stage.between_passes)
        self._share_tables()
        itemsize = self.precision.itemsize("float32")
        self.together = weights_together(pcg, self.classes, options.space, itemsize, alone=stage.gathers_alone)
        shares = latency_shares(pcg, self.together)
        if stage.inside and options.space.overlap and not stage.gathers_alone:
            shares |= least_shares(pcg, itemsize)
        self.costs = OperandCosts(self.node_options, self.micro_batches, self.classes, self.stage.in_flight, shares)
        self.sparse = self.costs.sparse
        self.choices, self.cuts = Alternatives(self.pcg, self.classes), find_cuts(self.pcg, self.classes)
        self.beside, self.pairs = find_cuts_beside(self.pcg, self.classes), find_pairs(self.pcg, self.classes)
        self.segments = RecomputableSegments(self.pcg, self.classes, self.costs, self.options, self._costs_of_part)
        self.retention = HubRetention(self.pcg, self.costs, self.choices, self.segments)
        self.variables: list[Variable] = []
        self.edges: list[Edge] = []
        self.positions: list[Position] = []
        self.conversions: dict[int, Conversion] = {}
        self.constants: dict[int, int] = {}
        self.operators: dict[int, tuple[int, OperatorOptions]] = {}
        self.weights: dict[int, tuple[int, Storage]] = {}
        self.hubs: dict[int, tuple[int, Table]] = {}
        self.alternatives: dict[int, int] = {}
        self.optional: frozenset[int] = frozenset()
        self.bundled: Mapping[int, tuple[BundledOption, ...]] = {}
        self.switches: tuple[Switch, ...] = ()
        self.windows: tuple[Window, ...] = ()
        self._by_content: dict[Hashable, Array] = {}

    def _share_tables(self) -> None:
        """Take the tables of other stages."""
        stage = self.stage
        self.shared = stage.shared or SharedTables()
        found = self._tables_of(self.pcg.batch, self.micro_batches)
        modes = stage.in_flight, self.options.recompute
        self.tables, self.mode_tables = found.tables.setdefault(modes, ({}, {}))
        self.storages, self.transitions = found.storages, found.transitions
        self.node_options = self._options_of(self.pcg, found)

    def _tables_of(self, batch: int, micro_batches: int) -> PlacementTables:
        stage = self.stage
        key = (
            micro_batches, self.precision, self.optimizer, self.options.spread_tables, batch,
            stage.weight_versions, stage.deferred_weight_gradients, stage.delays_messages, self.options.space.overlap,
            self.options.space.compile,
        )  # fmt: skip
        return self.shared.of((self.machine, self.placement, self.options.flat, stage.transfer), key, stage.both_ways)

    def _options_of(self, pcg: PCG, found: PlacementTables) -> GraphOptions:
        part = origin(pcg).part
        return GraphOptions(
            pcg,
            found.transitions,
            self.roofline,
            self.precision,
            self.options.space,
            self.options.spread_tables,
            memo=found.options,
            numbers_of_whole=found.numbers.setdefault(part[0], {}) if part else {},
        )

    def _costs_of_part(self, part: PCG, micro_batches: int) -> OperandCosts:
        """The costs of the same graph at another batch."""
        options = self._options_of(part, self._tables_of(part.batch, micro_batches))
        return OperandCosts(options, micro_batches, self.classes)

    @property
    def offloads(self) -> bool:
        """True if optimizer states may be in the host's memory."""
        return self.options.space.offloads(self.machine)

    def readers(self, node: int) -> tuple[int, ...]:
        """A node and the nodes of passes without gradient that repeat it."""
        return (node, *self.classes.passes.get(node, ()))

    def operands(self, node: int) -> Iterator[tuple[int, int, int]]:
        """(tensor class, reader, operand) of every read of a node, or of its repetitions, whose layout is decided."""
        for reader in self.readers(node):
            for operand in range(len(self.node_options.of(node).inputs)):
                if self.costs.kind(reader, operand) == "decided":
                    yield self.costs.source(reader, operand), reader, operand

    def table(self, key: object, make: Callable[[], EdgeTables]) -> EdgeTables:
        """The tables of this key, made on first use."""
        return self.tables[self.keep(key, make)]

    def keep(self, key: object, make: Callable[[], EdgeTables]) -> object:
        """Make the tables of a key unless they exist; returns the key."""
        if key not in self.tables:
            self.tables[key] = make()
        return key

    def interned(self, table: Array) -> Array:
        """The first table of this content: equal parts share their tables."""
        return self._by_content.setdefault((table.shape, blake2b(table.tobytes()).digest()), table)

    def add_variable(self, name: str, key: object, position: Position) -> int:
        """Append a variable with the tables of `key`."""
        cost, use = self.tables[key]
        assert use is not None
        self.variables.append(Variable(name, cost, use))
        self.positions.append(position)
        return len(self.variables) - 1

    def add_free_variable(self, name: str, kind: str, size: int, position: Position) -> int:
        """Append a variable whose options cost and use nothing by themselves; those of one `kind` share tables."""
        key = self.keep((kind, size), lambda: (np.zeros(size, np.int64), np.zeros((size, 1), np.int64)))
        return self.add_variable(name, key, position)

    def add_conversion(self, u: int, v: int, conversion: Conversion) -> None:
        """Append the edge of a tensor from variable `u` to `v`."""
        self.conversions[len(self.edges)] = conversion
        self.edges.append(Edge(u, v, *self.tables[conversion.key]))

    def required(self, conversion: Conversion) -> Codes:
        """The layouts to which a conversion leads, those of a hub or of each option of its reader."""
        use = conversion.use
        return self.costs.table(conversion.base).codes if use is None else self.costs.required(use)

    def part_of(self, conversion: Conversion, part: Mapping[int, int]) -> int | None:
        """The part of the graph that a conversion belongs to, from those of nodes: that of the reader.

        A conversion to a hub belongs to the part that computes the tensor, one of a weight to that of any reader.
        """
        base = conversion.base
        if conversion.source == "weight":
            if base in self.sparse:
                return None
            readers = (part.get(u.node) for u in self.classes.uses[base])
            return next((number for number in readers if number is not None), None)
        if conversion.use is None:
            return part.get(base)
        return None if conversion.use.node in self.classes.twin else part.get(conversion.use.node)
