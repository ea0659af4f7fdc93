"""What a pipeline costs: the outer problem, of which every stage is a cost network of its own.

A configuration lays the pipeline's axis on the levels of the machine (its *row*), an inner mesh on what is left to a
stage, and cuts the batch into K micro-batches. Stage s is busy W_s ns in a step: K times what it does with a
micro-batch, and what it does once a step. All stages wait for the slowest, and once for all others:

    step = max_s W_s + ⌈(Σ_s W_s - max_s W_s) / (K v)⌉

For equal stages that is exactly how long 1F1B, GPipe and interleaved 1F1B take (v chunks a device shorten what is
waited for; their W is summed by device). For unequal ones it is what holds whatever the shares of forward and backward
are: with K t_s = W_s, a micro-batch passes all stages in Σ t_s, and the slowest adds (K - 1) max t_s. An order may
take longer where one stage is slowest forward and another backward: 1F1B by some hundredths, GPipe by up to a half.

A device has v stages where they are interleaved: each is planned for an equal share of its memory. Steps of
PipeDream-2BW (Narayanan et al., 2021) do not wait for each other: each takes max_s W_s, at one more version of the
weights, and one more of their gradients where a pipeline is so long that updates come later (`versions`).

Where backwards are split (zero-bubble), how long is waited depends on the order, slot by slot, which only a plan says.
The search then minimises a lower bound of the step (`solvers/search/zero_bubble_bound.py`). A stage also keeps what its
deferred weight gradients need (`later`).

What bounds rest on:

- the step grows with every W_s: bounds of stages give a bound of the step;
- a stage that keeps fewer micro-batches needs less memory, and nothing else changes: W_s never grows from a stage to
  the next one with the same content;
- with no limit of memory, W_s never falls when micro-batches are cut finer by a whole factor
  (`solvers/search/unpipelined.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

from ..placement.placement import Placement, Row, divisors
from .orders import interleaved


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """One choice of what is outside of the stages; `row` all ones is no pipeline.

    `row` is the factor of the pipeline's axis on every level of the machine, `matrix` the inner mesh of a stage on
    what is left of them.
    """

    row: Row
    matrix: tuple[Row, ...]
    micro_batches: int
    schedule: str = "1f1b"
    chunks: int = 1

    @property
    def devices(self) -> int:
        """Places in the pipeline: p."""
        return prod(self.row)

    @property
    def stages(self) -> int:
        """Parts of the model: p v."""
        return self.devices * self.chunks

    @property
    def placement(self) -> Placement:
        """The inner mesh on the stage machine."""
        return Placement(tuple(map(prod, self.matrix)), self.matrix)

    def along(self, row: Row) -> Configuration:
        """The same with the pipeline elsewhere."""
        return replace(self, row=row)

    @property
    def split(self) -> bool:
        """Whether backwards are: to the stage before at once, to the weights later."""
        return split(self.schedule)

    @property
    def rounds(self) -> int | None:
        """The longest device waits for a part in so many of what the others work; None: for nothing."""
        return rounds(self.schedule, self.chunks, self.micro_batches)

    @property
    def versions(self) -> int:
        """What every stage keeps besides its weights, at the most, in their size: as each stage is planned."""
        return versions(self.schedule, self.devices - 1)

    @property
    def later(self) -> int:
        """Micro-batches of which every stage keeps what leads to gradients of weights: as each stage is planned."""
        return later(self.schedule, self.micro_batches, self.devices - 1)

    def modes(self, recompute: tuple[str, ...]) -> tuple[str, ...]:
        """Those of some modes of recomputation that its stages may have: a split backward would compute again twice."""
        return ("none",) if self.split else recompute

    def in_flight(self, stage: int) -> int:
        """Micro-batches of which `stage` keeps activations at once."""
        return in_flight(self.schedule, self.devices, self.chunks, self.micro_batches, stage)

    def step_ns(self, busy_ns: Sequence[int]) -> int:
        """The step, of what every stage (in the model's order) is busy."""
        return step_ns(self.devices, self.rounds, busy_ns)


def rows(hierarchy: Sequence[int], stages: int | None = None) -> Iterator[Row]:
    """The factors that a pipeline can have on the levels of a machine, of `stages` devices or of any number above 1."""
    for row in product(*map(divisors, hierarchy)):
        if prod(row) == stages or (stages is None and prod(row) > 1):
            yield row


def in_flight(schedule: str, devices: int, chunks: int, micro_batches: int, stage: int) -> int:
    """Micro-batches whose activations `stage` (of devices · chunks, from 0) keeps at once."""
    if schedule in ("1f1b", "2bw"):
        return min(micro_batches, devices - stage)
    if split(schedule):
        return min(micro_batches, devices)
    if schedule == "gpipe":
        return micro_batches
    return _peaks(devices, chunks, min(micro_batches, 3 * devices))[stage]  # the same groups again and again from there


def admitted(schedule: str, devices: int, micro_batches: Sequence[int]) -> tuple[int, ...]:
    """The numbers of micro-batches that a schedule can run: interleaved, groups of as many as there are devices.

    2BW needs as many at the least, so that no gradients are older than a step.
    """
    can: dict[str, Callable[[int], bool]] = {"interleaved": lambda k: k % devices == 0, "2bw": lambda k: k >= devices}
    return tuple(k for k in micro_batches if schedule not in can or can[schedule](k))


def rounds(schedule: str, chunks: int, micro_batches: int) -> int | None:
    """The longest device of a pipeline waits for a part in so many of what the others work.

    None: for nothing, or where backwards are split for what follows from when it begins.

    >>> rounds("1f1b", 1, 4), rounds("interleaved", 2, 4), rounds("2bw", 1, 4)
    (4, 8, None)
    """
    return None if schedule == "2bw" or split(schedule) else micro_batches * chunks


def versions(schedule: str, stage: int) -> int:
    """What a stage (from 0) keeps besides its weights, in their size: 2BW's older ones, and gradients of two steps."""
    return (1 + (stage > 1)) if schedule == "2bw" else 0


def split(schedule: str) -> bool:
    """Whether backwards are: to the stage before at once, to the weights later."""
    return schedule == "zero-bubble"


def later(schedule: str, micro_batches: int, stage: int) -> int:
    """Micro-batches of which a stage (from 0) keeps what leads to gradients of weights, until they are computed.

    ZB-H1 has those of stage s wait for s micro-batches; the first one's backward is whole.
    """
    return min(micro_batches, stage + 1) if split(schedule) and stage else 0


def step_ns(devices: int, rounds: int | None, busy_ns: Sequence[int]) -> int:
    """The predicted step of stages that are busy so long, given in the model's order: stage s lies on device s mod p.

    >>> step_ns(2, 4, [100, 60])  # a quarter of the faster one's time is waited for
    115
    >>> step_ns(2, None, [100, 60])
    100
    """
    loads = [sum(busy_ns[device::devices]) for device in range(devices)]
    return waited(max(loads), sum(loads), rounds)


def waited(longest: int, total: int, rounds: int | None) -> int:
    """The step whose busiest device works so long, and all devices `total`."""
    return longest if rounds is None else longest + -(-(total - longest) // rounds)


@cache
def _peaks(devices: int, chunks: int, micro_batches: int) -> tuple[int, ...]:
    """Of every stage of interleaved 1F1B the most micro-batches between their forward and the end of their backward."""
    now, most = [0] * (devices * chunks), [0] * (devices * chunks)
    for order in interleaved(devices, micro_batches, chunks):
        for kind, stage, _ in order:
            now[stage] += 1 if kind == "F" else -1
            most[stage] = max(most[stage], now[stage])
    return tuple(most)
