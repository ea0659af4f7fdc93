"""The search for the best solution by label lists: within a growing slack above the bound of the best price."""

import numpy as np

from ...formulation.network.network import INFINITE
from ..protocol import Search, Solution, TooManyError
from .circuit import Circuit
from .labels import LabelBounds, Listing, enumerate_labels
from .memory_price import Price, first_slack
from .order import restrict
from .tables import Tables

_LABELS = 1 << 16  # per table
_RETREAT = 8  # divides the slack after lists too long


def close_by_labels(circuit: Circuit, best: Price, search: Search, limit: int = _LABELS) -> Solution:
    """Enumerate within a growing slack until the incumbent is proved optimal, or the lists grow too long.

    Lists too long are retried within a smaller slack: a better incumbent may shorten the rest.
    """
    max_cost = circuit.max_cost
    slack = first_slack(best, search.network)
    through = Tables() if search.done else circuit.backward(best.slots, search.until)
    too_long, why = INFINITE, ""
    while not search.done:
        reach = min(best.bound + slack, search.ceiling - 1, max_cost)
        try:
            listing = list_within(circuit, best, through, reach, limit, search.until)
        except TooManyError as error:
            too_long, why = slack, f"the label lists grew too long within {slack} ns of the bound: {error}"
            slack //= _RETREAT
        else:
            if listing is not None:
                offer_best(listing, search)
            if reach == max_cost and search.objective is None:
                return search.finish("no solution, by enumeration", infeasible=True)
            search.raise_bound(reach + 1)
            slack *= 3
        if 2 * slack > too_long or best.bound + slack <= search.bound:
            break
    return search.finish("" if search.bound >= search.ceiling else why)


def list_within(circuit: Circuit, best: Price, through: Tables, reach: int, limit: int, until: float) -> Listing | None:
    """The labels of every solution of cost up to `reach`, capacities ignored; None if there is none."""
    max_total = best.max_total(circuit, reach)
    small = restrict(circuit, through, max_total)
    if small is None:
        return None
    return enumerate_labels(small, LabelBounds(np.array(best.price), max_total, limit, until))


def offer_best(listing: Listing, search: Search) -> None:
    """Offer the fastest label of the root that fits the capacities."""
    root = listing.slots[listing.circuit.root]
    fits = np.flatnonzero((root.use <= np.array(search.network.capacities)).all(axis=1))
    if len(fits):
        label = int(fits[np.argmin(root.time[fits])])
        if search.better(search.network.constant + int(root.time[label])):
            search.offer(listing.decode(label))
