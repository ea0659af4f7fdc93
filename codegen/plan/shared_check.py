"""Checks of what all devices of an interlaced pipeline compute together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...formulation.placement.placement import of_rows
from ...model.errors import PartitaError
from ...model.graph.interlaced import interlaced
from ...model.graph.layout import R
from ...model.graph.pcg import PCG
from .checks import layout_words

if TYPE_CHECKING:
    from .plan import PipelinePlan


def layers(graph: PCG) -> PCG:
    """What the stages of an interlaced pipeline are cut from."""
    return interlaced(graph).layers.graph


def check_shared(plan: PipelinePlan) -> None:
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
    crossing = {shared.graph.nodes[i]["peer"]: layout_words(shared, i)[1:] for i in handed}
    for number, part in enumerate(plan.stages):
        for i in (*part.graph.of("from_all"), *part.graph.of("to_all")):
            name, here = part.graph.nodes[i]["peer"], layout_words(part, i)
            if here != crossing[name]:
                raise PartitaError(
                    f"stage {number} has {name!r} as {' '.join(here)}, all devices together as "
                    f"{' '.join(crossing[name])}"
                )
