"""Tables of costs: of a stage by module, collective and kind of memory; of a pipeline by stage and transfer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...formulation.strategies.tensor_classes import classes
from ...model.graph.layout import COLLECTIVES
from ..plan.plan import Plan
from ..pricing.axis_groups import axis_groups, steps_text
from ..pricing.plan_price import PlanPrice
from ..pricing.price_items import MEMORY, PARTS, Item, Overlap, PriceSlot, StagePrice
from .tables import Table, place
from .words import bytes_text, contents, label, module_of, pattern, percent

LARGEST = 16  # rows of the table of collectives; the others are summed


def time_unit(price: StagePrice | PlanPrice) -> tuple[str, int]:
    """The unit of the times in a report, and its ns."""
    return ("ms", 10**6) if price.objective_ns >= 10**7 else ("us", 10**3)


def by_module(plan: Plan, price: StagePrice) -> dict[str, tuple[dict[str, int], int]]:
    """For every module, equal layers together: ns of a step by part, and bytes."""
    times: dict[str, dict[str, int]] = {}
    kept: dict[str, int] = {}
    layers: dict[str, list[int | None]] = {}

    def module(node: int) -> str:
        name, layer = module_of(plan.graph, node)
        layers.setdefault(name, []).append(layer)
        times.setdefault(name, dict.fromkeys(PARTS, 0))
        return name

    for item in price.items:
        times[module(item.at if item.part == "conversions" else item.node)][item.part] += item.total_ns
    for held in price.kept:
        if held.node >= 0:
            name = module(held.node)
            kept[name] = kept.get(name, 0) + held.bytes
    return {label(name, found): (times[name], kept.get(name, 0)) for name, found in layers.items()}


def modules_table(plan: Plan, price: StagePrice) -> Table:
    """Time and memory by module of the model."""
    unit, size = time_unit(price)
    total, modules = sum(price.ns.values()), by_module(plan, price)
    hidden = f", of which {price.hidden_ns / size:,.2f} {unit} hide behind kernels" if price.hidden_ns else ""
    if price.host_bound_ns:
        hidden += f"; besides, devices wait {price.host_bound_ns / size:,.2f} {unit} for the host"

    def row(name: str, ns: dict[str, int], kept: int) -> tuple[str, ...]:
        spent = sum(ns.values())
        cells = (f"{x / size:,.2f}" for x in (*(ns[part] for part in PARTS), spent))
        return name, *cells, percent(spent, total), bytes_text(kept)

    rows = [row(name, ns, kept) for name, (ns, kept) in modules.items()]
    rows.append(row("total", price.ns, sum(kept for _, kept in modules.values())))
    shares = ", ".join(f"{part} {percent(price.ns[part], total)}" for part in PARTS)
    return Table(
        "Time and memory by module",
        f"{unit} of a step, forward and backward of all micro-batches{hidden}: {shares}. Conversions are collectives "
        "between layouts of activations, weights gathers and casts of weights, gradients their reduction and the "
        "update.",
        ("module", *PARTS, unit, "share", "memory"),
        tuple(rows),
    )


def overlap_table(price: StagePrice) -> Table:
    """Kernels, weight traffic and, where it is modelled, the host, in the layers that have them at the same time."""
    unit, size = time_unit(price)
    found: dict[Overlap, list[str]] = {}
    for overlap in price.overlaps:
        found.setdefault(replace(overlap, layer=""), []).append(overlap.layer)
    rows = []
    for overlap, (first, *others) in found.items():
        name = f"{first} and {len(others)} more" if others else first
        exposed = overlap.traffic_ns - overlap.hidden_ns + overlap.host_bound_ns
        times = (overlap.kernels_ns, overlap.traffic_ns, *((overlap.host_ns,) if price.host_ns else ()), exposed)
        cells = (f"{ns * (1 + len(others)) / size:,.2f}" for ns in times)
        rows.append((name, overlap.phase, *cells, *((overlap.longest,) if price.host_ns else ())))
    note = (
        f"{unit} of a step: weights are gathered and gradients reduced beside the kernels of a layer, in all but the "
        "first; what is exposed makes the layer longer. The last micro-batch's backward has a row of its own."
    )
    host, longest = (("host",), ("longest",)) if price.host_ns else ((), ())
    if price.host_ns:
        note += f" The host needs {price.host_ns / 1e3:,.1f} us for each call of the framework."
    columns = ("layer", "phase", "kernels", "weight traffic", *host, "exposed", *longest)
    return Table("Overlap by layer", note, columns, tuple(rows))


_WHY = {
    ("conversions", "forward", "all-gather"): "makes the input whole",
    ("conversions", "forward", "reduce-scatter"): "adds partial results, keeps a part",
    ("conversions", "forward", "all-reduce"): "adds partial results",
    ("conversions", "forward", "all-to-all"): "changes what is split",
    ("conversions", "backward", "all-gather"): "makes the gradient whole",
    ("conversions", "backward", "reduce-scatter"): "adds partial gradients, keeps a part",
    ("conversions", "backward", "all-reduce"): "adds partial gradients",
    ("conversions", "backward", "all-to-all"): "changes what is split, backward",
    ("weights", "forward", "all-gather"): "gathers weights for use",
    ("weights", "forward", "all-to-all"): "moves weights for use",
    ("weights", "backward", "all-gather"): "makes weights' gradients whole",
    ("weights", "backward", "reduce-scatter"): "adds weights' gradients, keeps a part",
    ("weights", "backward", "all-reduce"): "adds weights' gradients",
    ("weights", "backward", "all-to-all"): "moves weights' gradients",
    ("gradients", "update", "all-reduce"): "adds gradients of copies",
    ("gradients", "update", "reduce-scatter"): "adds gradients of copies (ZeRO-1)",
    ("gradients", "update", "all-gather"): "spreads updated weights (ZeRO-1)",
    ("gradients", "backward", "reduce-scatter"): "adds gradients of copies, keeps a share (ZeRO-2)",
    ("conversions", "forward", "send"): "to the next stage",
    ("conversions", "backward", "send"): "its gradient comes back",
    ("conversions", "forward", "receive"): "from the stage before",
    ("conversions", "forward", "to_pass"): "to the next pass",
    ("conversions", "forward", "from_pass"): "from the pass before",
    ("conversions", "backward", "receive"): "its gradient goes back",
    ("gradients", "update", "send"): "adds gradients of other stages",
}


def why(item: Item) -> str:
    """The purpose of a collective."""
    if item.slot is PriceSlot.REGATHER:
        return "gathers weights again in backward"
    if item.phase == "recompute":
        return f"{_WHY.get((item.part, 'forward', item.kind), item.part)}, once more"
    return _WHY.get((item.part, item.phase, item.kind), item.part)


def collectives_table(plan: Plan, price: StagePrice) -> Table:
    """Collectives by tensor, the most expensive first; those of weights by module."""
    unit, size = time_unit(price)
    graph = plan.graph
    names = {*(action.value for action in COLLECTIVES), "receive"}
    groups: dict[tuple[str, ...], list[tuple[int | None, Item]]] = {}
    for item in price.items:
        if item.kind in names and item.axes and item.ns:
            node = graph.nodes[item.node]
            name, layer = pattern(node.name) if item.part == "conversions" else module_of(graph, item.node)
            axes = "+".join(plan.axes[a] for a in item.axes)
            over = place(plan, item.axes) if item.axes else "another stage"
            groups.setdefault((name, item.kind, why(item), axes, over), []).append((layer, item))
    ordered = sorted(groups.items(), key=lambda pair: (-_spent(pair[1]), pair[0]))
    rows = []
    for (name, kind, purpose, axes, where), found in ordered[:LARGEST]:
        sizes = sorted({item.bytes for _, item in found})
        each = bytes_text(sizes[0]) if len(sizes) == 1 else f"to {bytes_text(sizes[-1])}"
        count = sum(item.count for _, item in found)
        ns = _spent(found)
        rows.append(
            (
                label(name, (layer for layer, _ in found)), kind, purpose, axes, where,
                each, f"{count:,}", f"{ns / size:,.2f}", percent(ns, price.objective_ns),
            )
        )  # fmt: skip
    rest = sum(_spent(found) for _, found in ordered[LARGEST:])
    if rest:
        more = f"{len(ordered) - LARGEST} others"
        rows.append((more, "", "", "", "", "", "", f"{rest / size:,.2f}", percent(rest, price.objective_ns)))
    return Table(
        "Collectives",
        "Messages on the slowest path of a device, hidden or not.",
        ("tensor", "collective", "purpose", "axis", "over", "message", "times", unit, "share"),
        tuple(rows),
        words=5,
    )


def _spent(found: Sequence[tuple[int | None, Item]]) -> int:
    return sum(item.total_ns for _, item in found)


_KEPT = {
    "states": "weights, gradients, optimizer states",
    "activations": "kept for backward, {} micro-batch{}",
    "weights": "gathered or cast copies kept for backward",
    "recomputed": "of the segment that is being recomputed",
    "prefetched": "copies of weights that travel ahead, and of gradients",
    "reserve": "the largest weight and its gradient in use, messages",
}


def memory_table(plan: Plan, price: StagePrice) -> Table:
    capacity = plan.machine.device.capacity_bytes
    flight = ("one", "") if plan.in_flight == 1 else (f"{plan.in_flight}", "es in flight")
    parts = [
        (part, _KEPT[part].format(*flight), price.memory[part])
        for part in MEMORY
        if part not in ("recomputed", "prefetched") or price.memory[part]
    ]
    parts.append(("free", f"of {bytes_text(capacity)} that a plan may use", max(0, capacity - price.memory_bytes)))
    return Table(
        "Memory",
        "On the device that holds most.",
        ("kind", "what", "size", "share"),
        tuple((part, what, bytes_text(size), percent(size, capacity)) for part, what, size in parts),
        words=2,
    )


def programs_table(plan: Plan) -> Table:
    """The steps of every collective that takes several for some message."""
    rows, first = [], plan.parts[0]
    for group in axis_groups(plan):
        axes = "+".join(first.axes[a] for a in group.axes)
        for kind, known in group.programs.items():
            name, where = kind.replace("_", "-"), place(first, group.axes)
            for start, program in zip(known.starts, known.programs, strict=True):
                rows.append((name, axes, where, steps_text(group, program), bytes_text(start)))
    return Table(
        "Programs",
        "Collectives over several levels of the machine: the cheapest steps for messages from so many bytes on.",
        ("collective", "axis", "over", "steps", "from"),
        tuple(rows),
        words=4,
    )


# Pipelines


def stages_table(plan: Plan, price: PlanPrice) -> Table:
    """The modules, work and memory of every stage."""
    unit, size = time_unit(price)
    rows = []
    for number, (part, stage) in enumerate(zip(plan.everything, price.everything, strict=True)):
        sizes = [bytes_text(stage.memory[kind]) for kind in MEMORY]
        devices = plan.schedule.devices_of(number, plan.size)
        own = str(number), f"pipeline {' and '.join(map(str, devices))}"
        rows.append(
            (
                *(own if number < len(plan.stages) else ("all", "all")), contents(part.graph),
                f"{stage.objective_ns / size:,.2f}", percent(stage.objective_ns, price.objective_ns),
                str(part.in_flight), *sizes, bytes_text(stage.memory_bytes),
            )
        )  # fmt: skip
    return Table(
        "Stages",
        f"{unit} of work in a step, and its share of the step; a stage idles for the rest"
        f"{', less what all devices compute together' if plan.shared is not None else ''}. Activations are those "
        "of all micro-batches in flight.",
        ("stage", "devices", "modules", unit, "share", "in flight", *MEMORY, "memory"),
        tuple(rows),
        words=3,
    )


def sent_table(plan: Plan, price: PlanPrice) -> Table:
    """The tensors that stages send to the next one, and their layouts."""
    unit, size = time_unit(price)
    rows = []
    for number, (part, stage) in enumerate(zip(plan.parts, price.stages, strict=True)):
        repeats = classes(part.graph).passes
        for index in (i for i in part.graph.of("receive") if part.graph.nodes[i].gradient):
            node = part.graph.nodes[index]
            item = next(i for i in stage.items if i.node == index and i.kind == "receive")
            under_way = item.ns * plan.micro_batches * (2 + len(repeats.get(index, ())))
            layout = part.layout_text(index, part.choices[index].output)
            ends = f"{number - 1} to {number}"
            rows.append((ends, node["peer"], layout, bytes_text(item.bytes), f"{under_way / size:,.2f}"))
    rows += _broadcast(plan, price)
    rows += _to_next_pass(plan, price)
    return Table(
        "Transfers between stages",
        f"Tensors that every device sends to its peer in the next stage; their gradients come back the same way. Of an "
        "interlaced pipeline also what, or whose gradient, comes from one stage to all; of 3F1B, where passes without "
        "gradient send the same, also what a pass hands to the next. Bytes "
        f"of a message, {unit} in which all of a step are under way.",
        ("stages", "tensor", "layout", "message", unit),
        tuple(rows),
        words=3,
    )


def _to_next_pass(plan: Plan, price: PlanPrice) -> Iterator[tuple[str, Any, str, str, str]]:
    """Rows of what a pass hands to the next one."""
    unit_ns = time_unit(price)[1]
    reads = {part.graph.nodes[i]["peer"]: n for n, part in enumerate(plan.parts) for i in part.graph.of("from_pass")}
    for number, (part, stage) in enumerate(zip(plan.parts, price.stages, strict=True)):
        for index in part.graph.of("to_pass"):
            name, layout = part.graph.nodes[index]["peer"], part.layout_text(index, part.choices[index].output)
            item = next(i for i in stage.items if i.node == index and i.kind == "to_pass")
            under_way = f"{item.ns * plan.micro_batches / unit_ns:,.2f}"
            yield f"{number} to {reads[name]}", name, layout, bytes_text(item.bytes), under_way


def _broadcast(plan: Plan, price: PlanPrice) -> Iterator[tuple[str, Any, str, str, str]]:
    """Rows of what one stage of an interlaced pipeline sends to all: the input of scores, gradients of look-ups."""
    if plan.shared is None or price.shared is None:
        return
    part, size = plan.everything[-1], time_unit(price)[1]
    for index in (*part.graph.of("receive"), *part.graph.of("send")):
        node, layout = part.graph.nodes[index], part.layout_text(index, part.choices[index].output)
        items = [item for item in price.shared.items if item.node == index and item.kind == node.op]
        spent = f"{sum(item.total_ns for item in items) / size:,.2f}"
        yield "one to all", node["peer"], layout, bytes_text(items[0].bytes), spent
