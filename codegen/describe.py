"""A plan in words: the program's docstring, and what `print(plan)` shows."""

from __future__ import annotations

from ..formulation.classes import classes
from ..model.layout import is_split
from .plan import Plan
from .program.axes import steps_text
from .program.text import WIDTH
from .report.words import equal_layers
from .spread import places, spread_axis


def docstring(plan: Plan) -> str:
    """What stands on top of the emitted program."""
    report, machine = plan.report, plan.machine
    where = " x ".join(f"{level.size} {level.name}{'s' if level.size > 1 else ''}" for level in machine.levels)
    name = plan.model.get("reference") or "a model"
    rows = [("mesh", mesh_sentence(plan))]
    if report.get("objective_ns") is not None:
        rows.append(("step", _step(plan)))
    if report.get("memory_bytes") is not None:
        capacity = report.get("capacity_bytes", machine.device.capacity_bytes)
        rows.append(("memory", f"{_bytes(report['memory_bytes'])} of {_bytes(capacity)} on every rank"))
    programs = _programs(plan)
    if programs:
        rows.append(("programs", programs))
    if report.get("bundles"):
        rows.append(("branches", _branches(plan)))
    rows.append(("batch", _batch(plan)))
    rows.append(("weights", _weights(plan)))
    lines = [f"Training program for {name}, planned for {machine.name}: {where}.", ""]
    for label, text in rows:
        words, start = text.split(" "), f"    {label:<12}"
        line = start
        for word in words:
            if len(line) + len(word) + 1 > WIDTH:
                lines.append(line.rstrip())
                line = " " * len(start)
            line += f"{word} "
        lines.append(line.rstrip())
    run = f"torchrun --nproc-per-node {plan.placement.hierarchy[-1]} program.py"
    nodes = plan.ranks // plan.placement.hierarchy[-1]
    if nodes > 1:
        run = run.replace("torchrun", f"torchrun --nnodes {nodes}")
    text = _plain("\n".join([*lines, "", f"Run: {run}"]))
    return f'"""{text}\n"""'


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
        size = 1
        for factor in row:
            size *= factor
        parts.append(f"{name}={size} ({', '.join(places) or 'one rank'})")
    return _plain(" x ".join(parts))


def _step(plan: Plan) -> str:
    report = plan.report
    text = f"predicted {_time(report['objective_ns'])}"
    if report.get("status") == "optimal":
        return f"{text}, proven optimal in the stated space (bound {_time(report['bound_ns'])})"
    if report.get("bound_ns") is not None:
        gap = 100 * (report.get("gap") or 0)
        return f"{text}, at most {gap:.1f}% above the optimum (bound {_time(report['bound_ns'])})"
    return text


def _branches(plan: Plan) -> str:
    """How many groups of branches run side by side, and what the best plan takes in which none do."""
    text, without = f"{len(plan.report['bundles'])} times side by side", plan.report.get("without_bundles") or {}
    if without.get("objective_ns") is None:
        return text
    least = "" if without.get("status") == "optimal" else " found"
    return f"{text}; the best plan{least} without takes {_time(without['objective_ns'])}"


def _programs(plan: Plan) -> str:
    """How collectives over several levels of the machine run: of programs of several steps that for most bytes."""
    parts: dict[str, list[str]] = {}
    for group in plan.groups:
        for kind, known in group.schedules.items():
            last = max(i for i, program in enumerate(known.programs) if len(program) > 1)
            bounds = [f"from {_bytes(known.starts[last])}"] if last else []
            bounds += [f"to {_bytes(start)}" for start in known.starts[last + 1 : last + 2]]
            sizes = f" ({' '.join(bounds)})" if bounds else ""
            words = f"{kind.replace('_', '-')}: {steps_text(group, known.programs[last])}{sizes}"
            parts.setdefault(words, []).append(group.name)
    return "; ".join(f"{', '.join(names)} {words}" for words, names in parts.items())


def _batch(plan: Plan) -> str:
    text = f"{plan.batch} samples"
    if plan.micro_batches > 1:
        text += f" in {plan.micro_batches} micro-batches"
    return f"{text}, {plan.dtype}, {plan.optimizer}"


def _weights(plan: Plan) -> str:
    """How the bytes of the weights are stored, axis by axis."""
    graph = plan.graph
    whole = sum(graph.nodes[i].numel for i in graph.of("parameter")) or 1
    parts = []
    for axis, name in enumerate(plan.axes):
        split = sum(graph.nodes[i].numel for i in graph.of("parameter") if is_split(plan.choices[i].output[axis]))
        spread = sum(graph.nodes[i].numel for i in graph.of("parameter") if spread_axis(plan, i) == axis)
        if spread:
            parts.append(f"{100 * spread / whole:.0f}% spread over {name}, table by table")
        if split:
            parts.append(f"{100 * split / whole:.0f}% split over {name}")
    states = sum(graph.nodes[i].numel for i in graph.of("parameter") if plan.choices[i].sharded_states)
    if states:
        parts.append(f"optimizer states of {100 * states / whole:.0f}% split over the copies (ZeRO-1)")
    regathered = sum(graph.nodes[i].numel for i in graph.of("parameter") if plan.choices[i].regather)
    if regathered:
        parts.append(f"{100 * regathered / whole:.0f}% gathered again in backward")
    return f"{whole:,} in all; " + ("; ".join(parts) or "whole on every rank")


def describe(plan: Plan) -> str:
    """The docstring's words, then a line for every tensor that is planned; equal layers share one.

    Constants, and tensors that show another one (views), follow from those and are left out.
    """
    graph = plan.graph
    found = classes(graph)

    def cells(index: int) -> tuple[str, ...] | None:
        if found.constant[index] or found.base[index] != index:
            return None
        node, choice = graph.nodes[index], plan.choices[index]
        asked = ", ".join(plan.layout_text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True))
        return (f"{f'({asked}) -> ' if asked else ''}{plan.layout_text(index, choice.output)}",)

    head = docstring(plan).strip('"').replace("Training program for", "Plan of")
    lines = [head.partition("\n\nRun:")[0], ""]
    rows = equal_layers(plan, range(len(graph.nodes)), cells)
    for i in graph.of("parameter"):
        axis = spread_axis(plan, i)
        rows += tuple((name, f"{plan.axes[axis or 0]}:{place}") for name, place in places(plan, i).items())
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([*lines, *(f"    {name:<{width}}  {layouts}" for name, layouts in rows)])


def _time(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"


def _bytes(count: int) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
