"""The lines of one function: values of nodes under layouts become statements, which are nested, named and written.

First every value that is needed becomes a statement of its own; then one that is read once moves into its reader where
the line stays readable; last, names are given so that a value that is read no more passes its name on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..model.atoms import atoms
from ..model.layout import Action, Layout, is_split
from ..model.operator import operator
from ..model.pcg import SOURCES
from .expressions import Site, expression, literal
from .moves import Used, conversion
from .names import GENERIC, is_literal, wish
from .routes import route
from .text import enclosed, tidy, wrap

if TYPE_CHECKING:
    from .blocks import Chain
    from .plan import Plan

NESTED = 88  # columns of a line into which others are nested
RESERVED = frozenset(
    "self mesh torch dist nn math F os data tensor sequence axis step optimizer model gather scatter_sum all_reduce "  # noqa: SIM905
    "cut pad keep_first exchange same dropout projection positions embed_rows precise regathered fill mix random_bits "
    "load save share main weight part partial whole sys zlib".split()
)
_CHAIN = ("convert", "view", "unary")
_ARITHMETIC = ("add", "sub", "mul", "div", "cat", "where")
_PRODUCTS = ("linear", "matmul", "attention")
_NEVER_NESTED = ("attention", "cross_entropy", "mse_loss")


@dataclass
class Statement:
    """One value: how its text follows from its operands' texts, and what it would like to be called."""

    render: Callable[[Sequence[str]], str]
    operands: tuple[int, ...]
    kind: str
    wish: str
    node: int
    comment: str = ""
    inline: bool = False
    depth: int = 1
    text: str = ""
    loop: str = ""  # of a loop over blocks: the list


@dataclass
class Body:
    """Builds a function's statements. `own`: nodes computed here; `weights`: their texts; all others are arguments."""

    plan: Plan
    own: frozenset[int]
    weights: Mapping[int, str]
    used: Used
    micro_divided: frozenset[tuple[int, int]] = frozenset()
    divisors: Mapping[int, str] = field(default_factory=dict)
    roles: Mapping[int, str] = field(default_factory=dict)
    sites: dict[int, str] = field(default_factory=dict)  # of dropouts in a loop
    statements: list[Statement] = field(default_factory=list)
    arguments: dict[int, str] = field(default_factory=dict)  # node (or -1 - loss) -> name, in order of first use
    _memo: dict[object, int] = field(default_factory=dict)

    # Statements

    def add(self, statement: Statement) -> int:
        self.statements.append(statement)
        return len(self.statements) - 1

    def argument(self, node: int, name: str) -> int:
        """A value that the function is given, in the layout that `node` gives to all its readers."""
        key = (node, "given")
        if key not in self._memo:
            self.arguments[node] = name
            self._memo[key] = self.add(Statement(lambda _: name, (), "argument", name, node))
        return self._memo[key]

    def loop(self, chain: Chain, attribute: str, variable: str) -> None:
        """What the last block gives, computed by a loop over the list `attribute`."""
        unit = chain.units[0]
        operands = (self.given(unit.carried), *(self.given(i) for i in unit.others))
        out = chain.units[-1].out
        this = Statement(lambda t: variable, operands, "loop", "x", out, loop=f"self.{attribute}")
        self._memo[out, "given"] = self.add(this)

    def given(self, index: int) -> int:
        """What `index` gives to its readers."""
        key = (index, "given")
        if key in self._memo:
            return self._memo[key]
        node, choice = self.plan.graph.nodes[index], self.plan.choices[index]
        if index in self.weights:
            self._memo[key] = self._weight(index)
        elif is_literal(self.plan, index):
            number = literal("value", node["value"])
            self._memo[key] = self.add(Statement(lambda _: number, (), "weight", number, index))
        elif index not in self.own:
            return self.argument(index, self._free(self._wish(index), set(self.arguments.values()), set()))
        else:
            self._memo[key] = self._converted(self._computed(index), index, choice.output, choice.given)
        return self._memo[key]

    def value(self, index: int, layout: Layout) -> int:
        """`index` in the layout that a reader asks."""
        key = (index, layout)
        if is_literal(self.plan, index):
            return self.given(index)
        if key not in self._memo:
            choice = self.plan.choices[index]
            node = self.plan.graph.nodes[index]
            if choice.regather and index in self.weights and self._makes_new(index, choice.given, layout):
                self._memo[key] = self._regathered(index, [choice.given, layout])
            else:
                self._memo[key] = self._converted(
                    self.given(index), index, choice.given, layout, node.op == "parameter"
                )
        return self._memo[key]

    def _weight(self, index: int) -> int:
        choice = self.plan.choices[index]
        if choice.regather and self._makes_new(index, choice.output, choice.given):
            return self._regathered(index, [choice.given])
        return self._converted(self._stored(index), index, choice.output, choice.given, True)

    def _stored(self, index: int) -> int:
        key = (index, "stored")
        if key not in self._memo:
            text = self.weights[index]
            name = text.removeprefix("self.")
            self._memo[key] = self.add(Statement(lambda _: text, (), "weight", name, index))
        return self._memo[key]

    def _converted(self, statement: int, index: int, source: Layout, target: Layout, weight: bool = False) -> int:
        plan, node = self.plan, self.plan.graph.nodes[index]
        known = atoms(plan.graph)[index]
        moves = route(plan, index, source, target)
        lines = conversion(known, moves, source, plan.placement.sizes, plan.axes, node.gradient, self.used)
        for line in lines:

            def render(t: Sequence[str], text: str = line) -> str:
                return text.replace("{x}", enclosed(t[0]) if "{x}." in text else t[0])

            name = self.statements[statement].wish
            kind = "gather" if weight else "convert"
            statement = self.add(Statement(render, (statement,), kind, name, index))
        return statement

    def _makes_new(self, index: int, source: Layout, target: Layout) -> bool:
        """Whether a weight's conversion takes memory; what is only a view of what there is need not be made again."""
        moves = route(self.plan, index, source, target)
        sizes = self.plan.placement.sizes
        return any(sizes[m.axis] > 1 and m.move.value not in (Action.NOTHING, Action.SLICE) for m in moves)

    def _regathered(self, index: int, stops: Sequence[Layout]) -> int:
        """The conversion of a stored weight over some layouts as one expression, so that backward can do it again."""
        plan, node = self.plan, self.plan.graph.nodes[index]
        self.used.helpers.add("regathered")
        lines: list[str] = []
        source = plan.choices[index].output
        for target in stops:
            moves = route(plan, index, source, target)
            known = atoms(plan.graph)[index]
            lines += conversion(known, moves, source, plan.placement.sizes, plan.axes, node.gradient, self.used)
            source = target

        def render(t: Sequence[str]) -> str:
            text = t[0]
            for line in lines:
                text = line.replace("{x}", text)
            return f"regathered(lambda: {text})"

        start = self._stored(index)
        return self.add(Statement(render, (start,), "gather", self.statements[start].wish, index))

    def _computed(self, index: int) -> int:
        plan, node, choice = self.plan, self.plan.graph.nodes[index], self.plan.choices[index]
        operands = []
        for place, (i, layout) in enumerate(zip(node.inputs, choice.inputs, strict=True)):
            operand = self.value(i, layout)
            if (index, place) in self.micro_divided:  # every micro-batch would count it
                text = str(plan.micro_batches)
                operand = self.add(
                    Statement(lambda t, k=text: f"{enclosed(t[0])} / {k}", (operand,), "unary", "x", i)  # type: ignore[misc]
                )
            operands.append(operand)
        site = self.site(index)
        why = self._why(index)
        if index in self.divisors:
            operands.append(self.argument(-1 - index, self.divisors[index]))
        name = self._wish(index)
        if operator(node.op).view or node.op in ("permute", "expand", "contiguous", "slice", "detach"):
            kind = "view"
        elif len(operands) == 1:
            kind = "unary"
        else:
            kind = "op"
        return self.add(Statement(lambda t: expression(site, t), tuple(operands), kind, name, index, why))

    def _why(self, index: int) -> str:
        """How a product with a weight is split: its columns, or its rows."""
        plan, node, choice = self.plan, self.plan.graph.nodes[index], self.plan.choices[index]
        if (
            node.op not in ("linear", "embedding")
            or self.plan.graph.nodes[node.inputs[node.op == "linear"]].op != "parameter"
        ):
            return ""
        table = choice.inputs[node.op == "linear"]
        words = {"columns": list[str](), "rows": list[str]()}
        for name, size, weight, output in zip(plan.axes, plan.placement.sizes, table, choice.output, strict=True):
            if size > 1 and is_split(weight):
                words["columns" if is_split(output) else "rows"].append(name)
        return ", ".join(f"{word} over {' and '.join(names)}" for word, names in words.items() if names)

    def _wish(self, index: int) -> str:
        node = self.plan.graph.nodes[index]
        if index not in self.roles and node.op in ("to", "contiguous", "expand", "detach"):
            return self._wish(node.inputs[0])  # shows another value
        return self.roles.get(index) or wish(node.op, node.name, node.path)

    def site(self, index: int) -> Site:
        plan, node, choice = self.plan, self.plan.graph.nodes[index], self.plan.choices[index]
        known = atoms(plan.graph)
        return Site(
            node,
            tuple(plan.graph.nodes[i] for i in node.inputs),
            known[index],
            tuple(known[i] for i in node.inputs),
            choice.inputs,
            choice.output,
            plan.placement.sizes,
            plan.axes,
            plan.micro_batches,
            plan.dtype.startswith("mixed"),
            self.used,
            self.sites.get(index, str(node.get("site", 0))),
        )

    # Lines

    def lines(self, results: Sequence[int], indent: int, returned: Callable[[Sequence[str]], str]) -> list[str]:
        """The function's lines up to `return`, which says `returned` of the results' texts."""
        needed = self._needed(results)
        readers: dict[int, list[int]] = {s: [] for s in needed}
        for s in needed:
            for o in self.statements[s].operands:
                readers[o].append(s)
        for r in results:
            readers[r].append(-1)
        for s in needed:
            self._nest(s, readers)
        roots = [s for s in needed if not self._hidden(s)]
        self._final_nest(results, roots, readers)
        roots = [s for s in roots if not self.statements[s].inline]
        return self._written(roots, results, indent, returned)

    def _needed(self, results: Iterable[int]) -> list[int]:
        found: set[int] = set()
        stack = list(results)
        while stack:
            s = stack.pop()
            if s not in found:
                found.add(s)
                stack.extend(self.statements[s].operands)
        return sorted(found)

    def read_arguments(self, results: Iterable[int]) -> list[str]:
        """Names of the arguments that the results depend on."""
        return [self.statements[s].wish for s in self._needed(results) if self.statements[s].kind == "argument"]

    def _hidden(self, s: int) -> bool:
        """Not a line of its own: an argument, a weight as it is, or nested in its reader."""
        return self.statements[s].inline or self.statements[s].kind in ("argument", "weight")

    def _nest(self, s: int, readers: Mapping[int, list[int]]) -> None:
        """Decide which operands of statement `s` are nested in it."""
        this = self.statements[s]
        estimates = [self._estimate(o) for o in this.operands]
        heavy = False
        for p, o in enumerate(this.operands):
            operand = self.statements[o]
            if this.loop or operand.loop or operand.kind in ("argument", "weight") or len(readers[o]) != 1:
                continue
            if operand.kind == "gather" and len(this.operands) <= 3:
                allowed = True
            elif this.kind in _CHAIN:
                allowed = self._op(o) not in _NEVER_NESTED or this.kind in ("view", "convert")
            elif self._op(s) in _ARITHMETIC:
                allowed = operand.kind in _CHAIN or self._op(o) in _ARITHMETIC
            else:
                allowed = operand.kind in _CHAIN and not heavy and not self._product(o)
            if not allowed or operand.depth + (this.kind != "view") > 5:
                continue
            trial = list(estimates)
            trial[p] = operand.text or operand.wish
            if len(this.render(trial)) > NESTED:
                continue
            operand.inline, estimates = True, trial
            this.depth = max(this.depth, operand.depth + (this.kind not in ("view", "gather")))
            heavy |= operand.kind != "gather"
        this.text = this.render(estimates)

    def _product(self, s: int) -> bool:
        """Whether a matrix product is nested in a statement."""
        this = self.statements[s]
        return self._op(s) in _PRODUCTS or any(self._product(o) for o in this.operands if self.statements[o].inline)

    def _final_nest(self, results: Sequence[int], roots: Sequence[int], readers: Mapping[int, list[int]]) -> None:
        """The last line becomes the return statement's expression."""
        if len(results) == 1 and roots and roots[-1] == results[0] and readers[results[0]] == [-1]:
            last = self.statements[results[0]]
            if not last.loop and not last.comment:
                last.inline = True

    def _op(self, s: int) -> str:
        node = self.statements[s].node
        return self.plan.graph.nodes[node].op if node >= 0 and self.statements[s].kind != "convert" else ""

    def _estimate(self, s: int) -> str:
        this = self.statements[s]
        return this.render(()) if this.kind in ("argument", "weight") else this.wish

    def _leaves(self, s: int) -> list[int]:
        """The statements whose names appear in the text of `s`."""
        result: list[int] = []
        for o in self.statements[s].operands:
            if self.statements[o].inline:
                result += self._leaves(o)
            elif self.statements[o].kind != "weight":
                result.append(o)
        return result

    def _text(self, s: int, names: Mapping[int, str]) -> str:
        this = self.statements[s]
        return this.render(
            [
                self._text(o, names) if self.statements[o].inline or self.statements[o].kind == "weight" else names[o]
                for o in this.operands
            ]
        )

    def _written(
        self, roots: Sequence[int], results: Sequence[int], indent: int, returned: Callable[[Sequence[str]], str]
    ) -> list[str]:
        names = {s: this.wish for s, this in enumerate(self.statements) if this.kind == "argument"}
        uses: dict[int, int] = {}
        for place, s in enumerate(roots):
            for leaf in self._leaves(s):
                uses[leaf] = place
        for r in results:
            for leaf in self._leaves(r) if self.statements[r].inline else [r]:
                uses[leaf] = len(roots)
        lines: list[str] = []
        for place, s in enumerate(roots):
            this = self.statements[s]
            leaves = self._leaves(s)
            live = {names[o] for o, last in uses.items() if o in names and last > place}
            dying = [names[o] for o in leaves if uses[o] <= place]
            if this.loop:
                carried = names[leaves[0]]
                name = carried if carried not in live else self._free(this.wish, live, set(names.values()))
                lines += [f"{' ' * indent}{name} = {carried}"] if name != carried else []
                others = (
                    self._text(o, names) if self.statements[o].kind == "weight" else names[o] for o in this.operands[1:]
                )
                arguments = ", ".join([name, *others])
                lines += [f"{' ' * indent}for {this.text} in {this.loop}:"]
                lines += wrap(f"{name} = {this.text}({arguments})", indent + 4)
                names[s] = name
                continue
            name = self._name(s, leaves, dying, live, names)
            names[s] = name
            lines += wrap(f"{name} = {tidy(self._text(s, names))}", indent, self._comment(s))
        texts = [
            tidy(self._text(r, names)) if self.statements[r].inline or self.statements[r].kind == "weight" else names[r]
            for r in results
        ]
        return [*lines, *wrap(returned(texts), indent)]

    def _name(
        self, s: int, leaves: Sequence[int], dying: Sequence[str], live: set[str], names: Mapping[int, str]
    ) -> str:
        """A chain of views and conversions goes on under its name, a sum under `x`; all else takes its own."""
        this = self.statements[s]
        while this.kind == "convert" or (this.kind in _CHAIN and not self._own_name(this)):
            inner = self.statements[this.operands[0]]
            if not inner.inline:
                break
            this = inner
        first = names.get(leaves[0]) if leaves else None
        plain = this.wish in GENERIC.values()
        if first in dying and first not in live and first is not None:
            if this.kind == "convert" and self.statements[leaves[0]].kind != "argument":
                return first
            if (this.kind in _CHAIN and (plain or first != "x")) and not self._own_name(this):
                return first
        return self._free(this.wish, live, set())

    def _own_name(self, this: Statement) -> bool:
        """Whether a value has a role or a module of its own, by which it should be called."""
        if this.kind == "unary" and this.node not in self.roles:
            return this.wish not in (*GENERIC.values(), self.plan.graph.nodes[this.node].op)
        return this.node in self.roles or this.wish not in GENERIC.values()

    def _free(self, name: str, live: set[str], others: set[str]) -> str:
        taken = live | others | RESERVED | set(self.plan.axes)
        result, count = name, 1
        while result in taken:
            count += 1
            result = f"{name}{count}" if not name[-1].isdigit() else f"{name}_{count}"
        return result

    def _comment(self, s: int) -> str:
        this = self.statements[s]
        if this.comment:
            return this.comment
        for o in this.operands:
            if self.statements[o].inline:
                found = self._comment(o)
                if found:
                    return found
        return ""


def axes_read(lines: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """The axes that lines speak of by their bare names."""
    text = "\n".join(lines)
    return tuple(a for a in axes if re.search(rf"(?<![\w.]){a}(?!\w)", text))


def reads_mesh(lines: Sequence[str]) -> bool:
    return any(re.search(r"(?<![\w.])mesh\b", line) for line in lines)


def sources_first(plan: Plan, nodes: Iterable[int]) -> list[int]:
    """Nodes that compute, in order."""
    return [i for i in nodes if plan.graph.nodes[i].op not in SOURCES]


def is_whole(layout: Layout) -> bool:
    return not any(map(is_split, layout))
