"""Repetition: equal layers of a model are equal copies of a chain, so that a solver solves one and counts the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .network import Chain, Network

LONGEST_PERIOD = 12
"""Cuts in one copy at the most (a transformer layer has two to four)."""


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
    inside = _inside_switches(network, order)
    cuts = [n for n, i in enumerate(order) if pieces[i].cut and n not in inside]
    if len(cuts) < 3:
        return ()
    segments = [order[a + 1 : b] for a, b in pairwise(cuts)]
    signatures = _signatures(network, order, cuts, segments)
    chains: list[Chain] = []
    _search(network, [order[c] for c in cuts], segments, signatures, 0, len(segments), chains)
    return tuple(sorted(chains, key=lambda c: c.boundaries))


def _inside_switches(network: Network, order: Sequence[int]) -> set[int]:
    """The places in the order within the reach of a switch, which no cut may split."""
    place = {v: n for n, v in enumerate(order)}
    reaches = ([place[v] for v in (s.variable, *s.variables) if v in place] for s in network.switches)
    return {n for reach in reaches if reach for n in range(min(reach), max(reach) + 1)}


def _search(
    network: Network,
    cuts: list[int],
    segments: list[list[int]],
    signatures: list[int],
    start: int,
    stop: int,
    chains: list[Chain],
) -> None:
    """Take the run that covers most variables between two segments, then look on both sides of it."""
    best = (0, 0, 0, 0)  # variables saved, first segment, period, copies
    for period in range(1, min(LONGEST_PERIOD, (stop - start) // 2) + 1):
        run = 0
        for i in range(start, stop - period + 1):
            run = run + 1 if i + period < stop and signatures[i] == signatures[i + period] else 0
            copies = run // period + 1
            if run and run % period == 0 and copies > 1:
                first = i + 1 - run
                covered = sum(len(s) + 1 for s in segments[first : first + period * (copies - 1)])
                if covered > best[0] and _same_domain(network, cuts, first, period, copies):
                    best = (covered, first, period, copies)
    if not best[0]:
        return
    _, first, period, copies = best
    boundaries = tuple(cuts[first + period * c] for c in range(copies + 1))
    inside = tuple(
        tuple(
            v
            for s in range(first + period * c, first + period * (c + 1))
            for v in _with_cut(segments, cuts, s, first, period)
        )
        for c in range(copies)
    )
    chains.append(Chain(boundaries, inside))
    _search(network, cuts, segments, signatures, start, first, chains)
    _search(network, cuts, segments, signatures, first + period * copies, stop, chains)


def _with_cut(segments: list[list[int]], cuts: list[int], segment: int, first: int, period: int) -> list[int]:
    """A segment's variables, after the cut before it where that lies inside a copy."""
    return segments[segment] if (segment - first) % period == 0 else [cuts[segment], *segments[segment]]


def _same_domain(network: Network, cuts: list[int], first: int, period: int, copies: int) -> bool:
    return len({len(network.variables[cuts[first + period * c]].cost) for c in range(copies + 1)}) == 1


def _signatures(network: Network, order: list[int], cuts: list[int], segments: list[list[int]]) -> list[int]:
    """Equal numbers for equal segments: same tables in the same places. One that a shared variable touches is alone."""

    def same(table: npt.NDArray[np.int64] | None) -> int:
        return id(table)  # the encoder makes one object of equal tables

    segment_of: dict[int, int] = {v: s for s, segment in enumerate(segments) for v in segment}
    place = {v: p for segment in segments for p, v in enumerate(segment)}
    cut_number = {order[c]: n for n, c in enumerate(cuts)}
    parts: list[list[object]] = [[] for _ in segments]
    for term in network.terms():
        tables = same(term.cost), same(term.use), same(term.extra)
        inside = {segment_of[v] for v in term.scope if v in segment_of}
        if not inside:
            if len(term.scope) > 1 and all(v in cut_number for v in term.scope):
                s = min(cut_number[v] for v in term.scope)
                parts[s].append(("across", *tables))
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
            parts[s].append((*ends, *tables))
    numbers: dict[object, int] = {}
    return [numbers.setdefault(tuple(part), len(numbers)) for part in parts]
