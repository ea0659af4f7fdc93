"""Repetition in a loop of many micro-batches: what repeats is derived for few of them and counted for the others.

In the middle of a schedule every device runs the same slots again for later micro-batches. `shorter` leaves most of
these repetitions out. What is derived for the micro-batches left holds for all if nothing tells the repetitions apart:
`period` finds a time at which the devices have done, and wait for, the same as some time before, for as many
micro-batches later. From there on all comes again, however often the slots do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..pipeline.orders import Slot
from .loop import Loop, Template

Numbers: TypeAlias = NDArray[np.int64]

KEPT = 24
"""Repetitions of slots that are kept at first; three times as many if they do not suffice, and so on."""

LONGEST_SHIFT = 32
"""Most micro-batches from one repetition to the next: interleaved stages take several in turn."""

TURNS = 12
"""Repetitions are left out by this number, which the periods that are looked for (`PERIODS`) divide."""

PERIODS = (1, 2, 3, 4)
"""Repetitions of slots after which times may repeat."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Events `start` to `stop` of an order come `times` more often, each time for micro-batches later by `micros`."""

    start: int
    stop: int
    micros: int
    times: int

    @property
    def late(self) -> int:
        """How many micro-batches are left out."""
        return self.micros * self.times

    def alike(self, steps: Numbers, micros: Numbers, most: int) -> int:
        """How often these events stand in an order one after another, at most."""
        size = self.stop - self.start
        for number in range(1, most):
            start, stop = self.start - number * size, self.stop - number * size
            if start < 0 or not (
                np.array_equal(steps[start:stop], steps[self.start : self.stop])
                and np.array_equal(micros[start:stop] + number * self.micros, micros[self.start : self.stop])
            ):
                return number
        return most


@dataclass(frozen=True, slots=True)
class Order:
    """Events in order: the template's, and for which micro-batch each is (0 for those that run once).

    `repeat`: which come more often, if these are few micro-batches of many; later ones have too small numbers then.
    """

    steps: Numbers
    micros: Numbers
    repeat: Repeat | None = None

    def longer(self, times: int, of: Sequence[int | None]) -> Order:
        """The order with repetitions that were left out; `of`: by event of the template its micro-batch there."""
        repeat = self.repeat
        if repeat is None:
            return self
        start, stop, micros, left = repeat.start, repeat.stop, repeat.micros, repeat.times - times
        steps = repeated(self.steps, start, stop, times)
        later = np.array([own is not None and own > 0 for own in of], dtype=bool)
        shown = repeated(self.micros, start, stop, times, micros, later[self.steps[stop:]])
        shift = times * (stop - start)
        return Order(steps, shown, Repeat(start + shift, stop + shift, micros, left) if left else None)


def repeated(
    values: Numbers, start: int, stop: int, times: int, step: int = 0, later: NDArray[np.bool_] | None = None
) -> Numbers:
    """The values with those from `start` to `stop` again `times` times, larger by `step` each time.

    Those after them are larger by all of that, or those of them that are `later`.
    """
    again = values[start:stop] + step * np.arange(1, times + 1)[:, None]
    shift: int | Numbers = step * times if later is None else np.where(later, step * times, 0)
    return np.concatenate((values[:stop], again.ravel(), values[stop:] + shift))


class Run(NamedTuple):
    """Places in the order of a device, from `start` to before `stop`, that repeat after `period` of them."""

    start: int
    stop: int
    period: int

    @property
    def turns(self) -> int:
        """How often these places come."""
        return (self.stop - self.start) // self.period


def runs(keys: Numbers, micros: Numbers, shift: int, count: int) -> Iterator[Run]:
    """Where an order repeats for micro-batches that are `shift` later, each key after the same number of places.

    `keys`: what is run, by place; `count`: the micro-batches of the loop.
    """
    place = np.full((int(keys.max(initial=0)) + 1) * count + shift, -1, dtype=np.int64)
    place[keys * count + micros] = np.arange(len(keys))
    after = np.where(micros + shift < count, place[keys * count + micros + shift], -1) - np.arange(len(keys))
    borders = np.concatenate(([0], 1 + np.flatnonzero(np.diff(after)), [len(after)])).tolist()
    for start, stop in pairwise(borders):
        if stop > start and after[start] > 0:
            yield Run(start, stop, int(after[start]))


@dataclass(frozen=True, slots=True)
class Shorter:
    """A plan of fewer micro-batches: by device the repetitions of slots that are kept, and how many are left out.

    `shift`: micro-batches from one repetition to the next.
    """

    template: Template
    runs: Sequence[Run]
    shift: int
    left_out: int


def shorter(template: Template) -> Iterator[Shorter]:
    """The plan of a template for fewer micro-batches, for more and more of them but at most half of all."""
    found, loop = _repeated_slots(template), template.loop
    if found is None:
        return
    shift, devices = found
    kept, least = KEPT, min(run.turns for run in devices)
    while (spared := (least - kept) // TURNS * TURNS) * shift >= loop.count / 2:
        count = loop.count - spared * shift
        orders = [
            _without(own, run, shift, spared) if own else () for own, run in zip(template.orders, devices, strict=False)
        ]
        made = replace(template, loop=Loop(loop.label, count), orders=tuple(orders))
        left = [run._replace(stop=run.start + (run.turns - spared) * run.period) for run in devices]
        yield Shorter(made, left, shift, spared)
        kept *= 3


def _repeated_slots(template: Template) -> tuple[int, list[Run]] | None:
    """After how many micro-batches the slots of all devices repeat, and where."""
    count = template.loop.count
    if not template.orders:
        return 1, [Run(0, count, 1)]
    kinds: dict[tuple[str, int], int] = {}
    orders = []
    for own in template.orders:
        keys = np.array([kinds.setdefault((kind, stage), len(kinds)) for kind, stage, _ in own], dtype=np.int64)
        orders.append((keys, np.array([micro for *_, micro in own], dtype=np.int64)))
    for shift in range(1, min(LONGEST_SHIFT, count // KEPT) + 1):
        found = [_run(keys, micros, shift, count) if len(keys) else Run(0, count, 1) for keys, micros in orders]
        every = [run for run in found if run is not None]
        if len(every) == len(found):
            return shift, every
    return None


def _run(keys: Numbers, micros: Numbers, shift: int, count: int) -> Run | None:
    """Where the slots of a device repeat for micro-batches that are `shift` later; None unless all of its kinds do."""
    found = max(runs(keys, micros, shift, count), key=lambda run: run.stop - run.start, default=None)
    if found is None or not found.turns:
        return None
    counts = Counter(keys[found.start : found.start + found.period].tolist())
    return found if counts.keys() == {*keys.tolist()} and {*counts.values()} == {shift} else None


def _without(own: Sequence[Slot], run: Run, shift: int, spared: int) -> tuple[Slot, ...]:
    """The slots of a device without some repetitions."""
    late, rest = spared * shift, own[run.start + spared * run.period :]
    return (*own[: run.start], *(slot._replace(micro=slot.micro - late) for slot in rest))


@dataclass(frozen=True, slots=True)
class Period:
    """At `stop` devices are where they were at `start`, `micros` micro-batches later; this comes `times` more often."""

    start: int
    stop: int
    micros: int
    times: int


def period(
    ends: Numbers, slots: Sequence[Mapping[int, NDArray[np.int64]]], within: Shorter, latest: int, unit: int
) -> Period | None:
    """A period of the ends of tasks, by task and micro-batch between the first and the last; None if there is none.

    `slots`: by device, the rows of `ends` of each of its kinds of slots. `latest`: when results of what does not repeat
    are there. Times are multiples of `unit`.
    """
    rows, columns = ends.shape
    if not rows:
        return None
    for turns in PERIODS:
        micros = turns * within.shift
        for column in range(columns - 2, 2 * micros, -max(1, within.shift)):
            stop = int(ends[0, column])
            start = int(ends[0, column - micros])
            if (stop - start) % unit == 0 and _repeats(ends, slots, within.runs, (start, stop, micros, latest)):
                return Period(start, stop, micros, within.left_out // turns)
    return None


def _repeats(
    ends: Numbers,
    slots: Sequence[Mapping[int, NDArray[np.int64]]],
    kept: Sequence[Run],
    found: tuple[int, int, int, int],
) -> bool:
    """True if what has ended at `stop`, and what then is waited for, is what was at `start`, `micros` later."""
    start, stop, micros, latest = found
    rows, columns = ends.shape
    before, now = (ends <= start).sum(axis=1), (ends <= stop).sum(axis=1)
    if before.min() < 1 or now.max() >= columns or (now - before != micros).any():
        return False
    last = ends[np.arange(rows), before - 1]
    if last.min() < latest:
        return False
    since = int(before.min()) - 1
    earlier = ends[:, since : columns - micros]
    shown = np.arange(since, columns - micros) < before[:, None]
    if (shown & (ends[:, since + micros :] != earlier + (stop - start))).any():
        return False
    for own, run in zip(slots, kept, strict=False):
        if own:
            least = sum(1 + int(before[each].min()) for each in own.values())
            most = sum(1 + int(now[each].max()) for each in own.values())
            if least < run.start or most > run.stop:
                return False
    return True
