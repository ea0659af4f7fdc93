"""Periodic schedules, for any number of micro-batches.

A `Steady` is a schedule of some repetitions of a problem, with a time before which every task recurred once a period.
`orders` inserts further periods there, so the makespan grows by one period a repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from ...model.errors import PartitaError
from .orders import Orders
from .problem import Precedence, Problem


def repetitions(problem: Problem, count: int) -> Problem:
    """`count` copies of the problem: task i of copy n is task n·|tasks| + i, with its micro-batches numbered on."""
    if count < 1:
        raise PartitaError(f"{count} repetitions: there is at least one")
    size, micros = len(problem.tasks), 1 + max(task.micro for task in problem.tasks)
    return Problem(
        tuple(replace(task, micro=task.micro + n * micros) for n in range(count) for task in problem.tasks),
        tuple(
            Precedence(e.before + n * size, e.after + n * size, e.lag_ns) for n in range(count) for e in problem.edges
        ),
        problem.capacities,
        problem.closing_ns,
    )


@dataclass(frozen=True, slots=True)
class RepetitionBound:
    """Lower bound on the makespan of n > `beyond` repetitions: `slope_ns`·n + `constant_ns`; `words`: its reason."""

    slope_ns: Fraction
    constant_ns: int
    beyond: int
    words: str

    def makespan_ns(self, repetitions: int) -> int:
        return ceil(self.slope_ns * repetitions) + self.constant_ns


@dataclass(frozen=True)
class Steady:
    """A schedule of any number of repetitions of a problem, from `least` on.

    `starts_ns`: of `least` repetitions. In the `windows` periods before `turn_ns` every task of the problem began once
    a period, one repetition after the other, exactly `period_ns` apart.

    Then a period more may stand at `turn_ns`: what began earlier stays, what began in the last period before it is run
    again for the next repetition, and what began later moves on by one repetition and one period. Nothing overlaps and
    nothing lacks memory, since from `turn_ns` on everything is as it was one period before. A task j that waits for i
    keeps waiting long enough: if both moved, or none, nothing changed; if only j moved, i of the same repetition began
    one period after i of the repetition before (within the windows), or so long before `turn_ns` that it is over
    (`windows` - 1 periods are no shorter than any task with its transfer).
    """

    problem: Problem
    period_ns: int
    least: int
    starts_ns: tuple[int, ...]
    turn_ns: int
    floor: RepetitionBound

    @property
    def ends_ns(self) -> int:
        """The makespan of the least number of repetitions."""
        size = len(self.problem.tasks)
        return max(start + self.problem.tasks[i % size].duration_ns for i, start in enumerate(self.starts_ns))

    def makespan_ns(self, repetitions: int) -> int:
        """Makespan in ns: one more period for each repetition beyond the least."""
        self._check(repetitions)
        return self.ends_ns + (repetitions - self.least) * self.period_ns

    def above_ns(self, repetitions: int) -> int:
        """The makespan above its lower bound; 0: no schedule is shorter."""
        return self.makespan_ns(repetitions) - self.floor.makespan_ns(repetitions)

    @property
    def always_shortest(self) -> bool:
        """True if it is proved shortest for every number of repetitions from `least` on."""
        return self.floor.slope_ns == self.period_ns and self.above_ns(self.least) == 0

    def starts(self, repetitions: int) -> tuple[int, ...]:
        """The starts (ns) of all repetitions, by task index in `repetitions(problem, …)`."""
        self._check(repetitions)
        size, more = len(self.problem.tasks), repetitions - self.least
        begin = [0] * (size * repetitions)
        for i, start in enumerate(self.starts_ns):
            if start >= self.turn_ns:
                begin[i + more * size] = start + more * self.period_ns
            else:
                begin[i] = start
                if start >= self.turn_ns - self.period_ns:
                    for n in range(1, more + 1):
                        begin[i + n * size] = start + n * self.period_ns
        return tuple(begin)

    def orders(self, repetitions_: int) -> Orders:
        """The orders of all repetitions."""
        whole, begin = repetitions(self.problem, repetitions_), self.starts(repetitions_)
        return tuple(tuple(whole.tasks[i].slot for i in sorted(own, key=begin.__getitem__)) for own in whole.on_device)

    def in_ns(self, problem: Problem, unit_ns: int) -> Steady:
        """Convert from units of time to ns; `problem` is the one in ns."""
        floor = replace(
            self.floor, slope_ns=self.floor.slope_ns * unit_ns, constant_ns=self.floor.constant_ns * unit_ns
        )
        starts = tuple(start * unit_ns for start in self.starts_ns)
        return Steady(problem, self.period_ns * unit_ns, self.least, starts, self.turn_ns * unit_ns, floor)

    def _check(self, repetitions: int) -> None:
        if repetitions < self.least:
            raise PartitaError(f"this schedule begins to repeat with {self.least} repetitions, not {repetitions}")


def windows(problem: Problem, period_ns: int) -> int:
    """Equal periods needed before another can be inserted: one, and as many as the longest task and transfer span."""
    longest = max((problem.tasks[e.before].duration_ns + e.lag_ns for e in problem.edges), default=0)
    longest = max([longest, *(task.duration_ns for task in problem.tasks)])
    return 1 + ceil(Fraction(longest, period_ns))


def turns(problem: Problem, period_ns: int, starts_ns: Sequence[int]) -> Iterator[int]:
    """The times at which a period can be inserted into a schedule of repetitions of the problem."""
    size, count = len(problem.tasks), windows(problem, period_ns)
    of_task = [starts_ns[i::size] for i in range(size)]
    if any(list(own) != sorted(own) for own in of_task):
        return

    def repeats(own: Sequence[int], turn: int) -> bool:
        inside = [start for start in own if turn - count * period_ns <= start < turn]
        first = turn - count * period_ns
        return len(inside) == count and all(
            start == inside[0] + n * period_ns and first + n * period_ns <= start for n, start in enumerate(inside)
        )

    yield from (turn for turn in sorted(set(starts_ns)) if all(repeats(own, turn) for own in of_task))
