"""The exact solver without a library: elimination, a price per byte, and label lists within the gap.

1. *Price*: the Lagrangian bound, and solutions found on the way (`memory_price.py`).
2. *Marginals*: the best total through every option and pair; those above the bound plus a slack D are deleted.
3. *Labels*: every nondominated (time, use) within D, so the best solution within D (`labels.py`).
4. D grows until it reaches the incumbent, which is then optimal.
"""

from math import inf

from ...formulation.network.joined_pairs import joined
from ...formulation.network.network import Network
from ..elimination.label_search import close_by_labels
from ..elimination.memory_price import sweep
from ..elimination.order import TooWideError, compile_network
from ..elimination.transient_memory import has_maxima, solve_maxima
from ..protocol import INEXACT, NO_LIMITS, PRICED, Limits, Search, Solution
from ..wide.solve_loosened import solve_loosened
from ..wide.solve_reduced import as_solver, reducible, solve_instead, solve_joined, solve_reduced, unflattened
from ..wide.substitution import Reduced


class Elimination:
    """Exact for networks of small width; under a binding capacity, if the label lists stay below a limit."""

    name = "elimination"

    def accepts(self, network: Network) -> bool:
        """True if no table is too large, and totals are exact in floats, or may be after reduction."""
        try:
            circuit = compile_network(network)
        except TooWideError:
            return False
        if circuit.exact:
            return True
        return not (network.chains or network.switches or network.windows) and reducible(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment; FEASIBLE with a proved bound if the time or the label limit ends the search."""
        search = Search(network, limits, self.name)
        together = joined(network)
        if together is not None:
            return search.run(lambda: solve_joined(search, together, self.solve))
        return search.run(lambda: solve_loosened(search, self.solve) or self._solve(search))

    def _solve(self, search: Search) -> Solution:
        network = search.network
        if has_maxima(network):
            return solve_maxima(search, self.solve)
        if network.chains or network.switches:  # eliminating equal copies once saves more than reduction
            return self._whole(search)
        return solve_reduced(search, self._smaller)

    def _smaller(self, search: Search, small: Reduced) -> Solution:
        """Solve the reduced network, or the original one where that is less work."""
        network = unflattened(small.flat)
        if _work(search.network) < _work(network):
            return self._whole(search)
        return solve_instead(search, network, small.assignment, as_solver(self._whole, self.name), small.cut)

    def _whole(self, search: Search) -> Solution:
        try:
            circuit = compile_network(search.network)
        except TooWideError as error:
            return search.finish(f"too wide for elimination: {error}")
        if not circuit.exact:
            return search.finish(INEXACT)
        best = sweep(circuit, search)
        if best is None:
            return search.finish("no solution, at any price of memory", infeasible=True)
        if search.limits.quick:
            return search.finish("" if search.done else PRICED)
        return close_by_labels(circuit, best, search)


def _work(network: Network) -> float:
    """Additions of an elimination; +inf if too many, or inexact."""
    try:
        circuit = compile_network(network)
    except TooWideError:
        return inf
    return circuit.size[1] if circuit.exact else inf
