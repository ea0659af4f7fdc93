"""The graph of a space-time plan: the operators of a captured graph, which op-trans replaces by their parts.

A user's plan transforms it; `tasks` reads the result. Backward, recomputation and swap operators are derived from the
forward operators (SuperScaler, section 5).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from ...model.errors import PartitaError
from ...model.graph.atoms import Atoms, atoms, dimensions
from ...model.graph.buffer_updates import updated
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.random_numbers import from_counters
from ...model.operators.operator import is_random
from ...model.wording import MOST_LINES, did_you_mean
from ..pipeline.orders import Orders
from ..strategies.row import Row
from ..substitution.op_trans import row_rule
from ..substitution.rule import Rule
from .listing import COLUMNS, listing, table
from .mask import VALUE, Mask, PTensor, VTensor
from .names import BATCH, batch_of, pattern
from .op import Cut, Op, Phase, differentiable
from .site import Site
from .transformation import Dim

if TYPE_CHECKING:
    from ...model.capture.objective import TrainedModule

Prover = Callable[[Rule], str]
"""Empty if the rule is proved, otherwise the reason why not."""


@dataclass(frozen=True, slots=True)
class Order:
    """All of `first` run before all of `second`; `where` is the call of the plan that orders them, if known."""

    first: tuple[Op, ...]
    second: tuple[Op, ...]
    where: Site | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which devices run the micro-batches `label` of the operators of stages, which are loops."""

    orders: Orders
    stages: tuple[tuple[Op, ...], ...]
    label: str


class Graph:
    """A captured graph whose operators a plan transforms, assigns and orders.

    `pcg` has the batch of a whole step. `forward` and `optimizer` are the current operators in topological order, parts
    in place of what they replace. Masks of dropout are from counters. `prover` proves user-defined transformations.
    `kept`: parameters, and buffers that a step changes, of which devices keep parts; `given`: inputs and other buffers,
    which are whole on all. Raises PartitaError for graphs with rewriting alternatives.
    """

    def __init__(self, pcg: PCG, prover: Prover | None = None) -> None:
        if pcg.alternatives:
            raise PartitaError(
                "a graph with rewriting alternatives has no unique list of operators: pass the rewritten graph"
            )
        dropping = next((node for node in pcg.nodes if node.op == "attention" and is_random(node)), None)
        if dropping is not None:
            raise PartitaError(
                f"{dropping.name!r} is fused attention with dropout, whose masks only torch can draw: capture the "
                'model with dropout="counters" (partita plan --dropout counters)'
            )
        pcg = from_counters(pcg)
        self.pcg = pcg
        self.module: TrainedModule | None = None  # the captured module, if known
        self.atoms: tuple[Atoms, ...] = atoms(pcg)
        self.dimensions = dimensions(pcg)
        self.batch = batch_of(pcg)
        self.kept = frozenset((*pcg.of("parameter"), *updated(pcg)))
        self.given = frozenset((*pcg.of("input"), *pcg.of("buffer"))) - self.kept
        self.orders: list[Order] = []
        self.schedules: list[Schedule] = []
        self.stores: list[Op] = []
        self.shared: set[int] = set()  # placed parameters that all their readers in a pass fetch together
        self.retained: set[int] = set()  # placed parameters that backward does not fetch again
        self.scattered: set[int] = set()  # parameters whose gradients are summed for every use, not once a step
        self.waits = False  # devices wait for every collective of activations before they compute on
        self.groups: list[Site | None] = []  # what is recomputed or swapped together: the calls that say so
        self.selective: set[int] = set()  # the numbers of the groups that keep the results of products
        self._prover = prover
        self._proved: dict[tuple[int, Row], str] = {}
        self._count = 0
        self._named: dict[Dim, frozenset[int]] = {}
        self._derived: dict[tuple[int, Phase], Op] = {}
        self._masks: dict[object, dict[tuple[int | None, bool], Mask]] = {}
        self._parts: dict[tuple[PTensor, Mask, tuple[int, int] | None], VTensor] = {}
        self._forward = {i: [Op(self, i, Phase.FORWARD)] for i, n in enumerate(pcg.nodes) if n.op not in SOURCES}
        self._updates = {i: [Op(self, i, Phase.UPDATE)] for i in pcg.of("parameter") if pcg.nodes[i].gradient}

    def __repr__(self) -> str:
        """The forward operators: name, operator, shape, dims for `split`, parts and devices; equal layers once, cut."""
        operators = [entry for entry in listing(self.pcg, self._note) if entry.operator not in SOURCES]
        count = len(self._forward)
        parts = f" in {len(self.forward)} parts" if len(self.forward) > count else ""
        head = f"Graph of {count} operators{parts}, batch {self.pcg.batch}; {COLUMNS}:"
        return "\n  ".join((head, *table(operators, MOST_LINES - 1)))

    def _note(self, node: int) -> str:
        """How a plan cut a node, and where it put its parts: `micro 4 x batch 2, on 0 1`."""
        ops = self.parts(node)
        cuts = dict.fromkeys(" x ".join(f"{cut.label} {cut.parts}" for cut in op.cuts) for op in ops)
        devices = sorted({op.device for op in ops if op.device is not None})
        places = f"on {' '.join(map(str, devices))}" if devices else ""
        return ", ".join(filter(None, (" or ".join(filter(None, cuts)), places)))

    # Read by plans

    @property
    def forward(self) -> tuple[Op, ...]:
        """The forward operators, in topological order."""
        return tuple(op for ops in self._forward.values() for op in ops)

    @property
    def optimizer(self) -> tuple[Op, ...]:
        """The updates of parameters; one that the plan leaves alone runs wherever its parameter is kept."""
        return tuple(op for ops in self._updates.values() for op in ops)

    @property
    def ops(self) -> tuple[Op, ...]:
        """Forward operators, then updates, as in the paper's Algorithm 1."""
        return (*self.forward, *self.optimizer)

    def find(self, name: str) -> tuple[Op, ...]:
        """The current operators of `ops` with this name, or with names that match the pattern `layers.*.up`.

        Raises PartitaError that suggests the nearest names if there are none.
        """
        found = tuple(op for op in self.ops if fnmatchcase(op.of.name, name))
        if not found:
            raise PartitaError(f"no operator {name!r} in the graph{_hint(name, (op.of.name for op in self.ops))}")
        return found

    def parts(self, node: int) -> tuple[Op, ...]:
        """The current operators of a node."""
        return tuple(self._forward.get(node, self._updates.get(node, ())))

    def dimension(self, dim: Dim) -> frozenset[int]:
        """The dimension numbers of "batch", of dim d of a named tensor `(name, d)`, or of its factor `(name, d, k)`.

        A name may be a pattern: `("layers.*.up.weight", 0)`.
        """
        if dim == BATCH:
            return self.batch
        if not isinstance(dim, tuple):
            raise PartitaError(f"{dim!r} names no dimension of the graph: say (tensor, dim)")
        if dim not in self._named:
            found = [i for i, node in enumerate(self.pcg.nodes) if fnmatchcase(node.name, dim[0])]
            if not found:
                hint = _hint(dim[0], (node.name for node in self.pcg.nodes))
                known = hint or "; parameters have their names in the module"
                raise PartitaError(f"no tensor {dim[0]!r} in the graph{known}")
            self._named[dim] = frozenset(self._number(i, dim) for i in found)
        return self._named[dim]

    def _number(self, index: int, dim: tuple[str, int] | tuple[str, int, int]) -> int:
        known, name = self.atoms[index], self.pcg.nodes[index].name
        if not 0 <= dim[1] < len(known.dims) or not known.dims[dim[1]]:
            raise PartitaError(f"{name!r} of shape {self.pcg.nodes[index].shape} has no dim {dim[1]} to split")
        factors = known.of_dim(dim[1])
        factor = dim[2] if len(dim) == 3 else 0
        if not 0 <= factor < len(factors):
            raise PartitaError(f"dim {dim[1]} of {name!r} has the factors {known.dims[dim[1]]}, not number {factor}")
        return self.dimensions[index][factors[factor]]

    @cached_property
    def sums(self) -> frozenset[int]:
        """Nodes that depend on samples but have no batch dim: sums over samples, such as a loss."""
        found = set[int]()
        reached = {i for i in self.pcg.of("input") if self.atoms[i].batch}
        for index, node in enumerate(self.pcg.nodes):
            if reached.intersection(node.inputs):
                reached.add(index)
                if self.batch.isdisjoint(self.dimensions[index]):
                    found.add(index)
        return frozenset(found)

    @cached_property
    def differentiable(self) -> frozenset[int]:
        """The nodes from which a gradient flows to one of their inputs."""
        return frozenset(node for node in range(len(self.pcg.nodes)) if differentiable(self.pcg, node))

    def of_parameter(self, tensor: PTensor, kind: str = VALUE) -> bool:
        """True for the value of a parameter or of a buffer that a step changes, or another tensor of that `kind`."""
        return tensor.kind == kind and tensor.node in self.kept

    def clear_orders(self) -> None:
        """Forget what `op_order` and `in_order` said."""
        self.orders.clear()
        self.schedules.clear()

    def copy(self) -> "Graph":
        """A graph of the same plan, to change without changing this one."""
        made = copy(self)
        known: dict[Op, Op] = {}

        def of(op: Op) -> Op:
            if op not in known:
                known[op] = copy(op)
                known[op].graph = made
                known[op].into = tuple(map(of, op.into))
                known[op].forward = op.forward and of(op.forward)
            return known[op]

        made._forward = {node: list(map(of, ops)) for node, ops in self._forward.items()}
        made._updates = {node: list(map(of, ops)) for node, ops in self._updates.items()}
        made._derived = {key: of(op) for key, op in self._derived.items()}
        made.stores, made.groups = list(map(of, self.stores)), list(self.groups)
        made.selective = {*self.selective}
        made.move_data_as(self)
        made.orders = [Order(tuple(map(of, o.first)), tuple(map(of, o.second)), o.where) for o in self.orders]
        made.schedules = [replace(s, stages=tuple(tuple(map(of, ops)) for ops in s.stages)) for s in self.schedules]
        return made

    def move_data_as(self, other: "Graph") -> None:
        """Fetch parameters, sum their gradients, and wait for messages, as a graph of the same model does."""
        self.shared, self.retained, self.scattered = {*other.shared}, {*other.retained}, {*other.scattered}
        self.waits = other.waits

    def of_batch(self, pcg: PCG) -> "Graph":
        """A graph of the same model at another batch, not yet planned."""
        made = Graph(pcg, self._prover)
        made.module = self.module
        return made

    def take(self, parts: Mapping[Op, Sequence[Op]]) -> None:
        """Plan the operators of another graph as their `parts` in this one."""
        self._forward, self._updates = {}, {}
        for op, copies in parts.items():
            if op.phase in (Phase.FORWARD, Phase.UPDATE):
                ops = self._forward if op.phase is Phase.FORWARD else self._updates
                ops.setdefault(op.node, []).extend(copies)

    # Used by the primitives

    def count(self) -> int:
        """The number of a new operator."""
        self._count += 1
        return self._count

    def new_group(self, where: Site | None, selective: bool = False) -> int:
        """The number, from 1, of a new group: what the call `where` recomputes or swaps together."""
        self.groups.append(where)
        self.selective |= {len(self.groups)} if selective else set()
        return len(self.groups)

    def micro_batch_group(
        self, plan: "Graph", known: dict[tuple[int, int], int], group: int | None, micro: int
    ) -> int | None:
        """The group here of one micro-batch of a group of `plan`, made on first use and kept in `known`."""
        if group is None:
            return None
        if (group, micro) not in known:
            known[group, micro] = self.new_group(plan.groups[group - 1], group in plan.selective)
        return known[group, micro]

    def replace(self, old: Sequence[Op], new: Sequence[Op]) -> None:
        """Put operators in the place of others of the same node. PartitaError: one of these was replaced before."""
        ops = (self._forward if old[0].phase is Phase.FORWARD else self._updates)[old[0].node]
        for op in old:
            if op.gone or op not in ops:
                raise PartitaError(f"{op.name} was transformed before: transform its parts")
        at = ops.index(old[0])
        ops[at : at + 1] = new
        for op in old:
            op.into = tuple(new)
        ops[:] = [op for op in ops if not op.gone]

    def renewed(self, node: int) -> Op:
        """The update of a parameter, whole again: what a plan made of it is replaced."""
        whole, parts = Op(self, node, Phase.UPDATE), self._updates[node]
        whole.swapped = next((op.swapped for op in parts if op.swapped is not None), None)
        self.replace([*parts], [whole])
        return whole

    def masks(self, node: int, cuts: tuple[Cut, ...]) -> dict[tuple[int | None, bool], Mask]:
        """The masks that operators of a node with these cuts have read so far (`Op.mask`).

        They are shared with the nodes that have operands and results of the same sizes, as those of equal layers.
        """
        sizes = tuple(self.atoms[i].dims for i in (*self.pcg.nodes[node].inputs, node))
        return self._masks.setdefault((sizes, cuts), {})

    def part(self, tensor: PTensor, mask: Mask, via: tuple[int, int] | None = None) -> VTensor:
        """The vTensor of a part, always the same object."""
        key = tensor, mask, via
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = VTensor(tensor, mask, via)
        return found

    def prove(self, node: int, row: Row, label: str) -> None:
        """Raise PartitaError, with the reason, unless a user-defined row is proved."""
        key = (node, row)
        if key not in self._proved:
            rule = row_rule(self.pcg, node, row, label)
            if rule is None or self._prover is None:
                reason = "it is no cut of whole dims" if rule is None else "no prover is available"
            else:
                reason = self._prover(rule)
            self._proved[key] = reason
        if self._proved[key]:
            found = self.pcg.nodes[node]
            raise PartitaError(f"{label} of {found.op} {found.name!r} is not accepted: {self._proved[key]}")

    def derived(self, op: Op, phase: Phase) -> Op | None:
        """The derived operator of a phase, always the same object; None if there is none."""
        if op.phase is not Phase.FORWARD:
            return None
        match phase:
            case Phase.BACKWARD:
                exists = True
            case Phase.WEIGHT:
                sources = (self.pcg.nodes[i] for i in op.of.inputs)
                exists = op.split and any(n.op == "parameter" and n.gradient for n in sources)
            case Phase.RECOMPUTE:
                exists = op.group is not None
            case Phase.OFFLOAD | Phase.RELOAD:
                exists = op.swapped is not None
            case _:
                raise AssertionError(phase)
        if not exists or (phase is not Phase.RECOMPUTE and op.node not in self.differentiable):
            return None
        key = (op.number, phase)
        if key not in self._derived:
            self._derived[key] = Op(self, op.node, phase, op.cuts, op)
        return self._derived[key]

    def recomputes(self, node: int, group: int | None) -> bool:
        """True if a node is recomputed in a group."""
        return any(op.group == group for op in self._forward.get(node, ()))


def _hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the names most like it, with `*` for numbers if it is a pattern."""
    if "*" in name:
        known = map(pattern, known)
    return did_you_mean(name, dict.fromkeys(known), 3)
