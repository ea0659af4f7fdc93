"""PCG and mesh to cost network (design, section 5): strategies, shared conversions, weights and memory as one problem.

Variables: one per operator (its strategy), one per parameter (how it is stored), and a *hub* per tensor with several
consumers or at a cut of the graph: the layout to which the tensor is converted once, for all consumers. Views are no
variables, since layouts live on atoms. What does not depend on parameters or inputs is whole on every rank, and inputs
are read in the layout that is asked, so neither has a variable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import Layout
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG, Node
from ...model.graph.sparse_tables import check_optimizer, sparse_tables
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine
from ...model.machine.precision import Precision, precision
from ...model.machine.roofline import Roofline
from ...model.operators.operator import operator
from ...model.optimizers import optimizer_states
from ..bundles.parallel_branches import ParallelBranches
from ..network.chains import Position, find_chains, find_cuts
from ..network.network import Edge, Network, Variable
from ..placement.placement import Placement, placements
from ..special.level_spread import level_spread
from ..special.table_spread import TableSpreader
from ..strategies.alternatives import Alternatives
from ..strategies.operand_cost import OperandCosts
from ..strategies.operator_options import GraphOptions, OperatorOptions
from ..strategies.tensor_classes import classes, trains
from ..strategies.transitions import Table
from ..weights.fixed_memory import fixed_bytes, largest_weight
from ..weights.storage import (
    LEAST,
    Storage,
    accumulate_ns,
    exchange_ns,
    looked_up_bytes,
    looked_up_ns,
    per_step_ns,
    scatter_ns,
    storage,
    stored_bytes,
    worthwhile,
)
from .encode_alternatives import Modal
from .encoding import Encoding
from .recomputation import Recomputation
from .shared_tables import SharedTables

Array = npt.NDArray[np.int64]


def encode(
    pcg: PCG,
    machine: Machine,
    placement: Placement,
    *,
    micro_batches: int = 1,
    dtype: str = "float32",
    optimizer: str = "adam",
    fixed: Mapping[str, tuple[str, ...]] | None = None,
    capacity_bytes: int | None = None,
    flat: bool = False,
    balance: TableSpreader = level_spread,
    bundles: bool = True,
    in_flight: int = 1,
    transfer: CollectivePrice | None = None,
    stored: Mapping[str, Layout] | None = None,
    recompute: Sequence[str] = ("none",),
    shared: SharedTables | None = None,
    offload: bool = False,
    versions: int = 0,
    later: int = 0,
) -> Encoding:
    """The cost network of one mesh under one placement; `pcg` has the shapes of one micro-batch.

    `fixed` names strategies (one row a mesh axis, see `row_names`) for nodes. Costs are ns of a whole step; the one
    capacity is a device's memory. `flat`: every collective takes one step, to compare with. `balance` says how joined
    tables are spread over an axis; without `bundles` no branches run side by side. `recompute` are the modes that every
    segment has (`recompute.MODES`), the first one being that of the plain tables. `offload`: optimizer states may be in
    the host's memory, if the machine says how fast that is.
    `versions`: so much is kept besides each weight that is trained, in its size; then gradients and states lie as it.
    `later`: of so many micro-batches gradients wait at what has weights, until these get theirs.
    For a stage of a pipeline: `in_flight` micro-batches are kept for backward at once, `transfer` is what handing on a
    tensor costs (see `transfers`), `stored` fixes layouts of parameters, and `shared` keeps what other stages of the
    model can use again. PartitaError: unknown names in `fixed`, `stored` or `recompute`, a node without legal option.
    """
    return _Encoder(
        pcg, machine, placement, micro_batches, precision(dtype), optimizer, fixed or {}, capacity_bytes, flat, balance,
        bundles, in_flight, transfer, stored or {}, tuple(recompute), shared or SharedTables(),
        offload and machine.device.host_bandwidth is not None, versions, later,
    ).run()  # fmt: skip


def strategy_network(
    pcg: PCG,
    machine: Machine,
    mesh: Sequence[int] | None = None,
    *,
    placement: Placement | None = None,
    micro_batches: int = 1,
    dtype: str = "float32",
    optimizer: str = "adam",
) -> Network:
    """The cost network of a captured graph on one mesh, for solvers to be tried on.

    Without `placement` the first one of the mesh is taken, without a mesh all devices are one axis.
    """
    if placement is None:
        placement = placements(machine.hierarchy, mesh=mesh or (machine.devices,))[0]
    return encode(pcg, machine, placement, micro_batches=micro_batches, dtype=dtype, optimizer=optimizer).network


@dataclass
class _Encoder(Modal):
    pcg: PCG
    machine: Machine
    placement: Placement
    k: int
    precision: Precision
    optimizer: str
    fixed: Mapping[str, tuple[str, ...]]
    capacity_bytes: int | None
    flat: bool
    balance: TableSpreader = level_spread
    bundles: bool = True
    in_flight: int = 1
    transfer: CollectivePrice | None = None
    stored: Mapping[str, Layout] = field(default_factory=dict)
    recompute: tuple[str, ...] = ("none",)
    shared: SharedTables = field(default_factory=SharedTables)
    offload: bool = False
    versions: int = 0
    later: int = 0
    variables: list[Variable] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    pieces: list[Position] = field(default_factory=list)
    constant: int = 0

    def run(self) -> Encoding:
        self.roofline = Roofline(self.machine, self.precision.compute)
        self.classes = classes(self.pcg)
        self.sparse = sparse_tables(self.pcg)
        # What repeats other nodes has prices that depend on these too.
        made = (SharedTables() if self.classes.twin else self.shared).made(
            self.machine, self.placement, self.flat, self.transfer,
            (self.k, self.precision, self.optimizer, self.balance, self.pcg.batch, self.versions, self.later),
        )  # fmt: skip
        transitions, part = made.transitions, origin(self.pcg).part
        self.domains = GraphOptions(
            self.pcg, transitions, self.roofline, self.precision, self.fixed, self.balance, made.found, made.kinds,
            placed=made.numbers.setdefault(part[0], {}) if part else {},
        )  # fmt: skip
        self.reads = OperandCosts(
            self.pcg, self.placement, self.k, self.precision, self.roofline, self.classes, self.domains,
            transitions, self.sparse, self.in_flight,
        )  # fmt: skip
        self.cache, again = made.tables.setdefault((self.in_flight, self.recompute), ({}, {}))
        self.again = Recomputation(self.pcg, self.classes, self.reads, self.recompute, self.bundles, self.cache, again)
        self.storages = made.storages
        self.operators: dict[int, tuple[int, OperatorOptions]] = {}
        self.weights: dict[int, tuple[int, Storage]] = {}
        self.hubs: dict[int, tuple[int, Table]] = {}
        self.ways = Alternatives(self.pcg, self.classes)
        self.modes: dict[int, int] = {}
        self.loose: set[int] = set()
        self.shows: set[int] = set()
        self.states = optimizer_states(self.optimizer)
        check_optimizer(self.pcg, self.optimizer)
        self._check_fixed()
        self.cuts = cuts = find_cuts(self.pcg, self.classes)
        self.saved = self.ways.surely(self._kept_by_reader) if self.pcg.alternatives else frozenset()
        for index, node in enumerate(self.pcg.nodes):
            if node.op == "parameter":
                continue  # made when it is first read, so that it stands beside its consumer
            if self.classes.constant[index]:
                self._constant(index)
            elif node.op != "input" and self.classes.base[index] == index and index not in self.classes.twin:
                self._operator(index)
                if index in self.pcg.members:
                    mode = self._mode(index)
                    self.modes[index] = self._add(mode.name, mode.cost, mode.use, index + 0.1)
                several = self.ways.together(self.classes.uses.get(index, ()))
                if index in cuts or several or self.again.leaves(index):
                    self._hub(index, index in cuts)
        optional = self._optional()
        bundles = ParallelBranches(
            self.pcg, self.classes, self.reads, self.operators, self.weights, self.hubs, self.variables, self.edges,
            optional, frozenset(self.modes.values()), self._keepers(),
        )  # fmt: skip
        placed = bundles.add() if self.bundles else {}
        capacity = self.machine.device.capacity_bytes if self.capacity_bytes is None else self.capacity_bytes
        held = fixed_bytes(self.pcg, self.precision, self.placement.devices, self.k)
        switches = self.again.finish(self.variables, self.edges, self.hubs, self._add)
        network = Network(
            tuple(self.variables), tuple(self.edges), (capacity - held,), self.constant,
            switches=switches,
        )  # fmt: skip
        network = replace(network, chains=find_chains(network, self.pieces))
        modes = {segment.name: s.variable for segment, s in zip(self.again.segments, switches, strict=True)}
        return Encoding(
            self.pcg, self.machine, self.placement, self.k, self.precision, self.optimizer, network, self.classes,
            self.operators, self.weights, self.hubs, self.reads.tables, placed, self.modes, optional,
            modes, self.recompute,
        )  # fmt: skip

    def _check_fixed(self) -> None:
        unknown = set(self.fixed) - {n.name for n in self.pcg.nodes}
        unknown |= set(self.stored) - {self.pcg.nodes[i].name for i in self.pcg.of("parameter")}
        if unknown:
            raise PartitaError(f"no node is named {sorted(unknown)[0]!r}; nodes are {', '.join(self._nameable()[:40])}")
        repeated = next((n for n in self.classes.twin if self.pcg.nodes[n].name in self.fixed), None)
        if repeated is not None:
            names = (self.pcg.nodes[n].name for n in (repeated, self.classes.twin[repeated]))
            raise PartitaError("{!r} repeats {!r} without a gradient: fix that one".format(*names))

    def _nameable(self) -> list[str]:
        return [n.name for n in self.pcg.nodes if n.op not in ("input", "parameter", "buffer")]

    def _add(self, name: str, cost: Array, use: Array, order: float, cut: bool = False, shared: bool = False) -> int:
        self.variables.append(Variable(name, cost, use))
        self.pieces.append(Position(order, cut, shared))
        return len(self.variables) - 1

    def _constant(self, index: int) -> None:
        node = self.pcg.nodes[index]
        if node.op != "buffer" and operator(node.op).passes:
            size = np.array([2.0 * node.numel * self.precision.itemsize(node.dtype)])
            work = operator(node.op).work(node, tuple(self.pcg.nodes[i] for i in node.inputs))
            time = self.k * int(self.roofline.ns(np.array([float(work)]), size)[0])
            self.constant += time
            self.again.constant(index, time)

    def _operator(self, index: int) -> None:
        found, key = self.domains.of(index), self._unary(index)
        cost, use = self.cache[key]
        assert use is not None
        self.operators[index] = self._add(self.pcg.nodes[index].name, cost, use, index), found
        self.again.operator(index, self.operators[index][0], key)
        for reader in (index, *self.classes.passes.get(index, ())):
            for position in range(len(found.inputs)):
                if self.reads.kind(reader, position) == "decided":
                    self._read(self.reads.source(reader, position), reader, position)

    def _unary(self, index: int) -> object:
        """What the options of a node cost and keep by themselves: the key of its tables."""
        found, key = self.domains.of(index), self.domains.number(index)
        readers = (index, *self.classes.passes.get(index, ()))
        kinds = tuple(tuple(self.reads.kind(reader, p) for p in range(len(found.inputs))) for reader in readers)
        handed = tuple(any(map(self.reads.saves, self.classes.reads[r])) for r in readers if r in self.classes.handed)
        waits = self.later > 0 and trains(self.pcg, index)
        unary_key = ("operator", key, kinds, handed, waits)
        if unary_key not in self.cache:
            cost = (found.time_ns + found.forward_ns * (len(readers) - 1)) * self.k
            use = found.kept_bytes * self.in_flight + found.transient_bytes
            if waits:
                item = self.later * self.precision.itemsize(self.pcg.nodes[index].dtype)
                use = use + found.output_space.numel[found.output] * item
            for reader, of_reader in zip(readers, kinds, strict=True):
                for position, kind in enumerate(of_reader):
                    cost = cost + self.reads.time_of_fixed(reader, position, kind)
            for position, kind in enumerate(kinds[0]):
                use += self.reads.kept_of_fixed(index, position, kind)
            if handed:
                first = next(reader for reader in readers if reader in self.classes.handed)
                cost = cost + len(handed) * self.reads.again(index, found.output, self.reads.handover(first))[:, 0]
                item = self.in_flight * self.precision.itemsize(self.pcg.nodes[index].dtype)
                use += sum(handed) * int(found.output_space.numel[self.reads.handover(first)[0]]) * item
            self.cache[unary_key] = cost, use[:, None]
        return unary_key

    def _read(self, base: int, node: int, operand: int) -> None:
        """The edge from a tensor class to one of its consumers; of a pass without gradient only the way forward."""
        use, alone = self.reads.uses[base, node, operand], node in self.classes.twin
        decides = self.classes.decides(node)
        consumer, found = self.operators[decides]
        if self.pcg.nodes[base].op == "parameter" and base not in self.weights:
            self._weight(base, min(self.classes.variable(u.node) for u in self.classes.uses[base]))
        key = (self.domains.number(decides), operand, use.atoms, use.again, alone)
        if base in self.weights and base not in self.hubs:
            weight, stored = self.weights[base]
            edge_key: object = ("weight", id(stored), *key)
            if edge_key not in self.cache:
                saved = found.saves[operand] and not alone
                asked = self.reads.asked(use)
                self.cache[edge_key] = self.reads.from_storage(base, stored, asked, saved, use.again, alone)
            self.again.weight(len(self.edges), base, stored, self.reads.asked(use), edge_key)
            self._edge(weight, consumer, edge_key)
            return
        if base in self.hubs:
            producer, table = self.hubs[base]
            edge_key = ("hub", id(table), *key)
            if edge_key not in self.cache:
                held = np.ones(len(table.codes), dtype=np.bool_)
                self.cache[edge_key] = self.reads.from_operator(base, use, table.codes, held)
            if self._doubled(base) or self.again.readers(base):
                forbidden = self._doubled(base) and self._kept_by_reader(node, operand, base)
                edge_key = self._twice(edge_key, forbidden)
            self.again.shared(len(self.edges), base, table.codes, use, edge_key)
            self._edge(producer, consumer, edge_key)
            return
        for way in self.ways.of(base):
            producer, offered = self.operators[way]
            edge_key = ("direct", self.domains.number(way), *key)
            if edge_key not in self.cache:
                self.cache[edge_key] = self.reads.from_operator(base, use, offered.output, offered.saves_output)
            self.again.direct(len(self.edges), base, use, edge_key)
            self._edge(producer, consumer, edge_key, loose=base in self.modes)

    def _edge(self, u: int, v: int, key: object, loose: bool = False, shows: bool = False) -> None:
        """See `UnusedOptions` for the last two."""
        if loose:
            self.loose.add(len(self.edges))
        if shows:
            self.shows.add(len(self.edges))
        cost, use = self.cache[key]
        self.edges.append(Edge(u, v, cost, use))

    def _weight(self, base: int, order: float) -> None:
        """The variable of a parameter, beside its first consumer; its conversion is shared if there are several."""
        node, uses, sparse = self.pcg.nodes[base], self.classes.uses[base], base in self.sparse
        saved = any(self.reads.saves(u) for u in uses) and not sparse
        tensor = self.reads.space(base)
        dense = node.gradient and not sparse
        tables, stages, wish = table_rows(node), node.get("stages", 1) if dense else 1, self.stored.get(node.name)
        large = dense and node.numel * LEAST >= largest_weight(self.pcg)
        key = ("storage", tensor, dense, saved, tables, large, self.offload, stages > 1, wish)
        if key not in self.storages:
            sizes = self.placement.sizes if tables else ()
            spreads = tuple(self.balance(tables, node.shape[1], n) if n > 1 else None for n in sizes)
            scatter, offload = large and self.k > 1 and not self.versions, large and self.offload and not self.versions
            every = storage(tensor, dense, saved, spreads, scatter=scatter, offload=offload)
            self.storages[key] = self._storable(node, every, stages)
        stored = self.storages[key]
        rows = tuple(atoms(self.pcg)[base].of_dim(0)) if sparse else ()
        unary_key = (*key, rows, self.sparse.get(base), stages)
        if unary_key not in self.cache:
            cost, use = self._training(stored, dense, rows, self.sparse.get(base, 0), stages)
            self.cache[unary_key] = cost, use[:, None]
        cost, use_ = self.cache[unary_key]
        assert use_ is not None
        several = self.ways.together(uses)
        places = [self.classes.variable(u.node) for u in uses]
        apart = several and any(min(places) <= cut < max(places) for cut in self.cuts)
        self.weights[base] = self._add(node.name, cost, use_, order - 0.5, shared=apart), stored
        if several and not sparse:
            table, again = self.reads.table(base), max(u.again for u in uses)
            keys = []
            for kept in (False, True) if self._doubled(base) else (saved,):
                keys.append(("shared weight", id(stored), id(table), kept, again))
                if keys[-1] not in self.cache:
                    self.cache[keys[-1]] = self.reads.from_storage(base, stored, table.codes, kept, again)
            self._connect_hub(base, {self.weights[base][0]: tuple(keys)}, table, order - 0.25, shared=apart)

    def _storable(self, node: Node, stored: Storage, stages: int) -> Storage:
        """The options of a parameter, of which other stages may have copies, and of which `stored` may fix some."""
        keep = ~stored.sharded if stages > 1 else np.ones(len(stored), dtype=np.bool_)
        wish = self.stored.get(node.name)
        if wish is not None:
            keep &= stored.codes == stored.space.code(wish)
        if not keep.any():
            raise PartitaError(f"parameter {node.name!r} cannot be stored in layout {wish}")
        found = stored if keep.all() else stored.only(keep)
        if not (found.scattered | found.offloaded).any():
            return found
        return found.only(worthwhile(found, *self._training(found, True, (), 0, stages)))

    def _training(
        self, stored: Storage, dense: bool, rows: tuple[int, ...], ids: int, stages: int
    ) -> tuple[Array, Array]:
        """What a parameter's gradient and update cost in a step, and what is kept of both; see `looked_up_bytes`."""
        use = stored_bytes(stored, dense, self.precision, self.states, bool(rows), self.versions)
        if dense:
            cost = per_step_ns(
                stored, self.machine, self.placement, self.precision, self.roofline, self.states, self.flat
            )
            if stages > 1 and self.transfer is not None:
                cost = cost + exchange_ns(stored, stages, self.precision, self.transfer)
            scatter = scatter_ns(stored, self.machine, self.placement, self.precision, self.flat)
            return cost + self.k * (accumulate_ns(stored, self.precision, self.roofline) + scatter), use
        looked_up = looked_up_bytes(stored, rows, ids, self.precision)  # nothing of a frozen parameter
        return looked_up_ns(looked_up, self.k, self.roofline), use + self.k * looked_up

    def _hub(self, index: int, cut: bool) -> None:
        """The layout to which a tensor is converted once, for all its consumers."""
        saved = any(self._kept_by_reader(u.node, u.operand, index) for u in self.classes.uses.get(index, ()))
        table = self.reads.table(index)
        again = sum(n not in self.classes.handed for n in self.classes.passes.get(index, ()))
        twofold = self._doubled(index) or bool(self.again.readers(index))
        producers = {}
        for way in self.ways.of(index):
            keys = []
            for kept in (saved and not self._doubled(index), True) if twofold else (saved,):
                keys.append(("to hub", self.domains.number(way), id(table), kept, again))
                if keys[-1] not in self.cache:
                    self.cache[keys[-1]] = self.reads.to_hub(index, self.operators[way][1], kept, again)
            producers[self.operators[way][0]] = tuple(keys)
        self._connect_hub(index, producers, table, index + 0.25, cut=cut, loose=index in self.modes)

    def _connect_hub(
        self,
        base: int,
        producers: Mapping[int, tuple[object, ...]],
        table: Table,
        order: float,
        cut: bool = False,
        shared: bool = False,
        loose: bool = False,
    ) -> None:
        """The variable of a hub, and what leads to it: tables to its layouts, not kept and kept where it has both."""
        copies = len(next(iter(producers.values())))
        nothing = ("nothing", len(table.codes) * copies)
        if nothing not in self.cache:
            self.cache[nothing] = np.zeros(nothing[1], dtype=np.int64), np.zeros((nothing[1], 1), dtype=np.int64)
        cost, use = self.cache[nothing]
        assert use is not None
        hub = self._add(f"{self.pcg.nodes[base].name} shared", cost, use, order, cut, shared)
        self.hubs[base] = hub, table
        for producer, keys in producers.items():
            if copies > 1 and keys not in self.cache:
                tables = [self.cache[key] for key in keys]
                uses = [np.zeros((*cost.shape, 1), np.int64) if use is None else use for cost, use in tables]
                self.cache[keys] = np.concatenate([c for c, _ in tables], axis=1), np.concatenate(uses, axis=1)
            key = keys if copies > 1 else keys[0]
            if base in self.weights:
                self.again.weight(len(self.edges), base, self.weights[base][1], table.codes, key)
            else:
                self.again.to_hub(len(self.edges), base, table.codes, key)
            self._edge(producer, hub, key, loose, shows=True)
