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

from collections.abc import Mapping, Sequence

from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.graph.segments import Segment, segments
from ...model.graph.sparse_tables import sparse_tables
from ..bundles.bundles import find_bundles
from ..search_space import SearchSpace
from ..strategies.tensor_classes import Classes
from .recomputable_segments import recomputable_segments

KERNELS, TRAFFIC, HOST = range(3)
"""The streams of a window: G, W, and what the host needs, which may be missing."""


def layers_together(pcg: PCG, classes: Classes, space: SearchSpace, inside: bool = False) -> dict[str, int]:
    """The layers whose weights travel together, in order, each with the number of elements of its weights.

    None unless the space has `overlap`, nor in a graph with parallel branches, of which only the slowest counts, nor
    of a single layer. `inside`: the graph is part of a larger one, in which there are other layers. A layer that stages
    of a pipeline share counts as a whole.
    """
    if not space.overlap or find_bundles(pcg):
        return {}
    found = recomputable_segments(pcg, classes)
    part = origin(pcg).part
    whole = {} if part is None else {segment.name: layer_elements(part[0], segment) for segment in segments(part[0])}
    return {s.name: max(layer_elements(pcg, s), whole.get(s.name, 0)) for s in found} if len(found) + inside > 1 else {}


def hiding_layers(pcg: PCG, together: Mapping[str, int], inside: bool = False) -> tuple[Segment, ...]:
    """The layers that are priced as hiding the traffic of their weights: those but the first, or all if `inside`."""
    names = list(together)[not inside :]
    return tuple(segment for segment in segments(pcg) if segment.name in names)


def latency_shares(pcg: PCG, together: Mapping[str, int]) -> dict[int, float]:
    """For every weight of these layers its share of a message's latency: that of its elements."""
    if not together:
        return {}
    return {
        index: pcg.nodes[index].numel / together[segment.name]
        for segment in segments(pcg)
        if segment.name in together
        for index in layer_weights(pcg, segment)
    }


def layer_weights(pcg: PCG, segment: Segment) -> Sequence[int]:
    """The weights that a layer reads, without sparse tables, which are never gathered."""
    read = dict.fromkeys(i for node in segment.nodes for i in pcg.nodes[node].inputs)
    return [i for i in read if pcg.nodes[i].op == "parameter" and i not in sparse_tables(pcg)]


def layer_elements(pcg: PCG, segment: Segment) -> int:
    """The number of elements of those weights."""
    return sum(pcg.nodes[i].numel for i in layer_weights(pcg, segment))
