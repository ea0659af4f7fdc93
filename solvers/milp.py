"""MILP: the network reduced, then linear program, reduced-cost fixing and mixed-integer program (`flat/integer.py`)."""

from __future__ import annotations

from ..formulation.network import Network
from .flat.close import close, reduction
from .flat.form import fits, flattened
from .protocol import NO_LIMITS, Limits, Search, Solution

_MOST_PAIRS = 1_000_000  # entries that reduction may leave; beyond, the linear program alone takes minutes


class MILP:
    """Exact for any network that reduction brings to a moderate size; chains are ignored."""

    name = "milp"

    def accepts(self, network: Network) -> bool:
        """Whether reduction can add up the totals; what it leaves may be too large."""
        return fits(flattened(network))

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment, or the best found within the limits and a proved bound."""
        search = Search(network, limits, self.name)
        return search.run(lambda: _solve(search))


def _solve(search: Search) -> Solution:
    small = reduction(search)
    if isinstance(small, Solution):
        return small
    if len(small.flat.table) > _MOST_PAIRS:
        return search.finish(f"too large for one program: {len(small.flat.table)} pairs")
    return close(search, small)
