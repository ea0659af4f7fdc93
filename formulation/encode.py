"""PCG and mesh to cost network (design, section 5): strategies, shared conversions, weights and memory as one problem.

Variables: one per operator (its strategy), one per parameter (how it is stored), and a *hub* per tensor with several
consumers or at a cut of the graph: the layout to which the tensor is converted once, for all consumers. Views are no
variables, since layouts live on atoms. What does not depend on parameters or inputs is whole on every rank, and inputs
are read in the layout that is asked, so neither has a variable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..model.atoms import atoms
from ..model.cost import Precision, Roofline, optimizer_states, precision
from ..model.errors import PartitaError
from ..model.layout import B, P, R, S
from ..model.machine import Machine
from ..model.operator import operator
from ..model.pcg import PCG, Node
from ..model.sparse import check_optimizer, sparse_tables
from ..model.updates import updated
from .chains import Piece, find_chains, find_cuts
from .classes import Classes, Use, classes, handover
from .domain import LOSS_TRANSIENTS, Domain, domain
from .network import INFINITE, Edge, Network, Variable
from .placement import Placement, placements
from .strategy import row_names
from .transition import Codes, Table, Transitions, space
from .weights import (
    Storage,
    accumulate_ns,
    cast_ns,
    looked_up_bytes,
    looked_up_ns,
    per_step_ns,
    storage,
    stored_bytes,
    stored_itemsize,
)

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoding:
    """A network and what its variables mean; `codegen.decode` reads an assignment through it."""

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

    @cached_property
    def options(self) -> int:
        """Options of all variables together."""
        return sum(len(v.cost) for v in self.network.variables)


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
) -> Encoding:
    """The cost network of one mesh under one placement; `pcg` has the shapes of one micro-batch.

    `fixed` names strategies (one row a mesh axis, see `row_names`) for nodes. Costs are ns of a whole step; the one
    capacity is a device's memory. PartitaError: unknown names in `fixed`, a node without legal option.
    """
    return _Encoder(
        pcg, machine, placement, micro_batches, precision(dtype), optimizer, fixed or {}, capacity_bytes
    ).run()


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
class _Encoder:
    pcg: PCG
    machine: Machine
    placement: Placement
    k: int
    precision: Precision
    optimizer: str
    fixed: Mapping[str, tuple[str, ...]]
    capacity_bytes: int | None
    variables: list[Variable] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    constant: int = 0

    def run(self) -> Encoding:
        self.roofline = Roofline(self.machine, self.precision.compute)
        self.transitions = Transitions(self.machine, self.placement)
        self.classes = classes(self.pcg)
        self.cache: dict[object, tuple[Array, Array | None]] = {}
        self.domains: list[Domain] = []
        self.kinds: dict[object, int] = {}
        self.numbers: dict[int, int] = {}
        self.storages: dict[object, Storage] = {}
        self.operators: dict[int, tuple[int, Domain]] = {}
        self.weights: dict[int, tuple[int, Storage]] = {}
        self.hubs: dict[int, tuple[int, Table]] = {}
        self.tables: dict[int, Table] = {}
        self.states = optimizer_states(self.optimizer)
        check_optimizer(self.pcg, self.optimizer)
        self.sparse = sparse_tables(self.pcg)
        self.uses = {(base, u.node, u.operand): u for base, uses in self.classes.uses.items() for u in uses}
        unknown = set(self.fixed) - {n.name for n in self.pcg.nodes}
        if unknown:
            raise PartitaError(f"no node is named {sorted(unknown)[0]!r}; nodes are {', '.join(self._nameable()[:40])}")
        repeated = next((n for n in self.classes.twin if self.pcg.nodes[n].name in self.fixed), None)
        if repeated is not None:
            names = (self.pcg.nodes[n].name for n in (repeated, self.classes.twin[repeated]))
            raise PartitaError("{!r} repeats {!r} without a gradient: fix that one".format(*names))
        cuts = find_cuts(self.pcg, self.classes)
        for index, node in enumerate(self.pcg.nodes):
            if node.op == "parameter":
                continue  # made when it is first read, so that it stands beside its consumer
            if self.classes.constant[index]:
                self._constant(node)
            elif node.op != "input" and self.classes.base[index] == index and index not in self.classes.twin:
                self._operator(index)
                if index in cuts or len(self.classes.uses.get(index, ())) > 1:
                    self._hub(index, index in cuts)
        capacity = self.machine.device.capacity_bytes if self.capacity_bytes is None else self.capacity_bytes
        network = Network(tuple(self.variables), tuple(self.edges), (capacity - self._fixed_bytes(),), self.constant)
        network = Network(
            network.variables, network.edges, network.capacities, network.constant, find_chains(network, self.pieces)
        )
        return Encoding(
            self.pcg, self.machine, self.placement, self.k, self.precision, self.optimizer, network, self.classes,
            self.operators, self.weights, self.hubs, self.tables,
        )  # fmt: skip

    def _nameable(self) -> list[str]:
        return [n.name for n in self.pcg.nodes if n.op not in ("input", "parameter", "buffer")]

    def _fixed_bytes(self) -> int:
        """Whole buffers, and room for the largest weight that is gathered for a moment, and its gradient."""
        changed = {i for i, (reader, _) in updated(self.pcg).items() if not self.classes.constant[reader]}
        buffers = [self.pcg.nodes[i] for i in self.pcg.of("buffer") if i not in changed]
        held = sum(n.numel * stored_itemsize(n.dtype, self.precision) for n in buffers)
        moving = set(self.pcg.of("parameter")) - self.sparse.keys()
        largest = max((self.pcg.nodes[i].numel for i in moving), default=0)
        return held + (0 if self.placement.devices == 1 else 2 * largest * self.precision.itemsize("float32"))

    def _add(self, name: str, cost: Array, use: Array, order: float, cut: bool = False, shared: bool = False) -> int:
        self.variables.append(Variable(name, cost, use))
        self.pieces.append(Piece(order, cut, shared))
        return len(self.variables) - 1

    def _constant(self, node: Node) -> None:
        if node.op != "buffer" and operator(node.op).passes:
            size = np.array([2.0 * node.numel * self.precision.itemsize(node.dtype)])
            work = operator(node.op).work(node, tuple(self.pcg.nodes[i] for i in node.inputs))
            self.constant += self.k * int(self.roofline.ns(np.array([float(work)]), size)[0])

    def _domain(self, index: int) -> tuple[Domain, int]:
        """A node's options, and a number that equal nodes share."""
        if index not in self.numbers:
            self.numbers[index] = self._number(index)
        number = self.numbers[index]
        return self.domains[number], number

    def _number(self, index: int) -> int:
        node, known = self.pcg.nodes[index], atoms(self.pcg)
        wish = self.fixed.get(node.name)
        # The call site of a dropout tells it from others, but costs nothing: equal layers stay equal.
        attributes = tuple(a for a in node.attributes if a[0] != "site")
        key = (
            node.op, attributes, node.shape, node.dtype, node.gradient, known[index].dims, wish,
            tuple((known[i].dims, self.pcg.nodes[i].dtype, self.pcg.nodes[i].gradient) for i in node.inputs),
        )  # fmt: skip
        if key not in self.kinds:
            found = domain(self.pcg, index, self.placement.sizes, self.roofline, self.precision)
            if wish is not None:
                found = self._restrict(index, found, wish)
            if not len(found):
                raise PartitaError(f"{node.op} {node.name!r} has no legal strategy on mesh {self.placement.sizes}")
            self.kinds[key] = len(self.domains)
            self.domains.append(found)
        return self.kinds[key]

    def _restrict(self, index: int, found: Domain, wish: tuple[str, ...]) -> Domain:
        names = row_names(self.pcg, index)
        node, axes = self.pcg.nodes[index], self.placement.sizes
        if len(wish) != len(axes) or not set(wish) <= set(names):
            raise PartitaError(
                f"{node.name!r} cannot be fixed to {','.join(wish)}: give {len(axes)} of {', '.join(names)}, "
                f"one for each axis of mesh {'x'.join(map(str, axes))}"
            )
        keep = (found.choice == np.array([names.index(w) for w in wish])).all(axis=1)
        if not keep.any():
            why = "copies of its table would add up their sparse gradients, or " if node.get("sparse") else ""
            raise PartitaError(f"{node.name!r} cannot be fixed to {','.join(wish)}: {why}the split leaves a rank empty")
        return found.only(keep)

    def _table(self, base: int) -> Table:
        """The conversions of a tensor class, in the base's atoms."""
        if base not in self.tables:
            node = self.pcg.nodes[base]
            tensor = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
            self.tables[base] = self.transitions.table(tensor, self.precision.itemsize(node.dtype), node.gradient)
        return self.tables[base]

    def _asked(self, use: Use) -> Codes:
        """What each option of a consumer asks of the tensor class, as codes in the base's atoms."""
        found, _ = self._domain(self.classes.decides(use.node))
        own, codes = found.input_spaces[use.operand], found.inputs[use.operand]
        base = self.classes.base[self.pcg.nodes[use.node].inputs[use.operand]]
        target = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
        letters = np.array([R, R if use.node in self.classes.twin else B, P, *(S(a) for a in use.atoms)])
        return (letters[own.letters[codes]] @ target.weights).astype(np.int64)

    def _again(self, base: int, source: Codes, target: Codes) -> Array:
        """Time of a conversion in a pass without gradient, where B is R."""
        table = self._table(self.classes.passes.get(base, (base,))[0])
        tensor = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
        a, b = (table.position[tensor.without_addends(codes)] for codes in (source, target))
        return table.forward[a][:, b] * self.k

    def _operator(self, index: int) -> None:
        found, key = self._domain(index)
        readers = (index, *self.classes.passes.get(index, ()))
        kinds = tuple(tuple(self._kind(reader, p) for p in range(len(found.inputs))) for reader in readers)
        handed = tuple(any(map(self._saves, self.classes.reads[r])) for r in readers if r in self.classes.handed)
        unary_key = ("operator", key, kinds, handed)
        if unary_key not in self.cache:
            cost = (found.time_ns + found.forward_ns * (len(readers) - 1)) * self.k
            use = found.kept_bytes.copy()
            for reader, of_reader in zip(readers, kinds, strict=True):
                for position, kind in enumerate(of_reader):
                    cost = cost + self._from_fixed(reader, position, kind)
            for position, kind in enumerate(kinds[0]):
                use += self._kept_alone(index, position, kind)
            if handed:
                first = next(reader for reader in readers if reader in self.classes.handed)
                cost = cost + len(handed) * self._again(index, found.output, self._handover(first))[:, 0]
                item = self.precision.itemsize(self.pcg.nodes[index].dtype)
                use += sum(handed) * int(found.output_space.numel[self._handover(first)[0]]) * item
            self.cache[unary_key] = cost, use[:, None]
        cost, use_ = self.cache[unary_key]
        assert use_ is not None
        self.operators[index] = self._add(self.pcg.nodes[index].name, cost, use_, index), found
        for reader, of_reader in zip(readers, kinds, strict=True):
            for position, kind in enumerate(of_reader):
                if kind == "decided":
                    self._read(self._source(reader, position), reader, position)

    def _source(self, node: int, operand: int) -> int:
        return self.classes.base[self.pcg.nodes[node].inputs[operand]]

    def _kind(self, node: int, operand: int) -> str:
        """Whence an operand comes: a layout that is fixed, one that is decided on, or a read counted elsewhere.

        What the operator updates is stored as it asks.
        """
        source = self._source(node, operand)
        if source in updated(self.pcg):
            return "updated"
        if self.classes.constant[source]:
            return "constant"
        if source in self.classes.handed:
            return "handed"
        if self.pcg.nodes[source].op == "input":
            return "input"
        return "decided" if (source, node, operand) in self.uses else "repeated"

    def _handover(self, tensor: int) -> Codes:
        """The layout in which a pass hands on a tensor."""
        sizes = self.placement.sizes
        code = space(sizes, atoms(self.pcg)[tensor].sizes).code(handover(self.pcg, tensor, sizes))
        return np.array([code])

    def _from_fixed(self, node: int, operand: int, kind: str) -> Array | int:
        """Time to convert an operand from a layout that is not decided on."""
        if kind not in ("constant", "handed"):
            return 0
        source = self._source(node, operand)
        fixed = self._handover(source) if kind == "handed" else np.array([R])
        table, use = self._table(source), Use(node, operand, self.classes.atoms[self.pcg.nodes[node].inputs[operand]])
        times: Array = self.k * table.forward[table.position[fixed], table.position[self._asked(use)]]
        return times

    def _kept_alone(self, node: int, operand: int, kind: str) -> Array | int:
        """Bytes of an operand that the operator keeps and no edge counts."""
        found = self._domain(node)[0]
        if kind == "updated":
            item = stored_itemsize(self.pcg.nodes[self._source(node, operand)].dtype, self.precision)
            stored: Array = found.input_spaces[operand].numel[found.inputs[operand]] * item
            return stored
        kept = self._kept(found, operand)
        if kind == "input":
            return kept
        if kind not in ("constant", "handed"):
            return 0
        source = self._source(node, operand)
        fixed = self._handover(source) if kind == "handed" else np.array([R])
        table, use = self._table(source), Use(node, operand, self.classes.atoms[self.pcg.nodes[node].inputs[operand]])
        return np.where(table.moves[table.position[fixed], table.position[self._asked(use)]], kept, 0)

    def _kept(self, found: Domain, operand: int) -> Array:
        """Bytes of an input that its consumer keeps for backward, per option of the consumer."""
        if not found.saves[operand]:
            return np.zeros(len(found), dtype=np.int64)
        return found.input_spaces[operand].numel[found.inputs[operand]] * found.items[operand]

    def _read(self, base: int, node: int, operand: int) -> None:
        """The edge from a tensor class to one of its consumers; of a pass without gradient only the way forward."""
        consumer, found = self.operators[self.classes.decides(node)]
        use, alone = self.uses[base, node, operand], node in self.classes.twin
        if self.pcg.nodes[base].op == "parameter" and base not in self.weights:
            self._weight(base, min(self.classes.decides(u.node) for u in self.classes.uses[base]))
        key = (self._domain(self.classes.decides(node))[1], operand, use.atoms, use.again, alone)
        saved = found.saves[operand] and not alone
        asked = self._asked(use)
        if base in self.weights and base not in self.hubs:
            weight, stored = self.weights[base]
            edge_key: object = ("weight", id(stored), *key)
            if edge_key not in self.cache:
                self.cache[edge_key] = self._convert(base, stored, asked, saved, use.again, alone)
            self._edge(weight, consumer, edge_key)
            return
        if base in self.hubs:
            producer, table = self.hubs[base]
            given, held = table.codes, True
            edge_key = ("hub", id(table), *key)
        else:
            producer, offered = self.operators[base]
            given, held = offered.output, offered.saves_output
            edge_key = ("direct", self._domain(base)[1], *key)
        if edge_key not in self.cache:
            table = self._table(base)
            out, to = table.position[given], table.position[asked]
            # A loss keeps a copy in float32, apart from the tensor itself.
            again = table.moves[out][:, to] | (not held) | (self.pcg.nodes[node].op in LOSS_TRANSIENTS)
            kept = np.where(again & saved, self._kept(found, operand), 0)
            cost = (table.forward if alone else table.total)[out][:, to] * self.k
            if use.again:
                cost = cost + use.again * self._again(base, given, asked)
            self.cache[edge_key] = cost, _some(kept)
        self._edge(producer, consumer, edge_key)

    def _edge(self, u: int, v: int, key: object) -> None:
        cost, use = self.cache[key]
        self.edges.append(Edge(u, v, cost, use))

    def _convert(
        self, base: int, stored: Storage, asked: Codes, saved: bool, again: int = 0, alone: bool = False
    ) -> tuple[Array, Array | None]:
        """From storage to a layout, each micro-batch: cast, conversion, and both again where it is not kept.

        `again` more times without gradient; `alone`: only so.
        """
        if base in self.sparse:  # read as it is stored
            return np.where(stored.codes[:, None] == asked, 0, INFINITE), None
        table = self._table(base)
        a, b = table.position[stored.codes], table.position[asked]
        cast = cast_ns(stored, self.precision, self.roofline)[:, None]
        once = table.forward[a][:, b] + cast
        if alone:
            return once * self.k, None
        cost = (table.total[a][:, b] + cast + np.where(stored.regather[:, None], once, 0)) * self.k
        if again:
            tensor = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
            plain = table.position[tensor.without_addends(asked)]
            cost = cost + again * (table.forward[a][:, plain] + cast) * self.k
        if not saved:
            return cost, None
        size = stored.space.numel[asked] * self.precision.itemsize("float32")
        copied = table.moves[a][:, b] | self.precision.mixed
        return cost, _some(np.where(copied & ~stored.regather[:, None], size, 0))

    def _weight(self, base: int, order: float) -> None:
        """The variable of a parameter, beside its first consumer; its conversion is shared if there are several."""
        node, uses, sparse = self.pcg.nodes[base], self.classes.uses[base], base in self.sparse
        saved = any(self._saves(u) for u in uses) and not sparse
        tensor = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
        dense = node.gradient and not sparse
        key = ("storage", tensor, dense, saved)
        if key not in self.storages:
            self.storages[key] = storage(tensor, dense, saved)
        stored = self.storages[key]
        rows = tuple(atoms(self.pcg)[base].of_dim(0)) if sparse else ()
        unary_key = (*key, rows, self.sparse.get(base))
        if unary_key not in self.cache:
            cost, use = self._training(stored, dense, rows, self.sparse.get(base, 0))
            self.cache[unary_key] = cost, use[:, None]
        cost, use_ = self.cache[unary_key]
        assert use_ is not None
        several = len(uses) > 1
        self.weights[base] = self._add(node.name, cost, use_, order - 0.5, shared=several), stored
        if several and not sparse:
            table, again = self._table(base), max(u.again for u in uses)
            edge_key = ("shared weight", id(stored), id(table), saved, again)
            if edge_key not in self.cache:
                self.cache[edge_key] = self._convert(base, stored, table.codes, saved, again)
            self._connect_hub(base, self.weights[base][0], table, edge_key, order - 0.25, shared=True)

    def _training(self, stored: Storage, dense: bool, rows: tuple[int, ...], ids: int) -> tuple[Array, Array]:
        """What a parameter's gradient and update cost in a step, and what is kept of both; see `looked_up_bytes`."""
        use = stored_bytes(stored, dense, self.precision, self.states)
        if dense:
            cost = per_step_ns(stored, self.machine, self.placement, self.precision, self.roofline, self.states)
            return cost + self.k * accumulate_ns(stored, self.precision, self.roofline), use
        looked_up = looked_up_bytes(stored, rows, ids, self.precision)  # nothing of a frozen parameter
        return looked_up_ns(looked_up, self.k, self.roofline), use + self.k * looked_up

    def _saves(self, use: Use) -> bool:
        """Whether a consumer keeps what it reads for backward."""
        return use.node not in self.classes.twin and self._domain(use.node)[0].saves[use.operand]

    def _hub(self, index: int, cut: bool) -> None:
        """The layout to which a tensor is converted once, for all its consumers."""
        producer, offered = self.operators[index]
        uses = self.classes.uses.get(index, ())
        saved = any(self._saves(u) and self.pcg.nodes[u.node].op not in LOSS_TRANSIENTS for u in uses)
        table = self._table(index)
        again = sum(n not in self.classes.handed for n in self.classes.passes.get(index, ()))
        key = ("to hub", self._domain(index)[1], id(table), saved, again)
        if key not in self.cache:
            out = table.position[offered.output]
            size = offered.output_space.numel[table.codes] * self.precision.itemsize(self.pcg.nodes[index].dtype)
            kept = table.moves[out] | (not offered.saves_output)
            cost = table.total[out] * self.k
            if again:
                cost = cost + again * self._again(index, offered.output, table.codes)
            self.cache[key] = cost, _some(np.where(kept, size, 0)) if saved else None
        self._connect_hub(index, producer, table, key, index + 0.25, cut=cut)

    def _connect_hub(
        self, base: int, producer: int, table: Table, key: object, order: float, cut: bool = False, shared: bool = False
    ) -> None:
        nothing = ("nothing", len(table.codes))
        if nothing not in self.cache:
            self.cache[nothing] = (
                np.zeros(len(table.codes), dtype=np.int64),
                np.zeros((len(table.codes), 1), dtype=np.int64),
            )
        cost, use = self.cache[nothing]
        assert use is not None
        hub = self._add(f"{self.pcg.nodes[base].name} shared", cost, use, order, cut, shared)
        self.hubs[base] = hub, table
        self._edge(producer, hub, key)


def _some(kept: Array) -> Array | None:
    """The table with its one resource as last dim; None where nothing is used."""
    return kept[:, :, None] if kept.any() else None
