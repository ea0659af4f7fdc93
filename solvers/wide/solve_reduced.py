"""Solve a search's network by an equivalent one: without switches, or reduced."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from ...formulation.network.joined_pairs import Joined
from ...formulation.network.network import INFINITE, Edge, Network, Variable
from ...formulation.network.without_switches import without_switches
from ..elimination.kernels import Ints
from ..protocol import INEXACT, Limits, Progress, Search, Solution, Status
from .form import Flat, fits, flattened, in_floats
from .reduce import reduced
from .substitution import Reduced

CUT = "large costs are known only as clipped for floats"
"""Words of a solution optimal only for clipped costs (`in_floats`)."""
_REDUCTION = 0.3  # share of the time left, for reduction

Solve: TypeAlias = Callable[[Network, Limits], Solution]


def reducible(network: Network) -> bool:
    """True if reduction can add up the network's costs and uses in 64 bits."""
    return fits(flattened(without_switches(network).network))


def as_solver(solve: Callable[[Search], Solution], name: str) -> Solve:
    """The function of a network and limits that runs `solve` on a search of its own."""

    def solve_network(network: Network, limits: Limits) -> Solution:
        search = Search(network, limits, name)
        return search.run(lambda: solve(search))

    return solve_network


def solve_reduced(search: Search, solve: Callable[[Search, Reduced], Solution]) -> Solution:
    """Solve a network by `solve`, which gets it without switches (these become options) and reduced."""
    network = without_loose_pairs(search.network)
    if network.switches:
        pairs = without_switches(network)
        inner = as_solver(partial(solve_reduced, solve=solve), search.source)
        return solve_instead(search, pairs.network, pairs.lift, inner)
    small = _reduction(search, network)
    return small if isinstance(small, Solution) else solve(search, small)


def without_loose_pairs(network: Network) -> Network:
    """The network without the use of pairs if no assignment exceeds a capacity; its tables are as large as costs'."""
    switched = [t for s in network.switches for t in s.edges.values()]
    if all(e.use is None for e in network.edges) and all(use is None for _, use, _ in switched):
        return network
    most = [0] * len(network.capacities)
    for term in network.terms():
        for column in range(0 if term.use is None else term.use.shape[-1]):
            assert term.use is not None
            rows = (column, column + 1) if term.rows is None else term.rows[column].tolist()
            use = int(np.max(term.use[..., column], initial=0, where=term.cost < INFINITE))
            for r in range(*rows) if use else ():
                most[r] += use
    if any(x > limit for x, limit in zip(most, network.capacities, strict=True)):
        return network
    edges = tuple(edge if edge.use is None else replace(edge, use=None) for edge in network.edges)
    switches = tuple(
        replace(s, edges={k: (cost, None, extra) for k, (cost, _, extra) in s.edges.items()}) for s in network.switches
    )
    return replace(network, edges=edges, switches=switches)


def _reduction(search: Search, network: Network) -> Reduced | Solution:
    """Reduce a search's network, given as an equal one, raise its bound, and clip the largest costs (`in_floats`).

    Returns the solution instead if reduction decides the search.
    """
    whole = [flattened(network)]  # gigabytes, perhaps: given away, so that reduction can free it
    if not fits(whole[0]):
        return search.finish("totals beyond 2^60 do not add up in 64 bits")
    whole_is_exact = in_floats(whole[0]) is whole[0]
    small = reduced(whole.pop(), time.perf_counter() + _REDUCTION * search.left)
    if small is None or (low := small.flat.floor()) >= INFINITE:
        return search.finish("no solution, by reduction", infeasible=True)
    if small.flat.variables == 0 and not search.offer(small.assignment(())):
        return search.finish("no solution, by reduction", infeasible=True)
    search.raise_bound(low)
    if search.bound >= search.ceiling:
        return search.finish("proved by reduction")
    exact = in_floats(small.flat)
    if exact is small.flat:
        return small
    if whole_is_exact:  # reduction may sum costs beyond the original ones
        return Reduced(flattened(network))
    if exact is None:
        return search.finish(INEXACT)
    return replace(small, flat=exact, cut=True)


def solve_instead(
    search: Search,
    network: Network,
    lift: Callable[[tuple[int, ...]], tuple[int, ...]],
    solve: Solve,
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


def solve_joined(search: Search, together: Joined, solve: Solve) -> Solution:
    """Solve a search's network by that with joined pairs, of which the prices and the proof hold as they are."""

    def solved(network: Network, limits: Limits) -> Solution:
        answer = solve(network, limits)
        search.prices, search.proof = answer.prices, answer.proof
        return answer

    return solve_instead(search, together.network, together.apart, solved)


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
