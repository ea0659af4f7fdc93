"""Time and memory of a node's options: arithmetic shrinks with every split index, traffic with what tensors hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import Atoms
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.layout import atom_of, is_split, largest_part
from ...model.machine.roofline import backward_factor
from ...model.operators.operator import operator
from ..pipeline.stage_transfers import messages
from .mesh_node import MeshNode
from .special_options import SpecialRows
from .transitions import Codes

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LOSS_TRANSIENTS = {"cross_entropy": 1}
"""Operators at the turn from forward to backward, when all activations live: copies of their input that come on top."""


class OptionCosts:
    """The costs of one micro-batch, per option; `choice` [options, axes] are rows, `codes` layouts of every tensor."""

    def __init__(
        self, at: MeshNode, choice: npt.NDArray[np.int16], codes: Sequence[Codes], specials: SpecialRows
    ) -> None:
        self.at, self.node, self.sources = at, at.node, at.sources
        self.entry, self.looked_up = operator(at.node.op), operator(at.node.op).looked_up(at.node, at.sources)
        *self.inputs, self.output = codes
        *self.items, self.item = at.itemsizes
        self.row = self._row(specials.situation.inputs)  # elements that a look-up reads together
        self.made = np.zeros(len(choice), dtype=np.int64)  # further elements of the first input's size that it keeps
        self.share = self._share(choice)  # of the work, the most that one rank has
        self.copied = [np.zeros(len(choice), dtype=bool) for _ in at.sources]
        self.sent = np.zeros((3, len(choice)), dtype=np.int64)  # ns forward and backward, bytes kept
        self.messages = np.zeros((2, len(choice)), dtype=np.int64)  # forward and backward
        self.stored = [s.numel[c] for s, c in zip(at.spaces, self.inputs, strict=False)]
        exchanges = (specials.special[choice] & (np.array(at.transitions.axes) > 1)).any(axis=1)
        self.fused = ~exchanges & bool(at.fused)  # an exchange of its own makes it several kernels
        for option in np.flatnonzero(specials.among(choice)):
            cost = specials.cost(choice[option], [int(c[option]) for c in codes])
            self.sent[:, option], self.share[option] = cost.amounts, self.share[option] * cost.work
            self.messages[:, option] = cost.messages
            for operand in cost.copied:
                self.copied[operand][option] = True
            if cost.spread is not None:
                self.stored[0][option], self.row[option] = cost.spread.largest.elements, cost.spread.unit

    def _row(self, known: Sequence[Atoms]) -> Array:
        if self.looked_up is None:
            return np.ones(len(self.output), dtype=np.int64)
        place, _, dims = self.looked_up
        atoms = {a for dim in dims for a in known[place].of_dim(dim)}
        own = self.at.spaces[place].only(atoms)
        elements: Array = own.numel[self.inputs[place]]
        return elements

    def _share(self, choice: npt.NDArray[np.int16]) -> Floats:
        shares = self._shares(choice)
        share: Floats = np.prod([np.ones(len(choice)), *shares.values()], axis=0)
        for name, part in shares.items() if self.entry.split is not None else ():
            for value in np.unique(part[part < 1]):
                assert self.entry.split is not None
                more, elements = self.entry.split(self.node, self.sources, name, float(value))
                share[part == value] *= more
                self.made[part == value] += elements
        return share

    def _shares(self, choice: npt.NDArray[np.int16]) -> dict[str, Floats]:
        """For every index the largest share of it that one rank has; their product is that of the work."""
        axes = self.at.transitions.axes
        shares: dict[str, Floats] = {}
        for number, row in enumerate(self.at.rows):
            if row.index is None or row.index[0].startswith("@"):  # every rank looks up all ids among its rows
                continue
            letters = zip((*row.inputs, row.output), self.at.spaces, strict=True)
            letter, owner = next((x, s) for x, s in letters if is_split(x))
            size = owner.sizes[atom_of(letter)]
            mask = (choice == number) @ (1 << np.arange(len(axes)))
            parts = [tuple(axes[a] for a in range(len(axes)) if m >> a & 1) for m in range(1 << len(axes))]
            share = np.array([largest_part(size, p) / size for p in parts])[mask]
            shares[row.index[0]] = shares.get(row.index[0], 1.0) * share
        return shares

    @property
    def _output_numel(self) -> Array:
        numel: Array = self.at.spaces[-1].numel[self.output]
        return numel

    def _traffic(self) -> Floats:
        """Bytes that the operator reads and writes once, forward."""
        precision = self.at.precision
        traffic: npt.NDArray[Any] = self._output_numel * self.item
        for i, (s, c, item) in enumerate(zip(self.at.spaces, self.inputs, self.items, strict=False)):
            if self.looked_up and i == self.looked_up[0]:  # what is looked up, not the table
                # The rows of a sparse table are cast after the look-up: they are read, written and read again before.
                cast = self.node.get("sparse") and precision.compute != precision.master
                traffic = traffic + self._rows_read(ITEMSIZE[precision.master] if cast else item, bool(cast))
            else:
                read = ~self.fused if i in self.at.fused else 1
                traffic = traffic + s.numel[c] * item * read
        return traffic

    def _rows_read(self, item: int, cast: bool) -> Floats:
        """Bytes that a look-up reads: for every row whole transactions, for all no more than the table's bytes."""
        assert self.looked_up is not None
        place, elements, _ = self.looked_up
        row, count = self.row * item, elements * self.share
        touched = count * item * (self.at.roofline.machine.device.touched(row) / row)
        read = np.maximum(count * item, np.minimum(touched, self.stored[place] * item))
        return read + 2 * count * item if cast else read

    @property
    def _kernels(self) -> Floats:
        """How many are launched; what is fused runs in the kernel before."""
        return np.where(self.fused, 0.0, self.entry.kernels(self.node, self.sources))

    def times_ns(self) -> tuple[Array, Array]:
        """Time of forward, and of forward and backward."""
        entry, node, roofline = self.entry, self.node, self.at.roofline
        work = entry.work(node, self.sources) * roofline.machine.device.work_factor(node.op) * self.share
        forward = time = np.zeros(len(self.output), dtype=np.int64)
        if entry.passes:
            traffic = self._traffic()
            forward = time = roofline.ns(
                work, traffic * entry.moved(node), self._kernels, roofline.measured(node, "forward")
            )
            time = time + self._backward_ns(work, traffic) if node.gradient else time
        table = self._dense_table()
        if table is not None:  # whose gradient is zeroed, then added to
            cleared: npt.NDArray[Any] = self.stored[table] * self.items[table] * 1.0
            time = time + roofline.memory_ns(cleared)
        return forward + self.sent[0], time + self.sent[0] + self.sent[1] * node.gradient

    def _dense_table(self) -> int | None:
        """The operand whose rows are looked up, if it has a dense gradient."""
        if self.looked_up is None or not self.node.gradient or self.node.get("sparse"):
            return None
        return self.looked_up[0] if self.sources[self.looked_up[0]].gradient else None

    def calls(self) -> Array:
        """[2, options]: calls of the framework in forward, and in backward; every message is one."""
        forward, backward = self.entry.calls(self.node, self.sources)
        more = (self.entry.masked and backward > 0) + (self._dense_table() is not None)
        own = self.messages.copy()
        own[1] *= self.node.gradient
        own += np.array([[forward], [backward]]) * ~np.asarray(self.fused)
        own[1] += more
        return own

    def _backward_ns(self, work: Floats, traffic: Floats) -> Array:
        entry, node, roofline = self.entry, self.node, self.at.roofline
        moved = 2 * traffic * entry.moved(node)
        if entry.scratch is not None:
            moved = moved + 2 * entry.scratch(node, self.sources) * self.share * self.item
        back = work * backward_factor(node, self.sources, entry.matmul)
        time = roofline.ns(back, moved, self._kernels, roofline.measured(node, "backward"))
        if entry.masked:  # priced as the activation's own backward
            own: npt.NDArray[Any] = self._output_numel * 1.0
            time = time + roofline.ns(own, 4 * own * self.item)
        return time

    def kept_bytes(self) -> Array:
        """What the operator itself keeps for backward: its output, a mask, indices, what special strategies keep."""
        kept: Array = self.sent[2] * self.node.gradient
        if self.node.gradient and self.made.any():
            kept = kept + self.made * self.items[0]
        for name in self.entry.kept(self.node, self.sources):
            if name in ("y", "gate"):
                count = self.entry.gate_count(self.node, self.sources) if name == "gate" else 1
                kept = kept + self._output_numel * count * self.item
            elif name in ("mask", "noise"):
                item = self.items[0] if name == "noise" else ITEMSIZE["bool"]
                kept = kept + self.at.spaces[0].numel[self.inputs[0]] * item
            elif name == "indices":
                kept = kept + self._output_numel * ITEMSIZE["int64"]
        return kept

    def transient_bytes(self) -> Array:
        """What the operator holds at the turn to backward only."""
        if self.entry.message:
            sent: Array = messages(self.node.gradient) * self._output_numel * self.item
            return sent
        copies = LOSS_TRANSIENTS.get(self.node.op, 0)
        if not copies:
            return np.zeros(len(self.output), dtype=np.int64)
        item = ITEMSIZE["float32"] + (self.items[0] if self.at.precision.narrow else 0)
        held: Array = copies * self.at.spaces[0].numel[self.inputs[0]] * item
        return held
