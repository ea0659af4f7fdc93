"""What sparse gradients of tables take in space-time plans, as the planner prices it: memory, joining, updating."""

from collections import Counter
from math import prod

import numpy as np

from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from ..weights.storage import looked_up_ns
from .graph import Graph
from .mask import Mask, whole
from .op import Op


class RowPrices:
    """The `tables` of one graph that have sparse gradients."""

    def __init__(self, graph: Graph, precision: Precision, roofline: Roofline) -> None:
        self.graph, self.precision, self.roofline = graph, precision, roofline
        self.tables = sparse_tables(graph.pcg)

    def gradient_bytes(self, op: Op) -> int:
        """Bytes of the gradient that a look-up gives: for every id its number and the part of a row."""
        return self._ids(op) * (self._columns_bytes(op.of.inputs[0], op.mask(0)) + ITEMSIZE["int64"])

    def update_ns(self, op: Op) -> int:
        """Joining the gradients of the micro-batches of a device, and updating the rows."""
        readers = [own for reader in self.graph.pcg.consumers[op.node] for own in self.graph.parts(reader)]
        given = [own for own in readers if own.device == op.device and own.of.gradient]
        if not given:
            return 0
        micros = max(Counter(own.node for own in given).values())
        size = sum(map(self.gradient_bytes, given)) // micros
        touched = self.roofline.machine.device.touched(self._columns_bytes(op.node, op.mask(None)))
        moved = sum(map(self._ids, given)) * (touched + ITEMSIZE["int64"]) // micros
        return int(looked_up_ns(np.array(size), np.array(moved), micros, self.roofline))

    def _ids(self, op: Op) -> int:
        """How many ids a device may get gradients for: a special strategy may bring it those of others."""
        mask = whole(self.graph.atoms[op.of.inputs[1]].sizes)
        for cut in op.cuts:
            mask = mask if cut.row.special else mask.cut(cut.row.inputs[1], cut.parts, cut.number)
        return mask.numel

    def _columns_bytes(self, table: int, mask: Mask) -> int:
        """Bytes of what lies of a row in a part of a table."""
        rows = self.graph.atoms[table].of_dim(0)
        columns = prod(size for atom, size in enumerate(mask.sizes) if atom not in rows)
        return columns * ITEMSIZE[self.precision.master]
