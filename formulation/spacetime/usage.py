"""Memory of a device over a simulated step, from the lifetimes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .lifetimes import Lifetimes
from .looped import Looped
from .repetition import Numbers
from .times import Times


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a device: bytes by kind (`MEMORY`) at the peak, its time, and total bytes over time."""

    peak: Mapping[str, int]
    peak_ns: int
    times: Numbers
    totals: Numbers  # from each of the times on

    @property
    def over_time(self) -> tuple[tuple[int, int], ...]:
        """(from ns, bytes)."""
        return tuple(zip(self.times.tolist(), self.totals.tolist(), strict=True))

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


class Changes(NamedTuple):
    """Allocations and frees in order: times, bytes (negative if freed), and which of the allocations of a loop.

    At equal times they follow instruction order; within one, allocations precede frees. `numbers`: by allocation, its
    span in the template; `micros`: its micro-batch, if it belongs to one.
    """

    times: Numbers
    sizes: Numbers
    frees: Numbers
    spans: Numbers
    numbers: Numbers
    micros: Sequence[int | None]


def changes(looped: Looped, device: int, times: Times, living: Lifetimes) -> Changes:
    at = np.full((len(looped.program.devices[device]), looped.count), -1, dtype=np.int64)
    at[times.places, times.micros] = np.arange(len(times.places))
    of = [looped.of[step] if looped.of else None for step in looped.program.steps[device]]
    firsts, lasts, sizes, numbers, micros = [], [], [], [], list[int | None]()
    for number, span in enumerate(living.spans):
        touched = list(dict.fromkeys(span.touched))
        first, last, own = _ends(looped, at, times, [(place, of[place]) for place in touched])
        firsts.append(first)
        lasts.append(last)
        sizes.append(np.full(len(first), span.size_bytes))
        numbers.append(np.full(len(first), number))
        micros += own
    none = np.zeros(0, dtype=np.int64)
    first, last, size, span_of = (np.concatenate(x) if x else none for x in (firsts, lasts, sizes, numbers))
    allocation = np.arange(len(first))
    begins = np.minimum(times.reached[first], times.starts[first])  # weights travel before the device gets to them
    ns = np.concatenate((begins, times.ends[last]))
    place, frees = np.concatenate((np.minimum(first, last), last)), np.repeat((0, 1), len(first))
    size, allocation = np.concatenate((size, -size)), np.concatenate((allocation, allocation))
    order = np.lexsort((allocation, size, frees, place, ns))
    return Changes(ns[order], size[order], frees[order], allocation[order], span_of, micros)


def _ends(
    looped: Looped, at: Numbers, times: Times, touched: Sequence[tuple[int, int | None]]
) -> tuple[Numbers, Numbers, Sequence[int | None]]:
    """The first and last instructions that touch an allocation: of every micro-batch, if it belongs to one.

    Also these micro-batches. `touched`: places in the template with their micro-batches there.
    """
    micros = {micro for _, micro in touched}
    which: Sequence[int | None] = (None,)
    if len(micros) == 1 and looped.loop is not None and (micro := micros.pop()) is not None:
        numbers = looped.loop.stands_for(micro)
        own = np.array([at[place, numbers.start : numbers.stop] for place, _ in touched])
        which = numbers
    else:
        parts = []
        for place, micro in touched:
            numbers = range(1) if micro is None or looped.loop is None else looped.loop.stands_for(micro)
            parts.append(at[place, numbers.start : numbers.stop])
        own = np.concatenate(parts)[:, None]
    ends = times.ends[own]
    last = np.where(ends == ends.max(axis=0), own, -1).max(axis=0)
    return own[0], last, which


def usage(looped: Looped, device: int, times: Times, living: Lifetimes) -> Usage:
    """Memory over time."""
    found, now = changes(looped, device, times, living), dict(living.always)
    start = sum(now.values())
    totals = start + np.cumsum(found.sizes)
    peak, peak_ns = dict(now), 0
    if totals.size and totals.max() > start:
        top = int(totals.argmax())
        kinds = list(now)
        code = np.array([kinds.index(span.kind) for span in living.spans])[found.numbers[found.spans[: top + 1]]]
        held = np.bincount(code, weights=found.sizes[: top + 1], minlength=len(kinds))
        peak = {kind: now[kind] + int(more) for kind, more in zip(kinds, held, strict=True)}
        peak_ns = int(found.times[top])
    ns = np.concatenate(([0], found.times))
    kept = np.append(ns[1:] != ns[:-1], True)  # the last of several changes at one time
    return Usage(peak, peak_ns, ns[kept], np.concatenate(([start], totals))[kept])
