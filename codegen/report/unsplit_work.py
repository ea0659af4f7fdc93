"""Which operators of a plan are opaque, which no axis splits, and what share of the work they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...formulation.strategies.strategy import rows_taken
from ...model.graph.pcg import SOURCES
from ...model.operators.operator import operator
from ..plan.plan import Plan
from ..pricing.price_items import StagePrice
from .tables import Table
from .words import label, pattern, percent

SMALL = 0.001
"""Share of the work below which an unsplit operator is not listed."""


@dataclass(frozen=True, slots=True)
class Work:
    """The forward FLOPs of a node, in one micro-batch over all ranks; `unsplit`: every rank does all of it."""

    stage: int
    index: int
    flops: int
    unsplit: bool


def work(plan: Plan) -> list[Work]:
    """The work of all operators that a plan computes, with its stages."""
    return [each for number, part in enumerate(plan.parts) for each in _of_stage(part, number)]


def _of_stage(plan: Plan, number: int) -> Iterator[Work]:
    graph, sizes = plan.graph, plan.placement.sizes
    for index, node in enumerate(graph.nodes):
        if node.op in SOURCES or operator(node.op).view or operator(node.op).transfer:
            continue
        choice = plan.choices[index]
        taken = rows_taken(graph, index, choice.inputs, choice.output)
        unsplit = not choice.beside and all(
            size == 1 or (row is not None and row.index is None and not row.special)
            for row, size in zip(taken, sizes, strict=True)
        )
        flops = operator(node.op).work(node, tuple(graph.nodes[i] for i in node.inputs))
        yield Work(number, index, flops, unsplit and plan.placement.devices > 1)


def opaque_calls(plan: Plan) -> list[dict[str, Any]]:
    """Every opaque operator for JSON: its call, its notation, and its share of the FLOPs."""
    found = work(plan)
    total = sum(each.flops for each in found) or 1
    calls = []
    for each in found:
        node = plan.parts[each.stage].graph.nodes[each.index]
        if node.op == "opaque":
            share = each.flops / total
            known = {"name": node.name, "call": node["target"], "notation": node.get("notation")}
            calls.append({**known, "flops": share, "unsplit": each.unsplit})
    return calls


def opaque_sentence(plan: Plan) -> str:
    """The opaque operators by name, with their share of the work; empty if there are none."""
    calls = opaque_calls(plan)
    if not calls:
        return ""
    counts: dict[str, int] = {}
    for call in calls:
        name = call["call"].rpartition(".")[0] or call["call"]
        counts[name] = counts.get(name, 0) + 1
    names = ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in sorted(counts.items()))
    unsplit = sum(call["flops"] for call in calls if call["unsplit"])
    return (
        f"{names}: no rule is known, run as PyTorch does; {percent(sum(call['flops'] for call in calls), 1)} of the "
        f"FLOPs, {percent(unsplit, 1)} unsplit"
    )


def unsplit_table(plan: Plan, price: StagePrice) -> Table:
    """Opaque operators, and those that every rank computes whole, with their shares of FLOPs and of computing time."""
    graph, found = plan.graph, list(_of_stage(plan, 0))
    times: dict[int, int] = {}
    for item in price.items:
        if item.part == "compute":
            times[item.node] = times.get(item.node, 0) + item.total_ns
    flops, ns = sum(each.flops for each in found), sum(times.values())
    groups: dict[tuple[str, str, str], list[Work]] = {}
    for each in found:
        node = graph.nodes[each.index]
        opaque = node.op == "opaque"
        if opaque or each.unsplit:
            call, kind = node["target"] if opaque else node.op, "unsplit" if each.unsplit else "split"
            key = pattern(node.name)[0], call, f"opaque, {kind}" if opaque else kind
            groups.setdefault(key, []).append(each)
    rows = []
    for (name, call, kind), members in groups.items():
        own = sum(each.flops for each in members), sum(times.get(each.index, 0) for each in members)
        if kind != "unsplit" or own[0] >= SMALL * flops or own[1] >= SMALL * ns:
            layers = (pattern(graph.nodes[each.index].name)[1] for each in members)
            rows.append((label(name, layers), call, kind, percent(own[0], flops), percent(own[1], ns)))
    return Table(
        "Opaque and unsplit operators",
        "Operators without a rule, which run as in PyTorch, and operators that every rank computes whole: their shares "
        "of the FLOPs, and of the computing time on a device.",
        ("operator", "call", "kind", "FLOPs", "time"),
        tuple(rows),
        words=3,
    )
