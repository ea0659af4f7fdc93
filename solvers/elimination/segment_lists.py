"""Networks over label lists: one variable per segment, one option per label.

A segment is a copy of a chain, or a block: the variables of switches and windows outside of chains. Its labels are the
nondominated (time, use, transient use) of every assignment around it, from elimination (`labels.py`). Streams are
listed like uses, and become part of the time where the segment, and so their window, is complete. Transient use thus
becomes a number per option, and a network without switches and windows remains, of a few variables besides the lists.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from ...formulation.network.network import INFINITE, Chain, Edge, Network, Table, Variable
from ..protocol import TooManyError
from .circuit import Circuit, Weights
from .factors import Factor
from .kernels import Floats, Ints
from .labels import LabelBounds, Labels, Listing, enumerate_labels, nondominated
from .order import TooWideError
from .transient_relaxation import Groups, share, with_factors
from .window_relaxation import weighted_factors

_ROUNDED = 1e-12  # lowers the shares of a price, against rounding up
_MAX_WAYS = 64  # to choose one stream of every window in a segment
_MAX_COLUMNS = 1 << 27  # numbers in the columns of a segment's tables: 1 GiB


def blocks_of(network: Network) -> tuple[frozenset[int], ...]:
    """The variables of switches and windows outside of chains, with private neighbours; adjacent blocks are merged.

    What a chain reads is in no block.
    """
    chained = {v for c in network.chains for v in (*c.boundaries, *c.reads, *(v for copy in c.copies for v in copy))}
    near: dict[int, set[int]] = {v: set() for v in range(len(network.variables))}
    for term in network.terms():
        for v in term.scope:
            near[v].update(term.scope)
    found: list[set[int]] = []
    parts = [{s.variable, *s.variables} - chained for s in network.switches if s.variable not in chained]
    for window in network.windows:
        part = {*window.variables} - chained
        for edge in (network.edges[k] for k in window.edges):
            if not part & {edge.u, edge.v}:
                part.update(sorted({edge.u, edge.v} - chained)[:1])
        parts += [part] if part else []
    for block in parts:
        around = set[int]().union(*(near[v] for v in block)) - block - chained
        while private := {v for v in around if near[v] <= block | {v}}:
            block |= private
            around -= private
        touching = [b for b in found if any(near[v] & b for v in block)]
        found = [b for b in found if b not in touching] + [block.union(*touching)]
    return tuple(frozenset(b) for b in found)


def list_segments(
    circuit: Circuit, groups: Groups, weights: Weights, bounds: LabelBounds, max_tau: int
) -> "SegmentLists":
    """The labels of the segments of a circuit relaxed over `groups`, or of one without extras if there are none.

    Lists the solutions within the bounds of transient use up to `max_tau`; the bounds are of the circuit in which
    `weights` stand for windows. Raises TooManyError beyond the limit of labels in a slot, TooWideError for a window
    that is in no segment.
    """
    price = bounds.price.tolist()
    column, extra_prices = _extra_columns(circuit, groups, price)
    rows = _rows(circuit, groups)
    use_prices, extras = [*([sum(price[:rows])] if rows else []), *price[rows:]], len(extra_prices)
    wide = _widened(circuit, groups, column, extras)
    prices = use_prices + extra_prices
    width, tops = len(use_prices), (*wide.copies, *wide.blocks)
    max_use = np.array([np.inf] * width + [max_tau] * extras)
    wider = LabelBounds(np.array(prices), bounds.max_total + 1.0, bounds.limit, bounds.until, max_use, bounds.most_work)
    if not weights:
        listing = enumerate_labels(wide, wider, tops)
        return SegmentLists(
            listing, tuple(_segment(listing, top, width, np.arange(len(listing.slots[top]))) for top in tops)
        )
    slots, segments = dict[int, Labels](), []
    listed = set[int]()
    for top in tops:
        inside = {slot for slot in wide.below([top]) if slot < len(wide.factors)}
        listed |= inside
        one, more = with_columns(wide, inside, weights)
        price = np.concatenate([wider.price, more])
        most = replace(wider, price=price, use=np.concatenate([max_use, np.full(len(more), np.inf)]))
        listing = enumerate_labels(one, most, (top,))
        slots |= listing.slots
        segments.append(_folded(listing, top, len(more), width, most))
    if any(f.streams for slot, f in enumerate(wide.factors) if slot not in listed):
        raise TooWideError("a window outside of segments")
    return SegmentLists(Listing(wide, slots, {}), tuple(segments))


def _segment(listing: Listing, top: int, width: int, kept: Ints) -> "SegmentLabels":
    """The labels `kept` of a segment without windows; columns of use from `width` on are transient."""
    labels = listing.slots[top].take(kept)
    ends, extra = listing.circuit.bucket(top).kept, labels.use[:, width:].max(axis=1, initial=0)
    return SegmentLabels(top, ends, labels.at, labels.time, labels.use[:, :width], extra=extra, listed=kept)


def _folded(listing: Listing, top: int, columns: int, width: int, bounds: LabelBounds) -> "SegmentLabels":
    """The labels of a segment whose last columns of use are those of `with_columns`, the largest of which is time;
    without those dominated then, or beyond the bounds."""
    labels = listing.slots[top]
    rest = labels.use.shape[1] - columns
    time = labels.time + labels.use[:, rest:].max(axis=1, initial=0 if not columns else np.iinfo(np.int64).min)
    folded = Labels(labels.at, time, labels.use[:, :rest], np.arange(len(labels))[None])
    folded = folded.take(np.flatnonzero(folded.reduced(bounds.price[:rest]) + listing.rest[top] <= bounds.max_total))
    dims = listing.circuit.bucket(top).dims[1:]
    folded = nondominated(folded, list(range(len(dims))), dims)
    extra = folded.use[:, width:].max(axis=1, initial=0)
    ends = listing.circuit.bucket(top).kept
    return SegmentLabels(top, ends, folded.at, folded.time, folded.use[:, :width], extra=extra, listed=folded.origin[0])


def with_columns(circuit: Circuit, inside: AbstractSet[int], weights: Weights) -> tuple[Circuit, list[float]]:
    """The circuit in which the factors `inside` have a column of use for each way to choose one stream of every window
    of theirs, and each column's weight; other windows are weighted.

    A column holds the cost and the chosen streams: the sum of the longest streams is the largest column. One solution
    of a part of the segment is then no worse than another, whatever is outside, if and only if all columns are less.
    Raises TooWideError for too many windows, TooManyError for tables too large.
    """
    counts = {w: len(table) for slot in sorted(inside) for w, table in circuit.factors[slot].streams}
    if not counts:
        return circuit.with_cheaper(tuple(weighted_factors(circuit.factors, weights))), []
    if prod(counts.values()) > _MAX_WAYS:
        raise TooWideError(f"{len(counts)} windows in one segment")
    ways = list(product(*(range(k) for k in counts.values())))
    place = {w: n for n, w in enumerate(counts)}
    price = [prod(weights[w][k] for w, k in zip(counts, way, strict=True)) for way in ways]
    known, count = dict[tuple[object, ...], tuple[Floats, Floats]](), len(circuit.network.capacities)

    def table_of(f: Factor) -> tuple[object, ...]:
        return id(f.use), id(f.time), *(x for w, t in f.streams for x in (w, id(t)))

    made = {
        table_of(f) if slot in inside else slot: f.time.size
        for slot, f in enumerate(circuit.factors)
        if slot in inside or f.use is not None
    }
    if (columns := (count + len(ways)) * sum(made.values())) > _MAX_COLUMNS:
        raise TooManyError(f"{columns} numbers in columns of streams")

    def widened(f: Factor) -> Floats:
        """Its use, with further columns of zeros."""
        use = np.zeros((*f.time.shape, count + len(ways)))
        if f.use is not None:
            use[..., :count] = f.use
        return use

    def listed(slot: int, f: Factor) -> Factor:
        if slot not in inside:
            return f if f.use is None else replace(f, use=widened(f))
        key = table_of(f)
        if key not in known:
            use, finite = widened(f), np.where(f.time < np.inf, f.time, 0.0)
            for n, way in enumerate(ways):
                use[..., count + n] = finite + sum(table[way[place[w]]] for w, table in f.streams)
            known[key] = np.where(f.time < np.inf, 0.0, np.inf), use
        time, use = known[key]
        return replace(f, time=time, use=use, streams=())

    capacities = (*circuit.network.capacities, *[0] * len(ways))
    outside = iter(weighted_factors((f for slot, f in enumerate(circuit.factors) if slot not in inside), weights))
    factors = [listed(slot, f if slot in inside else next(outside)) for slot, f in enumerate(circuit.factors)]
    return with_factors(circuit, capacities, factors), price


def _extra_columns(circuit: Circuit, groups: Groups, price: Sequence[float]) -> tuple[dict[int, int], list[float]]:
    """The column of each switch's transient use, distinct within a segment, and the price per byte of each column."""
    network = circuit.network
    if all(f.extra is None for f in circuit.factors):
        return {}, []
    column, prices = dict[int, int](), list[tuple[int, float]]()  # the group of each column, and its price
    for part in (*(frozenset(chain.copies[0]) for chain in network.chains), *blocks_of(network)):
        taken = set[int]()
        for z in (s.variable for s in network.switches if s.variable in part):
            group = next((g for g, group in enumerate(groups) if z in group), -1)
            free = next((k for k, (g, _) in enumerate(prices) if g == group and k not in taken), len(prices))
            if free == len(prices):
                prices.append((group, price[group] / len(groups[group]) * (1 - _ROUNDED) if group >= 0 else 0.0))
            taken.add(free)
            column[z] = free
    return column, [p for _, p in prices]


def _widened(circuit: Circuit, groups: Groups, column: Mapping[int, int], extras: int) -> Circuit:
    """The circuit with its unrelaxed use, then a column for the transient use of each switch of a segment."""
    rows = _rows(circuit, groups)
    once = min(rows, 1)

    def widened(f: Factor) -> Factor:
        if f.use is None and f.extra is None:
            return f
        used = np.zeros((*f.time.shape, count)) if f.use is None else f.use
        use = np.concatenate([used[..., :once], used[..., rows:], np.zeros((*f.time.shape, extras))], axis=-1)
        if f.extra is not None:
            if groups and f.scope[0] in groups[0]:
                use[..., 0] -= share(f, groups[0])
            use[..., count - rows + once + column[f.scope[0]]] = f.extra
        return replace(f, use=use)

    before = circuit.network.capacities
    count = len(before)
    capacities = (*before[:once], *before[rows:], *[0] * extras)
    return with_factors(circuit, capacities, [widened(f) for f in circuit.factors])


def _rows(circuit: Circuit, groups: Groups) -> int:
    """How many rows stand for capacity 0."""
    return len(groups) or min(1, len(circuit.network.capacities))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLabels:
    """N labels: options `at` [E, N] of the E variables `ends` around it, `time` [N], `use` [N, R], `extra` [N].

    `listed` [N] are their numbers in the listing.
    """

    slot: int
    ends: tuple[int, ...]
    at: Ints
    time: Ints
    use: Ints
    extra: Ints
    listed: Ints

    def variable(self, labels: Ints) -> Variable:
        """The variable that chooses among these labels."""
        return Variable("labels", self.time[labels], self.use[labels])

    def link(self, end: int, options: int, labels: Ints) -> Table:
        """[options, labels]: 0 where an end's option is the label's, else INFINITE."""
        return np.where(self.at[end, labels] == np.arange(options)[:, None], 0, INFINITE).astype(np.int64)


@dataclass(frozen=True, eq=False)
class SegmentLists:
    """The label lists of a circuit's segments: of the first copy of each chain, then of the blocks.

    `order` lists the variables of their network, in the circuit's order: (v, -1, 0) is the circuit's variable v,
    (_, k, i) the label of segment k in copy i of its chain.
    """

    listing: Listing
    segments: tuple[SegmentLabels, ...]

    @cached_property
    def levels(self) -> list[int]:
        """The transient uses of labels, ascending."""
        found: list[int] = np.unique(np.concatenate([s.extra for s in self.segments])).tolist()
        return found

    @cached_property
    def order(self) -> list[tuple[int, int, int]]:
        network, ends = self.listing.circuit.network, {v for s in self.segments for v in s.ends}
        alone = ends.union(*(f.scope for f in self._rest), *(chain.boundaries for chain in network.chains))
        found = [(v, -1, 0) for v in alone]
        for k, segment in enumerate(self.segments):
            copies = network.chains[k].copies if k < len(network.chains) else (segment.ends,)
            found += [(min(copy, default=-1), k, i) for i, copy in enumerate(copies)]
        return sorted(found)

    @cached_property
    def _rest(self) -> list[Factor]:
        """The factors outside of segments."""
        circuit = self.listing.circuit
        inside = circuit.below(segment.slot for segment in self.segments)
        return [f for slot, f in enumerate(circuit.factors) if slot not in inside]

    @cached_property
    def _outside(self) -> tuple[dict[int, Variable], list[Edge]]:
        """The variables outside of segments, by number in the circuit's network, and their edges."""
        count = self.segments[0].use.shape[1]
        variables = {}
        for v in (v for v, k, _ in self.order if k < 0):
            size = self._size(v)
            zeros = np.zeros(size, np.int64), np.zeros((size, count), np.int64)
            variables[v] = Variable(self.listing.circuit.network.variables[v].name, *zeros)
        edges = []
        for f in self._rest:
            cost = np.where(f.time < np.inf, f.time, INFINITE).astype(np.int64)
            use = np.zeros((*cost.shape, count)) if f.use is None else f.use[..., :count]
            if len(f.scope) == 1:
                variables[f.scope[0]] = replace(variables[f.scope[0]], cost=cost, use=use.astype(np.int64))
            else:
                u, v = f.scope
                edges.append(Edge(u, v, cost, None if f.use is None else use.astype(np.int64)))
        return variables, edges

    def _size(self, variable: int) -> int:
        circuit = self.listing.circuit
        return len(circuit.kept[circuit.domain[variable]])

    def up_to(self, tau: int) -> list[Ints] | None:
        """The labels of each segment of transient use up to `tau`; None if a segment has none."""
        labels = [np.flatnonzero(s.extra <= tau) for s in self.segments]
        return labels if all(map(len, labels)) else None

    def network(self, labels: Sequence[Ints], capacities: tuple[int, ...]) -> Network:
        """The network over these labels of each segment."""
        whole, (outside, edges) = self.listing.circuit.network, self._outside
        at = {place if place[1] >= 0 else place[0]: n for n, place in enumerate(self.order)}
        own = [s.variable(kept) for s, kept in zip(self.segments, labels, strict=True)]
        variables = tuple(outside[v] if k < 0 else own[k] for v, k, _ in self.order)
        edges = [replace(e, u=at[e.u], v=at[e.v]) for e in edges]
        for k, (segment, kept) in enumerate(zip(self.segments, labels, strict=True)):
            links = [segment.link(j, self._size(v), kept) for j, v in enumerate(segment.ends)]
            for place in (place for place in self.order if place[1] == k):
                i = place[2]
                ends = whole.chains[k].around(i) if k < len(whole.chains) else segment.ends
                edges += [Edge(at[v], at[place], link) for v, link in zip(ends, links, strict=True)]
        chains = tuple(
            Chain(
                tuple(at[b] for b in chain.boundaries),
                tuple((at[place],) for place in self.order if place[1] == k),
                tuple(at[r] for r in chain.reads),
            )
            for k, chain in enumerate(whole.chains)
        )
        return Network(variables, tuple(edges), capacities, whole.constant, chains)

    def assemble(self, labels: Sequence[Ints], assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the circuit's network for one of `network`."""
        given, starts = dict[int, int](), list[tuple[int, int, int]]()
        for (v, k, i), x in zip(self.order, assignment, strict=True):
            if k < 0:
                given[v] = x
            else:
                starts.append((self.segments[k].slot, int(self.segments[k].listed[labels[k][x]]), i))
        return self.listing.circuit.assemble(starts, self.listing.choose, given)
