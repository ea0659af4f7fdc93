"""Groups of mesh axes over which collectives run: their levels by name, and the programs of these collectives."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    `programs` has the collectives of this plan for which some payload takes more than one step.
    """

    axes: tuple[int, ...]
    name: str
    levels: Mapping[str, int]
    programs: Mapping[str, CheapestPrograms]

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
    choice = plan.choices[index]
    letters = zip(choice.output, plan.placement.sizes, strict=True)
    return tuple(a for a, (letter, size) in enumerate(letters) if letter == B and size > 1 and a not in choice.alone)


def joint_name(plan: Plan, axes: Sequence[int]) -> str:
    """The name of some axes together: the ranks that differ on them only; none of no axes."""
    return "_".join(plan.axes[a] for a in axes)


@once_per_plan
def axis_groups(plan: Plan) -> tuple[Group, ...]:
    """All axes of a stage's mesh, then the joint ones over which gradients are summed, each with its programs."""
    first = plan.parts[0]
    kinds = {action.value: kind for kind, action in ACTIONS.items()}
    used: dict[tuple[int, ...], set[str]] = {(a,): set() for a in range(len(first.axes))}
    sizes = first.placement.sizes
    for part in plan.parts:
        for index in part.graph.of("parameter"):
            axes = summed_over(part, index)
            if axes and part.graph.nodes[index].gradient:
                used.setdefault(axes, set())
        for item in stage_price(part).items:
            axes = tuple(a for a in item.axes if sizes[a] > 1)
            if item.kind in kinds and axes:
                used.setdefault(axes, set()).add(kinds[item.kind])
    return tuple(_group(first, axes, found) for axes, found in used.items())


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
