"""Lower bounds on options and pairs from tree-reweighted messages (`messages.py`)."""

from __future__ import annotations

import numpy as np

from ..elimination.kernels import Ints
from .fixing import LowerBounds, Places, lower_bounds
from .messages import Messages
from .substitution import ragged


def proved(state: Messages) -> LowerBounds:
    """The bounds by the current messages and prices.

    What is left at the variables is shared equally among their edges: the total is about the same, and the bounds of
    pairs become tighter.
    """
    flat = state.flat
    places = Places.of(flat)
    messages = np.empty(len(state.said))
    for end, begin in enumerate(_inboxes(state)):
        sizes = flat.sizes[flat.ends[:, end]]
        edge, x = ragged(sizes)
        messages[places.side[edge, end] + x] = state.said[begin[edge] + x]
    messages = np.where(np.isfinite(messages), messages, 0.0)  # of deleted options
    left = state.cost.copy()
    np.add.at(left, places.end, messages)
    degree = np.maximum(np.bincount(flat.ends.ravel(), minlength=flat.variables), 1)
    shares = np.where(np.isfinite(left), left, 0.0) / np.repeat(degree, flat.sizes)
    return lower_bounds(flat, messages - shares[places.end], state.prices, places)


def _inboxes(state: Messages) -> tuple[Ints, Ints]:
    """For either end, the offset of every edge's message to it; arcs are sorted by variable, then by the other end."""
    ends = state.flat.ends
    here, there = np.concatenate([ends, ends[:, ::-1]]).T
    place = np.empty(len(here), np.int64)
    place[np.lexsort((there, here))] = np.arange(len(here))
    return state.arcs.inbox[place[: len(ends)]], state.arcs.inbox[place[len(ends) :]]
