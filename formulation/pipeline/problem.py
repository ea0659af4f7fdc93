"""Scheduling problems: the tasks of a pipeline, their precedence and the memory of devices. All in integers.

A training step is a set of tasks, each a part of the model on a micro-batch, on one device or on several at once.
`build` makes the tasks of a chain of stages; the functions after it place the stages as the usual pipelines do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from math import gcd
from typing import NamedTuple

from ...model.errors import PartitaError
from .orders import KINDS, Slot


@dataclass(frozen=True, slots=True)
class Task:
    """A slot with its duration: it occupies all its devices, takes bytes at its start and releases some at its end.

    The bytes are those of each of its devices.
    """

    kind: str
    stage: int
    micro: int
    devices: tuple[int, ...]
    duration_ns: int
    takes_bytes: int = 0
    releases_bytes: int = 0

    @property
    def slot(self) -> Slot:
        return Slot(self.kind, self.stage, self.micro)


class Precedence(NamedTuple):
    """Task `after` begins no earlier than `lag_ns` after the end of task `before`: indices into a problem's tasks."""

    before: int
    after: int
    lag_ns: int = 0


class Holding(NamedTuple):
    """Memory of a device from the start of one task to the end of another: indices into a problem's tasks."""

    taker: int
    releaser: int
    device: int
    bytes: int


@dataclass(frozen=True)
class Problem:
    """Tasks, edges between them, and devices with their room for activations in bytes (None: enough).

    A step ends `closing_ns` after the last task of a device (sums of its gradients, updates); empty: at once.
    PartitaError: an unknown task or device, a duration below 1 ns, a duplicate slot, cyclic edges, memory that is
    released before it is taken, or never.
    """

    tasks: tuple[Task, ...]
    edges: tuple[Precedence, ...]
    capacities: tuple[int | None, ...]
    closing_ns: tuple[int, ...] = ()
    holdings: tuple[Holding, ...] = field(init=False)

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task.kind not in KINDS or task.duration_ns < 1 or min(task.takes_bytes, task.releases_bytes) < 0:
                raise PartitaError(f"{task}: its kind is one of {', '.join(KINDS)}, it takes at least 1 ns and 0 bytes")
            if not task.devices or not set(task.devices) <= set(range(self.devices)):
                raise PartitaError(f"{task.slot} is on devices {task.devices}, of {self.devices}")
        twice = [slot for slot, count in Counter(task.slot for task in self.tasks).items() if count > 1]
        if twice:
            raise PartitaError(f"{twice[0]} is duplicated")
        if not all(0 <= i < len(self.tasks) for edge in self.edges for i in edge[:2]):
            raise PartitaError(f"an edge leads beyond the {len(self.tasks)} tasks")
        closing = self.closing_ns or (0,) * self.devices
        if len(closing) != self.devices or min(closing) < 0:
            raise PartitaError(f"closing_ns {closing}: a time from 0 for each of {self.devices} devices is needed")
        object.__setattr__(self, "closing_ns", closing)
        assert self.topological is not None  # rejects cycles
        object.__setattr__(self, "holdings", tuple(self._matched()))

    @property
    def devices(self) -> int:
        return len(self.capacities)

    @cached_property
    def index(self) -> dict[Slot, int]:
        return {task.slot: i for i, task in enumerate(self.tasks)}

    @cached_property
    def on_device(self) -> tuple[tuple[int, ...], ...]:
        """The tasks of every device."""
        return tuple(tuple(i for i, task in enumerate(self.tasks) if d in task.devices) for d in range(self.devices))

    @cached_property
    def loads_ns(self) -> tuple[int, ...]:
        """The total duration of every device's tasks."""
        return tuple(sum(self.tasks[i].duration_ns for i in own) for own in self.on_device)

    @cached_property
    def closing_of(self) -> tuple[int, ...]:
        """For every task, what its devices do at least after it: the longest `closing_ns`."""
        return tuple(max(self.closing_ns[d] for d in task.devices) for task in self.tasks)

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """The tasks in topological order."""
        waits: dict[int, set[int]] = {i: set() for i in range(len(self.tasks))}
        for edge in self.edges:
            waits[edge.after].add(edge.before)
        try:
            return tuple(TopologicalSorter(waits).static_order())
        except CycleError as error:
            circle = " waits for ".join(str(self.tasks[i].slot) for i in reversed(error.args[1]))
            raise PartitaError(f"no schedule exists: {circle}") from None

    def _matched(self) -> Iterator[Holding]:
        """Pair takes with releases, first in, first out, among the tasks of a stage and micro-batch.

        The pairing does not matter: the bytes in use are those taken less those released.
        """
        taken: dict[tuple[int, int, int], list[list[int]]] = {}
        for i in self.topological:
            task = self.tasks[i]
            for d in task.devices:
                open_ = taken.setdefault((d, task.stage, task.micro), [])
                open_ += [[i, task.takes_bytes]] if task.takes_bytes else []
                left = task.releases_bytes
                while left and open_:
                    amount = min(left, open_[0][1])
                    yield Holding(open_[0][0], i, d, amount)
                    left -= amount
                    open_[0][1] -= amount
                    del open_[: open_[0][1] == 0]
                if left:
                    raise PartitaError(f"{task.slot} releases {left:,} bytes that nothing before it took")
        for own in taken.values():
            if own:
                raise PartitaError(f"{self.tasks[own[0][0]].slot} takes {own[0][1]:,} bytes that nothing releases")


@dataclass(frozen=True, slots=True)
class Stage:
    """The cost of one micro-batch on a stage.

    `forward_message_ns` pass from the end of its forward until the next stage, on another device, has its result,
    `backward_message_ns` from the end of its backward until the stage before has it.
    `weight_ns` above 0 splits the backward: "B" for the inputs, "W" for the weights. `recompute_ns` above 0 keeps only
    the input of the stage, `input_bytes`, and recomputes the forward: as a task "R" of its own or, if `fused`, as the
    first part of the backward, once its gradient is there. `activation_bytes` are held from the forward (or from its
    recomputation) to the end of the backward; of them `weight_bytes` (None: all) until the weights' gradients.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int = 0
    recompute_ns: int = 0
    activation_bytes: int = 1
    input_bytes: int = 0
    weight_bytes: int | None = None
    fused: bool = False
    forward_message_ns: int = 0
    backward_message_ns: int = 0

    def tasks(self, stage: int, micro: int, devices: tuple[int, ...], trained: bool) -> Iterator[Task]:
        """Its tasks on one micro-batch, in topological order; no backward unless `trained`."""
        again, split, held = self.recompute_ns > 0, self.weight_ns > 0, self.activation_bytes
        late = 0 if not split else held if self.weight_bytes is None else self.weight_bytes
        kept = self.input_bytes if again else held
        yield Task("F", stage, micro, devices, self.forward_ns, takes_bytes=kept if trained else 0)
        if not trained:
            return
        if again and not self.fused:
            yield Task("R", stage, micro, devices, self.recompute_ns, takes_bytes=held)
        inside = again and self.fused
        duration = self.backward_ns + (self.recompute_ns if inside else 0)
        released = held - late + (self.input_bytes if again else 0)
        taken = held if inside else 0
        yield Task("B", stage, micro, devices, duration, takes_bytes=taken, releases_bytes=released)
        if split:
            yield Task("W", stage, micro, devices, self.weight_ns, releases_bytes=late)


Where = Callable[[int, int], tuple[int, ...]]
"""The devices of a stage and a micro-batch."""
Room = int | None | Sequence[int | None]
"""Bytes for activations: one number for all devices, or one for each; None: unlimited."""


def build(
    chain: Sequence[Stage],
    micros: int,
    where: Where,
    devices: int,
    room: Room = None,
    lag_ns: int = 0,
    trained: int = 0,
) -> Problem:
    """The tasks of K micro-batches through a chain of stages; stages before `trained` run forwards only.

    A forward waits for that of the stage before, a backward for that of the stage after; between different devices with
    the transfer's lag, and the time of the stage's own message.
    """
    if not chain or micros < 1 or lag_ns < 0:
        raise PartitaError(f"{len(chain)} stages, {micros} micro-batches and a lag of {lag_ns} ns are no pipeline")
    tasks = [
        task
        for m in range(micros)
        for k, stage in enumerate(chain)
        for task in stage.tasks(k, m, where(k, m), k >= trained)
    ]
    index = {task.slot: i for i, task in enumerate(tasks)}

    def waits(task: Task) -> Iterator[Slot]:
        kind, k, m = task.slot
        if kind in "RBW":
            yield next(s for s in (Slot(x, k, m) for x in {"R": "F", "B": "RF", "W": "B"}[kind]) if s in index)
        if kind == "F" and k > 0:
            yield Slot("F", k - 1, m)
        if kind == "B" and k + 1 < len(chain):
            yield Slot("B", k + 1, m)

    def lag(before: Task, after: Task) -> int:
        sender = chain[before.stage]
        own = sender.forward_message_ns if before.kind == "F" else sender.backward_message_ns
        return 0 if before.devices == after.devices else lag_ns + own

    edges = tuple(
        Precedence(index[slot], i, lag(tasks[index[slot]], task))
        for i, task in enumerate(tasks)
        for slot in waits(task)
    )
    rooms = tuple(room) if isinstance(room, Sequence) else (room,) * devices
    if len(rooms) != devices:
        raise PartitaError(f"room for {len(rooms)} devices is given, of {devices}")
    return Problem(tuple(tasks), edges, rooms)


def pipeline(stages: Sequence[Stage], micros: int, room: Room = None, lag_ns: int = 0) -> Problem:
    """Stage s on device s."""
    return build(stages, micros, lambda s, m: (s,), len(stages), room, lag_ns)


def chunked(stages: Sequence[Stage], devices: int, micros: int, room: Room = None, lag_ns: int = 0) -> Problem:
    """Several stages a device: stage s on device s mod D, as in interleaved 1F1B."""
    if len(stages) % devices:
        raise PartitaError(f"{len(stages)} stages do not lie evenly on {devices} devices")
    return build(stages, micros, lambda s, m: (s % devices,), devices, room, lag_ns)


def bidirectional(stages: Sequence[Stage], micros: int, room: Room = None, lag_ns: int = 0) -> Problem:
    """Even micro-batches run stage s on device s, odd ones on device S - 1 - s, as in Chimera."""
    last = len(stages) - 1
    return build(stages, micros, lambda s, m: (last - s if m % 2 else s,), len(stages), room, lag_ns)


def repeated(stages: Sequence[Stage], micros: int, passes: int = 3, room: Room = None, lag_ns: int = 0) -> Problem:
    """Several forwards through the pipeline and one backward, through the last: pass p of stage s is stage p·S + s.

    Only the last pass keeps activations (AlphaFold2's recycling; SuperScaler's 3F1B).
    """
    devices, trained = len(stages), (passes - 1) * len(stages)
    chain = [*(replace(stage, activation_bytes=0) for stage in stages)] * (passes - 1) + [*stages]
    return build(chain, micros, lambda s, m: (s % devices,), devices, room, lag_ns=lag_ns, trained=trained)


def interlaced_pipeline(
    stages: Sequence[Stage], shared: Sequence[int], micros: int, room: Room = None, lag_ns: int = 0
) -> Problem:
    """A chain in which the stages at the places `shared` keep all devices busy at once (embeddings, split over them).

    The others lie on devices 0, 1, ... in turn (SuperScaler, Algorithm 2).
    """
    own = [k for k in range(len(stages)) if k not in shared]
    if not own or len(own) + len(shared) != len(stages):
        raise PartitaError(
            f"shared stages {tuple(shared)} are not places in a chain of {len(stages)} with others in it"
        )
    place = {k: (d,) for d, k in enumerate(own)} | dict.fromkeys(shared, tuple(range(len(own))))
    return build(stages, micros, lambda s, m: place[s], len(own), room, lag_ns)


def in_units(problem: Problem, *others_ns: int) -> tuple[Problem, int]:
    """The problem in the largest unit of time that divides all its times and `others_ns`, and that unit in ns.

    In an earliest schedule all times are sums of durations and lags, so shortest makespans stay shortest.
    """
    durations, lags = (task.duration_ns for task in problem.tasks), (edge.lag_ns for edge in problem.edges)
    unit = gcd(*durations, *lags, *problem.closing_ns, *others_ns)
    if unit == 1:
        return problem, 1
    tasks = tuple(replace(task, duration_ns=task.duration_ns // unit) for task in problem.tasks)
    edges = tuple(edge._replace(lag_ns=edge.lag_ns // unit) for edge in problem.edges)
    return Problem(tasks, edges, problem.capacities, tuple(ns // unit for ns in problem.closing_ns)), unit


def with_edges(problem: Problem, edges: Iterable[Precedence]) -> Problem:
    """The problem with more edges."""
    return replace(problem, edges=(*problem.edges, *edges))


def with_room(problem: Problem, room: Room) -> Problem:
    """The problem with other room for activations."""
    rooms = tuple(room) if isinstance(room, Sequence) else (room,) * problem.devices
    return replace(problem, capacities=rooms)
