"""Which space-time plans can be emitted."""

from ....formulation.spacetime.materialized import Materialized
from ....model.errors import PartitaError
from ....model.graph.sparse_tables import sparse_tables
from ..common import training


def check_supported(program: Materialized, optimizer: str) -> None:
    """Raise PartitaError for what cannot be emitted."""
    pcg = program.tasks.graph.pcg
    if optimizer not in training.OPTIMIZERS:
        raise PartitaError(f"optimizer {optimizer!r} is none of {', '.join(training.OPTIMIZERS)}")
    if sparse_tables(pcg):
        raise PartitaError(f"{pcg.nodes[min(sparse_tables(pcg))].name!r}: sparse gradients are not supported here")
    for index in pcg.of("parameter"):
        node = pcg.nodes[index]
        if node.originals != {node.name: node.shape}:
            raise PartitaError(f"{node.name!r} joins several parameters, which space-time plans do not support")
