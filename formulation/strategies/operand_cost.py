"""What it takes to bring a tensor to an operator that reads it: time and memory, for every pair of options.

A tensor comes from another operator, from a hub, from storage, or in a layout that is not decided on.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import atoms
from ...model.graph.buffer_updates import updated
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, P, R, S
from ...model.graph.pcg import PCG
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from ..network.network import INFINITE
from ..placement.placement import Placement
from ..weights.storage import Storage, cast_ns
from .operator_options import LOSS_TRANSIENTS, GraphOptions, OperatorOptions
from .tensor_classes import Classes, Use, handover
from .transitions import Codes, Space, Table, Transitions, space

Array = npt.NDArray[np.int64]
EdgeTables: TypeAlias = tuple[Array, Array | None]
"""Time [given, asked] in ns of a step, and the bytes [given, asked, 1] that are kept for backward, if any."""


@dataclass
class OperandCosts:
    """The reads of a graph of `k` micro-batches; `sparse` tables are read as they are stored.

    What is kept for backward is kept `in_flight` times.
    """

    pcg: PCG
    placement: Placement
    k: int
    precision: Precision
    roofline: Roofline
    classes: Classes
    domains: GraphOptions
    transitions: Transitions
    sparse: Collection[int]
    in_flight: int = 1
    tables: dict[int, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uses = {(base, u.node, u.operand): u for base, uses in self.classes.uses.items() for u in uses}

    def space(self, tensor: int) -> Space:
        """The layouts of a tensor."""
        return space(self.placement.sizes, atoms(self.pcg)[tensor].sizes)

    def source(self, node: int, operand: int) -> int:
        return self.classes.base[self.pcg.nodes[node].inputs[operand]]

    def kind(self, node: int, operand: int) -> str:
        """Whence an operand comes: a layout that is fixed, one that is decided on, or a read counted elsewhere.

        What the operator updates is stored as it asks.
        """
        source = self.source(node, operand)
        if source in updated(self.pcg):
            return "updated"
        if self.classes.constant[source]:
            return "constant"
        if source in self.classes.handed:
            return "handed"
        if self.pcg.nodes[source].op == "input":
            return "input"
        return "decided" if (source, node, operand) in self.uses else "repeated"

    def table(self, base: int) -> Table:
        """The conversions of a tensor class, in the base's atoms."""
        if base not in self.tables:
            node = self.pcg.nodes[base]
            tensor = self.space(base)
            self.tables[base] = self.transitions.table(tensor, self.precision.itemsize(node.dtype), node.gradient)
        return self.tables[base]

    def asked(self, use: Use) -> Codes:
        """What each option of a consumer asks of the tensor class, as codes in the base's atoms."""
        found = self.domains.of(self.classes.decides(use.node))
        own, codes = found.input_spaces[use.operand], found.inputs[use.operand]
        base = self.classes.base[self.pcg.nodes[use.node].inputs[use.operand]]
        target = self.space(base)
        letters = np.array([R, R if use.node in self.classes.twin else B, P, *(S(a) for a in use.atoms)])
        return (letters[own.letters[codes]] @ target.weights).astype(np.int64)

    def again(self, base: int, source: Codes, target: Codes) -> Array:
        """Time of a conversion in a pass without gradient, where B is R."""
        table = self.table(self.classes.passes.get(base, (base,))[0])
        tensor = self.space(base)
        a, b = (table.position[tensor.without_addends(codes)] for codes in (source, target))
        return table.forward[a][:, b] * self.k

    def kept(self, found: OperatorOptions, operand: int) -> Array:
        """Bytes of an input that its consumer keeps for backward, per option of the consumer."""
        if not found.saves[operand]:
            return np.zeros(len(found), dtype=np.int64)
        kept = found.input_spaces[operand].numel[found.inputs[operand]] * found.items[operand]
        return self.in_flight * np.where(found.copied[operand], 0, kept)

    def saves(self, use: Use) -> bool:
        """Whether a consumer keeps what it reads for backward."""
        return use.node not in self.classes.twin and self.domains.of(use.node).saves[use.operand]

    def handover(self, tensor: int) -> Codes:
        """The layout in which a pass hands on a tensor."""
        return np.array([self.space(tensor).code(handover(self.pcg, tensor, self.placement.sizes))])

    def time_of_fixed(self, node: int, operand: int, kind: str) -> Array | int:
        """Time to convert an operand from a layout that is not decided on."""
        if kind not in ("constant", "handed"):
            return 0
        table, given, asked = self._fixed(node, operand, kind)
        times: Array = self.k * table.forward[given, asked]
        return times

    def kept_of_fixed(self, node: int, operand: int, kind: str) -> Array | int:
        """Bytes of an operand that the operator keeps and no edge counts."""
        found = self.domains.of(node)
        if kind == "updated":
            item = self.precision.buffer_itemsize(self.pcg.nodes[self.source(node, operand)].dtype)
            stored: Array = found.input_spaces[operand].numel[found.inputs[operand]] * item
            return stored
        kept = self.kept(found, operand)
        if kind == "input":
            return kept
        if kind not in ("constant", "handed"):
            return 0
        table, given, asked = self._fixed(node, operand, kind)
        return np.where(table.moves[given, asked], kept, 0)

    def _fixed(self, node: int, operand: int, kind: str) -> tuple[Table, Codes, Codes]:
        """The conversions of an operand, and where in them the layout it has and those asked are."""
        source = self.source(node, operand)
        given = self.handover(source) if kind == "handed" else np.array([R])
        use = Use(node, operand, self.classes.atoms[self.pcg.nodes[node].inputs[operand]])
        table = self.table(source)
        return table, table.position[given], table.position[self.asked(use)]

    def from_operator(self, base: int, use: Use, given: Codes, held: npt.NDArray[np.bool_]) -> EdgeTables:
        """From where it is made, or a hub; `held`: kept for backward there. Without gradient only the way forward."""
        table, asked, found = self.table(base), self.asked(use), self.domains.of(self.classes.decides(use.node))
        alone = use.node in self.classes.twin
        out, to = table.position[given], table.position[asked]
        # A loss keeps a copy in float32, apart from the tensor itself.
        again = table.moves[out][:, to] | ~held[:, None] | (self.pcg.nodes[use.node].op in LOSS_TRANSIENTS)
        kept = np.where(again & (found.saves[use.operand] and not alone), self.kept(found, use.operand), 0)
        cost = (table.forward if alone else table.total)[out][:, to] * self.k
        if use.again:
            cost = cost + use.again * self.again(base, given, asked)
        return self._unmoved(base, given, asked, cost), _some(kept)

    def to_hub(self, base: int, offered: OperatorOptions, saved: bool, again: int) -> EdgeTables:
        """From where it is made to every layout in which it may be shared; `again` more times without gradient."""
        table = self.table(base)
        out = table.position[offered.output]
        cost = table.total[out] * self.k
        if again:
            cost = cost + again * self.again(base, offered.output, table.codes)
        if not saved:
            return cost, None
        item = self.in_flight * self.precision.itemsize(self.pcg.nodes[base].dtype)
        size = offered.output_space.numel[table.codes] * item
        kept = table.moves[out] | ~offered.saves_output[:, None]
        return cost, _some(np.where(kept, size, 0))

    def from_storage(
        self, base: int, stored: Storage, asked: Codes, saved: bool, again: int = 0, alone: bool = False
    ) -> EdgeTables:
        """From storage to a layout, each micro-batch: cast, conversion, and both again where it is not kept.

        `again` more times without gradient; `alone`: only so.
        """
        if base in self.sparse:  # read as it is stored
            return np.where(stored.codes[:, None] == asked, 0, INFINITE), None
        table = self.table(base)
        a, b = table.position[stored.codes], table.position[asked]
        cast = cast_ns(stored, self.precision, self.roofline)[:, None]
        once = table.forward[a][:, b] + cast
        if alone:
            return self._unmoved(base, stored.codes, asked, once * self.k), None
        cost = (table.total[a][:, b] + cast + np.where(stored.regather[:, None], once, 0)) * self.k
        if again:
            tensor = self.space(base)
            plain = table.position[tensor.without_addends(asked)]
            cost = cost + again * (table.forward[a][:, plain] + cast) * self.k
        cost = self._unmoved(base, stored.codes, asked, cost)
        if not saved:
            return cost, None
        size = stored.space.numel[asked] * self.in_flight * self.precision.itemsize("float32")
        copied = table.moves[a][:, b] | self.precision.mixed
        return cost, _some(np.where(copied & ~stored.regather[:, None], size, 0))

    def _unmoved(self, base: int, given: Codes, asked: Codes, cost: Array) -> Array:
        """Costs of conversions, but of joined tables: where they are spread, they are read as they are stored."""
        if not table_rows(self.pcg.nodes[base]):
            return cost
        spread = (self.space(base).has(codes, P).any(axis=1) for codes in (given, asked))
        moved = (given[:, None] != asked) & np.logical_or.outer(*spread)
        return np.where(moved, INFINITE, cost)


def _some(kept: Array) -> Array | None:
    """The table with its one resource as last dim; None where nothing is used."""
    return kept[:, :, None] if kept.any() else None
