"""The facts that every report of a plan shows: tables of what is split, what it costs, what moves, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...formulation.strategies.tensor_classes import classes
from ...model.errors import PartitaError
from ...model.graph.layout import COLLECTIVES, B, P, is_split
from ...model.graph.pcg import SOURCES
from ...model.operators.loss import LOSSES
from ...model.operators.operator import operator
from ..plan.plan import Plan
from ..plan.table_spread import spread_axis
from ..pricing.plan_price import priced
from ..pricing.price_items import MEMORY, PARTS, Item, Priced, Slot
from .describe import mesh_sentence
from .tables import Table, place, programs_table, spread_table
from .words import bytes_text, equal_layers, label, module_of, pattern, percent, recompute_text, shape_text, split_word

if TYPE_CHECKING:
    from ..plan.pipeline_plan import PipelinePlan
    from ..pricing.pipeline_price import PipelinePriced

LARGEST = 16  # rows of the table of collectives; the others are summed


@dataclass(frozen=True)
class Facts:
    """A plan's report: `summary` has (label, text) pairs, `priced` the items from which everything is summed."""

    plan: Plan
    priced: Priced
    title: str
    summary: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    optimum: tuple[str, ...]


def facts(plan: Plan, cost: Priced | None = None) -> Facts:
    """Everything there is to say about a plan; of a stage with what it costs. PartitaError: its report is malformed."""
    cost = cost or priced(plan)
    name = plan.model.get("reference") or "a model"
    title = f"{name} on {plan.machine.name}, {plan.ranks} x {plan.machine.device.name}"
    tables = (axes_table(plan), operators_table(plan), weights_table(plan, cost), modules_table(plan, cost))
    others = collectives_table(plan, cost), programs_table(plan), spread_table(plan)
    moves = tuple(table for table in others if table.rows)
    return Facts(
        plan,
        cost,
        title,
        summary(plan, cost),
        (*tables, *moves, memory_table(plan, cost)),
        optimum(plan, cost),
    )


def time_unit(cost: Priced | PipelinePriced) -> tuple[str, int]:
    """The unit in which a plan's times are shown, and its ns."""
    return ("ms", 10**6) if cost.objective_ns >= 10**7 else ("us", 10**3)


def number(plan: Plan | PipelinePlan, *keys: str) -> float | None:
    """A number of the plan's report; None if it is not there."""
    value: Any = plan.report
    for key in keys:
        if not isinstance(value, dict):
            raise PartitaError(f"the plan's report: {'.'.join(keys)} cannot be read")
        value = value.get(key)
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PartitaError(f"the plan's report: {'.'.join(keys)} is {value!r:.60}, not a number")
    return value


def summary(plan: Plan | PipelinePlan, cost: Priced | PipelinePriced) -> tuple[tuple[str, str], ...]:
    """What a step takes, where, of what."""
    unit, size = time_unit(cost)
    step = f"{cost.objective_ns / size:,.2f} {unit} predicted"
    status, bound = plan.report.get("status"), number(plan, "bound_ns")
    if status == "optimal":
        step += ", proven optimal"
    elif bound is not None:
        gap = (cost.objective_ns - bound) / max(cost.objective_ns, 1)
        step += f", at most {100 * gap:.2f} % above the optimum (bound {bound / size:,.2f} {unit})"
    written = number(plan, "objective_ns")
    if written is not None and written != cost.objective_ns:
        step += f"; the plan file claims {written / size:,.2f} {unit}, which its layouts do not cost"
    samples = f"{plan.batch / (cost.objective_ns / 1e9):,.1f} samples/s" if cost.objective_ns else ""
    batch = f"{plan.batch} samples"
    if plan.micro_batches > 1:
        batch += f" in {plan.micro_batches} micro-batches of {plan.graph.batch}"
    capacity = plan.machine.device.capacity_bytes
    memory = (
        f"{bytes_text(cost.memory_bytes)} of {bytes_text(capacity)} a device ({percent(cost.memory_bytes, capacity)})"
    )
    again = recompute_text(plan.recompute)
    if again and isinstance(cost, Priced):
        again += f"; {percent(cost.again_ns, cost.objective_ns)} of the step"
    return (
        ("step", f"{step}; {samples}" if samples else step),
        ("memory", memory),
        *((("recompute", again),) if again else ()),
        ("mesh", mesh_sentence(plan)),
        ("batch", f"{batch}, {plan.dtype}, {plan.optimizer}"),
    )


# What is split


def axes_table(plan: Plan) -> Table:
    """For every axis the shares of the arithmetic that it splits by batch, heads, columns, ..."""
    graph = plan.graph
    trained = [i for i in graph.of("parameter") if i in classes(graph).uses]
    elements = sum(graph.nodes[i].numel for i in trained)
    rows = []
    for axis, name in enumerate(plan.axes):
        work: dict[str, float] = {}
        for index, node in enumerate(graph.nodes):
            if node.op in SOURCES or not operator(node.op).matmul:
                continue
            flops = operator(node.op).work(node, tuple(graph.nodes[i] for i in node.inputs))
            word = split_word(plan, index, axis)
            work[word] = work.get(word, 0) + flops
        total = sum(work.values())
        shares = sorted(work.items(), key=lambda pair: (-pair[1], pair[0]))
        stored = sum(
            graph.nodes[i].numel
            for i in trained
            if is_split(plan.choices[i].output[axis]) or spread_axis(plan, i) == axis
        )
        states = sum(graph.nodes[i].numel for i in trained if _sharded(plan, i, axis))
        rows.append(
            (
                f"{name}={plan.placement.sizes[axis]}",
                place(plan, (axis,)),
                ", ".join(f"{word} {percent(flops, total)}" for word, flops in shares if flops) or "no products",
                percent(stored, elements),
                percent(stored + states, elements),
            )
        )
    return Table(
        "Mesh",
        "What each axis splits: shares of the arithmetic of matrix products, of the weights, of optimizer states.",
        ("axis", "over", "splits", "weights", "states"),
        tuple(rows),
        words=3,
    )


def _sharded(plan: Plan, index: int, axis: int) -> bool:
    choice = plan.choices[index]
    return choice.sharded_states and choice.output[axis] == B


def operators_table(plan: Plan) -> Table:
    """The split of every product, norm, look-up and loss; equal layers in one row."""
    graph = plan.graph

    def cells(index: int) -> tuple[str, ...] | None:
        node = graph.nodes[index]
        if node.op in SOURCES or operator(node.op).creates or classes(graph).constant[index]:
            return None
        weights = [graph.nodes[i] for i in node.inputs if graph.nodes[i].op == "parameter"]
        if not (weights or operator(node.op).matmul or node.op in (*LOSSES, "softmax")):
            return None
        shape = shape_text(weights[0].shape) if weights else ""
        return (node.op, shape, *(split_word(plan, index, axis) for axis in range(len(plan.axes))))

    return Table(
        "Operators",
        "What each mesh axis splits of an operator (rows, columns: of the matrix that multiplies from the right).",
        ("module", "operator", "weight", *_axis_heads(plan)),
        equal_layers(plan, range(len(graph.nodes)), cells),
        words=3 + len(plan.axes),
    )


def _axis_heads(plan: Plan) -> tuple[str, ...]:
    return tuple(f"{name}={size}" for name, size in zip(plan.axes, plan.placement.sizes, strict=True))


def weights_table(plan: Plan, cost: Priced) -> Table:
    """How weights are stored, gathered and updated; vectors are left out where there are matrices."""
    graph = plan.graph
    states: dict[int, int] = {}
    for kept in cost.kept:
        if kept.part == "states":
            states[kept.node] = states.get(kept.node, 0) + kept.bytes
    used = [i for i in graph.of("parameter") if i in states]
    matrices = [i for i in used if len(graph.nodes[i].shape) > 1] or used

    def cells(index: int) -> tuple[str, ...]:
        choice = plan.choices[index]
        use = classes(graph).uses[index][0]
        asked = choice.shared if choice.shared is not None else plan.choices[use.node].inputs[use.operand]
        joined = "tables" if graph.nodes[index].get("tables") else "weights"
        axes = (_stored(*letters) for letters in zip(choice.output, asked, strict=True))
        notes = [
            text
            for text, holds in (
                ("ZeRO-2" if choice.sharded_gradients else "ZeRO-1", choice.sharded_states),
                ("states on the host", choice.offloaded),
                ("gathered again in backward", choice.regather),
                ("frozen", not graph.nodes[index].gradient),
                (f"{len(graph.nodes[index].originals)} {joined} joined", len(graph.nodes[index].originals) > 1),
            )
            if holds
        ]
        return (shape_text(graph.nodes[index].shape), *axes, ", ".join(notes) or "-", bytes_text(states[index]))

    vectors = sum(states.values()) - sum(states[i] for i in matrices)
    rest = f" {len(used) - len(matrices)} vectors take {bytes_text(vectors)} more." if vectors else ""
    return Table(
        "Weights",
        "How a matrix is stored: FSDP is stored split and gathered for use; ZeRO-1 splits the optimizer's states over "
        "the axes with copies, ZeRO-2 gradients too. Bytes are those of weight, gradient and states on one device."
        + rest,
        ("weight", "shape", *_axis_heads(plan), "update", "each"),
        equal_layers(plan, matrices, cells),
        words=3 + len(plan.axes),
    )


def _stored(stored: int, asked: int) -> str:
    if stored == P:
        return "spread"
    if is_split(stored):
        return "split" if stored == asked else "moved" if is_split(asked) else "FSDP"
    return "cut for use" if is_split(asked) else "copies"


# What it costs


def by_module(plan: Plan, cost: Priced) -> dict[str, tuple[dict[str, int], int]]:
    """For every part of the model, equal layers together: ns of a step by part, and bytes."""
    times: dict[str, dict[str, int]] = {}
    kept: dict[str, int] = {}
    layers: dict[str, list[int | None]] = {}

    def module(node: int) -> str:
        name, layer = module_of(plan.graph, node)
        layers.setdefault(name, []).append(layer)
        times.setdefault(name, dict.fromkeys(PARTS, 0))
        return name

    for item in cost.items:
        times[module(item.at if item.part == "conversions" else item.node)][item.part] += item.total_ns
    for held in cost.kept:
        if held.node >= 0:
            name = module(held.node)
            kept[name] = kept.get(name, 0) + held.bytes
    return {label(name, found): (times[name], kept.get(name, 0)) for name, found in layers.items()}


def modules_table(plan: Plan, cost: Priced) -> Table:
    """Time and memory by part of the model."""
    unit, size = time_unit(cost)
    total, modules = cost.objective_ns, by_module(plan, cost)

    def row(name: str, ns: dict[str, int], kept: int) -> tuple[str, ...]:
        spent = sum(ns.values())
        cells = (f"{x / size:,.2f}" for x in (*(ns[part] for part in PARTS), spent))
        return name, *cells, percent(spent, total), bytes_text(kept)

    rows = [row(name, ns, kept) for name, (ns, kept) in modules.items()]
    rows.append(row("total", cost.ns, sum(kept for _, kept in modules.values())))
    shares = ", ".join(f"{part} {percent(cost.ns[part], total)}" for part in PARTS)
    return Table(
        "Time and memory by module",
        f"{unit} of a step, forward and backward of all micro-batches: {shares}. Conversions are collectives between "
        "layouts of activations, weights their gathers and casts, gradients their synchronization and the update.",
        ("module", *PARTS, unit, "share", "memory"),
        tuple(rows),
    )


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
    ("conversions", "backward", "receive"): "its gradient goes back",
    ("gradients", "update", "send"): "adds gradients of other stages",
}


def why(item: Item) -> str:
    """What a collective is for."""
    if item.slot is Slot.AGAIN:
        return "gathers weights again in backward"
    if item.phase == "recompute":
        return f"{_WHY.get((item.part, 'forward', item.kind), item.part)}, once more"
    return _WHY.get((item.part, item.phase, item.kind), item.part)


def collectives_table(plan: Plan, cost: Priced) -> Table:
    """Collectives by tensor, the dearest first; those of weights by module."""
    unit, size = time_unit(cost)
    graph = plan.graph
    names = {*(action.value for action in COLLECTIVES), "receive"}
    groups: dict[tuple[str, ...], list[tuple[int | None, Item]]] = {}
    for item in cost.items:
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
                each, f"{count:,}", f"{ns / size:,.2f}", percent(ns, cost.objective_ns),
            )
        )  # fmt: skip
    rest = sum(_spent(found) for _, found in ordered[LARGEST:])
    if rest:
        more = f"{len(ordered) - LARGEST} others"
        rows.append((more, "", "", "", "", "", "", f"{rest / size:,.2f}", percent(rest, cost.objective_ns)))
    return Table(
        "Collectives",
        "Messages on the slowest path of a device; none is hidden behind computing.",
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
    "recomputed": "brought back by the segment that runs again",
    "reserve": "the largest weight and its gradient for a moment, messages",
}


def memory_table(plan: Plan, cost: Priced) -> Table:
    capacity = plan.machine.device.capacity_bytes
    flight = ("one", "") if plan.in_flight == 1 else (f"{plan.in_flight}", "es in flight")
    parts = [
        (part, _KEPT[part].format(*flight), cost.memory[part])
        for part in MEMORY
        if part != "recomputed" or cost.memory[part]
    ]
    parts.append(("free", f"of {bytes_text(capacity)} that a plan may use", max(0, capacity - cost.memory_bytes)))
    return Table(
        "Memory",
        "On the device that holds most.",
        ("kind", "what", "size", "share"),
        tuple((part, what, bytes_text(size), percent(size, capacity)) for part, what, size in parts),
        words=2,
    )


def optimum(plan: Plan | PipelinePlan, cost: Priced | PipelinePriced) -> tuple[str, ...]:
    """What the optimum is the optimum of."""
    unit, size = time_unit(cost)
    status, bound = plan.report.get("status"), number(plan, "bound_ns")
    if status is None or bound is None:
        return ("The plan was not searched for: nothing is known about better ones.",)
    lines = [
        f"Status {status}: objective {cost.objective_ns / size:,.3f} {unit}, bound {bound / size:,.3f} {unit}, "
        f"gap {100 * (cost.objective_ns - bound) / max(cost.objective_ns, 1):.3f} %."
    ]
    counts = {k: number(plan, "space", k) for k in ("placements", "meshes", "options", "networks_solved")}
    told = any(v is not None for v in counts.values())
    micro, modes = (plan.report["space"].get(key) if told else None for key in ("micro_batches", "recompute"))
    if all(v is not None for v in counts.values()):
        lines.append(
            f"Space: {counts['placements']:,} placements of {counts['meshes']:,} meshes"
            + (f", micro-batches {', '.join(map(str, micro))}" if isinstance(micro, list) else "")
            + (f", recomputation {', '.join(map(str, modes))}" if isinstance(modes, list) else "")
            + f"; up to {counts['options']:,} options in one network (strategies from the operators' index notation, "
            f"one shared conversion a tensor, storage of weights); {counts['networks_solved']:,} networks solved."
        )
    seconds = number(plan, "seconds", "total")
    if seconds is not None:
        lines.append(f"Solver {plan.report.get('solver') or 'unknown'}, {seconds:,.1f} s from model to program.")
    lines.append(
        "Cost model: roofline and alpha-beta collectives (docs/cost-model.md). Outside the space: pipelines, "
        "communication hidden behind computing, algebraic rewrites."
    )
    return tuple(lines)
