"""Optimizers, and the states that each keeps per parameter."""

from .errors import PartitaError

STATES = {"sgd": 0, "adam": 2, "adamw": 2}
"""Optimizer -> tensors that it keeps per parameter."""
OPTIMIZERS = tuple(STATES)


def optimizer_states(name: str) -> int:
    """Tensors that an optimizer keeps per parameter; PartitaError lists the known optimizers."""
    if name not in STATES:
        raise PartitaError(f"unknown optimizer {name!r} (known: {', '.join(STATES)})")
    return STATES[name]
