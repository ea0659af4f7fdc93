"""What a plan costs, computed from its layouts alone: node by node, move by move, without network or tables of options.

It states the cost model once more in plain Python, so that the objective a solver reports is confirmed by something
that shares none of its encoding. Every kernel and every collective is one item (`items.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import prod

from ..formulation.classes import Classes, Use, classes, without_addends
from ..formulation.domain import LOSS_TRANSIENTS
from ..formulation.reduction.schedule import schedule
from ..formulation.reduction.statuses import Kind
from ..formulation.row import Row
from ..formulation.special import Part, Situation, part_of, special_strategy
from ..formulation.strategy import rows
from ..formulation.transition import Transitions
from ..formulation.weights import BUCKET_BYTES
from ..model.atoms import atoms
from ..model.collectives import FREE, ROUNDING_NS, CollectivePrice
from ..model.cost import ITEMSIZE, backward_factor, optimizer_states, precision
from ..model.layout import COLLECTIVES, Action, B, Layout, R, S, Step, atom_of, is_split, largest_part
from ..model.operator import operator
from ..model.pcg import FLOATS
from ..model.sparse import sparse_tables
from .items import Item, Kept, Phase, Priced, Slot
from .items import Part as Section
from .plan import Plan
from .routes import route

_WRITTEN = (Action.GATHER, Action.PAD, Action.SLICE, Action.KEEP_FIRST)
_SUMS: dict[bool, Kind] = {True: "reduce_scatter", False: "all_reduce"}  # of gradients, by whether states are sharded


def priced(plan: Plan) -> Priced:
    """The predicted time and memory of a plan."""
    return _Pricing(plan).run()


class _Pricing:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph, self.k = plan, plan.graph, plan.micro_batches
        self.device, self.precision = plan.machine.device, precision(plan.dtype)
        self.moves = Transitions(plan.machine, plan.placement)
        self.known = atoms(plan.graph)
        self.classes: Classes = classes(plan.graph)
        self.result = Priced()

    def run(self) -> Priced:
        for index, node in enumerate(self.graph.nodes):
            if node.op == "parameter":
                if index in self.classes.uses:
                    self.weight(index)
            elif self.classes.constant[index]:
                if node.op == "buffer":
                    item = ITEMSIZE[self.precision.master if node.dtype in FLOATS else node.dtype]
                    self.hold("states", index, self.numel(index, self.plan.choices[index].output) * item)
                elif operator(node.op).passes:
                    work = operator(node.op).work(node, tuple(self.graph.nodes[i] for i in node.inputs))
                    time = self.kernel(work, 2.0 * node.numel * self.item(index))
                    self.work("compute", node.op, "forward", index, time)
            elif node.op != "input" and self.classes.base[index] == index:
                self.compute(index)
                self.tensor(index)
        for base, uses in self.classes.uses.items():
            if self.graph.nodes[base].op == "input":
                for use in uses:
                    self.keep(use)
        moving = (i for i in self.graph.of("parameter") if i not in sparse_tables(self.graph))
        largest = max((self.graph.nodes[i].numel for i in moving), default=0)
        if self.plan.ranks > 1:
            self.hold("reserve", -1, 2 * largest * self.precision.itemsize("float32"))
        return self.result

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
        self.result.kept.append(Kept(part, node, size_bytes))

    # Sizes

    def item(self, index: int) -> int:
        return self.precision.itemsize(self.graph.nodes[index].dtype)

    def numel(self, index: int, layout: Layout) -> int:
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

        `again`: forward also in backward.
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
            if again:
                add(value, "backward", step.axis, after if value in _WRITTEN else before, Slot.AGAIN)
            if node.gradient and back:
                add(gradient, "backward", step.axis, before if gradient in _WRITTEN else after, slot)
            moved |= value is not Action.NOTHING
        return moved

    # Parts

    def compute(self, index: int) -> None:
        """Roofline of one operator, forward and backward, on the largest part."""
        node, choice, entry = self.graph.nodes[index], self.plan.choices[index], operator(self.graph.nodes[index].op)
        sources = tuple(self.graph.nodes[i] for i in node.inputs)
        own = self.numel(index, choice.output) * self.item(index)
        share, looked_up = self.share(index), entry.looked_up(node, sources)
        traffic: float = own
        for place, (i, x) in enumerate(zip(node.inputs, choice.inputs, strict=True)):
            item = self.item(i)
            read: float = self.numel(i, x)
            if looked_up and place == looked_up[0]:
                read = looked_up[1] * share
                if node.get("sparse") and self.precision.mixed:  # cast where it is looked up
                    item = 3 * ITEMSIZE[self.precision.master]
            traffic += read * item
        work = entry.work(node, sources) * share
        if entry.passes:
            self.work("compute", node.op, "forward", index, self.kernel(work, traffic * entry.passes))
            if node.gradient:
                back = work * backward_factor(node, sources, entry.matmul)
                moved = 2 * traffic * entry.passes
                if entry.scratch is not None:
                    moved += 2 * entry.scratch(node, sources) * share * self.item(index)
                self.work("compute", node.op, "backward", index, self.kernel(back, moved))
        self.specials(index)
        if not node.gradient:
            return
        if looked_up and sources[looked_up[0]].gradient and not node.get("sparse"):
            place = looked_up[0]
            table = self.numel(node.inputs[place], choice.inputs[place]) * self.item(node.inputs[place])
            self.work("compute", "table gradient", "backward", index, self.stream(table))
        first = self.numel(node.inputs[0], choice.inputs[0]) if node.inputs else 0
        for name in entry.saved:
            if name == "y":
                self.hold("activations", index, own)
            elif name in ("mask", "noise"):
                self.hold("activations", index, first * self.item(node.inputs[0]))
            elif name == "indices":
                self.hold("activations", index, self.numel(index, choice.output) * ITEMSIZE["int64"])
        if node.op in LOSS_TRANSIENTS:
            extra = self.item(node.inputs[0]) if self.precision.mixed else 0
            self.hold("activations", index, LOSS_TRANSIENTS[node.op] * first * (ITEMSIZE["float32"] + extra))

    def share(self, index: int) -> float:
        """The largest share of the work that a rank does: indices that are split, by what letters say of them."""
        node, choice = self.graph.nodes[index], self.plan.choices[index]
        parts: dict[object, tuple[int, list[int]]] = {}
        for axis, (size, row) in enumerate(zip(self.plan.placement.sizes, self.rows(index), strict=True)):
            letters = tuple(x[axis] for x in choice.inputs)
            if row.index is None or row.index[0].startswith("@"):  # all ids are looked up among any rows
                continue
            pairs = zip((*node.inputs, index), (*letters, choice.output[axis]), strict=True)
            owner, letter = next((i, x) for i, x in pairs if is_split(x))
            whole = self.known[owner].sizes[atom_of(letter)]
            parts.setdefault(row, (whole, []))[1].append(size)
        share = 1.0
        for whole, sizes in parts.values():
            share *= largest_part(whole, tuple(sizes)) / whole
        for _, row, part in self.special_parts(index):
            share *= special_strategy(row.special).work(part)
        return share

    def rows(self, index: int) -> list[Row]:
        """The row of an operator on every axis."""
        choice = self.plan.choices[index]
        by_letters = {(row.inputs, row.output): row for row in rows(self.graph, index)}
        axes = range(len(self.plan.placement.sizes))
        return [by_letters[tuple(x[axis] for x in choice.inputs), choice.output[axis]] for axis in axes]

    def special_parts(self, index: int) -> Iterator[tuple[int, Row, Part]]:
        """The axes on which a special strategy splits an operator, with what a rank has there."""
        node, choice, sizes = self.graph.nodes[index], self.plan.choices[index], self.plan.placement.sizes
        sources = tuple(self.graph.nodes[i] for i in node.inputs)
        situation = Situation(node, sources, tuple(self.known[i] for i in node.inputs), self.known[index])
        items = tuple(self.item(i) for i in node.inputs)
        for axis, row in enumerate(self.rows(index)):
            if row.special and sizes[axis] > 1:
                args = situation, row, sizes[axis], choice.inputs, choice.output, sizes, items, self.item(index)
                yield axis, row, part_of(*args)

    def specials(self, index: int) -> None:
        """What special strategies send and keep."""
        for axis, row, part in self.special_parts(index):
            entry = special_strategy(row.special)
            for message in entry.messages(part):
                if message.backward and not self.graph.nodes[index].gradient:
                    continue
                phase: Phase = "backward" if message.backward else "forward"
                ns = self.moves.step_ns(axis, message.action, message.size_bytes)
                where = (axis,) if message.action in COLLECTIVES else ()
                new = Item(
                    "compute", message.action.value, phase, index, index, Slot.KERNEL, ns,
                    self.k * message.times, where, message.size_bytes,
                )  # fmt: skip
                self.result.items.append(new)
            if self.graph.nodes[index].gradient:
                self.hold("activations", index, entry.kept(part))

    def saves(self, use: Use) -> bool:
        node = self.graph.nodes[use.node]
        entry = operator(node.op)
        return node.gradient and entry.named(node)[use.operand] in entry.saved

    def kept_bytes(self, use: Use) -> int:
        """Bytes of an input as its consumer keeps it; a loss keeps a float32 copy."""
        node, source = self.graph.nodes[use.node], self.graph.nodes[use.node].inputs[use.operand]
        name = operator(node.op).named(node)[use.operand]
        if any(name in special_strategy(row.special).copies for _, row, _ in self.special_parts(use.node)):
            return 0  # counted where the copy is made
        item = self.item(source)
        if node.op in LOSS_TRANSIENTS and item < 4:
            item = ITEMSIZE["float32"]
        return self.numel(source, self.plan.choices[use.node].inputs[use.operand]) * item

    def keep(self, use: Use) -> None:
        if self.saves(use):
            self.hold("activations", use.node, self.kept_bytes(use))

    def tensor(self, index: int) -> None:
        """Conversions of a tensor to its consumers, shared first, and what is kept of it."""
        choice, uses = self.plan.choices[index], self.classes.reads.get(index, ())
        entry, node = operator(self.graph.nodes[index].op), self.graph.nodes[index]
        saves_output = node.gradient and bool({"y", "mask", "noise"} & set(entry.saved))
        saves_output |= node.op in LOSS_TRANSIENTS and node.gradient
        if choice.shared is not None:
            moved = self.convert("conversions", index, choice.output, choice.shared, index, Slot.AFTER)
            keeps = any(self.saves(u) and self.graph.nodes[u.node].op not in LOSS_TRANSIENTS for u in uses)
            if keeps and (moved or not saves_output):
                self.hold("activations", index, self.numel(index, choice.shared) * self.item(index))
        for use in uses:
            target = self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
            back = use.node not in self.classes.twin
            moved = self.convert("conversions", index, choice.given, target, use.node, back=back)
            copied = moved or self.graph.nodes[use.node].op in LOSS_TRANSIENTS
            if copied or (choice.shared is None and not saves_output):
                self.keep(use)
        for position, source in enumerate(node.inputs):  # constants are cut where they are used
            base = self.classes.base[source]
            if self.classes.constant[base]:
                use = Use(index, position, self.classes.atoms[source])
                target = self.in_base(use, choice.inputs[position])
                if self.convert("compute", base, self.plan.choices[base].given, target, index):
                    self.keep(use)

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
        cast = self.stream(stored * float(item + self.item(index)))
        if self.precision.mixed:
            self.work("weights", "cast", "forward", index, cast, first.node, Slot.BEFORE)
            if choice.regather:
                self.work("weights", "cast", "backward", index, cast, first.node, Slot.AGAIN)
        if saved and not choice.regather and (moved or self.precision.mixed):
            self.hold("weights", index, self.numel(index, target) * self.item(index))
        for use in uses if shared is not None else ():
            asked = self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
            if self.convert("weights", index, target, asked, use.node) and self.saves(use):
                self.hold("weights", index, self.kept_bytes(use))
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
        axes = tuple(a for a, x in enumerate(choice.output) if x == B)
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
        self.hold("states", index, stored * item + self.k * size)
        joined = sum(2 * j for j in range(2, self.k + 1))  # micro-batches, each joined to those before
        self.step("gradients", "accumulate", index, at, Slot.ACCUMULATE, self.stream(float(joined * size)))
        # Gradients of the same row are added up, then read; the rows of the table are read and written.
        self.step("gradients", "update", index, at, Slot.KERNEL, self.stream(5.0 * self.k * size))


def bucketed(line: CollectivePrice, size_bytes: int) -> int:
    """Time of a weight's share of flat buckets."""
    return math.ceil(line.latency_ns * size_bytes / BUCKET_BYTES + line.ns_per_byte * size_bytes - ROUNDING_NS)
