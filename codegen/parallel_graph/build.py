"""From a plan to its parallel graph: conversions become operators, and every item of the price goes to one of them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from ...formulation.placement.placement import ranks
from ...formulation.strategies.strategy import rows_taken
from ...formulation.strategies.tensor_classes import Use, classes, without_addends
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.layout import Action, B, Layout, P, R, S, Step, atom_of, is_split, steps
from ...model.graph.pcg import SOURCES, Attribute
from ..plan.choice import letter_text
from ..plan.routes import route
from ..pricing.price_items import Item, PriceSlot
from ..pricing.stage_price import stage_price
from .graph import (
    MachineMapping,
    Node,
    ParallelGraph,
    ParallelTensor,
    Work,
    kind,
    moves,
    nested,
    split_dim,
    tasks,
    tensor,
)

if TYPE_CHECKING:
    from ..plan.plan import Plan

_Place: TypeAlias = tuple[str, str, str, int, int, PriceSlot, tuple[int, ...]]
"""Part, kind, phase, tensor, where it runs, slot and axes of an item; items with equal places are interchangeable."""


def parallel_graph(plan: Plan) -> ParallelGraph:
    """The PCG of a plan with parallel operators; the times of its operators sum to the plan's predicted step.

    Constants come first, other sources right before what first reads them. Inputs are whole: pipeline cuts them into
    micro-batches, and partition gives each rank its part, at no cost, since a rank reads only its part. A weight is one
    tensor: replicate makes the copies that are stored, and its backward sums their gradients once a step. The loss is
    summed over the batch and made whole at the end, unpriced: training does not need that. Of parallel branches only
    the slowest has times, and the fullest memory.
    """
    if plan.size > 1:
        raise PartitaError("a pipelined plan has no PCG: each of `plan.stages` has its own")
    if plan.ranges:
        raise PartitaError("a plan with parallel branches on ranges of coordinates has no PCG with parallel operators")
    return _Build(plan).run()


class _Build:
    """Adds nodes; `value[i]` is the node of the tensor that node i of the plan's graph gives to its readers."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph, self.known = plan, plan.graph, atoms(plan.graph)
        self.sizes = dict(zip(plan.axes, plan.placement.sizes, strict=True))
        self.classes, self.numbers = classes(plan.graph), ranks(plan.placement)
        self.mapped: dict[tuple[tuple[str, ...], tuple[str, ...]], MachineMapping] = {}
        self.nodes: list[Node] = []
        self.value: dict[int, int] = {}
        self.stored: dict[int, int] = {}  # of a weight, before it is converted for all its readers
        self.owner: dict[int, int] = {}  # of a node of the plan's graph, the node that computes or stores it
        self.passes: dict[tuple[int, int], int] = {}  # weight and pass -> the weight as that pass shares it
        cost = stage_price(plan)
        self.kept, self.hidden_ns, self.host_bound_ns = cost.kept, cost.hidden_ns, cost.host_bound_ns
        self.items: dict[_Place, deque[Item]] = defaultdict(deque)
        self.sums: dict[int, list[Item]] = defaultdict(list)  # collectives on gradients, by weight
        for item in cost.items:
            if item.part == "gradients" and item.axes:
                self.sums[item.node].append(item)
            else:
                place = item.part, item.kind, item.phase, item.node, item.at, item.slot, item.axes
                self.items[place].append(item)

    def run(self) -> ParallelGraph:
        constant = self.classes.constant
        for index in sorted(range(len(constant)), key=lambda index: not constant[index]):
            if self.graph.nodes[index].op not in SOURCES:
                self.operator(index)
        for index in range(len(self.graph.nodes)):
            self.read(index)  # sources without readers
        output = self.output()
        self.assign_rest()
        reserve = sum(kept.bytes for kept in self.kept if kept.node < 0)
        shape = tuple(self.sizes.items()), self.plan.micro_batches
        beside = self.hidden_ns, self.host_bound_ns
        return ParallelGraph(*shape, tuple(self.nodes), output, reserve, *beside)

    # Nodes

    def add(
        self,
        operator: str,
        index: int,
        inputs: Sequence[int],
        made: ParallelTensor,
        more: Mapping[str, Attribute],
        work: Sequence[Item] = (),
    ) -> int:
        """A node for node `index` of the plan's graph."""
        node, read = self.graph.nodes[index], [self.nodes[i].tensor.letters for i in inputs]
        attributes = tuple(sorted((*(node.attributes if operator == node.op else ()), *more.items())))
        mapping = self.mapping(tasks(made.letters, read, tuple(self.sizes)), made.letters)
        if operator == node.op:
            self.owner[index] = len(self.nodes)
        self.nodes.append(
            Node(
                operator, node.name, tuple(inputs), made, mapping, index,
                attributes=attributes, gradient=node.gradient, work=tuple(map(self.work, work)),
            )
        )  # fmt: skip
        return len(self.nodes) - 1

    def work(self, item: Item) -> Work:
        axes = tuple(self.plan.axes[a] for a in item.axes)
        return Work(item.part, item.kind, item.phase, item.ns, item.count, axes, bytes=item.bytes)

    def mapping(self, over: tuple[str, ...], letters: tuple[str, ...]) -> MachineMapping:
        """The devices of these tasks, in the order of the axes; at one coordinate where a letter says so."""
        key = over, tuple(x if kind(x) == "@" else "" for x in letters)
        if key not in self.mapped:
            place = tuple(int(x[1:]) if kind(x) == "@" else slice(None) for x in letters)
            left = [a for a, x in zip(self.sizes, letters, strict=True) if kind(x) != "@"]
            order = [left.index(a) for a in (*over, *(a for a in left if a not in over))]
            array = self.numbers[place].transpose(order).reshape([*(self.sizes[a] for a in over), -1])
            self.mapped[key] = MachineMapping(over, tuple(map(nested, array.tolist())))
        return self.mapped[key]

    def with_letters(self, index: int, letters: Sequence[str]) -> ParallelTensor:
        """The tensor of a node in the state that these letters say."""
        node = self.graph.nodes[index]
        return tensor(node.shape, letters, tuple(self.sizes.values()), node.dtype)

    def tensor(self, index: int, layout: Layout) -> ParallelTensor:
        """The tensor of a node in a layout, at one coordinate of the axes where the plan says so."""
        letters = [letter_text(self.known[index], x) for x in layout]
        for axis, coordinate in self.plan.choices[index].beside:
            letters[axis] = f"@{coordinate}"
        if self.plan.choices[index].at:
            letters = ["spread" if x == P else text for x, text in zip(layout, letters, strict=True)]
        return self.with_letters(index, letters)

    def operator(self, index: int) -> None:
        """A node that computes a tensor or is a view of one, and the conversion for all its readers."""
        node, choice, base = self.graph.nodes[index], self.plan.choices[index], self.classes.base[index]
        given = [self.operand(index, k) for k in range(len(node.inputs))]
        if base != index:
            viewed = self.plan.choices[base]
            layout = viewed.output if self.converts_weight(index, base) else viewed.given
            made = self.tensor(index, tuple(self.letter(x, index) for x in layout))
            self.value[index] = self.add(node.op, index, given, made, {})
            return
        taken = zip(self.sizes.items(), rows_taken(self.graph, index, choice.inputs, choice.output), strict=True)
        special = tuple(f"{axis}: {row.special}" for (axis, size), row in taken if row and row.special and size > 1)
        made = self.tensor(index, choice.output)
        self.value[index] = self.add(node.op, index, given, made, {"special": special} if special else {})
        if choice.shared is not None:
            program = route(self.plan, index, choice.output, choice.shared)
            self.value[index] = self.convert(self.value[index], index, program, index, index, PriceSlot.AFTER)

    def letter(self, letter: int, index: int) -> int:
        """A letter of the base of node `index` in the node's own atoms."""
        return S(self.classes.atoms[index].index(atom_of(letter))) if is_split(letter) else letter

    def read(self, index: int) -> int:
        """The node whose tensor readers of a node convert; a source is added where it is first read."""
        if index not in self.value:
            node, choice = self.graph.nodes[index], self.plan.choices[index]
            make = {"input": self.input, "parameter": self.parameter, "buffer": self.buffer}[node.op]
            self.value[index] = self.stored[index] = make(index)
            if choice.shared is not None:
                uses = (use.node for use in self.classes.reads.get(index, ()) if use.node not in self.classes.twin)
                first, program = next(uses, index), route(self.plan, index, choice.output, choice.shared)
                self.value[index] = self.convert(self.value[index], index, program, index, first, again=choice.regather)
        return self.value[index]

    # Sources

    def input(self, index: int) -> int:
        node, count, whole = self.graph.nodes[index], self.plan.micro_batches, (R,) * len(self.sizes)
        made, dim = self.tensor(index, whole), node.get("batch_dim")
        if count == 1 or dim is None:
            at = self.add("input", index, (), made, {})
        else:
            shape = tuple(n * count if d == dim else n for d, n in enumerate(node.shape))
            at = self.add("input", index, (), replace(made, shape=shape), {})
            at = self.add("pipeline", index, (at,), made, {"dim": dim, "degree": count})
        return self.convert(at, index, steps(whole, self.plan.choices[index].output), index, index)

    def parameter(self, index: int) -> int:
        """A weight: one tensor, or parts; copies of it are made by replicate, those of a ZeRO-1 weight from parts."""
        choice = self.plan.choices[index]
        axes = tuple(self.plan.axes[a] for a, x in enumerate(choice.output) if x == B and a not in choice.alone)
        letter = "flat" if choice.sharded_states else "R"
        made = zip(self.sizes, self.tensor(index, choice.output).letters, strict=True)
        stored = self.with_letters(index, [letter if a in axes else x for a, x in made])
        at = self.add("parameter", index, (), stored, {})
        return self.parallel(at, index, axes, letter, "B", self.sums.pop(index, [])) if axes else at

    def buffer(self, index: int) -> int:
        return self.add("buffer", index, (), self.tensor(index, self.plan.choices[index].output), {})

    # Conversions

    def operand(self, index: int, operand: int) -> int:
        """An operand of a node, in the layout in which the node reads it."""
        source = self.graph.nodes[index].inputs[operand]
        base, at = self.classes.base[source], self.read(source)
        converts_weight, choice = self.converts_weight(index, base), self.plan.choices[base]
        if self.classes.base[index] != index:
            return self.stored.get(source, at) if converts_weight else at
        use = Use(index, operand, self.classes.atoms[source])
        target = tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in self.plan.choices[index].inputs[operand])
        if converts_weight:
            return self.weight_of_pass(use, source, base, target)
        if self.graph.nodes[base].op == "input":
            return self.convert(at, source, steps(choice.given, target), base, index)
        program = route(self.plan, base, choice.given, target)
        regather = choice.regather and choice.shared is None
        return self.convert(at, source, program, base, index, again=regather, back=index not in self.classes.twin)

    def converts_weight(self, index: int, base: int) -> bool:
        """True if a pass without gradient reads a weight here: it converts the stored weight for itself."""
        return index in self.classes.twin and self.graph.nodes[base].op == "parameter"

    def weight_of_pass(self, use: Use, source: int, base: int, target: Layout) -> int:
        """A weight in a pass without gradient: converted once for all readers of the pass, then for each of them."""
        choice, at = self.plan.choices[base], self.stored.get(source, self.value[source])
        current = choice.output
        if choice.shared is not None:
            alike = self.classes.repetitions(base)[self.classes.twin[use.node], use.operand]
            number = source, [other.node for other in alike].index(use.node)
            current = without_addends(choice.shared)
            if number not in self.passes:
                program = route(self.plan, base, choice.output, current)
                self.passes[number] = self.convert(at, source, program, base, use.node, back=False)
            at = self.passes[number]
        return self.convert(at, source, route(self.plan, base, current, target), base, use.node, back=False)

    def convert(
        self,
        at: int,
        index: int,
        program: Sequence[Step],
        base: int,
        reader: int,
        slot: PriceSlot = PriceSlot.BEFORE,
        again: bool = False,
        back: bool = True,
    ) -> int:
        """The operators of a conversion program on node `index`, which is `base` or a view of it, with their items.

        A move has no item where it does nothing, or is not on the slowest of parallel branches.
        """
        part = "weights" if self.graph.nodes[base].op == "parameter" else "conversions"
        part = "compute" if self.classes.constant[base] else part
        for step in program:
            axis, value = self.plan.axes[step.axis], step.move.value
            source, target = (letter_text(self.known[index], self.letter(x, index)) for x in (step.source, step.target))
            runs = [(value, "forward", slot), (value, "recompute", slot)]
            runs += [(value, "backward", PriceSlot.REGATHER)] if again else []
            runs += [(step.move.gradient, "backward", slot)] if self.graph.nodes[base].gradient and back else []
            found = (
                self.items.get((part, action.value, phase, base, reader, when, (step.axis,)))
                for action, phase, when in runs
                if action is not Action.NOTHING
            )
            at = self.parallel(at, index, (axis,), source, target, [items.popleft() for items in found if items])
        return at

    def parallel(
        self, at: int, index: int, axes: tuple[str, ...], source: str, target: str, work: Sequence[Item]
    ) -> int:
        """The operators of a move on some axes together; the last one has its work."""
        program = list(moves(source, target))
        for number, (operator, letter, first) in enumerate(program):
            given = zip(self.sizes, self.nodes[at].tensor.letters, strict=True)
            made = self.with_letters(index, [letter if a in axes else x for a, x in given])
            more: dict[str, Attribute] = {"axes": axes, "degree": prod(self.sizes[a] for a in axes)}
            split = source if operator == "combine" else target
            if operator in ("partition", "combine"):
                more |= {"dim": split_dim(split)} | ({"letter": split} if split != f"S({split_dim(split)})" else {})
            more |= {name: True for name, holds in (("first", first), ("fused", number > 0)) if holds}
            at = self.add(operator, index, (at,), made, more, work if number == len(program) - 1 else ())
        return at

    # Ends

    def output(self) -> int:
        """The loss of all micro-batches, whole."""
        loss, at = self.graph.loss, self.value[self.graph.loss]
        if self.plan.micro_batches > 1:
            at = self.add("batch", loss, (at,), self.nodes[at].tensor, {"degree": self.plan.micro_batches})
        given = self.plan.choices[loss].given
        return self.convert(at, loss, steps(given, tuple(R for _ in given)), loss, -1)

    def assign_rest(self) -> None:
        """Give all other items of the price, and memory, to the operators that compute or store."""
        work: dict[int, list[Work]] = defaultdict(list)
        for items in (*self.items.values(), *self.sums.values()):
            for item in items:
                work[self.owner[item.node]].append(self.work(item))
        kept: dict[int, Counter[str]] = defaultdict(Counter)
        for held in self.kept:
            if held.node >= 0:
                kept[self.owner[held.node]][held.part] += held.bytes
        for at in {*work, *kept}:
            node = self.nodes[at]
            self.nodes[at] = replace(node, work=(*node.work, *work[at]), kept=tuple(kept[at].items()))
