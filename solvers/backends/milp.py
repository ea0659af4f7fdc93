"""MILP: reduction, then linear program, reduced-cost fixing and mixed-integer program (`wide/integer.py`)."""

from ...formulation.network.network import Network
from ..elimination.transient_memory import EXTRAS, has_extras
from ..protocol import NO_LIMITS, Limits, Search, Solution
from ..wide.integer import close
from ..wide.solve_reduced import reducible, solve_reduced
from ..wide.substitution import Reduced

_MOST_PAIRS = 1_000_000  # entries after reduction; the linear program of more takes minutes


class MILP:
    """Exact for any network that reduction brings to a moderate size; ignores chains, rejects transient memory."""

    name = "milp"

    def accepts(self, network: Network) -> bool:
        """True if totals fit 64 bits; the reduced network may still be too large."""
        return not has_extras(network) and reducible(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        if has_extras(network):
            return search.finish(EXTRAS)
        return search.run(lambda: solve_reduced(search, _solve))


def _solve(search: Search, small: Reduced) -> Solution:
    if len(small.flat.table) > _MOST_PAIRS:
        return search.finish(f"too large for one program: {len(small.flat.table)} pairs")
    return close(search, small)
