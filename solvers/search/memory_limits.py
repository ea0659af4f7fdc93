"""Cost networks without their memory limit, and lower bounds on the memory they need."""

from dataclasses import replace
from math import inf

from ...formulation.network.network import INFINITE, Network
from ..elimination.memory_price import least_use_of
from ..elimination.order import TooWideError, compile_network


def without_limit(network: Network) -> Network:
    """The network with a capacity that no assignment exceeds."""
    most = sum(int(t.max()) for term in network.terms() for t in (term.use, term.extra) if t is not None)
    return replace(network, capacities=(most,))


def least_use(network: Network) -> int:
    """Lower bound on every assignment's use of the first capacity; 0 if computing it is too much work."""
    try:
        least = least_use_of(compile_network(replace(network, windows=())), 0)  # they take no memory
    except TooWideError:
        return 0
    return INFINITE if least == inf else int(least)
