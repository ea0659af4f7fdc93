"""All valid reduction programs up to a length, by P²'s language of instructions (MLSys 2022, sections 3.3 and 3.5).

An instruction is a slice, a form and a collective over a hierarchy with a root (level 0, of size 1) and L levels below
it. A slice node is one unit of the slice's level. The groups of devices of a form:

| form | groups | our `Step` |
|---|---|---|
| `InsideGroup` | all devices under one slice node | levels slice .. L-1 |
| `Parallel(e)` | devices with equal offset in their slice nodes, under one unit of e | levels e .. slice-1 |
| `Master(e)` | of those the ones with offset 0 | the same, of levels slice .. L-1 only digit 0 |

(`Step` numbers the L levels from 0 and has no root.) So a form is a contiguous range of levels; Master uses only
digit 0 on the levels below. Groups of one device are dropped, and forms with equal groups count once.

Counting: the paper's text does not fix which programs count. Its totals (3 and 47 programs for one and two levels, 825
for three) result if Master combines with all-reduce only and a group without data makes a step invalid; this reading is
fitted to those totals.

Validity does not depend on the sizes of the levels, as long as they are 2 or more, so programs are searched with every
level of size 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import prod
from typing import TypeAlias

from ...model.errors import PartitaError
from .program import DEFAULT_LIMIT, Collective, Groups, ReductionProgram, Step, groups
from .rules import States, advance, allowed, ascending, goal, initial

Move: TypeAlias = tuple[Collective, Groups]


class Form(StrEnum):
    """How a slice forms groups of devices."""

    INSIDE_GROUP = "InsideGroup"
    PARALLEL = "Parallel"
    MASTER = "Master"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the paper; `over`: the level e of Parallel and Master, an ancestor of the slice."""

    slice: int
    form: Form
    collective: Collective
    over: int | None = None

    def step(self, levels: int) -> Step:
        """The step over `levels` levels without the root; ValueError if all its groups have one device."""
        first, last = (self.slice, levels - 1) if self.over is None else (self.over, self.slice - 1)
        if not 0 <= first <= last < levels:
            raise ValueError(f"{self} over {levels} levels")
        return Step(self.collective, first, last, tuple(range(last + 1, levels)) if self.form is Form.MASTER else ())

    def __str__(self) -> str:
        form = self.form.value + ("" if self.over is None else f"({self.over})")
        return f"(slice {self.slice}, {form}, {self.collective.words})"


def instructions(levels: int) -> tuple[Instruction, ...]:
    """All distinct instructions over `levels` levels, in a fixed order; of equal groups the first."""
    ancestors = [(s, e) for s in range(1, levels + 1) for e in range(s)]
    found = [
        *(Instruction(s, Form.INSIDE_GROUP, c) for s in range(levels) for c in Collective),
        *(Instruction(s, Form.PARALLEL, c, e) for s, e in ancestors for c in Collective),
        *(Instruction(s, Form.MASTER, Collective.ALL_REDUCE, e) for s, e in ancestors),
    ]
    distinct: dict[Step, Instruction] = {}
    for instruction in found:
        distinct.setdefault(instruction.step(levels), instruction)
    return tuple(distinct.values())


def programs(
    levels: int, limit: int = DEFAULT_LIMIT, sizes: Sequence[int] | None = None
) -> tuple[ReductionProgram, ...]:
    """All valid programs of at most `limit` steps over `levels` levels, short ones first.

    `sizes` of the levels, each 2 or more, do not matter; by default all 2. PartitaError: sizes that do not fit, a limit
    that admits no program.
    """
    if sizes is not None and (len(sizes) != levels or any(size < 2 for size in sizes)):
        raise PartitaError(f"sizes {tuple(sizes)} for {levels} levels: give one for every level, 2 or more")
    found = _programs(levels, limit, (2,) * levels if sizes is None else tuple(sizes))
    if not found:
        raise PartitaError(f"a limit of {limit} steps admits no program; the shortest, one all-reduce, has 1 step")
    return found


@cache
def _programs(levels: int, limit: int, sizes: tuple[int, ...]) -> tuple[ReductionProgram, ...]:
    steps = [instruction.step(levels) for instruction in instructions(levels)]
    k = prod(sizes)
    found = search([(step.collective, groups(step, sizes)) for step in steps], initial(k), goal(k), limit)
    return tuple(tuple(steps[i] for i in program) for program in found)


def search(moves: Sequence[Move], start: States, end: States, limit: int) -> tuple[tuple[int, ...], ...]:
    """All sequences of at most `limit` moves from one state to another, by length, then by number.

    Depth first; the moves of a state are cached.
    """
    following: dict[bytes, list[tuple[int, bytes]]] = {}
    states = {start.tobytes(): start}
    target = end.tobytes()

    def possible(key: bytes) -> list[tuple[int, bytes]]:
        if key not in following:
            state = states[key]
            order = ascending(state)
            following[key] = []
            for number, (collective, its_groups) in enumerate(moves):
                if allowed(collective, its_groups, state, order):
                    after = advance(collective, its_groups, state, order)[0]
                    states.setdefault(after.tobytes(), after)
                    following[key].append((number, after.tobytes()))
        return following[key]

    @cache
    def endings(key: bytes, left: int) -> tuple[tuple[int, ...], ...]:
        if key == target:
            return ((),)
        if left <= 0:
            return ()
        return tuple((number, *rest) for number, after in possible(key) for rest in endings(after, left - 1))

    return tuple(sorted(endings(start.tobytes(), limit), key=lambda program: (len(program), program)))
