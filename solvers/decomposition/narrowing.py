"""A part's problem as a backend gets it: few enough pairs of options, and costs that are reduced costs.

Messages (`wide/messages.py`) bound the cost of every option and pair from below. Those that exceed the part's optimum
are no part of a proof; others are deleted from the dearest on until so few are left as the backend takes. Which option
of the rest is best stays undecided. Messages also move costs between tables without changing any total (a
reparametrization), after which no cost is negative and the cheapest options cost little: what propagates in a backend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...formulation.network.network import INFINITE, Network
from ...formulation.network.without_switches import without_switches
from ..elimination.tables import check_clock
from ..wide.arcs import without_dead_options
from ..wide.fixing import Places, fixed, lower_bounds
from ..wide.form import Flat, flattened
from ..wide.messages import Messages
from ..wide.shared_state import Deadline

_CLIMBS, _PASSES = 8, 10


@dataclass(frozen=True, slots=True, eq=False)
class Narrow:
    """What is left of a problem: with its own costs, and reparametrized; None if nothing is. `bound` is by messages.

    `variables`: of the problem without switches, those with a choice.
    """

    flat: Flat | None
    reparametrized: Flat | None
    bound: int
    variables: int

    @property
    def left(self) -> int:
        """The variables left with a choice."""
        return 0 if self.flat is None else int((self.flat.sizes > 1).sum())


def narrowed(network: Network, least: int, most: int, until: float = math.inf) -> Narrow:
    """The options and pairs of solutions of cost up to `least`, and others up to about `most` in all.

    Raises OutOfTimeError after `until` (of perf_counter).
    """
    flat = flattened(without_switches(network).network)
    variables = int((flat.sizes > 1).sum())
    alive = without_dead_options(flat)
    if alive is None:
        return Narrow(None, None, INFINITE, variables)
    flat = alive.flat
    messages = _climbed(flat, least, until)
    if messages.bound >= INFINITE:
        return Narrow(None, None, INFINITE, variables)
    places = Places.of(flat)
    proved = lower_bounds(flat, messages.moved(places), messages.prices, places)
    levels = np.sort(np.concatenate([proved.options, proved.entries]))
    levels = levels[: np.searchsorted(levels, np.inf)]
    room = levels[min(most, len(levels)) - 1] if len(levels) else 0.0
    small = fixed(flat, proved, max(least, flat.constant + math.floor(room)) + 1)
    small = None if small is None else without_dead_options(small.flat)
    if small is None:
        return Narrow(None, None, least + 1, variables)
    moved = reparametrized(small.flat, _climbed(small.flat, least, until))
    return Narrow(small.flat, moved, min(messages.bound, least), variables)


def _climbed(flat: Flat, least: int, until: float) -> Messages:
    messages, deadline = Messages(flat), Deadline(until)
    for _ in range(_CLIMBS):
        messages.climb(_PASSES, until=deadline)
        check_clock(until)
        if messages.bound >= least:
            break
    return messages


def reparametrized(flat: Flat, messages: Messages) -> Flat:
    """The same network with what messages move between its tables, rounded to integers; no cost is negative."""
    places = Places.of(flat)
    moved = np.round(messages.moved(places)).astype(np.int64)
    cost, table, constant = flat.cost.copy(), flat.table.copy(), flat.constant
    np.add.at(cost, places.end, moved)
    for k in (0, 1):
        table -= moved[places.messages(flat, k)]
    for values, old, starts in ((cost, flat.cost, flat.start), (table, flat.table, flat.at)):
        values[old >= INFINITE] = INFINITE
        if len(values):
            low = np.minimum.reduceat(values, starts[:-1])
            low = np.where(low >= INFINITE, 0, low)
            values -= np.repeat(low, np.diff(starts))
            constant += int(low.sum())
        values[old >= INFINITE] = INFINITE
    return replace(flat, cost=cost, table=table, constant=constant)
