"""One graph at several batches: micro-batches of a graph have its nodes, with the dims that count samples scaled.

What can be split, what views do and which nodes repeat others does not depend on how many samples there are; it is
found once, of the graph's `origin`. A graph of a single sample that was read from a file has none: it is brought to a
batch of many first, where sizes say which dims count samples.
"""

from dataclasses import replace
from functools import lru_cache

from ..errors import PartitaError
from .pcg import PCG, Node, verify

_FIXED = ("arange", "constant", "opaque", "parameter", "buffer")  # their shapes follow from more than the batch
_MANY = 1009  # samples: a prime, so that their dims are taken for no others


def origin(pcg: PCG) -> PCG:
    """The graph at the batch at which its structure is found: itself, unless it was made from another one."""
    if pcg.origin is not None:
        return pcg.origin
    return with_batch(pcg, _MANY) if pcg.samples else pcg


@lru_cache(maxsize=64)  # one object a batch: analyses are cached by graph
def with_batch(pcg: PCG, batch: int) -> PCG:
    """The same graph for micro-batches of `batch` samples: every dim that holds the batch atom is scaled.

    Raises PartitaError where the batch does not reach a dim as a whole factor.
    """
    if batch == pcg.batch:
        return pcg
    if pcg.origin is not None:
        return with_batch(pcg.origin, batch)
    if pcg.batch == 1 and not pcg.samples:
        raise PartitaError("a graph made for one sample does not say which dims count samples; make it for two")
    samples, bound = _samples(pcg)
    if bound is not None:
        raise PartitaError(f"{bound.op} {bound.name!r} is tied to a batch of {pcg.batch}; capture it at {batch}")
    nodes: list[Node] = []
    for node, dims in zip(pcg.nodes, samples, strict=True):
        if dims:
            shape = list(node.shape)
            for d in dims:
                shape[d] = shape[d] // pcg.batch * batch
            node = replace(node, shape=tuple(shape))
        if node.op == "mean":
            count = nodes[node.inputs[0]].numel // node.numel
            node = replace(node, attributes=tuple((k, count if k == "count" else v) for k, v in node.attributes))
        nodes.append(node)
    made_from = None if pcg.samples and batch == _MANY else origin(pcg)
    kept = samples if batch == 1 else ()
    graph = PCG(tuple(nodes), pcg.loss, batch, pcg.aliases, kept, made_from, pcg.alternatives)
    verify(graph)
    return graph


@lru_cache(maxsize=64)
def _samples(pcg: PCG) -> tuple[tuple[tuple[int, ...], ...], Node | None]:
    """The dims of every node that count samples, and the first node whose shape follows from more than these."""
    from .atoms import batch_dims, tied

    found = pcg.samples or batch_dims(pcg)
    for index, (node, dims) in enumerate(zip(pcg.nodes, found, strict=True)):
        if tied(pcg, index, found) or any(node.shape[d] % pcg.batch or node.op in _FIXED for d in dims):
            return found, node
    return found, None


def check_samples(pcg: PCG) -> None:
    """Raise PartitaError unless `samples` are the dims that the graph's inputs count samples in, and what follows."""
    from .atoms import batch_dims

    if not pcg.samples:
        return
    fits = len(pcg.samples) == len(pcg.nodes) and all(
        0 <= d < len(node.shape) for node, dims in zip(pcg.nodes, pcg.samples, strict=False) for d in dims
    )
    if pcg.batch != 1 or not fits or batch_dims(with_batch(pcg, _MANY)) != pcg.samples:
        raise PartitaError("graph file: samples do not belong to the nodes")
