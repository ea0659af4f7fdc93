"""A configuration in the search: its state, its level, and its priority."""

from dataclasses import dataclass
from math import prod

from ...formulation.pipeline.configuration import Configuration
from ...formulation.placement.placement import Row
from .pipeline_problem import PipelineProblem
from .state import Level, Proved


@dataclass(slots=True, eq=False)
class Candidate:
    """A configuration, what is proved of it, and its level (None: untouched)."""

    configuration: Configuration
    state: Proved
    level: Level | None = None
    has_part_bounds: bool = False  # True if the bound includes what is proved of its parts
    running: bool = False
    dived: bool = False  # True once tried for a first plan
    glanced: bool = False  # True once its bound was estimated before that
    reordered: bool = False  # True for an order of axes that is searched in addition
    merged: bool = False  # True if it bounds all of its size (`MergedDeviceBound`)

    @property
    def bound(self) -> int:
        return self.state.bound

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of pipeline devices and of micro-batches."""
        return self.configuration.devices, self.configuration.micro_batches

    @property
    def single_stage(self) -> bool:
        return self.configuration.devices == 1 and not self.merged

    @property
    def divisible(self) -> bool:
        """True if its plans are to be told apart by what they leave to the operators that all devices share."""
        own = self.configuration
        return own.schedule.interlaced and not (self.single_stage or self.merged or own != own.whole)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: smaller goes first."""
        c = self.configuration
        return self.level in (Level.BOUNDED, Level.PRICED), self.bound, len(c.matrix), self.reordered, c


def evenly_spread(pipeline: PipelineProblem, configuration: Configuration) -> int:
    """Lower bound on the step, in ns: all arithmetic spread evenly over the devices."""
    total = int(pipeline.floors(configuration)[0, -1])
    slots = pipeline.slots(configuration)
    if slots is not None:
        return max(0, slots.spread_ns(total) - configuration.rounding_ns)
    share = total // configuration.groups
    waited = 0 if configuration.rounds is None else (total - share) // configuration.rounds
    return max(0, share + waited - configuration.rounding_ns)


def plainness(row: Row, matrix: tuple[Row, ...]) -> tuple[object, ...]:
    """Sort key: few stages first, then stages over the outermost level, then one mesh axis per level."""
    one_axis_per_level = all(sum(factor > 1 for factor in level) <= 1 for level in zip(*matrix, strict=True))
    return prod(row), tuple(-f for f in row), not one_axis_per_level or len(matrix) > 2, -len(matrix), matrix
