"""Validation of reduction programs: every member ends with its chunks of the sum (P², section 3.2).

A program is steps over levels, or a user's own: collectives with explicit groups of members. `validate` runs it by the
rules on states (`rules`). `repaired` runs it on buffers as they lie and says what local transpose puts them in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from .program import Collective, Groups, Step, groups
from .rules import Order, States, advance, apply, ascending, first, goal, initial, named, scattered, some
from .statuses import Kind, Transpose, task

__all__ = [
    "Explicit",
    "Repaired",
    "apply",
    "explicit",
    "goal",
    "initial",
    "repaired",
    "scattered",
    "transpose",
    "validate",
]

Explicit: TypeAlias = tuple[Collective | str, Sequence[Sequence[int]]]
"""A step of a user's own program: a collective and its groups of members, the root first."""

MOST_MEMBERS = 512  # a state has k^3 entries


def explicit(program: Sequence[Step | Explicit], members: int | Sequence[int]) -> list[tuple[Collective, Groups]]:
    """The collectives of a program with their groups of members, checked.

    `members`: the sizes of the levels, or how many members there are (one level). PartitaError: too many members, a
    level or member that does not exist, a member twice in one step, no groups, an unknown collective, what is
    no step at all; names the step.
    """
    sizes = (members,) if isinstance(members, int) else tuple(members)
    if any(size < 1 for size in sizes) or prod(sizes) > MOST_MEMBERS:
        raise PartitaError(f"levels of sizes {sizes}: every size is 1 or more, and the most members are {MOST_MEMBERS}")
    return [_explicit(step, sizes, f"step {number}") for number, step in enumerate(program, 1)]


def _explicit(step: Step | Explicit, sizes: tuple[int, ...], where: str) -> tuple[Collective, Groups]:
    if isinstance(step, Step):
        if not (0 <= step.first <= step.last < len(sizes) and all(0 <= level < len(sizes) for level in step.zero)):
            raise PartitaError(f"{where}: {step} names levels that are not among the {len(sizes)} of {sizes}")
        return step.collective, groups(step, sizes)
    try:
        name, found = step[0], tuple(tuple(group) for group in step[1])
    except (TypeError, LookupError):
        raise PartitaError(f"{where}: {step!r:.60} is neither a Step nor a collective with a list of groups") from None
    if name not in list(Collective):
        raise PartitaError(f"{where}: unknown collective {name!r} (known: {', '.join(Collective)})")
    where = f"{where}, {Collective(name).words}"
    if not found or not all(found):
        raise PartitaError(f"{where}: no groups, or an empty one; name at least one member in every group")
    members = [member for group in found for member in group]
    for member in members:
        if not isinstance(member, Integral) or not 0 <= member < prod(sizes):
            raise PartitaError(f"{where}: no member {member!r:.60}; the members are 0 to {prod(sizes) - 1}")
    for member, times in Counter(members).items():
        if times > 1:
            raise PartitaError(
                f"{where}: member {member} is named {times} times; the groups of a step must be disjoint"
            )
    return Collective(name), found


@dataclass(frozen=True, slots=True)
class Repaired:
    """The chunks to take before and after a valid program so that every buffer ends in order.

    Position p of the buffer that the program starts with is chunk `before[p]` of the input; position p of the result is
    chunk `after[p]` of the buffer that it leaves. Ascending numbers: there is nothing to do.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def permuted(self) -> bool:
        """True if something has to be done."""
        return any(list(take) != sorted(take) for take in (self.before, self.after))


def validate(
    program: Sequence[Step | Explicit],
    members: int | Sequence[int],
    kind: Kind = "all_reduce",
    ranks: Sequence[int] | None = None,
) -> None:
    """Prove that a program does what `kind` says by the paper's rules, which do not see the order of chunks.

    `program`: steps over the levels whose sizes are `members`, or collectives with groups of members, of which there
    are `members`. `ranks` are named beside the members. PartitaError: see `explicit`; a step breaks a rule (which step,
    collective, group, and why); the goal is not reached (which member lacks what).
    """
    _run(program, members, kind, ranks, labelled=False)


def repaired(
    program: Sequence[Step | Explicit],
    members: int | Sequence[int],
    kind: Kind = "all_reduce",
    ranks: Sequence[int] | None = None,
) -> Repaired:
    """A program with the local transposes that it needs when buffers are cut and joined as they lie.

    PartitaError: see `validate`; members would add different chunks; they end in different orders, so that no one
    transpose puts them right.
    """
    _, order = _run(program, members, kind, ranks, labelled=True)
    if kind == "reduce_scatter":
        # Member d ends with what was at position order[d, 0], and is to end with chunk d.
        return Repaired(_inverse(order[:, 0]), (0,))
    other = np.flatnonzero((order != order[0]).any(axis=1))
    if other.size:
        raise PartitaError(
            f"members 0 and {other[0]} end with their chunks in different orders, {order[0].tolist()} and "
            f"{order[other[0]].tolist()}; gather in reverse order of scattering"
        )
    return Repaired((0,) if kind == "all_gather" else tuple(range(len(order))), _inverse(order[0]))


def _inverse(permutation: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(np.argsort(permutation).tolist())


def transpose(take: Sequence[int]) -> Transpose | None:
    """Which transpose takes chunks in this order, with the fewest dims; None where none does.

    `x.reshape(*sizes, -1).permute(*order, -1)` of chunks x has chunk `take[p]` at position p.
    """
    dims: list[tuple[int, int]] = []  # stride and size of every dim of the result, outermost first
    inner = 1
    while inner < len(take):
        stride, size = take[inner], 2
        while inner * size < len(take) and take[inner * size] == stride * size:
            size += 1
        dims.insert(0, (stride, size))
        inner *= size
    if dims and dims[-1][0] == 1:
        dims.pop()  # chunks that stay neighbours
    source = sorted(dims, reverse=True)
    found = Transpose(tuple(size for _, size in source), tuple(source.index(dim) for dim in dims))
    return found if list(take) == _taken(found, len(take)) else None


def _taken(how: Transpose, k: int) -> list[int] | None:
    """The chunks in the order that a transpose of k gives them."""
    if k % prod(how.sizes):
        return None
    chunks = np.arange(k).reshape(*how.sizes, -1)
    return chunks.transpose(*how.order, len(how.order)).ravel().tolist()


def _run(
    program: Sequence[Step | Explicit],
    members: int | Sequence[int],
    kind: Kind,
    ranks: Sequence[int] | None,
    labelled: bool,
) -> tuple[States, Order]:
    """States and orders at the end, checked; not `labelled`: with the chunks sorted before every step."""
    task(kind)
    steps = explicit(program, members)
    k = members if isinstance(members, int) else prod(members)
    states = scattered(k) if kind == "all_gather" else initial(k)
    order = ascending(states)
    for number, (collective, step_groups) in enumerate(steps, 1):
        try:
            states, order = advance(collective, step_groups, states, order if labelled else ascending(states), ranks)
        except PartitaError as error:
            raise PartitaError(f"step {number}: {error}") from None
    missing = _missing_part(states) if kind == "reduce_scatter" else _missing(states)
    if missing:
        raise PartitaError(f"after the last step {missing}")
    return states, order


def _missing(states: States) -> str | None:
    """What keeps the states from all members having all sums."""
    held = some(states, 2)
    if not held.all():
        member, chunk = first(~held)
        return f"member {member} does not hold chunk {chunk}"
    return _unsummed(states, held)


def _missing_part(states: States) -> str | None:
    """What keeps the states from all members having one sum each, all different."""
    held = some(states, 2)
    chunks, holders = held.sum(axis=1), held.sum(axis=0)
    if (chunks != 1).any():
        (member,) = first(chunks != 1)
        return f"member {member} holds {chunks[member]} chunks; after a reduce-scatter each member holds one"
    if (holders != 1).any():
        (chunk,) = first(holders != 1)
        return f"chunk {chunk} is held by {holders[chunk]} members; after a reduce-scatter each chunk is held by one"
    return _unsummed(states, held)


def _unsummed(states: States, held: NDArray[np.bool_]) -> str | None:
    """A held chunk that is not the sum of all addends."""
    lacks = held[..., None] & ~states
    if not lacks.any():
        return None
    member, chunk, _ = first(lacks)
    return (
        f"chunk {chunk} of member {member} lacks the addends of {named(np.flatnonzero(lacks[member, chunk]).tolist())}"
    )
