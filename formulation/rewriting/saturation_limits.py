"""When equality saturation ends."""

from dataclasses import dataclass, field

from ...model.options import option


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """When saturation ends before nothing new is found; a result says which limits were hit.

    `seconds` are the processor's, so that what is found does not depend on the load of the machine.
    """

    rounds: int = field(
        default=4,
        metadata=option(int, "Maximum number of rewriting rounds.", "--rewrite-rounds", metavar="N", minimum=1),
    )
    nodes: int = field(
        default=20_000,
        metadata=option(int, "Number of e-nodes at which rewriting ends.", "--rewrite-nodes", metavar="N", minimum=1),
    )
    seconds: float = 20.0
    alpha: float = field(
        default=1.05,
        metadata=option(
            float,
            "Bound of generated rules: cost of a rewritten graph on one device, relative to the captured one.",
            "--rewrite-alpha",
            metavar="A",
            minimum=1,
        ),
    )
    bounded_rounds: int = 2
    matches: int = 1
    alternatives: int = 2

    # `alpha` and what follows bound generated rules: their rounds, a rule's matches in one round relative to the number
    # of nodes, and the alternatives of a tensor besides those of other rules.


DEFAULT_LIMITS = SaturationLimits()
