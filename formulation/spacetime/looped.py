"""The program of all micro-batches, from that of three (`loop.template`): what runs when, for which of them.

An event of the template (an instruction, or a transfer on all its devices) belongs to one of its micro-batches, or to
none. One of the first and of the last micro-batch stands for itself, one of the micro-batch between for all of these.
`looped` derives the order of all of them as `materialize` does for the template: devices run their slots in the order
of the schedule and advance at the same pace, and events lie where their data is ready. Slots whose surroundings are
equal, shifted in time, are computed once.

It is derived, not assumed, that the order of all micro-batches can run: a slot runs once what it needs has run. What is
not regular (`Irregular`) is left to the expanded plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...model.graph.batch import with_micro_batches
from ...model.graph.pcg import PCG
from .equal_ranks import equal_ranks, likeness
from .graph import Graph
from .loop import Irregular, Loop, Template, micro_of
from .materialize import MESSAGE, UNIT, arrival, ended_after
from .materialized import Accumulate, Instruction, Materialized, Register, Run, reads, writes
from .op import Phase
from .order import Completed, ordered
from .repetition import Numbers, Order, Period, Repeat, Shorter, period, shorter
from .slot_order import ALL_OF_IT, Key, Likeness, likeness_of, slots_of
from .supplies import device

CHUNK = 4096
"""Events of the template of which those of all micro-batches are made at once: more would need more memory."""

FEW = 10_000
"""Events that a loop in Python goes through before a compiled one is loaded."""


@dataclass(frozen=True)
class Looped:
    """The events of a program in one total order that respects the dependencies.

    `of`: the number of the micro-batch in the template by event, None for those that run once; `register`: the same of
    registers.
    `irregular`: why the micro-batches of a loop have operators of their own; empty without such a loop. `alike`: by
    rank, the first one with the same instructions (`equal_ranks.likeness`); empty until they are compared.
    """

    program: Materialized
    loop: Loop | None
    order: Order
    of: Sequence[int | None] = ()
    register: dict[Register, int | None] = field(default_factory=dict)
    irregular: str = ""
    alike: Sequence[int] = ()

    @property
    def steps(self) -> Numbers:
        """By event, that of the template."""
        return self._whole.steps

    @property
    def micros(self) -> Numbers:
        """By event, for which micro-batch it is; 0 for those that run once."""
        return self._whole.micros

    @cached_property
    def _whole(self) -> Order:
        repeat = self.order.repeat
        return self.order if repeat is None else self.longer(repeat.times).order

    def longer(self, times: int) -> Looped:
        """The same, whose order leaves fewer repetitions out, by `times`."""
        return replace(self, order=self.order.longer(times, self.of))

    @cached_property
    def short(self) -> Looped:
        """The program of the micro-batches that are not left out; numbers of later ones are smaller than in all."""
        repeat = self.order.repeat
        if self.loop is None or repeat is None:
            return self
        fewer = replace(self.loop, count=self.loop.count - repeat.late)
        return replace(self, loop=fewer, order=replace(self.order, repeat=None))

    @cached_property
    def events(self) -> list[list[tuple[int, int]]]:
        """By step of the template: the (device, place) of its instructions."""
        return events_of(self.program)

    @property
    def count(self) -> int:
        return self.loop.count if self.loop else 1

    @cached_property
    def same_instructions(self) -> Sequence[int]:
        """By rank, the first one with the same instructions, in whatever order of micro-batches."""
        return self.alike or likeness(self.program, self.register)

    @cached_property
    def likeness(self) -> Sequence[int]:
        """By rank, the first one that runs the same instructions in the same order."""
        if self.short is not self:
            return self.short.likeness
        alike = self.same_instructions
        if self.loop is None:
            return alike  # in the order of their places
        orders: dict[int, list[tuple[int, Numbers, Numbers]]] = defaultdict(list)
        found = []
        for rank, first in enumerate(alike):
            at, place = self.instructions(rank)
            micros = self.micros[at]
            for other, places, others in orders[first]:
                if np.array_equal(place, places) and np.array_equal(micros, others):
                    found.append(other)
                    break
            else:
                orders[first].append((rank, place, micros))
                found.append(rank)
        return found

    def instructions(self, rank: int) -> tuple[NDArray[np.int32], Numbers]:
        """Which of `steps` a rank takes part in, and the places of its instructions there."""
        begins, found = self._instructions
        at = found[begins[rank] : begins[rank + 1]]
        place = np.zeros(len(self.events), dtype=np.int64)
        place[list(self.program.steps[rank])] = np.arange(len(self.program.steps[rank]))
        return at, place[self.steps[at]]

    @cached_property
    def _instructions(self) -> tuple[Numbers, NDArray[np.int32]]:
        """Which of `steps` ranks take part in, rank after rank, and where those of each begin."""
        events = self.events
        first = np.cumsum([0, *map(len, events)])
        ranks = np.array([rank for own in events for rank, _ in own], dtype=np.int64)
        counts = np.repeat(np.bincount(self.steps, minlength=len(events)), np.diff(first))
        sizes = np.bincount(ranks, weights=counts, minlength=len(self.program.steps)).astype(np.int64)
        begins = np.concatenate(([0], np.cumsum(sizes)))
        found = np.zeros(int(begins[-1]), dtype=np.int32)
        by_rank = _by_rank if len(self.steps) > FEW else _by_rank.py_func
        by_rank(self.steps, first, ranks, begins[:-1].copy(), found)
        return begins, found

    @cached_property
    def offsets(self) -> Numbers:
        """By step of the template: an event's number is this plus its micro-batch. Numbers start at 0, without gaps."""
        own = self.of or [None] * len(self.events)
        shown = [range(1) if self.loop is None or n is None else self.loop.stands_for(n) for n in own]
        begins: Numbers = np.cumsum([0, *map(len, shown[:-1])], dtype=np.int64)
        return begins - np.array([each.start for each in shown], dtype=np.int64)

    def equal_ranks(self, keys: Sequence[Hashable]) -> tuple[int, ...]:
        """By rank, the first of those that are equal to it, with equal `keys` (`equal_ranks`)."""
        return equal_ranks(self.program, self.events, list(zip(self.likeness, keys, strict=True)))

    def micro(self, steps: Numbers, others: Numbers, micros: Numbers) -> Numbers:
        """The micro-batches of events to which others, for `micros`, refer."""
        if self.loop is None:
            return np.zeros_like(steps)
        of = np.array([-1 if own is None else own for own in self.of])
        own = of[steps]
        return np.where(own < 0, 0, np.where(own == of[others], micros, np.array(self.loop.shown)[own]))

    @property
    def pcg(self) -> PCG:
        """The graph of all samples of a step."""
        own = self.program.tasks.graph.pcg
        return with_micro_batches(own, len(self.loop.shown), self.loop.count) if self.loop else own

    @cached_property
    def graph(self) -> Graph:
        """The same, not planned where there is a loop, but for how parameters are fetched and gradients summed."""
        own = self.program.tasks.graph
        if self.loop is None:
            return own
        made = own.of_batch(self.pcg)
        made.move_data_as(own)
        return made

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        micros = map(micro_of, self.program.tasks.ops)
        return sum(1 if self.loop is None or micro is None else len(self.loop.stands_for(micro)) for micro in micros)


@njit(cache=True, nogil=True)
def _by_rank(steps: Numbers, first: Numbers, ranks: Numbers, heads: Numbers, found: NDArray[np.int32]) -> None:
    """`found`: by rank, from `heads` on, the places of the steps that it takes part in.

    `ranks`: those of step `s` from `first[s]` to `first[s + 1]`.
    """
    for at in range(len(steps)):
        for member in range(first[steps[at]], first[steps[at] + 1]):
            found[heads[ranks[member]]] = at
            heads[ranks[member]] += 1


def once(program: Materialized) -> Looped:
    """A program whose every event runs once."""
    steps = np.arange(len(events_of(program)))
    return Looped(program, None, Order(steps, np.zeros_like(steps)))


def events_of(program: Materialized) -> list[list[tuple[int, int]]]:
    """By step: the (device, place) of its instructions."""
    count = 1 + max((own[-1] for own in program.steps if own), default=-1)
    found: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, own in enumerate(program.steps):
        for place, step in enumerate(own):
            found[step].append((number, place))
    return found


def looped(completed: Completed, program: Materialized, template: Template) -> Looped:
    """The program of all micro-batches of a loop, from that of its template.

    Raises Irregular if they are not alike, or cannot run in the order of the schedule.
    """
    met = next(iter(completed.tasks.meetings.values()), None)
    if met is not None:
        raise Irregular(str(met))
    members = _Members(program)
    found: Order | None = None
    for fewer in shorter(template):
        with suppress(Irregular):  # it says why of all micro-batches, if it is so for them
            found = _order(completed, program, fewer.template, members, fewer)
        if found is not None:
            break
    else:
        found = _order(completed, program, template, members)
        assert found is not None, "all micro-batches are left"
    return Looped(program, template.loop, found, members.event, members.register)


def _order(
    completed: Completed, program: Materialized, template: Template, members: _Members, fewer: Shorter | None = None
) -> Order | None:
    """The events of all micro-batches, or of `fewer`; None if it is not proved that these repeat themselves."""
    loop, pace = template.loop, _Pace(completed, program, template).run()
    again = pace.period(fewer) if fewer else None
    if fewer and again is None:
        return None
    position = _positions(pace)
    rows, columns = (np.full(len(program.places), -1) for _ in range(2))  # of `position`; column -1: an event's own
    for step, (at, _) in enumerate(program.places):
        own, micro = members.event[step], micro_of(program.order[at]) if at >= 0 else None
        rows[step] = pace.family[at] if at >= 0 else -1
        if micro is None or micro == own:
            continue
        if micro != 0 and (own is not None or micro == 1):
            raise Irregular(f"an event of micro-batch {own} follows a task of micro-batch {micro}")
        columns[step] = loop.shown[micro]
    order = np.concatenate(list(_order_keys(program, loop, members.event, position, (rows, columns))))
    order.sort()
    places, micros = np.divmod(order, loop.count)
    repeat = None
    if again is not None:
        events = 3 * len(rows) * loop.count  # of a position
        start, stop = (int(np.searchsorted(order, pace.ended(at) * events)) for at in (again.start, again.stop))
        repeat = Repeat(start, stop, again.micros, again.times)
    places %= len(rows)
    _check_reads(members, loop, places, micros)
    if repeat is not None:
        between = np.array([own == 1 for own in members.event])
        times = np.bincount(places[repeat.start : repeat.stop], minlength=len(rows))
        if not np.array_equal(times, np.where(between, repeat.micros, 0)):
            return None
    return Order(places, micros, repeat)


def _check_reads(members: _Members, loop: Loop, places: Numbers, micros: Numbers) -> None:
    """Raise Irregular if an event would run before the one that writes what it reads.

    `_Members` compares those of different micro-batches.
    """
    at = np.full((len(members.event), loop.count), -1, dtype=np.int32)  # when an event of a micro-batch runs
    at[places, micros] = np.arange(len(places))
    shown = [slice(1), *(slice(own.start, own.stop) for own in map(loop.stands_for, range(len(loop.shown))))]
    own = [shown[0 if number is None else number + 1] for number in members.event]
    seen = set[Register]()  # a sum that is added to has several writers, of which the first counts
    for step, instructions in enumerate(members.instructions):
        for register in {register for instruction in instructions for register in writes(instruction)} - seen:
            seen.add(register)
            for reader in members.readers.get(register, ()):
                if reader == step or members.event[step] not in (None, members.event[reader]):
                    continue
                written, reading = at[step, own[step]], at[reader, own[reader]]
                if np.any((written >= reading) & (written >= 0) & (reading >= 0)):
                    raise Irregular(f"a result of micro-batch {members.event[step]} is read before it is there")


def _order_keys(
    program: Materialized,
    loop: Loop,
    of: Sequence[int | None],
    position: Numbers,
    after: tuple[Numbers, Numbers],
) -> Iterator[Numbers]:
    """The events of all micro-batches, each as a number of its position, side, step and micro-batch.

    `of`: the micro-batch of every event in the template; `after`: the row and column of the `position` that it follows.
    """
    rows, columns = after
    size, sides = len(rows), np.array([side for _, side in program.places], dtype=np.int64)
    numbers = np.array([-1 if own is None else own for own in of], dtype=np.int64)
    for number in np.unique(numbers).tolist():
        shown = range(1) if number < 0 else loop.stands_for(number)
        micros = np.arange(shown.start, shown.stop)
        own = np.flatnonzero(numbers == number)
        for steps in np.split(own, range(CHUNK, len(own), CHUNK)):
            column, row = columns[steps, None], rows[steps, None]
            keys = np.where(row < 0, -1, position[row, np.where(column < 0, micros, column)])
            for by, more in ((3, sides[steps, None]), (size, steps[:, None]), (loop.count, micros)):
                keys *= by
                keys += more
            yield keys.ravel()


class _Members:
    """The micro-batch of every event and register of a template."""

    def __init__(self, program: Materialized) -> None:
        self.register: dict[Register, int | None] = {}
        self.event: list[int | None] = []
        self.program, self.events = program, events_of(program)
        self.instructions = [[program.devices[number][place] for number, place in own] for own in self.events]
        for own in self.instructions:
            micro = self._event(own)
            if micro is None and not isinstance(own[0], Run | Accumulate):
                made = {register for instruction in own for register in writes(instruction)}
                tasks = {m for register in made for m in self._tasks(register)}
                micro = tasks.pop() if len(tasks) == 1 else None  # such as a weight that one of them fetches
            self.event.append(micro)
            for instruction in own:
                for register in writes(instruction):
                    further = isinstance(instruction, Accumulate) and not instruction.first
                    alike = not further or self.register[register] == micro  # a sum is of the one that it is within
                    self.register[register] = micro if alike else None

    def _event(self, own: Sequence[Instruction]) -> int | None:
        first = own[0]
        found = {self.register[r] for instruction in own for r in reads(instruction)} - {None}
        if isinstance(first, Run):
            micro = micro_of(first.op)
            wrong = found - {0, micro} if micro is not None else found & {1}
        else:
            micro = max((m for m in found if m is not None), default=None)
            wrong = found - {0, micro}
        if wrong:
            raise Irregular(f"{type(first).__name__} of micro-batch {micro} reads of micro-batch {wrong}")
        return micro

    @cached_property
    def readers(self) -> Mapping[Register, Sequence[int]]:
        """The events that read each register."""
        found: dict[Register, list[int]] = defaultdict(list)
        for step, own in enumerate(self.instructions):
            for instruction in own:
                for register in reads(instruction):
                    found[register].append(step)
        return found

    def _tasks(self, register: Register) -> Iterator[int | None]:
        """The micro-batches of the tasks that read a register, or what is made of it."""
        for step in self.readers.get(register, ()):
            for number, place in self.events[step]:
                instruction = self.program.devices[number][place]
                if isinstance(instruction, Run):
                    yield micro_of(instruction.op)
                else:
                    for written in writes(instruction):
                        yield from self._tasks(written)


class _Pace:
    """When every task of every micro-batch ends, if all kernels take equal times (`materialize.synchronized`).

    `family`: by task of the template, the row of `ends`; tasks that differ in their micro-batch alone share one.
    """

    def __init__(self, completed: Completed, program: Materialized, template: Template) -> None:
        self.loop, self.tasks = template.loop, program.order
        self.at = {op: at for at, op in enumerate(self.tasks)}
        self.micro = [micro_of(op) for op in self.tasks]
        self.own: dict[int, list[int]] = defaultdict(list)  # by device: its tasks
        for at, op in enumerate(self.tasks):
            self.own[device(op)].append(at)
        self.once: tuple[list[int], list[int]] = [], []  # tasks before and after all micro-batches
        self.slots: dict[tuple[Key, int], list[int]] = {}  # by slot and micro-batch of the template: its tasks
        self.devices: dict[Key, tuple[int, ...]] = {}
        self.family: list[int] = [-1] * len(self.tasks)
        keys = slots_of(self.tasks, template)
        self._divide(keys)
        self.orders = self._orders(template)
        self._check(keys)
        shape = 1 + max(self.family, default=0), self.loop.count
        self.ends = np.full(shape, -1, dtype=np.int64)
        self.before: list[list[tuple[int, int]]] = [[] for _ in self.tasks]  # producers, how long results are under way
        for need, producer in completed.chosen.items():
            self.before[self.at[need.task]].append((self.at[producer], arrival(0, producer, need.task)))
        for _, first, second in ordered(completed.tasks):
            if all(self.micro[self.at[op]] is None for op in (*first, *second)):
                for op in second:
                    self.before[self.at[op]] += [(self.at[earlier], 0) for earlier in first]
        self.needs = [  # rows of producers, whether those of its own micro-batch, and how long they are under way
            [(self.family[before], self._column(at, before), under_way) for before, under_way in own]
            for at, own in enumerate(self.before)
        ]
        self.outer = {slot: self._outer(tasks) for slot, tasks in self.slots.items()}
        self.rows = {slot: np.array([self.family[at] for at in tasks]) for slot, tasks in self.slots.items()}

    def _divide(self, keys: Sequence[Key]) -> None:
        """Divide the tasks into slots, in the order of the template."""
        for own in self.own.values():
            inner = [place for place, at in enumerate(own) if self.micro[at] is not None]
            late = False  # on a device without micro-batches: after those of the others
            for place, at in enumerate(own):
                if self.micro[at] is None:
                    late |= not inner and self.tasks[at].phase in (Phase.BACKWARD, Phase.WEIGHT, Phase.UPDATE)
                    if inner and inner[0] < place < inner[-1]:
                        raise Irregular(f"{self.tasks[at].name} runs between micro-batches")
                    self.once[place > inner[-1] if inner else late].append(at)
        shown: dict[tuple[Key, int], list[int]] = defaultdict(list)
        for at, micro in enumerate(self.micro):
            if micro is not None:
                shown[keys[at], micro].append(at)
        rows = 0
        for key in dict.fromkeys(key for key, _ in shown):
            alike: list[list[Likeness]] = []
            for number in range(len(self.loop.shown)):
                self.slots[key, number] = shown[key, number]
                ranked = sorted(shown[key, number], key=lambda at: device(self.tasks[at]))
                alike.append([likeness_of(self.tasks[at]) for at in ranked])
                for row, at in enumerate(ranked, rows):
                    self.family[at] = row
            if any(other != alike[0] for other in alike):
                raise Irregular(f"slot {key} is not the same in all micro-batches")
            rows += len(alike[0])
            self.devices[key] = tuple(dict.fromkeys(number for number, *_ in alike[0]))
        for side in self.once:
            side.sort()
        for row, at in enumerate((*self.once[0], *self.once[1]), rows):
            self.family[at] = row

    def _orders(self, template: Template) -> list[list[tuple[Key, int]]]:
        """By device: its slots of all micro-batches.

        What stages of all devices run stands in the order of each, between slots of its own that the others lack.
        """
        orders: list[list[tuple[Key, int]]] = [[] for _ in range(1 + max(self.own))]
        if not template.orders:
            for number in self.devices.get(ALL_OF_IT, ()):
                orders[number] = [(ALL_OF_IT, micro) for micro in range(self.loop.count)]
        for order in template.orders:
            here: dict[int, list[tuple[Key, int]]] = defaultdict(list)
            for slot in order:
                key = (slot.kind, slot.stage)
                for number in self.devices.get(key, ()):
                    here[number].append((key, slot.micro))
            for number, found in here.items():
                less, more = sorted((orders[number], found), key=len)
                left = iter(more)
                if not all(slot in left for slot in less):
                    raise Irregular(f"device {number} has several orders")
                orders[number] = more
        return orders

    def _check(self, keys: Sequence[Key]) -> None:
        """Raise Irregular unless devices run whole slots, in the schedule's order, and those of a kind by number."""
        shown = {micro: number for number, micro in enumerate(self.loop.shown)}
        for number, own in self.own.items():
            ran = [(keys[at], self.micro[at]) for at in own if self.micro[at] is not None]
            blocks = [pair for pair, _ in groupby(ran)]
            if blocks != [(key, shown[micro]) for key, micro in self.orders[number] if micro in shown]:
                raise Irregular(f"device {number} does not run the slots of its schedule one after another")
            micros: dict[Key, list[int]] = defaultdict(list)
            for key, micro in self.orders[number]:
                micros[key].append(micro)
            if any(found != list(range(self.loop.count)) for found in micros.values()):
                raise Irregular(f"device {number} does not run its micro-batches in the order of their numbers")

    def _outer(self, tasks: Sequence[int]) -> tuple[_Outer, _Outer]:
        """What a slot needs of others, and the same without what runs before all micro-batches."""
        inside = set(tasks)
        found = dict.fromkeys(
            need
            for at in tasks
            for (before, _), need in zip(self.before[at], self.needs[at], strict=True)
            if before not in inside
        )
        rows, own, under_way = (
            (np.array(x) for x in zip(*found, strict=True)) if found else (np.zeros(0, dtype=int),) * 3
        )
        later = ~np.isin(rows, [self.family[at] for at in self.once[0]])
        every = _Outer(rows, own.astype(bool), under_way)
        return every, _Outer(every.rows[later], every.own[later], every.under_way[later])

    def _column(self, at: int, before: int) -> bool:
        """True if a task of a micro-batch needs the same one of a producer; False: the first, or one that runs once."""
        own = self.micro[before]
        if self.micro[at] is not None and own is not None and own != self.micro[at] and own != 0:
            raise Irregular(f"{self.tasks[at].name} needs another micro-batch than its own")
        return own is not None and own == self.micro[at]

    def run(self) -> _Pace:
        self.free = [0] * len(self.orders)
        self.known: dict[object, tuple[NDArray[np.int64], list[int]]] = {}
        for at in self.once[0]:
            self._once(at)
        self.begun = max(self.free)  # when all that runs before has ended
        heads, moved = [0] * len(self.orders), True
        while moved:
            moved = False
            for number, order in enumerate(self.orders):
                while heads[number] < len(order):
                    slot = order[heads[number]]
                    here = self.devices[slot[0]]
                    if any(self.orders[d][heads[d] : heads[d] + 1] != [slot] for d in here) or not self._slot(*slot):
                        break
                    moved = True
                    for d in here:
                        heads[d] += 1
        if any(head < len(order) for head, order in zip(heads, self.orders, strict=True)):
            raise Irregular("the slots wait for one another")
        for at in self.once[1]:
            self._once(at)
        return self

    def _slot(self, key: Key, micro: int) -> bool:
        """Run a slot if what it needs has run."""
        number = self.loop.number(micro)
        tasks, here = self.slots[key, number], self.devices[key]
        base = min(self.free[d] for d in here) // UNIT * UNIT
        outer = self.outer[key, number][base >= self.begun]
        before = self.ends[outer.rows, np.where(outer.own, micro, 0)]
        if before.size and before.min() < 0:
            return False
        sent = outer.under_way > 0
        across = np.maximum(before[sent] + outer.under_way[sent] - base, -1)
        state = key, number, base >= self.begun, tuple(self.free[d] - base for d in here), across.tobytes()
        rows = self.rows[key, number]
        if state not in self.known:
            for at in tasks:
                self._task(at, micro)
            self.known[state] = self.ends[rows, micro] - base, [self.free[d] - base for d in here]
        ends, free = self.known[state]
        self.ends[rows, micro] = ends + base
        for d, end in zip(here, free, strict=True):
            self.free[d] = base + end
        return True

    def _once(self, at: int) -> None:
        """Run a task that is not of a micro-batch."""
        self._task(at, 0)
        row = self.family[at]
        self.ends[row] = self.ends[row, 0]

    def _task(self, at: int, micro: int) -> None:
        op, where, needs = self.tasks[at], device(self.tasks[at]), self.needs[at]
        if self.micro[at] is None:  # it needs what ran once, and all micro-batches of the others
            ended = self.ends[[row for row, _, _ in needs]]
            if ended.min(initial=0) < 0:
                raise Irregular(f"{op.name} runs before micro-batches that it needs")
            arrived = ended.max(axis=1, initial=0) + [under_way for _, _, under_way in needs]
            start = max(self.free[where], int(arrived.max(initial=0)))
        else:
            arrivals = (int(self.ends[row, micro if own else 0]) + under_way for row, own, under_way in needs)
            start = max([self.free[where], *arrivals])
        self.free[where] = self.ends[self.family[at], micro] = ended_after(start, op)

    def period(self, within: Shorter) -> Period | None:
        """When the devices have done the same as before, for later micro-batches."""
        keys = [list(dict.fromkeys((slot.kind, slot.stage) for slot in own)) for own in within.template.orders]
        keys = keys or [[ALL_OF_IT]]
        slots = dict.fromkeys(key for own in keys for key in own)
        own = {number for key in slots for number in self.devices.get(key, ())}
        if slots.keys() != self.devices.keys() or any(device(self.tasks[at]) not in own for at in self.once[1]):
            return None
        rows = [self.rows[key, 1] for key in slots]
        begins = np.cumsum([0, *map(len, rows)])
        places = {key: np.arange(begins[at], begins[at + 1]) for at, key in enumerate(slots)}
        every = np.concatenate(rows)
        once = [self.ends[self.family[at], 0] for at in self.once[0]]
        latest = MESSAGE + int(max([0, *once, *self.ends[every, 0]]))
        shown = [dict(enumerate(places[key] for key in own)) for own in keys]
        return period(self.ends[every, 1:-1], shown, within, latest, UNIT)

    def ended(self, time: int) -> int:
        """How many tasks of all micro-batches have ended by then."""
        single = [self.family[at] for side in self.once for at in side]
        return int((self.ends <= time).sum() - (self.ends[single, 1:] <= time).sum())


class _Outer(NamedTuple):
    """What a slot needs of others: rows of tasks, whether of its own micro-batch, how long it is under way."""

    rows: NDArray[np.int64]
    own: NDArray[np.bool_]
    under_way: NDArray[np.int64]


def _positions(pace: _Pace) -> NDArray[np.int64]:
    """The position of every task of every micro-batch among all: by end, then device."""
    rows = len(pace.family)
    devices = np.zeros(len(pace.ends), dtype=np.int64)
    for at in range(rows):
        devices[pace.family[at]] = device(pace.tasks[at])
    single = np.zeros(len(pace.ends), dtype=bool)
    single[[pace.family[at] for side in pace.once for at in side]] = True
    kept = np.flatnonzero(~single[:, None] | (np.arange(pace.ends.shape[1]) == 0))
    keys = (pace.ends * len(pace.orders) + devices[:, None]).ravel()[kept]  # the tasks of a device end one by one
    found = np.full(pace.ends.shape, -1, dtype=np.int64)
    found.ravel()[kept[np.argsort(keys)]] = np.arange(len(keys))
    found[single] = found[single, :1]
    return found
