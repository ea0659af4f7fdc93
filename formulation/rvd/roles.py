"""RVD states as roles of digits: a transition moves digits from one role to another.

The devices of a state form a grid whose axes (digits) have prime sizes: the factors of the replica, addend and dim
counts. Every state that transitions within the group reach assigns roles to the digits: sets for R and V, since
replicas and addends are interchangeable, and for each dim a sequence, outermost first. Only the innermost digits of a
dim can leave it, and digits enter as innermost.

This graph depends on neither devices nor prices, so the moves of a state are cached for grids of equal sizes.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, permutations
from math import prod
from typing import NamedTuple, TypeAlias

Sizes: TypeAlias = tuple[int, ...]
"""Sizes of a grid's digits."""
Roles: TypeAlias = tuple[tuple[int, ...], ...]
"""Digits of R, of V, and of each dim."""
R, V, D = 0, 1, 2
Counts: TypeAlias = tuple[int, ...]
"""(r, v, *d): an RVD as a plain tuple."""

KINDS = {
    "RD": "schunk", "RV": "vchunk", "DR": "all-gather", "VR": "all-reduce", "VD": "reduce-scatter", "DD": "all-to-all",
    "DV": "pad",
}  # fmt: skip
"""Transitions within a group by the roles left and entered (Figure 10, a to f; `pad` is our addition)."""

COLLECTIVES = {
    "all-gather": "all_gather", "all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
}  # fmt: skip
"""Communicating transitions, by their names in the machine's prices; the others copy locally."""

BY_OUTPUT = frozenset({"all-gather", "schunk", "vchunk", "pad"})
"""Transitions priced by the bytes after them; the others by the bytes before."""


class RolePair(NamedTuple):
    """A pair of roles that digits can move between, and the kind of that transition."""

    source: int
    target: int
    kind: str


class RoleMove(NamedTuple):
    """Digits, in the order of a group's members, that move along a link, and the roles afterwards.

    `group`: the digits, ascending. `cut`: parts of the dim entered, 1 if it is no dim. `parts`: total parts of all
    dims, before and after.
    """

    link: RolePair
    digits: tuple[int, ...]
    roles: Roles
    group: tuple[int, ...]
    cut: int
    parts: tuple[int, int]


def links(roles: int, kinds: frozenset[str], backward: bool) -> tuple[RolePair, ...]:
    """All links of these kinds ("RD", ...) between `roles` roles; reversed if `backward`."""
    letters = "RV" + "D" * (roles - D)
    found = []
    for a, b in permutations(range(roles), 2):
        kind = letters[b] + letters[a] if backward else letters[a] + letters[b]
        if kind in kinds:
            found.append(RolePair(a, b, KINDS[kind]))
    return tuple(found)


@lru_cache(maxsize=2**12)
def moves(sizes: Sizes, roles: Roles, along: tuple[RolePair, ...]) -> tuple[RoleMove, ...]:
    """Every transition along these links."""
    found = []
    before = prod(counts(sizes, roles)[D:])
    for link in along:
        source, target, _ = link
        for taken in (_suffixes if source >= D else _subsets)(roles[source]):
            factor = prod(sizes[q] for q in taken)
            cut = factor * prod(sizes[q] for q in roles[target]) if target >= D else 1
            after = before * (factor if target >= D else 1) // (factor if source >= D else 1)
            for digits in permutations(taken) if source < D <= target else (taken,):
                moved = _moved(roles, source, target, digits)
                found.append(RoleMove(link, digits, moved, tuple(sorted(taken)), cut, (before, after)))
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
