"""Repetition: equal layers of a model are equal copies of a chain, so that a solver solves one and counts the rest."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from .network import Chain, Network, WindowStreams, streams_by_part

LONGEST_PERIOD = 12
"""Maximum number of cuts in one copy (a transformer layer has two to four)."""

MOST_AROUND = 1 << 24
"""Most entries of a table over the boundaries of a copy and what all copies read: that is multiplied by itself."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a variable stands: its place in the graph's order, whether the graph can be cut there, whether it is read
    from several places that cuts would separate (a tied weight).

    `beside`: a variable before the cut that is read behind it, too, as decoder layers read what the encoder computed.
    """

    order: float
    cut: bool = False
    shared: bool = False
    beside: int | None = None


def find_chains(network: Network, pieces: Sequence[Position]) -> tuple[Chain, ...]:
    """Cut the network at its cuts and name the longest runs of equal segments, largest first, that do not overlap."""
    order = sorted((i for i, p in enumerate(pieces) if not p.shared), key=lambda i: pieces[i].order)
    inside = _inside_switches(network, order) | _inside_windows(network, order, {p.beside for p in pieces})
    cuts = [n for n, i in enumerate(order) if pieces[i].cut and n not in inside]
    if len(cuts) < 3:
        return ()
    segments = [order[a + 1 : b] for a, b in pairwise(cuts)]
    beside = [pieces[order[n]].beside for n in cuts]
    signatures, reads = _signatures(network, [order[c] for c in cuts], segments, beside)
    search = _Search(network, [order[c] for c in cuts], segments, signatures, reads)
    return tuple(sorted(search.chains(0, len(segments)), key=lambda c: c.boundaries))


def _inside_switches(network: Network, order: Sequence[int]) -> set[int]:
    """The places in the order within the reach of a switch, which no cut may split."""
    place = {v: n for n, v in enumerate(order)}
    reaches = ([place[v] for v in (s.variable, *s.variables) if v in place] for s in network.switches)
    return {n for reach in reaches if reach for n in range(min(reach), max(reach) + 1)}


def _inside_windows(network: Network, order: Sequence[int], beside: Set[int | None]) -> set[int]:
    """The places in the order within the reach of a window; edges of it may end at a cut, its variables are none.

    They may also lead to what is read `beside` cuts.
    """
    place = {v: n for n, v in enumerate(order)}
    found = set[int]()
    for window in network.windows:
        found.update(place[v] for v in window.variables if v in place)
        ends = (v for k in window.edges for v in (network.edges[k].u, network.edges[k].v))
        reach = [place[v] for v in (*window.variables, *ends) if v in place and v not in beside]
        found.update(range(min(reach, default=0) + 1, max(reach, default=0)))
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """The segments between cuts, with equal `signatures` for equal ones, and what each reads from farther away."""

    network: Network
    cuts: list[int]
    segments: list[list[int]]
    signatures: list[int]
    reads: list[set[int]]

    def chains(self, start: int, stop: int) -> list[Chain]:
        """The run that covers most variables between two segments, then those on both sides of it."""
        first, period, copies = self._best(start, stop)
        if not copies:
            return []
        boundaries = tuple(self.cuts[first + period * c] for c in range(copies + 1))
        starts = (first + period * c for c in range(copies))
        inside = tuple(tuple(v for s in range(at, at + period) for v in self._with_cut(s, at)) for at in starts)
        left, right = self.chains(start, first), self.chains(first + period * copies, stop)
        return [Chain(boundaries, inside, self._reads(first, period)), *left, *right]

    def _best(self, start: int, stop: int) -> tuple[int, int, int]:
        """First segment, period and copies of the run that covers most variables; zeros if none repeats."""
        best = (0, 0, 0, 0)  # variables covered first
        signatures = self.signatures
        for period in range(1, min(LONGEST_PERIOD, (stop - start) // 2) + 1):
            run = 0
            for i in range(start, stop - period + 1):
                run = run + 1 if i + period < stop and signatures[i] == signatures[i + period] else 0
                copies = run // period + 1
                if run and run % period == 0 and copies > 1:
                    first = i + 1 - run
                    covered = sum(len(s) + 1 for s in self.segments[first : first + period * (copies - 1)])
                    if covered > best[0] and self._fits(first, period, copies):
                        best = (covered, first, period, copies)
        return best[1:]

    def _with_cut(self, segment: int, first: int) -> list[int]:
        """A segment's variables, after the cut before it unless that is the boundary at `first`."""
        return self.segments[segment] if segment == first else [self.cuts[segment], *self.segments[segment]]

    def _reads(self, first: int, period: int) -> tuple[int, ...]:
        """What a copy reads besides the boundaries before and after it."""
        return tuple(sorted(set[int]().union(*self.reads[first : first + period])))

    def _fits(self, first: int, period: int, copies: int) -> bool:
        """True if boundaries have one domain, and tables over what is around a copy are not too large."""
        boundaries, reads = [self.cuts[first + period * c] for c in range(copies + 1)], self._reads(first, period)
        sizes = {len(self.network.variables[v].cost) for v in boundaries}
        around = prod(len(self.network.variables[v].cost) for v in (*boundaries[:2], *reads))
        return len(sizes) == 1 and (not reads or around <= MOST_AROUND)


def _signatures(
    network: Network, cuts: list[int], segments: list[list[int]], beside: Sequence[int | None]
) -> tuple[list[int], list[set[int]]]:
    """Equal numbers for equal segments: same tables in the same places; and what each reads beside a cut around it.

    A segment that any other variable touches is alone.
    """

    def same(table: npt.NDArray[np.int64] | None) -> int:
        return id(table)  # the encoder makes one object of equal tables

    segment_of: dict[int, int] = {v: s for s, segment in enumerate(segments) for v in segment}
    place = {v: p for segment in segments for p, v in enumerate(segment)}
    cut_number = {v: n for n, v in enumerate(cuts)}
    parts: list[list[object]] = [[] for _ in segments]
    reads: list[set[int]] = [set() for _ in segments]
    of_variable, of_edge = streams_by_part(network)
    streams = [of_variable.get(v, ()) for v in range(len(network.variables))]
    streams += [of_edge.get(k, ()) for k in range(len(network.edges))]
    first: dict[int, int] = {}  # window of each segment, from which its windows are numbered
    for w, window in enumerate(network.windows):
        for v in (*window.variables, *(v for k in window.edges for v in (network.edges[k].u, network.edges[k].v))):
            if v in segment_of:
                first.setdefault(segment_of[v], w)

    def numbered(own: WindowStreams, s: int) -> tuple[object, ...]:
        return tuple((w - first.get(s, 0), same(table)) for w, table in own)

    def end(v: int, s: int) -> object:
        """How segment s sees a variable of a term."""
        if v in cut_number and cut_number[v] - s in (0, 1):
            return "cut", cut_number[v] - s
        if segment_of.get(v) == s:
            return place[v]
        if cut_number.get(v, len(parts)) < len(parts):
            parts[cut_number[v]].append(("read from afar", v))  # inside of no chain: others touch this boundary
        if v in beside[s : s + 2]:
            reads[s].add(v)
            return "read", v
        return "other", v, s  # this segment has no equal

    for term, own in zip(network.terms(), streams, strict=True):
        tables: tuple[object, ...] = same(term.cost), same(term.use), same(term.extra)
        inside = {segment_of[v] for v in term.scope if v in segment_of}
        if not inside and len(term.scope) > 1 and all(v in cut_number for v in term.scope):
            s = min(cut_number[v] for v in term.scope)
            parts[s].append(("across", *tables, *numbered(own, s)))
        for s in inside:
            parts[s].append((*(end(v, s) for v in term.scope), *tables, *numbered(own, s)))
    numbers: dict[object, int] = {}
    return [numbers.setdefault(tuple(part), len(numbers)) for part in parts], reads
