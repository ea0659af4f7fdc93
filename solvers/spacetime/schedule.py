"""Optimal schedules of a plan's own stages, with a proven bound.

Durations, bytes and transfers come from the plan's prices, precedences from the needs of its tasks. The optimum is over
schedules of these groups on these devices in that cost model; each group runs without interruption.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...formulation.pipeline.orders import Orders, Slot
from ...formulation.pipeline.problem import Precedence, Problem, Room, Task
from ...formulation.pipeline.steady import Steady
from ...formulation.spacetime.op import Op, Phase
from ...formulation.spacetime.order import PlanConflict
from ...formulation.spacetime.price import Prices
from ...formulation.spacetime.tasks import Need, Tasks, tasks
from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from ..protocol import Status
from ..schedule.bounds import makespan_bound
from ..schedule.cpsat import ScheduleAnswer, fitting, solve
from ..schedule.steady import steady

MANY = 16
"""Most micro-batches that are unrolled; schedules of more repeat a period."""

_KIND = {Phase.FORWARD: "F", Phase.RECOMPUTE: "R", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}


def schedule(
    groups: Sequence[Iterable[Op]],
    machine: Machine | None = None,
    *,
    label: str = "micro",
    room: Room = None,
    known: Iterable[Orders] = (),
    seconds: float = 30.0,
    dtype: str = "float32",
) -> ScheduleAnswer:
    """The shortest schedule of stages of assigned operators, for `in_order(answer.orders, groups)`.

    `groups`: forward operators, stage by stage; the transformation `label` made their micro-batches. `room`: activation
    bytes per device. `known`: initial orders; the result is at least as good. More than `MANY` equal micro-batches are
    not unrolled: the schedule repeats the shortest period, with a bound for any number (`solvers.schedule.steady`).
    Raises PlanConflict where the tasks cannot run in any order, PartitaError for operators without device or price.
    """
    if not seconds > 0:
        raise PartitaError(f"a schedule is sought for a positive number of seconds, not {seconds}")
    problem, given = problem_of(groups, machine, label=label, room=room, dtype=dtype), list(known)
    start = time.perf_counter()
    one = one_of(problem)
    if one is not None and len(problem.tasks) > MANY * len(one.tasks):
        repeating = steady(one, seconds=seconds / 2)
        count = len(problem.tasks) // len(one.tasks)
        if repeating.steady is not None and repeating.steady.least <= count:
            return _long(problem, repeating.steady, count, given, time.perf_counter() - start)
    return solve(problem, known=given, seconds=seconds - (time.perf_counter() - start))


def one_of(problem: Problem) -> Problem | None:
    """The problem of one micro-batch if all are equal and independent; else None."""
    by_micro: dict[int, list[int]] = defaultdict(list)
    for i, task in enumerate(problem.tasks):
        by_micro[task.micro].append(i)
    inner: dict[int, list[Precedence]] = defaultdict(list)
    for edge in problem.edges:
        micro = problem.tasks[edge.before].micro
        if problem.tasks[edge.after].micro != micro:
            return None
        inner[micro].append(edge)
    distinct = set()
    for micro, own in by_micro.items():
        place = {i: number for number, i in enumerate(sorted(own, key=lambda i: problem.tasks[i].slot))}
        tasks_ = tuple(replace(problem.tasks[i], micro=0) for i in sorted(own, key=place.__getitem__))
        distinct.add(
            (tasks_, tuple(sorted(Precedence(place[e.before], place[e.after], e.lag_ns) for e in inner[micro])))
        )
    if len(distinct) > 1 or set(by_micro) != set(range(len(by_micro))):
        return None
    tasks_, edges = distinct.pop()
    return Problem(tasks_, edges, problem.capacities)


def _long(problem: Problem, repeating: Steady, count: int, known: Sequence[Orders], seconds: float) -> ScheduleAnswer:
    """The periodic schedule of `count` micro-batches, or a shorter known one."""
    found = [one for orders in (repeating.orders(count), *known) if (one := fitting(problem, orders)) is not None]
    best = min(found, key=lambda one: one.makespan_ns)
    bound = makespan_bound(problem)
    if count > repeating.floor.beyond:
        bound = max(bound, repeating.floor.makespan_ns(count))
    status = Status.OPTIMAL if best.makespan_ns == bound else Status.FEASIBLE
    words = f"repeats every {repeating.period_ns:,} ns; bound: {repeating.floor.words}"
    return ScheduleAnswer(status, best, best.makespan_ns, bound, seconds, words)


def problem_of(
    groups: Sequence[Iterable[Op]],
    machine: Machine | None = None,
    *,
    label: str = "micro",
    room: Room = None,
    dtype: str = "float32",
) -> Problem:
    """The scheduling problem of `schedule`."""
    stages = [list(ops) for ops in groups]
    if not any(stages):
        raise PartitaError("there are no operators to schedule")
    graph = next(ops[0].graph for ops in stages if ops)
    found = tasks(graph)
    if found.problems:
        raise PlanConflict(found.problems[0], found.problems)
    prices = Prices(graph, machine or Machine.adhoc((found.devices,)), dtype)
    slots = {op: Slot("F", stage, op.coordinate(label)) for stage, ops in enumerate(stages) for op in ops}
    of: dict[Op, Slot] = {}
    for op in found.ops:
        forward = op if op.phase is Phase.FORWARD else op.forward
        if forward in slots and op.phase in _KIND:
            of[op] = slots[forward]._replace(kind=_KIND[op.phase])
    members: dict[Slot, list[Op]] = defaultdict(list)
    for op, slot in of.items():
        members[slot].append(op)
    kept = _kept(found, of, prices)
    made = [_task(slot, ops, members, kept, prices) for slot, ops in members.items()]
    index = {task.slot: i for i, task in enumerate(made)}
    edges = tuple(Precedence(index[a], index[b], lag) for (a, b), lag in _waits(found, of, prices).items())
    rooms = tuple(room) if isinstance(room, Sequence) else (room,) * found.devices
    return Problem(tuple(made), edges, rooms)


def _task(slot: Slot, ops: Sequence[Op], members: dict[Slot, list[Op]], kept: dict[Slot, int], prices: Prices) -> Task:
    """The task of a slot: the time of its slowest device; activations are held until its last backward."""
    busy: dict[int, int] = defaultdict(int)
    for op in ops:
        assert op.device is not None
        busy[op.device] += prices.task_ns(op)
    last = next((kind for kind in "WB" if slot._replace(kind=kind) in members), None)
    takes = kept.get(slot, 0) if last else 0
    held = [slot._replace(kind=kind) for kind in "FR"]
    releases = sum(kept.get(one, 0) for one in held if one in members) if slot.kind == last else 0
    return Task(*slot, tuple(sorted(busy)), max(1, *busy.values()), takes, releases)


def _kept(found: Tasks, of: dict[Op, Slot], prices: Prices) -> dict[Slot, int]:
    """Bytes saved for backward by every forward or recomputation on its fullest device, each tensor once."""
    graph, nodes = found.graph, found.graph.pcg.nodes
    tensors: dict[Slot, dict[int | None, dict[object, int]]] = defaultdict(lambda: defaultdict(dict))
    for op, slot in of.items():
        if slot.kind not in "FR" or (op.forward is None and op.backward is None):
            continue
        if op.phase is Phase.FORWARD and op.group is not None:  # saves the external inputs of its group
            places = [p for p, i in enumerate(op.of.inputs) if not graph.recomputes(i, op.group)]
            saved = tuple(p for p in places if nodes[op.of.inputs[p]].op != "parameter")
            own, output = 0, op.is_kept
        else:
            all_saved = prices.saved(op)
            saved, own, output = all_saved.operands, all_saved.own_bytes, all_saved.output
        here = tensors[slot][op.device]
        for place in saved:
            source = op.of.inputs[place]
            if source not in graph.given:
                mask = op.mask(place)
                here[source, mask] = mask.numel * prices.precision.itemsize(nodes[source].dtype)
        if output:
            here[op.node, op.mask(None)] = op.mask(None).numel * prices.precision.itemsize(op.of.dtype)
        here[op] = own
    return {slot: max(sum(sizes.values()) for sizes in of_device.values()) for slot, of_device in tensors.items()}


def _waits(found: Tasks, of: dict[Op, Slot], prices: Prices) -> dict[tuple[Slot, Slot], int]:
    """The precedences between slots, each with its transfer time (ns)."""
    sent: dict[tuple[Slot, Slot], dict[object, tuple[tuple[int, int], int]]] = defaultdict(dict)
    for need in found.needs:
        if need.task not in of:
            continue
        producer = _producer(need, of)
        if producer not in of or of[producer] == of[need.task]:
            continue
        pair = sent[of[producer], of[need.task]]
        if producer.device != need.task.device and need.box:
            assert producer.device is not None and need.task.device is not None
            size = prices.item(need.tensor)
            for start, stop in need.box:
                size *= stop - start
            link = producer.device, need.task.device
            pair[need.tensor, need.box, need.addends, need.via, link] = link, size
    return {
        pair: sum(prices.sends_ns([link], [size]) for link, size in pieces.values()) for pair, pieces in sent.items()
    }


def _producer(need: Need, of: dict[Op, Slot]) -> Op:
    """The producer on the same device, if any, preferably of the same micro-batch."""
    micro = of[need.task].micro
    return min(need.producers, key=lambda op: (op.device != need.task.device, op not in of or of[op].micro != micro))
