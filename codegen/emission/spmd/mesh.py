"""The mesh and the programs of its collectives as the emitted program writes them."""

from collections.abc import Sequence

from ....formulation.placement.placement import Placement
from ....formulation.reduction.program import Step
from ....formulation.reduction.statuses import transposes
from ...pricing.axis_groups import Group
from ..common.text import WIDTH, shape_text, wrap


def table(found: Sequence[Group]) -> list[str]:
    """PROGRAMS: for every axis and collective the fastest steps, by the least number of bytes."""
    groups = [group for group in found if group.programs]
    if not groups:
        return []
    lines = [
        "",
        "# Collectives over several levels of the machine: steps and their levels, by the least number of bytes.",
    ]
    lines.append("PROGRAMS = {")
    resting = [text for group in groups for step in all_steps([group]) if " of first " in (text := group.level(step))]
    if resting:
        first = resting[0].partition(" of first ")[2].replace("+", " and ")
        lines.append(f'    # "{resting[0]}": only ranks that are first on {first} take part.')
    for group in groups:
        lines.append(f'    "{group.name}": {{')
        for kind, known in group.programs.items():
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
    programs = (p for group in found for known in group.programs.values() for p in known.programs)
    return [step for program in programs for step in program]


def disordered(found: Sequence[Group]) -> bool:
    """True if some all-reduce leaves its chunks in another order than it found them."""
    return any(
        transposes(program, tuple(group.levels.values()), "all_reduce") != (None, None)
        for group in found
        for kind, known in group.programs.items()
        if kind == "all_reduce"
        for program in known.programs
    )


def mesh_lines(placement: Placement, names: Sequence[str], found: Sequence[Group]) -> list[str]:
    """The array of all ranks with one dimension per axis, and from it every axis; joint axes from all ranks.

    The lines fit behind an indentation of 8.
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
        if len(group.axes) == 1 and group.among is None:
            lines.append(f"self.{group.name} = make_axis(groups, numbers, {group.axes[0]}{_levels(group)})")
            continue
        others = [i for i, (_, axis) in enumerate(digits) if axis not in group.axes]
        mine = [i for i, (_, axis) in enumerate(digits) if axis in group.axes]
        ranks = "torch.arange(RANKS)"
        part = ""
        if group.among is not None:  # whose axis lies on one level
            axis, start, stop = group.among
            part = f".narrow({[a for _, a in digits].index(axis)}, {start}, {stop - start})"
            ranks += f".reshape{factors}{part}{'' if others else '.flatten()'}"
        if others:
            order = [*others, *mine]
            moved = "" if order == sorted(order) else f".permute{shape_text(order)}"
            ranks += f"{moved}.flatten({len(others)})" if part else f".reshape{factors}{moved}.flatten({len(others)})"
        lines.append(f"self.{group.name} = make_axis(groups, {ranks}, -1{_levels(group)})")
    return [part[8:] for line in lines for part in wrap(line, 8)]


def _levels(group: Group) -> str:
    if not group.programs:
        return ""
    sizes = ", ".join(f'"{name}": {size}' for name, size in group.levels.items())
    return f', {{{sizes}}}, PROGRAMS["{group.name}"]'
