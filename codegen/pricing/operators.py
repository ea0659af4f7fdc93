"""What operators cost: their kernels, what special strategies and bundles send, what is kept for backward."""

from __future__ import annotations

from collections.abc import Iterator

from ...formulation.beside import exchanges, widest_piece
from ...formulation.classes import Use
from ...formulation.domain import LOSS_TRANSIENTS
from ...formulation.row import Row
from ...formulation.special import Part, Situation, part_of, special_strategy
from ...formulation.strategy import rows_taken
from ...model.cost import ITEMSIZE, backward_factor
from ...model.layout import COLLECTIVES, Action, R, atom_of, is_split, largest_part
from ...model.operator import operator
from ..beside import as_ordinary
from ..choice import Choice
from ..items import Item, Phase, Slot
from .moves import Moves


class Operators(Moves):
    """Adds operators and the tensors between them."""

    def compute(self, index: int) -> None:
        """Roofline of one operator, forward and backward, on the largest part."""
        node, choice, entry = self.graph.nodes[index], self.choice(index), operator(self.graph.nodes[index].op)
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
                if entry.masked:
                    count = self.numel(index, choice.output)
                    self.work("compute", "activation", "backward", index, self.kernel(count, 4 * own))
        self.specials(index)
        if entry.transfer:
            self.transfer(index, own)
        if not node.gradient:
            return
        if looked_up and sources[looked_up[0]].gradient and not node.get("sparse"):
            place = looked_up[0]
            table = self.numel(node.inputs[place], choice.inputs[place]) * self.item(node.inputs[place])
            self.work("compute", "table gradient", "backward", index, self.stream(table))
        for name, part in self.parts(index).items():
            if entry.split and part < 1:
                made = entry.split(node, sources, name, part)[1]
                self.save("activations", index, made * self.item(node.inputs[0]))
        first = self.numel(node.inputs[0], choice.inputs[0]) if node.inputs else 0
        for name in entry.saved:
            if name == "y":
                self.save("activations", index, own)
            elif name in ("mask", "noise"):
                self.save("activations", index, first * self.item(node.inputs[0]))
            elif name == "indices":
                self.save("activations", index, self.numel(index, choice.output) * ITEMSIZE["int64"])
        if node.op in LOSS_TRANSIENTS:
            extra = self.item(node.inputs[0]) if self.precision.mixed else 0
            self.hold("activations", index, LOSS_TRANSIENTS[node.op] * first * (ITEMSIZE["float32"] + extra))

    def transfer(self, index: int, size_bytes: int) -> None:
        """A tensor from one stage of a pipeline to the next, and its gradient back."""
        node = self.graph.nodes[index]
        ns = self.moves.transfer.ns(size_bytes)
        phases: tuple[Phase, ...] = ("forward", "backward") if node.gradient else ("forward",)
        for phase in phases:
            new = Item("conversions", node.op, phase, index, index, Slot.KERNEL, ns, self.k, (), size_bytes)
            self.result.items.append(new)

    def share(self, index: int) -> float:
        """The largest share of the work that a rank does."""
        node, share = self.graph.nodes[index], 1.0
        split, sources = operator(node.op).split, tuple(self.graph.nodes[i] for i in node.inputs)
        for name, part in self.parts(index).items():
            share *= part * (split(node, sources, name, part)[0] if split and part < 1 else 1.0)
        for _, row, part_of_it in self.special_parts(index):
            share *= special_strategy(row.special).work(part_of_it)
        return share

    def parts(self, index: int) -> dict[str, float]:
        """By index, the largest share of what it counts that a rank has, by what letters say."""
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
        choice = self.plan.choices[index]
        return as_ordinary(self.graph, index, choice) if index in self.bundles else choice

    def exchange(self, index: int) -> None:
        """What brings the branches of a bundle together, and their gradients apart."""
        (axis, *places), node = self.plan.choices[index].joins, self.graph.nodes[index]
        size, layout = self.plan.placement.sizes[axis], self.plan.choices[index].output
        apart = tuple(R if a == axis else x for a, x in enumerate(layout))
        widest = widest_piece(self.graph, self.bundles[index], places, size)
        largest = self.numel(index, apart) // node.shape[node["dim"]] * widest * self.item(index)
        for action, size_bytes, back in exchanges(largest, size, layout[axis] == R):
            if node.gradient or not back:
                self.add_move(index, axis, action, size_bytes, back, Slot.AFTER)

    def add_move(
        self, index: int, axis: int, action: Action, size_bytes: int, back: bool, slot: Slot, times: int = 1
    ) -> None:
        """An action of an operator's own along an axis."""
        ns, axes = self.moves.step_ns(axis, action, size_bytes), (axis,) if action in COLLECTIVES else ()
        phase: Phase = "backward" if back else "forward"
        new = Item("compute", action.value, phase, index, index, slot, ns, self.k * times, axes, size_bytes)
        self.result.items.append(new)

    def rows(self, index: int) -> list[Row]:
        """The row of an operator on every axis."""
        choice = self.choice(index)
        found = rows_taken(self.graph, index, choice.inputs, choice.output)
        return [row for row in found if row is not None]  # a plan is checked to have one everywhere

    def special_parts(self, index: int) -> Iterator[tuple[int, Row, Part]]:
        """The axes on which a special strategy splits an operator, with what a rank has there."""
        node, choice, sizes = self.graph.nodes[index], self.plan.choices[index], self.plan.placement.sizes
        sources = tuple(self.graph.nodes[i] for i in node.inputs)
        situation = Situation(node, sources, tuple(self.known[i] for i in node.inputs), self.known[index])
        items = tuple(self.item(i) for i in node.inputs)
        for axis, row in enumerate(self.rows(index)):
            if row.special and sizes[axis] > 1:
                args = situation, row, sizes[axis], choice.inputs, choice.output, sizes, items, self.item(index)
                yield axis, row, part_of(*args, self.spreads.get(node.inputs[0]))

    def specials(self, index: int) -> None:
        """What special strategies send and keep."""
        kept = 0
        for axis, row, part in self.special_parts(index):
            entry = special_strategy(row.special)
            for message in entry.messages(part):
                if self.graph.nodes[index].gradient or not message.backward:
                    args = index, axis, message.action, message.size_bytes, message.backward, Slot.KERNEL
                    self.add_move(*args, message.times)
            kept = max(kept, entry.kept(part))
        if kept and self.graph.nodes[index].gradient:
            self.save("activations", index, kept)

    def saves(self, use: Use) -> bool:
        node = self.graph.nodes[use.node]
        entry = operator(node.op)
        return node.gradient and entry.named(node)[use.operand] in entry.saved

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
        if self.saves(use):
            self.save("activations", use.node, self.kept_bytes(use))

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
                self.save("activations", index, self.numel(index, choice.shared) * self.item(index))
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
