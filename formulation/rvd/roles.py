"""States as roles of digits, so that a transition moves some digits from one role to another.

The devices of a state stand in a grid whose axes, its digits, have prime sizes: the copies, the addends and the parts
of each dim, factor by factor. Every state that transitions inside the group reach is then a way to give the digits
roles: sets for R and V, since names of copies and addends say nothing, and for each dim a sequence, outermost first:
only the innermost digits of a dim can leave it, and what enters becomes innermost.

This graph knows neither devices nor prices, so what leaves a state is worked out once for grids of the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, permutations
from math import prod
from typing import NamedTuple, TypeAlias

Sizes: TypeAlias = tuple[int, ...]
"""Of a grid's digits."""
Roles: TypeAlias = tuple[tuple[int, ...], ...]
"""Digits of R, of V, and of each dim."""
R, V, D = 0, 1, 2
Counts: TypeAlias = tuple[int, ...]
"""Of copies, of addends, and of parts of each dim: an RVD as a plain tuple."""

KINDS = {
    "RD": "schunk", "RV": "vchunk", "DR": "all-gather", "VR": "all-reduce", "VD": "reduce-scatter", "DD": "all-to-all",
    "DV": "pad",
}  # fmt: skip
"""Transitions inside a group (Figure 10, a to f; a pad is the planner's), by the roles that digits leave and take."""

COLLECTIVES = {
    "all-gather": "all_gather", "all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
}  # fmt: skip
"""Those that communicate, by their names in the machine's prices; the others copy on the device."""

BY_OUTPUT = frozenset({"all-gather", "schunk", "vchunk", "pad"})
"""Priced by the bytes after them, the rest by those before."""


class Link(NamedTuple):
    """Two roles that digits can go between, and what it is called."""

    source: int
    target: int
    kind: str


class Move(NamedTuple):
    """Digits, in the order of a group's members, that go along a link, and the roles after it.

    `group`: the same digits, ascending. `cut`: the parts of the dim they go to, 1 where that is none. `parts`: those of
    all dims together, before and after.
    """

    link: Link
    digits: tuple[int, ...]
    roles: Roles
    group: tuple[int, ...]
    cut: int
    parts: tuple[int, int]


def links(roles: int, kinds: frozenset[str], backward: bool) -> tuple[Link, ...]:
    """All of these kinds ("RD", ...) between so many roles; `backward`: from what they lead to, to what they leave."""
    letters = "RV" + "D" * (roles - D)
    found = []
    for a, b in permutations(range(roles), 2):
        kind = letters[b] + letters[a] if backward else letters[a] + letters[b]
        if kind in kinds:
            found.append(Link(a, b, KINDS[kind]))
    return tuple(found)


@lru_cache(maxsize=2**12)
def moves(sizes: Sizes, roles: Roles, among: tuple[Link, ...]) -> tuple[Move, ...]:
    """Every transition along these links."""
    found = []
    before = prod(counts(sizes, roles)[D:])
    for link in among:
        source, target, _ = link
        for taken in (_suffixes if source >= D else _subsets)(roles[source]):
            factor = prod(sizes[q] for q in taken)
            cut = factor * prod(sizes[q] for q in roles[target]) if target >= D else 1
            after = before * (factor if target >= D else 1) // (factor if source >= D else 1)
            for digits in permutations(taken) if source < D <= target else (taken,):
                there = _moved(roles, source, target, digits)
                found.append(Move(link, digits, there, tuple(sorted(taken)), cut, (before, after)))
    return tuple(found)


@lru_cache(maxsize=2**15)
def counts(sizes: Sizes, roles: Roles) -> Counts:
    """(r, v, *d)."""
    return tuple([prod([sizes[q] for q in role]) for role in roles])


def _moved(roles: Roles, source: int, target: int, digits: tuple[int, ...]) -> Roles:
    after = list(roles)
    after[source] = tuple(q for q in roles[source] if q not in digits)
    after[target] = roles[target] + digits if target >= D else tuple(sorted(roles[target] + digits))
    return tuple(after)


def _subsets(digits: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return (taken for count in range(1, len(digits) + 1) for taken in combinations(digits, count))


def _suffixes(digits: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return (digits[first:] for first in range(len(digits)))
