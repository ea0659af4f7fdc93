"""From a plan to its parallel graph: conversions become operators, and every item of the price goes to one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from ...formulation.placement.placement import ranks
from ...formulation.strategies.strategy import rows_taken
from ...formulation.strategies.tensor_classes import Classes, Use, classes, without_addends
from ...model.graph.atoms import atoms
from ...model.graph.layout import Action, B, Layout, P, R, S, Step, atom_of, is_split, steps
from ...model.graph.pcg import SOURCES, Attribute
from ..plan.choice import letter_text
from ..plan.routes import route
from ..pricing.price_items import Item, Slot
from ..pricing.stage_price import stage_price
from .graph import MachineMapping, Nested, Node, ParallelGraph, Tensor, Work, kind, moves, split_dim, tasks, tensor

if TYPE_CHECKING:
    from ..plan.plan import Plan

_Place: TypeAlias = tuple[str, str, str, int, int, Slot, tuple[int, ...]]
"""Part, kind, phase, tensor, where it runs, slot and axes of an item: those alike are alike, and in order."""


def parallel_graph(plan: Plan) -> ParallelGraph:
    """The PCG of a plan with parallel operators; the times of its operators sum to the plan's predicted step.

    Constants come first, other sources right before what first reads them. Inputs are whole: pipeline cuts them into
    micro-batches, and partition gives each rank its part, which costs nothing, since ranks read no more than that. A
    weight is one tensor: replicate makes the copies that are stored, and its backward is the sum of their gradients,
    once a step. The loss is added up by batch and made whole at the end, unpriced: training does not need that. Of
    branches side by side only the slowest has times, and the fullest memory.
    """
    return _Build(plan).run()


class _Build:
    """Adds nodes; `value[i]` is the node of the tensor that node i of the plan's graph gives to its readers."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph, self.known = plan, plan.graph, atoms(plan.graph)
        self.sizes = dict(zip(plan.axes, plan.placement.sizes, strict=True))
        self.classes: Classes = classes(plan.graph)
        self.numbers = ranks(plan.placement)
        self.mapped: dict[tuple[tuple[str, ...], tuple[str, ...]], MachineMapping] = {}
        self.nodes: list[Node] = []
        self.value: dict[int, int] = {}
        self.stored: dict[int, int] = {}  # of a weight, before it is converted for all its readers
        self.owner: dict[int, int] = {}  # the node that computes or holds what a node of the plan's graph is
        self.passes: dict[tuple[int, int], int] = {}
        cost = stage_price(plan)
        self.kept, self.items, self.sums = cost.kept, dict[_Place, deque[Item]](), dict[int, list[Item]]()
        for item in cost.items:
            if item.part == "gradients" and item.axes:
                self.sums.setdefault(item.node, []).append(item)
            else:
                place = item.part, item.kind, item.phase, item.node, item.at, item.slot, item.axes
                self.items.setdefault(place, deque()).append(item)

    def run(self) -> ParallelGraph:
        constant = self.classes.constant
        for index in sorted(range(len(constant)), key=lambda index: not constant[index]):
            if self.graph.nodes[index].op not in SOURCES:
                self.operator(index)
        for index in range(len(self.graph.nodes)):
            self.read(index)  # what nothing reads is there all the same
        output = self.output()
        self.rest()
        return ParallelGraph(
            tuple(self.sizes.items()),
            self.plan.micro_batches,
            tuple(self.nodes),
            output,
            sum(kept.bytes for kept in self.kept if kept.node < 0),
        )

    # Nodes

    def add(
        self,
        operator: str,
        index: int,
        inputs: Sequence[int],
        made: Tensor,
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
            self.mapped[key] = MachineMapping(over, _nested(array.tolist()))
        return self.mapped[key]

    def tensor(self, index: int, layout: Layout) -> Tensor:
        """The tensor of a node in a layout, at one coordinate of the axes that the plan says."""
        node = self.graph.nodes[index]
        letters = [letter_text(self.known[index], x) for x in layout]
        for axis, coordinate in self.plan.choices[index].beside:
            letters[axis] = f"@{coordinate}"
        if self.plan.choices[index].at:
            letters = ["spread" if x == P else text for x, text in zip(layout, letters, strict=True)]
        return tensor(node.shape, letters, tuple(self.sizes.values()), node.dtype)

    def operator(self, index: int) -> None:
        """A node that computes or shows something, and what converts its result for all readers."""
        node, choice, shows = self.graph.nodes[index], self.plan.choices[index], self.classes.base[index] != index
        given = [self.asked(index, k) for k in range(len(node.inputs))]
        made = self.tensor(index, self.shown(index) if shows else choice.output)
        special = () if shows else self.special(index)
        self.value[index] = self.add(node.op, index, given, made, {"special": special} if special else {})
        if not shows and choice.shared is not None:
            program = route(self.plan, index, choice.output, choice.shared)
            self.value[index] = self.convert(self.value[index], index, program, index, index, Slot.AFTER)

    def special(self, index: int) -> tuple[str, ...]:
        """The special strategies of a node: `tensor: halo`."""
        choice = self.plan.choices[index]
        taken = zip(self.sizes.items(), rows_taken(self.graph, index, choice.inputs, choice.output), strict=True)
        return tuple(f"{axis}: {row.special}" for (axis, size), row in taken if row and row.special and size > 1)

    def shown(self, index: int) -> Layout:
        """The layout of a node that shows another one, in its own atoms."""
        base = self.classes.base[index]
        choice = self.plan.choices[base]
        layout = choice.output if self.again(index, base) else choice.given
        return tuple(self.letter(x, index) for x in layout)

    def letter(self, letter: int, index: int) -> int:
        """A letter of what a node shows in the node's atoms."""
        return S(self.classes.atoms[index].index(atom_of(letter))) if is_split(letter) else letter

    def read(self, index: int) -> int:
        """The node whose tensor readers of a node convert; sources are added where they are first read."""
        if index not in self.value:
            node, choice = self.graph.nodes[index], self.plan.choices[index]
            make = {"input": self.input, "parameter": self.parameter, "buffer": self.buffer}[node.op]
            self.value[index] = self.stored[index] = make(index)
            if choice.shared is not None:
                first = next((use.node for use in self.uses(index)), index)
                program = route(self.plan, index, choice.output, choice.shared)
                self.value[index] = self.convert(self.value[index], index, program, index, first, again=choice.regather)
        return self.value[index]

    def uses(self, index: int) -> list[Use]:
        """The reads of a tensor in passes with gradient."""
        return [use for use in self.classes.reads.get(index, ()) if use.node not in self.classes.twin]

    # Sources

    def input(self, index: int) -> int:
        node, count = self.graph.nodes[index], self.plan.micro_batches
        whole = self.tensor(index, (R,) * len(self.sizes))
        dim = node.get("batch_dim")
        if count == 1 or dim is None:
            at = self.add("input", index, (), whole, {})
        else:
            shape = tuple(n * count if d == dim else n for d, n in enumerate(node.shape))
            at = self.add("input", index, (), replace(whole, shape=shape), {})
            at = self.add("pipeline", index, (at,), whole, {"dim": dim, "degree": count})
        return self.convert(at, index, steps((R,) * len(self.sizes), self.plan.choices[index].output), index, index)

    def parameter(self, index: int) -> int:
        """A weight: one tensor, or parts; copies of it are made by replicate, those of a ZeRO-1 weight from parts."""
        node, choice = self.graph.nodes[index], self.plan.choices[index]
        copies = [a for a, x in enumerate(choice.output) if x == B and a not in choice.alone]
        made, axes = self.tensor(index, choice.output), tuple(self.plan.axes[a] for a in copies)
        letter = "flat" if choice.sharded_states else "R"
        letters = tuple(letter if a in axes else x for a, x in zip(self.sizes, made.letters, strict=True))
        at = self.add("parameter", index, (), tensor(node.shape, letters, tuple(self.sizes.values()), node.dtype), {})
        return self.parallel(at, index, axes, letter, "B", self.sums.pop(index, [])) if copies else at

    def buffer(self, index: int) -> int:
        return self.add("buffer", index, (), self.tensor(index, self.plan.choices[index].output), {})

    # Conversions

    def asked(self, index: int, operand: int) -> int:
        """What a node reads, converted to the layout that it asks."""
        source = self.graph.nodes[index].inputs[operand]
        base, at = self.classes.base[source], self.read(source)
        if self.classes.base[index] != index:
            return self.stored[source] if self.again(index, base) and source in self.stored else at
        use = Use(index, operand, self.classes.atoms[source])
        target = tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in self.plan.choices[index].inputs[operand])
        if self.again(index, base):
            return self.repeated(use, source, base, target)
        given = self.plan.choices[base].given
        if self.graph.nodes[base].op == "input":
            return self.convert(at, source, steps(given, target), base, index)
        program = route(self.plan, base, given, target)
        regather = self.plan.choices[base].regather and self.plan.choices[base].shared is None
        return self.convert(at, source, program, base, index, again=regather, back=index not in self.classes.twin)

    def again(self, index: int, base: int) -> bool:
        """Whether a pass without gradient reads a weight here: it converts what is stored on its own."""
        return index in self.classes.twin and self.graph.nodes[base].op == "parameter"

    def repeated(self, use: Use, source: int, base: int, target: Layout) -> int:
        """A weight for a pass without gradient, converted once in the pass to where all read it, then for each read."""
        choice = self.plan.choices[base]
        at = self.stored.get(source, self.value[source])
        if choice.shared is None:
            program = route(self.plan, base, choice.output, target)
            return self.convert(at, source, program, base, use.node, back=False)
        shared, place = without_addends(choice.shared), (self.classes.twin[use.node], use.operand)
        alike: dict[tuple[int, int], list[int]] = {}
        for other in self.classes.reads[base]:
            if other.node in self.classes.twin:
                alike.setdefault((self.classes.twin[other.node], other.operand), []).append(other.node)
        number = source, alike[place].index(use.node)
        if number not in self.passes:
            program = route(self.plan, base, choice.output, shared)
            self.passes[number] = self.convert(at, source, program, base, use.node, back=False)
        program = route(self.plan, base, shared, target)
        return self.convert(self.passes[number], source, program, base, use.node, back=False)

    def convert(
        self,
        at: int,
        index: int,
        program: Sequence[Step],
        base: int,
        reader: int,
        slot: Slot = Slot.BEFORE,
        again: bool = False,
        back: bool = True,
    ) -> int:
        """The operators of a conversion program of what `index` shows of `base`, with the items of its moves."""
        for step in program:
            axis = self.plan.axes[step.axis]
            source, target = (letter_text(self.known[index], self.letter(x, index)) for x in (step.source, step.target))
            work = list(self.taken(step.move.value, "forward", base, reader, slot, step.axis))
            work += self.taken(step.move.value, "recompute", base, reader, slot, step.axis)
            if again:
                work += self.taken(step.move.value, "backward", base, reader, Slot.REGATHER, step.axis)
            if self.graph.nodes[base].gradient and back:
                work += self.taken(step.move.gradient, "backward", base, reader, slot, step.axis)
            at = self.parallel(at, index, (axis,), source, target, work)
        return at

    def taken(self, action: Action, phase: str, base: int, reader: int, slot: Slot, axis: int) -> Iterator[Item]:
        """The item of a move; none where nothing is done, or where it is not on the slowest of branches."""
        part = self.part(base)
        found = self.items.get((part, action.value, phase, base, reader, slot, (axis,)))
        if found and action is not Action.NOTHING:
            yield found.popleft()

    def part(self, base: int) -> str:
        """The part of the price where conversions of a tensor are."""
        if self.classes.constant[base]:
            return "compute"
        return "weights" if self.graph.nodes[base].op == "parameter" else "conversions"

    def parallel(
        self, at: int, index: int, axes: tuple[str, ...], source: str, target: str, work: Sequence[Item]
    ) -> int:
        """The operators of a move of some axes together; the last one has its work."""
        program = list(moves(source, target))
        degree = prod(self.sizes[a] for a in axes)
        for number, (operator, letter, first) in enumerate(program):
            last = number == len(program) - 1
            state = self.nodes[at].tensor
            letters = [letter if a in axes else x for a, x in zip(self.sizes, state.letters, strict=True)]
            more: dict[str, Attribute] = {"axes": axes, "degree": degree}
            split = source if operator == "combine" else target
            if operator in ("partition", "combine"):
                more |= {"dim": split_dim(split)} | ({"letter": split} if split != f"S({split_dim(split)})" else {})
            more |= {name: True for name, holds in (("first", first), ("fused", number > 0)) if holds}
            made = tensor(state.shape, letters, tuple(self.sizes.values()), state.dtype)
            at = self.add(operator, index, (at,), made, more, work if last else ())
        return at

    # Ends

    def output(self) -> int:
        """The loss of all micro-batches, whole."""
        loss, at = self.graph.loss, self.value[self.graph.loss]
        if self.plan.micro_batches > 1:
            at = self.add("batch", loss, (at,), self.nodes[at].tensor, {"degree": self.plan.micro_batches})
        given = self.plan.choices[loss].given
        return self.convert(at, loss, steps(given, tuple(R for _ in given)), loss, -1)

    def rest(self) -> None:
        """What is left of the price, at the operators that compute or hold; memory too."""
        work: dict[int, list[Work]] = {}
        for items in (*self.items.values(), *self.sums.values()):
            for item in items:
                work.setdefault(self.owner[item.node], []).append(self.work(item))
        kept: dict[int, dict[str, int]] = {}
        for held in self.kept:
            if held.node >= 0:
                parts = kept.setdefault(self.owner[held.node], {})
                parts[held.part] = parts.get(held.part, 0) + held.bytes
        for at in sorted({*work, *kept}):
            merged = (*self.nodes[at].work, *work.get(at, ()))
            self.nodes[at] = replace(self.nodes[at], work=merged, kept=tuple(kept.get(at, {}).items()))


def _nested(value: object) -> tuple[Nested, ...]:
    assert isinstance(value, list)
    return tuple(_nested(x) if isinstance(x, list) else x for x in value)
