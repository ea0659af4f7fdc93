"""A planner's plan as a graph of operators that a user may go on to transform, assign and order.

What a plan chooses is written with the primitives of hand-written plans: micro-batches and the row of every mesh axis
by `op_trans`, ranks by `op_assign`, weights stored in another layout than they are read in by `place`, sharded states
by parts of updates, states on the host by `swap`, recomputed segments by `recompute`, a schedule by `in_order`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from ...formulation.pipeline.orders import Slot, in_lock_step
from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.op import Op
from ...formulation.spacetime.primitives import (
    op_assign,
    op_order,
    op_trans,
    place,
    recompute,
    shard_gradients,
    split_backward,
    swap,
)
from ...formulation.spacetime.stages import in_order
from ...formulation.spacetime.transformation import Chosen, Transformation, micro_batches, replicate, split
from ...formulation.strategies.row import Row
from ...model.errors import PartitaError
from ...model.graph.batch import with_batch, with_statistics_parts
from ...model.graph.constants import built_once
from ...model.graph.folded import pass_of
from ...model.graph.layout import B, Layout, S, atom_of, chunk, is_split
from ...model.graph.segments import IN_PARTS, segments
from .plan import DIRECTION, Plan
from .spacetime_parts import Mesh, Part, parts_of
from .spacetime_plan import graph, space_time

MICRO, STAGE, PART = "micro", "stage", "samples"
"""Labels of the transformations into micro-batches, of operators that several stages compute for themselves, and of the
parts of a segment's samples that are computed one after another."""


def space_time_graph(plan: Plan) -> Graph:
    """The operators of a plan with its choices made. PartitaError: a choice that the primitives cannot express."""
    if plan.schedule.double_buffered:
        raise PartitaError(
            f"schedule {plan.schedule} computes two steps at once, and a space-time plan is one step: plan again with "
            "--schedule 1f1b"
        )
    whole, parts = parts_of(plan)
    made = graph(with_statistics_parts(with_batch(whole, plan.batch), plan.micro_batches))
    made.module = plan.module
    made.waits = plan.shared is None and plan.schedule.passes == 1  # as the program of a plan that is not by operators
    _transform(made, plan.micro_batches, parts)
    for index in made.pcg.of("parameter"):
        holders = _apart([part for part in parts if index in part.own])
        _store(made, index, holders)
        if made.pcg.nodes[index].gradient:
            _update(made, index, holders)
    for part in parts:
        _recompute(part)
        if plan.schedule.splits_backward and part.number:  # nobody waits for what the first stage sends back
            split_backward(part.ops)
    _order(plan, parts)
    return made


def emit_by_operators(plan: Plan) -> str:
    """The program of a pipeline by operators: that of these on their devices and in their order."""
    machine = plan.machine.without_memory_limit()  # the planner has compared it
    made = space_time(
        space_time_graph(plan),
        machine,
        dtype=plan.dtype,
        optimizer=plan.optimizer,
        model=plan.model,
        module=plan.module,
    )
    return made.beginning_with(plan.initial).source()


def _order(plan: Plan, parts: Sequence[Part]) -> None:
    if plan.schedule.directions > 1:
        ways = range(plan.schedule.directions)
        groups = [[op for op in part.ops if op.coordinate(DIRECTION) == way] for way in ways for part in parts]
        orders = tuple(tuple(_of_direction(slot, len(parts)) for slot in own) for own in plan.orders)
        in_order(orders, groups, MICRO)
        return
    if plan.schedule.passes > 1:
        of, passes = pass_of(plan.graph), range(plan.schedule.passes)
        in_order(plan.orders, [[op for op in part.ops if of[op.node] == k] for k in passes for part in parts], MICRO)
        return
    if plan.shared is None:
        in_order(plan.orders, [part.ops for part in parts], MICRO)
        return
    *own, shared = parts
    groups, read = (
        [part.ops for part in own],
        [{part.plan.graph.nodes[i]["peer"] for i in part.plan.graph.of("from_all")} for part in own],
    )
    for number, at in zip(plan.lookup_stages, plan.shared_places, strict=False):
        groups.insert(at, [op for op in shared.ops if op.of.name in read[number]])
    groups.append([op for op in shared.ops if not any(op.of.name in names for names in read)])
    in_order(in_lock_step(plan.size, plan.micro_batches, plan.shared_places), groups, MICRO)


def _of_direction(slot: Slot, stages: int) -> Slot:
    """A slot whose stage and micro-batch are numbered in its direction, after the stages of the other one."""
    micro, way = divmod(slot.micro, 2)
    return slot._replace(stage=slot.stage + way * stages, micro=micro)


def _transform(made: Graph, count: int, parts: Sequence[Part]) -> None:
    """Cut and assign all operators, of so many micro-batches.

    What depends on no input is computed once for all micro-batches, and as in programs of plans whole on every rank;
    so is what several stages compute for themselves, since replicas are cut alike. Segments in parts are ordered, which
    is said of each micro-batch.
    """
    constants = built_once(made.pcg)
    ordered = any(mode in IN_PARTS for part in parts for mode in part.plan.recompute.values())
    all_samples = split("batch", count, MICRO) if ordered else micro_batches(count, MICRO)
    for op in made.forward:
        once = op.node in constants
        computing = [part for part in parts if op.node in part.own]
        everywhere = once or len(computing) > 1
        copies = [op] if len(computing) == 1 else op_trans(op, replicate(len(computing), label=STAGE))
        for part, copy in zip(computing, copies, strict=True):
            micros = [copy] if once or count == 1 else op_trans(copy, all_samples)
            cut = [made_part for micro in micros for made_part in part.assign(micro, op.node, everywhere)]
            part.ops += [] if once else cut


def _store(made: Graph, index: int, holders: Sequence[Part]) -> None:
    """Place a parameter unless it lies where it is read, and is updated there as a whole."""
    choice = holders[0].choice(index)
    layout, updated = choice.output, choice.sharded_states
    if not updated and all(
        _splits(layout, part.mesh(index)) == _splits(read, part.mesh(index))
        for part in holders
        for read in _readings(part, index)
    ):
        return
    cuts: list[Transformation] = [replicate(len(holders), label=STAGE)] if len(holders) > 1 else []
    cuts += _stored(made, index, holders[0])
    devices = [rank for part in holders for rank in part.mesh(index).devices]
    retained = not any(part.choice(index).regather for part in holders)
    place(made, made.pcg.nodes[index].name, cuts, devices, shared=choice.shared is not None, retained=retained)


def _apart(parts: Sequence[Part]) -> list[Part]:
    """One part for every set of ranks: two stages that share devices, in opposite directions, store a weight once."""
    return list({frozenset(part.ranks.ravel().tolist()): part for part in reversed(parts)}.values())[::-1]


def _stored(made: Graph, index: int, part: Part, shared: Collection[int] = ()) -> list[Chosen]:
    """How a parameter is cut where it is stored, axis by axis, and then once more along the axes `shared`.

    Along shared axes the first atom that divides is split, in parts of any size; the parameter is whole on an axis if
    there is none.
    """
    found, left = list[Chosen](), [{size} for size in made.atoms[index].sizes]  # by atom the sizes of parts
    for axis, name, size in sorted(part.mesh(index).axes, key=lambda known: known[0] in shared):
        letter = part.choice(index).output[axis]
        if axis in shared:
            divided = (S(atom) for atom, sizes in enumerate(left) if all(length % size == 0 for length in sizes))
            letter = next(divided, B)
        found.append(Chosen(Row((), letter), size, name))
        if is_split(letter):
            sizes = left[atom_of(letter)]
            left[atom_of(letter)] = {
                stop - start for n in sizes for start, stop in (chunk(n, size, 0), chunk(n, size, size - 1))
            }
    return found


def _readings(part: Part, index: int) -> Iterator[Layout]:
    pcg, at = part.plan.graph, part.own[index]
    for reader in pcg.consumers[at]:
        yield from (
            x for i, x in zip(pcg.nodes[reader].inputs, part.plan.choices[reader].inputs, strict=True) if i == at
        )


def _splits(layout: Layout, mesh: Mesh) -> list[int]:
    return [layout[axis] if is_split(layout[axis]) else B for axis, _, _ in mesh.axes]


def _update(made: Graph, index: int, holders: Sequence[Part]) -> None:
    """Split the update of a parameter with sharded states among the ranks that have copies of it.

    States of some stages alone may be on the host.
    """
    choices, (update,) = [part.choice(index) for part in holders], made.parts(index)
    if not choices[0].sharded_states and len({choice.offloaded for choice in choices}) == 1:
        swap(update if choices[0].offloaded else None)
        return
    if choices[0].sharded_gradients:
        shard_gradients(update)
    copies = [update] if len(holders) == 1 else op_trans(update, replicate(len(holders), label=STAGE))
    for part, choice, copy in zip(holders, choices, copies, strict=True):
        mesh, parts = part.mesh(index), [copy]
        shared = [axis for axis, _, _ in mesh.axes if choice.output[axis] == B] if choice.sharded_states else []
        for cut in _stored(made, index, part, shared):
            parts = [made_part for op in parts for made_part in op_trans(op, cut)]
        for op in parts:
            op_assign(op, mesh.rank(op))
        swap(parts if choice.offloaded else None)


def _recompute(part: Part) -> None:
    if not part.plan.recompute:
        return
    known = {segment.name: segment.nodes for segment in segments(part.plan.graph)}
    by_node = defaultdict[int, list[Op]](list)
    for op in part.ops:
        by_node[op.node].append(op)
    cut = dict[Op, list[Op]]()
    for name, mode in part.plan.recompute.items():
        groups = defaultdict[object, list[Op]](list)
        for node in known[name]:
            for op in by_node[part.whole[node]]:
                groups[op.device, op.coordinate(MICRO)].append(op)
        for ops in groups.values():
            if mode in IN_PARTS:
                cut |= _in_parts(ops, IN_PARTS[mode])
            else:
                recompute(ops, selective=mode == "selective")
    part.ops = [now for op in part.ops for now in cut.get(op, (op,))]


def _in_parts(ops: Sequence[Op], count: int) -> dict[Op, list[Op]]:
    """Compute a segment in parts of its samples, one after another, and backward in the opposite order.

    What has no samples is computed once for all parts.
    """
    made = dict[Op, list[Op]]()
    for op in ops:
        if op.has("batch"):
            assert op.device is not None, op
            made[op] = op_trans(op, split("batch", count, PART))
            op_assign(made[op], op.device)
    recompute(now for op in ops for now in made.get(op, (op,)))
    for before, after in pairwise(zip(*made.values(), strict=True)):
        op_order(before, after)
        op_order([op.backward for op in after], [op.recomputed for op in before])
    return made
