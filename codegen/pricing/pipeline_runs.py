"""The timetable of a pipeline: when its stages run which micro-batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...formulation.pipeline.evaluate import starts_ns
from ...formulation.pipeline.orders import KIND_NAMES
from ...formulation.pipeline.problem import Problem, Room, Stage, chunked
from ...model.operators.operator import operator
from .price_items import Item, Phase, PriceSlot, StagePrice

if TYPE_CHECKING:
    from ..plan.plan import Plan


class SlotRun(NamedTuple):
    """A slot of the schedule on the devices of one coordinate; micro-batch -1: the update, once a step."""

    device: int
    kind: str
    stage: int
    micro_batch: int
    start_ns: int
    length_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


def runs(plan: Plan, stages: tuple[StagePrice, ...]) -> tuple[SlotRun, ...]:
    """All slots, each as soon as its devices are free and its dependencies are done.

    Messages of programs that wait are part of the slots at both ends; equal stages whose backwards are whole then end
    with the predicted step (`step_ns`), unequal ones may end later. With overlap, messages are part of their senders'
    slots, or pass between slots (`Schedule.delays_messages`).
    """
    problem = slot_problem(plan, stages)
    made = [
        SlotRun(task.devices[0], KIND_NAMES[task.kind], task.stage, task.micro, start, task.duration_ns)
        for task, start in zip(problem.tasks, starts_ns(problem, plan.orders), strict=True)
    ]
    ends = [max(run.end_ns for run in made if run.device == device) for device in range(plan.size)]
    for number, cost in enumerate(stages):
        device = number % plan.size
        made.append(SlotRun(device, "update", number, -1, ends[device], phase_ns(cost, "update")))
        ends[device] = made[-1].end_ns
    return tuple(made)


def slot_problem(plan: Plan, stages: tuple[StagePrice, ...], room: Room = None) -> Problem:
    """The slots of a step as tasks of the predicted lengths; `room`: micro-batches that a device keeps at once.

    A device ends with the updates of its stages. Where messages pass between slots, a slot is no shorter than its
    message: so none waits for the link.
    """
    chain, split, count = [], plan.schedule.splits_backward, plan.micro_batches
    delayed = plan.hides_messages and plan.schedule.delays_messages
    arriving = [_messages(part, cost) if delayed else (0, 0) for part, cost in zip(plan.stages, stages, strict=True)]
    for number, (part, cost) in enumerate(zip(plan.stages, stages, strict=True)):
        (first, back), (ahead, _) = arriving[number], (*arriving, (0, 0))[number + 1]
        forward = (phase_ns(cost, "forward") - first) // count
        backward = -(-phase_ns(cost, "backward") // count)  # what hides in the last one is no multiple
        weights = weights_ns(part, cost) // count if split and number > 0 else 0
        chain.append(
            Stage(
                max(1, forward, ahead), max(1, backward - weights, back), max(1, weights) if split else 0,
                forward_message_ns=ahead, backward_message_ns=back,
            )
        )  # fmt: skip
    updates = [phase_ns(cost, "update") for cost in stages]
    closing = tuple(sum(updates[device :: plan.size]) for device in range(plan.size))
    return replace(chunked(chain, plan.size, count, room), closing_ns=closing)


def _messages(plan: Plan, cost: StagePrice) -> tuple[int, int]:
    """How long one message to a stage takes, and one with the gradients back."""
    items = [item for item in cost.items if item.kind == "receive"]
    return sum(item.ns for item in items), sum(item.ns for item in items if plan.graph.nodes[item.node].gradient)


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
