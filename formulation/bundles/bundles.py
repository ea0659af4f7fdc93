"""Bundles: branches of a graph that meet in a `cat` or a sum, and can run on disjoint coordinates of an axis.

    fork ── branch 0 (@0) ──┐                x at B; then
         ├─ branch 1 (@1) ──┼── cat          one exchange each way, the joined tensor at S(batch) or R
         └─ branch 2 (@1) ──┘   or add       nothing: what each coordinate adds up is an addend, the sum is at P

A sum may be a tree of `add` nodes that nothing else reads. One of its terms may be computed outside, like the input of
a residual block: it is added at one coordinate. (Unity, OSDI'22, section 5.2; the design's `@a..b`.) On the other axes
a branch splits its samples. Where the solver takes a bundle, every node and weight of a branch is only at its
coordinate: times and bytes add up by coordinate, and the bundle costs what its slowest coordinate does. Which branch
goes where is chosen among all assignments.

A bundle is added to a finished network: each of its variables gets one more option for every axis, which goes together
with the others of the bundle only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_, or_
from types import MappingProxyType
from typing import NamedTuple

from ...model.graph.atoms import atoms
from ...model.graph.layout import Action, B, Layout, P, R, S, is_split
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG, SOURCES
from ..strategies.row import Row
from ..strategies.strategy import rows
from ..strategies.tensor_classes import classes

MOST_BRANCHES = 8
"""Of a bundle, since all assignments of branches to coordinates are compared."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What computes one of the ends: nodes, and their weights; none if it is computed outside, or an input."""

    nodes: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Branches, one for each of the tensors `ends` that `join` joins; `fork` is what they all read (-1: only inputs).

    `adds`: the nodes that add up the ends, the last one is `join`; none if that is a `cat`.
    """

    join: int
    fork: int
    ends: tuple[int, ...]
    branches: tuple[Branch, ...]
    adds: tuple[int, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(i for branch in self.branches for i in branch.nodes)

    @property
    def outside(self) -> tuple[int, ...]:
        """The ends that no branch computes."""
        return tuple(end for end, branch in zip(self.ends, self.branches, strict=True) if not branch.nodes)

    @property
    def joining(self) -> tuple[int, ...]:
        """The nodes that join the ends."""
        return self.adds or (self.join,)

    def adding(self, places: Sequence[int]) -> frozenset[int]:
        """The branches whose results are added to another one at their coordinate: there all but the first."""
        if not self.adds:
            return frozenset()
        order = sorted(range(len(places)), key=lambda b: (bool(self.branches[b].nodes), b))
        firsts = {places[b]: b for b in reversed(order)}
        return frozenset(order) - {*firsts.values()}


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
    above, found = _above(pcg), list[Bundle]()
    for join in pcg.of("cat"):
        bundle = _bundle(pcg, join, pcg.nodes[join].inputs, (), above)
        found += [] if bundle is None else [bundle]
    taken: set[int] = set()
    for join in reversed(pcg.of("add")):  # the largest trees first
        ends, adds = ([], []) if join in taken else _terms(pcg, join)
        bundle = _bundle(pcg, join, ends, adds, above)
        if bundle is not None:
            taken.update(adds)
            found.append(bundle)
    return tuple(sorted(found, key=lambda bundle: bundle.join))


def _above(pcg: PCG) -> list[int]:
    """For every node, as bits, the computed nodes that it depends on, itself included; constants are left out."""
    constant, above = classes(pcg).constant, list[int]()
    for index, node in enumerate(pcg.nodes):
        itself = 0 if node.op in SOURCES or constant[index] else 1 << index
        above.append(reduce(or_, (above[i] for i in node.inputs), itself))
    return above


def _terms(pcg: PCG, join: int) -> tuple[list[int], list[int]]:
    """The terms that a tree of `add` nodes adds up, in order, and its nodes, `join` last; none if one broadcasts."""
    terms, adds, stack = list[int](), list[int](), [join]
    while stack and len(terms) <= MOST_BRANCHES:
        index = stack.pop()
        inner = _readers(pcg, index) in [{add} for add in adds] and index not in pcg.members
        if (index == join or inner) and _adds_up(pcg, index, join):
            adds.append(index)
            stack.extend(reversed(pcg.nodes[index].inputs))
        elif index == join:
            return [], []
        else:
            terms.append(index)
    return terms, sorted(adds)


def _adds_up(pcg: PCG, index: int, join: int) -> bool:
    """True if a node adds two different tensors like the result of `join`, neither of which is constant."""
    node, this, constant = pcg.nodes[index], pcg.nodes[join], classes(pcg).constant
    if node.op != "add" or index not in pcg.plain or len(set(node.inputs)) < 2 or node.gradient != this.gradient:
        return False
    sources = [pcg.nodes[i] for i in node.inputs]
    return not any(constant[i] for i in node.inputs) and all(
        (n.shape, n.dtype) == (this.shape, this.dtype) for n in (node, *sources)
    )


def _is_inside(pcg: PCG, bundle: Bundle, number: Mapping[int, int]) -> bool:
    """True if a stage computes all of a bundle of the whole graph; `number` maps nodes of the whole to the stage's."""
    inside = (*bundle.joining, *(i for branch in bundle.branches for i in (*branch.nodes, *branch.weights)))
    return all(i in number and pcg.nodes[number[i]].op != "receive" for i in inside)


def _in_part(pcg: PCG, bundle: Bundle, number: Mapping[int, int]) -> Bundle:
    branches = tuple(
        Branch(tuple(number[i] for i in branch.nodes), tuple(number[i] for i in branch.weights))
        for branch in bundle.branches
    )
    ends, adds = (tuple(number[i] for i in found) for found in (bundle.ends, bundle.adds))
    return Bundle(number[bundle.join], number.get(bundle.fork, -1), ends, branches, adds)


def _bundle(pcg: PCG, join: int, ends: Sequence[int], adds: Sequence[int], above: Sequence[int]) -> Bundle | None:
    """The bundle that joins `ends`, from the last tensor that its branches have in common; None if not closed."""
    if not 2 <= len(ends) <= MOST_BRANCHES or len(set(ends)) < len(ends):
        return None
    outside = {end for end in ends if adds and not _readers(pcg, end) <= {*adds}}
    fork = reduce(and_, (above[end] for end in ends if end not in outside), -1).bit_length() - 1
    branches = (Branch((), ()) if end in outside else _branch(pcg, end, fork) for end in ends)
    bundle = Bundle(join, fork, tuple(ends), tuple(branches), tuple(adds))
    return bundle if _closed(pcg, bundle) else None


def computed(pcg: PCG, bundle: Bundle, choice: Mapping[int, int]) -> Bundle | None:
    """A bundle with a choice of alternatives inside; None if its branches then overlap."""
    inside = {node: member for node, member in choice.items() if node != bundle.fork}
    branches = tuple(
        _branch(pcg, end, bundle.fork, inside) if branch.nodes else branch
        for end, branch in zip(bundle.ends, bundle.branches, strict=True)
    )
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


def _readers(pcg: PCG, node: int) -> frozenset[int]:
    """The readers of a node in the graph as captured."""
    return pcg.plain.intersection(pcg.consumers[node])


def _closed(pcg: PCG, bundle: Bundle) -> bool:
    """True if nothing but the join reads what is inside of a branch, weights included."""
    if sum(any(pcg.nodes[i].op == "parameter" for i in branch.weights) for branch in bundle.branches) < 2:
        return False
    if any(not pcg.nodes[i].shape for branch in bundle.branches for i in branch.weights):
        return False  # a number is not at one coordinate only
    for branch, end in zip(bundle.branches, bundle.ends, strict=True):
        inside = {*branch.nodes}
        if any(pcg.nodes[i].op == "receive" for i in inside):
            return False  # what another stage gives comes to all ranks
        for i in (*branch.nodes, *branch.weights):
            readers = _readers(pcg, i) - inside
            last = {*bundle.joining} if i == end else set()
            if readers - last or pcg.nodes[i].get("sparse") or pcg.nodes[i].get("tables"):
                return False
        if end not in inside and pcg.nodes[end].op != "input" and not bundle.adds:
            return False
    return not bundle.adds or len(bundle.outside) < 2


def whole_row(pcg: PCG, node: int) -> int | None:
    """The number of the row that computes a node whole, alike on all ranks, with addend gradients."""
    letter = B if pcg.nodes[node].gradient else R
    found = (n for n, row in enumerate(rows(pcg, node)) if row.index is None and row.output == letter)
    return next(found, None)


def sum_row(pcg: PCG, node: int) -> int | None:
    """The number of the row with which an `add` of addends gives addends."""
    found = (n for n, row in enumerate(rows(pcg, node)) if row.index is None and {*row.inputs, row.output} == {P})
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
    if any(known[i].batch for i in (*this.inputs, node)):
        return None
    addends = _addends_row(pcg, node)
    return whole_row(pcg, node) if addends is None else addends


def _addends_row(pcg: PCG, node: int) -> int | None:
    """The row of a node with which sums over samples, like a loss times a number, stay addends; None if none does."""
    this = pcg.nodes[node]
    given = [_sums_samples(pcg, i) for i in this.inputs]
    if not any(given):
        return None
    found = (
        n
        for n, row in enumerate(rows(pcg, node))
        if row.index is None and row.output == P and [x == P for x in row.inputs] == given
    )
    return next(found, None)


def _sums_samples(pcg: PCG, node: int) -> bool:
    """True if a node without samples gives addends where samples are split."""
    if pcg.nodes[node].op in SOURCES or atoms(pcg)[node].batch:
        return False
    row = batch_row(pcg, node)
    return row is not None and rows(pcg, node)[row].output == P


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


def widths(pcg: PCG, bundle: Bundle) -> tuple[int, ...]:
    """The sizes of the ends along the joined dim; 0 where they are added up, which no exchange ends."""
    dim = pcg.nodes[bundle.join].get("dim")
    return tuple(0 if bundle.adds else pcg.nodes[end].shape[dim] for end in bundle.ends)


def widest_piece(pcg: PCG, bundle: Bundle, places: Sequence[int], coordinates: int) -> int:
    """The largest size along the joined dim that the branches of one coordinate have together."""
    return _largest(widths(pcg, bundle), places, coordinates)


def exchanges(largest_bytes: int, coordinates: int, gathered: bool) -> tuple[tuple[Action, int, bool], ...]:
    """The collectives that end a bundle: (action, bytes, True for backward); `largest_bytes` is of one coordinate."""
    if gathered:
        return (Action.GATHER, coordinates * largest_bytes, False), (Action.SLICE, largest_bytes, True)
    return (Action.EXCHANGE, largest_bytes, False), (Action.EXCHANGE, largest_bytes, True)
