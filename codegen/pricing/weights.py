"""What weights cost: conversions in every micro-batch, synchronization and update once a step."""

import math
from collections.abc import Sequence
from math import prod

from ...formulation.reduction.optimal import cheapest_programs
from ...formulation.reduction.statuses import Kind
from ...formulation.strategies.tensor_classes import Use, without_addends
from ...formulation.weights.buckets import BUCKET_BYTES, bucketed
from ...formulation.weights.storage import prefetched_copies
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.layout import Action, B, R, atom_of, is_split
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.collective_price import CollectivePrice
from ...model.optimizers import optimizer_states
from ..plan.plan import DIRECTION, Plan
from .operators import OperatorPrices
from .price_items import CAST, Item, PriceSlot


class WeightPrices(OperatorPrices):
    """Adds weights."""

    def weight(self, index: int) -> None:
        """Storage, conversion a micro-batch, synchronization and update a step."""
        choice, reads = self.plan.choices[index], self.classes.reads[index]
        uses = [use for use in reads if use.node not in self.classes.twin]
        item, stored = ITEMSIZE[self.precision.parameters], self.numel(index, choice.output)
        if index in sparse_tables(self.graph):  # nothing moves, and the rows looked up are cast where that is done
            self.train_rows(index, stored, ITEMSIZE[self.precision.master])
            return
        if self.graph.nodes[index].gradient:
            self.train(index, stored)
        else:
            self.hold("states", index, stored * item)
        first, shared = uses[0], choice.shared
        target = shared if shared is not None else self.required(first)
        saved = any(self.saves(u) for u in uses) if shared is not None else self.saves(first)
        moved = self.convert("weights", index, choice.output, target, first.node, regather=choice.regather)
        cast, recomputed = self.stream(stored * float(item + self.item(index))), self.mode(first.node) != "none"
        if self.precision.mixed:
            of_first = self.of(first.node)
            of_first.work("weights", CAST, "forward", index, cast, first.node, slot=PriceSlot.BEFORE)
            if recomputed:
                of_first.work("weights", CAST, "recompute", index, cast, first.node, slot=PriceSlot.BEFORE)
            elif choice.regather:
                self.work("weights", CAST, "backward", index, cast, first.node, slot=PriceSlot.REGATHER)
        if saved and (recomputed or not choice.regather) and (moved or self.precision.mixed):
            self.save("weights", index, self.bytes(index, target), first.node)
        if first.node in self.in_parts and self.graph.nodes[index].gradient:
            self.add_parts("gradients", index, stored * item, first.node)
        layer = next((self.ahead[use.node] for use in self.classes.uses[index] if use.node in self.ahead), None)
        if layer is not None and self.numel(index, target) > stored:
            copies = prefetched_copies(self.graph.nodes[index].gradient, choice.regather, recomputed)
            self.hold_for_layer(layer, "prefetched", index, copies * self.bytes(index, target))
        for use in uses if shared is not None else ():
            if self.convert("weights", index, target, self.required(use), use.node) and self.saves(use):
                self.save("weights", index, self.kept_bytes(use), use.node)
        self.without_gradient(index, [use for use in reads if use.node in self.classes.twin], cast)

    def without_gradient(self, index: int, reads: Sequence[Use], cast: int) -> None:
        """A weight in passes without gradient: cast and converted in each pass, whether or not it is shared there."""
        choice = self.plan.choices[index]
        source, shared = choice.output, None if choice.shared is None else without_addends(choice.shared)
        # Where a weight is shared, the first read of each pass converts it for all of them.
        passes = reads if shared is None else max(self.classes.repetitions(index).values(), key=len, default=[])
        for use in passes:
            self.convert("weights", index, source, shared or self.required(use), use.node, backward=False)
            if self.precision.mixed:
                self.work("weights", CAST, "forward", index, cast, use.node, slot=PriceSlot.BEFORE)
        for use in reads if shared is not None else ():
            self.convert("weights", index, shared or source, self.required(use), use.node, backward=False)

    def train(self, index: int, stored: int) -> None:
        """Gradient and optimizer states of a weight of which a rank stores `stored` elements."""
        choice, at = self.plan.choices[index], self.classes.uses[index][0].node
        gradient, master = ITEMSIZE[self.precision.gradients], ITEMSIZE[self.precision.master]
        axes = tuple(a for a, x in enumerate(choice.output) if x == B and a not in choice.alone)
        shards = prod(self.plan.placement.sizes[a] for a in axes) if choice.sharded_states else 1
        updated = -(-stored // shards)
        summed = updated if choice.sharded_gradients else stored
        copied_shard = choice.sharded_states and self.weight_versions > 0
        tensors = optimizer_states(self.plan.optimizer) + (copied_shard or self.precision.copied)
        self.hold("states", index, stored * ITEMSIZE[self.precision.parameters] + summed * gradient)
        if self.weight_versions:
            self.hold("states", index, self.weight_versions * stored * master)
        self.hold("states", index, 0 if choice.offloaded else updated * tensors * master)
        accumulated = stored * float(self.item(index) + 2 * gradient)
        accumulated += 3.0 * gradient * updated * choice.sharded_gradients
        self.work("gradients", "accumulate", "backward", index, self.stream(accumulated), at, slot=PriceSlot.ACCUMULATE)
        stages = self.graph.nodes[index].get("stages", 1)
        ends = self.graph.nodes[index].get("ends", False) and DIRECTION in self.plan.axes
        here = stages > 1 and (ends or self.paired)
        if here and self.graph.of("receive"):  # the first stage, on the same devices, updates it
            return
        spread = self.sum_up(index, stored, axes) if axes else 0
        if stages > 1 and not here and self.plan.transfer is not None:
            size = -(-2 * (stages - 1) * stored * gradient // stages)  # a ring of the stages that have it
            ns = self.plan.transfer.ns(size)
            self.update(Action.SEND.value, index, ns, PriceSlot.BEFORE, size=size)
        if choice.offloaded:
            self.offload(index, updated * tensors * master)
        self.update("update", index, self.stream(updated * self.update_traffic()), PriceSlot.KERNEL)
        if spread:
            size = stored * ITEMSIZE[self.precision.parameters]
            self.update(Action.GATHER.value, index, spread, PriceSlot.AFTER, axes, size=size)

    def sum_up(self, index: int, stored: int, axes: tuple[int, ...]) -> int:
        """Sum the gradient over the axes with copies; return the time of gathering the updated shards."""
        choice, at = self.plan.choices[index], self.classes.uses[index][0].node
        gradient, parameter = ITEMSIZE[self.precision.gradients], ITEMSIZE[self.precision.parameters]
        size = stored * gradient
        if not choice.sharded_states:
            ns = bucketed(stored, (bucket_price(self.plan, axes, "all_reduce"), gradient))
            self.update(Action.SUM.value, index, ns, PriceSlot.BEFORE, axes, size=size)
            return 0
        summed = bucket_price(self.plan, axes, "reduce_scatter"), gradient
        whole = bucket_price(self.plan, axes, "all_gather"), parameter
        ns, kind = bucketed(stored, summed), Action.SCATTER_SUM.value
        if choice.sharded_gradients:
            slot = PriceSlot.ACCUMULATE
            self.add(Item("gradients", kind, "backward", index, at, slot, ns=ns, count=self.k, axes=axes, bytes=size))
            return bucketed(stored, whole)
        self.update(kind, index, ns, PriceSlot.BEFORE, axes, size=size)
        return bucketed(stored, summed, whole) - ns  # rounded up once, over both

    def offload(self, index: int, size: int) -> None:
        """Offloaded states come to the device for the update, and go back."""
        assert self.device.host_bandwidth is not None  # a plan is checked
        once, both = (math.ceil(times * size / self.device.host_bandwidth * 1e9) for times in (1, 2))
        self.update("states from host", index, once, PriceSlot.BEFORE, size=size)
        self.update("states to host", index, both - once, PriceSlot.AFTER, size=size)

    def update_traffic(self) -> float:
        """Bytes that the update of an element reads and writes."""
        p, states = self.precision, optimizer_states(self.plan.optimizer)
        value = ITEMSIZE[p.master]
        moved = 2 * value * (1 + states) + ITEMSIZE[p.gradients]
        if p.gradients != p.master:
            moved += 2 * value  # the gradient is cast first
        if p.copied:
            moved += value + ITEMSIZE[p.parameters]  # and the result at last
        return float(moved)

    def train_rows(self, index: int, stored: int, item: int) -> None:
        """A table with sparse gradient, of which a rank stores `stored` elements: gradients are rows with their ids."""
        rows = set(self.known[index].of_dim(0))
        ids = sum(
            self.graph.nodes[node.inputs[1]].numel
            for node in self.graph.nodes
            if node.get("sparse") and node.inputs[0] == index and node.gradient
        )
        columns = tuple(R if is_split(x) and atom_of(x) in rows else x for x in self.plan.choices[index].output)
        width = self.numel(index, columns) // self.graph.nodes[index].shape[0]
        if index in self.spreads:  # every unit of a table has its ids
            spread = self.spreads[index]
            ids, width = ids // len(spread.rows) * spread.largest.units, spread.unit
        size = ids * (width * item + ITEMSIZE["int64"])  # of one micro-batch
        moved = ids * (self.device.touched(width * item) + ITEMSIZE["int64"])  # rows lie apart
        self.hold("states", index, stored * item + self.k * size)
        joined = sum(2 * j for j in range(2, self.k + 1))  # micro-batches, each joined to those before
        self.update("accumulate", index, self.stream(float(joined * size)), PriceSlot.ACCUMULATE)
        # Gradients of the same row are added up, then read; the rows of the table are read and written.
        self.update("update", index, self.stream(5.0 * self.k * moved), PriceSlot.KERNEL)


def bucket_price(plan: Plan, axes: tuple[int, ...], kind: Kind) -> CollectivePrice:
    """The price of what moves a full bucket of gradients or weights."""
    return cheapest_programs(plan.machine, plan.placement, axes, kind).at(BUCKET_BYTES)
