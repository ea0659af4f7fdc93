"""What the operators and conversions of a segment cost, computed whole or in parts of its samples.

A part is what the graph of as many samples computes, with the same options: of p parts it runs p times as often.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import Atoms, atoms
from ...model.graph.layout import R
from ..strategies.operand_cost import OperandCosts
from ..strategies.operator_options import OperatorOptions
from ..strategies.sample_parts import samples_split_by
from ..strategies.tensor_classes import Use
from ..strategies.transitions import Codes, Space, Table

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class SegmentCosts:
    """The costs of a step, in `parts`; `whole` and `costs` are those of all samples and of one part.

    Tables have the options and layouts of the whole; what cannot be computed in parts has any number, see `fits` and
    `stays`.
    """

    def __init__(self, whole: OperandCosts, costs: OperandCosts, parts: int) -> None:
        self.whole, self.costs, self.parts, self.micro_batches = whole, costs, parts, costs.micro_batches
        self._aligned: dict[int, tuple[OperatorOptions, Mask]] = {}

    @cached_property
    def known(self) -> tuple[Atoms, ...]:
        return atoms(self.whole.pcg)

    def options(self, node: int) -> OperatorOptions:
        """The options of an operator for a part."""
        return self._options(node)[0]

    def fits(self, node: int) -> Mask:
        """The options in which every rank's samples divide into the parts."""
        return self._options(node)[1]

    def input_bytes(self, node: int, operand: int) -> Array:
        """Bytes of an input that an operator keeps for backward of one micro-batch, or part of it."""
        return self.costs.input_bytes(self.options(node), operand) // self.costs.in_flight

    def _options(self, node: int) -> tuple[OperatorOptions, Mask]:
        number = self.whole.options.number(node)
        if number not in self._aligned:
            self._aligned[number] = self._align(node)
        return self._aligned[number]

    def _align(self, node: int) -> tuple[OperatorOptions, Mask]:
        found = self.whole.options.of(node)
        if self.parts == 1:
            return found, np.ones(len(found), dtype=bool)
        part = self.costs.options.of(node)
        digits = len(found.rows) ** np.arange(found.choice.shape[1])
        places = {int(code): place for place, code in enumerate(part.choice @ digits)}
        at = np.array([places.get(int(code), -1) for code in found.choice @ digits])
        tensors = (*self.whole.pcg.nodes[node].inputs, node)
        layouts = zip(tensors, (*found.input_spaces, found.output_space), (*found.inputs, found.output), strict=True)
        divide = [self._divide(self.known[i], tensor, codes) for i, tensor, codes in layouts]
        return part.only(np.maximum(at, 0)), np.logical_and.reduce([at >= 0, *divide])

    def _divide(self, known: Atoms, tensor: Space, codes: Codes) -> Mask:
        if not known.batch:
            return np.ones(len(codes), dtype=bool)
        split = samples_split_by(tensor, known, codes)
        ranks = np.where(split, np.array(tensor.axes), 1).prod(axis=1)
        found: Mask = known.sizes[min(known.batch)] % (ranks * self.parts) == 0
        return found

    def stays(self, base: int, given: Codes, required: Codes) -> Mask:
        """[given, required]: conversions that leave every sample on its ranks."""
        if self.parts == 1:
            return np.ones((len(given), len(required)), dtype=bool)
        tensor = self.whole.space(base)
        a, b = (samples_split_by(tensor, self.known[base], codes) for codes in (given, required))
        same: Mask = (a[:, None] == b[None]).all(axis=2)
        return same

    def total_ns(self, base: int, given: Codes, required: Codes) -> Array:
        """[given, required]: time of conversions, both ways."""
        table, a, b = self._places(base, given, required)
        return table.total[a][:, b] * self.micro_batches

    def forward_ns(self, base: int, given: Codes, required: Codes) -> Array:
        """[given, required]: time of conversions in forward."""
        table, a, b = self._places(base, given, required)
        return table.forward[a][:, b] * self.micro_batches

    def calls(self, base: int, given: Codes, required: Codes) -> Array:
        """[2, given, required]: calls of the framework for conversions."""
        table, a, b = self._places(base, given, required)
        found: Array = table.calls[:, a][:, :, b].astype(np.int64) * self.micro_batches
        return found

    def _places(self, base: int, given: Codes, required: Codes) -> tuple[Table, Codes, Codes]:
        table = self.costs.table(base)
        last = len(table.position) - 1
        a, b = (table.position[np.minimum(codes, last)] for codes in (given, required))
        return table, a, b

    def constant_ns(self, node: int, operand: int) -> Array:
        """Time to convert a constant, which is whole on every rank, for each option of its reader."""
        found: Array = self.forward_ns(*self._constant(node, operand))[0]
        return found

    def constant_calls(self, node: int, operand: int) -> Array:
        """Calls of the framework for that conversion."""
        found: Array = self.calls(*self._constant(node, operand))[0, 0]
        return found

    def _constant(self, node: int, operand: int) -> tuple[int, Codes, Codes]:
        """A constant, the layout that it is given in, and those required."""
        use = Use(node, operand, self.whole.classes.atoms[self.whole.pcg.nodes[node].inputs[operand]])
        return self.whole.source(node, operand), np.array([R]), self.whole.required(use)

    def forward_of(self, node: int) -> Array:
        """Time of an operator in forward, for each option."""
        return self.options(node).forward_ns * self.micro_batches

    # Once for all parts

    def joined_ns(self, size_bytes: Array) -> Array:
        """Time to join the parts of tensors of these bytes: of results, or of the gradients of what is read."""
        if self.parts == 1:
            return np.zeros_like(size_bytes)
        moved = 2 * size_bytes.astype(np.float64)
        return self.costs.roofline.ns(np.zeros(1), moved) * self.whole.micro_batches

    def added_ns(self, size_bytes: Array) -> Array:
        """Time to add up the gradients, of these bytes, that the parts give for what all of them read whole."""
        if self.parts == 1:
            return np.zeros_like(size_bytes)
        additions = self.parts - 1
        moved = 3 * additions * size_bytes.astype(np.float64)
        return self.costs.roofline.ns(np.zeros(1), moved, float(additions)) * self.whole.micro_batches

    def bytes(self, base: int, codes: Codes) -> Array:
        """Bytes of a tensor of all samples in these layouts."""
        itemsize = self.whole.precision.itemsize(self.whole.pcg.nodes[base].dtype)
        size: Array = self.whole.space(base).numel[codes] * itemsize
        return size

    def read_ns(self, base: int, given: Codes) -> Array:
        """[given]: what a segment adds to the backward of a value that it reads from outside."""
        size = self.bytes(base, given)
        if self.parts == 1 or not self.whole.pcg.nodes[base].gradient:
            return np.zeros_like(size)
        return self.joined_ns(size) if self.known[base].batch else self.added_ns(size)

    def read_calls(self, base: int) -> int:
        """Calls of the framework for that."""
        if self.parts == 1 or not self.whole.pcg.nodes[base].gradient:
            return 0
        return self.whole.micro_batches * (1 if self.known[base].batch else self.parts - 1)
