"""The cost of bringing a tensor to an operator that reads it: time and memory for every pair of options.

A tensor comes from another operator, from a hub, from storage, or in a layout that is not decided.
"""

from collections.abc import Hashable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import atoms
from ...model.graph.buffer_updates import updated
from ...model.graph.constants import fills
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, P, R, S
from ...model.graph.sparse_tables import sparse_tables
from ..network.network import INFINITE
from ..weights.storage import Storage, cast_ns
from .graph_options import GraphOptions
from .operator_options import OperatorOptions
from .option_costs import LOSS_TRANSIENTS
from .tensor_classes import Classes, Use, handover
from .transitions import Codes, Space, Table, space

Array = npt.NDArray[np.int64]
EdgeTables: TypeAlias = tuple[Array, Array | None]
"""Time [given, required] in ns of a step, and bytes [given, required, 1] kept for backward; None if nothing is."""


class OperandCosts:
    """The costs of all reads of a graph of `micro_batches`; what is kept for backward is kept `in_flight` times.

    `shares`: of weights that travel with others, the share of a collective's latency that each pays.
    """

    def __init__(
        self,
        options: GraphOptions,
        micro_batches: int,
        classes: Classes,
        in_flight: int = 1,
        shares: Mapping[int, float] | None = None,
    ) -> None:
        self.options, self.micro_batches, self.classes, self.in_flight = options, micro_batches, classes, in_flight
        self.shares = shares or {}
        self.pcg, self.precision, self.roofline = options.pcg, options.precision, options.roofline
        self.transitions, self.placement = options.transitions, options.transitions.placement
        self.sparse = sparse_tables(self.pcg)
        self.tables: dict[int, Table] = {}
        self.uses = {(base, u.node, u.operand): u for base, uses in classes.uses.items() for u in uses}

    def space(self, tensor: int) -> Space:
        """The layouts of a tensor."""
        return space(self.placement.sizes, atoms(self.pcg)[tensor].sizes)

    def source(self, node: int, operand: int) -> int:
        """The tensor class of an operand."""
        return self.classes.base[self.pcg.nodes[node].inputs[operand]]

    def kind(self, node: int, operand: int) -> str:
        """How the layout of an operand comes about; "repeated": its read is counted where it is read first.

        "updated": a buffer that the operator updates, stored as it requires. "constant": whole on every rank. "handed":
        handed over by a pass without gradient. "input": read in any layout. "decided": by a variable.
        """
        source = self.source(node, operand)
        if updated(self.pcg).get(source) == (node, operand):
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
            itemsize, share = self.precision.itemsize(node.dtype), self.shares.get(base)
            table = self.transitions.table(tensor, itemsize, node.gradient, share)
            self.tables[base] = table.of_fill if base in fills(self.pcg) else table
        return self.tables[base]

    def required(self, use: Use) -> Codes:
        """The layout of the tensor class that each option of a reader requires, as codes in the base's atoms."""
        found = self.options.of(self.classes.decides(use.node))
        own, codes = found.input_spaces[use.operand], found.inputs[use.operand]
        base = self.classes.base[self.pcg.nodes[use.node].inputs[use.operand]]
        target = self.space(base)
        letters = np.array([R, R if use.node in self.classes.twin else B, P, *(S(a) for a in use.atoms)])
        return (letters[own.letters[codes]] @ target.weights).astype(np.int64)

    def without_gradient(self, base: int) -> Table:
        """The conversions of a tensor class in a pass without gradient."""
        return self.table(self.classes.passes.get(base, (base,))[0])

    def without_gradient_ns(self, base: int, source: Codes, target: Codes) -> Array:
        """Time of conversions [source, target] in a pass without gradient, where B is R."""
        table = self.without_gradient(base)
        tensor = self.space(base)
        a, b = (table.position[tensor.without_addends(codes)] for codes in (source, target))
        return table.forward[a][:, b] * self.micro_batches

    def input_bytes(self, found: OperatorOptions, operand: int) -> Array:
        """Bytes of an input that its reader keeps for backward, per option of the reader."""
        if not found.saves[operand]:
            return np.zeros(len(found), dtype=np.int64)
        kept = found.input_spaces[operand].numel[found.inputs[operand]] * found.items[operand]
        return self.in_flight * np.where(found.copied[operand], 0, kept)

    def saves(self, use: Use) -> bool:
        """True if a reader keeps what it reads for backward."""
        return use.node not in self.classes.twin and self.options.of(use.node).saves[use.operand]

    def keeps_unchanged(self, use: Use) -> bool:
        """True if a reader keeps what it reads for backward as it is: a loss keeps a copy of its own."""
        return self.saves(use) and self.pcg.nodes[use.node].op not in LOSS_TRANSIENTS

    def handover(self, tensor: int) -> Codes:
        """The layout in which a pass without gradient hands over a tensor."""
        return np.array([self.space(tensor).code(handover(self.pcg, tensor, self.placement.sizes))])

    def undecided_key(self, node: int, operand: int) -> Hashable:
        """What the time and the bytes of such a conversion depend on, beside the options of the node that decides."""
        kind = self.kind(node, operand)
        if kind not in ("constant", "handed"):
            return kind
        source = self.source(node, operand)
        return kind, id(self.table(source)), self._given(source, kind), self._read(node, operand).atoms

    def undecided_ns(self, node: int, operand: int) -> Array | int:
        """Time to convert an operand whose layout no variable decides."""
        kind = self.kind(node, operand)
        if kind not in ("constant", "handed"):
            return 0
        table, given, required = self._undecided(node, operand, kind)
        times: Array = self.micro_batches * table.forward[given, required]
        return times

    def undecided_calls(self, node: int, operand: int) -> Array | int:
        """Calls of the framework in a step for that conversion."""
        kind = self.kind(node, operand)
        if kind not in ("constant", "handed"):
            return 0
        table, given, required = self._undecided(node, operand, kind)
        calls: Array = table.calls[0, given, required].astype(np.int64)
        return self.micro_batches * calls

    def undecided_bytes(self, node: int, operand: int) -> Array | int:
        """Bytes of an operand that the operator keeps and no edge counts."""
        kind, found = self.kind(node, operand), self.options.of(node)
        if kind == "updated":
            item = self.precision.buffer_itemsize(self.pcg.nodes[self.source(node, operand)].dtype)
            stored: Array = found.input_spaces[operand].numel[found.inputs[operand]] * item
            return stored
        if kind == "input":
            return self.input_bytes(found, operand)
        if kind not in ("constant", "handed"):
            return 0
        table, given, required = self._undecided(node, operand, kind)
        return np.where(table.moves[given, required], self.input_bytes(found, operand), 0)

    def _undecided(self, node: int, operand: int, kind: str) -> tuple[Table, Codes, Codes]:
        """The conversions of an operand, and the positions there of the layout that it has and those required."""
        source = self.source(node, operand)
        table, given = self.table(source), np.array([self._given(source, kind)])
        return table, table.position[given], table.position[self.required(self._read(node, operand))]

    def _given(self, source: int, kind: str) -> int:
        """The layout, as a code, of what is handed over, or of a constant."""
        return int(self.handover(source)[0]) if kind == "handed" else R

    def _read(self, node: int, operand: int) -> Use:
        return Use(node, operand, self.classes.atoms[self.pcg.nodes[node].inputs[operand]])

    def from_operator(self, base: int, use: Use, given: Codes, held: npt.NDArray[np.bool_]) -> EdgeTables:
        """From the operator that computes a tensor, or a hub, to a reader; `held`: kept for backward there."""
        table, required, found = self.table(base), self.required(use), self.options.of(self.classes.decides(use.node))
        repeats = use.node in self.classes.twin  # which has no backward
        out, to = table.position[given], table.position[required]
        # A loss keeps a copy in float32, apart from the tensor itself.
        copied = table.moves[out][:, to] | ~held[:, None] | (self.pcg.nodes[use.node].op in LOSS_TRANSIENTS)
        kept = np.where(copied & (found.saves[use.operand] and not repeats), self.input_bytes(found, use.operand), 0)
        cost = (table.forward if repeats else table.total)[out][:, to] * self.micro_batches
        if use.repeats:
            cost = cost + use.repeats * self.without_gradient_ns(base, given, required)
        return self._unmoved(base, given, required, cost), _some(kept)

    def to_hub(self, base: int, given: OperatorOptions, kept: bool, repeats: int) -> EdgeTables:
        """From the operator that computes a tensor to every layout of its hub, `repeats` more times without gradient.

        `kept`: the hub's layout is kept for backward.
        """
        table = self.table(base)
        out = table.position[given.output]
        cost = table.total[out] * self.micro_batches
        if repeats:
            cost = cost + repeats * self.without_gradient_ns(base, given.output, table.codes)
        if not kept:
            return cost, None
        item = self.in_flight * self.precision.itemsize(self.pcg.nodes[base].dtype)
        copied = table.moves[out] | ~given.saves_output[:, None]
        return cost, _some(np.where(copied, given.output_space.numel[table.codes] * item, 0))

    def from_storage(self, base: int, stored: Storage, use: Use) -> EdgeTables:
        """From storage to a reader: cast and conversion in every micro-batch, both again for backward if not kept."""
        required = self.required(use)
        if base in self.sparse or use.node not in self.classes.twin:
            return self.from_storage_to(base, stored, required, self.saves(use), use.repeats)
        table = self.table(base)
        once = table.forward[table.position[stored.codes]][:, table.position[required]] + self._cast_ns(stored)
        return self._unmoved(base, stored.codes, required, once * self.micro_batches), None

    def from_storage_to(self, base: int, stored: Storage, required: Codes, kept: bool, repeats: int = 0) -> EdgeTables:
        """From storage to layouts, `repeats` more times without gradient; `kept` for backward unless regathered."""
        if base in self.sparse:  # read as it is stored
            return np.where(stored.codes[:, None] == required, 0, INFINITE), None
        table, cast = self.table(base), self._cast_ns(stored)
        a, b = table.position[stored.codes], table.position[required]
        once = table.forward[a][:, b] + cast
        cost = (table.total[a][:, b] + cast + np.where(stored.regather[:, None], once, 0)) * self.micro_batches
        if repeats:
            plain = table.position[self.space(base).without_addends(required)]
            cost = cost + repeats * (table.forward[a][:, plain] + cast) * self.micro_batches
        cost = self._unmoved(base, stored.codes, required, cost)
        if not kept:
            return cost, None
        size = stored.space.numel[required] * self.in_flight * self.precision.itemsize("float32")
        copied = table.moves[a][:, b] | self.precision.mixed
        return cost, _some(np.where(copied & ~stored.regather[:, None], size, 0))

    def _cast_ns(self, stored: Storage) -> Array:
        """[options, 1]: time to cast a stored weight once."""
        return cast_ns(stored, self.precision, self.roofline)[:, None]

    def _unmoved(self, base: int, given: Codes, required: Codes, cost: Array) -> Array:
        """`cost`, but joined tables that are spread are read only as they are stored."""
        if not table_rows(self.pcg.nodes[base]):
            return cost
        spread = (self.space(base).has(codes, P).any(axis=1) for codes in (given, required))
        moved = (given[:, None] != required) & np.logical_or.outer(*spread)
        return np.where(moved, INFINITE, cost)


def _some(kept: Array) -> Array | None:
    """The table with its one resource as last dim; None if nothing is used."""
    return kept[:, :, None] if kept.any() else None
