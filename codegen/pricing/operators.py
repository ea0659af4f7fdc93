"""What operators cost: kernels, messages of special strategies and bundles, tensors saved for backward."""

from collections.abc import Iterator, Sequence
from math import prod

from ...formulation.bundles.bundles import exchanges, widest_piece
from ...formulation.pipeline.stage_transfers import in_one_message, messages
from ...formulation.special import Part, Situation, part_of, special_strategy
from ...formulation.strategies.option_costs import LOSS_TRANSIENTS
from ...formulation.strategies.row import Row
from ...formulation.strategies.strategy import rows_taken
from ...formulation.strategies.tensor_classes import Use, trains
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.layout import COLLECTIVES, Action, Layout, P, R, atom_of, is_split, largest_part
from ...model.graph.pcg import GIVEN
from ...model.graph.segments import gives_product
from ...model.machine.roofline import backward_factor
from ...model.operators.operator import LookUp, operator
from ..plan.choice import Choice
from .conversions import Conversions
from .price_items import Item, Phase, PriceSlot
from .price_items import Part as PricePart


class OperatorPrices(Conversions):
    """Adds operators and the tensors between them."""

    def compute(self, index: int) -> None:
        """An operator: its kernels, its messages, and what it keeps for backward."""
        node, entry = self.graph.nodes[index], operator(self.graph.nodes[index].op)
        output_bytes = self.bytes(index, self.choice(index).output)
        for at in self.adding.get(index, (index,)):
            self.kernels(index, output_bytes, at)
        self.specials(index)
        if entry.message:
            self.transfer(index, output_bytes)
        if index in self.between_passes:
            self.hold("activations", index, self.between_passes[index] * output_bytes)
        if self.keeps_output(index):
            self.stay("activations", index, output_bytes)
        if node.gradient:
            self.table_gradient(index)
            self.saved(index, output_bytes)

    def kernels(self, index: int, output_bytes: int, at: int) -> None:
        """Roofline times of one operator, forward and backward, on the largest part, which run at node `at`."""
        node, entry = self.graph.nodes[index], operator(self.graph.nodes[index].op)
        if not entry.passes:
            return
        sources, share = self.sources(index), self.share(index)
        traffic = self.traffic(index, share, output_bytes)
        work = entry.work(node, sources) * self.device.work_factor(node.op) * share
        fused = self.handed(index)  # runs in the kernel before
        kernels, (calls, called_back) = entry.kernels(node, sources), entry.calls(node, sources)
        kernels, calls, called_back = (0, 0, 0) if fused else (kernels, calls, called_back)
        forward = self.kernel(work, traffic * entry.moved(node), kernels, (node, "forward"))
        self.work("compute", node.op, "forward", index, forward, at, calls=calls)
        if self.mode(index) != "none" and not self.keeps_output(index):
            self.work("compute", node.op, "recompute", index, forward, at, calls=calls)
        if not node.gradient:
            return
        back = work * backward_factor(node, sources, entry.matmul)
        moved = 2 * traffic * entry.moved(node)
        if entry.scratch is not None:
            moved += 2 * entry.scratch(node, sources) * share * self.item(index)
        backward = self.kernel(back, moved, kernels, (node, "backward"))
        self.work("compute", node.op, "backward", index, backward, at, calls=called_back)
        if entry.masked:
            count = self.numel(index, self.choice(index).output)
            self.work("compute", "activation", "backward", index, self.kernel(count, 4 * output_bytes), at)

    def traffic(self, index: int, share: float, output_bytes: int) -> float:
        """Bytes that a pass of an operator reads and writes; of tables the rows looked up, nothing of what is fused."""
        node, choice = self.graph.nodes[index], self.choice(index)
        looked_up = operator(node.op).looked_up(node, self.sources(index))
        traffic: float = output_bytes
        handed = self.handed(index)
        for place, (i, x) in enumerate(zip(node.inputs, choice.inputs, strict=True)):
            if place in handed:
                continue
            if looked_up and place == looked_up.operand:
                traffic += self.rows_read(index, looked_up, looked_up.elements * share)
            else:
                traffic += self.numel(i, x) * self.item(i)
        return traffic

    def rows_read(self, index: int, looked_up: LookUp, elements: float) -> float:
        """Bytes that a look-up of so many elements reads."""
        node, layout = self.graph.nodes[index], self.choice(index).inputs[looked_up.operand]
        table = node.inputs[looked_up.operand]
        cast = node.get("sparse") and self.precision.compute != self.precision.master  # where it is looked up
        item = ITEMSIZE[self.precision.master] if cast else self.item(table)
        # A row is whole transactions; all of them together are no more than the table.
        row = self.row(table, layout, looked_up.row) * item
        touched = elements * item * (self.device.touched(row) / row)
        read = max(elements * item, min(touched, self.numel(table, layout) * item))
        return read + 2 * elements * item if cast else read

    def row(self, index: int, layout: Layout, dims: Sequence[int]) -> int:
        """Elements of a tensor that are read together: a rank's part of its last dims; of spread tables a unit."""
        if index in self.spreads and P in layout:
            return self.spreads[index].unit
        atoms = {a for dim in dims for a in self.known[index].of_dim(dim)}
        alone = tuple(x if is_split(x) and atom_of(x) in atoms else R for x in layout)
        others = prod(size for a, size in enumerate(self.known[index].sizes) if a not in atoms)
        return self.numel(index, alone) // others

    def handed(self, index: int) -> frozenset[int]:
        """The operands that the kernel before hands over; none if an exchange of its own makes it several kernels."""
        return frozenset() if self.exchanges(index) else self.fused.get(index, frozenset())

    def table_gradient(self, index: int) -> None:
        """The dense gradient of a table whose rows an operator looks up."""
        node, sources = self.graph.nodes[index], self.sources(index)
        looked_up = operator(node.op).looked_up(node, sources)
        if looked_up and sources[looked_up[0]].gradient and not node.get("sparse"):
            place = looked_up[0]
            table = self.bytes(node.inputs[place], self.choice(index).inputs[place])
            self.work("compute", "table gradient", "backward", index, self.stream(table))

    def saved(self, index: int, output_bytes: int) -> None:
        """What an operator itself keeps for backward; its readers keep their inputs."""
        node, choice, sources = self.graph.nodes[index], self.choice(index), self.sources(index)
        entry = operator(node.op)
        for name, part in self.parts(index).items():
            if entry.split and part < 1:
                made = entry.split(node, sources, name, part)[1]
                self.save("activations", index, made * self.item(node.inputs[0]))
        if self.deferred_weight_gradients and trains(self.graph, index):
            self.hold("activations", index, self.deferred_weight_gradients * output_bytes)
        first = self.numel(node.inputs[0], choice.inputs[0]) if node.inputs else 0
        for name in entry.kept(node, sources):
            if name == "gate":
                self.save("activations", index, output_bytes * entry.gate_count(node, sources))
            elif name == "y" and not self.keeps_output(index):
                self.save("activations", index, output_bytes)
            elif name in ("mask", "noise"):
                item = self.item(node.inputs[0]) if name == "noise" else ITEMSIZE["bool"]
                self.save("activations", index, first * item)
            elif name == "indices":
                self.save("activations", index, self.numel(index, choice.output) * ITEMSIZE["int64"])
        if node.op in LOSS_TRANSIENTS:
            extra = self.item(node.inputs[0]) if self.precision.narrow else 0
            self.hold("activations", index, LOSS_TRANSIENTS[node.op] * first * (ITEMSIZE["float32"] + extra))

    def transfer(self, index: int, size_bytes: int) -> None:
        """A tensor from one stage of a pipeline to the next, and its gradient back.

        Where the program waits, or messages do not hide, it does so at both ends. Else it is busy with what it sends:
        `send` the tensor, `receive` the gradient; where messages are delays between slots, the receiver waits for the
        first.
        """
        node = self.graph.nodes[index]
        receives = node.op in GIVEN
        self.hold("reserve", index, messages(node.gradient) * size_bytes)
        count = self.k
        phases: tuple[Phase, ...] = ("forward", "backward")
        if self.plan.hides_messages and self.delays_messages:
            count, phases = 1, ("forward",) if receives else ()
        elif self.plan.hides_messages:
            phases = ("backward",) if receives else ("forward",)
        for phase in phases:
            if phase == "forward" or node.gradient:
                price = in_one_message(self.transitions.transfer, self.graph, index, gradient=phase == "backward")
                self.add(
                    Item(
                        "conversions", node.op, phase, index, index, PriceSlot.KERNEL,
                        ns=price.ns(size_bytes), count=count, bytes=size_bytes,
                    )
                )  # fmt: skip

    def keeps_output(self, index: int) -> bool:
        """True if a recomputed segment keeps a node's output: that of products, if nothing is sent inside of them."""
        if self.mode(index) != "selective" or not gives_product(self.graph, index):
            return False
        return not self.exchanges(index)

    def exchanges(self, index: int) -> bool:
        """True if a special strategy splits an operator."""
        rows = zip(self.rows(index), self.plan.placement.sizes, strict=True)
        return any(row.special and size > 1 for row, size in rows)

    def share(self, index: int) -> float:
        """The largest share of the work that a rank does."""
        node, share = self.graph.nodes[index], 1.0
        split = operator(node.op).split
        for name, part in self.parts(index).items():
            share *= part * (split(node, self.sources(index), name, part)[0] if split and part < 1 else 1.0)
        for _, row, part_of_it in self.special_parts(index):
            share *= special_strategy(row.special).work(part_of_it)
        return share

    def parts(self, index: int) -> dict[str, float]:
        """For every index that letters split, the largest share that a rank has."""
        node, choice = self.graph.nodes[index], self.choice(index)
        parts: dict[Row, tuple[str, int, list[int]]] = {}
        for axis, (size, row) in enumerate(zip(self.plan.placement.sizes, self.rows(index), strict=True)):
            letters = tuple(x[axis] for x in choice.inputs)
            if row.index is None or row.index[0].startswith("@"):  # all ids are looked up among any rows
                continue
            pairs = zip((*node.inputs, index), (*letters, choice.output[axis]), strict=True)
            owner, letter = next((i, x) for i, x in pairs if is_split(x))
            whole = self.known[owner].sizes[atom_of(letter)]
            parts.setdefault(row, (row.index[0], whole, []))[2].append(size)
        shares: dict[str, float] = {}
        for name, whole, sizes in parts.values():
            shares[name] = shares.get(name, 1.0) * largest_part(whole, tuple(sizes)) / whole
        return shares

    def choice(self, index: int) -> Choice:
        """The choice of an operator, for what it computes."""
        return self.plan.joining(index)

    def exchange(self, index: int) -> None:
        """Exchanges that join the branches of a bundle, and split their gradients."""
        (axis, *places), node = self.plan.choices[index].joins, self.graph.nodes[index]
        if self.bundles[index].adds:
            return
        size, layout = self.plan.placement.sizes[axis], self.plan.choices[index].output
        unsplit = tuple(R if a == axis else x for a, x in enumerate(layout))
        widest = widest_piece(self.graph, self.bundles[index], places, size)
        largest = self.numel(index, unsplit) // node.shape[node["dim"]] * widest * self.item(index)
        for action, size_bytes, back in exchanges(largest, size, layout[axis] == R):
            if node.gradient or not back:
                self.add_move(index, axis, action, size_bytes, "backward" if back else "forward", slot=PriceSlot.AFTER)

    def add_move(
        self, index: int, axis: int, action: Action, size_bytes: int, phase: Phase, *, slot: PriceSlot, times: int = 1
    ) -> None:
        """A message of an operator itself along an axis."""
        ns, axes = self.transitions.step_ns(axis, action, size_bytes), (axis,) if action in COLLECTIVES else ()
        self.add(
            Item(
                "compute", action.value, phase, index, index, slot,
                ns=ns, count=self.k * times, axes=axes, bytes=size_bytes,
            )
        )  # fmt: skip

    def rows(self, index: int) -> list[Row]:
        """The row of an operator on every axis."""
        choice = self.choice(index)
        found = rows_taken(self.graph, index, choice.inputs, choice.output)
        return [row for row in found if row is not None]  # a plan is checked to have one everywhere

    def enters(self, index: int, use: Use) -> bool:
        """True if a tensor enters a recomputed segment, which then keeps it as it is given."""
        return self.mode(use.node) != "none" and self.segment.get(index) != self.segment[use.node]

    def saves_output(self, index: int) -> bool:
        """True if what an operator keeps for its backward is, or stands for, its output."""
        node = self.graph.nodes[index]
        saved = {"y", "noise"} & {*operator(node.op).saved} or node.op in LOSS_TRANSIENTS
        return node.gradient and bool(saved)

    def stays(self, index: int) -> bool:
        """True if a tensor is kept where it is computed, even if its segment is recomputed."""
        return self.saves_output(index) if self.mode(index) == "none" else self.keeps_output(index)

    def share_kept(self, index: int, moved: bool) -> None:
        """Keep a tensor in the layout that its readers share, or restore it for them."""
        size, stays = self.bytes(index, self.plan.choices[index].given), self.stays(index)
        inside = outside = False
        for use in self.classes.reads.get(index, ()):
            keeps = self.saves(use) and self.graph.nodes[use.node].op not in LOSS_TRANSIENTS
            if self.mode(index) != "none" and self.segment.get(use.node) == self.segment[index]:
                inside |= keeps
            else:
                outside |= keeps or self.enters(index, use)
        if outside and (moved or not stays):
            self.stay("activations", index, size)
        if inside and (moved or not (stays or self.saves_output(index))):
            self.save("activations", index, self.of(index).bytes(index, self.plan.choices[index].given))

    def parted(self, index: int) -> None:
        """What parts of segments add: results are joined; so are the gradients of what enters, or they are added up."""
        uses, here, size = self.classes.uses.get(index, ()), self.segment.get(index), self.given_bytes(index)
        if index in self.in_parts and any(self.segment.get(use.node) != here for use in uses):
            self.work("compute", "join parts", "forward", index, self.kernel(0, 2.0 * size), slot=PriceSlot.AFTER)
        entered = set[str]()
        for use in uses if self.graph.nodes[index].gradient else ():
            parts, segment = self.in_parts.get(use.node, 1), self.segment.get(use.node)
            if parts == 1 or segment == here or segment is None or segment in entered:
                continue
            entered.add(segment)
            if self.known[index].batch:
                self.work("compute", "join parts", "backward", index, self.kernel(0, 2.0 * size), use.node)
            else:
                self.add_parts("compute", index, size, use.node)

    def add_parts(self, part: PricePart, index: int, size_bytes: int, at: int) -> None:
        """Add up the gradients of a tensor that all parts of the segment of node `at` read whole."""
        additions = self.in_parts[at] - 1
        time = self.kernel(0, 3.0 * additions * size_bytes, additions)
        self.work(part, "add parts", "backward", index, time, at, calls=additions)

    def given_bytes(self, index: int) -> int:
        """Bytes of a tensor in the layout that its readers get."""
        return self.bytes(index, self.plan.choices[index].given)

    def special_parts(self, index: int) -> Iterator[tuple[int, Row, Part]]:
        """The axes on which a special strategy splits an operator, with a rank's part there."""
        node, choice, sizes = self.graph.nodes[index], self.plan.choices[index], self.plan.placement.sizes
        known = tuple(self.known[i] for i in node.inputs)
        situation = Situation(node, self.sources(index), known, self.known[index])
        itemsizes = tuple(self.item(i) for i in (*node.inputs, index))
        for axis, row in enumerate(self.rows(index)):
            if row.special and sizes[axis] > 1:
                layouts, spread = (choice.inputs, choice.output), self.spreads.get(node.inputs[0])
                yield axis, row, part_of(situation, row, sizes[axis], layouts, sizes, itemsizes, spread=spread)

    def specials(self, index: int) -> None:
        """The messages of special strategies, and what they keep."""
        kept = 0
        ahead: tuple[Phase, ...] = ("forward",) if self.mode(index) == "none" else ("forward", "recompute")
        back: tuple[Phase, ...] = ("backward",) if self.graph.nodes[index].gradient else ()
        for axis, row, part in self.special_parts(index):
            entry = special_strategy(row.special)
            for message in entry.messages(part):
                for phase in back if message.backward else ahead:
                    move = index, axis, message.action, message.size_bytes, phase
                    self.add_move(*move, slot=PriceSlot.KERNEL, times=message.times)
            kept = max(kept, entry.kept(part))
        if kept and self.graph.nodes[index].gradient:
            self.save("activations", index, kept)

    def saves(self, use: Use) -> bool:
        """True if autograd keeps a consumer's input."""
        node, entry = self.graph.nodes[use.node], operator(self.graph.nodes[use.node].op)
        return entry.named(node)[use.operand] in entry.kept(node, self.sources(use.node))

    def kept_bytes(self, use: Use) -> int:
        """Bytes of an input as its consumer keeps it; a loss keeps a float32 copy."""
        node, source = self.graph.nodes[use.node], self.graph.nodes[use.node].inputs[use.operand]
        name = operator(node.op).named(node)[use.operand]
        if any(name in special_strategy(row.special).copied(part) for _, row, part in self.special_parts(use.node)):
            return 0  # counted where the copy is made
        item = self.item(source)
        if node.op in LOSS_TRANSIENTS and item < 4:
            item = ITEMSIZE["float32"]
        return self.numel(source, self.plan.choices[use.node].inputs[use.operand]) * item

    def keep(self, use: Use) -> None:
        """Keep a reader's own copy of its input, if its backward needs it."""
        if self.saves(use):
            self.save("activations", use.node, self.kept_bytes(use))

    def tensor(self, index: int) -> None:
        """Convert a tensor for its consumers, the shared conversion first, and keep it for backward."""
        choice, uses, stays = self.plan.choices[index], self.classes.reads.get(index, ()), self.stays(index)
        if choice.shared is not None:
            ends = choice.output, choice.shared
            moved = self.of(index).convert("conversions", index, *ends, index, slot=PriceSlot.AFTER)
            self.share_kept(index, moved)
        self.reads(index)
        if choice.shared is None and any(self.enters(index, use) for use in uses) and not stays:
            self.stay("activations", index, self.bytes(index, choice.output))
        for position, source in enumerate(self.graph.nodes[index].inputs):  # constants are cut where they are used
            base = self.classes.base[source]
            if self.classes.constant[base]:
                use = Use(index, position, self.classes.atoms[source])
                here = self.of(index)
                if here.convert("compute", base, self.plan.choices[base].given, self.required(use), index):
                    here.keep(use)

    def reads(self, index: int) -> None:
        """Convert a tensor for its readers here, and keep it for backward where they do."""
        choice, uses, stays = self.plan.choices[index], self.classes.reads.get(index, ()), self.stays(index)
        for use in uses:
            if not self.reads_here(index, use):
                continue
            back = use.node not in self.classes.twin
            at = use.node if self.is_here(use.node) else index  # what joins ranges gets addends
            here = self.of(at)
            moved = here.convert("conversions", index, choice.given, self.required(use), at, backward=back)
            copied = moved or self.graph.nodes[use.node].op in LOSS_TRANSIENTS
            inside = self.segment.get(index) == self.segment.get(use.node)
            there = stays or self.enters(index, use) or (inside and self.saves_output(index))
            if copied or (choice.shared is None and not there):
                self.of(use.node).keep(use)
