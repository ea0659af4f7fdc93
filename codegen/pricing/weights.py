"""What weights cost: conversions in every micro-batch, synchronization and update once a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from ...formulation.classes import Use, without_addends
from ...formulation.reduction.schedule import schedule
from ...formulation.reduction.statuses import Kind
from ...formulation.weights import BUCKET_BYTES
from ...model.collectives import FREE, ROUNDING_NS, CollectivePrice
from ...model.cost import ITEMSIZE, optimizer_states
from ...model.layout import Action, B, R, atom_of, is_split
from ...model.sparse import sparse_tables
from ..items import Slot
from .operators import Operators

_SUMS: dict[bool, Kind] = {True: "reduce_scatter", False: "all_reduce"}  # of gradients, by whether states are sharded


class Weights(Operators):
    """Adds weights."""

    def weight(self, index: int) -> None:
        """Storage, conversion a micro-batch, synchronization and update a step."""
        choice, reads = self.plan.choices[index], self.classes.reads[index]
        uses = [use for use in reads if use.node not in self.classes.twin]
        item, stored = ITEMSIZE[self.precision.master], self.numel(index, choice.output)
        if index in sparse_tables(self.graph):  # nothing moves, and the rows looked up are cast where that is done
            self.train_rows(index, stored, item)
            return
        if self.graph.nodes[index].gradient:
            self.train(index, stored, item)
        else:
            self.hold("states", index, stored * item)
        first, shared = uses[0], choice.shared
        target = (
            shared if shared is not None else self.in_base(first, self.plan.choices[first.node].inputs[first.operand])
        )
        saved = any(self.saves(u) for u in uses) if shared is not None else self.saves(first)
        moved = self.convert("weights", index, choice.output, target, first.node, again=choice.regather)
        cast, recomputed = self.stream(stored * float(item + self.item(index))), self.mode(first.node) != "none"
        if self.precision.mixed:
            self.work("weights", "cast", "forward", index, cast, first.node, Slot.BEFORE)
            if recomputed:
                self.work("weights", "cast", "recompute", index, cast, first.node, Slot.BEFORE)
            elif choice.regather:
                self.work("weights", "cast", "backward", index, cast, first.node, Slot.AGAIN)
        if saved and (recomputed or not choice.regather) and (moved or self.precision.mixed):
            self.save("weights", index, self.numel(index, target) * self.item(index), first.node)
        for use in uses if shared is not None else ():
            asked = self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
            if self.convert("weights", index, target, asked, use.node) and self.saves(use):
                self.save("weights", index, self.kept_bytes(use), use.node)
        self.without_gradient(index, [use for use in reads if use.node in self.classes.twin], cast)

    def without_gradient(self, index: int, reads: Sequence[Use], cast: int) -> None:
        """A weight in passes without gradient: cast and converted in each pass, whether or not it is shared there."""
        choice = self.plan.choices[index]
        source, shared = choice.output, None if choice.shared is None else without_addends(choice.shared)
        if shared is None:
            passes = reads
        else:  # the first read of each pass brings the weight to where all of them read it
            alike: dict[tuple[int, int], list[Use]] = {}
            for use in reads:
                alike.setdefault((self.classes.twin[use.node], use.operand), []).append(use)
            passes = max(alike.values(), key=len, default=[])
        for use in passes:
            target = shared or self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
            self.convert("weights", index, source, target, use.node, back=False)
            if self.precision.mixed:
                self.work("weights", "cast", "forward", index, cast, use.node, Slot.BEFORE)
        for use in reads if shared is not None else ():
            asked = self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
            self.convert("weights", index, shared or source, asked, use.node, back=False)

    def train(self, index: int, stored: int, item: int) -> None:
        """Gradient and optimizer states of a weight of which a rank stores `stored` elements of `item` bytes."""
        choice, at = self.plan.choices[index], self.classes.uses[index][0].node
        states = optimizer_states(self.plan.optimizer)
        axes = tuple(a for a, x in enumerate(choice.output) if x == B and a not in choice.alone)
        shards = prod(self.plan.placement.sizes[a] for a in axes) if choice.sharded_states else 1
        updated = -(-stored // shards)
        self.hold("states", index, stored * 2 * item + updated * (states + choice.sharded_states) * item)
        accumulated = self.stream(stored * float(self.item(index) + 2 * item))
        self.work("gradients", "accumulate", "backward", index, accumulated, at, Slot.ACCUMULATE)
        sum_ns = gather_ns = 0
        if axes:
            size, sums = stored * item, _SUMS[choice.sharded_states]
            line = self.bucket(axes, sums)
            gather = self.bucket(axes, "all_gather") if choice.sharded_states else FREE
            sum_ns, total_ns = bucketed(line, size), bucketed(line + gather, size)
            gather_ns = total_ns - sum_ns  # rounded up once, over both
            kind = Action.SCATTER_SUM if choice.sharded_states else Action.SUM
            self.step("gradients", kind.value, index, at, Slot.BEFORE, sum_ns, axes, size)
        stages = self.graph.nodes[index].get("stages", 1)
        if stages > 1 and self.plan.transfer is not None:
            size = -(-2 * (stages - 1) * stored * item // stages)  # a ring of the stages that have it
            ns = self.plan.transfer.ns(size)
            self.step("gradients", Action.SEND.value, index, at, Slot.BEFORE, ns, (), size)
        self.step("gradients", "update", index, at, Slot.KERNEL, self.stream(updated * float(item) * (3 + 2 * states)))
        if gather_ns:
            self.step("gradients", Action.GATHER.value, index, at, Slot.AFTER, gather_ns, axes, stored * item)

    def bucket(self, axes: tuple[int, ...], kind: Kind) -> CollectivePrice:
        """The price of what moves a full bucket of gradients or weights."""
        return schedule(self.plan.machine, self.plan.placement, axes, kind).at(BUCKET_BYTES)

    def train_rows(self, index: int, stored: int, item: int) -> None:
        """A table of which a rank stores `stored` elements, and a gradient of the rows that are looked up, with ids."""
        at, rows = self.classes.uses[index][0].node, set(self.known[index].of_dim(0))
        ids = sum(
            self.graph.nodes[node.inputs[1]].numel
            for node in self.graph.nodes
            if node.get("sparse") and node.inputs[0] == index and node.gradient
        )
        columns = tuple(R if is_split(x) and atom_of(x) in rows else x for x in self.plan.choices[index].output)
        width = self.numel(index, columns) // self.graph.nodes[index].shape[0]
        size = ids * (width * item + ITEMSIZE["int64"])  # of one micro-batch
        if index in self.spreads:  # every unit of a table has its ids
            wide, _, units = self.spreads[index].largest
            size = ids // len(self.spreads[index].rows) * (wide * item + units * ITEMSIZE["int64"])
        self.hold("states", index, stored * item + self.k * size)
        joined = sum(2 * j for j in range(2, self.k + 1))  # micro-batches, each joined to those before
        self.step("gradients", "accumulate", index, at, Slot.ACCUMULATE, self.stream(float(joined * size)))
        # Gradients of the same row are added up, then read; the rows of the table are read and written.
        self.step("gradients", "update", index, at, Slot.KERNEL, self.stream(5.0 * self.k * size))


def bucketed(line: CollectivePrice, size_bytes: int) -> int:
    """Time of a weight's share of flat buckets."""
    return math.ceil(line.latency_ns * size_bytes / BUCKET_BYTES + line.ns_per_byte * size_bytes - ROUNDING_NS)
