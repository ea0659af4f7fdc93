"""The search with the placement of each mesh inside of one cost network (`formulation.reduction.joint_encoding`).

A configuration is then a mesh and a number of micro-batches: its bounds hold for all placements of the mesh at once,
and its network chooses among them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

from ...formulation.encoding.encoding import Encoding
from ...formulation.encoding.shared_tables import SharedTables
from ...formulation.placement.placement import Placement, Row
from ...formulation.reduction.joint_encoding import JointEncoding, joint_encoding
from ...model.errors import PartitaError
from ..protocol import NO_LIMITS, Limits, Solver
from ..search.enumeration import with_every_order
from ..search.mesh_width import elimination_work, quick_axes
from ..search.planning_problem import PlanningProblem
from ..search.result import SearchResult
from ..search.search import search
from .by_placement import ByPlacement

MOST_TOGETHER = {1: 16, 2: 8, 3: 2}
"""Placements of one network, by axes: its tables grow with their square. More axes: one placement."""


@dataclass(frozen=True)
class JointProblem(PlanningProblem):
    """A problem over meshes: `groups` are placements that one network chooses among, `placements` the first of each.

    `tell` gets every joint network that is made.
    """

    groups: tuple[tuple[Placement, ...], ...] = ()
    tell: Callable[[JointEncoding], None] | None = field(default=None, compare=False)

    def encoding(
        self, placement: Placement, k: int, fast: bool = False, shared: SharedTables | None = None
    ) -> Encoding:
        """The joint network of a group, given its first placement; of any other placement its own network."""
        group = next((group for group in self.groups if group[0] == placement), ())
        if not group:
            return super().encoding(placement, k, fast, shared)
        members, refusals = [], []
        for member in group:
            try:
                members.append(super().encoding(member, k, fast, shared))
            except PartitaError as refusal:  # a strategy or the batch cannot be split so finely
                refusals.append(refusal)
        if not members:
            raise refusals[0]
        made = joint_encoding(members, programs="reductions" in self.space.joint)
        if self.tell is not None:
            self.tell(made)
        return made


def joint_problem(problem: PlanningProblem, further: Sequence[Placement] = ()) -> JointProblem:
    """The problem over groups of placements, each of one mesh up to the order of its axes; of `further` ones, too."""
    meshes: defaultdict[Row, list[Placement]] = defaultdict(list)
    for placement in (*problem.placements, *further):
        meshes[tuple(sorted(placement.sizes))].append(placement)
    groups = [
        tuple(places[at : at + most])
        for sizes, places in meshes.items()
        for most in (MOST_TOGETHER.get(len(sizes), 1),)
        for at in range(0, len(places), most)
    ]
    given = {one.name: getattr(problem, one.name) for one in fields(PlanningProblem)}
    own = {"placements": tuple(group[0] for group in groups), "orders": False}
    return JointProblem(**given | own, groups=tuple(groups))


def _further_orders(problem: PlanningProblem) -> tuple[Placement, ...] | None:
    """The placements with other orders of the axes, as without joint networks; None if they are left out."""
    if not problem.orders:
        return ()
    work, row = elimination_work(problem), (1,) * len(problem.machine.hierarchy)
    axes, known = quick_axes(problem, work), {row: problem.placements}
    every = with_every_order(problem, known, work, axes)
    return None if every is None else tuple(p for p in every[row] if p not in known[row] and len(p.sizes) <= axes)


def search_placements(problem: PlanningProblem, solver: Solver, limits: Limits = NO_LIMITS) -> SearchResult:
    """The best plan without a pipeline; placements are chosen by networks if the space says so, else by the search."""
    if not problem.space.joint:
        return search(problem, solver, limits)
    backend, further = ByPlacement(solver), _further_orders(problem)
    joint = replace(joint_problem(problem, further or ()), tell=backend.tell)
    found = search(joint, backend, limits)
    found = replace(found, orders=len(further or ()), orders_left_out=further is None, others=())
    left_out = sum(len(group) for group in joint.groups if len(group[0].sizes) > found.axes)
    unrewritten = tuple(p for group in joint.groups if group[0] in found.unrewritten for p in group)
    found = replace(found, left_out=left_out, unrewritten=unrewritten)
    if found.configuration is None:
        return found
    ((encoding, assignment),) = found.stages
    assert isinstance(encoding, JointEncoding)
    chosen = encoding.chosen(assignment)
    configuration = replace(found.configuration, matrix=chosen[0].placement.matrix)
    return replace(found, configuration=configuration, stages=(chosen,), programs=encoding.programs(assignment))
