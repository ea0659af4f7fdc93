"""Any backend on what exact reduction leaves of a network, its answers carried back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...formulation.network.network import Edge, Network, Variable
from ..elimination.kernels import Ints
from ..protocol import Limits, Progress, Search, Solution, Status
from .close import CUT, reduction
from .form import Flat
from .substitution import Reduced


def solve_smaller(search: Search, solve: Callable[[Network, Limits], Solution]) -> Solution:
    """The solution of a search's network by what `solve` makes of the reduced one in the time left."""
    small = reduction(search)
    return small if isinstance(small, Solution) else solve_reduced(search, small, unflattened(small.flat), solve)


def solve_reduced(
    search: Search, small: Reduced, network: Network, solve: Callable[[Network, Limits], Solution]
) -> Solution:
    """The same where reduction left `small`, which is this network."""

    def lift(assignment: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(small.lift(np.array(assignment, np.int64)).tolist())

    return solve_instead(search, network, lift, solve, small.cut)


def solve_instead(
    search: Search,
    network: Network,
    lift: Callable[[tuple[int, ...]], tuple[int, ...]],
    solve: Callable[[Network, Limits], Solution],
    cut: bool = False,
) -> Solution:
    """The solution of a search's network by that of an equal one, whose assignments `lift` carries back.

    `cut`: assignments may cost more than they do there.
    """

    def tell(progress: Progress) -> None:
        assert search.limits.progress is not None
        search.bound = max(search.bound, progress.bound)
        incumbent = search.objective if cut else progress.incumbent
        search.limits.progress(Progress(incumbent, search.bound, search.seconds))

    told = None if search.limits.progress is None else tell
    answer = solve(network, replace(search.limits, seconds=search.left, progress=told))
    if answer.assignment is not None:
        search.offer(lift(answer.assignment))
    if answer.status is not Status.INFEASIBLE:
        search.raise_bound(answer.bound)
    short = answer.status is Status.OPTIMAL and search.bound != search.objective
    return search.finish(CUT if short else answer.words, infeasible=answer.status is Status.INFEASIBLE)


def unflattened(flat: Flat) -> Network:
    """The network of some arrays; variables are called by their numbers."""
    starts, order = flat.start.tolist(), np.argsort(flat.piece_of, kind="stable")
    first = np.searchsorted(flat.piece_of[order], np.arange(flat.variables + 1)).tolist()
    variables = [
        Variable(f"v{v}", flat.cost[starts[v] : starts[v + 1]], *_uses(flat, order[first[v] : first[v + 1]], n))
        for v, n in enumerate(flat.sizes.tolist())
    ]
    sizes, edges = flat.sizes.tolist(), []
    for e, (u, v) in enumerate(flat.ends.tolist()):
        entries, shape = slice(int(flat.at[e]), int(flat.at[e + 1])), (sizes[u], sizes[v])
        use = None if flat.pair_use is None else flat.pair_use[entries].reshape(*shape, len(flat.limits))
        edges.append(Edge(u, v, flat.table[entries].reshape(shape), use))
    return Network(tuple(variables), tuple(edges), tuple(flat.limits.tolist()), flat.constant)


def _uses(flat: Flat, pieces: Ints, size: int) -> tuple[Ints, Ints]:
    """[n, P] and [P, 2]: what the pieces of a variable of n options use, and the capacities that they count on."""
    return flat.use[flat.use_at[pieces] + np.arange(size)[:, None]].reshape(size, len(pieces)), flat.rows[pieces]
