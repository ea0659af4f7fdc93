"""Special strategies: splits of an operator that index notation cannot express, each with communication of its own.

An entry states when the strategy applies (`rows`), what it sends and keeps (`messages`, `kept`), the line of the
program (`emit`, with the functions of `program`), and the examples on which `codegen.verification.special` tests it.
On other axes the operator is split as usual, so a strategy composes with all others.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from ...model.graph.atoms import Atoms
from ...model.graph.builder import Builder
from ...model.graph.layout import Action, B, Layout, R, S, is_split, largest_part
from ...model.graph.pcg import Node
from ...model.registry import Registry
from ..strategies.row import Row
from .table_spread import TableSpread

PROGRAMS = Path(__file__).parent / "programs"
"""The folder of the functions of the package's own strategies."""

Splits: TypeAlias = Sequence[tuple[int, Row]]
"""The axes of more than one rank that a special strategy splits, and its row on each."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A node and its tensors, to which a strategy may apply: `inputs` and `output` are their atoms."""

    node: Node
    sources: tuple[Node, ...]
    inputs: tuple[Atoms, ...]
    output: Atoms

    def whole(self, operand: int) -> int:
        """The letter of an input that is whole on every rank: B if it has a gradient, whose addends add up; else R."""
        return B if self.sources[operand].gradient and self.node.gradient else R

    def split(self, operand: int, dim: int) -> int | None:
        """The letter that splits a dim of an input (-1: of the output); None unless it is one atom."""
        known = self.output if operand < 0 else self.inputs[operand]
        numbers = known.of_dim(dim % len(known.dims))
        return S(numbers.start) if len(numbers) == 1 else None


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an operator that one of `ranks` ranks computes if a row of a special strategy splits it.

    Shapes are those of the largest part, split on all axes; `items` and `item` are bytes per element of each input and
    of the output; `spread` is how joined tables are spread over the ranks.
    """

    node: Node
    sources: tuple[Node, ...]
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    items: tuple[int, ...]
    item: int
    ranks: int
    row: Row
    spread: TableSpread | None = None

    def bytes(self, operand: int) -> int:
        """Bytes of an input; -1: of the output."""
        return prod(self.output) * self.item if operand < 0 else prod(self.inputs[operand]) * self.items[operand]

    def whole(self, operand: int, dim: int) -> int:
        """The size of a dim of an input, over all ranks; -1: of the output."""
        return (self.node if operand < 0 else self.sources[operand]).shape[dim]


@dataclass(frozen=True, slots=True)
class Message:
    """One action over the axis, `times` in a forward or a backward.

    `size_bytes`: of a gather or reduce-scatter the larger side, of other collectives what a rank has, of `SEND` what it
    sends to the next rank. A local copy is a `PAD`.
    """

    action: Action
    size_bytes: int
    backward: bool = False
    times: int = 1


@dataclass(frozen=True)
class Special:
    """One special strategy.

    `rows`: its rows for one axis; their letters differ from those of all other rows of the operator.
    `messages`: what it sends, in addition to the operator's own time for its share of the work.
    `emit`: the operator's line, from its site, the expressions of its inputs, and `Splits`.
    `program`: source of the functions that the line calls, or its file (from "# --- copied from here ---" on).
    `primitives`: functions of the emitted program that `program` calls: `all_reduce`, `gather`, `scatter_sum`,
    `exchange`.
    `work`: the work of the busiest rank, relative to an even share.
    `kept`: bytes kept for backward besides the operator's own (on several axes the most).
    `copies`: operands of which it keeps something else, counted in `kept`.
    `several`: it may split several dims at once, on as many axes.
    `offered(samples, devices)`: whether its rows are offered if no strategy is fixed; reports name those that are not
    as `unoffered`.
    `exclusive`: on all other axes the operator is whole.
    `examples`: each adds a node to a graph, on which the strategy is tested.
    """

    name: str
    operators: tuple[str, ...]
    rows: Callable[[Situation], Iterable[Row]]
    messages: Callable[[Part], Iterable[Message]]
    emit: Callable[[Any, Sequence[str], Splits], str]
    program: str | Path = ""
    primitives: tuple[str, ...] = ()
    work: Callable[[Part], float] = field(default=lambda part: 1.0)
    kept: Callable[[Part], int] = field(default=lambda part: 0)
    copies: tuple[str, ...] | Callable[[Part], tuple[str, ...]] = ()
    several: bool = False
    offered: Callable[[int, int], bool] = field(default=lambda batch, devices: True)
    unoffered: str = ""
    exclusive: bool = False
    examples: tuple[Callable[[Builder], int], ...] = ()

    def copied(self, part: Part) -> tuple[str, ...]:
        """`copies` of a part."""
        return self.copies(part) if callable(self.copies) else self.copies

    @property
    def source(self) -> str:
        """The source of `program`'s functions."""
        return _read(self.program) if isinstance(self.program, Path) else self.program.strip()

    @property
    def names(self) -> frozenset[str]:
        """The names of `program`'s functions, which no variable of the emitted program may have."""
        return frozenset(re.findall(r"^(?:def|class) (\w+)", self.source, re.M))


@cache
def _read(path: Path) -> str:
    return path.read_text().partition("# --- copied from here ---")[2].strip()


_REGISTRY = Registry[Special]("strategy", "partita.strategies", f"{__package__}.builtin")


def register_strategy(entry: Special) -> Special:
    """Register a special strategy. Raises ValueError if the name is taken."""
    _of_operator.cache_clear()
    return _REGISTRY.add(entry)


def special_strategy(name: str) -> Special:
    """A special strategy by name. Raises PartitaError, which lists the known names."""
    return _REGISTRY.find(name)


def special_strategies() -> tuple[Special, ...]:
    """All registered special strategies, sorted by name."""
    return _REGISTRY.every()


@lru_cache(maxsize=1024)
def _of_operator(op: str) -> tuple[Special, ...]:
    return tuple(entry for entry in special_strategies() if op in entry.operators)


def special_rows(situation: Situation) -> Iterator[Row]:
    """The rows of all special strategies for a node."""
    for entry in _of_operator(situation.node.op):
        yield from entry.rows(situation)


def special_rows_fit(rows: Sequence[Row], inputs: Sequence[Layout], output: Layout, sizes: Sequence[int]) -> bool:
    """True if an option with special rows can run.

    All special rows are of one strategy, and no other axis splits the atoms that it splits.
    """
    chosen = [(axis, row) for axis, row in enumerate(rows) if row.special and sizes[axis] > 1]
    if len({row.special for _, row in chosen}) > 1:
        return False
    if len(chosen) > 1 and not special_strategy(chosen[0][1].special).several:
        return False
    for axis, row in chosen:
        for layout in (*inputs, output):
            letter = layout[axis]
            others = (x for a, x in enumerate(layout) if a != axis and sizes[a] > 1)
            if special_strategy(row.special).exclusive and any(map(is_split, others)):
                return False
            if is_split(letter) and any(x == letter and sizes[a] > 1 for a, x in enumerate(layout) if a != axis):
                return False
    return True


def part_of(
    situation: Situation,
    row: Row,
    ranks: int,
    layouts: tuple[Sequence[Layout], Layout],
    sizes: Sequence[int],
    itemsizes: Sequence[int],
    *,
    spread: TableSpread | None = None,
) -> Part:
    """The largest part of a node under the layouts of its inputs and output, to price `row` on `ranks`.

    `itemsizes`: bytes per element of each input, then of the output.
    """
    inputs, output = layouts
    *items, item = itemsizes
    return Part(
        node=situation.node,
        sources=situation.sources,
        inputs=tuple(_shape(known, x, sizes) for known, x in zip(situation.inputs, inputs, strict=True)),
        output=_shape(situation.output, output, sizes),
        items=tuple(items),
        item=item,
        ranks=ranks,
        row=row,
        spread=spread,
    )


def _shape(known: Atoms, layout: Layout, sizes: Sequence[int]) -> tuple[int, ...]:
    def size(atom: int) -> int:
        return largest_part(known.sizes[atom], tuple(n for x, n in zip(layout, sizes, strict=True) if x == S(atom)))

    return tuple(prod(size(a) for a in known.of_dim(d)) for d in range(len(known.dims)))
