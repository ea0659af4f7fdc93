"""Which layers hide the traffic of their weights.

A layer's weights are gathered while the layer before it computes, and its gradients are reduced while that one goes
backward. Of L equal layers in a row, with G ns of kernels and W ns of weight traffic each, that takes

    W + (L - 1) max(G, W) + G

so each layer costs max(G, W), or what the host needs to issue all of it if that is longer, but for the first one,
which costs G + W: nothing runs beside its gather, the first of the forward, nor beside its reduction, the last of the
backward.

The weights of a layer travel in one message: each pays for its bytes, and its share of the latency. Where the layer
mixes axes, or ways to move weights, it takes several messages, and the price counts too little latency.
"""

from collections.abc import Mapping

from ...model.graph.pcg import PCG
from ...model.graph.segments import Segment, elements_of_layer, layer_elements, layer_weights, segments
from ..bundles.bundles import find_bundles
from ..search_space import SearchSpace
from ..strategies.tensor_classes import Classes
from .recomputable_segments import recomputable_segments

KERNELS, TRAFFIC, HOST = range(3)
"""The streams of a window: G, W, and what the host needs, which may be missing."""


def layers_together(
    pcg: PCG, classes: Classes, space: SearchSpace, inside: bool = False, alone: bool = False
) -> dict[str, int]:
    """The layers whose weights travel together, each with the number of elements of its weights; 0 if they go `alone`.

    None unless the space has `overlap`, nor in a graph with parallel branches, of which only the slowest counts, nor
    of a single layer. `inside`: the graph is part of a larger one, in which there are other layers. Of a layer that
    stages of a pipeline divide all elements count, so that no part costs more than in a larger stage.
    """
    found = recomputable_segments(pcg, classes) if space.overlap and not find_bundles(pcg) else ()
    whole = elements_of_layer(pcg)
    return {
        s.name: 0 if alone else max([layer_elements(pcg, s), *(whole.get(i, 0) for i in layer_weights(pcg, s))])
        for s in (found if len(found) + inside > 1 else ())
    }


def hiding_layers(pcg: PCG, together: Mapping[str, int], inside: bool = False) -> tuple[Segment, ...]:
    """The layers that are priced as hiding the traffic of their weights: those but the first, or all if `inside`."""
    return tuple(segment for segment in segments(pcg) if segment.name in together)[not inside :]


def latency_shares(pcg: PCG, together: Mapping[str, int]) -> dict[int, float]:
    """For every weight of these layers its share of a message's latency: that of its elements."""
    return {
        index: pcg.nodes[index].numel / together[segment.name]
        for segment in (segments(pcg) if together else ())
        if together.get(segment.name)
        for index in layer_weights(pcg, segment)
    }


def least_shares(pcg: PCG) -> dict[int, float]:
    """For every weight of a layer the least share that it pays in any stage of the graph that has all of this part."""
    return {i: pcg.nodes[i].numel / elements for i, elements in elements_of_layer(pcg).items()}
