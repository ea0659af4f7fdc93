"""One graph at several batches: the micro-batches of a graph."""

from functools import lru_cache

from ..errors import PartitaError
from .atoms import batch_dims
from .origin import MANY, origin, scaled
from .pcg import PCG


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


def check_samples(pcg: PCG) -> None:
    """Raise PartitaError unless `samples` follow from the batch dims of the inputs."""
    if not pcg.samples:
        return
    fits = len(pcg.samples) == len(pcg.nodes) and all(
        0 <= d < len(node.shape) for node, dims in zip(pcg.nodes, pcg.samples, strict=False) for d in dims
    )
    if pcg.batch != 1 or not fits or batch_dims(with_batch(pcg, MANY)) != pcg.samples:
        raise PartitaError("graph file: samples do not match the nodes")
