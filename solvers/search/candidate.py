"""A configuration under consideration: what is known of it, how far it was taken, and which goes first."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...formulation.pipeline.configuration import Configuration
from ...formulation.placement.placement import Row
from .pipeline_problem import PipelineProblem
from .state import Level, State


@dataclass(slots=True, eq=False)
class Candidate:
    """A configuration, what is known of it, and how far it was taken (None: not at all)."""

    configuration: Configuration
    state: State
    level: Level | None = None
    charted: bool = False  # True if its bound includes what is known of its parts
    under_way: bool = False
    dived: bool = False  # True once it was tried for a first plan
    merged: bool = False  # True if it stands for all that have as many stages and micro-batches

    @property
    def bound(self) -> int:
        return self.state.bound

    @property
    def size(self) -> tuple[int, int]:
        """Stages (of a device one each) and micro-batches."""
        return self.configuration.devices, self.configuration.micro_batches

    @property
    def single_stage(self) -> bool:
        return self.configuration.devices == 1 and not self.merged

    @property
    def order(self) -> tuple[object, ...]:
        """Smaller for what is taken further first."""
        c = self.configuration
        return self.level in (Level.BOUNDED, Level.PRICED), self.bound, len(c.matrix), c


def evenly_spread(pipeline: PipelineProblem, configuration: Configuration) -> int:
    """A bound: the step, in ns, if all arithmetic is spread evenly over the devices."""
    total = int(pipeline.floors(configuration)[0, -1])
    share = total // configuration.devices
    return share if configuration.rounds is None else share + (total - share) // configuration.rounds


def plainness(row: Row, matrix: tuple[Row, ...]) -> tuple[object, ...]:
    """Small for few stages, over the outermost level, and for meshes with one axis for every level."""
    apart = all(sum(factor > 1 for factor in level) <= 1 for level in zip(*matrix, strict=True))
    return prod(row), tuple(-f for f in row), not apart or len(matrix) > 2, -len(matrix), matrix
