"""Bundles: branches of a graph that meet in one `cat`, and can run in parallel on disjoint coordinates of an axis.

    fork ── branch 0 (@0) ──┐
         ├─ branch 1 (@1) ──┼── cat          one exchange each way: x at B, the joined tensor at S(batch) or R
         └─ branch 2 (@1) ──┘

(Unity, OSDI'22, section 5.2; the design's `@a..b`.) On the other axes a branch splits its samples. Where the solver
takes a bundle, every node and weight of a branch is only at its coordinate: times and bytes add up by coordinate, and
the bundle costs what its slowest coordinate does. Which branch goes where is chosen among all assignments.

A bundle is added to a finished network: each of its variables gets one more option for every axis, which goes together
with the others of the bundle only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ...model.graph.atoms import atoms
from ...model.graph.layout import Action, B, Layout, R, S, is_split
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG, SOURCES
from ..strategies.row import Row
from ..strategies.strategy import rows
from ..strategies.tensor_classes import classes

MOST_BRANCHES = 8
"""Of a bundle, since all assignments of branches to coordinates are compared."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One input of the `cat`: the nodes that compute it, and their weights; none where it is an input of the graph."""

    nodes: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Branches, in the order of the inputs of `join`; `fork` is what they all read (-1: inputs of the graph only)."""

    join: int
    fork: int
    branches: tuple[Branch, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(i for branch in self.branches for i in branch.nodes)


def find_bundles(pcg: PCG) -> tuple[Bundle, ...]:
    """All bundles of a graph, nested ones too: at least two branches have weights, and nothing else reads inside."""
    return _find_bundles(origin(pcg))  # the same at any batch


@lru_cache(maxsize=16)
def _find_bundles(pcg: PCG) -> tuple[Bundle, ...]:
    if pcg.part is not None:
        whole, places = pcg.part
        number = {place: n for n, place in enumerate(places) if pcg.nodes[n].op != "send"}
        return tuple(
            _in_part(pcg, bundle, number) for bundle in _find_bundles(whole) if _is_inside(pcg, bundle, number)
        )
    found = (_bundle(pcg, join) for join in pcg.of("cat"))
    return tuple(bundle for bundle in found if bundle is not None)


def _is_inside(pcg: PCG, bundle: Bundle, number: Mapping[int, int]) -> bool:
    """True if a stage computes all of a bundle of the whole graph; `number` maps nodes of the whole to the stage's."""
    inside = (bundle.join, *(i for branch in bundle.branches for i in (*branch.nodes, *branch.weights)))
    return all(i in number and pcg.nodes[number[i]].op != "receive" for i in inside)


def _in_part(pcg: PCG, bundle: Bundle, number: Mapping[int, int]) -> Bundle:
    branches = tuple(
        Branch(tuple(number[i] for i in branch.nodes), tuple(number[i] for i in branch.weights))
        for branch in bundle.branches
    )
    return Bundle(number[bundle.join], number.get(bundle.fork, -1), branches)


def _bundle(pcg: PCG, join: int) -> Bundle | None:
    """The bundle that ends in a `cat`, from the last tensor that its branches have in common; None if not closed."""
    ends = pcg.nodes[join].inputs
    if not 2 <= len(ends) <= MOST_BRANCHES or len(set(ends)) < len(ends):
        return None
    constant, above = classes(pcg).constant, [_ancestors(pcg, end, -1) for end in ends]
    common = (i for i in frozenset.intersection(*above) if pcg.nodes[i].op not in SOURCES and not constant[i])
    fork = max(common, default=-1)
    branches = tuple(_branch(pcg, end, fork) for end in ends)
    return Bundle(join, fork, branches) if _closed(pcg, join, fork, branches) else None


def computed(pcg: PCG, bundle: Bundle, choice: Mapping[int, int]) -> Bundle | None:
    """A bundle with a choice of alternatives inside; None if its branches then overlap."""
    inside = {node: member for node, member in choice.items() if node != bundle.fork}
    branches = tuple(_branch(pcg, end, bundle.fork, inside) for end in pcg.nodes[bundle.join].inputs)
    every = [i for branch in branches for i in (*branch.nodes, *branch.weights)]
    above = _ancestors(pcg, bundle.fork, -1) if bundle.fork >= 0 else frozenset()
    return replace(bundle, branches=branches) if len({*every} - above) == len(every) else None


def _ancestors(pcg: PCG, end: int, fork: int, choice: Mapping[int, int] = MappingProxyType({})) -> frozenset[int]:
    """A node and what it is computed from, with these alternatives, up to a fork (excluded)."""
    seen, stack = set[int](), [end]
    while stack:
        index = stack.pop()
        index = choice.get(index, index)
        if index != fork and index not in seen:
            seen.add(index)
            stack.extend(pcg.nodes[index].inputs)
    return frozenset(seen)


def _branch(pcg: PCG, end: int, fork: int, choice: Mapping[int, int] = MappingProxyType({})) -> Branch:
    inside = sorted(_ancestors(pcg, end, fork, choice))
    nodes = tuple(i for i in inside if pcg.nodes[i].op not in SOURCES)
    return Branch(nodes, tuple(i for i in inside if pcg.nodes[i].op in ("parameter", "buffer")))


def _closed(pcg: PCG, join: int, fork: int, branches: Sequence[Branch]) -> bool:
    """True if nothing but the `cat` reads what is inside of a branch, weights included."""
    if sum(any(pcg.nodes[i].op == "parameter" for i in branch.weights) for branch in branches) < 2:
        return False
    if any(not pcg.nodes[i].shape for branch in branches for i in branch.weights):
        return False  # a number is not at one coordinate only
    for branch, end in zip(branches, pcg.nodes[join].inputs, strict=True):
        inside = {*branch.nodes}
        if any(pcg.nodes[i].op == "receive" for i in inside):
            return False  # what another stage gives comes to all ranks
        for i in (*branch.nodes, *branch.weights):
            readers = pcg.plain.intersection(pcg.consumers[i]) - inside
            if readers - ({join} if i == end else set()) or pcg.nodes[i].get("sparse") or pcg.nodes[i].get("tables"):
                return False
        if end not in inside and pcg.nodes[end].op != "input":
            return False
    return True


def whole_row(pcg: PCG, node: int) -> int | None:
    """The number of the row that computes a node whole, alike on all ranks, with addend gradients."""
    letter = B if pcg.nodes[node].gradient else R
    found = (n for n, row in enumerate(rows(pcg, node)) if row.index is None and row.output == letter)
    return next(found, None)


def batch_row(pcg: PCG, node: int) -> int | None:
    """The number of the row that splits the samples of a node, of all its operands that have them."""
    known, this = atoms(pcg), pcg.nodes[node]

    def fits(row: Row) -> bool:
        letters = list(zip(this.inputs, row.inputs, strict=True))
        split = [(i, x) for i, x in letters if known[i].batch]
        output = row.output in {S(a) for a in known[node].batch} if known[node].batch else row.output not in (R, B)
        return (
            not row.special
            and bool(split)
            and all(x in {S(a) for a in known[i].batch} for i, x in split)
            and all(x in (R, B) for i, x in letters if not known[i].batch)
            and output
        )

    plain = {n: row for n, row in enumerate(rows(pcg, node)) if fits(row)}
    if plain:
        return next(iter(plain))
    return None if any(known[i].batch for i in (*this.inputs, node)) else whole_row(pcg, node)


class Assignment(NamedTuple):
    """The largest time, bytes and width of a coordinate; the coordinate of every branch."""

    time: int
    size: int
    width: int
    places: tuple[int, ...]


def assignments(
    times: Sequence[int], sizes: Sequence[int], widths: Sequence[int], coordinates: int
) -> tuple[Assignment, ...]:
    """The assignments of branches that no other dominates in time, bytes and width, least time first.

    Coordinates are alike: a branch goes at most one beyond those before it.
    """
    best: list[Assignment] = []
    every = sorted(
        Assignment(
            _largest(times, p, coordinates), _largest(sizes, p, coordinates), _largest(widths, p, coordinates), p
        )
        for p in _places(len(times), coordinates)
    )
    for one in every:
        if not any(other.size <= one.size and other.width <= one.width for other in best):
            best.append(one)
    return tuple(best)


def _places(branches: int, coordinates: int) -> Iterator[tuple[int, ...]]:
    """Partitions of branches into at most `coordinates` groups, each once."""
    if not branches:
        yield ()
        return
    for places in _places(branches - 1, coordinates):
        for place in range(min(coordinates, max(places, default=-1) + 2)):
            yield (*places, place)


def _largest(amounts: Sequence[int], places: Sequence[int], coordinates: int) -> int:
    total = [0] * coordinates
    for place, amount in zip(places, amounts, strict=True):
        total[place] += amount
    return max(total)


def inside(bundle: Bundle, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """All nodes and weights of the branches, each with its coordinate."""
    for branch, place in zip(bundle.branches, places, strict=True):
        yield from ((i, place) for i in (*branch.nodes, *branch.weights))


def innermost(layout: Layout, axis: int) -> bool:
    """True if no later axis splits the same atom: then parts are exchanged over this axis alone."""
    return not is_split(layout[axis]) or layout[axis] not in layout[axis + 1 :]


def widest_piece(pcg: PCG, bundle: Bundle, places: Sequence[int], coordinates: int) -> int:
    """The largest size along the joined dim that the branches of one coordinate have together."""
    node = pcg.nodes[bundle.join]
    return _largest([pcg.nodes[end].shape[node["dim"]] for end in node.inputs], places, coordinates)


def exchanges(largest_bytes: int, coordinates: int, gathered: bool) -> tuple[tuple[Action, int, bool], ...]:
    """The collectives that end a bundle: (action, bytes, True for backward); `largest_bytes` is of one coordinate."""
    if gathered:
        return (Action.GATHER, coordinates * largest_bytes, False), (Action.SLICE, largest_bytes, True)
    return (Action.EXCHANGE, largest_bytes, False), (Action.EXCHANGE, largest_bytes, True)
