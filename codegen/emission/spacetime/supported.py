"""Which space-time plans can be emitted."""

from ....formulation.spacetime.materialized import Materialized
from ....model.errors import PartitaError
from ....model.graph.sparse_tables import check_optimizer
from ..common import training


def check_supported(program: Materialized, optimizer: str) -> None:
    """Raise PartitaError for what cannot be emitted."""
    pcg = program.tasks.graph.pcg
    if optimizer not in training.OPTIMIZERS:
        raise PartitaError(f"optimizer {optimizer!r} is none of {', '.join(training.OPTIMIZERS)}")
    check_optimizer(pcg, optimizer)
