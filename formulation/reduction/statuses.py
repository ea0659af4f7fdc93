"""States of a reduction as one status per level, and the steps between them.

The number of statuses does not depend on the size of a level: five levels have 10,055 states, whereas a Boolean state
of k members has k^3 entries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from itertools import groupby, product
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError
from .program import Collective, ReductionProgram, Step

Kind: TypeAlias = Literal["all_reduce", "reduce_scatter", "all_gather"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class LevelStatus(IntEnum):
    """The data of members that differ only on this level."""

    OWN = 0  # each its own addend
    SCATTERED = 1  # each a different part of the sum
    FIRST = 2  # the member with digit 0 the sum, the others nothing
    LED = 3  # each the sum, but only the member with digit 0 takes part in later steps
    FULL = 4  # each the sum
    SCATTERED_LATE = 5  # SCATTERED after another level was led, among its members with digit 0
    FIRST_LATE = 6  # FIRST, likewise


State: TypeAlias = tuple[int, ...]
"""The statuses of all levels, as plain integers for speed."""

OWN, SCATTERED, FIRST, LED, FULL, SCATTERED_LATE, FIRST_LATE = map(int, LevelStatus)
SPLIT = (SCATTERED, SCATTERED_LATE)
HEADED = (FIRST, FIRST_LATE, LED)  # only digit 0 takes part in a step over other levels
LATER = {SCATTERED: SCATTERED_LATE, FIRST: FIRST_LATE}

MAKES: dict[Collective, tuple[int, ...]] = {
    Collective.ALL_REDUCE: (FULL, LED),
    Collective.REDUCE_SCATTER: (SCATTERED,),
    Collective.REDUCE: (FIRST,),
}
"""The statuses that a collective can turn OWN into. LED: after an all-reduce, only digit 0 takes further part."""

SPREADS: dict[Collective, tuple[int, ...]] = {Collective.ALL_GATHER: SPLIT, Collective.BROADCAST: HEADED}
"""The statuses a collective turns into FULL."""

MOST_LED = 5
"""LED is not used with more levels: too many states, and it saves latency only."""

STARTS = {status: tuple(c for c in Collective if status in SPREADS.get(c, (OWN,))) for status in map(int, LevelStatus)}
"""The collectives applicable to a status."""

UNDONE = {Collective.REDUCE_SCATTER: Collective.ALL_GATHER, Collective.REDUCE: Collective.BROADCAST}

TASKS: dict[Kind, tuple[LevelStatus, LevelStatus, tuple[Collective, ...]]] = {
    "all_reduce": (LevelStatus.OWN, LevelStatus.FULL, tuple(Collective)),
    "reduce_scatter": (LevelStatus.OWN, LevelStatus.SCATTERED, (Collective.REDUCE_SCATTER,)),
    "all_gather": (LevelStatus.SCATTERED, LevelStatus.FULL, (Collective.ALL_GATHER,)),
}
"""Start and end status of a kind on every level, and the useful collectives."""


def task(kind: Kind) -> tuple[LevelStatus, LevelStatus, tuple[Collective, ...]]:
    """Start, end and collectives of a kind. PartitaError: an unknown kind."""
    if kind not in TASKS:
        raise PartitaError(f"no programs for {kind!r} (known: {', '.join(KINDS)})")
    return TASKS[kind]


def outcomes(state: State) -> Iterator[tuple[Collective, int, int, State]]:
    """(collective, first level, last level, next state) for every collective allowed in a state.

    Nothing is spread before all levels are reduced: reducing later moves more bytes in as many steps.
    """
    reduced, led = OWN not in state, LED in state
    late = [level for level, status in enumerate(state) if status in LATER.values()]
    for first, status in enumerate(state):
        for collective in STARTS[status]:
            if collective in SPREADS and not reduced:
                continue
            for last in range(first, len(state)):
                if collective not in STARTS[state[last]]:
                    break
                inside = state[first : last + 1]
                # A led level is spread once the statuses entered late are undone, so its first member holds all.
                if LED in inside and any(not first <= level <= last for level in late):
                    continue
                for made in _made(collective, led, len(inside), len(state)):
                    yield collective, first, last, state[:first] + made + state[last + 1 :]


@cache
def _made(collective: Collective, led: bool, count: int, levels: int) -> tuple[State, ...]:
    """The statuses a collective can give to `count` levels; `led`: another level is led."""
    if collective in SPREADS:
        return ((FULL,) * count,)
    makes = [LATER.get(s, s) if led else s for s in MAKES[collective] if s != LED or levels <= MOST_LED]
    return tuple(product(makes, repeat=count))


@dataclass(frozen=True, slots=True)
class StateGraph:
    """All states reachable from the start (state 0) and the steps between them, sorted by `target`.

    `source`, `target`, `step` [edges]: state numbers and index in `steps`; `scattered` [edges, levels]: levels over
    which the bytes are split during the step; `goal`: the final state.
    """

    states: int
    steps: tuple[Step, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    step: NDArray[np.int64]
    scattered: NDArray[np.bool_]
    goal: int


@cache
def graph(levels: int, kind: Kind) -> StateGraph:
    """The states and steps of a reduction over `levels` levels."""
    start, end, collectives = task(kind)
    states: dict[State, int] = {(int(start),) * levels: 0}
    steps: dict[tuple[str, int, int, tuple[int, ...]], int] = {}
    edges: list[tuple[int, int, int]] = []
    queue = list(states)
    for state in queue:  # grows while it is read
        number = states[state]
        headed = [level for level, status in enumerate(state) if status in HEADED]
        for collective, first, last, after in outcomes(state):
            if collective in collectives:
                if after not in states:
                    states[after] = len(states)
                    queue.append(after)
                zero = tuple(level for level in headed if not first <= level <= last)
                step = steps.setdefault((collective.value, first, last, zero), len(steps))
                edges.append((states[after], number, step))
    table = np.array(edges, dtype=np.int64).reshape(-1, 3)
    target, source, step = table[np.argsort(table[:, 0], kind="stable")].T
    named = tuple(Step(Collective(name), first, last, zero) for name, first, last, zero in steps)
    split = np.isin(np.array(queue, dtype=np.int64).reshape(len(queue), levels), SPLIT)
    # An all-gather counts the bytes of a member afterwards, so its own levels are not split.
    gathers = np.array([s.collective is Collective.ALL_GATHER for s in named], dtype=np.bool_)
    scattered = split[np.where(gathers[step], target, source)]
    goal = states[(int(end),) * levels]
    return StateGraph(len(states), named, source, target, step=step, scattered=scattered, goal=goal)


def mirrored(program: ReductionProgram) -> ReductionProgram:
    """Undo the reductions in reverse order, so that chunks end sorted; unchanged if levels are led."""
    reductions = [step for step in program if step.collective in MAKES]
    back = [replace(s, collective=UNDONE[s.collective]) for s in reversed(reductions) if s.collective in UNDONE]
    spread = [sorted(i for s in steps for i in s.levels) for steps in (program[len(reductions) :], back)]
    return (*reductions, *back) if spread[0] == spread[1] else program


# Positions of chunks


@dataclass(frozen=True, slots=True)
class Transpose:
    """A local permutation of chunks: `x.reshape(*sizes, -1).permute(*order, -1)`, then flat again."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]


def transposes(
    program: ReductionProgram, sizes: Sequence[int], kind: Kind
) -> tuple[Transpose | None, Transpose | None]:
    """The transposes before and after a program that leave its chunks sorted; None: not needed.

    A reduce-scatter cuts the rest into contiguous parts; an all-gather concatenates parts in member order. So levels
    scattered first are outermost in a member's chunk number, and levels gathered last are outermost in the buffer. Kind
    `reduce_scatter` leaves chunk i with member i; `all_gather` starts there. ValueError: the program scatters after it
    has gathered.
    """
    scattered, gathered = _order(program)
    natural = tuple(sorted(scattered or gathered))
    if kind == "reduce_scatter":
        return _transpose(natural, scattered, sizes), None
    if kind == "all_gather":
        return None, _transpose(gathered, natural, sizes)
    return None, _transpose(gathered, scattered, sizes)


def _order(program: ReductionProgram) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Levels of the scattered and of the gathered chunks, outermost first."""
    parts = [list(run) for _, run in groupby(program, lambda step: step.collective in SPREADS)]
    if len(parts) > 2 or (len(parts) == 2 and parts[0][0].collective in SPREADS):
        raise ValueError(f"a program that reduces after it has spread: {program}")
    scattered = [step for step in program if step.collective is Collective.REDUCE_SCATTER]
    gathered = [step for step in reversed(program) if step.collective is Collective.ALL_GATHER]
    return tuple(i for step in scattered for i in step.levels), tuple(i for step in gathered for i in step.levels)


def _transpose(now: tuple[int, ...], wanted: tuple[int, ...], sizes: Sequence[int]) -> Transpose | None:
    if now == wanted:
        return None
    return Transpose(tuple(sizes[i] for i in now), tuple(now.index(i) for i in wanted))
