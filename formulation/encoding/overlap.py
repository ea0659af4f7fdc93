"""Which layers hide the traffic of their weights.

A layer's weights are gathered while the layer before it computes, and its gradients are reduced while that one goes
backward. Of L equal layers in a row, with G ns of kernels and W ns of weight traffic each, that takes

    W + (L - 1) max(G, W) + G

so each layer costs max(G, W), or what the host needs to issue all of it if that is longer, but for the first one,
which costs G + W: nothing runs beside its gather, the first of the forward, nor beside its reduction, the last of the
backward.

The weights of a layer travel in one message: each pays for its bytes, and its share of the latency. So do those of a
run of operators between layers (embeddings, the head), a bucket at a time; nothing hides them, but they leave ahead of
their use, too. Where weights that share a message mix axes, or ways to move them, they take several messages, and the
price counts too little latency.
"""

from collections.abc import Mapping, Set
from functools import lru_cache
from itertools import chain

from ...model.graph.dtypes import FLOATS
from ...model.graph.pcg import PCG
from ...model.graph.recycling import twins
from ...model.graph.segments import (
    Segment,
    elements_of_layer,
    layer_elements,
    layer_weights,
    of_whole,
    places,
    segments,
)
from ...model.graph.sparse_tables import sparse_tables
from ..bundles.bundles import Bundle, find_bundles
from ..search_space import SearchSpace
from ..strategies.tensor_classes import Classes
from ..weights.buckets import cut_into_buckets
from .recomputable_segments import recomputable_segments, uncertain


def windows_of_layer(micro_batches: int) -> int:
    """The windows of a layer: forward, backward, and backward of the last of several micro-batches."""
    return 2 if micro_batches == 1 else 3


KERNELS, TRAFFIC, HOST = range(3)
"""The streams of a window: G, W, and what the host needs, which may be missing."""


def overlapping_layers(
    pcg: PCG, classes: Classes, space: SearchSpace, *, part: Set[int] | None = None
) -> tuple[Segment, ...]:
    """The layers whose weights may travel together, the first of which hides nothing.

    None unless the space has `overlap`, nor in a graph with parallel branches, of which only the slowest counts.
    `part`: the nodes of a stage, whose branches alone matter.
    """
    if not space.overlap or any(part is None or _lies_within(bundle, part) for bundle in find_bundles(pcg)):
        return ()
    return recomputable_segments(pcg, classes)


def _lies_within(bundle: Bundle, part: Set[int]) -> bool:
    """True if these nodes alone have a bundle: of a sum one term may come from elsewhere."""
    inside = [branch for branch in bundle.branches if part >= set(branch.nodes)]
    lacking = len(bundle.branches) - len(inside)
    return bundle.join in part and lacking <= bool(bundle.adds) and sum(bool(branch.weights) for branch in inside) > 1


def weights_together(
    pcg: PCG,
    classes: Classes,
    space: SearchSpace,
    itemsize: int,
    *,
    alone: bool = False,
    part: Set[int] | None = None,
) -> dict[str, int]:
    """The elements of the message in which weights travel: of each layer, and of each weight between layers.

    0 for layers whose weights go `alone`; nothing where no layers overlap. `itemsize`: bytes of an element. Of a layer
    that stages of a pipeline divide all elements count, so that no part costs more than in a larger stage.
    """
    found = overlapping_layers(pcg, classes, space, part=part)
    if alone or not found:
        return {s.name: 0 for s in found}
    whole, unsure = elements_of_layer(pcg), uncertain(pcg, classes)
    together = {s.name: max([layer_elements(pcg, s), *(whole.get(i, 0) for i in layer_weights(pcg, s))]) for s in found}
    between = _between_layers(pcg, itemsize)
    return together | {pcg.nodes[i].name: n for i, n in between.items() if unsure.isdisjoint(pcg.consumers[i])}


def _between_layers(pcg: PCG, itemsize: int) -> Mapping[int, int]:
    """For every weight outside of layers the number of elements of its message."""
    return of_whole(pcg, lambda whole: _between_layers_of(whole, itemsize))


@lru_cache(maxsize=64)
def _between_layers_of(pcg: PCG, itemsize: int) -> Mapping[int, int]:
    """Weights of a run share messages of a bucket at most, frozen ones apart; one that several runs read is alone."""
    alone: list[list[int]] = []
    of_run: dict[tuple[int, bool], list[int]] = {}
    for index in pcg.of("parameter"):
        node, readers = pcg.nodes[index], pcg.consumers[index]
        if node.dtype not in FLOATS or index in sparse_tables(pcg) or not twins(pcg).keys().isdisjoint(readers):
            continue
        read_at = {places(pcg)[reader] for reader in readers}
        if len(read_at) != 1:
            alone.append([index])
            continue
        (place,) = read_at
        if isinstance(place, int):
            of_run.setdefault((place, node.gradient), []).append(index)
    cut = (cut_into_buckets((i, itemsize * pcg.nodes[i].numel) for i in run) for run in of_run.values())
    messages = [*alone, *chain.from_iterable(cut)]
    return {index: _elements(pcg, message) for message in messages for index in message}


def _elements(pcg: PCG, weights: list[int]) -> int:
    return sum(pcg.nodes[i].numel for i in weights)


def hiding_layers(pcg: PCG, together: Mapping[str, int], inside: bool = False) -> tuple[Segment, ...]:
    """The layers that are priced as hiding the traffic of their weights: those but the first, or all if `inside`."""
    return tuple(segment for segment in segments(pcg) if segment.name in together)[not inside :]


def latency_shares(pcg: PCG, together: Mapping[str, int]) -> dict[int, float]:
    """For every weight that travels with others its share of a message's latency: that of its elements."""
    of_layers = {i: together.get(s.name) for s in (segments(pcg) if together else ()) for i in layer_weights(pcg, s)}
    between = {i: together.get(pcg.nodes[i].name) for i in (pcg.of("parameter") if together else ())}
    return {i: pcg.nodes[i].numel / elements for i, elements in (between | of_layers).items() if elements}


def least_shares(pcg: PCG, itemsize: int) -> dict[int, float]:
    """For every weight the least share that it pays in any stage of the graph that has all of this part."""
    most = {**_between_layers(pcg, itemsize), **elements_of_layer(pcg)}
    return {i: pcg.nodes[i].numel / elements for i, elements in most.items()}
