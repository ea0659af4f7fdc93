"""Recomputed segments in the program: turns of a loop, or methods, that are called through `recomputed`.

A segment that is what a turn of a loop computes is that turn's block, and the loop says how each of its entries is
called. Any other one becomes a method of the class that computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from ....model.graph.layout import Layout
from ....model.graph.pcg import SOURCES
from ....model.graph.segments import segments
from ...plan.memo import once_per_plan
from ...plan.plan import Plan
from ..common.names import identifier, is_literal
from .repeated_blocks import Block, BlockChain, entry_name, relative_name

Place: TypeAlias = tuple[int, str]
"""Where a segment is in a turn of a loop: which of its entries, and the rest of its name."""


@dataclass(frozen=True, slots=True)
class SegmentMode:
    """A segment with its mode; `nodes` are those for which the program has statements."""

    name: str
    mode: str
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class LoopModes:
    """How a loop calls its turns. `modes`: for every turn those of the segments in it at `places`.

    `whole`: each is one segment.
    """

    places: tuple[Place, ...]
    modes: tuple[tuple[str, ...], ...]
    whole: bool

    @property
    def alike(self) -> bool:
        """Whether the class can say the modes."""
        return not self.whole and len({*self.modes}) == 1

    @property
    def texts(self) -> tuple[str, ...]:
        """What the loop says for every turn."""
        quoted = (tuple(f'"{mode}"' for mode in modes) for modes in self.modes)
        return tuple(modes[0] if self.whole else f"({', '.join(modes)}{',' * (len(modes) == 1)})" for modes in quoted)


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """A segment as a method: its mode (an expression), what it reads from outside, what others read of it.

    `always`: in no turn of the loop all is kept.
    """

    method: str
    mode: str
    nodes: frozenset[int]
    reads: tuple[int, ...]
    outs: tuple[int, ...]
    layouts: tuple[Layout, ...]
    always: bool = True

    @property
    def carried(self) -> tuple[int, ...]:
        """What it gives, as a turn of a loop says it."""
        return self.outs


@once_per_plan
def parts(plan: Plan) -> tuple[SegmentMode, ...]:
    """All segments with their modes, if some are recomputed."""
    nodes = plan.graph.nodes
    return tuple(
        SegmentMode(
            segment.name,
            plan.recompute.get(segment.name, "none"),
            frozenset(i for i in segment.nodes if nodes[i].op not in SOURCES and not is_literal(plan, i)),
        )
        for segment in (segments(plan.graph) if plan.recompute else ())
    )


def recomputed(plan: Plan) -> Iterator[SegmentMode]:
    """The segments of which backward runs the forward again."""
    return (part for part in parts(plan) if part.mode != "none")


# In loops


def inside(plan: Plan, prefix: str, unit: Block) -> tuple[tuple[Place, tuple[int, ...]], ...]:
    """The segments in a turn of a loop: their places, and which of its nodes they have."""
    numbers = {i: number for number, i in enumerate(unit.nodes)}
    return tuple(
        (relative_name(prefix, unit.first, part.name), tuple(sorted(numbers[i] for i in part.nodes)))
        for part in parts(plan)
        if all(i in numbers for i in part.nodes)
    )


def turns(plan: Plan, chain: BlockChain, units: Sequence[Block]) -> LoopModes | None:
    """How the turns of a pass are called; None: plainly."""
    known, found = {part.name: part for part in recomputed(plan)}, dict[Place, None]()
    for unit in units:
        nodes = frozenset(unit.nodes)
        found |= {relative_name(chain.prefix, unit.first, p.name): None for p in known.values() if p.nodes <= nodes}
    places = tuple(sorted(found))
    names = [[_name(chain, unit, place) for place in places] for unit in units]
    modes = tuple(tuple(plan.recompute.get(name, "none") for name in row) for row in names)
    given = [(known[name], unit) for row, unit in zip(names, units, strict=True) for name in row if name in known]
    whole = len(places) == 1 and all(part.nodes == {*unit.nodes} for part, unit in given)
    return LoopModes(places, modes, whole) if places else None


def _name(chain: BlockChain, unit: Block, place: Place) -> str:
    return (entry_name(chain.prefix, unit.first + place[0]) + place[1]).removesuffix(".")


def fits(plan: Plan, chain: BlockChain) -> bool:
    """Whether every recomputed segment is in a turn of a loop, around all of it, or apart from it."""
    units = [frozenset(unit.nodes) for one in chain.passes for unit in one]
    for part in recomputed(plan):
        if part.nodes.isdisjoint(chain.nodes) or part.nodes >= chain.nodes:
            continue
        if not any(part.nodes == unit or (len(chain.passes) == 1 and part.nodes < unit) for unit in units):
            return False
    return True


# Methods


def calls(plan: Plan, apart: Sequence[frozenset[int]], stored: frozenset[int]) -> tuple[SegmentCall, ...]:
    """The segments that are methods of the model: all but those in turns of loops, `apart`.

    `stored`: the weights that the model has.
    """
    found = (part for part in recomputed(plan) if not any(part.nodes <= nodes for nodes in apart))
    return tuple(_call(plan, part, identifier(part.name.replace(".", "_")), f'"{part.mode}"', stored) for part in found)


def calls_in(
    plan: Plan, chain: BlockChain, units: Sequence[Block], unit: Block, stored: frozenset[int]
) -> tuple[SegmentCall, ...]:
    """The segments that are methods of a block, of which `unit` is one."""
    how, known = turns(plan, chain, units), {part.name: part for part in parts(plan)}
    if how is None or how.whole:
        return ()
    like = [modes for modes, other in zip(how.modes, units, strict=True) if other.signature == unit.signature]
    made = []
    for number, (offset, rest) in enumerate(how.places):
        part = known.get(_name(chain, unit, (offset, rest)))
        if part is not None:
            mode = f'"{part.mode}"' if how.alike else f"modes[{number}]"
            method = f"entry_{offset}{identifier(f'_{rest}') if rest else ''}"
            always = all(modes[number] != "none" for modes in like)
            made.append(_call(plan, part, method, mode, stored, unit=unit, always=always))
    return tuple(made)


def _call(
    plan: Plan,
    part: SegmentMode,
    method: str,
    mode: str,
    stored: frozenset[int],
    unit: Block | None = None,
    always: bool = True,
) -> SegmentCall:
    graph = plan.graph
    reads = dict.fromkeys(i for n in sorted(part.nodes) for i in graph.nodes[n].inputs)
    outs = tuple(i for i in sorted(part.nodes) if not part.nodes.issuperset(graph.consumers[i]))
    given = dict(zip(unit.outs, unit.layouts, strict=True)) if unit else {}
    return SegmentCall(
        method,
        mode,
        nodes=part.nodes,
        reads=tuple(i for i in reads if i not in part.nodes | stored and not is_literal(plan, i)),
        outs=outs,
        layouts=tuple(given.get(i, plan.choices[i].given) for i in outs),
        always=always,
    )


# Text


def call_text(stepped: bool, mode: str, block: str, arguments: Iterable[str]) -> str:
    """A block that is called as `mode`, an expression, says; `stepped`: the program has dropouts."""
    mesh = ["mesh"] if stepped else []  # the step and the micro-batch, of which masks are functions
    return f"recomputed({', '.join([mode, *mesh, block, *arguments])})"


def modes_text(texts: Sequence[str]) -> str:
    """A list, with equal ones in a row as a product: `["full"] * 6 + ["none"] * 2`."""
    runs = [(text, len(list(group))) for text, group in groupby(texts)]
    if len(runs) > len(texts) / 2:
        return f"[{', '.join(texts)}]"
    return " + ".join(f"[{text}]{f' * {count}' if count > 1 else ''}" for text, count in runs)
