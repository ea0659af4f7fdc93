"""Reduction programs as variables: which one runs for the messages of a collective over some axes, range by range.

A variable r stands for a collective (an all-reduce, a reduce-scatter or an all-gather over some mesh axes) of a range
of payloads. Its options are the programs that are the cheapest of some placement for some payload. The ranges end
wherever the cheapest program of some placement changes, so that under every placement one program costs the least for
the whole range. What a program costs depends on the placement and the payload only: given the placement, the others are
dominated whatever else is chosen, and the edge between placement and r forbids them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias, get_args

import numpy as np

from ...model.machine.machine import Machine
from ...model.options import times
from ..network.network import INFINITE, Edge, Variable
from ..placement.placement import Placement
from .optimal import cheapest_programs
from .program import Reduction, ReductionProgram
from .ranking import words
from .statuses import Kind

Axes: TypeAlias = tuple[int, ...]
"""Axes of a mesh, by number."""


@dataclass(frozen=True, slots=True)
class ProgramVariable:
    """The program of a collective over some axes, for payloads from `first` bytes to below `stop` (None: any above).

    Under placement p these are the axes `axes[p]`. `options` are programs in words, `cheapest[p]` is the option of the
    cheapest one under placement p, `programs[p]` that program itself.
    """

    sizes: tuple[int, ...]
    axes: tuple[Axes, ...]
    kind: Kind
    first: int
    stop: int | None
    options: tuple[str, ...]
    cheapest: tuple[int, ...]
    programs: tuple[ReductionProgram, ...]

    @property
    def name(self) -> str:
        """`all_reduce over 2x6 from 1024`: the sizes of the axes."""
        return f"{self.kind} over {times(self.sizes)} from {self.first}"

    def variable(self, capacities: int) -> Variable:
        """Its variable, whose options cost and use nothing by themselves."""
        return Variable(
            self.name, np.zeros(len(self.options), np.int64), np.zeros((len(self.options), capacities), int)
        )

    def edge(self, placement: int, own: int) -> Edge:
        """Between the placement's variable and its own: without the programs that are dominated."""
        allowed = np.array(self.cheapest)[:, None] == np.arange(len(self.options))
        return Edge(placement, own, np.where(allowed, 0, INFINITE).astype(np.int64))

    def to_json(self, placement: int, option: int) -> dict[str, Any]:
        """What runs with an option, under a placement."""
        return {
            "collective": self.kind.replace("_", "-"),
            "axes": list(self.axes[placement]),
            "from_bytes": self.first,
            "below_bytes": self.stop,
            "program": self.options[option],
        }


def program_variables(machine: Machine, placements: Sequence[Placement]) -> tuple[ProgramVariable, ...]:
    """Those of every collective over every set of axes of one mesh, on any of these placements.

    The axes may be in another order in each placement: equal sizes stand for each other, in order.
    """
    sizes = sorted(placements[0].sizes)
    orders = [np.argsort(p.sizes, kind="stable").tolist() for p in placements]
    split = [number for number, size in enumerate(sizes) if size > 1]
    found = []
    for numbers in (numbers for count in range(len(split)) for numbers in combinations(split, count + 1)):
        pairs = [(p, tuple(sorted(order[n] for n in numbers))) for p, order in zip(placements, orders, strict=True)]
        for kind in get_args(Kind):
            found += _of_kind(machine, pairs, tuple(sizes[number] for number in numbers), kind)
    return tuple(found)


def _of_kind(
    machine: Machine, pairs: Sequence[tuple[Placement, Axes]], sizes: tuple[int, ...], kind: Kind
) -> list[ProgramVariable]:
    """The variables of all ranges of payloads, for placements each with the axes that have these sizes."""
    best = [cheapest_programs(machine, p, own, kind) for p, own in pairs]
    named = [
        ["; ".join(words(x, Reduction(p, own), machine)) for x in one.programs]
        for (p, own), one in zip(pairs, best, strict=True)
    ]
    options = tuple(dict.fromkeys(text for texts in named for text in texts))
    starts = sorted({start for one in best for start in one.starts})
    axes, variables = tuple(own for _, own in pairs), []
    for first, stop in zip(starts, [*starts[1:], None], strict=True):
        runs = [sum(start <= first for start in one.starts) - 1 for one in best]
        cheapest = tuple(options.index(texts[run]) for texts, run in zip(named, runs, strict=True))
        programs = tuple(one.programs[run] for one, run in zip(best, runs, strict=True))
        variables.append(
            ProgramVariable(sizes, axes, kind, first, stop, options=options, cheapest=cheapest, programs=programs)
        )
    return variables
