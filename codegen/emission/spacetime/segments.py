"""Segments: operators of one device whose forward is one function, and whose backward is one call of autograd.

Operators are in one segment iff they are adjacent in forward, in backward and in every other phase, and only they
read the gradients between them. Instructions between two operators of a segment that do not feed it run before or
after it.

The resulting program cannot deadlock. Every device starts its transfers in the order of their keys, as the plan has
them, and waits only for transfers that it has started; an operator that exchanges data is a segment of its own, and for
this a transfer that it starts and waits for. Suppose that some transfers never end, and take the one with the
smallest key: a device that has not started it waits for one that it started before, with a smaller key. Contradiction.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....formulation.spacetime.equal_ranks import numbered
from ....formulation.spacetime.materialized import Collective, Receive, Register, reads, writes
from ....formulation.spacetime.op import Op, Phase
from ....model.graph.segments import is_product
from .data_flow import COMPUTING, Flow, Lane, lane_of, layer, varying


@dataclass(slots=True, eq=False)
class DeviceSegment:
    """Forward operators that one device runs together, in order."""

    lane: Lane
    ops: tuple[Op, ...]


@dataclass(slots=True)
class SegmentPhase:
    """One phase of a segment."""

    phase: Phase
    places: list[int]
    segment: DeviceSegment | None = None


@dataclass(slots=True)
class Arranged:
    """The work of a device: blocks, and places of single instructions; autograd performs those in `absorbed`."""

    steps: list[SegmentPhase | int]
    segments: list[DeviceSegment] = field(default_factory=list)
    absorbed: set[int] = field(default_factory=set)


def lanes(flow: Flow) -> dict[Op, Lane]:
    """The lane of every forward operator: its labels with several numbers on this device."""
    ops = [op for op, phase in flow.run if phase is Phase.FORWARD]
    several = varying(ops)
    return {op: lane_of(op, several) for op in ops}


def arrange(flow: Flow) -> Arranged:
    """The segments of one device, and the order in which its work is written."""
    lane = lanes(flow)
    by_layer = _fetched(flow) | {op for op in lane if op.swapped}
    keys: dict[Op, Hashable] = {}
    for op in lane:
        own_layer = layer(op) if op in by_layer else None
        alone = op if op.exchanges else None  # like a transfer, it has a place among those of the device
        group = op.group, keeps(op)
        keys[op] = lane[op], op.split, op.swapped, group, own_layer, _unrecorded(flow, op), alone
    piece = _numbered(keys)
    while True:
        steps = _Arrangement(flow, piece, lane).arrange(deque(range(len(flow.instructions))))
        finer = _numbered(_refined(flow, piece, steps))
        if len(set(finer.values())) == len(set(piece.values())):
            break
        piece = finer
    return _labelled(flow, piece, lane, steps)


def keeps(op: Op) -> bool:
    """True if its function keeps results of products: in selective groups, but for products that are computed again."""
    return op.group in op.graph.selective and (op.is_kept or not is_product(op.graph.pcg, op.node))


def _numbered(keys: Mapping[Op, Hashable]) -> dict[Op, int]:
    """By operator, a number that is equal for equal keys."""
    return dict(zip(keys, numbered(keys.values()), strict=True))


def _fetched(flow: Flow) -> set[Op]:
    """Operators of layers with weights that other devices send for every use."""
    moved: dict[Register, bool] = {}

    def comes(register: Register) -> bool:
        if register not in moved:
            makers = [flow.instructions[p] for p in flow.writers.get(register, [])]
            moved[register] = any(isinstance(m, Receive | Collective) or any(map(comes, reads(m))) for m in makers)
        return moved[register]

    layers = {
        layer(op)
        for op, phase in flow.run
        if phase is Phase.FORWARD
        for operand, register in flow.operands(op).items()
        if flow.pcg.nodes[op.of.inputs[operand]].op == "parameter" and comes(register)
    }
    return {op for op, phase in flow.run if phase is Phase.FORWARD and layer(op) in layers}


def _unrecorded(flow: Flow, op: Op) -> bool:
    """True if an operator has no backward, although it reads values with gradients."""
    return flow.of(op, Phase.BACKWARD) is None and any(flow.pcg.nodes[i].gradient for i in op.of.inputs)


class _Arrangement:
    """One pass over a device's instructions that groups them into blocks, given which operators may be together."""

    def __init__(self, flow: Flow, piece: Mapping[Op, int], lane: Mapping[Op, Lane]) -> None:
        self.flow, self.piece, self.lane = flow, piece, lane
        self.count = Counter(
            (phase, piece[flow.op(place)]) for place in range(len(flow.instructions)) if (phase := flow.phase(place))
        )

    def arrange(self, queue: deque[int]) -> list[SegmentPhase | int]:
        steps: list[SegmentPhase | int] = []
        while queue:
            place = queue.popleft()
            phase = self.flow.phase(place)
            if phase is None:
                steps.append(place)
            else:
                self._block(phase, place, queue, steps)
        return steps

    def _block(self, phase: Phase, first: int, queue: deque[int], steps: list[SegmentPhase | int]) -> None:
        """Collect a block from its first run on. Instructions in its way run before it or return to the queue."""
        flow, op = self.flow, self.flow.op(first)
        piece, lane = self.piece[op], self.lane[op]
        block, deferred, barred = [first], list[int](), set[int]()
        after = {first}  # the block and what waits for it
        results = {flow.result(op, phase): op}
        while queue and len(block) < self.count[phase, piece]:
            place = queue[0]
            kind = flow.phase(place)
            if kind is not None and self.lane[flow.op(place)] != lane:
                break
            if kind is phase and self.piece[flow.op(place)] == piece:
                needs = self._needs(place, block)
                if needs & barred or not self._joins(phase, place, results):
                    break
                if needs.intersection(deferred) and not self._before(needs, block, deferred, steps):
                    break
                block.append(place)
                after.add(place)
                results[flow.result(flow.op(place), phase)] = flow.op(place)
            elif kind is not None or self._waits(place, after, deferred):
                deferred.append(place)
                after.add(place)
            else:
                steps.append(place)
                if (flow.transfers(place) and not self._weight(place)) or flow.needs[place] & barred:
                    barred.add(place)
            queue.popleft()
        steps.append(SegmentPhase(phase, block))
        queue.extendleft(reversed(deferred))

    def _waits(self, place: int, after: set[int], deferred: Sequence[int]) -> bool:
        """True if an instruction needs the block, or something after it; transfers keep their order."""
        flow = self.flow
        if not flow.needs[place].isdisjoint(after):
            return True
        return flow.transfers(place) and any(map(flow.transfers, deferred))

    def _weight(self, place: int) -> bool:
        """True if a transfer brings a weight: those of a layer come before its first operator."""
        written = writes(self.flow.instructions[place])
        return bool(written) and self.flow.graph.of_parameter(written[0].tensor)

    def _needs(self, place: int, block: Sequence[int]) -> frozenset[int]:
        """The dependencies of a run; of a gradient that is partly computed in the block, only the other terms."""
        flow = self.flow
        needs = flow.needs[place]
        given = flow.gradient(flow.op(place)) if flow.phase(place) is Phase.BACKWARD else None
        if given is None:
            return needs
        leaves, adding = flow.leaves(given)
        made = {p for leaf in leaves for p in flow.writers.get(leaf, ())}
        return (needs - set(adding)) | made if made.intersection(block) else needs

    def _joins(self, phase: Phase, place: int, results: Mapping[Register | None, Op]) -> bool:
        """True if autograd can compute the gradients between a forward run and those before it in the block."""
        flow, op = self.flow, self.flow.op(place)
        if phase is Phase.BACKWARD:
            return not self._reads_other_copy(op, set(results.values()))
        if phase not in (Phase.FORWARD, Phase.RECOMPUTE):
            return True
        return all(
            flow.inner(results[register], op, operand)
            for operand, register in flow.operands(op, phase).items()
            if register in results
        )

    def _reads_other_copy(self, op: Op, others: set[Op]) -> bool:
        """True if terms of a gradient come from others that read another copy of the value, or a part of it."""
        flow = self.flow
        given = flow.gradient(op)
        made = [flow.makers[x] for x in flow.leaves(given)[0] if x in flow.makers] if given is not None else []
        return any(o in others and flow.operands(o).get(operand) != flow.result(op) for o, operand in made)

    def _before(
        self, needs: Iterable[int], block: Sequence[int], deferred: list[int], steps: list[SegmentPhase | int]
    ) -> bool:
        """Run deferred instructions before the block if they do not depend on it; True if that is possible."""
        flow, wanted = self.flow, set(needs).intersection(deferred)
        for place in reversed(deferred):
            if place in wanted:
                wanted |= flow.needs[place].intersection(deferred)
        transfers = [p for p in deferred if flow.transfers(p)]
        inside = [p in wanted for p in transfers]
        if any(flow.needs[p].intersection(block) for p in wanted) or inside != sorted(inside, reverse=True):
            return False
        if any(flow.transfers(p) and not self._weight(p) for p in wanted):
            return False
        steps += self.arrange(deque(p for p in deferred if p in wanted))
        deferred[:] = [p for p in deferred if p not in wanted]
        return True


def _refined(flow: Flow, piece: Mapping[Op, int], steps: Sequence[SegmentPhase | int]) -> dict[Op, Hashable]:
    """Refine `piece`: operators stay together if every phase has put them into the same block."""
    number: dict[tuple[Op, Phase], int] = {}
    for count, step in enumerate(steps):
        if isinstance(step, SegmentPhase):
            number.update({(flow.op(place), step.phase): count for place in step.places})
    ops = [op for op, phase in flow.run if phase is Phase.FORWARD]
    own = {op: [number.get((op, phase)) for phase in COMPUTING if phase is not Phase.WEIGHT] for op in ops}

    def join(op: Op, others: Iterable[Op]) -> None:
        """Fill in the phases that an operator lacks like the first of others in its forward block."""
        near = next((other for other in others if own[other][0] == own[op][0]), op)
        own[op] = [there if here is None else here for here, there in zip(own[op], own[near], strict=True)]

    readers: dict[Register | None, list[Op]] = {}
    for op in ops:
        for register in flow.operands(op).values():
            readers.setdefault(register, []).append(op)
    for op in reversed(ops):  # an operator without backward joins its first reader
        join(op, readers.get(flow.result(op), []))
    sources = {flow.result(op): op for op in ops}
    for op in ops:  # or an operator that it reads
        join(op, (sources[register] for register in flow.operands(op).values() if register in sources))
    together = {op: (piece[op], *own[op]) for op in ops}
    weights: dict[Hashable, int] = {}  # operators of a split backward without weights join those with weights
    for op in ops:
        if op.split and (op, Phase.WEIGHT) in number:
            weights.setdefault(together[op], number[op, Phase.WEIGHT])
    return {op: (*together[op], number.get((op, Phase.WEIGHT), weights.get(together[op]))) for op in ops}


def _labelled(
    flow: Flow, piece: Mapping[Op, int], lane: Mapping[Op, Lane], steps: list[SegmentPhase | int]
) -> Arranged:
    """Assign segments to the blocks, and find the sums between their operators that autograd computes."""
    arranged = Arranged(steps)
    segments: dict[int, DeviceSegment] = {}
    ops: dict[int, list[Op]] = {}
    for step in steps:
        if isinstance(step, SegmentPhase) and step.phase is Phase.FORWARD:
            ops.setdefault(piece[flow.op(step.places[0])], []).extend(map(flow.op, step.places))
    for key, members in ops.items():
        segments[key] = DeviceSegment(lane[members[0]], tuple(members))
        inside = set(members)
        for op in members:
            given = flow.gradient(op)
            if given is not None:
                leaves, adding = flow.leaves(given)
                if any(flow.makers[leaf][0] in inside for leaf in leaves if leaf in flow.makers):
                    arranged.absorbed.update(adding)
    for step in steps:
        if isinstance(step, SegmentPhase):
            step.segment = segments[piece[flow.op(step.places[0])]]
    arranged.segments = list(segments.values())
    return arranged
