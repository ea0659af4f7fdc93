"""What tree-reweighted messages prove of options and pairs: more than they say of themselves (`messages.py`)."""

from __future__ import annotations

import numpy as np

from ..elimination.kernels import Ints
from .fixing import Least, Places, least
from .messages import Messages
from .substitution import ragged


def proved(state: Messages) -> Least:
    """The bounds under its present messages and prices.

    What is left at the variables is shared out equally among their edges: the bound is about the same, and every pair
    of options is weighed with all that is known of both.
    """
    flat = state.flat
    places = Places.of(flat)
    messages = np.empty(len(state.said))
    for end, begin in enumerate(_inboxes(state)):
        sizes = flat.sizes[flat.ends[:, end]]
        edge, x = ragged(sizes)
        messages[places.side[edge, end] + x] = state.said[begin[edge] + x]
    messages = np.where(np.isfinite(messages), messages, 0.0)  # of options that are out
    left = state.cost.copy()
    np.add.at(left, places.end, messages)
    degree = np.maximum(np.bincount(flat.ends.ravel(), minlength=flat.variables), 1)
    shares = np.where(np.isfinite(left), left, 0.0) / np.repeat(degree, flat.sizes)
    return least(flat, messages - shares[places.end], state.prices, places)


def _inboxes(state: Messages) -> tuple[Ints, Ints]:
    """Per end of every edge, where the messages to it begin: they are sorted by variable, then by the other end."""
    ends = state.flat.ends
    here, there = np.concatenate([ends, ends[:, ::-1]]).T
    place = np.empty(len(here), np.int64)
    place[np.lexsort((there, here))] = np.arange(len(here))
    return state.arcs.inbox[place[: len(ends)]], state.arcs.inbox[place[len(ends) :]]
