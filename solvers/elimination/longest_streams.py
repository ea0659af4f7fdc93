"""Streams that are never the longest of their window, among the solutions that a circuit still has.

Near an incumbent, one stream of a window (a layer's kernels, say) is often the longest whatever is chosen:

    min over the segment of  S_wk' - S_wk  ≥ 0     ⇒     max_k S_wk  does not change without stream k

by one elimination of the difference for every two streams, of all segments at once. A window of which one stream is
left is an ordinary cost, so that label lists need no columns for it, and are as short as without windows.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import numpy as np

from .circuit import Circuit, Weights
from .factors import Factor
from .kernels import Floats, Ints


def without_shorter_streams(circuit: Circuit, weights: Weights, until: float) -> tuple[Circuit, Weights]:
    """The circuit without streams that are nowhere the longest, and the weights of what is left.

    Windows that do not lie in one segment, a copy of a chain or a block, stay whole. The weights of every window still
    add up to one, so that the weighted sum stays a lower bound.
    """
    segments = [(top, _windows(circuit, top)) for top in (*circuit.copies, *circuit.blocks)]
    counts = {w: len(table) for f in circuit.factors for w, table in f.streams}
    left = {w: [*range(k)] for w, k in counts.items()}
    for n in range(max((len(own) for _, own in segments), default=0)):
        among = {own[n]: top for top, own in segments if n < len(own)}
        for short, long in permutations(range(max(counts[w] for w in among)), 2):
            asked = {w: top for w, top in among.items() if {short, long} <= {*left[w]}}
            for w in _never_longer(circuit, asked, short, long, until) if asked else ():
                left[w].remove(short)
    return with_streams(circuit, weights, left)


def with_streams(circuit: Circuit, weights: Weights, left: Mapping[int, list[int]]) -> tuple[Circuit, Weights]:
    """The circuit with the streams `left` of every window, which bounds it, and their weights."""
    found = circuit.with_cheaper(_factors(circuit, left))
    return found, {w: _moved(weights[w], own) for w, own in left.items() if len(own) > 1}


def _windows(circuit: Circuit, top: int) -> list[int]:
    """The windows of which all factors are below a slot."""
    inside = circuit.below([top])
    own = {w for slot, f in enumerate(circuit.factors) if slot in inside for w, _ in f.streams}
    others = {w for slot, f in enumerate(circuit.factors) if slot not in inside for w, _ in f.streams}
    return sorted(own - others)


def _never_longer(circuit: Circuit, asked: Mapping[int, int], short: int, long: int, until: float) -> list[int]:
    """The windows whose stream `short` never exceeds `long` below the slot that each is `asked` at."""
    known: dict[tuple[int, ...], Floats] = {}  # equal layers share tables, and so the work

    def difference(f: Factor) -> Factor:
        own = [table for w, table in f.streams if w in asked]
        key = id(f.time), *map(id, own)
        if key not in known:
            more = sum((table[long] - table[short] for table in own), np.zeros(f.time.shape))
            known[key] = np.where(f.time < np.inf, more, np.inf)
        return replace(f, time=known[key], use=None, extra=None, streams=())

    factors = tuple(map(difference, circuit.factors))
    differing = replace(circuit, factors=factors, leaves=tuple(f.narrow() for f in factors))
    slots = differing.forward(differing.tables(1, ()), until)
    return [w for w, top in asked.items() if slots[top].min(initial=np.inf) >= 0]


def _factors(circuit: Circuit, left: Mapping[int, list[int]]) -> tuple[Factor, ...]:
    """The circuit's factors with the streams `left`; the only one of a window is a cost."""
    tables: dict[tuple[int, tuple[int, ...]], Ints] = {}
    times: dict[tuple[int, ...], Floats] = {}

    def taken(f: Factor) -> Factor:
        streams: list[tuple[int, Ints]] = []
        alone: list[tuple[int, Ints]] = []
        for w, table in f.streams:
            if (part := (id(table), tuple(left[w]))) not in tables:
                tables[part] = table if len(left[w]) == len(table) else table[left[w]]
            (streams if len(left[w]) > 1 else alone).append((w, tables[part]))
        key = id(f.time), *(id(table) for _, table in alone)
        if key not in times:
            times[key] = sum((table[0] for _, table in alone), f.time) if alone else f.time
        return replace(f, time=times[key], streams=tuple(streams))

    return tuple(map(taken, circuit.factors))


def _moved(weights: tuple[float, ...], left: list[int]) -> tuple[float, ...]:
    """The weights of the streams `left`, the largest of which gets those of the others."""
    found = [weights[k] for k in left]
    at = int(np.argmax(found))
    found[at] += sum(weights) - sum(found)
    return tuple(found)
