"""Where a graph can be cut into segments that are searched for repetition."""

import numpy as np

from ...model.graph.pcg import PCG
from ..strategies.tensor_classes import Classes


def find_cuts(pcg: PCG, classes: Classes) -> set[int]:
    """Tensors that alone lead from what is before them to what is after (post-dominators of what is before)."""
    change = [0] * (len(pcg.nodes) + 1)
    moving = [
        (i, max(classes.variable(u.node) for u in uses))
        for i, uses in classes.uses.items()
        if not classes.constant[i] and pcg.nodes[i].op not in ("input", "parameter")
    ]
    for first, last in moving:
        change[first] += 1
        change[last] -= 1
    alive = np.cumsum(change)
    return {first for first, _ in moving if alive[first] == 1}
