"""Pipeline schedules as values: the order of work on every device, and what follows from it for plans.

`register_schedule` makes a schedule known by its name, to planners, plan files and the command line:

    register_schedule(Schedule("pairs", "1F1B in pairs", in_pairs))

`in_pairs(device, devices, micro_batches)` lists the slots of a device: ("forward" | "backward" | "weights", stage,
micro-batch), with stage s on device s mod `devices`. How many micro-batches are in flight, and how many wait for the
gradients of weights, is counted in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import getclosurevars
from itertools import accumulate
from typing import NamedTuple

from ...model.errors import PartitaError
from . import device_orders
from .evaluate import starts_ns
from .orders import KIND_NAMES, DeviceOrder, Orders, Slot, both_directions, device_slots, repeated_passes
from .problem import Stage, bidirectional, chunked, repeated


@dataclass(frozen=True, slots=True)
class Schedule:
    """In which order the devices of a pipeline work, and what a plan has to know of it.

    `label`: its name in reports. `order(device, devices, micro_batches)` lists the slots of a device; it takes the
    number of chunks too where `virtual_stages`, the number of steps where `double_buffered`. It is a function of a
    module, so that it can be sent to other processes.

    `splits_backward`: "backward" slots compute gradients of inputs alone, "weights" slots those of weights.
    `virtual_stages`: every device has several stages, `chunks`; else one. `double_buffered`: two versions of the
    weights let a step begin before the one before it has ended; its gradients are a step old.

    `has_step_formula`: the step is the formula in `configuration.py`, with which search and prices are exact for equal
    stages. Else the step is priced slot by slot, and the search minimises a lower bound of it. `formula_bounds`: that
    bound is the formula of the slots and of the first stage's updates (1F1B has a sharper one of its own). Other orders
    of whole backwards are bounded by paths through their slots.

    `admits(devices, micro_batches)`: False for numbers of micro-batches that the schedule cannot run; `needs` puts that
    in words. `limit(devices, micro_batches)`: micro-batches that any stage may have in flight where `order` is yet to
    be found by the solver. `copied`: emitted programs have the source of `order`, which then refers to nothing but its
    arguments; else its slots as a table.

    `interlaced`: all devices together look up tokens and compute the loss between the slots of their stages
    (`orders.in_lock_step`); the formula is a lower bound of the step, which is priced slot by slot.

    `passes`: how often a micro-batch goes forward through all stages before it goes back, as the model says
    (`model.graph.folded`); only the last pass keeps activations. `order` takes it too; pass k of stage s is stage
    k · devices + s in its slots.

    `directions`: 2 if a second pipeline runs the other way over the same devices (`orders.chimera`). Every stage is
    then on two devices, as data parallelism puts it there: each has the weights, and one half of every micro-batch.
    In its slots the half of micro-batch m that goes down is 2 m, the one that goes up 2 m + 1. `unequal`: stages have
    unequally many devices (`with_unequal_stages`); the step is then priced slot by slot.
    """

    name: str
    label: str
    order: DeviceOrder
    splits_backward: bool = False
    virtual_stages: bool = False
    double_buffered: bool = False
    has_step_formula: bool = False
    formula_bounds: bool = False
    admits: Callable[[int, int], bool] | None = None
    needs: str = ""
    limit: Callable[[int, int], int] | None = None
    copied: bool = False
    interlaced: bool = False
    passes: int = 1
    directions: int = 1
    unequal: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def priced_by_slots(self) -> bool:
        """True if a step is priced slot by slot, from the order."""
        return self.formula_bounds or not (self.has_step_formula or self.double_buffered)

    @property
    def delays_messages(self) -> bool:
        """True if overlapped messages are priced as delays between slots, not as a part of their sender's slots."""
        return self.priced_by_slots and self.passes == 1 and not (self.virtual_stages and self.splits_backward)

    @property
    def by_operators(self) -> bool:
        """True if its programs are those of space-time plans, operator by operator."""
        return self.interlaced or self.passes > 1 or self.directions > 1 or self.unequal

    def runs(self, devices: int, micro_batches: int) -> bool:
        """True if it can run this number of micro-batches."""
        return self.admits is None or self.admits(devices, micro_batches)

    def devices_of(self, stage: int, devices: int) -> tuple[int, ...]:
        """The places in the pipeline that have a stage, in the order of the directions."""
        down = stage % devices
        return (down,) if self.directions == 1 else (down, devices - 1 - down)

    def stages_of(self, device: int, devices: int, stages: int) -> tuple[int, ...]:
        """The stages, of so many, that a place in the pipeline has."""
        return tuple(stage for stage in range(stages) if device in self.devices_of(stage, devices))

    def pairs(self, devices: int) -> bool:
        """True if all stages lie on the same two devices."""
        return self.directions == devices == 2

    def fits(self, row: Sequence[int]) -> bool:
        """True if a pipeline with these factors on the levels of a machine can be divided into its directions."""
        return next((factor for factor in row if factor > 1), self.directions) % self.directions == 0

    def direction_row(self, row: Sequence[int]) -> tuple[int, ...]:
        """The axis of both directions on the levels of a machine; `row`: the pipeline's. All ones without directions.

        The devices of a stage are in different halves of the outermost level that the pipeline divides.
        PartitaError: an odd number of units there, of which the middle one has both devices of a stage.
        """
        outermost = next((level for level, factor in enumerate(row) if factor > 1), 0)
        if not self.fits(row):
            raise PartitaError(
                f"{self.name} pairs the devices of a pipeline from its ends inwards: it needs an even number of "
                f"stages, even on the outermost level of the machine that they divide, not {row[outermost]}"
            )
        return tuple(self.directions if level == outermost else 1 for level in range(len(row)))

    def stage_row(self, row: Sequence[int]) -> tuple[int, ...]:
        """What divides a machine into the parts that stages have; PartitaError: see `direction_row`."""
        return tuple(factor // pair for factor, pair in zip(row, self.direction_row(row), strict=True))

    def rounds(self, chunks: int, micro_batches: int) -> int | None:
        """R in step = max W + (Σ W - max W) / R, or in its bound; None: the step is max W, or has another bound."""
        return micro_batches * chunks if self.has_step_formula or self.formula_bounds else None

    def weight_versions(self, stage: int) -> int:
        """Further versions of the weights, and gradients of a second step, that a stage keeps: in the weights' size."""
        return (1 + (stage > 1)) if self.double_buffered else 0

    def orders(self, devices: int, chunks: int, micro_batches: int) -> Orders:
        """The slots of all devices for one step. PartitaError: it cannot run these chunks or micro-batches."""
        self.check(chunks)
        return tuple(tuple(self._slots(d, devices, chunks, micro_batches)) for d in range(devices))

    def check(self, chunks: int) -> None:
        """PartitaError unless a device can have this many stages."""
        if self.virtual_stages != (chunks > 1):
            kind = "more than one" if self.virtual_stages else "one"
            raise PartitaError(f"{self.name} with {chunks} stages a device: this schedule has {kind}")

    def check_compiled(self) -> None:
        """PartitaError if compiled blocks cannot run it: their backward cannot be divided."""
        if self.splits_backward:
            others = ", ".join(s.name for s in _REGISTRY.values() if not s.splits_backward)
            raise PartitaError(
                f"--compile with --schedule {self.name}: the backward of a compiled block cannot be divided into "
                f"gradients of inputs and of weights; choose from {others}"
            )

    def in_flight(self, devices: int, chunks: int, micro_batches: int, stage: int) -> int:
        """Micro-batches whose activations `stage` (of devices · chunks, from 0) keeps at once."""
        return self._count(devices, chunks, micro_batches, stage).in_flight

    def deferred_weight_gradients(self, devices: int, chunks: int, micro_batches: int, stage: int) -> int:
        """Micro-batches whose weight gradients `stage` has yet to compute; 0 for the first stage.

        Nobody waits for the gradients of the first stage's inputs: its backward is whole.
        """
        needed = self.splits_backward and stage > 0
        return self._count(devices, chunks, micro_batches, stage).deferred if needed else 0

    def forwards_ahead(self, devices: int, chunks: int, micro_batches: int, stage: int) -> int:
        """Most forwards that `stage` runs before its first backward."""
        return self._count(devices, chunks, micro_batches, stage).ahead

    def between_passes(self, devices: int, micro_batches: int) -> int:
        """The most micro-batches that have begun their first pass on a stage, and not their last one."""
        return _between(self, devices, micro_batches) if self.passes > 1 else 0

    def _count(self, devices: int, chunks: int, micro_batches: int, stage: int) -> _Counts:
        """The counts of a stage; where the order is yet to be found, its limit."""
        if self.limit is not None:
            return _Counts(*(self.limit(devices, micro_batches),) * 3)
        return _counts(self, stage % devices, devices, chunks, micro_batches)[stage // devices]

    def with_passes(self, passes: int) -> Schedule:
        """The same of a model whose micro-batches go forward so often; itself where either is once."""
        return self if 1 in (self.passes, passes) else replace(self, passes=passes)

    def with_unequal_stages(self) -> Schedule:
        """The same of stages with unequally many devices. PartitaError: no bound of such steps is known."""
        if self.name not in UNEQUAL:
            raise PartitaError(
                f"--unequal-stages with --schedule {self.name}: steps of stages with unequally many devices are "
                f"bounded for {', '.join(UNEQUAL)} alone"
            )
        return replace(self, unequal=True, has_step_formula=False, copied=False)

    def _slots(self, device: int, devices: int, chunks: int, micro_batches: int) -> list[Slot]:
        more = [chunks] * self.virtual_stages + [1] * self.double_buffered + [self.passes] * (self.passes > 1)
        return device_slots(self.order, device, devices, micro_batches, *more)


class _Counts(NamedTuple):
    """Counts of one stage in the order of its device."""

    in_flight: int
    deferred: int
    ahead: int


@cache
def _counts(schedule: Schedule, device: int, devices: int, chunks: int, micro_batches: int) -> tuple[_Counts, ...]:
    """The counts of every stage of a device."""
    slots, last = schedule._slots(device, devices, chunks, micro_batches), "W" if schedule.splits_backward else "B"
    first = device + (schedule.passes - 1) * devices  # earlier passes keep nothing

    def counted(kinds: Sequence[str]) -> _Counts:
        kept = accumulate((kind == "F") - (kind == last) for kind in kinds)
        deferred = accumulate((kind == "B") - (kind == "W") for kind in kinds)
        return _Counts(max(kept), max(deferred), kinds.index("B"))

    return tuple(counted([s.kind for s in slots if s.stage == first + c * devices]) for c in range(chunks))


@cache
def _between(schedule: Schedule, devices: int, micro_batches: int) -> int:
    most = 0
    for device, own in enumerate(schedule.orders(devices, 1, micro_batches)):
        steps = {device: 1, device + (schedule.passes - 1) * devices: -1}  # the first pass begins, the last one
        most = max(most, *accumulate(steps.get(slot.stage, 0) for slot in own if slot.kind == "F"))
    return most


@dataclass(frozen=True, slots=True)
class SlotTable:
    """The order of a found schedule: its slots for one number of devices and micro-batches."""

    orders: Orders

    def __call__(self, device: int, devices: int, micro_batches: int) -> Iterator[tuple[str, int, int]]:
        if len(self.orders) != devices:
            raise PartitaError(f"orders for {len(self.orders)} devices are given, of {devices}")
        return ((KIND_NAMES[slot.kind], slot.stage, slot.micro) for slot in self.orders[device])


def with_orders(schedule: Schedule, orders: Orders, micro_batches: int) -> Schedule:
    """A schedule whose order was to be found, with these orders of one stage a device.

    PartitaError: it has its own order; these orders lack a slot, deadlock, or keep more micro-batches than its limit.
    """
    if schedule.limit is None:
        raise PartitaError(f"schedule {schedule.name} has its own orders, no others can be given for it")
    check_orders(schedule, orders, 1, micro_batches)
    found, devices = replace(schedule, order=SlotTable(orders), limit=None, copied=False), len(orders)
    for stage in range(devices):
        kept, most = found.in_flight(devices, 1, micro_batches, stage), schedule.limit(devices, micro_batches)
        if kept > most:
            raise PartitaError(f"the orders keep {kept} micro-batches on stage {stage}, where there is room for {most}")
    return found


def check_orders(schedule: Schedule, orders: Orders, chunks: int, micro_batches: int) -> None:
    """PartitaError unless these orders have every slot once, on its device, and come to an end."""
    stage = Stage(1, 1, weight_ns=int(schedule.splits_backward))
    if schedule.directions > 1:
        starts_ns(bidirectional([stage] * len(orders), 2 * micro_batches), orders)
        return
    if schedule.passes > 1:
        starts_ns(repeated([stage] * len(orders), micro_batches, schedule.passes), orders)
        return
    starts_ns(chunked([stage] * len(orders) * chunks, len(orders), micro_batches), orders)


# The registry


def _multiple_of_devices(devices: int, micro_batches: int) -> bool:
    return micro_batches % devices == 0


def _one_a_device(devices: int, micro_batches: int) -> bool:
    return micro_batches >= devices  # so that no gradients are older than a step


ONE_F_ONE_B = Schedule("1f1b", "1F1B", device_orders.one_f_one_b, formula_bounds=True, copied=True)
EAGER = Schedule("eager-1f1b", "eager 1F1B", device_orders.eager_one_f_one_b, copied=True)
"""Zhuang et al., On Optimizing the Communication of Model Parallelism, MLSys 2023."""
GPIPE = Schedule("gpipe", "GPipe", device_orders.gpipe, formula_bounds=True, copied=True)
INTERLEAVED = Schedule(
    "interleaved", "interleaved 1F1B", device_orders.interleaved, virtual_stages=True,
    admits=_multiple_of_devices, needs="a multiple of", copied=True,
)  # fmt: skip
ZERO_BUBBLE = Schedule(
    "zero-bubble", "zero-bubble (ZB-H1)", device_orders.zero_bubble, splits_backward=True, copied=True
)
PIPEDREAM_2BW = Schedule(
    "2bw", "PipeDream-2BW", device_orders.pipedream_2bw, double_buffered=True,
    admits=_one_a_device, needs="at least", copied=True,
)  # fmt: skip
SOLVED = replace(ZERO_BUBBLE, name="solve", label="order found by the solver", limit=min)
"""ZB-H1 with any order in its memory: `solvers/schedule` looks for the best once the stages are planned."""
INTERLACED_PIPELINE = Schedule(
    "interlaced", "interlaced pipeline", device_orders.eager_one_f_one_b, has_step_formula=True, interlaced=True
)
"""SuperScaler's interlaced pipeline in lock step: the stages of an eager 1F1B pipeline, the tables on all devices."""
REPEATED = Schedule("3f1b", "3F1B", repeated_passes, passes=3)
"""SuperScaler's 3F1B: several forwards through the pipeline, one backward, for models that recycle (AlphaFold 2)."""
CHIMERA = Schedule("chimera", "Chimera", both_directions, directions=2)
"""Li and Hoefler, Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines, SC'21."""

UNEQUAL = (ONE_F_ONE_B.name, EAGER.name, GPIPE.name)
"""Schedules of stages with unequally many devices, all of which `all` stands for there."""

ALL = ("1f1b", "zero-bubble", "interleaved")
"""What `all` stands for: GPipe and eager 1F1B gain on 1F1B only by hiding messages, and 2BW is another way to train."""

_REGISTRY = {
    s.name: s
    for s in (
        ONE_F_ONE_B, GPIPE, INTERLEAVED, ZERO_BUBBLE, PIPEDREAM_2BW, SOLVED, EAGER, INTERLACED_PIPELINE, REPEATED,
        CHIMERA,
    )
}  # fmt: skip


def register_schedule(schedule: Schedule) -> Schedule:
    """Make a schedule known by its name.

    PartitaError: the name is taken; some orders are wrong or deadlock; a copied order uses more than its arguments.
    """
    if _REGISTRY.get(schedule.name, schedule) != schedule:
        raise PartitaError(f"there is another schedule {schedule.name!r}")
    if schedule.copied:
        used = getclosurevars(schedule.order)
        names = ", ".join({**used.nonlocals, **used.globals} | dict.fromkeys(used.unbound))
        if names:
            raise PartitaError(f"the order of {schedule.name!r} uses {names}: a copied one has its arguments alone")
    chunks = 2 if schedule.virtual_stages else 1
    for devices, micro_batches in ((2, 2), (2, 4), (4, 4), (4, 8)):
        if schedule.runs(devices, micro_batches):
            check_orders(schedule, schedule.orders(devices, chunks, micro_batches), chunks, micro_batches)
    return _REGISTRY.setdefault(schedule.name, schedule)


def schedule_names() -> tuple[str, ...]:
    """The names of all schedules."""
    return tuple(_REGISTRY)


def schedule_named(name: str) -> Schedule:
    """PartitaError: no schedule has this name."""
    if name not in _REGISTRY:
        raise PartitaError(f"schedule {name!r:.60}: choose from {', '.join(_REGISTRY)}")
    return _REGISTRY[name]


def requested(text: str, chunks: int, every: Sequence[str] = ALL) -> tuple[tuple[str, int], ...]:
    """The schedules named in a text, or that `auto` or `all` stand for: each once, with the stages of every device.

    `every`: what `all` stands for. Of several, those with virtual stages have 2 on each device where `chunks` does not
    say it.
    """
    auto = (INTERLEAVED.name if chunks > 1 else ONE_F_ONE_B.name,)
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = dict.fromkeys(name for word in words for name in {"auto": auto, "all": every}.get(word, (word,)))
    if not names:
        raise PartitaError("no schedule is named")
    for name in names:
        if name not in _REGISTRY:
            raise PartitaError(f"--schedule {name!r}: choose from auto, all, {', '.join(_REGISTRY)}")
    several = len(names) > 1
    many = max(chunks, 2) if several else chunks
    virtual = [name for name in names if _REGISTRY[name].virtual_stages]
    if bool(virtual) != (many > 1) and (chunks > 1 or not several):
        known = ", ".join(s.name for s in _REGISTRY.values() if s.virtual_stages)
        raise PartitaError(f"--schedule {text} with --chunks {chunks}: {known} has 2 or more, the others have 1")
    return tuple((name, many if name in virtual else 1) for name in names)
