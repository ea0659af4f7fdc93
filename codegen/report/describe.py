"""A plan in words: the program's docstring, and what `print(plan)` shows."""

from collections.abc import Iterable
from math import prod
from textwrap import wrap
from typing import TypeAlias

from ...formulation.pipeline.shares import blocks
from ...formulation.strategies.tensor_classes import classes
from ...model.graph.layout import is_split
from ..emission.common.text import WIDTH
from ..plan.plan import Plan
from ..plan.table_spread import places, spread_axis
from ..pricing.axis_groups import axis_groups, steps_text
from .proof_text import on_each_machine, proof_text, worst_of
from .unsplit_work import opaque_sentence
from .words import bytes_text, contents, equal_layers, recompute_text

Row: TypeAlias = tuple[str, str]
"""What a line is about, and the line."""


def describe(plan: Plan) -> str:
    """The docstring's words, then for every stage a line for each tensor that is planned; equal layers share one."""
    words = docstring(plan).strip('"').replace("Training program for", "Plan of").partition("\n\nRun:")[0]
    lines = [words]
    for number, part in enumerate(plan.everything):
        where = f"Stage {number}" if number < len(plan.parts) else "All devices"
        title = [f"{where}: {contents(part.graph)}"] if plan.size > 1 else []
        lines += ["", *title, *layouts(part)]
    return "\n".join(lines)


def docstring(plan: Plan) -> str:
    """The docstring of the emitted program."""
    rows = [*_trained(plan), ("mesh", mesh_sentence(plan))]
    if plan.size > 1:
        rows.append(("pipeline", pipeline_sentence(plan)))
    rows += _predicted(plan)
    if plan.size > 1:
        rows += [
            (f"stage {number}", f"{own}{contents(part.graph)}") for number, (own, part) in enumerate(_placed(plan))
        ]
    if plan.shared is not None:
        rows.append(("all devices", contents(plan.shared.graph)))
    if programs := _programs_sentence(plan):
        rows.append(("programs", programs))
    if plan.report.get("bundles") and plan.size == 1:
        rows.append(("branches", _branches(plan)))
    if plan.recompute:
        rows.append(("recompute", _recompute(plan)))
    if opaque := opaque_sentence(plan):
        rows.append(("opaque", opaque))
    return _headed(plan, [*rows, ("batch", _batch_sentence(plan)), ("weights", _weights_sentence(plan))])


def _placed(plan: Plan) -> Iterable[tuple[str, Plan]]:
    """The stages, each with the words for its devices and mesh where stages have unequally many."""
    if not plan.shares:
        return (("", part) for part in plan.stages)
    found = list[tuple[str, Plan]]()
    for own, part in zip(blocks(plan.shares), plan.stages, strict=True):
        mesh = " x ".join(f"{name}={n}" for name, n in zip(part.axes, part.placement.sizes, strict=True))
        words = f"rank {own.start}" if len(own) == 1 else f"ranks {own.start} to {own.stop - 1}, {mesh}"
        found.append((f"{words}: ", part))
    return found


def _trained(plan: Plan) -> list[Row]:
    """What differs from training a module by its own loss."""
    rows = []
    if plan.graph.of("projection"):
        rows.append(
            ("loss", "a random projection of the outputs, to check a module without loss; nothing useful is learnt")
        )
    if plan.model.get("mode") in _MODES:
        rows.append(("mode", _MODES[plan.model["mode"]]))
    return rows


_MODES = {
    "eval": "evaluation: no dropout, and batch norms that stand still; call train() on the module before planning",
    "mixed": "parts of the module are in evaluation: they have no dropout, and batch norms that stand still",
}


def _headed(plan: Plan, rows: Iterable[Row]) -> str:
    """The program's docstring with these lines."""
    machine = plan.machine
    where = " x ".join(f"{level.size} {level.name}{'s' if level.size > 1 else ''}" for level in machine.levels)
    name = plan.model.get("reference") or "a model"
    lines = [f"Training program for {name}, planned for {worst_of(plan.report) or machine.name}: {where}.", ""]
    for label, text in rows:
        start = f"    {label:<12}"
        lines += wrap(
            text,
            WIDTH - 1,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
            break_on_hyphens=False,
        )
    run = f"torchrun --nproc-per-node {plan.placement.hierarchy[-1]} program.py"
    nodes = plan.ranks // plan.placement.hierarchy[-1]
    if nodes > 1:
        run = run.replace("torchrun", f"torchrun --nnodes {nodes}")
    text = _plain("\n".join([*lines, "", f"Run: {run}"]))
    return f'"""{text}\n"""'


def _predicted(plan: Plan) -> list[Row]:
    """Time and memory of a step, as far as the report has them."""
    report, rows = plan.report, list[Row]()
    if report.get("objective_ns") is not None:
        rows.append(("step", _step(plan)))
    if report.get("machines"):
        rows.append(("machines", on_each_machine(report, _time)))
    if report.get("memory_bytes") is not None:
        where = "the fullest rank" if plan.size > 1 else "every rank"
        capacity = report.get("capacity_bytes", plan.machine.device.capacity_bytes)
        rows.append(("memory", f"{bytes_text(report['memory_bytes'])} of {bytes_text(capacity)} on {where}"))
    return rows


def _plain(text: str) -> str:
    """Text that can stand in a docstring, whatever names are in it."""
    return text.replace("\\", "/").replace('"', "'")


def mesh_sentence(plan: Plan) -> str:
    """The axes with their sizes and places: `data=2 (across node) x tensor=2 (inside)`."""
    parts = []
    for name, row in zip(plan.axes, plan.placement.matrix, strict=True):
        places = [
            f"{factor} over {level.name}s" for factor, level in zip(row, plan.machine.levels, strict=True) if factor > 1
        ]
        parts.append(f"{name}={prod(row)} ({', '.join(places) or 'one rank'})")
    return _plain(" x ".join(parts))


def _step(plan: Plan) -> str:
    report = plan.report
    text = f"predicted {_time(report['objective_ns'])}"
    if report.get("bound_ns") is None:
        return text
    return f"{text}, {proof_text(report, report['objective_ns'], _time(report['bound_ns']))}"


def _branches(plan: Plan) -> str:
    """How many groups of branches run in parallel, and what the best plan without any takes."""
    text, without = f"{len(plan.report['bundles'])} times side by side", plan.report.get("without_bundles") or {}
    if without.get("objective_ns") is None:
        return text
    least = "" if without.get("status") == "optimal" else " found"
    return f"{text}; the best plan{least} without takes {_time(without['objective_ns'])}"


def _recompute(plan: Plan) -> str:
    """The recomputed segments, and without a pipeline their share of the step."""
    if plan.size > 1:
        return recompute_text(plan.recompute)
    time, step = plan.report.get("recompute_ns"), plan.report.get("objective_ns")
    return recompute_text(plan.recompute) + (f"; {100 * time / step:.1f}% of the step" if time and step else "")


def _programs_sentence(plan: Plan) -> str:
    """How collectives over several levels run: of the programs of several steps, the one for the most bytes."""
    parts: dict[str, list[str]] = {}
    for group in () if plan.shares else axis_groups(plan):  # programs by operators have collectives of their own
        for kind, known in group.programs.items():
            last = max(i for i, program in enumerate(known.programs) if len(program) > 1)
            bounds = [f"from {bytes_text(known.starts[last])}"] if last else []
            bounds += [f"to {bytes_text(start)}" for start in known.starts[last + 1 : last + 2]]
            sizes = f" ({' '.join(bounds)})" if bounds else ""
            words = f"{kind.replace('_', '-')}: {steps_text(group, known.programs[last])}{sizes}"
            parts.setdefault(words, []).append(group.name)
    return "; ".join(f"{', '.join(names)} {words}" for words, names in parts.items())


def pipeline_sentence(plan: Plan) -> str:
    """The number of stages, their schedule and its micro-batches."""
    chunks = f", {plan.chunks} on every rank" if plan.chunks > 1 else ""
    order = plan.report.get("order")
    proved = f" ({order['status']})" if order else ""
    if plan.shares:
        chunks = f" of {', '.join(map(str, plan.shares))} ranks"
    micro = f"{plan.micro_batches} micro-batch{'es' * (plan.micro_batches != 1)}"
    return f"{len(plan.stages)} stages{chunks}, {plan.schedule.label}{proved} over {micro}"


def _batch_sentence(plan: Plan) -> str:
    """The samples of a step, micro-batches, dtype and optimizer."""
    text = f"{plan.batch} samples"
    if plan.micro_batches > 1:
        text += f" in {plan.micro_batches} micro-batches"
    return f"{text}, {plan.dtype}, {plan.optimizer}"


def _weights_sentence(plan: Plan) -> str:
    """The shares of all weights that each axis splits or spreads, and that are stored in special ways."""
    trained = [(part, i, part.choices[i]) for part in plan.everything for i in part.graph.of("parameter")]
    numel = [part.graph.nodes[i].numel for part, i, _ in trained]
    whole, parts = sum(numel) or 1, []

    def share(*holds: bool) -> float:
        return 100 * sum(n for n, counts in zip(numel, holds, strict=True) if counts) / whole

    for name in dict.fromkeys(axis for part in plan.everything for axis in part.axes):
        axes = [part.axes.index(name) if name in part.axes else None for part, _, _ in trained]
        on_axis = list(zip(axes, trained, strict=True))
        split = share(*(axis is not None and is_split(choice.output[axis]) for axis, (_, _, choice) in on_axis))
        spread = share(*(axis is not None and spread_axis(part, i) == axis for axis, (part, i, _) in on_axis))
        if spread:
            parts.append(f"{spread:.0f}% spread over {name}, table by table")
        if split:
            parts.append(f"{split:.0f}% split over {name}")
    for flag, words in _FLAGS.items():
        if counted := share(*(getattr(choice, flag) for _, _, choice in trained)):
            parts.append(words.format(f"{counted:.0f}%"))
    return f"{whole:,} in all; " + ("; ".join(parts) or "whole on every rank")


_FLAGS = {
    "sharded_states": "optimizer states of {} split over the copies (ZeRO-1)",
    "sharded_gradients": "accumulated gradients of {} as well (ZeRO-2)",
    "offloaded": "states of {} in the host's memory",
    "regather": "{} gathered again in backward",
}


def layouts(plan: Plan) -> list[str]:
    """A line for every tensor that is planned; equal layers share one.

    Constants and views follow from those and are left out.
    """
    graph = plan.graph
    found = classes(graph)

    def cells(index: int) -> tuple[str, ...] | None:
        if found.constant[index] or found.base[index] != index:
            return None
        node, choice = graph.nodes[index], plan.choices[index]
        inputs = ", ".join(plan.layout_text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True))
        return (f"{f'({inputs}) -> ' if inputs else ''}{plan.layout_text(index, choice.output)}",)

    rows = equal_layers(plan, range(len(graph.nodes)), cells)
    for i in graph.of("parameter"):
        axis = spread_axis(plan, i)
        rows += tuple((name, f"{plan.axes[axis or 0]}:{place}") for name, place in places(plan, i).items())
    width = max((len(name) for name, _ in rows), default=0)
    return [f"    {name:<{width}}  {layouts}" for name, layouts in rows]


def _time(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= 0.9995 * size:  # which has three digits in no smaller unit
            return f"{ns / size:,.0f} {unit}" if ns >= 999.5 * size else f"{ns / size:.3g} {unit}"
    return f"{ns} ns"
