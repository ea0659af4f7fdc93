"""The default solver: elimination bounds and prunes; programs take over where label lists grow too long.

Label lists finish most networks. Where they grow too long, small networks are tried as linear and mixed-integer
programs. Then CP-SAT solves the pruned network, with one count per label of a chain's copy (`counted.py`). Slacks
grow as in elimination, so that the program only holds what can be part of a solution within the slack. Networks too
wide for elimination go to `wide/portfolio.py`.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from ...formulation.network.joined_pairs import joined
from ...formulation.network.network import Network
from ..decomposition.counted import count_within, is_small
from ..elimination.label_search import close_by_labels
from ..elimination.memory_price import search_within, sweep
from ..elimination.order import TooWideError, compile_network
from ..elimination.transient_memory import has_maxima, plainest, solve_maxima
from ..protocol import NO_LIMITS, PRICED, STOPPED, Limits, Search, Solution, Status
from ..wide.portfolio import solve_flat, try_programs
from ..wide.solve_loosened import solve_loosened
from ..wide.solve_reduced import reducible, solve_joined
from .cpsat import CpSatPlain, run, solve_whole

_FEW_LABELS, _LABELS = 1 << 13, 1 << 18  # per table, under several capacities and under one, which sorts them


class Auto:
    """Exact for every network whose totals are exact in floats, unless stopped by the time limit."""

    name = "auto"

    def accepts(self, network: Network) -> bool:
        """True if the totals are exact in floats, or fit 64 bits, so that reduction may make them exact."""
        with suppress(TooWideError):
            if compile_network(network).exact:
                return True
        return reducible(plainest(network))

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        together = joined(network)
        if together is not None:
            return search.run(lambda: solve_joined(search, together, self.solve))
        return search.run(lambda: solve_loosened(search, self.solve) or self._solve(search))

    def _solve(self, search: Search) -> Solution:
        network = search.network
        if has_maxima(network):
            answer = solve_maxima(search, self.solve)
            unfinished = not (search.done or search.limits.quick or answer.status is Status.INFEASIBLE)
            fits = is_small(network) if network.windows else CpSatPlain().accepts(network)
            return solve_whole(search) if unfinished and fits else answer
        try:
            circuit = compile_network(network)
        except TooWideError:
            return solve_flat(search)
        if not circuit.exact:  # perhaps in 64 bits
            return solve_flat(search)
        best = sweep(circuit, search)
        if best is None:
            return search.finish("no solution, at any price of memory", infeasible=True)
        if search.done or search.limits.quick:
            return _with_words(search.finish("" if search.done else PRICED), "prices", search)
        limit = _FEW_LABELS if len(network.capacities) > 1 else _LABELS
        lists = partial(close_by_labels, circuit, best, search, limit)
        programs = partial(try_programs, search)
        for part, close in (("label lists", lists), ("programs", programs)):
            solution = close()
            if solution is not None and (search.done or solution.status is Status.INFEASIBLE):
                return _with_words(solution, part, search)
        count = partial(count_within, circuit, best, search, run)
        return search_within(circuit, best, search, count, ("counting", "CP-SAT"))


def _with_words(solution: Solution, part: str, search: Search) -> Solution:
    """The solution; if it has no words yet, they name the part that proved it, or the time limit."""
    words = f"proved by {part}" if search.bound >= search.ceiling else STOPPED
    return solution if solution.words else replace(solution, words=words)
