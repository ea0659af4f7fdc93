"""Sizes, times and conversions: what every part of a stage's price is made of."""

import math
from copy import copy
from math import prod
from typing import Self

from ...formulation.encoding.overlap import hiding_layers
from ...formulation.strategies.fusion import fused_operands
from ...formulation.strategies.tensor_classes import Classes, Use, classes, kept_between_passes
from ...formulation.strategies.transitions import TRAVELS, Transitions
from ...model.graph.atoms import atoms
from ...model.graph.constants import fills
from ...model.graph.layout import Action, Layout, P, S, atom_of, is_split, largest_part
from ...model.graph.pcg import Node
from ...model.graph.segments import segments
from ...model.machine.collective_price import ROUNDING_NS
from ...model.machine.measured_kernels import measured_ratio
from ...model.machine.precision import precision
from ...model.machine.roofline import counts_measured
from ..plan.in_parts import parts_of_nodes, plans_of_parts
from ..plan.plan import Plan
from ..plan.routes import latency_shares_of, route
from ..plan.table_spread import plan_spread
from .price_items import Item, Kept, Part, Phase, PriceSlot, StagePrice

_WRITTEN = (Action.GATHER, Action.PAD, Action.SLICE, Action.KEEP_FIRST)


class Conversions:
    """Collects the items and the memory of a stage's price, or of what lies on one of its `Plan.ranges`.

    `whole` is the plan of the stage.
    """

    def __init__(
        self,
        plan: Plan,
        weight_versions: int = 0,
        deferred_weight_gradients: int = 0,
        between_passes: int = 0,
        *,
        delays_messages: bool = False,
        paired: bool = False,
        whole: Plan,
    ) -> None:
        self.plan, self.graph, self.k, self.whole = plan, plan.graph, plan.micro_batches, whole
        self.weight_versions, self.deferred_weight_gradients = weight_versions, deferred_weight_gradients
        self.delays_messages, self.paired = delays_messages, paired
        self.device, self.precision = plan.machine.device, precision(plan.dtype)
        self.transitions = Transitions(plan.machine, plan.placement, transfer=plan.transfer)
        self.known = atoms(plan.graph)
        self.classes: Classes = classes(plan.graph)
        self.between_passes = kept_between_passes(plan.graph, between_passes)
        self.fused = fused_operands(plan.graph) if plan.compile else {}
        found = ((i, plan_spread(plan, i)) for i in plan.graph.of("parameter"))
        self.spreads = {i: spread for i, spread in found if spread is not None}
        self.price, self.bundles = StagePrice(), plan.bundles
        # Results of parallel branches are added where they are computed; the adds of a sum stand for these.
        self.adding: dict[int, tuple[int, ...]] = {}
        for join, bundle in self.bundles.items():
            added = bundle.adding(plan.choices[join].joins[1:])
            self.adding |= dict.fromkeys(bundle.adds[:-1], ())
            self.adding |= {i: tuple(bundle.ends[b] for b in sorted(added)) for i in bundle.adds[-1:]}
        recomputed = [s for s in segments(plan.graph) if s.name in plan.recompute] if plan.recompute else []
        self.segment = {i: segment.name for segment in recomputed for i in segment.nodes}
        self.ahead = {i: layer.name for layer in hiding_layers(plan.graph, plan.together) for i in layer.nodes}
        self.in_parts = parts_of_nodes(plan)
        self.in_one: dict[int, Self] = {}  # what prices a part, by the number of parts
        self.conversions = 0  # counted so far
        self.transient: dict[str, list[Kept]] = {}  # of a layer that is recomputed, or whose weights travel ahead

    def is_here(self, index: int) -> bool:
        """True if a node is computed on the mesh of `plan`."""
        return self.whole.at(index) is self.plan

    def reads_here(self, index: int, use: Use) -> bool:
        """True if a tensor is converted for a reader on that mesh: that of its range, else the reader's."""
        return self.is_here(index if index in self.whole.range_of else use.node)

    # Recomputation

    def of(self, node: int) -> Self:
        """What prices the work of a node: this, or where it is in parts that of a part, which runs as many times."""
        parts = self.in_parts.get(node, 1)
        if parts == 1:
            return self
        if parts not in self.in_one:
            found, plan = copy(self), plans_of_parts(self.plan)[parts]
            found.plan, found.graph, found.known, found.k = plan, plan.graph, atoms(plan.graph), self.k * parts
            self.in_one[parts] = found
        return self.in_one[parts]

    def mode(self, index: int) -> str:
        """The recomputation mode of a node's segment."""
        return self.plan.recompute[self.segment[index]] if index in self.segment else "none"

    def keep_largest_segment(self) -> None:
        """Count the transient memory of the layer that holds most: one acts at a time."""
        if self.transient:
            self.price.kept += max(self.transient.values(), key=lambda held: sum(kept.bytes for kept in held))

    def hold_for_layer(self, layer: str, part: str, node: int, size_bytes: int) -> None:
        """Transient memory of a layer."""
        self.transient.setdefault(layer, []).append(Kept(part, node, size_bytes))

    # Items

    def add(self, item: Item) -> None:
        self.price.items.append(item)

    def work(
        self,
        part: Part,
        kind: str,
        phase: Phase,
        node: int,
        ns: int,
        at: int = -1,
        *,
        slot: PriceSlot = PriceSlot.KERNEL,
        calls: int = 1,
    ) -> None:
        """Work of a device without communication."""
        where = node if at < 0 else at
        self.add(Item(part, kind, phase, node, at=where, slot=slot, ns=ns, count=self.k, calls=calls))

    def update(
        self, kind: str, node: int, ns: int, slot: PriceSlot, axes: tuple[int, ...] = (), *, size: int = 0
    ) -> None:
        """Work on a weight once a step, after the last micro-batch, at its first reader."""
        at = self.classes.uses[node][0].node
        self.add(Item("gradients", kind, "update", node, at=at, slot=slot, ns=ns, count=1, axes=axes, bytes=size))

    def hold(self, part: str, node: int, size_bytes: int) -> None:
        """Bytes that do not grow with the micro-batches in flight: held at all times, or for a moment."""
        self.price.kept.append(Kept(part, node, size_bytes))

    def stay(self, part: str, node: int, size_bytes: int) -> None:
        """Bytes kept for backward, of every micro-batch in flight."""
        self.hold(part, node, size_bytes * self.plan.in_flight)

    def save(self, part: str, node: int, size_bytes: int, at: int = -1) -> None:
        """Bytes that work at node `at` keeps for backward; a recomputed segment restores them temporarily."""
        where = node if at < 0 else at
        if self.mode(where) == "none":
            self.stay(part, node, size_bytes)
        else:
            self.hold_for_layer(self.segment[where], "recomputed", node, size_bytes)

    # Sizes

    def item(self, index: int) -> int:
        """Bytes of an element."""
        return self.precision.itemsize(self.graph.nodes[index].dtype)

    def numel(self, index: int, layout: Layout) -> int:
        """Elements of the largest part of a tensor."""
        if index in self.spreads and P in layout:
            return self.spreads[index].largest.elements
        return prod(self.atom_parts(index, layout))

    def atom_parts(self, index: int, layout: Layout) -> list[int]:
        """Sizes of the atoms of a tensor's largest part."""
        return [
            largest_part(size, tuple(p for x, p in zip(layout, self.plan.placement.sizes, strict=True) if x == S(a)))
            for a, size in enumerate(self.known[index].sizes)
        ]

    def bytes(self, index: int, layout: Layout) -> int:
        """Bytes of the largest part of a tensor."""
        return self.numel(index, layout) * self.item(index)

    def sources(self, index: int) -> tuple[Node, ...]:
        """The nodes that a node reads."""
        return tuple(self.graph.nodes[i] for i in self.graph.nodes[index].inputs)

    def required(self, use: Use) -> Layout:
        """The layout in which a consumer reads a tensor through views, in the atoms of the tensor."""
        layout = self.plan.choices[use.node].inputs[use.operand]
        return tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in layout)

    # Times

    def kernel(self, flops: float, traffic: float, kernels: int = 1, of: tuple[Node, str] | None = None) -> int:
        """Time of a kernel, or of several that are launched one after another; `of`: of which node, in which phase."""
        dtype = self.precision.compute
        busy = max(flops / self.device.flops(dtype), traffic / self.device.memory_bandwidth) * 1e9
        exact = busy + kernels * self.device.launch_ns
        if of is not None and counts_measured(of[0], self.plan.compile):
            exact *= measured_ratio(self.device, (of[0].op, dtype, of[1]), flops, traffic)
        return math.ceil(exact - ROUNDING_NS)

    def stream(self, size_bytes: float) -> int:
        """Time to read or write these bytes, in ns."""
        return math.ceil(size_bytes / self.device.memory_bandwidth * 1e9)

    def convert(
        self,
        part: Part,
        index: int,
        source: Layout,
        target: Layout,
        at: int,
        *,
        slot: PriceSlot = PriceSlot.BEFORE,
        regather: bool = False,
        backward: bool = True,
    ) -> bool:
        """Add the items of a conversion that runs at node `at`, forward and `backward`; True if the value moves.

        `regather`: backward repeats the forward conversion. So does recomputation of node `at`.
        """
        self.conversions += 1
        current, moved, gradient = list(source), False, self.graph.nodes[index].gradient and backward
        share = latency_shares_of(self.plan).get(index)
        moves, sizes = route(self.plan, index, source, target), self.plan.placement.sizes
        waits = any(step.move.value not in TRAVELS for step in moves if sizes[step.axis] > 1)
        for step in moves:
            before = self.bytes(index, tuple(current))
            current[step.axis] = step.target
            after = self.bytes(index, tuple(current))
            value = step.move.value
            runs: list[tuple[Phase, PriceSlot]] = [("forward", slot)]
            if self.mode(at) != "none":
                runs.append(("recompute", slot))
            elif regather:
                runs.append(("backward", PriceSlot.REGATHER))
            actions = [(value, after if value in _WRITTEN else before, *run) for run in runs]
            if gradient:
                back = step.move.gradient
                actions.append((back, before if back in _WRITTEN else after, "backward", slot))
            for action, size, phase, when in actions:
                if action is not Action.NOTHING:
                    fill = index in fills(self.graph)
                    ns = 0 if fill else self.transitions.step_ns(step.axis, action, size, share)
                    self.add(
                        Item(
                            part, action.value, phase, index, at, when,
                            ns=ns, count=self.k, axes=(step.axis,), bytes=size, conversion=self.conversions,
                            waits=waits,
                        )
                    )  # fmt: skip
            moved |= value is not Action.NOTHING
        return moved
