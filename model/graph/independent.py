"""Models whose samples meet in the loss alone, so that halves of a micro-batch may be computed at different times."""

from ..errors import PartitaError
from .atoms import atoms
from .boundaries import needed
from .origin import origin
from .pcg import PCG, SOURCES
from .sparse_tables import sparse_tables


def check_independent(pcg: PCG) -> None:
    """PartitaError: another operator than the loss reduces over samples, or a gradient is sparse, and not added up."""
    at = origin(pcg)
    known, tables = atoms(at), sparse_tables(at)
    for index in sorted(needed(at, (at.loss,)) - {at.loss}):
        node = at.nodes[index]
        if node.op not in SOURCES and not known[index].batch and any(known[i].batch for i in node.inputs):
            raise PartitaError(
                f"chimera pipelines compute halves of a micro-batch on different devices at different times, but "
                f"{node.op} {node.name!r} reduces over samples before the loss: plan with another --schedule"
            )
    if tables:
        raise PartitaError(
            f"chimera pipelines: {at.nodes[min(tables)].name!r} has a sparse gradient, which is not added up over the "
            "devices of both directions: plan with another --schedule"
        )
