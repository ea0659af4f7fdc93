"""Groups of mesh axes over which collectives run: their levels by name, and the programs of these collectives."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...formulation.reduction.optimal import CheapestPrograms, cheapest_programs
from ...formulation.reduction.program import Reduction, ReductionProgram, Step, step_text
from ...formulation.reduction.statuses import KINDS
from ...model.graph.layout import Action, B
from ..plan.memo import once_per_plan
from ..plan.plan import Plan
from .stage_price import stage_price

ACTIONS = dict(zip(KINDS, (Action.SUM, Action.SCATTER_SUM, Action.GATHER), strict=True))
"""The actions by the names of their collectives."""


@dataclass(frozen=True, slots=True)
class Group:
    """One axis, or several that sum gradients together: its name, its levels (name to size), and what runs there.

    `programs` has the collectives of this plan for which some payload takes more than one step. `among`: only ranks on
    this range of coordinates (axis, first, the one after the last) are in such a group.
    """

    axes: tuple[int, ...]
    name: str
    levels: Mapping[str, int]
    programs: Mapping[str, CheapestPrograms]
    among: tuple[int, int, int] | None = None

    def level(self, step: Step) -> str:
        """The name of the levels of a step: `gpu`, `node+gpu`, or `node of first gpu` where the other gpus rest."""
        names = list(self.levels)
        over = "+".join(names[step.first : step.last + 1])
        return over + (f" of first {'+'.join(names[level] for level in step.zero)}" if step.zero else "")

    def steps(self, program: ReductionProgram) -> list[tuple[str, str]]:
        """The (collective, level) pairs of a program."""
        return [(step.collective.value, self.level(step)) for step in program]


def summed_over(plan: Plan, index: int) -> tuple[int, ...]:
    """The axes over which the gradient of a weight is added up."""
    here = plan.at(index)
    choice = here.choices[index]
    letters = zip(choice.output, here.placement.sizes, strict=True)
    return tuple(a for a, (letter, size) in enumerate(letters) if letter == B and size > 1 and a not in choice.alone)


def joint_name(plan: Plan, axes: Sequence[int]) -> str:
    """The name of some axes together: the ranks that differ on them only; none of no axes."""
    return "_".join(plan.axes[a] for a in axes)


@once_per_plan
def axis_groups(plan: Plan) -> tuple[Group, ...]:
    """All axes of a stage's mesh, then the joint ones over which gradients are summed, each with its programs.

    At last those of ranges of coordinates, on which parallel branches lie.
    """
    first = plan.parts[0]
    kinds = {action.value: kind for kind, action in ACTIONS.items()}
    used: dict[tuple[int, ...], set[str]] = {(a,): set() for a in range(len(first.axes))}
    sizes = first.placement.sizes
    for part in plan.parts:
        for index in part.graph.of("parameter"):
            axes = summed_over(part, index) if index not in part.range_of else ()
            if axes and part.graph.nodes[index].gradient:
                used.setdefault(axes, set())
        for item in stage_price(part).items:
            axes = tuple(a for a in item.axes if sizes[a] > 1)
            if item.kind in kinds and axes:
                used.setdefault(axes, set()).add(kinds[item.kind])
    return (*(_group(first, axes, found) for axes, found in used.items()), *_groups_of_ranges(plan))


def _groups_of_ranges(plan: Plan) -> Iterator[Group]:
    """The part of its axis that a range of coordinates is, and the joint axes over which gradients are summed there."""
    for among, part in plan.ranges.items() if plan.size == 1 else ():
        weights = [i for i in plan.graph.of("parameter") if plan.range_of.get(i) == among]
        summed = {summed_over(part, i) for i in weights if plan.graph.nodes[i].gradient} - {()}
        for axes in sorted({(among[0],), *summed}):
            if among[0] in axes:
                kinds = {"all_reduce"} if axes in summed else set[str]()
                yield replace(_group(part, axes, kinds), among=among)


def _group(plan: Plan, axes: tuple[int, ...], used: set[str]) -> Group:
    reduction = Reduction(plan.placement, axes)
    names = _level_names([level.name for level in plan.machine.levels])
    levels = {names[i]: m for i, m in zip(reduction.machine_levels, reduction.sizes, strict=True)}
    found = {kind: cheapest_programs(plan.machine, plan.placement, axes, kind) for kind in KINDS if kind in used}
    return Group(axes, joint_name(plan, axes), levels, {k: s for k, s in found.items() if not s.is_flat})


def _level_names(names: Sequence[str]) -> list[str]:
    """Names of levels as they can stand in a program, each once."""
    plain = [re.sub(r"[^\w-]+", "_", name) for name in names]
    return plain if len(set(plain)) == len(plain) else [f"level{i}" for i in range(len(plain))]


# In words


def steps_text(group: Group, program: ReductionProgram) -> str:
    """The steps of a program: `reduce over gpus, all-reduce over nodes (first gpu), broadcast over gpus`."""
    return ", ".join(step_text(step, list(group.levels), "s") for step in program)
