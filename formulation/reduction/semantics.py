"""Validation of reduction programs: every member ends with its chunks of the sum (P², section 3.2).

A program has steps over levels or user-defined ones: collectives with explicit groups of members. `validate` runs it by
the rules on states (`rules`). `repaired` runs it on buffers and finds the local transposes that sort their chunks.
"""

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
from .rules import Order, States, advance, ascending, first, initial, named, scattered, some
from .statuses import Kind, Transpose, task

Explicit: TypeAlias = tuple[Collective | str, Sequence[Sequence[int]]]
"""A user-defined step: a collective and its groups of members, root first."""

MOST_MEMBERS = 512  # a state has k^3 entries


def explicit(program: Sequence[Step | Explicit], members: int | Sequence[int]) -> list[tuple[Collective, Groups]]:
    """The collectives of a program with their groups of members, checked.

    `members`: the sizes of the levels, or the number of members (one level). PartitaError, naming the step: too many
    members, an unknown level, member or collective, a member twice in one step, no groups, a malformed step.
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
    """Chunk permutations before and after a valid program that leave every buffer sorted.

    The program's buffer has chunk `before[p]` of the input at position p; the result has chunk `after[p]` of the
    program's final buffer at p. Ascending numbers: no transpose.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def permuted(self) -> bool:
        """True if a transpose is needed."""
        return any(list(take) != sorted(take) for take in (self.before, self.after))


def validate(
    program: Sequence[Step | Explicit],
    members: int | Sequence[int],
    kind: Kind = "all_reduce",
    ranks: Sequence[int] | None = None,
) -> None:
    """Check that a program implements `kind` by the paper's rules, which ignore the order of chunks.

    `program` and `members` as for `explicit`; messages also name the `ranks` of members. PartitaError: see `explicit`;
    a step violates a precondition (which step, collective, group, and why); the goal is not reached (which member lacks
    what).
    """
    _run(program, members, kind, ranks, labelled=False)


def repaired(
    program: Sequence[Step | Explicit],
    members: int | Sequence[int],
    kind: Kind = "all_reduce",
    ranks: Sequence[int] | None = None,
) -> Repaired:
    """The local transposes that sort the chunks of a program run on real buffers.

    PartitaError: see `validate`; members would add different chunks; members end with different orders, which no single
    transpose sorts.
    """
    _, order = _run(program, members, kind, ranks, labelled=True)
    if kind == "reduce_scatter":
        # Member d ends with the input position order[d, 0] and should end with chunk d.
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
    """The transpose with the fewest dims that puts chunk `take[p]` at position p; None if there is none.

    It is `x.reshape(*sizes, -1).permute(*order, -1)` for chunks x.
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
        dims.pop()  # chunks that stay adjacent
    source = sorted(dims, reverse=True)
    found = Transpose(tuple(size for _, size in source), tuple(source.index(dim) for dim in dims))
    return found if list(take) == _taken(found, len(take)) else None


def _taken(how: Transpose, k: int) -> list[int] | None:
    """The order of k chunks after a transpose; None if k is not divisible."""
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
    """Final states and orders, checked; without `labelled`, chunks are sorted before every step."""
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
    """Why an all-reduce or all-gather is incomplete; None if every member holds all sums."""
    held = some(states, 2)
    if not held.all():
        member, chunk = first(~held)
        return f"member {member} does not hold chunk {chunk}"
    return _unsummed(states, held)


def _missing_part(states: States) -> str | None:
    """Why a reduce-scatter is incomplete; None if every member holds one sum, all different."""
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
    """A held chunk that lacks addends, described; None if there is none."""
    lacks = held[..., None] & ~states
    if not lacks.any():
        return None
    member, chunk, _ = first(lacks)
    return (
        f"chunk {chunk} of member {member} lacks the addends of {named(np.flatnonzero(lacks[member, chunk]).tolist())}"
    )
