"""Solve a network by an equivalent one: reduced, or without switches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ...formulation.network.network import Edge, Network, Variable
from ...formulation.network.without_switches import without_switches
from ..elimination.kernels import Ints
from ..protocol import Limits, Progress, Search, Solution, Status
from .close import CUT, reduction
from .form import Flat
from .substitution import Reduced

_Solve: TypeAlias = Callable[[Network, Limits], Solution]


def as_solver(solve: Callable[[Search], Solution], name: str) -> _Solve:
    """The function of a network and limits that runs `solve` on a search of its own."""

    def solve_network(network: Network, limits: Limits) -> Solution:
        search = Search(network, limits, name)
        return search.run(lambda: solve(search))

    return solve_network


def solve_switchless(search: Search, solve: Callable[[Search], Solution]) -> Solution:
    """Solve a network by `solve`, which takes none with switches: these become options."""
    if not search.network.switches:
        return solve(search)
    pairs = without_switches(search.network)
    return solve_instead(search, pairs.network, pairs.lift, as_solver(solve, search.source))


def solve_smaller(search: Search, solve: _Solve) -> Solution:
    """Solve a network by `solve` on the reduced one, in the time left."""
    small = reduction(search)
    return small if isinstance(small, Solution) else solve_reduced(search, small, unflattened(small.flat), solve)


def solve_reduced(search: Search, small: Reduced, network: Network, solve: _Solve) -> Solution:
    """Solve a network that was reduced to `small`, as a network `network`."""

    def lift(assignment: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(small.lift(np.array(assignment, np.int64)).tolist())

    return solve_instead(search, network, lift, solve, small.cut)


def solve_instead(
    search: Search,
    network: Network,
    lift: Callable[[tuple[int, ...]], tuple[int, ...]],
    solve: _Solve,
    cut: bool = False,
) -> Solution:
    """Solve a search's network by an equivalent one, whose assignments `lift` maps back.

    `cut`: the equivalent one clips large costs, so that assignments may cost more.
    """

    def forward(progress: Progress) -> None:
        assert search.limits.progress is not None
        search.bound = max(search.bound, progress.bound)
        incumbent = search.objective if cut else progress.incumbent
        search.limits.progress(Progress(incumbent, search.bound, search.seconds))

    progress = None if search.limits.progress is None else forward
    answer = solve(network, replace(search.limits, seconds=search.left, progress=progress))
    if answer.assignment is not None:
        search.offer(lift(answer.assignment))
    if answer.status is not Status.INFEASIBLE:
        search.raise_bound(answer.bound)
    clipped = answer.status is Status.OPTIMAL and search.bound != search.objective
    return search.finish(CUT if clipped else answer.words, infeasible=answer.status is Status.INFEASIBLE)


def unflattened(flat: Flat) -> Network:
    """The network of a `Flat`; variables are named by number."""
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
    """Use [n, P] and rows [P, 2] of the P pieces of a variable of n options."""
    return flat.use[flat.use_at[pieces] + np.arange(size)[:, None]].reshape(size, len(pieces)), flat.rows[pieces]
