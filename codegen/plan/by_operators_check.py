"""Checks of pipelines whose programs are written operator by operator: interlaced, repeated and two-way ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...formulation.pipeline.cut_graph import cut_graph
from ...formulation.placement.placement import of_rows
from ...formulation.strategies.tensor_classes import classes, handover
from ...model.errors import PartitaError
from ...model.graph.folded import passes
from ...model.graph.interlaced import interlaced
from ...model.graph.layout import Layout, R, atom_of, is_split
from ...model.graph.stages import Stage
from .checks import layout_words

if TYPE_CHECKING:
    from .plan import PipelinePlan, Plan


def cut(plan: Plan) -> Stage:
    """The graph that is cut into the stages of a plan, with the index of every node in the whole one."""
    return cut_graph(plan.graph, plan.schedule)


def check_by_operators(plan: PipelinePlan) -> None:
    """PartitaError unless what devices share and passes hand on fits the stages, and directions never wait."""
    _check_shared(plan)
    _check_passes(plan)
    _check_directions(plan)


def _check_shared(plan: PipelinePlan) -> None:
    """What all devices of an interlaced pipeline compute together is on all of them, and fits the stages."""
    shared, first = plan.shared, plan.stages[0]
    if plan.schedule.interlaced != (shared is not None):
        raise PartitaError(
            f"schedule {plan.schedule} {'needs' if shared is None else 'has no'} operators on all devices"
        )
    if shared is None:
        return
    if shared.graph != interlaced(plan.graph).shared.graph:
        raise PartitaError("the operators on all devices are not the look-ups, the scores and the loss of the graph")
    if shared.machine != plan.machine or shared.placement != of_rows((plan.row, *first.placement.matrix)):
        raise PartitaError("the operators on all devices are not on the mesh of all stages")
    for name in ("micro_batches", "dtype", "optimizer", "overlap", "compile"):
        if getattr(shared, name) != getattr(first, name):
            raise PartitaError(f"the operators on all devices have another {name} than the stages")
    handed = [*shared.graph.of("receive"), *shared.graph.of("send")]
    if shared.in_flight != 1 or any(shared.choices[i].output[0] != R for i in handed):
        raise PartitaError("what all devices compute together is handed on whole, a micro-batch at a time")
    _check_read_as_stored(shared)
    crossing = {shared.graph.nodes[i]["peer"]: layout_words(shared, i)[1:] for i in handed}
    for number, part in enumerate(plan.stages):
        for i in (*part.graph.of("from_all"), *part.graph.of("to_all")):
            name, here = part.graph.nodes[i]["peer"], layout_words(part, i)
            if here != crossing[name]:
                raise PartitaError(
                    f"stage {number} has {name!r} as {' '.join(here)}, all devices together as "
                    f"{' '.join(crossing[name])}"
                )


def _check_passes(plan: PipelinePlan) -> None:
    """Micro-batches go forward as often as the model says; what a pass hands to the next has the layout for that."""
    given, count = plan.schedule.passes, passes(plan.graph)
    if given > 1 and given != count:
        raise PartitaError(f"{given} passes of schedule {plan.schedule}: the model has {count}")
    for number, part in enumerate(plan.stages):
        for index in (*part.graph.of("from_pass"), *part.graph.of("to_pass")):
            if part.choices[index].output != handover(part.graph, index, part.placement.sizes):
                name, layout = part.graph.nodes[index]["peer"], " ".join(layout_words(part, index))
                raise PartitaError(f"stage {number}: a pass hands {name!r} to the next as {layout}, not by samples")


def _check_directions(plan: PipelinePlan) -> None:
    """The devices of a stage have halves of each micro-batch, and exchange nothing before gradients are summed."""
    if plan.schedule.directions == 1:
        return
    direction = plan.schedule.direction_row(plan.row)
    for number, part in enumerate(plan.stages):
        if part.placement.matrix[0] != direction:
            raise PartitaError(f"stage {number}: the first axis of its mesh is not that of both directions")
        for index, choice in enumerate(part.choices):
            node, known = part.graph.nodes[index], classes(part.graph)
            stored = node.op == "parameter"
            if (stored and (is_split(choice.output[0]) or choice.sharded_gradients)) or any(
                part.choices[source].output[0] != wanted[0]
                for source, wanted in zip(node.inputs, choice.inputs, strict=True)
                if part.graph.nodes[source].gradient and not known.constant[source]
            ):
                raise PartitaError(
                    f"stage {number}: {node.name!r} takes both directions at once, which compute at different times"
                )


def _check_read_as_stored(shared: Plan) -> None:
    """PartitaError if a weight is gathered, for which nothing is reserved: it would stay so until its last backward."""
    known = classes(shared.graph)

    def split(layout: Layout) -> list[int | None]:
        return [atom_of(letter) if is_split(letter) else None for letter in layout]

    for index in shared.graph.of("parameter"):
        stored = split(shared.choices[index].output)
        for use in known.uses.get(index, ()):
            read = split(shared.choices[use.node].inputs[use.operand])
            if stored != [None if atom is None else use.atoms[atom] for atom in read]:
                name, reader = shared.graph.nodes[index].name, shared.graph.nodes[use.node].name
                raise PartitaError(f"{reader!r}, on all devices, reads {name!r} in another layout than it is stored in")
