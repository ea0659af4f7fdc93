"""Boundaries: where a graph can be cut into pipeline stages.

A boundary lies between two entries of a list of layers (`layers.3` and `layers.4`), or outside of lists between two
products (a linear, a convolution, a look-up) with a single tensor between them. Tensors computed before it and read
after it *cross*: they have a gradient, and there are at most `MAX_CROSSING`. Inputs, parameters, constants and what is
cheap to compute from them do not cross: each stage reads or computes them itself.

No boundary separates a pass without gradient from the pass with gradient that it repeats (see `recycling`): every pass
would have to go through the whole pipeline. So a model that recycles all of its layers has boundaries only before and
after them, unless its passes are folded (`model.graph.folded`): then the same tensors of all passes cross together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TypeAlias

from ..errors import PartitaError
from ..operators.operator import operator
from .buffer_updates import updated
from .dtypes import FLOATS
from .joined_tables import table_rows
from .origin import origin
from .pcg import PCG, SOURCES
from .recycling import twins
from .segments import LIST_INDEX, is_product
from .sparse_tables import sparse_tables

MAX_CROSSING = 2
"""Most tensors that cross a boundary: a decoder also reads the result of the encoder."""

MAX_PASSES = 3
"""Operators with at most this many passes over their inputs and output may be replicated in every stage."""

Entry: TypeAlias = tuple[str, int]
"""An entry of a list of modules: (path of the list, index)."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between nodes: those with an index below `position` come before. `crossing`: the tensors that cross.

    These are never views: views are taken on the far side.
    """

    position: int
    crossing: tuple[int, ...] = ()


def boundaries(pcg: PCG) -> tuple[Boundary, ...]:
    """The places where a graph can be cut, in order, including its start and its end, which nothing crosses."""
    return _boundaries(origin(pcg))  # the same at any batch


def boundaries_at(pcg: PCG, names: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the boundaries at which these modules or operators begin; PartitaError: no boundary is there."""
    begins = {pcg.nodes[b.position].name: number for number, b in enumerate(boundaries(pcg)[:-1]) if number}
    found: list[int] = []
    for name in names:
        numbers = [n for begin, n in begins.items() if begin == name or begin.startswith(f"{name}.")]
        if not numbers or (found and numbers[0] <= found[-1]):
            at = " after the stage before it" if numbers else ""
            raise PartitaError(f"no stage can begin at {name!r}{at}; stages can begin at {', '.join(begins)}")
        found.append(numbers[0])
    return tuple(found)


def needed(pcg: PCG, results: tuple[int, ...], received: Set[int] = frozenset()) -> set[int]:
    """The nodes that results need if no alternative is chosen, without received ones and what only these need."""
    found: set[int] = set()
    stack = list(results)
    while stack:
        index = stack.pop()
        if index not in found and index not in received:
            found.add(index)
            stack += pcg.nodes[index].inputs
    return found


@lru_cache(maxsize=16)
def _boundaries(pcg: PCG) -> tuple[Boundary, ...]:
    crossing = _Crossing(pcg)
    keys = _entries(pcg, crossing)
    found = [Boundary(0)]
    for (here, a), (there, b) in pairwise(keys):
        most = _allowed(a, b)
        places = [p for p in range(here + 1, there + 1) if most and crossing.fits(p, most)]
        if not a[0][0] and not b[0][0]:
            places = [p for p in places if crossing.leads(p, there)]
        best = min(places, key=lambda p: (*crossing.size(p), -p), default=None)
        if best is not None:
            found.append(Boundary(best, crossing.at(best)))
    return (*found, Boundary(len(pcg.nodes)))


def _allowed(a: tuple[Entry, ...], b: tuple[Entry, ...]) -> int:
    """How many tensors may cross between products of two entries; 0: there is no boundary.

    MAX_CROSSING between entries of an outermost list; one for nested lists and outside of lists.
    """
    depth = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    if depth in (len(a), len(b)):  # one is inside of the other, or they are the same
        return 0
    if depth:
        return int(a[depth][0] == b[depth][0])
    return MAX_CROSSING if a[0][0] or b[0][0] else 1


def _entries(pcg: PCG, crossing: _Crossing) -> list[tuple[int, tuple[Entry, ...]]]:
    """(node, its entries of lists from the outermost inwards), in the order of the graph.

    Only entries that hold products count; nodes between them belong to the entry before. A product outside of lists is
    an entry of its own.
    """
    products = [i for i in crossing.computed if _is_heavy(pcg, i)]
    holding = {entry for i in products for entry in _lists(pcg.nodes[i].path)}
    found: list[tuple[int, tuple[Entry, ...]]] = []
    heavy = {*products}
    for index in crossing.computed:
        key = tuple(entry for entry in _lists(pcg.nodes[index].path) if entry in holding)
        if key or index in heavy:
            found.append((index, key or (("", index),)))
    return found


def _lists(path: str) -> list[Entry]:
    return [(path[: match.start(1)], int(match[1])) for match in LIST_INDEX.finditer(path)]


def _is_heavy(pcg: PCG, index: int) -> bool:
    """True if a node is a product or a look-up."""
    node = pcg.nodes[index]
    looks_up = operator(node.op).looked_up(node, tuple(pcg.nodes[i] for i in node.inputs)) is not None
    return is_product(pcg, index) or looks_up


class _Crossing:
    """The tensors computed before each place and read after it.

    `local`: nodes that every stage computes itself; `base`: the tensor that a node is a view of; `computed`: the other
    nodes that are needed if no alternative is chosen.
    """

    def __init__(self, pcg: PCG) -> None:
        self.pcg = pcg
        self.local, self.base = stage_local(pcg), _bases(pcg)
        own = (i for i in sorted(pcg.plain) if pcg.nodes[i].op not in SOURCES and i not in self.local)
        self.computed = [i for i in own if self.base[i] == i]
        last: dict[int, int] = {}
        for reader in self.computed:
            for i in pcg.nodes[reader].inputs:
                last[self.base[i]] = reader
        self.sets: list[tuple[int, ...]] = [()]
        alive: list[int] = []
        for index in range(len(pcg.nodes)):
            if last.get(index, -1) > index and index in last and self._own(index):
                alive.append(index)
            alive = [i for i in alive if last[i] > index]
            self.sets.append(tuple(alive))
        # No cut lies between the nodes of such a pair.
        self.twins = twins(pcg)
        together = [*self.twins.items(), *_unsplittable_readers(pcg)]
        steps = [0] * (len(pcg.nodes) + 2)
        for a, b in together:
            steps[min(a, b) + 1] += 1
            steps[max(a, b) + 1] -= 1
        self.closed = [False]
        depth = 0
        for step in steps[1:]:
            depth += step
            self.closed.append(depth > 0)

    def _own(self, index: int) -> bool:
        return self.pcg.nodes[index].op not in SOURCES and index not in self.local

    def at(self, position: int) -> tuple[int, ...]:
        return self.sets[position]

    def fits(self, position: int, most: int) -> bool:
        """True if the graph can be cut at a position, with at most `most` tensors crossing."""
        tensors, repeats = [i for i in self.at(position) if i not in self.twins], Counter[int]()
        repeats.update(self.twins[i] for i in self.at(position) if i in self.twins)
        trained = all(n.gradient and n.dtype in FLOATS for n in (self.pcg.nodes[i] for i in tensors))
        whole = not repeats or (repeats.keys() <= {*tensors} and len({*repeats.values()}) == 1)
        return 0 < len(tensors) <= most and trained and whole and not self.closed[position]

    def leads(self, position: int, node: int) -> bool:
        """True if a node is computed from what crosses."""
        return not needed(self.pcg, (node,)).isdisjoint(self.at(position))

    def size(self, position: int) -> tuple[int, int]:
        """(number, elements) of the tensors that cross."""
        tensors = self.at(position)
        return len(tensors), sum(self.pcg.nodes[i].numel for i in tensors)


@lru_cache(maxsize=16)
def stage_local(pcg: PCG) -> frozenset[int]:
    """Nodes that every stage computes itself: those that cheap operators compute from inputs and constants.

    Cheap operators do little work per element; products, random and unknown operators are not cheap.
    """
    found: set[int] = set()
    for index, node in enumerate(pcg.nodes):
        if node.op in SOURCES or node.gradient:
            continue
        entry = operator(node.op)
        sources = [pcg.nodes[i] for i in node.inputs]
        own = all(n.op in ("input", "buffer") or i in found for i, n in zip(node.inputs, sources, strict=True))
        if own and not entry.transfer and (entry.creates or _is_cheap(pcg, index)):
            found.add(index)
    return frozenset(found)


def _is_cheap(pcg: PCG, index: int) -> bool:
    entry = operator(pcg.nodes[index].op)
    return not (entry.matmul or entry.updates or entry.name == "opaque") and entry.passes <= MAX_PASSES


def _bases(pcg: PCG) -> list[int]:
    """For every node the tensor that it is a view of, or itself."""
    base: list[int] = []
    for index, node in enumerate(pcg.nodes):
        is_view = node.op not in SOURCES and _is_view(pcg, index)
        base.append(base[node.inputs[0]] if is_view else index)
    return base


def _is_view(pcg: PCG, index: int) -> bool:
    """True if a node has all elements of what it reads under another shape, at no cost."""
    node = pcg.nodes[index]
    entry = operator(node.op)
    if entry.passes or entry.transfer or len(node.inputs) != 1:
        return False
    source = pcg.nodes[node.inputs[0]]
    return source.numel == node.numel and source.gradient == node.gradient


def _unsplittable_readers(pcg: PCG) -> Iterator[tuple[int, int]]:
    """The first and the last reader of what only one stage can hold: a parameter whose gradient is sparse, or that
    joins tables which may be spread; a buffer that changes."""
    for index in pcg.of("parameter"):
        readers = pcg.consumers[index]
        if len(readers) > 1 and (index in sparse_tables(pcg) or table_rows(pcg.nodes[index])):
            yield readers[0], readers[-1]
    for index in updated(pcg):  # one stage alone knows the new value
        yield pcg.consumers[index][0], pcg.consumers[index][-1]
