"""The cost of options with rows of special strategies."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import Layout, P
from ...model.operators.operator import operator
from ..special import Situation, part_of, special_rows_fit, special_strategy
from ..special.table_spread import TableSpread, TableSpreader, row_columns
from .mesh_node import MeshNode
from .row import Row


class SpecialCost(NamedTuple):
    """What the special rows of one option add.

    `amounts` are ns forward and backward, and bytes kept; `messages` how many are sent forward and backward; `work` the
    factor by which the work is more than an even share; `copied` the operands of which something else is kept; `spread`
    how joined tables, the first operand, lie.
    """

    amounts: tuple[int, int, int]
    messages: tuple[int, int]
    work: float
    copied: tuple[int, ...]
    spread: TableSpread | None


class SpecialRows:
    """The special rows among the rows of a node: which options have them, whether these can run, what they cost."""

    def __init__(self, at: MeshNode, situation: Situation, spread_tables: TableSpreader) -> None:
        self.at, self.situation, self.spread_tables = at, situation, spread_tables
        self.special = np.array([bool(row.special) for row in at.rows])

    def among(self, choice: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
        """The options with a special row."""
        return np.asarray(self.special[choice].any(axis=1), dtype=np.bool_)

    def _layouts(self, codes: Sequence[int]) -> tuple[tuple[Layout, ...], Layout]:
        *inputs, output = (s.layout(c) for s, c in zip(self.at.spaces, codes, strict=True))
        return tuple(inputs), output

    def fits(self, choice: npt.NDArray[np.int16], codes: Sequence[int]) -> bool:
        inputs, output = self._layouts(codes)
        sizes, taken = self.at.transitions.axes, [self.at.rows[r] for r in choice]
        spreads = (self._spread(row, n) for row, n in zip(taken, sizes, strict=True) if n > 1 and self._spreads(row))
        return None not in spreads and special_rows_fit(taken, inputs, output, sizes)

    def _spreads(self, row: Row) -> bool:
        """True if a row requires joined tables that are spread."""
        return bool(row.special) and row.inputs[0] == P and bool(table_rows(self.situation.sources[0]))

    def _spread(self, row: Row, ranks: int) -> TableSpread | None:
        if not self._spreads(row):
            return None
        table, device = self.situation.sources[0], self.at.roofline.machine.device
        least = row_columns(device, self.at.precision, sparse=bool(self.situation.node.get("sparse")))
        return self.spread_tables(table_rows(table), table.shape[1], ranks, least)

    def cost(self, choice: npt.NDArray[np.int16], codes: Sequence[int]) -> SpecialCost:
        inputs, output = self._layouts(codes)
        sizes, sums, work, copied = self.at.transitions.axes, [0, 0, 0], 1.0, set[str]()
        spread, messages = None, [0, 0]
        for axis, row in enumerate(self.at.rows[r] for r in choice):
            if not row.special or sizes[axis] == 1:
                continue
            entry = special_strategy(row.special)
            here = self._spread(row, sizes[axis])
            part = part_of(self.situation, row, sizes[axis], (inputs, output), sizes, self.at.itemsizes, spread=here)
            spread = spread or here
            for message in entry.messages(part):
                ns = self.at.transitions.step_ns(axis, message.action, message.size_bytes)
                sums[message.backward] += ns * message.times
                messages[message.backward] += message.times
            sums[2] = max(sums[2], entry.kept(part))
            work *= entry.work(part)
            copied.update(entry.copied(part))
        names = operator(self.situation.node.op).named(self.situation.node)
        operands = tuple(k for k, name in enumerate(names) if name in copied)
        return SpecialCost((sums[0], sums[1], sums[2]), (messages[0], messages[1]), work, operands, spread)
