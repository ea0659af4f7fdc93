"""Fewer micro-batches in place of a loop's: a device repeats itself, and repetitions in the middle are left out.

In the middle of a schedule the instructions of a device come again after some places, for later micro-batches. What is
written for some of these repetitions is written for all: statements are made and rolled up for few micro-batches, and
the loops over them get the turns that were left out. The numbers of later micro-batches are then too small, by
`Number.late`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....formulation.spacetime.repetition import Numbers, Run, runs

KEPT = 4
"""Repetitions that are kept before those left out, and after them."""

LONGEST_SHIFT = 8
"""Most micro-batches from one repetition to the next: interleaved stages take several in turn."""


@dataclass(frozen=True, slots=True)
class Short:
    """The instructions of a device, some repetitions left out: what they are and, numbered anew, their micro-batches.

    `count`: micro-batches that are left; `late`: how many are left out. `since`: by instruction that is repeated, the
    micro-batch from which on they are. `runs`: the repetitions as far as they are kept before the others.
    """

    own: Numbers
    micros: Numbers
    count: int
    late: int = 0
    since: Mapping[int, int] = field(default_factory=dict)
    runs: Sequence[Run] = ()

    def proved(self, clean: Iterable[int]) -> bool:
        """True if what is written repeats as the instructions do.

        `clean`: the places before which nothing was put off. Between two of them in one run, a repetition apart, the
        writing begins anew from equal instructions, as between the next two, which may have been left out.
        """
        found = {*clean}
        return all(
            any(x in found and x + run.period in found for x in range(run.start, run.stop - run.period + 1))
            for run in self.runs
        )


def shortened(own: Numbers, micros: Numbers, count: int, repeated: Numbers) -> Short:
    """The instructions `own` of a device for `micros`, without most repetitions.

    `repeated`: by instruction, whether it stands for all micro-batches between the first and the last. Nothing is left
    out unless all of these repeat.
    """
    for shift in range(1, LONGEST_SHIFT + 1):
        found = [run for run in runs(own, micros, shift, count) if run.turns > 2 * KEPT]
        inside = [np.unique(own[run.start : run.start + run.period]) for run in found]
        if inside and np.array_equal(np.sort(np.concatenate(inside)), np.flatnonzero(repeated)):
            return _without(own, micros, count, (shift, found), repeated)
    return Short(own, micros, count)


def _without(own: Numbers, micros: Numbers, count: int, found: tuple[int, Sequence[Run]], repeated: Numbers) -> Short:
    """The instructions without as many repetitions as all runs can spare."""
    shift, longest = found
    spared = min(run.turns for run in longest) - 2 * KEPT
    late, kept, since, short = spared * shift, np.ones(len(own), dtype=bool), dict[int, int](), micros.copy()
    for run in longest:
        cut = run.start + KEPT * run.period + _offset(micros, run)
        stop = cut + spared * run.period
        kept[cut:stop] = False
        inside = np.isin(own, own[run.start : run.start + run.period])
        inside[:stop] = False
        short[inside] -= late
        for place in np.flatnonzero(inside).tolist()[::-1]:
            since[int(own[place])] = int(short[place])
    last = (micros == count - 1) & ~repeated[own]
    short[last] -= late
    since |= dict.fromkeys(own[last].tolist(), count - 1 - late)
    where = np.cumsum(kept) - 1
    begins = [int(where[run.start]) for run in longest]
    left = [Run(start, start + KEPT * run.period, run.period) for start, run in zip(begins, longest, strict=True)]
    return Short(own[kept], short[kept], count - late, late, since, left)


def _offset(micros: Numbers, run: Run) -> int:
    """The place in a repetition around which instructions have the fewest micro-batches in common: no loop is cut."""

    def cut(at: int) -> int:
        before, after = micros[max(0, at - half) : at], micros[at : at + half]
        return int(np.minimum(np.bincount(before, minlength=count), np.bincount(after, minlength=count)).sum())

    half, count, start = run.period // 2 + 1, int(micros.max()) + 1, run.start + run.period
    begins = start + np.flatnonzero(np.diff(micros[start - 1 : start + run.period]))
    return min(begins.tolist(), key=cut, default=start) - start
