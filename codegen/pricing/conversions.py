"""Sizes, times and conversions: what every part of a plan's price is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from ...formulation.strategies.tensor_classes import Classes, Use, classes
from ...formulation.strategies.transitions import Transitions
from ...model.graph.atoms import atoms
from ...model.graph.layout import Action, Layout, P, S, Step, atom_of, is_split, largest_part
from ...model.graph.segments import segments
from ...model.machine.collective_price import ROUNDING_NS
from ...model.machine.precision import precision
from ..plan.branches import bundles
from ..plan.plan import Plan
from ..plan.routes import route
from ..plan.table_spread import plan_spread
from .price_items import Item, Kept, Phase, Slot, StagePrice
from .price_items import Part as Section

_WRITTEN = (Action.GATHER, Action.PAD, Action.SLICE, Action.KEEP_FIRST)


class Moves:
    """Collects the items of a plan's price."""

    def __init__(self, plan: Plan, weight_versions: int = 0, deferred_weight_gradients: int = 0) -> None:
        self.plan, self.graph, self.k = plan, plan.graph, plan.micro_batches
        self.weight_versions, self.deferred_weight_gradients = weight_versions, deferred_weight_gradients
        self.device, self.precision = plan.machine.device, precision(plan.dtype)
        self.moves = Transitions(plan.machine, plan.placement, transfer=plan.transfer)
        self.known = atoms(plan.graph)
        self.classes: Classes = classes(plan.graph)
        found = ((i, plan_spread(plan, i)) for i in plan.graph.of("parameter"))
        self.spreads = {i: spread for i, spread in found if spread is not None}
        self.result, self.bundles = StagePrice(), bundles(plan)
        again = [s for s in segments(plan.graph) if s.name in plan.recompute] if plan.recompute else []
        self.segment = {i: segment.name for segment in again for i in segment.nodes}
        self.back: dict[str, list[Kept]] = {name: [] for name in plan.recompute}  # what running it again brings back

    # Recomputation

    def mode(self, index: int) -> str:
        """How much of the segment that a node belongs to runs again."""
        return self.plan.recompute[self.segment[index]] if index in self.segment else "none"

    def recomputed(self) -> None:
        """What the segment brings back that brings back most, since one runs again at a time."""
        if self.back:
            self.result.kept += max(self.back.values(), key=lambda held: sum(kept.bytes for kept in held))

    # Items

    def work(
        self, part: Section, kind: str, phase: Phase, node: int, ns: int, at: int = -1, slot: Slot = Slot.KERNEL
    ) -> None:
        """The device works alone."""
        self.result.items.append(Item(part, kind, phase, node, node if at < 0 else at, slot, ns, self.k))

    def step(
        self,
        part: Section,
        kind: str,
        node: int,
        at: int,
        slot: Slot,
        ns: int,
        axes: tuple[int, ...] = (),
        size: int = 0,
    ) -> None:
        """Once a step, after the last micro-batch."""
        self.result.items.append(Item(part, kind, "update", node, at, slot, ns, 1, axes, size))

    def hold(self, part: str, node: int, size_bytes: int) -> None:
        """Bytes that are there at all times, or only for a while: no more of them with more micro-batches in flight."""
        self.result.kept.append(Kept(part, node, size_bytes))

    def stay(self, part: str, node: int, size_bytes: int) -> None:
        """Bytes that are kept for backward, of every micro-batch in flight."""
        self.hold(part, node, size_bytes * self.plan.in_flight)

    def save(self, part: str, node: int, size_bytes: int, at: int = -1) -> None:
        """Bytes that what runs `at` a node keeps for backward; where that runs again, they come back for a while."""
        where = node if at < 0 else at
        if self.mode(where) == "none":
            self.stay(part, node, size_bytes)
        else:
            self.back[self.segment[where]].append(Kept("recomputed", node, size_bytes))

    # Sizes

    def item(self, index: int) -> int:
        return self.precision.itemsize(self.graph.nodes[index].dtype)

    def numel(self, index: int, layout: Layout) -> int:
        if index in self.spreads and P in layout:
            return self.spreads[index].largest.elements
        return prod(
            largest_part(size, tuple(p for x, p in zip(layout, self.plan.placement.sizes, strict=True) if x == S(a)))
            for a, size in enumerate(self.known[index].sizes)
        )

    def in_base(self, use: Use, layout: Layout) -> Layout:
        """A layout that a consumer asks, in the atoms of the tensor that it reads through views."""
        return tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in layout)

    # Times

    def kernel(self, flops: float, traffic: float) -> int:
        busy = max(flops / self.device.flops(self.precision.compute), traffic / self.device.memory_bandwidth) * 1e9
        return math.ceil(busy + self.device.launch_ns - ROUNDING_NS)

    def stream(self, size_bytes: float) -> int:
        return math.ceil(size_bytes / self.device.memory_bandwidth * 1e9)

    def convert(
        self,
        part: Section,
        index: int,
        source: Layout,
        target: Layout,
        at: int,
        slot: Slot = Slot.BEFORE,
        again: bool = False,
        back: bool = True,
    ) -> bool:
        """Items of a conversion, forward and backward (without `back` only forward); whether the value moves.

        `again`: forward also in backward. Where what runs `at` a node runs again, so does this.
        """
        return self.program(part, index, source, route(self.plan, index, source, target), at, slot, again, back)

    def program(
        self,
        part: Section,
        index: int,
        source: Layout,
        program: Sequence[Step],
        at: int,
        slot: Slot,
        again: bool,
        back: bool,
    ) -> bool:
        item, node = self.item(index), self.graph.nodes[index]
        current, moved = list(source), False

        def add(action: Action, phase: Phase, axis: int, size_bytes: int, slot: Slot) -> None:
            if action is not Action.NOTHING:
                ns = self.moves.step_ns(axis, action, size_bytes)
                new = Item(part, action.value, phase, index, at, slot, ns, self.k, (axis,), size_bytes)
                self.result.items.append(new)

        for step in program:
            before = self.numel(index, tuple(current)) * item
            current[step.axis] = step.target
            after = self.numel(index, tuple(current)) * item
            value, gradient = step.move.value, step.move.gradient
            add(value, "forward", step.axis, after if value in _WRITTEN else before, slot)
            if self.mode(at) != "none":
                add(value, "recompute", step.axis, after if value in _WRITTEN else before, slot)
            elif again:
                add(value, "backward", step.axis, after if value in _WRITTEN else before, Slot.AGAIN)
            if node.gradient and back:
                add(gradient, "backward", step.axis, before if gradient in _WRITTEN else after, slot)
            moved |= value is not Action.NOTHING
        return moved
