"""From the nodes of a translation to a graph: what the loss needs, equal constants once, look-ups joined."""

from collections.abc import Mapping, Sequence

from ..errors import PartitaError
from ..graph.builder import Builder
from ..graph.constants import expanded_last, shared
from ..graph.input_ranges import with_ranges
from ..graph.pcg import PCG, live
from ..graph.sparse_tables import settled
from .gradients import trained
from .merged_lookups import merge_lookups


def finished(builder: Builder, loss: int, aliases: Sequence[tuple[str, str]], limits: Mapping[int, int]) -> PCG:
    """The nodes that the loss needs and all inputs, with ranges of integer inputs and joined tables."""
    nodes, moved = expanded_last(builder.nodes)
    builder.nodes = nodes = shared(nodes)
    loss = moved[loss]
    if not nodes[loss].gradient:
        raise PartitaError("the loss depends on no trainable parameter")
    builder.nodes, number = live(nodes, loss)
    names = {node.name for node in builder.nodes}
    builder.aliases = [(alias, name) for alias, name in aliases if name in names]
    kept = {number[moved[i]]: limit for i, limit in limits.items() if moved[i] in number}
    builder.nodes = with_ranges(settled(trained(builder.nodes, number[loss])), kept)
    return merge_lookups(builder.build(number[loss]))
