"""The statements of one function of the model: values of nodes under layouts, and the text that computes each."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from ....formulation.special import Splits
from ....formulation.strategies.strategy import rows_taken
from ....model.graph.atoms import atoms
from ....model.graph.layout import Layout, P, atom_of, is_split
from ....model.machine.precision import precision
from ....model.operators.operator import operator
from ...plan.plan import Plan
from ..common.block_loops import BlockLoop, call_text
from ..common.conversions import Used, between, makes_new
from ..common.expressions import chunked, expression
from ..common.names import is_literal, literal_text
from ..common.operator_calls import OperatorCall
from ..common.regathered_weights import VIEWS, remade
from ..common.statements import FunctionWriter, Statement
from ..common.text import enclosed
from .gatherings import ClassGatherings, Gathering, gatherings
from .loops import Loop
from .parallel_branches import ParallelBranches, comment, operands_of, render
from .recomputation import SegmentCall
from .repeated_blocks import Block

MOST_UNBOUND = 16
"""Most entries along a dim that one line unpacks."""


class FunctionBody(FunctionWriter):
    """Builds the statements of a function. `own`: nodes computed here; `weights`: their texts; all else is an argument.

    `divided`: operands to divide by the number of micro-batches; `divisors`: names of the divisors of losses.
    """

    def __init__(
        self,
        plan: Plan,
        own: frozenset[int],
        weights: Mapping[int, str],
        used: Used,
        divided: frozenset[tuple[int, int]],
        divisors: Mapping[int, str],
        roles: Mapping[int, str],
    ) -> None:
        super().__init__(plan.graph, plan.axes, roles, used.has_dropout or used.overlap)
        self.plan, self.own, self.weights, self.used = plan, own, weights, used
        self.divided, self.divisors = divided, divisors
        self.dropout_sites: dict[int, str] = {}  # call sites of dropouts in loops
        self.branches: Mapping[int, ParallelBranches] = {}  # by the node that joins them
        self.calls: Mapping[int, SegmentCall] = {}  # of segments that are methods, by their results
        self.recomputed = False  # True: backward runs all of this again, so weights are gathered again anyway
        self.gatherings: ClassGatherings | None = None  # of weights that travel together, in the class
        self.gathers_before = False  # True: such weights are arguments
        self.gathered: dict[str, str] = {}  # these arguments: name -> attribute of the gathering
        self.arguments: dict[int, str] = {}  # node (or -1 - loss) -> name, in order of first use
        self.pending_loops: list[tuple[Loop, int]] = []  # loops not written yet, with the number of the pass
        self._memo: dict[object, int] = {}

    def argument(self, node: int, name: str) -> int:
        """An argument of the function, in the layout that `node` gives to all its readers."""
        key = (node, "given", True)
        if key not in self._memo:
            self.arguments[node] = name
            self._memo[key] = self.add(Statement(lambda _: name, (), "argument", name, node))
        return self._memo[key]

    def received(self, node: int, name: str) -> None:
        """An argument from another stage of a pipeline, in the layout in which that stage computes `node`."""
        self.arguments[node] = name
        made, choice = self.add(Statement(lambda _: name, (), "argument", name, node)), self.plan.choices[node]
        self._memo[node, "given", True] = self._converted(made, node, choice.output, choice.given)

    def name_of(self, node: int, taken: set[str]) -> str:
        """A name for the value of a node that is not taken."""
        return self.free(self._value_name(node), taken, set())

    def cast(self, node: int) -> None:
        """Read an argument in the dtype in which the module computes."""
        key = (node, "given", True)
        name = self.arguments[node]
        self._memo[key] = self.add(
            Statement(lambda t: f"{enclosed(t[0])}.to(self.dtype)", (self._memo[key],), "unary", name, node)
        )

    def loop(self, loop: Loop, number: int) -> None:
        """The results of pass `number` of a loop over blocks."""
        blocks = loop.chain.passes[number]
        self.pending_loops = [pending for pending in self.pending_loops if pending != (loop, number)]
        block, last = blocks[0], blocks[-1]
        this = Statement(
            lambda _: loop.variable,
            tuple(self.given(i) for i in (*block.carried, *block.others)),
            "loop",
            loop.carried_names[0],
            next(i for i in last.outs if i >= 0),
            loop=BlockLoop(
                f"self.{loop.attribute}",
                "" if loop.method(number) == "forward" else f".{loop.method(number)}",
                loop.carried_names,
                loop.first_dropout_site(self.plan, number),
                loop.modes_of_passes[number],
            ),
            without_gradient=any(self._unrecorded(i) for u in blocks for i in u.nodes),
        )
        made = self.add(this)
        gives = []
        for out, layout, name in zip(last.outs, last.layouts, loop.carried_names, strict=True):
            gives.append(self._result(made, name, max(out, -1)))
            if out >= 0:
                self._memo[out, "given", True] = self._converted(gives[-1], out, layout, self.plan.choices[out].given)
        this.results = tuple(gives)

    def _result(self, statement: int, name: str, node: int) -> int:
        """One of the values of a statement that has several."""
        return self.add(Statement(lambda _: name, (statement,), "handed", name, node))

    def results(self, block: Block | SegmentCall) -> list[int]:
        """The results of a block or segment."""
        found = []
        for old, out, layout in zip(block.carried, block.outs, block.layouts, strict=True):
            as_given = out < 0 or layout == self.plan.choices[out].given
            found.append(self.given(old if out < 0 else out) if as_given else self.computed(out))
        return found

    def unrecorded(self) -> None:
        """Drop `torch.no_grad`: autograd records nothing where the function is called."""
        for statement in self.statements:
            statement.without_gradient = False

    def given(self, index: int, recorded: bool = True) -> int:
        """A node in the layout that all readers get; if not `recorded`, for readers without gradient."""
        recorded |= index not in self.weights
        key = (index, "given", recorded)
        if key in self._memo:
            return self._memo[key]
        choice = self.plan.choices[index]
        if recorded and choice.given != choice.output and (index, choice.given) in self._together:
            self._memo[key] = self._gathered(index, choice.given)
        elif index in self.weights:
            self._memo[key] = self._weight(index, recorded)
        elif is_literal(self.plan, index):
            number = literal_text(self.plan, index)
            self._memo[key] = self.add(Statement(lambda _: number, (), "weight", number, index))
        elif pending := [pair for pair in self.pending_loops if index in pair[0].chain.passes[pair[1]][-1].outs]:
            self.loop(*pending[0])
        elif index in self.calls:
            self._memo[key] = self._called(index)
        elif index not in self.own:
            return self.argument(index, self.free(self._value_name(index), set(self.arguments.values()), set()))
        else:
            for operand in reversed(self._first_operands(index)):
                self.given(operand)
            self._memo[key] = self._converted(self.computed(index), index, choice.output, choice.given)
        return self._memo[key]

    def _first_operands(self, index: int) -> list[int]:
        """The chain of nodes that are not computed yet, each the first operand of the one before it, from `index` on.

        They are computed first in any case: from the last to the first, graphs of any depth need no deep recursion.
        """
        chain = list[int]()
        while self._only_operands(index):
            node, layouts = self.plan.graph.nodes[index], self.plan.choices[index].inputs
            recorded = not self._unrecorded(index)
            wanted = zip(node.inputs, layouts, strict=True)
            index = next((i for i, layout in wanted if (i, layout, recorded) not in self._memo), -1)
            if (index, "given", True) in self._memo or not self._only_operands(index):
                break
            chain.append(index)
        return chain

    def _only_operands(self, index: int) -> bool:
        """True if a node's statement needs its operands alone, not those of a loop, a segment or parallel branches."""
        return (
            index in self.own
            and index not in self.calls
            and index not in self.branches
            and self.plan.graph.nodes[index].op != "part"
            and not is_literal(self.plan, index)
            and not any(index in loop.chain.passes[number][-1].outs for loop, number in self.pending_loops)
        )

    def value(self, index: int, layout: Layout, recorded: bool = True) -> int:
        """A node in the layout that a reader requires; if not `recorded`, converted without gradient."""
        key = (index, layout, recorded)
        if is_literal(self.plan, index):
            return self.given(index)
        if key not in self._memo:
            choice = self.plan.choices[index]
            weight = self.plan.graph.nodes[index].op == "parameter"
            if recorded and choice.given == choice.output and (index, layout) in self._together:
                return self._gathered(index, layout)
            again = choice.regather and index in self.weights and recorded and not self.recomputed
            if again and self._makes_new(index, choice.given, layout):
                self._memo[key] = self._regathered(index, [choice.given, layout])
            else:
                given = self.given(index, recorded)
                self._memo[key] = self._converted(given, index, choice.given, layout, weight, recorded)
        return self._memo[key]

    def _weight(self, index: int, recorded: bool) -> int:
        choice = self.plan.choices[index]
        again = recorded and choice.regather and not self.recomputed
        if again and self._makes_new(index, choice.output, choice.given):
            return self._regathered(index, [choice.given])
        return self._converted(self._stored(index), index, choice.output, choice.given, True, recorded)

    @cached_property
    def _together(self) -> dict[tuple[int, Layout], Gathering]:
        """The weights that are gathered in one message with others."""
        if self.gatherings is None or not self.used.overlap:
            return {}
        return gatherings(self.plan, self.own, self.weights, self.recomputed)

    def _gathered(self, index: int, layout: Layout) -> int:
        """A weight that is gathered in one message with others; a single statement gathers them all."""
        gathering = self._together[index, layout]
        if (index, gathering) not in self._memo:
            assert self.gatherings is not None
            attribute = self.gatherings.name(gathering, self.weights)
            self.used.gathers = True
            if not all(gathering.kept):
                self.used.forgets = True
                self.used.helpers.add("regathered")
            self.used.uneven |= any(apart.uneven for steps in gathering.apart for apart in steps)
            self.used.several_axes |= len(gathering.axes) > 1
            wish, text, kind = "weights", f"self.{attribute}()", "gather"
            if self.gathers_before:
                wish = self.weights[index].removeprefix("self.") if len(gathering.weights) == 1 else wish
                wish = text = self.free(wish, {*self.arguments.values(), *self.gathered}, set())
                self.gathered[wish], kind = attribute, "argument"
            made = self.add(Statement(lambda _: text, (), kind, wish, gathering.weights[0]))
            for i in gathering.weights:
                self._memo[i, gathering] = made if len(gathering.weights) == 1 else self._of_several(made, i)
        return self._memo[index, gathering]

    def _of_several(self, gathered: int, index: int) -> int:
        """One of several weights that were gathered together."""
        name = self.weights[index].removeprefix("self.")
        return self.add(Statement(lambda t: f"{t[0]}.{name}", (gathered,), "gather", name, index, inline=True))

    def _stored(self, index: int) -> int:
        key = (index, "stored")
        if key not in self._memo:
            text = self.weights[index]
            name = text.removeprefix("self.")
            self._memo[key] = self.add(Statement(lambda _: text, (), "weight", name, index))
        return self._memo[key]

    def _converted(
        self, statement: int, index: int, source: Layout, target: Layout, weight: bool = False, recorded: bool = True
    ) -> int:
        node, ends = self.plan.graph.nodes[index], (source, target)
        lines = between(self.plan, index, ends, self.used, gradient=node.gradient and recorded, weight=weight)
        again = recorded and self._shows_regathered(index, source) and not self._makes_new(index, source, target)
        name, kind = self.statements[statement].preferred_name, "gather" if weight else "convert"
        for line in lines:
            statement = self.add(Statement(self._conversion(line, again), (statement,), kind, name, index))
            self.statements[statement].without_gradient = node.gradient and not recorded
        return statement

    def _conversion(self, line: str, again: bool) -> Callable[[Sequence[str]], str]:
        """The text of a conversion from that of its operand; `again`: of a weight that backward gathers again."""

        def converted(x: str) -> str:
            return line.replace("{x}", enclosed(x) if "{x}." in line else x)

        return lambda texts: remade(texts[0], converted, self.used) if again else converted(texts[0])

    def _makes_new(self, index: int, source: Layout, target: Layout) -> bool:
        """True if a conversion allocates memory; a view need not be gathered again."""
        return makes_new(self.plan, index, (source, target))

    def _regathered(self, index: int, stops: Sequence[Layout]) -> int:
        """The conversion of a stored weight over some layouts as one expression, which backward can repeat."""
        plan, node = self.plan, self.plan.graph.nodes[index]
        self.used.helpers.add("regathered")
        lines: list[str] = []
        source = plan.choices[index].output
        for target in stops:
            lines += between(plan, index, (source, target), self.used, gradient=node.gradient, weight=True)
            source = target

        def render(t: Sequence[str]) -> str:
            text = t[0]
            for line in lines:
                text = line.replace("{x}", text)
            return f"regathered(lambda: {text})"

        start = self._stored(index)
        return self.add(Statement(render, (start,), "gather", self.statements[start].preferred_name, index))

    def computed(self, index: int) -> int:
        """A node in the layout in which it is computed."""
        key = (index, "computed")
        if key not in self._memo:
            self._memo[key] = self._computed(index)
        return self._memo[key]

    def _computed(self, index: int) -> int:
        _plan, node, choice = self.plan, self.plan.graph.nodes[index], self.plan.choices[index]
        if index in self.calls:
            return self._called(index)
        if index in self.branches:
            return self._joined(self.branches[index])
        if (index, "part") in self._memo:
            return self._memo[index, "part"]
        if node.op in ("part", "slice") and (siblings := self._siblings(index)):
            return self._parts(index, siblings)
        operands = []
        for place, (i, layout) in enumerate(zip(node.inputs, choice.inputs, strict=True)):
            operand = self.value(i, layout, not self._unrecorded(index))
            operands.append(self._divided(operand, i) if (index, place) in self.divided else operand)
        call = self.call(index)
        comment_text = self._split_comment(index)
        if index in self.divisors:
            operands.append(self.argument(-1 - index, self.divisors[index]))
        name = self._value_name(index)
        if operator(node.op).view or node.op in ("permute", "expand", "contiguous", "slice", "part", "detach"):
            kind = "view"
        elif len(operands) == 1:
            kind = "unary"
        else:
            kind = "op"
        this = Statement(lambda t: expression(call, t), tuple(operands), kind, name, index, comment_text)
        this.without_gradient = self._unrecorded(index)
        return self.add(this)

    def _divided(self, operand: int, node: int) -> int:
        """An operand divided by the number of micro-batches, each of which would add it."""
        text = f" / {self.plan.micro_batches}"
        return self.add(Statement(lambda t: enclosed(t[0]) + text, (operand,), "unary", "x", node))

    def joined_operand(self, found: ParallelBranches, end: int) -> int:
        """An end of parallel branches as what joins them reads it."""
        (reader, place), *further = found.readers(self.plan, end)
        operand = self.value(end, self.plan.choices[reader].inputs[place])
        divided = not self.divided.isdisjoint([(reader, place), *further])
        return self._divided(operand, end) if divided else operand

    def _siblings(self, index: int) -> list[int]:
        """All equal parts of a tensor or entries along a dim, in order, if they are computed here and read alike."""
        nodes, choices = self.plan.graph.nodes, self.plan.choices
        node = nodes[index]
        (source,) = node.inputs
        at, count = ("number", node["of"]) if node.op == "part" else ("start", nodes[source].shape[node["dim"]])

        def kind(i: int) -> object:
            own = nodes[i].get("of") if node.op == "part" else (nodes[i].get("step"), nodes[i].shape)
            return nodes[i].op, nodes[i].get("dim"), own, nodes[i].gradient, choices[i].inputs

        readers = [i for i in self.plan.graph.consumers[source] if i in self.own and kind(i) == kind(index)]
        found = sorted(readers, key=lambda i: nodes[i][at])
        if any((i, 0) in self.divided for i in found) or [nodes[i][at] for i in found] != list(range(count)):
            return []
        unbound = node.gradient and 1 < count <= MOST_UNBOUND and node.shape[node["dim"]] == 1
        return found if node.op == "part" or unbound else []

    def _parts(self, index: int, siblings: Sequence[int]) -> int:
        """One of all equal parts; a single statement computes them all, so that backward joins their gradients once."""
        recorded, call, node = not self._unrecorded(index), self.call(index), self.plan.graph.nodes[index]
        (source,), (layout,), dim = node.inputs, self.plan.choices[index].inputs, node["dim"]
        text = chunked if node.op == "part" else lambda _, t: f"{enclosed(t[0])}.unbind({dim})"
        this = Statement(lambda t: text(call, t), (self.value(source, layout, recorded),), "view", "x", index)
        this.without_gradient = not recorded
        made, gives = self.add(this), list[int]()
        for i in siblings:
            name = self._value_name(i)
            gives.append(self._result(made, name, i))
            self._memo[i, "part"] = gives[-1]
            if node.op == "slice":
                entry = Statement(lambda t: f"{t[0]}.unsqueeze({dim})", (gives[-1],), "view", name, i)
                self._memo[i, "part"] = self.add(entry)
        this.results = tuple(gives)
        return self._memo[index, "part"]

    def _called(self, index: int) -> int:
        """A result of a segment that is a method."""
        call = self.calls[index]
        if (index, "called") not in self._memo:
            operands = tuple(self.given(i) for i in call.reads)
            names = [self._value_name(i) for i in call.outs]

            def render(texts: Sequence[str]) -> str:
                if not call.mode:
                    return f"self.{call.method}({', '.join(texts)})"
                return call_text(self.passes_mesh, call.mode, f"self.{call.method}", texts, call.whole)

            this = Statement(render, operands, "call", names[0], call.outs[0])
            made = self.add(this)
            if len(call.outs) > 1:
                this.results = tuple(self._result(made, k, i) for i, k in zip(call.outs, names, strict=True))
            self._memo |= {(i, "called"): s for i, s in zip(call.outs, this.results or (made,), strict=True)}
        return self._memo[index, "called"]

    def _joined(self, found: ParallelBranches) -> int:
        """The joined results of parallel branches."""
        index = found.bundle.join
        operands = tuple(self.given(i) for i in operands_of(self.plan, found))
        line = render(self.plan, found, self.used, self.divisors)
        return self.add(Statement(line, operands, "op", self._value_name(index), index, comment(self.plan, found)))

    def _split_comment(self, index: int) -> str:
        """A comment on how a product with a weight is split: by columns, rows or tables."""
        plan, node, choice = self.plan, self.plan.graph.nodes[index], self.plan.choices[index]
        product = node.op in ("linear", "linear_relu")
        if (
            node.op not in ("linear", "linear_relu", "embedding", "embedding_bag")
            or self.plan.graph.nodes[node.inputs[product]].op != "parameter"
        ):
            return ""
        weight = node.inputs[product]
        words = {"columns": list[str](), "rows": list[str](), "tables": list[str]()}
        for name, size, letter in zip(plan.axes, plan.placement.sizes, choice.inputs[product], strict=True):
            if size > 1 and is_split(letter):
                first = atoms(plan.graph)[weight].dim_of(atom_of(letter))[0] == 0
                words["columns" if first == product else "rows"].append(name)
            elif size > 1 and plan.choices[weight].at and letter == P:
                words["tables"].append(name)
        return ", ".join(f"{word} over {' and '.join(names)}" for word, names in words.items() if names)

    def call(self, index: int) -> OperatorCall:
        """An operator with everything that its line depends on."""
        plan, node, choice = self.plan, self.plan.graph.nodes[index], self.plan.choices[index]
        known = atoms(plan.graph)
        recorded = not self._unrecorded(index) and (node.gradient or node.op in VIEWS)
        return OperatorCall(
            node=node,
            sources=tuple(plan.graph.nodes[i] for i in node.inputs),
            known=known[index],
            source_atoms=tuple(known[i] for i in node.inputs),
            inputs=choice.inputs,
            layout=choice.output,
            sizes=plan.placement.sizes,
            axes=plan.axes,
            micro_batches=plan.micro_batches,
            mixed=precision(plan.dtype).narrow,
            used=self.used,
            dropout_site=self.dropout_sites.get(index, str(node.get("site", 0))),
            specials=self._specials(index),
            regathered=frozenset(
                p for p, i in enumerate(node.inputs) if recorded and self._shows_regathered(i, choice.inputs[p])
            ),
        )

    def _shows_regathered(self, index: int, required: Layout) -> bool:
        """True if a tensor, read in a layout, may be a view of a weight that backward gathers again."""
        if self.recomputed:
            return False
        while self.plan.graph.nodes[index].op in VIEWS:
            if self._made_new(index, required):
                return False
            (required,), (index,) = self.plan.choices[index].inputs, self.plan.graph.nodes[index].inputs
        return self.plan.choices[index].regather and self._made_new(index, required)

    def _made_new(self, index: int, required: Layout) -> bool:
        """True if a tensor read in a layout has other memory than the computed or stored one."""
        choice = self.plan.choices[index]
        return any(self._makes_new(index, *step) for step in pairwise((choice.output, choice.given, required)))

    def _specials(self, index: int) -> Splits:
        """The axes on which a special strategy splits a node, with its rows."""
        choice, sizes = self.plan.choices[index], self.plan.placement.sizes
        taken = enumerate(rows_taken(self.plan.graph, index, choice.inputs, choice.output))
        return [(axis, row) for axis, row in taken if row is not None and row.special and sizes[axis] > 1]
