"""From statements to lines: a value that is read once is nested in its reader if the line stays readable.

All others are named. A value with no further reader passes its name on to the value computed from it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ....formulation.special import special_strategies
from ....model.graph.builder import free_name
from ....model.graph.dtypes import FLOATS
from ....model.graph.pcg import PCG
from ....model.operators.loss import CLASSIFIED, POINTWISE
from .block_loops import BlockLoop
from .names import GENERIC, value_name
from .text import tidy, wrap

NESTED = 88  # columns of a line into which others are nested
RESERVED = frozenset(
    "self mesh torch dist nn math F os data tensor sequence axis step optimizer model gather scatter_sum all_reduce "  # noqa: SIM905
    "cut pad keep_first exchange same dropout projection positions precise regathered fill mix mix_ "
    "among embed_rows embed_bags gather_rows index_rows random_bits dropped forget remember all_gather reduce_scatter "
    "attend drawing seed_of "
    "moments Moments batch_norm gathered load save share main weight part partial "
    "whole sys weakref refuse make_axis learning_rate buckets make_optimizer "
    "initialize Initial jump "
    "whole_weights whole_gradients train_step synthetic samples micro shard "
    "shapes fitted build evaluate forwards check_files backward losses loss_of own_samples local itertools time "
    "side_by_side reordered traded tied Tied Pieces Gathered Place linear_relu LinearReLU "
    "uniform normal bernoulli integers uniform_numbers normal_numbers integer_numbers "
    "reshaped contracted Contraction toward taken Taken recomputed Recomputed checkpoint keeps mode modes".split()
)
_CHAIN = ("convert", "view", "unary")
_ARITHMETIC = ("add", "sub", "mul", "div", "cat", "where")
_PRODUCTS = ("linear", "linear_relu", "matmul", "attention", "conv", "conv_transpose")
_NO_LINE = ("argument", "weight", "handed")
_NEVER_NESTED = ("attention", *POINTWISE, *CLASSIFIED)


@dataclass
class Statement:
    """One value: `render` gives its text from the texts of its operands."""

    render: Callable[[Sequence[str]], str]
    operands: tuple[int, ...]
    kind: str
    preferred_name: str
    node: int
    comment: str = ""
    inline: bool = False
    depth: int = 1
    text: str = ""
    loop: BlockLoop | None = None
    results: tuple[int, ...] = ()  # statements for its values if it has several
    without_gradient: bool = False  # autograd must not record it


@dataclass
class FunctionWriter:
    """The statements of one function, and their lines. An operand is the number of an earlier statement.

    `passes_mesh`: recomputed blocks need the mesh, for their dropouts or for weights that travel ahead.
    """

    graph: PCG
    axes: Sequence[str]
    roles: Mapping[int, str] = field(default_factory=dict)
    passes_mesh: bool = False
    statements: list[Statement] = field(default_factory=list)

    def add(self, statement: Statement) -> int:
        self.statements.append(statement)
        return len(self.statements) - 1

    def _value_name(self, index: int) -> str:
        """The preferred name of a node: its role, or by its operator, name and path."""
        node = self.graph.nodes[index]
        if index not in self.roles and node.op in ("to", "contiguous", "expand", "detach") and node.inputs:
            return self._value_name(node.inputs[0])  # a view or cast of another value
        return self.roles.get(index) or value_name(node.op, node.name, node.path)

    def _unrecorded(self, index: int) -> bool:
        """True if a node without gradient reads values with one, so that autograd must not record it."""
        node = self.graph.nodes[index]
        sources = any(self.graph.nodes[i].gradient for i in node.inputs)
        return not node.gradient and node.dtype in FLOATS and node.op != "detach" and sources

    def lines(self, results: Sequence[int], indent: int, returned: Callable[[Sequence[str]], str]) -> list[str]:
        """The function's lines; `returned` writes the return statement from the texts of the results."""
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
        """Names of the arguments on which the results depend."""
        return [
            self.statements[s].preferred_name for s in self._needed(results) if self.statements[s].kind == "argument"
        ]

    def _hidden(self, s: int) -> bool:
        """True for a statement without a line: an argument, a stored weight, or one nested in its reader."""
        return self.statements[s].inline or self.statements[s].kind in _NO_LINE

    def _nest(self, s: int, readers: Mapping[int, list[int]]) -> None:
        """Decide which operands of statement `s` are nested in it."""
        this = self.statements[s]
        estimates = [self._estimate(o) for o in this.operands]
        heavy = False
        for p, o in enumerate(this.operands):
            operand = self.statements[o]
            if this.loop or operand.results or operand.kind in (*_NO_LINE, "call") or len(readers[o]) != 1:
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
            trial[p] = operand.text or operand.preferred_name
            if len(this.render(trial)) > NESTED:
                continue
            operand.inline, estimates = True, trial
            this.depth = max(this.depth, operand.depth + (this.kind not in ("view", "gather")))
            this.without_gradient |= operand.without_gradient
            heavy |= operand.kind != "gather"
        this.text = this.render(estimates)

    def _product(self, s: int) -> bool:
        """True if a statement is or contains a matrix product."""
        this = self.statements[s]
        return self._op(s) in _PRODUCTS or any(self._product(o) for o in this.operands if self.statements[o].inline)

    def _final_nest(self, results: Sequence[int], roots: Sequence[int], readers: Mapping[int, list[int]]) -> None:
        """Turn the last line into the expression of the return statement."""
        if len(results) == 1 and roots and roots[-1] == results[0] and readers[results[0]] == [-1]:
            last = self.statements[results[0]]
            if not last.loop and not last.comment and not last.without_gradient:
                last.inline = True

    def _records(self, s: int) -> bool:
        """True if autograd must record a statement."""
        this = self.statements[s]
        return this.node >= 0 and not this.without_gradient and self.graph.nodes[this.node].gradient

    def _regions(self, roots: Sequence[int], readers: Mapping[int, list[int]]) -> list[tuple[bool, list[int]]]:
        """The statements in runs: (True, statements) of those without gradient, (False, statements) of others.

        A recorded statement that reads nothing from a run without gradient moves before the run and does not split it.
        """
        regions: list[tuple[bool, list[int]]] = [(False, [])]
        waiting: list[int] = []  # part of a run without gradient if it continues after them
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
            elif set(self._leaves(s)).isdisjoint(self._results_of([*regions[-1][1], *waiting])):
                regions[-2][1].append(s)
            else:
                regions.append((False, [*waiting, s]))
                waiting = []
        return [*regions, (False, waiting)]

    def _without(self, s: int) -> bool:
        """True if a statement is without gradient; -1 is the result."""
        return s >= 0 and self.statements[s].without_gradient

    def _results_of(self, roots: Iterable[int]) -> set[int]:
        """The statements whose values are defined by the lines of `roots`."""
        return {made for s in roots for made in (s, *self.statements[s].results)}

    def _op(self, s: int) -> str:
        node = self.statements[s].node
        plain = node >= 0 and self.statements[s].kind not in ("convert", "call")
        return self.graph.nodes[node].op if plain else ""

    def _estimate(self, s: int) -> str:
        this = self.statements[s]
        return this.render(()) if this.kind in ("argument", "weight") else this.preferred_name

    def _leaves(self, s: int) -> list[int]:
        """The statements whose names appear in the text of statement `s`."""
        result: list[int] = []
        for o in self.statements[s].operands:
            if self.statements[o].inline:
                result += self._leaves(o)
            elif self.statements[o].kind != "weight":
                result.append(o)
        return result

    def _text(self, s: int, names: Mapping[int, str]) -> str:
        this = self.statements[s]
        return this.render([self._read(o, names) for o in this.operands])

    def _read(self, s: int, names: Mapping[int, str]) -> str:
        """A statement where another one reads it: its name, or the text of what has no line of its own."""
        this = self.statements[s]
        return self._text(s, names) if this.inline or this.kind == "weight" else names[s]

    def _written(
        self,
        regions: Sequence[tuple[bool, Sequence[int]]],
        results: Sequence[int],
        indent: int,
        returned: Callable[[Sequence[str]], str],
    ) -> list[str]:
        names = {s: this.preferred_name for s, this in enumerate(self.statements) if this.kind == "argument"}
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
            inner = indent + 4 * without_gradient
            if without_gradient:
                lines.append(f"{' ' * indent}with torch.no_grad():")
            for s in region:
                place += 1
                live = {names[o] for o, last in uses.items() if o in names and last > place}
                if self.statements[s].loop:
                    lines += self._loop(s, live, names, inner)
                    continue
                if self.statements[s].results:
                    lines += wrap(self._unpacked(s, live, uses, names), inner, self._comment(s))
                    continue
                leaves = self._leaves(s)
                dying = [names[o] for o in leaves if uses[o] <= place]
                names[s] = self._name(s, leaves, dying, live, names)
                text = tidy(self._text(s, names))
                if text != names[s] or without_gradient:  # not a view that is the tensor itself
                    lines += wrap(f"{names[s]} = {text}", inner, self._comment(s))
        return [*lines, *wrap(returned([tidy(self._read(r, names)) for r in results]), indent)]

    def _loop(self, s: int, live: set[str], names: dict[int, str], indent: int) -> list[str]:
        """A loop over blocks. A carried value keeps its name, unless it is read again after the loop."""
        this = self.statements[s]
        assert this.loop is not None
        texts = [self._read(o, names) for o in this.operands]
        lines: list[str] = []
        carried: list[str] = []
        for o, text, preferred in zip(this.operands, texts, this.loop.carried_names, strict=False):
            name = text
            if self.statements[o].kind == "weight" or name in live or name in carried:
                name = self.free(preferred, live | set(carried), set(names.values()))
                lines.append(f"{' ' * indent}{name} = {text}")
            carried.append(name)
        names.update(zip(this.results, carried, strict=True))
        variable = self.free(this.text, live | set(carried), set())
        loop = this.loop.lines(variable, carried, texts[len(carried) :], self.passes_mesh)
        return [*lines, *(line for depth, text in loop for line in wrap(text, indent + depth))]

    def _unpacked(self, s: int, live: set[str], uses: Mapping[int, int], names: dict[int, str]) -> str:
        """The line that unpacks the results of a statement with several; `_` is a result without readers."""
        text, given = tidy(self._text(s, names)), list[str]()
        for g in self.statements[s].results:
            given.append(self.free(self.statements[g].preferred_name, live | set(given), set()) if g in uses else "_")
        names.update(zip(self.statements[s].results, given, strict=True))
        return f"{', '.join(given)} = {text}"

    def _name(
        self, s: int, leaves: Sequence[int], dying: Sequence[str], live: set[str], names: Mapping[int, str]
    ) -> str:
        """The name of a value: views and conversions keep their operand's name, sums `x`; others have their own."""
        this = self.statements[s]
        while this.operands and (this.kind == "convert" or (this.kind in _CHAIN and not self._has_own_name(this))):
            inner = self.statements[this.operands[0]]
            if not inner.inline:
                break
            this = inner
        first = names.get(leaves[0]) if leaves else None
        plain = this.preferred_name in GENERIC.values()
        if first in dying and first not in live and first is not None:
            if this.kind == "convert" and self.statements[leaves[0]].kind != "argument":
                return first
            if (this.kind in _CHAIN and (plain or first != "x")) and not self._has_own_name(this):
                return first
        return self.free(this.preferred_name, live, set())

    def _has_own_name(self, this: Statement) -> bool:
        """True if the name of a value comes from its role or its own module."""
        if this.kind == "unary" and this.node not in self.roles:
            return this.preferred_name not in (*GENERIC.values(), self.graph.nodes[this.node].op)
        return this.node in self.roles or this.preferred_name not in GENERIC.values()

    def free(self, name: str, live: set[str], others: set[str]) -> str:
        """A name that is not taken, `name` if possible."""
        taken = live | others | reserved() | set(self.axes)
        return free_name(name, taken, "_" if name[-1].isdigit() else "")

    def _comment(self, s: int) -> str:
        this = self.statements[s]
        if this.comment:
            return this.comment
        return next(filter(None, (self._comment(o) for o in this.operands if self.statements[o].inline)), "")


@cache
def reserved() -> frozenset[str]:
    """Names that no value of a model may have: those of the program and of the functions of special strategies."""
    return RESERVED.union(*(entry.names for entry in special_strategies()))


def axes_read(lines: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """The axes that lines mention by their bare names."""
    text = "\n".join(lines)
    return tuple(a for a in axes if re.search(rf"(?<![\w.]){a}(?!\w)", text))


def reads_mesh(lines: Sequence[str]) -> bool:
    return any(re.search(r"(?<![\w.])mesh\b", line) for line in lines)
