"""The tasks of a plan and their dependencies, by mask intersection (SuperScaler, section 3.2, Figure 7).

A need lists alternative producers: replicas write the same vTensor. Parts that no operator writes, parts written twice
and unassigned operators are reported as problems.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...model.graph.layout import P, dual
from ...model.graph.pcg import PCG
from ...model.operators.operator import operator
from ..strategies.row import Row
from .graph import Graph, Order
from .in_place import mixed_statistics, moved_rows, unlike_changes
from .mask import ALL, GRADIENT, SAVED, VALUE, Addends, Box, Mask, PTensor, VTensor, cells, hull, meet, takes, within
from .meetings import Meeting, meetings
from .op import Op, Phase, differentiable
from .site import Site, told

Via: TypeAlias = "tuple[int, int] | None"
_VTensors: TypeAlias = "Mapping[Op, tuple[VTensor, ...]]"


@dataclass(slots=True, eq=False)  # there are many, and frozen ones take longer to make
class Need:
    """A task needs one part of a tensor from any one of `producers`.

    `box` and `addends`: the part of `read`, the vTensor the task reads, that they write; `via`: for a gradient, the
    reader that contributes the addend. Needs of `saved` tensors order tasks on one device and transfer nothing.
    """

    task: Op
    producers: tuple[Op, ...]
    tensor: PTensor
    box: Box = ()
    addends: Addends = ALL
    via: Via = None
    read: VTensor | None = None

    def __str__(self) -> str:
        what = {VALUE: "{}", GRADIENT: "the gradient of {}", SAVED: "what it keeps of {}"}
        name = self.task.graph.pcg.nodes[self.tensor.node].name
        text = what.get(self.tensor.kind, "the " + self.tensor.kind + " {}").format(name)
        return f"{self.task.name} needs {text}{Mask(self.box, self.addends) if self.box else ''}"


@dataclass(frozen=True, slots=True)
class Tasks:
    """All tasks of a plan with needs and orders. `problems`: why it cannot run; needs are then incomplete.

    `reads` and `writes`: the vTensors of every task (`reads_of`, `Op.writes`). `meetings`: by task that exchanges data
    while it runs, those with which it does.
    """

    graph: Graph
    ops: tuple[Op, ...]
    reads: Mapping[Op, tuple[VTensor, ...]]
    writes: Mapping[Op, tuple[VTensor, ...]]
    needs: tuple[Need, ...]
    orders: tuple[Order, ...]
    meetings: Mapping[Op, Meeting]
    problems: tuple[str, ...]

    @property
    def devices(self) -> int:
        """Number of ranks: one more than the highest assigned."""
        return _ranks(self.ops)


def ranks(graph: Graph) -> int:
    """Number of ranks of a plan: one more than the highest assigned."""
    return _ranks((*graph.ops, *graph.stores))


def _ranks(ops: Iterable[Op]) -> int:
    return 1 + max((op.device for op in ops if op.device is not None), default=0)


def tasks(graph: Graph) -> Tasks:
    """The tasks of a plan in a deterministic order: stores, forward and derived operators, updates, keeps."""
    problems = [_unassigned(op) for op in graph.forward if op.device is None]
    stores = [*graph.stores, *_default_stores(graph)]
    reached = gradients_reach(graph.pcg)
    computing = list(graph.forward)
    for op in graph.forward:
        phases = (Phase.RECOMPUTE, Phase.OFFLOAD, Phase.RELOAD, Phase.BACKWARD, Phase.WEIGHT)
        found = [graph.derived(op, phase) for phase in (phases if op.node in reached else phases[:1])]
        computing += [derived for derived in found if derived is not None]
    updates, unassigned = _updates(graph, stores, reached)
    problems += unassigned
    problems += _updated_elsewhere(updates, stores)
    problems += [*moved_rows(graph, stores, updates), *unlike_changes(graph, stores), *mixed_statistics(graph)]
    keeps = [_with_region(Op(graph, s.node, Phase.KEEP), s) for s in stores if s.of.gradient and s.node in reached]
    ops = (*stores, *computing, *updates, *keeps)
    meeting, unmet = meetings(computing) if not problems else ({}, [])
    problems += unmet
    needs: list[Need] = []
    reads = reads_of(ops)
    writes = {op: op.writes for op in ops}
    if not problems:
        needs, problems = _needs(_Writers(graph.pcg, writes, reads, reached), reads)
    orders = tuple(map(_current, graph.orders))
    return Tasks(
        graph, ops, reads, writes, needs=tuple(needs), orders=orders, meetings=meeting, problems=tuple(problems)
    )


def _current(order: Order) -> Order:
    """The order of what its operators have become."""
    if not any(op.replaced for op in (*order.first, *order.second)):
        return order
    first, second = (
        tuple(dict.fromkeys(now for op in ops for now in op.current)) for ops in (order.first, order.second)
    )
    return Order(first, second, order.where)


def gradients_reach(pcg: PCG) -> frozenset[int]:
    """The nodes that a gradient reaches from the loss."""
    found = {pcg.loss}
    for index in reversed(range(len(pcg.nodes))):
        if index in found and differentiable(pcg, index):
            found.update(i for i in pcg.nodes[index].inputs if pcg.nodes[i].gradient)
    return frozenset(found)


def _with_region(op: Op, like: Op) -> Op:
    assert like.device is not None, like
    op.region, op.device, op.assigned = like.mask(None), like.device, like.assigned
    return op


def _unassigned(op: Op) -> str:
    return told(op.where, f"{op.name} is not assigned to a device")


def _default_stores(graph: Graph) -> list[Op]:
    """Stores of unplaced parameters and of buffers that a step changes, on the devices of their readers (§5)."""
    placed = {store.node for store in graph.stores}
    wanted: dict[tuple[int, int], list[Mask]] = defaultdict(list)
    for op in graph.forward:
        for operand, source in enumerate(op.of.inputs):
            if source in graph.kept and source not in placed and op.device is not None:
                wanted[source, op.device].append(Mask(op.mask(operand).box))
    stores = []
    for (node, device), masks in sorted(wanted.items(), key=lambda item: item[0]):
        for box in sorted(_apart(dict.fromkeys(mask.box for mask in masks))):
            store = Op(graph, node, Phase.STORE)
            store.region, store.device = Mask(box), device
            stores.append(store)
    return stores


def _apart(boxes: Iterable[Box]) -> list[Box]:
    """Disjoint boxes that contain all boxes: a device keeps an entry of a parameter once."""
    found: list[Box] = []
    for box in boxes:
        while near := [other for other in found if meet(box, other) is not None]:
            box = hull([box, *near])
            found = [other for other in found if other not in near]
        found.append(box)
    return found


def _updates(graph: Graph, stores: Sequence[Op], reached: frozenset[int]) -> tuple[list[Op], list[str]]:
    """The updates of the plan; an unassigned one runs at every store of its parameter. Also returns problems."""
    updates, problems = [], []
    kept: dict[int, list[Op]] = defaultdict(list)
    for store in stores:
        kept[store.node].append(store)
    for op in graph.optimizer:
        if op.node not in reached:
            continue
        if op.device is not None:
            updates.append(op)
        elif op.cuts:
            problems.append(_unassigned(op))
        else:
            for store in kept[op.node]:
                updates.append(_with_region(Op(graph, op.node, Phase.UPDATE), store))
                updates[-1].swapped = op.swapped
    return updates, problems


def _updated_elsewhere(updates: Sequence[Op], stores: Sequence[Op]) -> Iterator[str]:
    """Problems of updates on devices without the parameter: optimizer states lie with the weights."""
    stored = stored_boxes(stores)
    for op in updates:
        mask = op.mask(None)
        if not any(within(mask.box, box) for box in stored[op.node, op.device]):
            yield told(
                op.assigned,
                f"{op.name} is on device {op.device}, which does not keep its {mask}: place it there (partita.place)",
            )


def stored_boxes(stores: Iterable[Op]) -> dict[tuple[int, int | None], list[Box]]:
    """The boxes that each device keeps, by (parameter or buffer, device)."""
    found: dict[tuple[int, int | None], list[Box]] = defaultdict(list)
    for store in stores:
        found[store.node, store.device].append(store.mask(None).box)
    return found


# Needs


def _needs(writers: _Writers, reads: Mapping[Op, tuple[VTensor, ...]]) -> tuple[list[Need], list[str]]:
    needs: list[Need] = []
    problems: list[str] = []
    for op, own in reads.items():
        needs += _saved(op)
        for read in dict.fromkeys(own):  # an operator may read a tensor twice, as x * x does
            found, lacking = writers.of(op, read)
            needs += found
            problems += lacking
    problems += writers.loss()
    return needs, list(dict.fromkeys(problems))


def reads_of(ops: Iterable[Op]) -> dict[Op, tuple[VTensor, ...]]:
    """The vTensors every task reads: `op.reads`, then the parameters that its backward fetches again."""
    ops = tuple(ops)
    stored = stored_boxes(op for op in ops if op.phase is Phase.STORE)
    saved: dict[int, list[tuple[int, int]]] = {}
    return {op: (*op.reads, *_weights_again(op, stored, saved)) for op in ops}


def _saved(op: Op) -> Iterator[Need]:
    """Orders derived operators after their forward operator, on its device."""
    if op.forward is None:
        return
    forward, graph, before = op.forward, op.graph, None
    match op.phase:
        case Phase.OFFLOAD:
            before = forward
        case Phase.RELOAD:
            before = graph.derived(forward, Phase.OFFLOAD)
        case Phase.BACKWARD:
            before = graph.derived(forward, Phase.RELOAD) or graph.derived(forward, Phase.RECOMPUTE) or forward
        case Phase.WEIGHT:
            before = graph.derived(forward, Phase.BACKWARD)
    if before is not None:
        yield Need(op, (before,), PTensor(SAVED, op.node))


def _weights_again(
    op: Op, stored: dict[tuple[int, int | None], list[Box]], saved: dict[int, list[tuple[int, int]]]
) -> Iterator[VTensor]:
    """Parameters that backward fetches again, since its device released them after forward.

    `saved`: by node, the operands that backward needs and that are parameters, with these; filled in here.
    """
    if op.phase is not Phase.BACKWARD:
        return
    if op.node not in saved:
        entry, nodes = operator(op.of.op), tuple(op.graph.pcg.nodes[i] for i in op.of.inputs)
        kept = entry.kept(op.of, nodes)
        saved[op.node] = [
            (operand, op.of.inputs[operand])
            for operand, (name, source) in enumerate(zip(entry.named(op.of), nodes, strict=True))
            if source.op == "parameter" and name in kept
        ]
    for operand, source in saved[op.node]:
        mask = op.mask(operand)
        if source in op.graph.retained:
            continue
        if mask.partial or not any(within(mask.box, box) for box in stored[source, op.device]):
            yield op.graph.part(PTensor(VALUE, source), mask)


class _Turn(NamedTuple):
    """A device that reads a share, and which of its parts of an operator that is, from 0."""

    device: int | None
    turn: int


class _Writers:
    """The writers of every part of every tensor."""

    def __init__(self, pcg: PCG, writes: _VTensors, reads: _VTensors, reached: frozenset[int]) -> None:
        self.pcg = pcg
        self.shares: dict[PTensor, dict[Mask, set[_Turn]]] = defaultdict(lambda: defaultdict(set))
        self._taking: dict[object, Addends] = {}
        turns = Counter[object]()
        for op, own in reads.items():
            for read in own:
                if read.mask.partial:
                    part = op.device, op.phase, op.node, read.tensor
                    self.shares[read.tensor][read.mask].add(_Turn(op.device, turns[part]))
                    turns[part] += 1
        self.found: dict[tuple[PTensor, Via], dict[Box, dict[Addends, list[Op]]]] = defaultdict(dict)
        for op, own in writes.items():
            for written in own:
                by_box = self.found[written.tensor, written.via]
                by_box.setdefault(written.mask.box, {}).setdefault(written.mask.addends, []).append(op)
        self._known: dict[tuple[VTensor, Via], _Parts] = {}
        self.vias: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for index in sorted(reached):
            if differentiable(pcg, index):
                for operand, source in enumerate(pcg.nodes[index].inputs):
                    if pcg.nodes[source].gradient:
                        self.vias[source].append((index, operand))

    def of(self, task: Op, read: VTensor) -> tuple[list[Need], list[str]]:
        """The needs of a task that reads a vTensor, and its problems."""
        vias: list[Via] = [None]
        if read.tensor.kind == GRADIENT:
            vias = list(self.vias[read.tensor.node])
        needs: list[Need] = []
        for via in vias:
            parts = self._parts(read, via)
            if parts.devices and task.device not in parts.devices:
                # A larger store on its own device needs no transfer.
                kept = _covering(read.mask.box, self.found.get((read.tensor, via), {})).get(ALL, ())
                own = [op for op in kept if op.phase is Phase.STORE and op.device == task.device]
                parts = _Parts([self._part(read, via, read.mask.box, {ALL: own})]) if own else parts
            for cell, writers, wrong in parts.cells:
                if wrong:
                    need = Need(task, (), read.tensor, cell, via=via)
                    words = f"{need}, {wrong.words}{_advice(task, read)}"
                    return needs, [told(wrong.where or task.where, words)]
                needs += [Need(task, ops, read.tensor, cell, addends, via=via, read=read) for addends, ops in writers]
        return needs, []

    def _parts(self, read: VTensor, via: Via) -> _Parts:
        """The parts of a vTensor; many tasks read the same."""
        known = self._known.get((read, via))
        if known is None:
            by_box = self.found.get((read.tensor, via), {})
            # A reader of a share chooses among all written addends, like the readers of the other shares.
            exact = {} if read.mask.partial else by_box.get(read.mask.box, {})
            if not _incomplete(exact):
                devices = frozenset(op.device for ops in exact.values() for op in ops)
                known = _Parts([self._part(read, via, read.mask.box, exact)], devices)
            else:
                found = cells(read.mask.box, by_box)
                known = _Parts([self._part(read, via, cell, _covering(cell, by_box)) for cell in found])
            self._known[read, via] = known
        return known

    def _part(self, read: VTensor, via: Via, cell: Box, writers: dict[Addends, list[Op]]) -> _Part:
        wrong = _incomplete(writers) or _unlike(writers, read.tensor.kind == GRADIENT, via)
        taken = (
            (addends, ops)
            for addends, ops in writers.items()
            if read.mask.addends is ALL or takes(read.mask.addends, self._share((read.tensor, via), cell, addends))
        )
        return _Part(cell, [(addends, tuple(ops)) for addends, ops in sorted(taken)], wrong)

    def _share(self, of: tuple[PTensor, Via], cell: Box, written: Addends) -> Addends:
        """The share whose readers take an addend: that in which it begins, or else one all of whose devices write it.

        So a whole value is kept at one coordinate (R -> P), parts are padded where they are (S -> P), and gradients
        stay with the devices of a branch. Those of a micro-batch stay with its readers. All readers find the same,
        as it follows from the boxes in which the addend is written there.
        """
        boxes = tuple(box for box in self.found[of] if within(cell, box))
        key = of, boxes, written
        if key not in self._taking:
            readers: dict[Addends, set[_Turn]] = defaultdict(set)
            for mask, own in self.shares[of[0]].items():
                if all(meet(mask.box, box) is not None for box in boxes):
                    readers[mask.addends] |= own
            there = {op.device for box in boxes for op in self.found[of][box].get(written, ())}
            begins = [share for share in readers if takes(share, written)]
            turns = {reader.turn for share in begins for reader in readers[share]}
            near = (
                share
                for share in sorted(readers, key=lambda share: (share not in begins, share))
                if {reader.device for reader in readers[share]} <= there
                and turns == {reader.turn for reader in readers[share]}
            )
            self._taking[key] = next(near, written)
        return self._taking[key]

    def loss(self) -> list[str]:
        """Problems of the loss, which no task reads."""
        wrong = _incomplete(self.found[PTensor(VALUE, self.pcg.loss), None].get((), {}))
        return [told(wrong.where, f"the loss {self.pcg.nodes[self.pcg.loss].name}, {wrong.words}")] if wrong else []


@dataclass(frozen=True, slots=True)
class _Parts:
    """The cells of a vTensor; `devices`: those that write it, if it is written as it is read."""

    cells: list[_Part]
    devices: frozenset[int | None] = frozenset()


class _Part(NamedTuple):
    """A cell, the addends of it that a reader takes with their writers, and what is wrong with these."""

    cell: Box
    writers: list[tuple[Addends, tuple[Op, ...]]]
    wrong: _Wrong | None


def _covering(cell: Box, by_box: dict[Box, dict[Addends, list[Op]]]) -> dict[Addends, list[Op]]:
    """The writers of a cell, by addends."""
    found: dict[Addends, list[Op]] = defaultdict(list)
    for box, writers in by_box.items():
        if within(cell, box):
            for addends, ops in writers.items():
                found[addends] += ops
    return found


@dataclass(frozen=True, slots=True)
class _Wrong:
    """What is wrong with the writers of a part, and the call of the plan that made the last of them, if known."""

    words: str
    where: Site | None = None


def _advice(task: Op, read: VTensor) -> str:
    """What to do about a part that is not written."""
    if task.phase is not Phase.RECOMPUTE or read.tensor.kind == VALUE:
        return ""
    name = task.graph.pcg.nodes[read.tensor.node].name
    return f": recompute every part of {name} that it reads, or no part of it in the group of {task.of.name}"


def _incomplete(writers: dict[Addends, list[Op]]) -> _Wrong | None:
    """The problem if addends do not partition the whole; None if they do."""
    if not writers:
        return _Wrong("which no operator writes")
    if len(writers) == 1 and next(iter(writers)) == ALL:
        return None
    at, last = ALL[0], None
    for (start, stop), ops in sorted(writers.items()):
        if start < at:
            assert last is not None
            newest = max(last, ops[0], key=lambda op: (op.forward or op).number)
            return _Wrong(
                f"of which {last.name} and {ops[0].name} write the same addends: cut replicas alike", newest.where
            )
        if start > at:
            break
        at, last = stop, ops[0]
    if at == ALL[1]:
        return None
    return _Wrong("of which some addends are written by no operator", last.where if last else None)


def _unlike(writers: dict[Addends, list[Op]], gradient: bool, via: Via) -> _Wrong | None:
    """The problem if replicas of the same addends were cut differently and thus differ in value; else None."""
    for ops in writers.values():
        cuts = [_value_cuts(op, gradient, via) for op in ops] if len(ops) > 1 else []
        other = next((op for op, own in zip(ops, cuts, strict=False) if own != cuts[0]), None)
        if other is not None:
            words = f"of which {ops[0].name} and {other.name} have different addends: cut replicas alike"
            return _Wrong(words, other.where)
    return None


def _value_cuts(op: Op, gradient: bool, via: Via) -> list[tuple[Row, int]]:
    """The value splits of an operator's output."""
    letters = [cut.row.output if via is None else cut.row.inputs[via[1]] for cut in op.cuts]
    shares = (dual(letter) == P if gradient else letter == P for letter in letters)
    return [(cut.row, cut.parts) for cut, share in zip(op.cuts, shares, strict=True) if share]
