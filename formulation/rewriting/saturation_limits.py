"""When equality saturation ends."""

from dataclasses import dataclass, field

from ...model.options import option


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """When saturation ends before nothing new is found; a result says which limits were hit."""

    rounds: int = field(
        default=4,
        metadata=option(int, "Maximum number of rewriting rounds.", "--rewrite-rounds", metavar="N", minimum=1),
    )
    nodes: int = field(
        default=20_000,
        metadata=option(int, "Number of e-nodes at which rewriting ends.", "--rewrite-nodes", metavar="N", minimum=1),
    )
    seconds: float = 20.0


DEFAULT_LIMITS = SaturationLimits()
