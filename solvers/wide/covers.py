"""Cover cuts, for choices that exceed a capacity within float tolerances."""

from __future__ import annotations

import numpy as np

from ..elimination.kernels import Ints
from .fixing import pieces
from .form import Flat


def cover(flat: Flat, choice: Ints, row: int) -> tuple[Ints, int]:
    """A cover cut for a choice that exceeds the capacity `row`: options, and how many a feasible choice may take.

    An extended minimal cover (Balas 1975); if pairs use capacities, the chosen options of all variables involved. The
    number is -1 if the capacity is infeasible.
    """
    if flat.pair_use is not None:
        users = flat.piece_of[_counts(flat, row)]
        pairs = flat.ends[np.flatnonzero(flat.pair_use[flat.entries(choice), row])]
        members = np.union1d(users, pairs.ravel())
        return flat.start[members] + choice[members], len(members) - 1
    use = np.zeros(len(flat.cost), np.int64)
    on = np.repeat(_counts(flat, row), np.diff(flat.use_at))
    np.add.at(use, pieces(flat)[on], flat.use[on])
    least = np.minimum.reduceat(use, flat.start[:-1])
    above = use[flat.start[:-1] + choice] - least
    room = int(flat.limits[row] - least.sum())
    order = np.argsort(-above, kind="stable")
    count = int(np.searchsorted(np.cumsum(above[order]), room, side="right")) + 1 if room >= 0 else 0
    members = order[:count]  # a minimal cover
    variable = np.repeat(np.arange(flat.variables), flat.sizes)
    inside = np.isin(variable, members) & (use - least[variable] >= above[variable])
    return np.flatnonzero(inside), count - 1


def _counts(flat: Flat, row: int) -> np.ndarray:
    """[P]: True if a piece counts on a capacity."""
    return (flat.rows[:, 0] <= row) & (row < flat.rows[:, 1])
