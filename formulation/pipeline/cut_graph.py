"""The graph that is cut into the stages of a pipeline: the model's, or what its schedule makes of it."""

from ...model.graph.folded import folded
from ...model.graph.independent import check_independent
from ...model.graph.interlaced import interlaced
from ...model.graph.pcg import PCG
from ...model.graph.stages import Stage
from .schedule import Schedule


def cut_graph(pcg: PCG, schedule: Schedule) -> Stage:
    """The layers of an interlaced pipeline; the passes of a model that recycles, folded; or the whole graph.

    PartitaError: the model has no such pipeline, or none in two directions.
    """
    if schedule.directions > 1:
        check_independent(pcg)
    if schedule.interlaced:
        return interlaced(pcg).layers
    return folded(pcg) if schedule.passes > 1 else Stage(pcg, tuple(range(len(pcg.nodes))))
