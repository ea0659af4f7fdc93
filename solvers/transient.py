"""What switches use for a while: the largest of it, τ, takes its part of capacity 0 from all else.

    min cost(x)   s.t.  use_0(x) + τ ≤ M_0,   Σ extra_s(x) ≤ τ  ∀ switches s

Any τ ≥ 0 below the true one gives a bound, and a solution of the network without extras under M_0 - τ whose extras
are at most τ is feasible. So τ grows, from nothing, to what the solution found needs.
"""

from collections.abc import Callable
from dataclasses import replace

from ..formulation.network import Network, extras
from .cpsat import CpSatPlain, solve_whole
from .protocol import STOPPED, Limits, Progress, Search, Solution, Status

EXTRAS = "what switches use for a while has no place in its program"
_Solve = Callable[[Network, Limits], Solution]


def has_extras(network: Network) -> bool:
    """Whether there are extras, and a capacity that they are used of."""
    return bool(network.capacities) and any(s.has_extra for s in network.switches)


def without_extras(network: Network, tau: int = 0) -> Network:
    """The network without extras, whose capacity 0 is less by `tau`."""
    switches = tuple(
        replace(
            s,
            variables={v: (cost, use, None) for v, (cost, use, _) in s.variables.items()},
            edges={k: (cost, use, None) for k, (cost, use, _) in s.edges.items()},
        )
        for s in network.switches
    )
    first, *others = network.capacities
    return replace(network, switches=switches, capacities=(first - tau, *others))


def solve_transient(search: Search, solve: _Solve) -> Solution:
    """The solution of a search's network by a solver of those without extras."""

    def tell(progress: Progress) -> None:
        assert search.limits.progress is not None
        search.limits.progress(Progress(search.objective, max(search.bound, progress.bound), search.seconds))

    told = None if search.limits.progress is None else tell
    tau = 0
    while tau <= search.network.capacities[0]:
        network = without_extras(search.network, tau)
        answer = solve(network, replace(search.limits, seconds=search.left, progress=told if tau == 0 else None))
        if tau == 0:
            if answer.status is Status.INFEASIBLE:
                return search.finish(answer.words, infeasible=True)
            search.raise_bound(answer.bound)
        if answer.assignment is None or search.offer(answer.assignment):
            break
        if search.left <= 0:
            return search.finish(STOPPED)
        tau = max(tau + 1, *extras(search.network, answer.assignment).values())
    if search.bound < search.ceiling and CpSatPlain().accepts(search.network):
        return solve_whole(search)
    return search.finish("" if search.bound >= search.ceiling else "what switches use for a while is not priced")
