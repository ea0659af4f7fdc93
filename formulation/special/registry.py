"""Special strategies: splits of an operator that index notation alone does not give, each with its own exchange.

An entry says in one place when the strategy applies (`rows`), what it sends and keeps (`messages`, `kept`), how its
line is written (`emit`, with the functions of `program`), and on what it is tried (`examples`, by
`codegen.verification.special`). On other axes the operator is split as usual, so a strategy composes with all others.
"""

from __future__ import annotations

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
"""Where the functions of the package's own strategies are."""

Splits: TypeAlias = Sequence[tuple[int, Row]]
"""The axes that a special strategy splits (more than one rank each), and its row on each."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A node and its tensors, as a strategy looks at them: `inputs` and `output` are their atoms."""

    node: Node
    sources: tuple[Node, ...]
    inputs: tuple[Atoms, ...]
    output: Atoms

    def whole(self, operand: int) -> int:
        """The letter of an input that every rank has whole: B where a gradient flows back, whose addends add up."""
        return B if self.sources[operand].gradient and self.node.gradient else R

    def split(self, operand: int, dim: int) -> int | None:
        """The letter that splits a dim of an input (-1: of the output); None unless it is one atom."""
        known = self.output if operand < 0 else self.inputs[operand]
        numbers = known.of_dim(dim % len(known.dims))
        return S(numbers.start) if len(numbers) == 1 else None


@dataclass(frozen=True, slots=True)
class Part:
    """What one of `ranks` ranks has of an operator that a row of a special strategy splits.

    Shapes are those of the largest part, under the whole option; `items` and `item` are bytes of an element of each
    input and of the output; `spread` says how joined tables are spread over the ranks.
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
        """Of an input; -1: of the output."""
        return prod(self.output) * self.item if operand < 0 else prod(self.inputs[operand]) * self.items[operand]

    def whole(self, operand: int, dim: int) -> int:
        """The size of a dim of an input, over all ranks; -1: of the output."""
        return (self.node if operand < 0 else self.sources[operand]).shape[dim]


@dataclass(frozen=True, slots=True)
class Message:
    """One action over the axis, `times` in a forward or a backward.

    `size_bytes` counts the larger side of a gather or reduce-scatter, what a rank has of other collectives, and what it
    gives to the next one of `SEND`. What is only read and written on the device is a `PAD` of so many bytes.
    """

    action: Action
    size_bytes: int
    backward: bool = False
    times: int = 1


@dataclass(frozen=True)
class Special:
    """One special strategy.

    `rows` are its rows for one axis; each names it and differs by its letters from all other rows of the operator.
    `messages` are what it sends, which comes on top of the operator's own time for its share of the work; `work` is by
    how much that is more than an even share. `kept` is what it keeps for backward besides the operator's own (on
    several axes the most); of the operands in `copies` it keeps something else (counted there). `emit` writes the
    operator's line from its site, the texts of its inputs, and `Splits`: one, unless it may split `several` dims at
    once. `program` is Python source of the functions that the line calls, or a file with it (below "# --- copied from
    here ---"); `primitives` what these use of the program's: `all_reduce`, `gather`, `scatter_sum`, `exchange`. On the
    other axes an operator of a strategy that is `alone` is whole. `worth(samples, devices)` says whether its rows
    are offered, unless a strategy is fixed. `examples` add a node to a graph, on which
    the strategy is tried.
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
    worth: Callable[[int, int], bool] = field(default=lambda batch, devices: True)
    alone: bool = False
    examples: tuple[Callable[[Builder], int], ...] = ()

    def copied(self, part: Part) -> tuple[str, ...]:
        """The operands of which it keeps something else."""
        return self.copies(part) if callable(self.copies) else self.copies

    @property
    def source(self) -> str:
        """The program's functions."""
        return _read(self.program) if isinstance(self.program, Path) else self.program.strip()

    @property
    def names(self) -> frozenset[str]:
        """What the program's functions are called: no variable of the program may be."""
        return frozenset(re.findall(r"^(?:def|class) (\w+)", self.source, re.M))


@cache
def _read(path: Path) -> str:
    return path.read_text().partition("# --- copied from here ---")[2].strip()


_REGISTRY = Registry[Special]("strategy", "partita.strategies", f"{__package__}.builtin")


def register_strategy(entry: Special) -> Special:
    """Add a special strategy; a second one of the same name is a mistake (ValueError)."""
    _of_operator.cache_clear()
    return _REGISTRY.add(entry)


def special_strategy(name: str) -> Special:
    """The entry of a special strategy. Raises PartitaError that lists the known ones."""
    return _REGISTRY.find(name)


def special_strategies() -> tuple[Special, ...]:
    """All registered special strategies, by name."""
    return _REGISTRY.every()


@lru_cache(maxsize=1024)
def _of_operator(op: str) -> tuple[Special, ...]:
    return tuple(entry for entry in special_strategies() if op in entry.operators)


def special_rows(situation: Situation) -> Iterator[Row]:
    """The rows of all special strategies of a node."""
    for entry in _of_operator(situation.node.op):
        yield from entry.rows(situation)


def special_rows_fit(rows: Sequence[Row], inputs: Sequence[Layout], output: Layout, sizes: Sequence[int]) -> bool:
    """True if an option with special rows can be run.

    All of them are of one strategy, which has the atoms that it splits to itself: no other axis splits them, so that
    its parts are those of one axis.
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
            if special_strategy(row.special).alone and any(map(is_split, others)):
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
    """The largest part of a node under the layouts of its inputs and output, for the cost of `row` on `ranks`.

    `itemsizes` are bytes of an element of each input, then of the output.
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
