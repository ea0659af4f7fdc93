"""The space of configurations and the result of a search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, TypeAlias

from ...formulation.encoding.encoding import Encoding
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.schedule import ONE_F_ONE_B, Schedule
from ...formulation.placement.placement import Placement, Row
from ..gap import relative_gap
from ..protocol import Proof, Status
from .planning_problem import PlanningProblem

Solved: TypeAlias = tuple[Encoding, tuple[int, ...]]
"""A stage's network and its assignment."""
StepNs: TypeAlias = Callable[[PlanningProblem, Configuration, tuple[int, ...], Sequence[Solved]], int]
"""Exact step, in ns, of a configuration with these cuts and stages; picklable."""


@dataclass(frozen=True)
class ConfigurationSpace:
    """The configurations to search: for every pipeline row, the placements of a stage's mesh.

    `step_ns`: the exact step of solved stages, if the search minimizes only a lower bound of it. `shares`: the devices
    that stages may have, if unequally many, side by side; the rows are then theirs (`formulation/pipeline/shares.py`).
    """

    placements: Mapping[Row, tuple[Placement, ...]]
    schedule: Schedule = ONE_F_ONE_B
    chunks: int = 1
    step_ns: StepNs | None = None
    shares: tuple[int, ...] = ()

    @property
    def has_pipelines(self) -> bool:
        return any(prod(row) > 1 for row in self.placements)


def without_pipelines(problem: PlanningProblem) -> ConfigurationSpace:
    """The placements of a problem on the whole machine, one stage each."""
    return ConfigurationSpace({(1,) * len(problem.machine.hierarchy): problem.placements})


@dataclass(frozen=True)
class OtherPlan:
    """A plan that a search found beside the best: its step in ns and its cuts; `decode` gives its stages."""

    configuration: Configuration
    objective: int
    bounds: tuple[int, ...]
    decode: Callable[[], tuple[Solved, ...]]


@dataclass(frozen=True)
class SearchResult:
    """The best plan (None: none found), its bound, and statistics of the search.

    `stages`: networks and assignments of the plan's stages. `asked`: configurations of which any part was solved.
    `solved`: networks solved, `kept` of them answered by the cache. `solving`: seconds inside solvers. `source`: the
    solver that found a plan of one stage, with its `proof`. `near`: the plan is proved within the gap. `exhausted`: the
    search was complete. `left_out`: number of placements with too many axes. `unrewritten`: placements searched with
    the graph as captured. `axes`: the most axes of a mesh that was searched. `missing_bytes`: the least excess over the
    capacity of a configuration that does not fit. `refused`: number of networks for which the solver gave nothing,
    though it had time; `solver_words`: its words about one of them. `programs`: the reduction programs of a joint
    network, as JSON. `orders`: further placements, with other orders of axes; `orders_left_out`: not all were searched.
    `others`: the next best plans that were found, with other meshes, pipelines or numbers of micro-batches.
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
    proof: Proof | None = None
    missing_bytes: int | None = None
    near: bool = False
    interrupted: bool = False
    left_out: int = 0
    exhausted: bool = False
    unrewritten: tuple[Placement, ...] = ()
    axes: float = inf
    orders: int = 0
    orders_left_out: bool = False
    refused: int = 0
    solver_words: str = ""
    programs: tuple[Mapping[str, Any], ...] = ()
    others: tuple[OtherPlan, ...] = ()

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective; None without a plan."""
        return None if self.objective is None else relative_gap(self.objective, self.bound)

    @property
    def encoding(self) -> Encoding | None:
        """The network of a single-stage plan."""
        return self.stages[0][0] if len(self.stages) == 1 else None

    @property
    def assignment(self) -> tuple[int, ...] | None:
        """The assignment of a single-stage plan."""
        return self.stages[0][1] if len(self.stages) == 1 else None
