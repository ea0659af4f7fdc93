"""Dependency materialization: the tasks of a plan become a program (SuperScaler, sections 3.3 and 4, Figure 8).

Every vTensor that a task reads is assembled from what other tasks write. Each device first adds up its own addends of
one box for the same readers. The overlaps then go to the devices that lack them, by slice, send and receive or by
collectives, where a pattern matches (`aligned`) or the RVD search finds a path (`regular`). The pieces are joined and
added just before the first task that reads them.

A transfer comes right after the last task that produces its data, before gradients that come with it are accumulated.
Parameters that a device does not keep are fetched
just before each use. There is no deadlock: all events lie in one total order that respects the dependencies, every
device runs its events in that order, so all devices of the first unfinished event are waiting at it.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import partial

from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from .builder import BEFORE, START, EventBuilder
from .dtypes import item_bytes
from .given_back import summed_in_groups
from .mask import PTensor, VTensor
from .materialized import Materialized, Register, Run
from .op import COMPUTES, Op, Phase
from .order import Completed, ordered
from .price import deferred_halves, is_free
from .supplies import Demand, Written, demand_of, device, nested, supplies
from .tasks import Need
from .transfers import Transfers

COMMUNICATION = ("p2p", "intra", "rvd")
UNIT = 1 << 32
KERNEL = 2 * UNIT
"""How long a kernel takes as devices advance at one pace; each half of a split backward takes a `UNIT`."""
MESSAGE = 2 * KERNEL
"""How long a message to another device takes: so receives of a pipeline are posted ahead."""


def materialize(
    completed: Completed, machine: Machine | None = None, *, communication: str = "rvd", dtype: str = "float32"
) -> Materialized:
    """The program of a completed plan.

    `communication`: "p2p" uses sends and receives only, "intra" also collectives within a device group, "rvd" also
    between groups. Without a machine, collectives are matched but not searched. `dtype`: of the computation, by which
    transfers are priced. Raises PartitaError for other values.
    """
    if communication not in COMMUNICATION:
        raise PartitaError(f"communication {communication!r} is none of {', '.join(COMMUNICATION)}")
    order, ends = synchronized(completed)
    graph = completed.tasks.graph
    builder = EventBuilder(graph, _together(order, ends))
    written = Written(order, completed.tasks, builder)
    item = partial(item_bytes, graph.pcg, of=precision(dtype))
    transfers = Transfers(builder, written, machine, communication, item)
    wanted = _Wanted(completed, order, written)
    for key, demands in wanted.groups.items():
        if transfers.all_local(demands):
            continue
        floor = START if isinstance(key, PTensor) else (min(demand.at for demand in demands), BEFORE)
        found = supplies(nested(demands, written), written)
        transfers.bring(summed_in_groups(found, transfers, floor), floor)
    registers: dict[Demand, Register] = {}
    omitted = wanted.omitted()
    for demand in sorted(dict.fromkeys(wanted.of.values()), key=lambda q: q.within is not None):
        mask, place = demand.read.mask, (demand.at, BEFORE)
        if demand in omitted:
            made = builder.zeros(demand.device, demand.read.tensor, mask.box, place, omitted=True)
        elif demand.within is None:
            made = builder.assemble(demand.device, demand.read.tensor, mask.box, demand.parts, place)
        else:
            made = builder.slice(registers[demand.within], mask.box, place)
        registers[demand] = made
    for op in order:
        reads = tuple(registers[wanted.of[op, read]] for read in wanted.reads[op])
        builder.run(written.at[op], Run(op, reads, written.outputs(op), completed.tasks.meetings.get(op)))
    return builder.program(completed.tasks, order, written.turns)


def synchronized(completed: Completed) -> tuple[list[Op], dict[Op, int]]:
    """The tasks ordered so that devices advance at the same pace, and their ends; each device keeps its own order.

    Tasks are sorted by end time with equal times of kernels, and messages of `MESSAGE`, so that joint transfers
    (fetching a parameter) come at about the same time on all devices; at equal times by device. Those that meet end at
    once and come one after the other.
    """
    place = {op: at for at, op in enumerate(completed.order)}
    before: dict[Op, list[Op]] = defaultdict(list)
    for need, producer in completed.chosen.items():
        before[need.task].append(producer)
    starts: dict[Op, list[int]] = defaultdict(list)  # the orders whose first operators a task is one of
    waits: dict[Op, list[int]] = defaultdict(list)  # the orders whose second operators a task is one of
    for number, (_, first, second) in enumerate(ordered(completed.tasks)):
        for op in first:
            starts[op].append(number)
        for op in second:
            waits[op].append(number)
    ends: dict[Op, int] = {}
    free: dict[int, int] = defaultdict(int)
    ended: dict[int, int] = defaultdict(int)  # by order: when the last of its first operators ends
    meetings = completed.tasks.meetings
    for lead in completed.order:
        members = meetings[lead].ops if lead in meetings else (lead,)
        if lead is not members[0]:
            continue
        start = 0
        for op in members:
            start = max(
                start,
                free[device(op)],
                max((arrival(ends[earlier], earlier, op) for earlier in before.get(op, ())), default=0),
                max((ended[number] for number in waits.get(op, ())), default=0),
            )
        for op in members:
            ends[op] = free[device(op)] = ended_after(start, op)
            for number in starts.get(op, ()):
                ended[number] = max(ended[number], ends[op])

    def key(op: Op) -> tuple[int, int, int, int]:
        lead = meetings[op].ops[0] if op in meetings else op
        return ends[op], device(lead), place[lead], place[op]

    return sorted(completed.order, key=key), ends


def _together(order: Sequence[Op], ends: Mapping[Op, int]) -> list[int]:
    """By place, the last place of the tasks of that node and phase that end at the same time, on all devices."""
    keys = [(op.node, op.phase, ends[op]) for op in order]
    last = {key: at for at, key in enumerate(keys)}
    return [last[key] for key in keys]


def ended_after(start: int, op: Op) -> int:
    """The end of a task: kernels take units of time; other tasks follow one another within a unit."""
    units = _units(op)
    return (start // UNIT + units) * UNIT if units else start + 1


def _units(op: Op) -> int:
    """How many units of time a task computes."""
    if op.phase not in COMPUTES or is_free(op):
        return 0
    if op.forward is None or not op.forward.split or op.phase is Phase.RECOMPUTE:
        return 2
    later = deferred_halves(op)
    return later if op.phase is Phase.WEIGHT else 2 - later


def arrival(end: int, producer: Op, reader: Op) -> int:
    """When a reader has the result of a task that ended then."""
    return end + MESSAGE * (device(producer) != device(reader))


class _Wanted:
    """All demands of a plan: one per device and vTensor read; a fetched parameter has one per use.

    `groups`: demands that are met together, by tensor; of a fetched parameter by tensor and use.
    """

    def __init__(self, completed: Completed, order: Sequence[Op], written: Written) -> None:
        self.completed, self.written = completed, written
        self.reads = completed.tasks.reads
        self.of: dict[tuple[Op, VTensor], Demand] = {}
        self.groups: dict[Hashable, list[Demand]] = defaultdict(list)
        self._known: dict[tuple[int, VTensor], Demand] = {}
        self._needs: dict[Op, list[Need]] = defaultdict(list)
        for need in completed.tasks.needs:
            if need.read is not None:
                self._needs[need.task].append(need)
        shared = written.builder.graph.shared
        for op in order:
            for read in dict.fromkeys(self.reads[op]):
                # a group's recomputation and its backward read the same weights
                phase = Phase.BACKWARD if op.phase is Phase.RECOMPUTE else op.phase
                use = (phase, None if read.tensor.node in shared else op.node, written.turns[op])
                self.of[op, read] = self._demand(op, read, use)

    def _demand(self, op: Op, read: VTensor, use: Hashable) -> Demand:
        key = device(op), read
        known = self._known.get(key)
        if known is not None:
            return known
        needs = (need for need in self._needs[op] if need.read is read)
        demand = demand_of(op, read, needs, self.written, self.completed.chosen)
        if self._fetched(demand):
            self.groups[read.tensor, use].append(demand)
        else:
            self.groups[read.tensor].append(demand)
            self._known[key] = demand
        return demand

    def omitted(self) -> set[Demand]:
        """Values whose addends are all on other devices, and which here are only added to something: zeros to omit.

        To be asked once all demands are met. Nobody reads the gradients that the additions would give of them.
        """
        given = {
            (op.forward, register.tensor.node)
            for op in self.written.writes
            if op.phase is Phase.BACKWARD
            for register in self.written.outputs(op)
            if register is not None
        }
        here = {(written.tensor, device(op)) for op, own in self.written.writes.items() for written in own}
        found = {q for q in self.of.values() if not q.terms and (q.read.tensor, q.device) not in here}
        size = None
        while size != len(found):
            size = len(found)
            kept = {(op.forward or op, read.tensor.node) for (op, read), q in self.of.items() if q not in found}
            for (op, read), demand in self.of.items():
                zero = op.forward or op, read.tensor.node
                if demand in found and (zero in given or not _gives_other(op, kept, zero)):
                    found.discard(demand)
        return found

    def _fetched(self, demand: Demand) -> bool:
        """True for a parameter not wholly kept on its device, which is released after each use."""
        if not self.written.builder.graph.of_parameter(demand.read.tensor):
            return False
        return any(demand.device not in self.written.writers(term) for term in demand.terms)


def _gives_other(op: Op, kept: Set[tuple[Op, int]], zero: tuple[Op, int]) -> bool:
    """True if an operator adds the zeros to one other operand, which it has in all phases, and does nothing else."""
    shapes = {op.graph.pcg.nodes[i].shape for i in (*op.of.inputs, op.node)}
    others = {(op.forward or op, i) for i in op.of.inputs} - {zero}
    return op.of.op == "add" and len(shapes) == 1 and len(others) == 1 and others <= kept and zero not in kept
