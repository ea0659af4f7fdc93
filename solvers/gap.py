"""How far an objective may be from the optimum, given a proved lower bound.

The *gap* is a share of the objective; "at most x % above the optimum" is a share of the optimum, for which the bound
stands. They differ: a plan of 2 ms with bound 1 ms has a gap of 50 % and is at most 100 % above the optimum.
"""


def relative_gap(objective: float, bound: float) -> float:
    """(objective - bound) / |objective|; 0.0 if proved."""
    return max(0.0, (objective - bound) / max(abs(objective), 1))


def share_above(objective: float, bound: float) -> float | None:
    """(objective - bound) / bound, the most by which the objective exceeds the optimum.

    None unless the bound is positive: then nothing is proved. With the cost of another answer as `bound`: by how much
    the objective exceeds that.
    """
    if objective <= bound:
        return 0.0
    return (objective - bound) / bound if bound > 0 else None
