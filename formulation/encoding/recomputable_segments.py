"""Which segments may be recomputed, and how their tensors cross them."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...model.graph.batch import with_batch
from ...model.graph.pcg import PCG
from ...model.graph.segments import IN_PARTS, Segment, gives_product, segments
from ..strategies.alternatives import Alternatives
from ..strategies.operand_cost import OperandCosts
from ..strategies.sample_parts import parted_segments
from ..strategies.tensor_classes import Classes, Use
from .encoding_options import EncodingOptions
from .segment_costs import SegmentCosts

CostsOfPart: TypeAlias = Callable[[PCG, int], OperandCosts]
Modes: TypeAlias = tuple[tuple[str, SegmentCosts], ...]
"""Modes of recomputation, each with what a segment then costs."""


def uncertain(pcg: PCG, classes: Classes) -> set[int]:
    """Nodes that are computed only if an alternative is chosen."""
    return {*Alternatives(pcg, classes).conditional, *(i for members in pcg.members.values() for i in members)}


def recomputable_segments(pcg: PCG, classes: Classes) -> tuple[Segment, ...]:
    """The segments that may be recomputed: not near nodes with several alternatives."""
    unsure, base = uncertain(pcg, classes), classes.base

    def fits(segment: Segment) -> bool:
        near = {*segment.nodes, *(base[i] for n in segment.nodes for i in pcg.nodes[n].inputs)}
        readers = {u.node for i in near for u in classes.reads.get(i, ())} if unsure else set()
        return unsure.isdisjoint(near | readers)

    return tuple(s for s in segments(pcg) if fits(s))


def possible_modes(modes: tuple[str, ...], batch: int) -> tuple[str, ...]:
    """The modes of recomputation that divide a batch into parts of as many samples each."""
    return tuple(mode for mode in modes if batch % IN_PARTS.get(mode, 1) == 0)


class RecomputableSegments:
    """The segments of an encoding that have a mode; `number` maps their nodes to their place in `segments`.

    `of_part` gives the costs of a part of the samples, from its graph and how often it is computed in a step.
    """

    def __init__(
        self, pcg: PCG, classes: Classes, costs: OperandCosts, options: EncodingOptions, of_part: CostsOfPart
    ) -> None:
        self.pcg, self.classes, self.costs, self.modes = pcg, classes, costs, options.recompute
        self.space = options.space
        self.segments = () if self.modes == ("none",) else recomputable_segments(pcg, classes)
        self.number = {i: number for number, segment in enumerate(self.segments) for i in segment.nodes}
        counts = {IN_PARTS[mode] for mode in self.modes if mode in IN_PARTS and self.segments}
        self.in_parts = parted_segments(pcg) if counts else frozenset()
        self._costs = {1: SegmentCosts(costs, costs, 1)}
        for parts in counts:
            part = with_batch(pcg, pcg.batch // parts)
            self._costs[parts] = SegmentCosts(costs, of_part(part, costs.micro_batches * parts), parts)

    @property
    def whole(self) -> SegmentCosts:
        """What segments cost that are computed whole."""
        return self._costs[1]

    def in_modes(self, number: int) -> Modes:
        """The modes with the costs of a segment in each; a mode that it may not have has those of the whole."""
        return tuple((mode, self._costs[self.parts(number, mode)]) for mode in self.modes)

    def parts(self, number: int, mode: str) -> int:
        """In how many parts a mode computes a segment; 1 also where it cannot be computed so."""
        return IN_PARTS.get(mode, 1) if self.segments[number].name in self.in_parts else 1

    def allows(self, number: int, mode: str) -> bool:
        """True if a segment may have a mode."""
        name = self.segments[number].name
        return self.space.may_recompute(name, mode) and (mode not in IN_PARTS or name in self.in_parts)

    def output_kept(self, node: int, mode: str) -> npt.NDArray[np.bool_]:
        """The options with which a recomputed node keeps its output: of a product in which nothing is sent."""
        found = self.costs.options.of(node)
        special = np.array([bool(row.special) for row in found.rows])[found.choice]
        local: npt.NDArray[np.bool_] = ~np.logical_and(special, np.array(self.costs.placement.sizes) > 1).any(axis=1)
        return local if mode == "selective" and gives_product(self.pcg, node) else np.zeros_like(local)

    def reads_first(self, number: int, base: int, use: Use) -> bool:
        """True if a read is the first one in the segment of a tensor that enters it; weights apart."""
        if self.pcg.nodes[base].op == "parameter" or self.number.get(base) == number:
            return False
        return use == next(u for u in self.classes.uses[base] if self.number.get(u.node) == number)

    def leaves(self, base: int) -> bool:
        """True if a tensor is computed in a segment and read outside of it."""
        here = self.number.get(base)
        return here is not None and any(self.number.get(u.node) != here for u in self.classes.uses.get(base, ()))

    def kept_inside(self, base: int) -> bool:
        """True if a reader in the segment that computes a tensor keeps it for backward, as it is."""
        here = self.number.get(base)
        return here is not None and here in self._keeping(base)

    def kept_outside(self, base: int) -> bool:
        """True if a reader outside of the segment that computes a tensor keeps it for backward, as it is."""
        here = self.number.get(base)
        return any(number != here or here is None for number in self._keeping(base))

    def _keeping(self, base: int) -> list[int | None]:
        """The segments of the readers that keep a tensor; None for a reader in no segment."""
        uses = self.classes.uses.get(base, ())
        return [self.number.get(u.node) for u in uses if self.costs.keeps_unchanged(u)]

    def outside_readers(self, base: int) -> tuple[int, ...]:
        """The other segments that need a tensor kept only if they are recomputed: no reader outside keeps it."""
        if self.pcg.nodes[base].op == "parameter" or self.kept_outside(base):
            return ()
        here = self.number.get(base)
        uses = (u for u in self.classes.uses.get(base, ()) if u.node not in self.classes.twin)  # in no segment
        found = {self.number.get(u.node) for u in uses}
        return tuple(sorted(number for number in found if number is not None and number != here))
