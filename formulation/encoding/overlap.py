"""Which layers hide the traffic of their weights.

A layer's weights are gathered while the layer before it computes, and its gradients are reduced while that one goes
backward. Of L equal layers in a row, with G ns of kernels and W ns of weight traffic each, that takes

    W + (L - 1) max(G, W) + G

so each layer costs max(G, W), or what the host needs to issue all of it if that is longer, but for the first one,
which costs G + W: nothing runs beside its gather, the first of the forward, nor beside its reduction, the last of the
backward.
"""

from ...model.graph.pcg import PCG
from ...model.graph.segments import Segment
from ..bundles.bundles import find_bundles
from ..search_space import SearchSpace
from ..strategies.tensor_classes import Classes
from .recomputable_segments import recomputable_segments

KERNELS, TRAFFIC, HOST = range(3)
"""The streams of a window: G, W, and what the host needs, which may be missing."""


def hiding_layers(pcg: PCG, classes: Classes, space: SearchSpace, first: bool = False) -> tuple[Segment, ...]:
    """The layers of a graph that are priced as hiding the traffic of their weights: all but the first.

    None unless the space has `overlap`, nor in a graph with parallel branches, of which only the slowest counts.
    `first`: the first layer too, as where the graph is part of a larger one.
    """
    return recomputable_segments(pcg, classes)[not first :] if space.overlap and not find_bundles(pcg) else ()
