"""What a plan costs, computed from its layouts alone: node by node, move by move, without network or tables of options.

It states the cost model once more in plain Python, so that the objective a solver reports is confirmed by something
that shares none of its encoding. ns are of a whole step, bytes of the rank that holds most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from ..formulation.domain import LOSS_TRANSIENTS
from ..formulation.encode import Classes, Use, classes
from ..formulation.transition import Transitions
from ..formulation.weights import BUCKET_BYTES
from ..model.atoms import atoms
from ..model.collectives import joint, price
from ..model.cost import ITEMSIZE, backward_factor, optimizer_states, precision
from ..model.layout import Action, B, Layout, R, S, Step, atom_of, is_split, largest_part
from ..model.operator import operator
from .plan import Plan
from .routes import route

_WRITTEN = (Action.GATHER, Action.PAD, Action.SLICE, Action.KEEP_FIRST)


@dataclass
class Priced:
    """ns of a step by part, bytes by part."""

    ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("compute", "conversions", "weights", "gradients"), 0))
    memory: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("states", "activations", "weights", "reserve"), 0))

    @property
    def objective_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())


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
                if node.op != "buffer" and operator(node.op).passes:
                    self.result.ns["compute"] += self.k * self.kernel(0, 2.0 * node.numel * self.item(index))
            elif node.op != "input" and self.classes.base[index] == index:
                self.compute(index)
                self.tensor(index)
        for base, uses in self.classes.uses.items():
            if self.graph.nodes[base].op == "input":
                for use in uses:
                    self.keep(use)
        largest = max((n.numel for n in self.graph.nodes if n.op == "parameter"), default=0)
        if self.plan.ranks > 1:
            self.result.memory["reserve"] = 2 * largest * self.precision.itemsize("float32")
        return self.result

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
        return math.ceil(busy + self.device.launch_ns - 1e-3)

    def stream(self, size_bytes: float) -> int:
        return math.ceil(size_bytes / self.device.memory_bandwidth * 1e9)

    def program(self, index: int, source: Layout, program: Sequence[Step]) -> tuple[int, int, bool]:
        """ns of a conversion forward and backward, and whether the value moves."""
        item, node = self.item(index), self.graph.nodes[index]
        forward = backward = 0
        current, moved = list(source), False
        for step in program:
            before = self.numel(index, tuple(current)) * item
            current[step.axis] = step.target
            after = self.numel(index, tuple(current)) * item
            value, gradient = step.move.value, step.move.gradient
            forward += self.moves.step_ns(step.axis, value, after if value in _WRITTEN else before)
            if node.gradient:
                backward += self.moves.step_ns(step.axis, gradient, before if gradient in _WRITTEN else after)
            moved |= value is not Action.NOTHING
        return forward, backward, moved

    def convert(self, index: int, source: Layout, target: Layout) -> tuple[int, int, bool]:
        return self.program(index, source, route(self.plan, index, source, target))

    # Parts

    def compute(self, index: int) -> None:
        """Roofline of one operator, forward and backward, on the largest part."""
        node, choice, entry = self.graph.nodes[index], self.plan.choices[index], operator(self.graph.nodes[index].op)
        sources = tuple(self.graph.nodes[i] for i in node.inputs)
        own = self.numel(index, choice.output) * self.item(index)
        traffic = own + sum(
            self.numel(i, x) * self.item(i) for i, x in zip(node.inputs, choice.inputs, strict=True)
        )
        if node.op == "embedding":
            traffic = 2 * own
        work = entry.work(node, sources) * self.share(index)
        if entry.passes:
            self.result.ns["compute"] += self.k * self.kernel(work, traffic * entry.passes)
            if node.gradient:
                factor = backward_factor(node, sources, entry.matmul)
                self.result.ns["compute"] += self.k * self.kernel(work * factor, 2 * traffic * entry.passes)
        if not node.gradient:
            return
        if node.op == "embedding":
            table = self.numel(node.inputs[0], choice.inputs[0]) * self.item(node.inputs[0])
            self.result.ns["compute"] += self.k * self.stream(table)
        first = self.numel(node.inputs[0], choice.inputs[0]) if node.inputs else 0
        for name in entry.saved:
            if name == "y":
                self.result.memory["activations"] += own
            elif name in ("mask", "noise"):
                self.result.memory["activations"] += first * self.item(node.inputs[0])
        if node.op in LOSS_TRANSIENTS:
            extra = self.item(node.inputs[0]) if self.precision.mixed else 0
            self.result.memory["activations"] += LOSS_TRANSIENTS[node.op] * first * (ITEMSIZE["float32"] + extra)

    def share(self, index: int) -> float:
        """The largest share of the work that a rank does: indices that are split, by what letters say of them."""
        from ..formulation.strategy import rows

        node, choice = self.graph.nodes[index], self.plan.choices[index]
        by_letters = {(row.inputs, row.output): row for row in rows(self.graph, index)}
        parts: dict[object, tuple[int, list[int]]] = {}
        for axis, size in enumerate(self.plan.placement.sizes):
            letters = tuple(x[axis] for x in choice.inputs)
            row = by_letters[letters, choice.output[axis]]
            if row.index is None:
                continue
            owner, letter = next((i, x) for i, x in zip((*node.inputs, index), (*letters, choice.output[axis]), strict=True) if is_split(x))
            whole = self.known[owner].sizes[atom_of(letter)]
            parts.setdefault(row, (whole, []))[1].append(size)
        share = 1.0
        for whole, sizes in parts.values():
            share *= largest_part(whole, tuple(sizes)) / whole
        return share

    def saves(self, use: Use) -> bool:
        node = self.graph.nodes[use.node]
        entry = operator(node.op)
        return node.gradient and entry.named(node)[use.operand] in entry.saved

    def kept_bytes(self, use: Use) -> int:
        """Bytes of an input as its consumer keeps it; a loss keeps a float32 copy."""
        node, source = self.graph.nodes[use.node], self.graph.nodes[use.node].inputs[use.operand]
        item = self.item(source)
        if node.op in LOSS_TRANSIENTS and item < 4:
            item = ITEMSIZE["float32"]
        return self.numel(source, self.plan.choices[use.node].inputs[use.operand]) * item

    def keep(self, use: Use) -> None:
        if self.saves(use):
            self.result.memory["activations"] += self.kept_bytes(use)

    def tensor(self, index: int) -> None:
        """Conversions of a tensor to its consumers, shared first, and what is kept of it."""
        choice, uses = self.plan.choices[index], self.classes.uses.get(index, ())
        entry, node = operator(self.graph.nodes[index].op), self.graph.nodes[index]
        saves_output = node.gradient and bool({"y", "mask", "noise"} & set(entry.saved))
        saves_output |= node.op in LOSS_TRANSIENTS and node.gradient
        given = choice.output
        if choice.shared is not None:
            forward, backward, moved = self.convert(index, choice.output, choice.shared)
            self.result.ns["conversions"] += self.k * (forward + backward)
            given = choice.shared
            keeps = any(self.saves(u) and self.graph.nodes[u.node].op not in LOSS_TRANSIENTS for u in uses)
            if keeps and (moved or not saves_output):
                self.result.memory["activations"] += self.numel(index, given) * self.item(index)
        for use in uses:
            target = self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
            forward, backward, moved = self.convert(index, given, target)
            self.result.ns["conversions"] += self.k * (forward + backward)
            copied = moved or self.graph.nodes[use.node].op in LOSS_TRANSIENTS
            if copied or (choice.shared is None and not saves_output):
                self.keep(use)
        for position, source in enumerate(node.inputs):  # constants are cut where they are used
            base = self.classes.base[source]
            if self.classes.constant[base]:
                use = Use(index, position, self.classes.atoms[source])
                target = self.in_base(use, choice.inputs[position])
                forward, _, moved = self.convert(base, (R,) * len(target), target)
                self.result.ns["compute"] += self.k * forward
                if moved:
                    self.keep(use)

    def weight(self, index: int) -> None:
        """Storage, conversion a micro-batch, synchronization and update a step."""
        choice, node, uses = self.plan.choices[index], self.graph.nodes[index], self.classes.uses[index]
        item, states = ITEMSIZE[self.precision.master], optimizer_states(self.plan.optimizer)
        stored = self.numel(index, choice.output)
        at_b = tuple(a for a, x in enumerate(choice.output) if x == B)
        shards = prod(self.plan.placement.sizes[a] for a in at_b) if choice.sharded_states else 1
        if node.gradient:
            self.result.memory["states"] += stored * 2 * item + -(-stored // shards) * states * item
            if at_b:
                row = joint(self.plan.placement.matrix[a] for a in at_b)
                machine = self.plan.machine
                line = price(machine, "reduce_scatter", row) + price(machine, "all_gather", row)
                if not choice.sharded_states:
                    line = price(machine, "all_reduce", row)
                size = stored * item
                self.result.ns["gradients"] += math.ceil(
                    line.latency_ns * size / BUCKET_BYTES + line.ns_per_byte * size - 1e-3
                )
            self.result.ns["gradients"] += self.stream(-(-stored // shards) * float(item) * (3 + 2 * states))
            self.result.ns["gradients"] += self.k * self.stream(stored * float(self.item(index) + 2 * item))
        else:
            self.result.memory["states"] += stored * item
        shared = choice.shared is not None
        first = [(choice.shared, any(self.saves(u) for u in uses))] if shared else [
            (self.in_base(uses[0], self.plan.choices[uses[0].node].inputs[uses[0].operand]), self.saves(uses[0]))
        ]
        for target, saved in first:
            assert target is not None
            forward, backward, moved = self.convert(index, choice.output, target)
            cast = self.stream(stored * float(item + self.item(index))) if self.precision.mixed else 0
            again = forward + cast if choice.regather else 0
            self.result.ns["weights"] += self.k * (forward + backward + cast + again)
            if saved and not choice.regather and (moved or self.precision.mixed):
                self.result.memory["weights"] += self.numel(index, target) * self.item(index)
        if shared:
            assert choice.shared is not None
            for use in uses:
                target = self.in_base(use, self.plan.choices[use.node].inputs[use.operand])
                forward, backward, moved = self.convert(index, choice.shared, target)
                self.result.ns["weights"] += self.k * (forward + backward)
                if moved and self.saves(use):
                    self.result.memory["weights"] += self.kept_bytes(use)


