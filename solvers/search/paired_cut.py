"""The master problem of pipelines in two directions: the best cuts where every pair of devices has two stages.

    min T   with   W_d + W_(p-1-d) + t(i_d) ≤ T   and   F_s ≤ T   over paths  0 = i_0, i_1, ..., i_p = n - 1

W_s is what stage s takes of its device in a step, t(i) what a micro-batch takes before boundary i, F_s the bound of a
stage alone. Pairs are nested: the stages of pair d lie right outside of those of pair d + 1. So for a given T it is
decided from the innermost pair outwards which two boundaries the pairs from d on can lie between, in n³ steps for every
pair; T is found by bisection.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .shortest_cut import CutPath, Times

PRECISION = 1 << 17
"""Bisection ends within a share of T; the objective is then the lower end."""


def best_pairs(busy: Sequence[Times], alone: Sequence[Times], before: Times) -> CutPath | None:
    """The path with the least T, within `PRECISION`, and a lower bound on the T of any.

    `busy[s]` [n, n] holds W_s, `alone[s]` F_s, INFINITE where there is none; `before` [n] is t. Of the paths found the
    one whose longest stage is short. None: there is no path.
    """
    found = _path(busy, alone, before, INFINITE - 1)
    if found is None:
        return None
    most, low = _cost(busy, alone, before, found), 0
    while most - low > most // PRECISION:
        middle = (low + most) // 2
        better = _path(busy, alone, before, middle)
        if better is None:
            low = middle + 1
        else:
            found, most = better, _cost(busy, alone, before, better)
    return CutPath(_evened(busy, alone, before, found, most), low)


def _evened(
    busy: Sequence[Times], alone: Sequence[Times], before: Times, path: tuple[int, ...], most: int
) -> tuple[int, ...]:
    """A path of no more than `most` whose longest stage is about as short as it can be."""
    longest, low = _longest(busy, path), 0
    while longest - low > longest // 64:
        middle = (low + longest) // 2
        within = [np.where(times <= middle, own, INFINITE) for times, own in zip(busy, alone, strict=True)]
        better = _path(busy, within, before, most)
        if better is None:
            low = middle + 1
        else:
            path, longest = better, _longest(busy, better)
    return path


def _longest(busy: Sequence[Times], path: tuple[int, ...]) -> int:
    return max(int(times[path[s], path[s + 1]]) for s, times in enumerate(busy))


def _cost(busy: Sequence[Times], alone: Sequence[Times], before: Times, path: tuple[int, ...]) -> int:
    """T of a path."""
    own = [int(times[path[s], path[s + 1]]) for s, times in enumerate(busy)]
    pairs = (int(before[path[d]]) + own[d] + own[-1 - d] for d in range(len(own) // 2))
    return max(*pairs, *(int(times[path[s], path[s + 1]]) for s, times in enumerate(alone)))


def _path(busy: Sequence[Times], alone: Sequence[Times], before: Times, most: int) -> tuple[int, ...] | None:
    """A path whose T is at most `most`."""
    allowed = [np.where(own <= most, times, INFINITE) for times, own in zip(busy, alone, strict=True)]
    pairs, last = len(busy) // 2, len(before) - 1
    inside: list[npt.NDArray[np.bool_]] = [np.eye(last + 1, dtype=np.bool_)]  # of pair d on, by the boundaries outside
    for d in reversed(range(1, pairs)):
        down = _min_plus(allowed[d], np.where(inside[-1], 0, INFINITE))
        inside.append(_min_plus(down, allowed[-1 - d]) + before[:, None] <= most)
    nodes, back = [0], [last]
    for d in range(pairs):
        rest = inside[pairs - 1 - d]
        sums = allowed[d][nodes[-1], :, None] + allowed[-1 - d][:, back[-1]][None, :] + before[nodes[-1]]
        at = int(np.where(rest, sums, INFINITE).argmin())
        if not rest.flat[at] or sums.flat[at] > most:
            return None
        nodes.append(at // (last + 1))
        back.append(at % (last + 1))
    return (*nodes, *reversed(back[:-1]))


def _min_plus(a: Times, b: Times) -> Times:
    """[i, j]: the least a[i, k] + b[k, j]."""
    found = np.full((len(a), b.shape[1]), INFINITE, dtype=np.int64)
    for k in range(len(b)):
        np.minimum(found, a[:, k, None] + b[k], out=found)
    return found
