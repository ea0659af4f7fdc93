"""One graph at several batches: the micro-batches of a graph."""

from dataclasses import replace
from functools import lru_cache

from ..errors import PartitaError
from .atoms import batch_dims
from .origin import MANY, origin, scaled
from .pcg import PCG, Node
from .verification import verify


@lru_cache(maxsize=64)  # one object a batch: analyses are cached by graph
def with_batch(pcg: PCG, batch: int) -> PCG:
    """The same graph for micro-batches of `batch` samples: every dim that holds the batch atom is scaled.

    Raises PartitaError where a shape depends on the batch in another way.
    """
    if batch == pcg.batch:
        return pcg
    if pcg.origin is not None:
        return with_batch(pcg.origin, batch)
    if pcg.samples:
        return origin(pcg) if batch == MANY else scaled(pcg, batch, pcg.samples, origin(pcg))
    if pcg.batch == 1:
        raise PartitaError("cannot tell batch dimensions from a batch of 1; capture with batch >= 2")
    return scaled(pcg, batch, batch_dims(pcg), pcg)


def statistics_parts(pcg: PCG) -> int:
    """In how many parts batch norms normalize the batch, each by its own statistics."""
    return max((int(pcg.nodes[i].get("parts", 1)) for i in pcg.of("moments")), default=1)


def with_statistics_parts(pcg: PCG, parts: int) -> PCG:
    """The graph whose batch norms over micro-batches normalize so many parts of the batch by their own statistics."""
    if parts == statistics_parts(pcg):
        return pcg
    nodes = list[Node]()
    for node in pcg.nodes:
        if node.op == "moments" and node["statistics"] == "micro-batch":
            own = dict(node.attributes) | {"parts": parts}
            shape = 2, nodes[node.inputs[0]].shape[1] * parts
            node = replace(node, shape=shape, attributes=tuple(sorted(own.items())))
        nodes.append(node)
    made = replace(pcg, nodes=tuple(nodes), origin=None, part=None)
    verify(made)
    return made


def with_micro_batches(pcg: PCG, count: int, to: int) -> PCG:
    """A graph of `count` equal micro-batches with another number of them; each keeps what statistics it has."""
    parts = statistics_parts(pcg)
    made = with_batch(pcg, pcg.batch // count * to)
    return made if parts == 1 else with_statistics_parts(made, parts // count * to)


def check_samples(pcg: PCG) -> None:
    """Raise PartitaError unless `samples` follow from the batch dims of the inputs."""
    if not pcg.samples:
        return
    fits = len(pcg.samples) == len(pcg.nodes) and all(
        0 <= d < len(node.shape) for node, dims in zip(pcg.nodes, pcg.samples, strict=False) for d in dims
    )
    if pcg.batch != 1 or not fits or batch_dims(with_batch(pcg, MANY)) != pcg.samples:
        raise PartitaError("graph file: samples do not match the nodes")
