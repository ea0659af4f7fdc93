"""Programs of reductions as the emitted program writes them: levels by name, steps, and the bytes they are for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....formulation.placement.placement import Placement
from ....formulation.reduction.program import Program, Reduction, Step
from ....formulation.reduction.schedule import Schedule, schedule
from ....formulation.reduction.statuses import KINDS, transposes
from ....model.graph.layout import Action, B
from ...pricing.plan_price import priced
from ..common.text import WIDTH, shape_text, wrap

if TYPE_CHECKING:
    from ...plan.plan import Plan

ACTIONS = dict(zip(KINDS, (Action.SUM, Action.SCATTER_SUM, Action.GATHER), strict=True))
"""What the program's functions do, by the names of their collectives."""


@dataclass(frozen=True, slots=True)
class Group:
    """One axis, or several that sum gradients together: its name, its levels (name to size), and what runs there.

    `schedules` has the collectives of this plan for which some payload takes more than one step.
    """

    axes: tuple[int, ...]
    name: str
    levels: Mapping[str, int]
    schedules: Mapping[str, Schedule]

    def level(self, step: Step) -> str:
        """The name of the levels of a step: `gpu`, `node+gpu`, or `node of first gpu` where the other gpus rest."""
        names = list(self.levels)
        over = "+".join(names[step.first : step.last + 1])
        return over + (f" of first {'+'.join(names[level] for level in step.zero)}" if step.zero else "")

    def steps(self, program: Program) -> list[tuple[str, str]]:
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


def groups(*plans: Plan) -> tuple[Group, ...]:
    """All axes of a plan, then the joint ones over which gradients are summed, each with its programs.

    Several plans are the stages of a pipeline: their mesh is the same, and what the axes are called.
    """
    kinds = {action.value: kind for kind, action in ACTIONS.items()}
    used: dict[tuple[int, ...], set[str]] = {(a,): set() for a in range(len(plans[0].axes))}
    sizes = plans[0].placement.sizes
    for plan in plans:
        for index in plan.graph.of("parameter"):
            axes = summed_over(plan, index)
            if axes and plan.graph.nodes[index].gradient:
                used.setdefault(axes, set())
        for item in priced(plan).items:
            axes = tuple(a for a in item.axes if sizes[a] > 1)
            if item.kind in kinds and axes:
                used.setdefault(axes, set()).add(kinds[item.kind])
    return tuple(_group(plans[0], axes, found) for axes, found in used.items())


def _group(plan: Plan, axes: tuple[int, ...], used: set[str]) -> Group:
    reduction = Reduction(plan.placement, axes)
    names = _level_names([level.name for level in plan.machine.levels])
    levels = {names[i]: m for i, m in zip(reduction.machine_levels, reduction.sizes, strict=True)}
    found = {kind: schedule(plan.machine, plan.placement, axes, kind) for kind in KINDS if kind in used}
    return Group(axes, joint_name(plan, axes), levels, {k: s for k, s in found.items() if not s.is_flat})


def _level_names(names: Sequence[str]) -> list[str]:
    """Names of levels as they can stand in a program, each once."""
    plain = [re.sub(r"[^\w-]+", "_", name) for name in names]
    return plain if len(set(plain)) == len(plain) else [f"level{i}" for i in range(len(plain))]


# In words


def steps_text(group: Group, program: Program) -> str:
    """The steps of a program: `reduce over gpus, all-reduce over nodes (first gpu), broadcast over gpus`."""
    names = list(group.levels)

    def text(step: Step) -> str:
        over = " x ".join(f"{names[level]}s" for level in step.levels)
        first = f" (first {', '.join(names[level] for level in step.zero)})" if step.zero else ""
        return f"{step.collective.replace('_', '-')} over {over}{first}"

    return ", ".join(map(text, program))


# Text of the program


def table(found: Sequence[Group]) -> list[str]:
    """PROGRAMS: for every axis and collective the steps by the bytes from which on they are the fastest."""
    groups = [group for group in found if group.schedules]
    if not groups:
        return []
    lines = ["", "# Collectives over several levels of the machine: from so many bytes on, which steps on which level."]
    lines.append("PROGRAMS = {")
    resting = [text for group in groups for step in all_steps([group]) if " of first " in (text := group.level(step))]
    if resting:
        first = resting[0].partition(" of first ")[2].replace("+", " and ")
        lines.append(f'    # "{resting[0]}": only ranks that are first on {first} take part, the others rest.')
    for group in groups:
        lines.append(f'    "{group.name}": {{')
        for kind, known in group.schedules.items():
            lines.append(f'        "{kind}": [')
            for start, program in zip(known.starts, known.programs, strict=True):
                steps = [f'("{collective}", "{level}")' for collective, level in group.steps(program)]
                line = f"            ({start:_}, [{', '.join(steps)}]),"
                long = [
                    f"            ({start:_}, [",
                    *(f"                {step}," for step in steps),
                    "            ]),",
                ]
                lines += [line] if len(line) <= WIDTH else long
            lines.append("        ],")
        lines.append("    },")
    return [*lines, "}  # fmt: skip"]


def all_steps(found: Sequence[Group]) -> list[Step]:
    """The steps of all programs."""
    programs = (p for group in found for known in group.schedules.values() for p in known.programs)
    return [step for program in programs for step in program]


def disordered(found: Sequence[Group]) -> bool:
    """Whether some all-reduce leaves its chunks in another order than it found them."""
    return any(
        transposes(program, tuple(group.levels.values()), "all_reduce") != (None, None)
        for group in found
        for kind, known in group.schedules.items()
        if kind == "all_reduce"
        for program in known.programs
    )


def mesh_lines(placement: Placement, names: Sequence[str], found: Sequence[Group]) -> list[str]:
    """The array of all ranks with one dimension per axis, and from it every axis; joint axes from all ranks.

    The lines are as wide as fits behind an indentation of 8.
    """
    matrix, levels = placement.matrix, len(placement.hierarchy)
    digits = [(level, axis) for level in range(levels) for axis in range(len(matrix)) if matrix[axis][level] > 1]
    factors = shape_text(matrix[axis][level] for level, axis in digits)
    order = sorted(range(len(digits)), key=lambda i: (digits[i][1], digits[i][0]))
    shape = ", ".join(a.upper() for a in names)
    numbers = f"numbers = torch.arange(RANKS).reshape({shape})"
    if order != list(range(len(digits))):
        numbers = f"numbers = torch.arange(RANKS).reshape{factors}.permute{shape_text(order)}.reshape({shape})"
    lines = [numbers]
    for group in found:
        if len(group.axes) == 1:
            lines.append(f"self.{group.name} = make_axis(numbers, {group.axes[0]}{_levels(group)})")
            continue
        others = [i for i, (_, axis) in enumerate(digits) if axis not in group.axes]
        mine = [i for i, (_, axis) in enumerate(digits) if axis in group.axes]
        ranks = "torch.arange(RANKS)"
        if others:
            order = [*others, *mine]
            moved = "" if order == sorted(order) else f".permute{shape_text(order)}"
            ranks += f".reshape{factors}{moved}.flatten({len(others)})"
        lines.append(f"self.{group.name} = make_axis({ranks}, -1{_levels(group)})")
    return [part[8:] for line in lines for part in wrap(line, 8)]


def _levels(group: Group) -> str:
    if not group.schedules:
        return ""
    sizes = ", ".join(f'"{name}": {size}' for name, size in group.levels.items())
    return f', {{{sizes}}}, PROGRAMS["{group.name}"]'
