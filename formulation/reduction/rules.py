"""Semantics of collectives on the states of a reduction: Hoare rules (P², figure 8).

The data of k members is cut into k chunks, the rows. A state is bool [members, rows, columns]: entry [d, r, c] is true
if member d holds chunk r including the addend of member c. A rule has preconditions and an effect, applied to all
groups of a step at once.

The paper's rules ignore the positions of chunks in a buffer. `order` [members, positions] adds them: the chunk at every
position, -1 after the last. A reduce-scatter cuts the buffer into contiguous parts; an all-gather concatenates parts in
group order. The paper's rules correspond to sorting the chunks before every step; in real buffers a valid program can
leave them permuted.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from .program import Collective, Groups

Bools: TypeAlias = NDArray[np.bool_]
States: TypeAlias = Bools
Order: TypeAlias = NDArray[np.int64]


def initial(k: int) -> States:
    """Every member holds all chunks with only its own addend."""
    return np.repeat(np.eye(k, dtype=np.bool_)[:, None, :], k, axis=1)


def scattered(k: int) -> States:
    """Member d holds only chunk d, fully summed."""
    return np.repeat(np.eye(k, dtype=np.bool_)[:, :, None], k, axis=2)


def goal(k: int) -> States:
    """Every member holds all chunks, fully summed."""
    return np.ones((k, k, k), dtype=np.bool_)


def ascending(states: States) -> Order:
    """The order of sorted chunks in every buffer."""
    held = some(states, 2)
    order = np.argsort(~held, axis=1, kind="stable")
    return np.where(np.arange(order.shape[1]) < held.sum(axis=1, keepdims=True), order, -1)


def some(flags: Bools, *axes: int) -> Bools:
    """Or over axes."""
    return np.asarray(flags.any(axis=axes), np.bool_)


def every(flags: Bools, *axes: int) -> Bools:
    """And over axes."""
    return np.asarray(flags.all(axis=axes), np.bool_)


# Effects: `s` is bool [groups, members of a group, rows, columns], `order` int [groups, members, positions].


def _everywhere(s: Bools, order: Order) -> tuple[Bools, Order]:
    return np.broadcast_to(s.any(axis=1, keepdims=True), s.shape), order


def _parts(s: Bools, order: Order) -> tuple[Bools, Order]:
    chunks = order.shape[2]
    part = (order[:, :1] >= 0).sum(axis=2, keepdims=True) // s.shape[1]  # [groups, 1, 1]
    place = np.arange(chunks)
    start = np.arange(s.shape[1])[:, None] * part  # [groups, members, 1]
    mine = np.where(place < part, np.take_along_axis(order, (start + place) % chunks, axis=2), -1)
    kept = (mine[..., None] == place).any(axis=2)
    return s.any(axis=1, keepdims=True) & kept[..., None], mine


def _at_root(s: Bools, order: Order) -> tuple[Bools, Order]:
    root = (np.arange(s.shape[1]) == 0)[:, None]
    return s.any(axis=1, keepdims=True) & root[..., None], np.where(root, order, -1)


def _joined(s: Bools, order: Order) -> tuple[Bools, Order]:
    count, size, chunks = order.shape
    row = order.reshape(count, size * chunks)
    # Stable sort: held positions first.
    row = np.take_along_axis(row, np.argsort(row < 0, axis=1, kind="stable"), axis=1)[:, None, :chunks]
    return np.broadcast_to(s.any(axis=1, keepdims=True), s.shape), np.broadcast_to(row, order.shape)


def _from_root(s: Bools, order: Order) -> tuple[Bools, Order]:
    return np.broadcast_to(s[:, :1], s.shape), np.broadcast_to(order[:, :1], order.shape)


# Messages for a violated precondition of one group: states [m, rows, columns], order [m, positions], members.


def first(bad: Bools) -> tuple[int, ...]:
    """Indices of the first true entry."""
    return tuple(np.argwhere(bad)[0].tolist())


def _pair(holders: Bools, members: Sequence[int]) -> str:
    i, j, *_ = np.flatnonzero(holders).tolist()
    return f"members {members[i]} and {members[j]}"


def _say_chunks(s: Bools, order: Order, members: Sequence[int]) -> str:
    held = some(s, 2)
    i, r = first(held != held[0])
    have, lack = (members[0], members[i]) if held[0, r] else (members[i], members[0])
    return f"member {have} holds chunk {r} and member {lack} does not: they would add different chunks"


def _say_order(s: Bools, order: Order, members: Sequence[int]) -> str:
    i, p = first(order != order[0])
    return (
        f"position {p} of the buffers holds chunk {order[0, p]} on member {members[0]} and chunk {order[i, p]} on "
        f"member {members[i]}: they would add different chunks; gather in reverse order of scattering"
    )


def _say_addends(s: Bools, order: Order, members: Sequence[int]) -> str:
    r, c = first(s.sum(axis=0) > 1)
    return f"chunk {r} of {_pair(s[:, r, c], members)}: both contain member {c}'s addend: it would be counted twice"


def _say_overlap(s: Bools, order: Order, members: Sequence[int]) -> str:
    held = some(s, 2)
    (r,) = first(held.sum(axis=0) > 1)
    return f"{_pair(held[:, r], members)} both hold chunk {r}: gathered parts must be different chunks"


def _say_counts(s: Bools, order: Order, members: Sequence[int]) -> str:
    counts = some(s, 2).sum(axis=1)
    (i,) = first(counts != counts[0])
    return (
        f"member {members[0]} holds {counts[0]} chunks and member {members[i]} {counts[i]}: they must hold equally many"
    )


def _say_lost(s: Bools, order: Order, members: Sequence[int]) -> str:
    i, r, c = first(s > s[0])
    return f"chunk {r} of member {members[i]} contains member {c}'s addend, and the root's does not: it would be lost"


# Preconditions: which groups fulfil them, and what to say of one that does not.


class _Precondition(NamedTuple):
    holds: Callable[[Bools, Order], Bools]
    say: Callable[[Bools, Order, Sequence[int]], str]


class _Rule(NamedTuple):
    before: tuple[_Precondition, ...]
    after: Callable[[Bools, Order], tuple[Bools, Order]]


def _alike(x: NDArray[Any], *axes: int) -> Bools:
    """True if all members of a group have what its first has; `axes`: all but that of the groups."""
    return every(x == x[:, :1], *axes)


_DATA = _Precondition(lambda s, order: some(s, 1, 2, 3), lambda *_: "no member of the group holds any data")
_ADD = (
    _DATA,
    _Precondition(lambda s, order: _alike(some(s, 3), 1, 2), _say_chunks),
    _Precondition(lambda s, order: every(s.sum(axis=1) <= 1, 1, 2), _say_addends),
    _Precondition(lambda s, order: _alike(order, 1, 2), _say_order),
)
_DIVISIBLE = _Precondition(
    lambda s, order: np.asarray(some(s, 3)[:, 0].sum(axis=1) % s.shape[1] == 0, np.bool_),
    lambda s, order, members: f"{some(s[0], 1).sum()} chunks cannot be scattered evenly over {len(members)} members",
)
_GATHER = (
    _DATA,
    _Precondition(lambda s, order: every(some(s, 3).sum(axis=1) <= 1, 1), _say_overlap),
    _Precondition(lambda s, order: _alike(some(s, 3).sum(axis=2), 1), _say_counts),
)
_BROADCAST = (
    _DATA,
    _Precondition(lambda s, order: every(s <= s[:, :1], 1, 2, 3), _say_lost),
    _Precondition(
        lambda s, order: ~_alike(s, 1, 2, 3),
        lambda *_: "every member already holds what the root holds: nothing would change",
    ),
)

RULES: dict[Collective, _Rule] = {
    Collective.ALL_REDUCE: _Rule(_ADD, _everywhere),
    Collective.REDUCE_SCATTER: _Rule((*_ADD, _DIVISIBLE), _parts),
    Collective.REDUCE: _Rule(_ADD, _at_root),
    Collective.ALL_GATHER: _Rule(_GATHER, _joined),
    Collective.BROADCAST: _Rule(_BROADCAST, _from_root),
}
"""Preconditions and effect of every collective."""


def _stacked(step_groups: Groups) -> list[NDArray[np.int64]]:
    """The groups as arrays [groups, members], one per group size."""
    sizes = dict.fromkeys(map(len, step_groups))
    return [np.array([g for g in step_groups if len(g) == size], dtype=np.int64) for size in sizes]


def allowed(collective: Collective, step_groups: Groups, states: Bools, order: Order) -> bool:
    """True if all preconditions hold in all groups."""
    return all(
        bool(condition.holds(states[index], order[index]).all())
        for index in _stacked(step_groups)
        for condition in RULES[collective].before
    )


def advance(
    collective: Collective, step_groups: Groups, states: Bools, order: Order, ranks: Sequence[int] | None = None
) -> tuple[States, Order]:
    """States and orders after one step in disjoint groups; other members keep theirs.

    PartitaError: a precondition fails; names the group, with `ranks` also its ranks, and the reason.
    """
    new_states, new_order = states.copy(), order.copy()
    for index in _stacked(step_groups):
        s, o = states[index], order[index]
        for condition in RULES[collective].before:
            held = condition.holds(s, o)
            if not held.all():
                g = int(np.argmin(held))
                why = condition.say(s[g], o[g], index[g].tolist())
                raise PartitaError(f"{collective.words} of {named(index[g].tolist(), ranks)}: {why}")
        new_states[index], new_order[index] = RULES[collective].after(s, o)
    return new_states, new_order


def named(members: Sequence[int], ranks: Sequence[int] | None = None) -> str:
    """The members of a group, with their ranks if `ranks` is given."""
    text = "members " + ", ".join(map(str, members))
    return text + (f" (ranks {', '.join(str(ranks[m]) for m in members)})" if ranks is not None else "")
