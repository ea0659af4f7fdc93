"""From statements to lines: what is read once is nested in its reader where the line stays readable, the rest is named.

A value that is read no more passes its name on to what is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ....formulation.special import special_strategies
from ....model.operators.loss import CLASSIFIED, POINTWISE
from ...plan.plan import Plan
from ..spmd.recomputation import LoopModes, call_text, modes_text
from .names import GENERIC
from .text import tidy, wrap

NESTED = 88  # columns of a line into which others are nested
RESERVED = frozenset(
    "self mesh torch dist nn math F os data tensor sequence axis step optimizer model gather scatter_sum all_reduce "  # noqa: SIM905
    "cut pad keep_first exchange same dropout projection positions precise regathered fill mix mix_ "
    "among embed_rows embed_bags gather_rows index_rows random_bits dropped forget remember all_gather reduce_scatter "
    "moments Moments batch_norm gathered load save share main weight part partial "
    "whole whole_of own_part sys zlib weakref refuse make_axis learning_rate buckets make_optimizer initialize "
    "whole_weights whole_gradients train_step synthetic samples micro shard "
    "side_by_side reordered traded tied Tied Pieces Gathered Place linear_relu LinearReLU "
    "reshaped contracted Contraction toward taken Taken recomputed Recomputed checkpoint keeps mode modes".split()
)
_CHAIN = ("convert", "view", "unary")
_ARITHMETIC = ("add", "sub", "mul", "div", "cat", "where")
_PRODUCTS = ("linear", "linear_relu", "matmul", "attention", "conv", "conv_transpose")
_NO_LINE = ("argument", "weight", "handed")
_NEVER_NESTED = ("attention", *POINTWISE, *CLASSIFIED)


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
    call: str = ""  # what it calls: a block, or one of its methods
    last: str = ""  # a further argument
    again: LoopModes | None = None  # how the turns of a loop are called, where backward runs some again
    handed: tuple[str, ...] = ()  # what the values that blocks hand on would like to be called: its first operands
    gives: tuple[int, ...] = ()  # statements for what they are afterwards; without a loop, for the values that it is
    without_gradient: bool = False  # whether autograd would record what must not be recorded


@dataclass
class FunctionWriter:
    """Statements of one function, and how they are written; an operand is the number of an earlier statement.

    `stepped`: the program has dropouts, whose masks depend on the step.
    """

    plan: Plan
    roles: Mapping[int, str] = field(default_factory=dict)
    stepped: bool = False
    statements: list[Statement] = field(default_factory=list)

    def add(self, statement: Statement) -> int:
        self.statements.append(statement)
        return len(self.statements) - 1

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
        regions = self._regions([s for s in roots if not self.statements[s].inline], readers)
        return self._written(regions, results, indent, returned)

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
        return self.statements[s].inline or self.statements[s].kind in _NO_LINE

    def _nest(self, s: int, readers: Mapping[int, list[int]]) -> None:
        """Decide which operands of statement `s` are nested in it."""
        this = self.statements[s]
        estimates = [self._estimate(o) for o in this.operands]
        heavy = False
        for p, o in enumerate(this.operands):
            operand = self.statements[o]
            if this.loop or operand.gives or operand.kind in (*_NO_LINE, "call") or len(readers[o]) != 1:
                continue
            if operand.without_gradient and self._records(s):
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
            this.without_gradient |= operand.without_gradient
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
            if not last.loop and not last.comment and not last.without_gradient:
                last.inline = True

    def _records(self, s: int) -> bool:
        """Whether autograd must record a statement."""
        this = self.statements[s]
        return this.node >= 0 and not this.without_gradient and self.plan.graph.nodes[this.node].gradient

    def _regions(self, roots: Sequence[int], readers: Mapping[int, list[int]]) -> list[tuple[bool, list[int]]]:
        """The statements in order, in runs: whether one is without gradient, and what is in it.

        What is recorded and needs nothing of such a run comes before it, so that it does not divide it.
        """
        regions: list[tuple[bool, list[int]]] = [(False, [])]
        waiting: list[int] = []  # may belong to a run without gradient if it goes on after them
        for s in roots:
            this = self.statements[s]
            outside = this.kind in ("convert", "gather") and all(self._without(r) for r in readers[s])
            if this.without_gradient:
                if not regions[-1][0]:
                    regions.append((True, []))
                regions[-1][1].extend([*waiting, s])
                waiting = []
            elif not regions[-1][0]:
                regions[-1][1].append(s)
            elif outside or not self._records(s):
                waiting.append(s)
            elif set(self._leaves(s)).isdisjoint(self._made([*regions[-1][1], *waiting])):
                regions[-2][1].append(s)
            else:
                regions.append((False, [*waiting, s]))
                waiting = []
        return [*regions, (False, waiting)]

    def _without(self, s: int) -> bool:
        """Whether a statement, or the one in which it is nested, is without gradient; -1: the result."""
        return s >= 0 and self.statements[s].without_gradient

    def _made(self, roots: Iterable[int]) -> set[int]:
        """What readers of some lines read."""
        return {made for s in roots for made in (s, *self.statements[s].gives)}

    def _op(self, s: int) -> str:
        node = self.statements[s].node
        plain = node >= 0 and self.statements[s].kind not in ("convert", "call")
        return self.plan.graph.nodes[node].op if plain else ""

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
        self,
        regions: Sequence[tuple[bool, Sequence[int]]],
        results: Sequence[int],
        indent: int,
        returned: Callable[[Sequence[str]], str],
    ) -> list[str]:
        names = {s: this.wish for s, this in enumerate(self.statements) if this.kind == "argument"}
        roots = [s for _, region in regions for s in region]
        uses: dict[int, int] = {}
        for place, s in enumerate(roots):
            for leaf in self._leaves(s):
                uses[leaf] = place
        for r in results:
            for leaf in self._leaves(r) if self.statements[r].inline else [r]:
                uses[leaf] = len(roots)
        lines: list[str] = []
        place = -1
        for without_gradient, region in regions:
            inner = indent
            if without_gradient:
                lines.append(f"{' ' * indent}with torch.no_grad():")
                inner += 4
            for s in region:
                place += 1
                live = {names[o] for o, last in uses.items() if o in names and last > place}
                if self.statements[s].loop:
                    lines += self._loop(s, live, names, inner)
                    continue
                if self.statements[s].gives:
                    lines += wrap(self._several(s, live, uses, names), inner, self._comment(s))
                    continue
                leaves = self._leaves(s)
                dying = [names[o] for o in leaves if uses[o] <= place]
                names[s] = self._name(s, leaves, dying, live, names)
                lines += wrap(f"{names[s]} = {tidy(self._text(s, names))}", inner, self._comment(s))
        texts = [
            tidy(self._text(r, names)) if self.statements[r].inline or self.statements[r].kind == "weight" else names[r]
            for r in results
        ]
        return [*lines, *wrap(returned(texts), indent)]

    def _loop(self, s: int, live: set[str], names: dict[int, str], indent: int) -> list[str]:
        """A loop over blocks; what they hand on keeps its name, unless that value is read again."""
        this = self.statements[s]
        texts = [self._text(o, names) if self.statements[o].kind == "weight" else names[o] for o in this.operands]
        lines: list[str] = []
        handed: list[str] = []
        for o, text, wish in zip(this.operands, texts, this.handed, strict=False):
            name = text
            if self.statements[o].kind == "weight" or name in live or name in handed:
                name = self.free(wish, live | set(handed), set(names.values()))
                lines.append(f"{' ' * indent}{name} = {text}")
            handed.append(name)
        names.update(zip(this.gives, handed, strict=True))
        variable = self.free(this.text, live | set(handed), set())
        arguments = [*handed, *texts[len(handed) :], *([this.last] if this.last else [])]
        block, turns, again = f"{variable}{this.call}", f"{variable} in {this.loop}", this.again
        if again is not None and not again.alike:
            said, mode = again.texts, "mode" if again.whole else "modes"
            if len({*said}) == 1:
                mode = said[0]
            else:
                turns = f"{variable}, {mode} in zip({this.loop}, {modes_text(said)}, strict=True)"
            arguments += [] if again.whole else [mode]
        turn = f"{block}({', '.join(arguments)})"
        if again is not None and again.whole:
            turn = call_text(self.stepped, mode, block, arguments)
        lines += wrap(f"for {turns}:", indent)
        return lines + wrap(f"{', '.join(handed)} = {turn}", indent + 4)

    def _several(self, s: int, live: set[str], uses: Mapping[int, int], names: dict[int, str]) -> str:
        """The line that names all values of a statement which gives several; `_` is what nobody reads."""
        text, given = tidy(self._text(s, names)), list[str]()
        for g in self.statements[s].gives:
            given.append(self.free(self.statements[g].wish, live | set(given), set()) if g in uses else "_")
        names.update(zip(self.statements[s].gives, given, strict=True))
        return f"{', '.join(given)} = {text}"

    def _name(
        self, s: int, leaves: Sequence[int], dying: Sequence[str], live: set[str], names: Mapping[int, str]
    ) -> str:
        """A chain of views and conversions goes on under its name, a sum under `x`; all else takes its own."""
        this = self.statements[s]
        while this.operands and (this.kind == "convert" or (this.kind in _CHAIN and not self._own_name(this))):
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
        return self.free(this.wish, live, set())

    def _own_name(self, this: Statement) -> bool:
        """Whether a value has a role or a module of its own, by which it should be called."""
        if this.kind == "unary" and this.node not in self.roles:
            return this.wish not in (*GENERIC.values(), self.plan.graph.nodes[this.node].op)
        return this.node in self.roles or this.wish not in GENERIC.values()

    def free(self, name: str, live: set[str], others: set[str]) -> str:
        taken = live | others | reserved() | set(self.plan.axes)
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


@cache
def reserved() -> frozenset[str]:
    """What no value of a model may be called: the program's own names, and those of special strategies' functions."""
    return RESERVED.union(*(entry.names for entry in special_strategies()))


def axes_read(lines: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """The axes that lines speak of by their bare names."""
    text = "\n".join(lines)
    return tuple(a for a in axes if re.search(rf"(?<![\w.]){a}(?!\w)", text))


def reads_mesh(lines: Sequence[str]) -> bool:
    return any(re.search(r"(?<![\w.])mesh\b", line) for line in lines)
