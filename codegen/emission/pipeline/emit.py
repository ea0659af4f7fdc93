"""A pipelined plan as one readable program: a class for every kind of stage, of which a rank builds its own."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ....formulation.pipeline.orders import slot_lines
from ....model.graph.pcg import PCG
from ....model.machine.precision import precision
from ...plan.checks import tied
from ...plan.plan import Plan
from ...pricing.axis_groups import Group, axis_groups
from ...report.describe import docstring
from ...report.words import contents
from ..common.conversions import Used
from ..common.data import reading_axes
from ..common.features import program_text
from ..common.text import wrap
from ..spmd.block_classes import BlockClasses
from ..spmd.emission import Emission
from ..spmd.emit import constants, used_by
from ..spmd.features import FEATURES
from ..spmd.mesh import mesh_lines
from ..spmd.micro_batches import divided
from .modules import DOC, LAYERS, TITLE, StageModules, agree, entries


def emit(plan: Plan) -> str:
    """The program, deterministic. PartitaError: the plan cannot be emitted."""
    used, axes = used_by(plan), plan.axes
    groups = _tied_groups(plan)
    modules = _modules(plan, used, {name: axis for name, (axis, _) in groups.items()})
    reading = reading_axes(plan.parts)
    texts = [module.stage(reading) for module in modules]
    classes, table = _stages(plan, modules, texts)
    whole = [Group((0,), axes[0], {}, {}), *(_moved(group) for group in axis_groups(plan))]
    emission = Emission(
        plan,
        plan.parts,
        modules,
        used,
        classes="\n\n\n".join([*modules[0].classes.texts(), *classes]),
        reading=[plan.parts[0].axes[i] for i in reading],
        mesh_lines=[
            *mesh_lines(plan.placement, axes, whole),
            *_tied_lines(groups.values()),
            *(["self.channels = make_channels(numbers, self.device)"] if plan.overlap else []),
        ],
        pipeline={
            "chunks": plan.chunks,
            "split": plan.schedule.splits_backward,
            "stale": plan.schedule.double_buffered,
            **_order(plan),
            "stages": wrap(f"STAGES = [{', '.join(table)}]", 0),
            "tied": bool(groups),
            "shared": _is_shared(plan),
            "copies": _has_copies(plan),
        },
    )
    return program_text(emission, docstring(plan), constants(plan.parts[-1], axes, plan.placement.sizes), FEATURES)


def _modules(plan: Plan, used: Used, names: Mapping[str, str]) -> list[StageModules]:
    """Writers of the stages' classes, which share those of blocks and the description of weights."""
    found = divided([part.graph for part in plan.parts], plan.micro_batches)
    classes = BlockClasses("Module" if precision(plan.dtype).narrow else "nn.Module")
    classes.taken |= {_title([number]) for number in range(len(plan.parts))}
    modules: list[StageModules] = []
    for number, (part, halves) in enumerate(zip(plan.parts, found, strict=True)):
        own = {name: names[name] for name, stages in tied(plan).items() if name in names and number in stages}
        modules.append(StageModules(part, used, halves, classes, own))
    agree(modules, plan)
    return modules


# Stages


def _stages(plan: Plan, modules: Sequence[StageModules], texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The classes of the stages, each once, and the entries of the program's table of stages.

    Stages that differ in their layers alone share one class, with the layers as an argument.
    """
    alike: dict[str, list[int]] = {}
    for number, (text, module) in enumerate(zip(texts, modules, strict=True)):
        alike.setdefault(text if len(module.ranges) == 1 else _filled(text, module.ranges), []).append(number)
    classes, table = [], [""] * len(texts)
    for text, numbers in alike.items():
        title = _title(numbers)
        parametric = entries(0) in text and len(numbers) > 1
        if parametric:
            text = text.replace(entries(0), "layers").replace(LAYERS, ", layers")
        doc = f"{'; '.join(contents(plan.stages[number].graph) for number in numbers)}."
        text = _filled(text, modules[numbers[0]].ranges)
        classes.append(text.replace(TITLE, title).replace(DOC, doc))
        for number in numbers:
            table[number] = f"partial({title}, layers={modules[number].ranges[0]})" if parametric else title
    return classes, table


def _filled(text: str, ranges: Sequence[str]) -> str:
    """A class with its layers filled in."""
    for number, found in enumerate(ranges):
        text = text.replace(entries(number), found)
    return text.replace(LAYERS, "")


def _title(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"Stage{numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"Stages{numbers[0]}To{numbers[-1]}"
    return f"Stages{'And'.join(map(str, numbers))}"


# The order of work


def _order(plan: Plan) -> dict[str, object]:
    """The order of slots in the program: as the source of a function, or as a table."""
    schedule = plan.schedule
    if not schedule.copied:
        lines = (textwrap.wrap(line, 110, drop_whitespace=False) for line in slot_lines(plan.orders, plan.chunks))
        return {"order_source": "", "slot_table": list(lines), "order_arguments": "d"}
    source = textwrap.dedent(inspect.getsource(schedule.order))
    more = ["len(STAGES) // PIPELINE"] * schedule.virtual_stages + ["steps"] * schedule.double_buffered
    return {
        "order_source": re.sub(r"def \w+", "def order", source.rstrip(), count=1),
        "order_arguments": ", ".join(["d", "PIPELINE", "MICRO_BATCHES", *more]),
    }


# The mesh


def _moved(group: Group) -> Group:
    """A group of axes of a stage's mesh, as axes of the whole mesh."""
    return replace(group, axes=tuple(axis + 1 for axis in group.axes))


def _tied_groups(plan: Plan) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Weight shared by several coordinates -> the name of the group of ranks that have it, and those coordinates."""
    found = {}
    for name, stages in tied(plan).items():
        places = tuple(sorted({number % plan.size for number in stages}))
        if len(places) > 1:
            found[name] = "_".join(("pipeline", *map(str, places))), places
    return found


def _is_shared(plan: Plan) -> bool:
    """True if some device has a weight in several of its stages."""
    return any(len({number % plan.size for number in stages}) < len(stages) for stages in tied(plan).values())


def _has_copies(plan: Plan) -> bool:
    """True if some device has a buffer in several of its stages."""
    names = [(number % plan.size, name) for number, part in enumerate(plan.parts) for name in _buffers(part.graph)]
    return len(set(names)) < len(names)


def _buffers(graph: PCG) -> list[str]:
    return [graph.nodes[i].name for i in graph.of("buffer")]


def _tied_lines(groups: Iterable[tuple[str, tuple[int, ...]]]) -> list[str]:
    return [f"self.{name} = make_axis(groups, numbers[{list(places)}], 0)" for name, places in dict.fromkeys(groups)]
