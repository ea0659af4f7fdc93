"""The timetable of a pipeline: when its stages run which micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...formulation.pipeline.evaluate import starts_ns
from ...formulation.pipeline.orders import KIND_NAMES, in_lock_step
from ...formulation.pipeline.problem import Problem, Room, Stage, bidirectional, build, chunked, interlaced_pipeline
from ...formulation.pipeline.stage_transfers import in_one_message
from ...model.graph.folded import pass_of
from ...model.machine.collective_price import FREE
from ...model.operators.operator import operator
from ..plan.checks import tied
from .price_items import Item, Phase, PriceSlot, StagePrice

if TYPE_CHECKING:
    from ..plan.plan import Plan


class SlotRun(NamedTuple):
    """A slot of the schedule on the devices of one coordinate; micro-batch -1: once a step.

    Once a step a device completes the "gradients" of a stage, and then runs its "update".
    """

    device: int
    kind: str
    stage: int
    micro_batch: int
    start_ns: int
    length_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


def runs(plan: Plan, stages: tuple[StagePrice, ...], shared: StagePrice | None = None) -> tuple[SlotRun, ...]:
    """All slots, each as soon as its devices are free and its dependencies are done.

    Messages of programs that wait are part of the slots at both ends; equal stages whose backwards are whole then end
    with the predicted step (`step_ns`), unequal ones may end later. With overlap, messages are part of their senders'
    slots, or pass between slots (`Schedule.delays_messages`).

    `shared`: the price of what all devices of an interlaced pipeline compute together. Its slots are runs of every
    device, of stage `SHARED`.

    A device sums its gradients over ranks and stages once it has run its last slot. Updates are clipped by the norm of
    all gradients, so that they begin on all devices at once, when the last of these sums has ended.

    In two directions both devices of a stage run mirrored orders, so they end at one time: the sum of its gradients
    waits for neither. Sums of gradients of weights that other devices have too wait for these (`_waits`).

    Where micro-batches go forward several times, sums begin after the last slot of all, so the step has a bound
    (`solvers/search/repeated_bound.py`).
    """
    number_of = list(range(len(stages))) * plan.schedule.passes
    if shared is None:
        problem, orders = slot_problem(plan, stages), plan.orders
    else:
        problem = _interlaced_problem(plan, stages, shared)
        orders = in_lock_step(plan.size, plan.micro_batches, plan.shared_places)
        for place in plan.shared_places:
            number_of.insert(place, SHARED)
    made = [
        SlotRun(device, KIND_NAMES[task.kind], number_of[task.stage], task.micro, start, task.duration_ns)
        for task, start in zip(problem.tasks, starts_ns(problem, orders), strict=True)
        for device in task.devices
    ]
    last = [max(run.end_ns for run in made if run.device == device) for device in range(plan.size)]
    ends = [max(last[other] for other in others) for others in _waits(plan)]
    if plan.schedule.passes > 1:
        ends = [max(ends)] * plan.size
    every = [*enumerate(stages), *([] if shared is None else [(SHARED, shared)])]
    own = [(device, *each) for each in every for device in _devices_of(plan, each[0])]
    for device, number, cost in own:
        if cost.completing_ns:
            made.append(SlotRun(device, "gradients", number, -1, ends[device], cost.completing_ns))
            ends[device] = made[-1].end_ns
    ends = [max(ends)] * plan.size
    for device, number, cost in own:
        made.append(SlotRun(device, "update", number, -1, ends[device], _updating_ns(cost)))
        ends[device] = made[-1].end_ns
    return tuple(made)


def _devices_of(plan: Plan, stage: int) -> Iterable[int]:
    return range(plan.size) if stage == SHARED else plan.schedule.devices_of(stage, plan.size)


def _updating_ns(cost: StagePrice) -> int:
    """How long a stage updates its weights once gradients are clipped."""
    return phase_ns(cost, "update") - cost.completing_ns


SHARED = -1
"""The stage of runs that all devices have together."""


def _interlaced_problem(plan: Plan, stages: tuple[StagePrice, ...], shared: StagePrice) -> Problem:
    """The slots of a step with those of what all devices compute together: look-ups, and the scores with the loss."""
    chain, count, slot_of = _chain(plan, stages), plan.micro_batches, _shared_slots(plan)
    for number, place in enumerate(plan.shared_places):
        forward, backward = (
            sum(item.total_ns for item in shared.items if item.phase == phase and slot_of.get(item.at, -1) == number)
            for phase in ("forward", "backward")
        )
        chain.insert(place, Stage(max(1, forward // count), max(1, -(-backward // count))))
    return interlaced_pipeline(chain, plan.shared_places, count)


def _shared_slots(plan: Plan) -> dict[int, int]:
    """For every node that all devices compute together the number of its slot among those of a micro-batch."""
    assert plan.shared is not None
    graph, last = plan.shared.graph, len(plan.lookup_stages)
    read = {
        plan.stages[stage].graph.nodes[i]["peer"]: number
        for number, stage in enumerate(plan.lookup_stages)
        for i in plan.stages[stage].graph.of("from_all")
    }
    found = dict.fromkeys(range(len(graph.nodes)), last)
    for sent in graph.of("send"):
        found[sent] = found[graph.nodes[sent].inputs[0]] = read[graph.nodes[sent]["peer"]]
    return found


def _waits(plan: Plan) -> list[set[int]]:
    """For every device those whose slots its sums of gradients wait for: itself, and others that have the same weights.

    Devices add up the gradients of tied weights one after the other, by name.
    """
    found = [{device} for device in range(plan.size)]
    for _, stages in sorted(tied(plan, trained=True).items()):
        devices = {device for stage in stages for device in plan.schedule.devices_of(stage % plan.size, plan.size)}
        together = set[int]().union(*(found[device] for device in devices))
        for device in devices:
            found[device] = together
    return found


def slot_problem(plan: Plan, stages: tuple[StagePrice, ...], room: Room = None) -> Problem:
    """The slots of a step as tasks of the predicted lengths; `room`: micro-batches that a device keeps at once.

    After its last slot a device completes the gradients of its stages, and then all update at once: the step ends the
    longest update later than the last gradient. Where messages pass between slots, one of several micro-batches is no
    shorter than its message: so none waits for the link.
    """
    if plan.schedule.passes > 1:
        return _repeated_problem(plan, stages, room)
    held = [plan.schedule.stages_of(device, plan.size, len(stages)) for device in range(plan.size)]
    sums, waits = [sum(stages[stage].completing_ns for stage in own) for own in held], _waits(plan)
    update = max(sum(_updating_ns(stages[stage]) for stage in own) for own in held)
    closing = tuple(
        update + max(sums[d] for d, others in enumerate(waits) if device in others) for device in range(plan.size)
    )
    chain, count = _chain(plan, stages), plan.micro_batches
    if plan.schedule.directions > 1:
        return replace(bidirectional(chain, 2 * count, room), closing_ns=closing)
    return replace(chunked(chain, plan.size, count, room), closing_ns=closing)


def _repeated_problem(plan: Plan, stages: tuple[StagePrice, ...], room: Room) -> Problem:
    """The slots of a step in which micro-batches go forward several times; passes share this time as their kernels."""
    count, chain = plan.micro_batches, list[Stage]()
    shares = [_forward_shares(part, cost, plan.schedule.passes) for part, cost in zip(plan.parts, stages, strict=True)]
    for number in range(plan.schedule.passes):
        for cost, share in zip(stages, shares, strict=True):
            forward = -(-phase_ns(cost, "forward") * share[number] // (count * sum(share)))
            backward = -(-phase_ns(cost, "backward") // count)
            chain.append(Stage(max(1, forward), max(1, backward)))
    trained = (plan.schedule.passes - 1) * plan.size
    return build(chain, plan.micro_batches, lambda s, m: (s % plan.size,), plan.size, room, trained=trained)


def _forward_shares(part: Plan, cost: StagePrice, passes: int) -> list[int]:
    """For every pass the ns of its kernels, which share what the stage's forwards take."""
    number, found = pass_of(part.graph), [0] * passes
    for item in cost.items:
        if item.phase == "forward" and item.part == "compute":
            found[number[item.at]] += item.total_ns
    return found if any(found) else [1] * passes


def _chain(plan: Plan, stages: tuple[StagePrice, ...]) -> list[Stage]:
    """The stages on one micro-batch, in the order of the model."""
    chain, split, count = list[Stage](), plan.schedule.splits_backward, plan.micro_batches
    delayed = plan.hides_messages and plan.schedule.delays_messages
    arriving = [_messages(part, cost) if delayed else (0, 0) for part, cost in zip(plan.stages, stages, strict=True)]
    for number, (part, cost) in enumerate(zip(plan.stages, stages, strict=True)):
        (first, back), (ahead, _) = arriving[number], (*arriving, (0, 0))[number + 1]
        forward = -(-(phase_ns(cost, "forward") - first) // count)
        backward = -(-phase_ns(cost, "backward") // count)  # what hides in the last one is no multiple
        weights = weights_ns(part, cost) // count if split and number > 0 else 0
        own = (ahead, back) if count > 1 else (0, 0)  # a link sends one message after the other
        chain.append(
            Stage(
                max(1, forward, own[0]), max(1, backward - weights, own[1]), max(1, weights) if split else 0,
                forward_message_ns=ahead, backward_message_ns=back,
            )
        )  # fmt: skip
    return chain


def _messages(plan: Plan, cost: StagePrice) -> tuple[int, int]:
    """How long one message to a stage takes, and one with the gradients back."""
    items, price = [item for item in cost.items if item.kind == "receive"], plan.transfer or FREE
    back = (
        in_one_message(price, plan.graph, item.node, gradient=True).ns(item.bytes)
        for item in items
        if plan.graph.nodes[item.node].gradient
    )
    return sum(item.ns for item in items), sum(back)


def phase_ns(cost: StagePrice, phase: Phase) -> int:
    """How long a stage works in one phase of a step; recomputation counts as backward."""
    return cost.phase_ns(phase) + (cost.phase_ns("recompute") if phase == "backward" else 0)


def weights_ns(plan: Plan, cost: StagePrice) -> int:
    """The part of a stage's backward, in a step, that computes weight gradients, which no other stage waits for.

    Traffic of gradients is deferred too, less what hides: in a layer it hides before weights that are gathered again.
    """
    deferred, traffic, hidden = 0, Counter[str](), Counter[str]()  # by layer: traffic of gradients, what hides
    for item in cost.items:
        if item.phase == "backward":
            own = _deferrable(plan, item)
            deferred += own
            if item.hides and item.at in cost.layer_of:
                traffic[cost.layer_of[item.at]] += own
    for overlap in cost.overlaps:
        if overlap.phase == "backward":
            hidden[overlap.layer] += overlap.hidden_in_phase_ns
    return deferred - (traffic & hidden).total()


def _deferrable(plan: Plan, item: Item) -> int:
    """The part of an item that can be deferred: half of a product with a weight."""
    if item.part == "gradients" or (item.part == "weights" and item.slot is not PriceSlot.REGATHER):
        return item.total_ns
    node = plan.graph.nodes[item.node]
    sources = [plan.graph.nodes[i] for i in node.inputs]
    trained = any(source.op == "parameter" and source.gradient for source in sources)
    product = item.part == "compute" and item.kind == node.op and operator(node.op).matmul
    return item.total_ns // 2 if product and trained else 0
