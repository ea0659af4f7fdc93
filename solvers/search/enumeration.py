"""The configurations of a space: which placements, with how many axes, and for what graph."""

from collections.abc import Iterator, Mapping
from math import inf, prod

from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.schedule import ONE_F_ONE_B
from ...formulation.placement.placement import Placement, Row, every_order
from .mesh_width import elimination_work, quick_axes
from .pipeline_problem import PipelineProblem
from .planning_problem import PlanningProblem
from .result import ConfigurationSpace

TOTAL_WORK = 16
"""Limit on the work of eliminating every network once, as a multiple of the limit for one network."""
ORDERS_WORK = 1 << 29
"""Limit on the work for other orders of axes than outermost first, which seldom give a better plan; about a second."""
LEAST_WORK = 1 << 24
"""Fixed cost of a configuration, in additions."""


def with_every_order(
    problem: PlanningProblem, known: Mapping[Row, tuple[Placement, ...]], work: Mapping[int, float], axes: float
) -> Mapping[Row, tuple[Placement, ...]] | None:
    """Placements, and those with any other order of their axes; None if these are fixed, or too much `work`.

    `work`: to eliminate a network once, by axes; meshes have at most `axes`.
    """
    space = problem.space
    every = {
        row: tuple(p for p in every_order(places) if space.mesh is None or p.sizes == space.mesh)
        for row, places in known.items()
    }
    further = [len(p.sizes) for row, places in every.items() for p in places if p not in {*known[row]}]
    needed = len(problem.micro_batches) * sum(max(LEAST_WORK, work[n]) for n in further if n <= axes)
    left_out = bool(further) and (space.fixes_axes or bool(space.fix) or needed > ORDERS_WORK)
    return None if left_out else every


class Enumeration:
    """The configurations of a space that are searched, and what the limits on work leave out.

    `axes`: the most axes of a mesh; `left_out`: placements with more. `orders`: further placements, with other orders
    of axes; `orders_left_out`: not all are searched.
    """

    def __init__(self, pipeline: PipelineProblem, space: ConfigurationSpace) -> None:
        self.pipeline, self.space = pipeline, space
        self.captured, self.rewritten_axes = PipelineProblem(pipeline.problem.captured), 0
        self.left_out, self.axes, self.orders, self.orders_left_out = 0, inf, 0, False
        self.work: Mapping[int, float] = {}  # to eliminate a network once, by axes

    def __iter__(self) -> Iterator[tuple[Configuration, bool]]:
        """Every configuration, and whether it has an order of axes that is searched in addition."""
        self.axes = self._most_axes()
        space, problem = self.space, self.pipeline.problem
        fitting = problem.micro_batches if space.has_pipelines else problem.fits() or problem.micro_batches[-1:]
        for row, places in self._placements().items():
            p = prod(row)
            order = (space.schedule, space.chunks) if p > 1 else (ONE_F_ONE_B, 1)
            counts = [k for k in fitting if order[0].runs(p, k)]
            for placement in places if counts else ():
                if p * order[1] >= self.pipeline_of(placement).count:
                    continue
                if len(placement.sizes) > self.axes:
                    self.left_out += placement in space.placements[row]
                    continue
                for k in counts:
                    yield Configuration(row, placement.matrix, k, *order), placement not in space.placements[row]

    def _most_axes(self) -> int:
        """Most mesh axes that are searched; those that are searched with alternatives are kept in `rewritten_axes`."""
        problem = self.pipeline.problem
        self.rewritten_axes = self._quick_axes(problem)
        return self.rewritten_axes if problem.plain is None else self._quick_axes(problem.captured)

    def _quick_axes(self, problem: PlanningProblem) -> int:
        """Most mesh axes for which one network and, with pipelines, all together stay within the work limit."""
        work = self.work = elimination_work(problem)
        if not self.space.has_pipelines:
            return quick_axes(problem, work)
        counts, most = len(problem.micro_batches), problem.most_work
        meshes = [len(p.sizes) for places in self.space.placements.values() for p in places]
        in_all = {n: counts * sum(max(LEAST_WORK, work[axes]) for axes in meshes if axes <= n) for n in work}
        return max((n for n in work if work[n] <= most and in_all[n] <= TOTAL_WORK * most), default=1)

    def _placements(self) -> Mapping[Row, tuple[Placement, ...]]:
        """The space's placements and, if they are little work, those with any other order of the axes."""
        problem, known = self.pipeline.problem, self.space.placements
        if not problem.orders:
            return known
        every = with_every_order(problem, known, self.work, self.axes)
        self.orders_left_out = every is None
        if every is None:
            return known
        self.orders = sum(len(p.sizes) <= self.axes and p not in known[row] for row in every for p in every[row])
        return every

    def pipeline_of(self, placement: Placement) -> PipelineProblem:
        """The problem of a placement: without alternatives if it has too many axes for them."""
        wide = self.pipeline.problem.plain is not None and len(placement.sizes) > self.rewritten_axes
        return self.captured if wide else self.pipeline
