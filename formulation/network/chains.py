"""Repetition: equal layers of a model are equal copies of a chain, so that a solver solves one and counts the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .network import Chain, Network, WindowStreams, streams_by_part

LONGEST_PERIOD = 12
"""Maximum number of cuts in one copy (a transformer layer has two to four)."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a variable stands: its place in the graph's order, whether the graph can be cut there, whether it is read
    from several places that cuts would separate (a tied weight)."""

    order: float
    cut: bool = False
    shared: bool = False


def find_chains(network: Network, pieces: Sequence[Position]) -> tuple[Chain, ...]:
    """Cut the network at its cuts and name the longest runs of equal segments, largest first, that do not overlap."""
    order = sorted((i for i, p in enumerate(pieces) if not p.shared), key=lambda i: pieces[i].order)
    inside = _inside_switches(network, order) | _inside_windows(network, order)
    cuts = [n for n, i in enumerate(order) if pieces[i].cut and n not in inside]
    if len(cuts) < 3:
        return ()
    segments = [order[a + 1 : b] for a, b in pairwise(cuts)]
    signatures = _signatures(network, order, cuts, segments)
    search = _Search(network, [order[c] for c in cuts], segments, signatures)
    return tuple(sorted(search.chains(0, len(segments)), key=lambda c: c.boundaries))


def _inside_switches(network: Network, order: Sequence[int]) -> set[int]:
    """The places in the order within the reach of a switch, which no cut may split."""
    place = {v: n for n, v in enumerate(order)}
    reaches = ([place[v] for v in (s.variable, *s.variables) if v in place] for s in network.switches)
    return {n for reach in reaches if reach for n in range(min(reach), max(reach) + 1)}


def _inside_windows(network: Network, order: Sequence[int]) -> set[int]:
    """The places in the order within the reach of a window; edges of it may end at a cut, its variables are none."""
    place = {v: n for n, v in enumerate(order)}
    found = set[int]()
    for window in network.windows:
        found.update(place[v] for v in window.variables if v in place)
        ends = (v for k in window.edges for v in (network.edges[k].u, network.edges[k].v))
        reach = [place[v] for v in (*window.variables, *ends) if v in place]
        found.update(range(min(reach, default=0) + 1, max(reach, default=0)))
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """The segments between cuts, with equal `signatures` for equal ones."""

    network: Network
    cuts: list[int]
    segments: list[list[int]]
    signatures: list[int]

    def chains(self, start: int, stop: int) -> list[Chain]:
        """The run that covers most variables between two segments, then those on both sides of it."""
        first, period, copies = self._best(start, stop)
        if not copies:
            return []
        boundaries = tuple(self.cuts[first + period * c] for c in range(copies + 1))
        starts = (first + period * c for c in range(copies))
        inside = tuple(tuple(v for s in range(at, at + period) for v in self._with_cut(s, at)) for at in starts)
        left, right = self.chains(start, first), self.chains(first + period * copies, stop)
        return [Chain(boundaries, inside), *left, *right]

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
                    if covered > best[0] and self._same_domain(first, period, copies):
                        best = (covered, first, period, copies)
        return best[1:]

    def _with_cut(self, segment: int, first: int) -> list[int]:
        """A segment's variables, after the cut before it unless that is the boundary at `first`."""
        return self.segments[segment] if segment == first else [self.cuts[segment], *self.segments[segment]]

    def _same_domain(self, first: int, period: int, copies: int) -> bool:
        boundaries = (self.cuts[first + period * c] for c in range(copies + 1))
        return len({len(self.network.variables[v].cost) for v in boundaries}) == 1


def _signatures(network: Network, order: list[int], cuts: list[int], segments: list[list[int]]) -> list[int]:
    """Equal numbers for equal segments: same tables in the same places. One that a shared variable touches is alone."""

    def same(table: npt.NDArray[np.int64] | None) -> int:
        return id(table)  # the encoder makes one object of equal tables

    segment_of: dict[int, int] = {v: s for s, segment in enumerate(segments) for v in segment}
    place = {v: p for segment in segments for p, v in enumerate(segment)}
    cut_number = {order[c]: n for n, c in enumerate(cuts)}
    parts: list[list[object]] = [[] for _ in segments]
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

    for term, own in zip(network.terms(), streams, strict=True):
        tables: tuple[object, ...] = same(term.cost), same(term.use), same(term.extra)
        inside = {segment_of[v] for v in term.scope if v in segment_of}
        if not inside:
            if len(term.scope) > 1 and all(v in cut_number for v in term.scope):
                s = min(cut_number[v] for v in term.scope)
                parts[s].append(("across", *tables, *numbered(own, s)))
            continue
        for s in inside:
            ends: list[object] = []
            for v in term.scope:
                if v in cut_number:
                    ends.append(("cut", cut_number[v] - s))
                elif segment_of.get(v) == s:
                    ends.append(place[v])
                else:  # a shared variable: this segment has no equal
                    ends.append(("other", v, s))
            parts[s].append((*ends, *tables, *numbered(own, s)))
    numbers: dict[object, int] = {}
    return [numbers.setdefault(tuple(part), len(numbers)) for part in parts]
