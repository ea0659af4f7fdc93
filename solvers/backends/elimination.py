"""The exact solver without a library: elimination, a price per byte, and label lists within the gap.

1. *Price*: the Lagrangian bound, and solutions found on the way (`price.py`).
2. *Marginals*: the best total through every option and pair; what exceeds the bound plus a slack D is deleted.
3. *Labels*: every nondominated (time, use) within D, so the best solution within D (`labels.py`).
4. D grows until it reaches the incumbent: then that is proved best.
"""

from math import inf

import numpy as np

from ...formulation.network.network import INFINITE, Network
from ..elimination.circuit import Circuit
from ..elimination.labels import LabelBounds, Listing, enumerate_labels
from ..elimination.memory_price import Price, first_slack, sweep
from ..elimination.order import TooWideError, compile_network, restrict
from ..elimination.tables import Tables
from ..elimination.transient_memory import has_extras, solve_transient
from ..protocol import INEXACT, NO_LIMITS, PRICED, Limits, Search, Solution, TooManyError
from ..wide.close import reduction
from ..wide.form import fits, flattened
from ..wide.solve_reduced import solve_reduced, unflattened

_LABELS = 1 << 16  # in one table
_RETREAT = 8  # after lists too long


class Elimination:
    """Exact for networks of small width; with a binding capacity as far as the label lists stay below a limit."""

    name = "elimination"

    def accepts(self, network: Network) -> bool:
        """True if no table is too large, and floats hold every total exactly, or may where reduction comes first."""
        try:
            circuit = compile_network(network)
        except TooWideError:
            return False
        return circuit.exact or (not network.chains and not network.switches and fits(flattened(network)))

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment; FEASIBLE with a proved bound when the time or the label limit ends it."""
        search = Search(network, limits, self.name)
        if has_extras(network):
            return search.run(lambda: solve_transient(search, self.solve))
        if network.chains or network.switches:  # copies are eliminated once, which is more than reduction saves
            return search.run(lambda: self._whole(search))
        return search.run(lambda: self._smaller(search))

    def _smaller(self, search: Search) -> Solution:
        """The network as reduction leaves it, or as it stands where that is less work."""
        small = reduction(search)
        if isinstance(small, Solution):
            return small
        network = unflattened(small.flat)
        if _work(search.network) < _work(network):
            return self._whole(search)

        def solve(network: Network, limits: Limits) -> Solution:
            inner = Search(network, limits, self.name)
            return inner.run(lambda: self._whole(inner))

        return solve_reduced(search, small, network, solve)

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
    """How many additions it takes; +inf where that is too many, or not exact."""
    try:
        circuit = compile_network(network)
    except TooWideError:
        return inf
    return circuit.in_all[1] if circuit.exact else inf


def close_by_labels(circuit: Circuit, best: Price, search: Search, limit: int = _LABELS) -> Solution:
    """Enumerate within a growing slack until the incumbent is proved best, or the lists grow too long.

    Lists that are too long are tried again within a smaller slack: a better incumbent may make the rest short.
    """
    most_cost = circuit.most_cost
    slack = first_slack(best, search.network)
    through = Tables() if search.done else circuit.backward(best.slots, search.until)
    too_long, why = INFINITE, ""
    while not search.done:
        reach = min(best.bound + slack, search.ceiling - 1, most_cost)
        try:
            listing = list_within(circuit, best, through, reach, limit, search.until)
        except TooManyError as error:
            too_long, why = slack, f"the label lists grew too long within {slack} ns of the bound: {error}"
            slack //= _RETREAT
        else:
            if listing is not None:
                offer_best(listing, search)
            if reach == most_cost and search.objective is None:
                return search.finish("no solution, by enumeration", infeasible=True)
            search.raise_bound(reach + 1)
            slack *= 3
        if 2 * slack > too_long or best.bound + slack <= search.bound:
            break
    return search.finish("" if search.bound >= search.ceiling else why)


def list_within(circuit: Circuit, best: Price, through: Tables, reach: int, limit: int, until: float) -> Listing | None:
    """The labels of every solution of at most the cost `reach`; None when there is none, whatever it uses."""
    most = best.most(circuit, reach)
    small = restrict(circuit, through, most)
    if small is None:
        return None
    slots = small.forward(small.tables(1, best.price), until)
    bounds = LabelBounds(np.array(best.price), most, limit, until)
    return enumerate_labels(small, slots, small.backward(slots, until), bounds)


def offer_best(listing: Listing, search: Search) -> None:
    """Offer the fastest label of the root that fits the capacities."""
    root = listing.slots[listing.circuit.root]
    fits = np.flatnonzero((root.use <= np.array(search.network.capacities)).all(axis=1))
    if len(fits):
        label = int(fits[np.argmin(root.time[fits])])
        if search.better(search.network.constant + int(root.time[label])):
            search.offer(listing.decode(label))
