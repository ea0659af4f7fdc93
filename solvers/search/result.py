"""Which configurations are searched, and what a search found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ...formulation.encoding.encoding import Encoding
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.schedule import ONE_F_ONE_B, Schedule
from ...formulation.placement.placement import Placement, Row
from ..protocol import Status
from .planning_problem import PlanningProblem

Solved: TypeAlias = tuple[Encoding, tuple[int, ...]]
"""The network of a stage and its assignment."""
StepNs: TypeAlias = Callable[[PlanningProblem, Configuration, tuple[int, ...], Sequence[Solved]], int]
"""The step of a problem's configuration, from the boundaries where it is cut and its stages; it can be pickled."""


@dataclass(frozen=True)
class ConfigurationSpace:
    """The configurations to search: placements of a stage's inner mesh for every row of the pipeline's axis.

    `step_ns` gives the step of solved stages where the search only minimizes a lower bound of it.
    """

    placements: Mapping[Row, tuple[Placement, ...]]
    schedule: Schedule = ONE_F_ONE_B
    chunks: int = 1
    step_ns: StepNs | None = None

    @property
    def has_pipelines(self) -> bool:
        return any(prod(row) > 1 for row in self.placements)


def without_pipelines(problem: PlanningProblem) -> ConfigurationSpace:
    """All placements of a problem on the whole machine."""
    return ConfigurationSpace({(1,) * len(problem.machine.hierarchy): problem.placements})


@dataclass(frozen=True)
class SearchResult:
    """The best plan (None: none found), what is proved, and how the search went.

    `stages` are the networks of the plan's stages with their assignments, `asked` the configurations of which any part
    was solved, `solved` and `kept` the networks, those answered by the cache among them; `solving` are the seconds
    inside solvers. `source` is the solver that found a plan of one stage. `near`: the plan is proved within the gap.
    `exhausted`: nothing was left to ask, whatever is proved. `left_out` counts placements of too many axes;
    `unrewritten` are those searched with the graph as it was captured. `missing_bytes`: the least by which a
    configuration that does not fit exceeds the capacity.
    """

    status: Status
    configuration: Configuration | None
    objective: int | None
    bounds: tuple[int, ...]
    stages: tuple[Solved, ...]
    bound: int
    seconds: float
    configurations: int
    asked: int
    solved: int
    kept: int
    options: int
    solving: float
    source: str = ""
    missing_bytes: int | None = None
    near: bool = False
    interrupted: bool = False
    left_out: int = 0
    exhausted: bool = False
    unrewritten: tuple[Placement, ...] = ()

    @property
    def encoding(self) -> Encoding | None:
        """The network of a plan of one stage."""
        return self.stages[0][0] if len(self.stages) == 1 else None

    @property
    def assignment(self) -> tuple[int, ...] | None:
        """The assignment of a plan of one stage."""
        return self.stages[0][1] if len(self.stages) == 1 else None
