"""The cheapest reduction program as weighted Boolean satisfiability: clauses, and costs of literals.

It encodes the semantics of collectives (P², section 3) without statuses, as an independent check of the shortest path.
Every level has size 2, so members, rows (chunks) and columns (addends) are the numbers below 2^L and a level is one of
their bits. Real sizes enter through the costs only. Before every step:

    held[d, r, c]   member d holds row r with the addend of member c in it
    row[d, r]       member d holds part of row r; `some[d]`: it holds any data
    cut[zero, l]    members with bit 0 on the levels `zero` hold only rows with their own bit on level l

At every time one step is taken, or none from then on. A step is a collective over a range of levels, in all groups or
only in those with bit 0 on some other levels; all participants hold data. Its cost depends on these levels and on those
that are cut for the participants. A reduce-scatter leaves a member the rows with its own bits; a free choice would
admit programs that are valid for levels of size 2 only.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement, pairwise, product
from typing import TypeAlias

from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from .cost import step_price
from .program import DEFAULT_LIMIT, Collective, Reduction, ReductionProgram, Step, groups
from .statuses import Kind, LevelStatus, task

UNITS = 2**29
"""Cost of the one-step program. Costs are scaled to small integers for the solvers."""

MOST_LEVELS = 3

Option: TypeAlias = tuple[Step, tuple[int, ...]]
"""A step, and the other levels that are cut for its participants."""

Group: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Clauses:
    """A weighted CNF. Variables are 1, 2, ..; a negative literal negates its variable.

    `choices`: per time, literals of which exactly one is true, each with its step; the last one stands for no step.
    `costs`: cost of a true literal, in units of `ns_per_unit`.
    """

    ns_per_unit: float
    variables: int = 0
    clauses: list[tuple[int, ...]] = field(default_factory=list)
    choices: list[dict[int, Step | None]] = field(default_factory=list)
    costs: dict[int, int] = field(default_factory=dict)

    def new(self) -> int:
        """A new variable."""
        self.variables += 1
        return self.variables

    def add(self, *literals: int) -> None:
        """Require at least one literal."""
        self.clauses.append(literals)

    def equal(self, a: int, b: int, where: int) -> None:
        """`where` implies a = b."""
        self.add(-where, -a, b)
        self.add(-where, a, -b)

    def some(self, literals: Iterable[int]) -> int:
        """A variable equal to the disjunction of the literals."""
        parts, x = tuple(literals), self.new()
        self.add(-x, *parts)
        for part in parts:
            self.add(x, -part)
        return x

    def program(self, value: Callable[[int], bool]) -> ReductionProgram:
        """The program of a solution, given the value of every variable."""
        return tuple(step for choice in self.choices for x, step in choice.items() if step and value(x))


def encode_programs(
    machine: Machine,
    reduction: Reduction,
    size_bytes: int,
    kind: Kind = "all_reduce",
    profile: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Clauses:
    """Encode all programs of at most `limit` steps; bytes as in `optimal`. PartitaError: bad levels or limit."""
    levels = len(reduction.sizes)
    if not 0 < levels <= MOST_LEVELS:
        raise PartitaError(
            f"Boolean states support 1 to {MOST_LEVELS} levels, not {levels}; the shortest path has no limit"
        )
    if limit < 1:
        raise PartitaError(f"no program has {limit} steps or fewer; give a limit of 1 or more")
    start, end, _ = task(kind)
    costs = {option: option_ns(machine, reduction, option, profile, size_bytes) for option in options(levels)}
    most = costs[Step(Collective(kind), 0, levels - 1), ()]  # the one-step program: an upper bound
    made = Clauses(most / UNITS or 1.0)
    units = {option: round(ns / made.ns_per_unit) for option, ns in costs.items() if ns <= most}
    state = _State(made, levels)
    state.fix(start)
    for _ in range(limit):
        state = _step(made, state, units)
    state.fix(end)
    for before, after in pairwise(made.choices):
        made.add(-list(before)[-1], list(after)[-1])  # no step after an idle time
    return made


def options(levels: int) -> Iterator[Option]:
    """Every step with every choice of cut levels outside it."""
    for first, last in combinations_with_replacement(range(levels), 2):
        others = [i for i in range(levels) if not first <= i <= last]
        for collective, marks in product(Collective, product(("", "zero", "cut"), repeat=len(others))):
            zero, cut = (tuple(i for i, mark in zip(others, marks, strict=True) if mark == x) for x in ("zero", "cut"))
            yield Step(collective, first, last, zero), cut


def option_ns(machine: Machine, reduction: Reduction, option: Option, profile: str | None, size_bytes: int) -> float:
    """Cost of an option in ns."""
    step, cut = option
    share = 1 / math.prod(reduction.sizes[i] for i in cut)
    line = step_price(machine, reduction, step, share, profile)
    return line.latency_ns + line.ns_per_byte * size_bytes


class _State:
    """The state variables of one time."""

    def __init__(self, made: Clauses, levels: int) -> None:
        self.made, self.levels, self.members = made, levels, range(2**levels)
        cells = product(self.members, repeat=3)
        self.held = {cell: made.new() for cell in cells}
        self.row = {
            (d, r): made.some(self.held[d, r, c] for c in self.members) for d, r in product(self.members, repeat=2)
        }
        self.some = {d: made.some(self.row[d, r] for r in self.members) for d in self.members}
        self.cut = {
            (zero, i): -made.some(
                x
                for (d, r), x in self.row.items()
                if self.bit(d, i) != self.bit(r, i) and not any(self.bit(d, z) for z in zero)
            )
            for zero in _subsets(levels)
            for i in range(levels)
            if i not in zero
        }

    def bit(self, number: int, level: int) -> int:
        return number >> (self.levels - 1 - level) & 1

    def fix(self, status: LevelStatus) -> None:
        """Require this status on all levels."""
        for (d, r, c), x in self.held.items():
            true = {LevelStatus.OWN: c == d, LevelStatus.SCATTERED: r == d, LevelStatus.FULL: True}[status]
            self.made.add(x if true else -x)


def _step(made: Clauses, now: _State, units: dict[Option, int]) -> _State:
    """The state after at most one step."""
    after = _State(made, now.levels)
    choice: dict[int, Step | None] = {}
    for (step, cut), cost in units.items():
        x = made.new()
        choice[x] = step
        made.costs[x] = cost
        for level in range(now.levels):
            if level not in step.levels and level not in step.zero:
                made.add(-x, now.cut[step.zero, level] if level in cut else -now.cut[step.zero, level])
    nothing = made.new()
    for cell, x in now.held.items():
        made.equal(x, after.held[cell], nothing)
    for first, last in combinations_with_replacement(range(now.levels), 2):
        over = range(first, last + 1)
        taken = [(x, step) for x, step in choice.items() if step and step.levels == over]
        for group in groups(Step(Collective.ALL_REDUCE, first, last), (2,) * now.levels):
            active = {x: not any(now.bit(group[0], i) for i in step.zero) for x, step in taken}
            runs = {c: made.some(x for x, step in taken if active[x] and step.collective is c) for c in Collective}
            _precondition(made, now, group, runs)
            _effect(made, now, after, over, group, runs)
            idle = made.some(x for x, _ in taken if not active[x])
            for d, r, c in product(group, now.members, now.members):
                made.equal(now.held[d, r, c], after.held[d, r, c], idle)
    choice[nothing] = None
    made.choices.append(choice)
    return after


def _precondition(made: Clauses, now: _State, group: Group, runs: dict[Collective, int]) -> None:
    """The preconditions of the collective that runs in a group."""
    reduces = made.some(runs[c] for c in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE))
    gathers, broadcasts = runs[Collective.ALL_GATHER], runs[Collective.BROADCAST]
    for literal in runs.values():
        made.add(-literal, *(now.some[d] for d in group))
    for a, b in pairwise(group):
        # Members with data hold equally many rows, since a scatter cuts all of them equally.
        made.equal(now.some[a], now.some[b], gathers)
        for r in now.members:
            made.equal(now.row[a, r], now.row[b, r], reduces)
    for a, b in combinations(group, 2):
        for r in now.members:
            made.add(-gathers, -now.row[a, r], -now.row[b, r])
            for c in now.members:
                made.add(-reduces, -now.held[a, r, c], -now.held[b, r, c])
    for d, r, c in product(group[1:], now.members, now.members):
        made.add(-broadcasts, -now.held[d, r, c], now.held[group[0], r, c])


def _effect(made: Clauses, now: _State, after: _State, over: range, group: Group, runs: dict[Collective, int]) -> None:
    """The effect on a group: members hold the union of its data, their own rows of it, or nothing."""
    scatters, reduces = runs[Collective.REDUCE_SCATTER], runs[Collective.REDUCE]
    spreads = made.some(runs[c] for c in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST))
    for r, c in product(now.members, repeat=2):
        union = made.some(now.held[d, r, c] for d in group)
        for d in group:
            x = after.held[d, r, c]
            made.equal(x, union, spreads)
            own = all(now.bit(d, i) == now.bit(r, i) for i in over)
            for literal, keeps in ((scatters, own), (reduces, d == group[0])):
                if keeps:
                    made.equal(x, union, literal)
                else:
                    made.add(-literal, -x)


def _subsets(levels: int) -> Iterator[tuple[int, ...]]:
    for count in range(levels):
        yield from combinations(range(levels), count)
