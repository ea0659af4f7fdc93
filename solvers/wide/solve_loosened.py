"""Solve a network by one with loose hubs (`loose_hubs.py`), which bounds it, and then what these left open."""

from dataclasses import replace

from ...formulation.network.joined_pairs import joined
from ...formulation.network.loose_hubs import Loosened, loosened
from ...formulation.network.network import Network
from ..elimination.order import is_narrow
from ..elimination.transient_memory import has_extras, tau_of, without_extras, without_windows
from ..protocol import INTERRUPTED, Limits, Progress, Search, Solution, Status
from .solve_narrowed import solve_narrowed
from .solve_reduced import Solve

_SHARE = 0.75  # of the gap, for the loose network; the rest is for what it leaves open (a thousandth, mostly)
_TRIES = 3  # values of the largest transient use


def solve_loosened(search: Search, solve: Solve) -> Solution | None:
    """The answer by a loose network; None if there is none, or elimination can take the network and may find better.

    Where it can, and the optimum is requested, nothing is loosened.
    """
    network, limits = search.network, search.limits
    if not network.pairs:
        return None
    wide = not _fits(network)
    loose = loosened(network, _fits) if wide or limits.gap else None
    if loose is None:
        return solve_narrowed(search, solve) if wide else None
    apart = loose.network if joined(loose.network) else replace(loose.network, pairs=(), line=())
    progress = None if limits.progress is None else lambda own: _bounded(search, own)
    gap = limits.gap if limits.quick else _SHARE * limits.gap
    answer = solve(apart, replace(limits, seconds=search.left, gap=gap, progress=progress))
    if answer.status is Status.INFEASIBLE:
        return search.finish(answer.words, infeasible=True)
    search.prices, search.proof = answer.prices, answer.proof
    search.raise_bound(answer.bound)
    if answer.assignment is not None:
        _decide_rest(search, loose, answer.assignment, solve)
    if answer.words == INTERRUPTED or search.done or limits.quick or limits.rough:
        return search.finish(answer.words)
    return search.finish("too wide for elimination unless hubs are loosened") if wide else None


def _fits(network: Network) -> bool:
    """True if elimination can take the network, its pairs joined."""
    together = joined(network)
    return is_narrow(network if together is None else together.network)


def _bounded(search: Search, progress: Progress) -> None:
    """Take the bound of a loose network, not its incumbent."""
    search.raise_bound(progress.bound)


def _decide_rest(search: Search, loose: Loosened, assignment: tuple[int, ...], solve: Solve) -> None:
    """Offer an assignment that differs from that of the loose network in what this left open.

    It takes a second, and is worth that after the time limit, too.
    """
    tau = tau_of(loose.network, assignment)
    rest = without_windows(loose.rest(assignment))
    for _ in range(_TRIES):
        answer = solve(without_extras(rest, tau) if has_extras(rest) else rest, Limits(quick=True))
        if answer.assignment is None:
            return
        found = loose.assignment(assignment, answer.assignment)
        needed = tau_of(search.network, found)
        if search.offer(found) or needed <= tau:
            return
        tau = needed
