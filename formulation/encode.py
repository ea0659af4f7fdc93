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
from ..model.layout import R, S
from ..model.machine import Machine
from ..model.operator import operator
from ..model.pcg import PCG, Node
from .chains import Piece, find_chains
from .classes import Classes, Use, classes
from .domain import LOSS_TRANSIENTS, Domain, domain
from .network import Edge, Network, Variable
from .placement import Placement, placements
from .strategy import row_names
from .transition import Codes, Table, Transitions, space
from .weights import Storage, accumulate_ns, cast_ns, per_step_ns, storage, stored_bytes

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
        unknown = set(self.fixed) - {n.name for n in self.pcg.nodes}
        if unknown:
            raise PartitaError(f"no node is named {sorted(unknown)[0]!r}; nodes are {', '.join(self._nameable()[:40])}")
        cuts = self._cuts()
        for index, node in enumerate(self.pcg.nodes):
            if node.op == "parameter":
                continue  # made when it is first read, so that it stands beside its consumer
            if self.classes.constant[index]:
                self._constant(node)
            elif node.op != "input" and self.classes.base[index] == index:
                self._operator(index)
                if index in cuts or len(self.classes.uses.get(index, ())) > 1:
                    self._hub(index, index in cuts)
        capacity = self.machine.device.capacity_bytes if self.capacity_bytes is None else self.capacity_bytes
        network = Network(tuple(self.variables), tuple(self.edges), (capacity - self._reserve(),), self.constant)
        network = Network(
            network.variables, network.edges, network.capacities, network.constant, find_chains(network, self.pieces)
        )
        return Encoding(
            self.pcg, self.machine, self.placement, self.k, self.precision, self.optimizer, network, self.classes,
            self.operators, self.weights, self.hubs, self.tables,
        )  # fmt: skip

    def _nameable(self) -> list[str]:
        return [n.name for n in self.pcg.nodes if n.op not in ("input", "parameter", "buffer")]

    def _reserve(self) -> int:
        """Room for the largest weight that is gathered for a moment, and its gradient, in the compute dtype."""
        largest = max((n.numel for n in self.pcg.nodes if n.op == "parameter"), default=0)
        return 0 if self.placement.devices == 1 else 2 * largest * self.precision.itemsize("float32")

    def _cuts(self) -> set[int]:
        """Tensors that alone lead from what is before them to what is after (post-dominators of what is before)."""
        n = len(self.pcg.nodes)
        change = [0] * (n + 1)
        moving = [
            (i, max(u.node for u in uses))
            for i, uses in self.classes.uses.items()
            if not self.classes.constant[i] and self.pcg.nodes[i].op not in ("input", "parameter")
        ]
        for first, last in moving:
            change[first] += 1
            change[last] -= 1
        alive = np.cumsum(change)
        return {first for first, _ in moving if alive[first] == 1}

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
            raise PartitaError(f"{node.name!r} cannot be fixed to {','.join(wish)}: the split leaves a rank empty")
        return Domain(
            found.rows, found.choice[keep], tuple(c[keep] for c in found.inputs), found.output[keep],
            found.input_spaces, found.output_space, found.time_ns[keep], found.kept_bytes[keep],
            found.saves, found.items,
        )  # fmt: skip

    def _table(self, base: int) -> Table:
        """The conversions of a tensor class, in the base's atoms."""
        if base not in self.tables:
            node = self.pcg.nodes[base]
            tensor = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
            self.tables[base] = self.transitions.table(tensor, self.precision.itemsize(node.dtype), node.gradient)
        return self.tables[base]

    def _asked(self, use: Use) -> Codes:
        """What each option of a consumer asks of the tensor class, as codes in the base's atoms."""
        found, _ = self._domain(use.node)
        own, codes = found.input_spaces[use.operand], found.inputs[use.operand]
        base = self.classes.base[self.pcg.nodes[use.node].inputs[use.operand]]
        target = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
        letters = np.array([0, 1, 2, *(S(a) for a in use.atoms)])
        return (letters[own.letters[codes]] @ target.weights).astype(np.int64)

    def _operator(self, index: int) -> None:
        node = self.pcg.nodes[index]
        found, key = self._domain(index)
        sources = tuple(self.classes.base[i] for i in node.inputs)
        kinds = tuple("constant" if self.classes.constant[s] else self.pcg.nodes[s].op == "input" for s in sources)
        unary_key = ("operator", key, kinds)
        if unary_key not in self.cache:
            cost, use = found.time_ns * self.k, found.kept_bytes.copy()
            for position, (source, kind) in enumerate(zip(sources, kinds, strict=True)):
                if kind == "constant":
                    table = self._table(source)
                    asked = table.position[self._asked(self._use(source, index, position))]
                    whole = table.position[R]
                    cost = cost + self.k * table.forward[whole, asked]
                    use += np.where(table.moves[whole, asked], self._kept(found, position), 0)
                elif kind:
                    use += self._kept(found, position)
            self.cache[unary_key] = cost, use[:, None]
        cost, use_ = self.cache[unary_key]
        assert use_ is not None
        self.operators[index] = self._add(node.name, cost, use_, index), found
        for position, (source, kind) in enumerate(zip(sources, kinds, strict=True)):
            if not kind:
                self._read(source, index, position)

    def _use(self, base: int, node: int, operand: int) -> Use:
        source = self.pcg.nodes[node].inputs[operand]
        return Use(node, operand, self.classes.atoms[source])

    def _kept(self, found: Domain, operand: int) -> Array:
        """Bytes of an input that its consumer keeps for backward, per option of the consumer."""
        if not found.saves[operand]:
            return np.zeros(len(found), dtype=np.int64)
        return found.input_spaces[operand].numel[found.inputs[operand]] * found.items[operand]

    def _read(self, base: int, node: int, operand: int) -> None:
        """The edge from a tensor class to one of its consumers."""
        consumer, found = self.operators[node]
        use = self._use(base, node, operand)
        own_copy = self.pcg.nodes[node].op in LOSS_TRANSIENTS  # kept in float32, apart from the tensor itself
        if self.pcg.nodes[base].op == "parameter" and base not in self.weights:
            self._weight(base, min(u.node for u in self.classes.uses[base]))
        _, key = self._domain(node)
        edge_key: object
        if base in self.hubs:
            hub, table = self.hubs[base]
            edge_key = ("hub", id(table), key, operand, use.atoms)
            if edge_key not in self.cache:
                asked = table.position[self._asked(use)]
                kept = np.where(own_copy | table.moves[:, asked], self._kept(found, operand), 0)
                self.cache[edge_key] = table.total[:, asked] * self.k, _some(kept)
            self._edge(hub, consumer, edge_key)
        elif base in self.weights:
            weight, stored = self.weights[base]
            edge_key = ("weight", id(stored), key, operand, use.atoms)
            if edge_key not in self.cache:
                self.cache[edge_key] = self._convert(stored, self._table(base), self._asked(use), found.saves[operand])
            self._edge(weight, consumer, edge_key)
        else:
            producer, offered = self.operators[base]
            edge_key = ("direct", self._domain(base)[1], key, operand, use.atoms)
            if edge_key not in self.cache:
                table = self._table(base)
                out, asked = table.position[offered.output], table.position[self._asked(use)]
                moved = table.moves[out][:, asked]
                again = own_copy | moved | (not offered.saves_output)
                kept = np.where(again, self._kept(found, operand), 0)
                self.cache[edge_key] = table.total[out][:, asked] * self.k, _some(kept)
            self._edge(producer, consumer, edge_key)

    def _edge(self, u: int, v: int, key: object) -> None:
        cost, use = self.cache[key]
        self.edges.append(Edge(u, v, cost, use))

    def _convert(self, stored: Storage, table: Table, asked: Codes, saved: bool) -> tuple[Array, Array | None]:
        """From storage to a layout, each micro-batch: cast, conversion, and both again where it is not kept."""
        a, b = table.position[stored.codes], table.position[asked]
        cast = cast_ns(stored, self.precision, self.roofline)[:, None]
        once = table.forward[a][:, b] + cast
        cost = table.total[a][:, b] + cast + np.where(stored.regather[:, None], once, 0)
        if not saved:
            return cost * self.k, None
        size = stored.space.numel[asked] * self.precision.itemsize("float32")
        copied = table.moves[a][:, b] | self.precision.mixed
        return cost * self.k, _some(np.where(copied & ~stored.regather[:, None], size, 0))

    def _weight(self, base: int, order: float) -> None:
        """The variable of a parameter, beside its first consumer; its conversion is shared if there are several."""
        node, uses = self.pcg.nodes[base], self.classes.uses[base]
        saved = any(self._domain(u.node)[0].saves[u.operand] for u in uses)
        tensor = space(self.placement.sizes, atoms(self.pcg)[base].sizes)
        key = ("storage", tensor, node.gradient, saved)
        if key not in self.storages:
            self.storages[key] = storage(tensor, node.gradient, saved)
        stored = self.storages[key]
        if key not in self.cache:
            cost = np.zeros(len(stored), dtype=np.int64)
            if node.gradient:
                cost = per_step_ns(stored, self.machine, self.placement, self.precision, self.roofline, self.states)
                cost = cost + self.k * accumulate_ns(stored, self.precision, self.roofline)
            self.cache[key] = cost, stored_bytes(stored, node.gradient, self.precision, self.states)[:, None]
        cost, use = self.cache[key]
        assert use is not None
        several = len(uses) > 1
        self.weights[base] = self._add(node.name, cost, use, order - 0.5, shared=several), stored
        if several:
            table = self._table(base)
            edge_key = ("shared weight", id(stored), id(table), saved)
            if edge_key not in self.cache:
                self.cache[edge_key] = self._convert(stored, table, table.codes, saved)
            self._connect_hub(base, self.weights[base][0], table, edge_key, order - 0.25, shared=True)

    def _hub(self, index: int, cut: bool) -> None:
        """The layout to which a tensor is converted once, for all its consumers."""
        producer, offered = self.operators[index]
        uses = self.classes.uses[index]
        saved = any(
            self._domain(u.node)[0].saves[u.operand] and self.pcg.nodes[u.node].op not in LOSS_TRANSIENTS for u in uses
        )
        table = self._table(index)
        key = ("to hub", self._domain(index)[1], id(table), saved)
        if key not in self.cache:
            out = table.position[offered.output]
            size = offered.output_space.numel[table.codes] * self.precision.itemsize(self.pcg.nodes[index].dtype)
            again = table.moves[out] | (not offered.saves_output)
            self.cache[key] = table.total[out] * self.k, _some(np.where(again, size, 0)) if saved else None
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
