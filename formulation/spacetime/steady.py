"""When simulated devices have come back to the same state, for later micro-batches: what follows comes again, later.

The state of a simulation is when the streams of every device are free, and when registers are ready that are still to
be read. Between two states that are equal but for a shift of time and of micro-batches lies a part of the step that
comes again as often as its events do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .repetition import Numbers, repeated
from .times import Times

TRIED = 3
"""Most repetitions of the events after which a state is looked for again."""


class State(NamedTuple):
    """A simulation between two events.

    `free`: by device and stream; `began`, `inside`: by device, when its window began and which one it is, negative if
    none; `ready`: by row of a register and a micro-batch; `heads`: by device, where its next instruction is.
    """

    free: Numbers
    began: Numbers
    inside: Numbers
    ready: Numbers
    heads: Numbers

    def copy(self) -> State:
        return State(*(own.copy() for own in self))


@dataclass(frozen=True, slots=True)
class Again:
    """What comes again in a step: instructions of devices, from a place to another one, `ns` later each time.

    `micros`: for which later micro-batches; `times`: how often it is left out.
    """

    places: Mapping[int, tuple[int, int]]
    ns: int
    micros: int
    times: int

    def expanded(self, device: int, found: Times, between: NDArray[np.bool_]) -> Times:
        """The times of all instructions; `between`: by place, whether it is of a micro-batch after the first."""
        (start, stop), times = self.places[device], self.times
        reached, starts, ends = (
            repeated(own, start, stop, times, self.ns) for own in (found.reached, found.starts, found.ends)
        )
        micros = repeated(found.micros, start, stop, times, self.micros, between[found.places[stop:]])
        return Times(repeated(found.places, start, stop, times), micros, reached, starts, ends)

    def late(self, device: int, found: Times, ns: int) -> int:
        """How much larger the numbers of micro-batches are at a time."""
        stop = self.places[device][1]
        return self.times * self.micros if stop < len(found.reached) and ns >= found.reached[stop] else 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Which of the rows of `State.ready` are of micro-batches between the first and the last.

    `between`: indices of rows by register and micro-batch; `single`: those of the others.
    """

    between: NDArray[np.int64]
    single: NDArray[np.int64]


def shift_of(earlier: State, now: State, rows: Rows, micros: int, since: int, streams: tuple[int, int]) -> int:
    """How much later the state is than the earlier one, which it equals for `micros` later micro-batches; 0 if not.

    `since`: the first column of `rows.between` that may still be read. `streams`: those that compute and that move
    weights.
    """
    compute, weights = streams
    shift = int((now.free - earlier.free)[:, compute].max())
    inside = now.inside >= 0
    if shift <= 0 or not np.array_equal(now.inside, earlier.inside):
        return 0
    floor = int(earlier.free[:, compute].min())
    frees = []
    for state in (earlier, now):
        free = np.maximum(state.free, state.free[:, compute : compute + 1])  # nothing begins before
        free[:, weights] = np.where(inside, state.free[:, weights], free[:, weights])
        frees.append(free)
    if (frees[0] + shift != frees[1]).any() or (earlier.began + shift != now.began)[inside].any():
        return 0
    before, after = earlier.ready[rows.single], now.ready[rows.single]
    if ((after != before + shift) & ((after != before) | (before > floor))).any():
        return 0
    before, after = earlier.ready[rows.between], now.ready[rows.between]
    columns = before.shape[1]
    first = max(0, since - micros)
    before, after = before[:, first : columns - micros], after[:, first + micros :]
    if (after != np.where(before > 0, before + shift, 0)).any():
        return 0
    return shift
