"""Repeated blocks: layers of the user's model with the same structure and the same choices become one class and a loop.

A unit is what the model computes below one entry of a list (`layers.3`), or below a few that repeat together (`0`
linear, `1` relu). Units form a chain: each hands one value to the next; all else that they read from outside is the
same for all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...model.layout import Layout
from ...model.pcg import SOURCES
from .names import is_literal

if TYPE_CHECKING:
    from ..plan import Plan

_ENTRY = re.compile(r"^(?:(.*?)\.)?(\d+)(?=\.|$)")
_UNIQUE = ("cross_entropy", "mse_loss", "projection")
PERIODS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Unit:
    """Nodes of one repetition: `first` is its number in the list, `carried` the value it gets, `out` what it gives."""

    first: int
    nodes: tuple[int, ...]
    weights: tuple[int, ...]
    outside: tuple[int, ...]  # what it reads from outside, in order of first use
    out: int
    carried: int = -1
    signature: Any = None

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in self.outside if i != self.carried)


@dataclass(frozen=True)
class Chain:
    """Units that run one after another: `prefix` is their list in the user's model, `period` its entries per unit."""

    prefix: str
    period: int
    units: tuple[Unit, ...]


def chains(plan: Plan, divided: frozenset[tuple[int, int]]) -> tuple[Chain, ...]:
    """The loops of a plan's program, in the order of the model."""
    lists: dict[str, dict[int, list[int]]] = {}
    for index, node in enumerate(plan.graph.nodes):
        match = _ENTRY.match(node.path)
        if match and node.op not in SOURCES and not is_literal(plan, index):
            lists.setdefault(match[1] or "", {}).setdefault(int(match[2]), []).append(index)
    found: list[Chain] = []
    for prefix, entries in lists.items():
        _join_glue(plan, prefix, entries)
        best: list[Chain] = []
        for period in PERIODS:
            made = _of_period(plan, prefix, entries, period, divided)
            if _gain(made) > 1.2 * _gain(best):
                best = made
        found += best
    return tuple(sorted(found, key=lambda chain: chain.units[0].nodes[0]))


def _gain(made: Sequence[Chain]) -> int:
    """How many nodes need not be written, because another unit of the same class has them; lists of many runs cost."""
    return sum(
        sum(len(u.nodes) for u in chain.units)
        - sum(len(nodes) for nodes in {u.signature: u.nodes for u in chain.units}.values())
        - 2 * sum(1 for _ in groupby(u.signature for u in chain.units))
        for chain in made
    )


def _join_glue(plan: Plan, prefix: str, entries: dict[int, list[int]]) -> None:
    """What the loop itself computes between two entries (an activation, a residual sum) belongs to the former."""
    graph = plan.graph
    for number, nodes in sorted(entries.items()):
        following = set(entries.get(number + 1, ()))
        grown = bool(following)
        while grown:
            inside = set(nodes)
            known = inside | {i for n in nodes for i in graph.nodes[n].inputs}
            readers = {c for n in nodes for c in graph.consumers[n]} - inside - following
            glue = [
                c
                for c in sorted(readers)
                if set(graph.nodes[c].inputs) <= known and graph.consumers[c] and prefix.startswith(graph.nodes[c].path)
            ]
            grown = bool(glue)
            nodes += glue[:1]


def _of_period(
    plan: Plan, prefix: str, entries: dict[int, list[int]], period: int, divided: frozenset[tuple[int, int]]
) -> list[Chain]:
    numbers = sorted(entries)
    start = numbers[0]
    units = []
    for first in range(start, numbers[-1] + 2 - period, period):
        window = [entries.get(first + k, []) for k in range(period)]
        unit = _unit(plan, prefix, first, period, sorted(i for nodes in window for i in nodes)) if any(window) else None
        units.append(unit)
    result: list[Chain] = []
    current: list[Unit] = []

    def close() -> None:
        if len(current) > 1:
            signed = tuple(replace(u, signature=_signature(plan, prefix, u, divided)) for u in current)
            result.append(Chain(prefix, period, signed))
        current.clear()

    for unit in units:
        if unit is None:
            close()
            continue
        if current and not _follows(plan, current, unit):
            close()
        if current:
            if len(current) == 1:  # now it is known which of its inputs the first one is handed
                place = unit.outside.index(current[0].out)
                current[0] = replace(current[0], carried=current[0].outside[place])
            unit = replace(unit, carried=current[-1].out)
        current.append(unit)
    close()
    return result


def _unit(plan: Plan, prefix: str, first: int, period: int, nodes: list[int]) -> Unit | None:
    """The nodes as a unit, unless they give several values or compute what must be computed once."""
    graph, inside = plan.graph, set(nodes)
    if any(graph.nodes[i].op in _UNIQUE for i in nodes) or graph.loss in inside:
        return None
    out = [i for i in nodes if not inside.issuperset(graph.consumers[i])]
    if len(out) != 1:
        return None
    weights: list[int] = []
    outside: list[int] = []
    for index in nodes:
        for i in graph.nodes[index].inputs:
            if i in inside or i in weights or i in outside or is_literal(plan, i):
                continue
            own = graph.nodes[i].op in ("parameter", "buffer") and inside.issuperset(graph.consumers[i])
            if own and any(graph.nodes[i].name.startswith(entry_name(prefix, first + k)) for k in range(period)):
                weights.append(i)
            else:
                outside.append(i)
    return Unit(first, tuple(nodes), tuple(weights), tuple(outside), out[0])


def entry_name(prefix: str, number: int | str) -> str:
    """How names below one entry of the list begin."""
    return f"{prefix}.{number}." if prefix else f"{number}."


def _follows(plan: Plan, current: Sequence[Unit], unit: Unit) -> bool:
    """Whether a unit can be the next turn of the loop."""
    last = current[-1]
    if last.out not in unit.outside or len(unit.outside) != len(last.outside):
        return False
    if not set(unit.nodes).issuperset(plan.graph.consumers[last.out]):
        return False
    place = unit.outside.index(last.out)
    carried = last.carried if len(current) > 1 else last.outside[place]
    if len(current) > 1 and carried != last.outside[place]:
        return False
    others = tuple(i for i in last.outside if i != carried)
    if tuple(i for i in unit.outside if i != last.out) != others:
        return False
    # What all turns read must exist before the first.
    inside = {i for u in current for i in u.nodes}
    return inside.isdisjoint(_ancestors(plan, others, current[0].nodes[0]))


def _ancestors(plan: Plan, nodes: Sequence[int], least: int) -> set[int]:
    """What nodes are computed from, down to number `least`."""
    found: set[int] = set()
    stack = list(nodes)
    while stack:
        i = stack.pop()
        if i >= least and i not in found:
            found.add(i)
            stack.extend(plan.graph.nodes[i].inputs)
    return found


def _signature(plan: Plan, prefix: str, unit: Unit, divided: frozenset[tuple[int, int]]) -> Any:
    """What units of one class have in common: operators, shapes, choices, and how values reach them."""
    graph = plan.graph
    place: dict[int, tuple[str, int]] = {}
    for kind, numbers in (("n", unit.nodes), ("w", unit.weights), ("o", unit.outside)):
        place.update({i: (kind, k) for k, i in enumerate(numbers)})

    def entry(i: int) -> Any:
        node = graph.nodes[i]
        inputs = tuple(place.get(k, ("literal", k)) for k in node.inputs)
        attributes = tuple((k, v) for k, v in node.attributes if k != "site")
        site = node["site"] - _sites(plan, unit.nodes) if node.op == "dropout" else 0
        extra = tuple((i, k) in divided for k in range(len(node.inputs)))
        return node.op, inputs, node.shape, node.dtype, attributes, site, node.gradient, extra, plan.choices[i]

    weights = tuple(
        (
            graph.nodes[i].shape,
            graph.nodes[i].dtype,
            graph.nodes[i].gradient,
            relative_name(prefix, unit.first, graph.nodes[i].name),
            plan.choices[i],
        )
        for i in unit.weights
    )
    given: tuple[Layout, ...] = tuple(plan.choices[i].given for i in unit.outside)
    carried = unit.outside.index(unit.carried)
    return tuple(map(entry, unit.nodes)), weights, given, carried, place[unit.out]


def relative_name(prefix: str, first: int, name: str) -> tuple[int, str]:
    """A weight's name below its list: which entry of the unit, and the rest."""
    head = f"{prefix}." if prefix else ""
    number, _, rest = name.removeprefix(head).partition(".")
    return int(number) - first, rest


def _sites(plan: Plan, nodes: Sequence[int]) -> int:
    """The first dropout call site of some nodes."""
    return min((plan.graph.nodes[i]["site"] for i in nodes if plan.graph.nodes[i].op == "dropout"), default=0)


def site_step(plan: Plan, chain: Chain) -> tuple[int, int] | None:
    """a and b such that the unit at entry i starts with dropout call site a + b i; None if there is no dropout.

    Raises ValueError where sites do not grow evenly.
    """
    if not any(plan.graph.nodes[i].op == "dropout" for u in chain.units for i in u.nodes):
        return None
    starts = [_sites(plan, u.nodes) for u in chain.units]
    firsts = [u.first for u in chain.units]
    step, rest = divmod(starts[1] - starts[0], firsts[1] - firsts[0])
    base = starts[0] - step * firsts[0]
    if rest or any(base + step * f != s for f, s in zip(firsts, starts, strict=True)):
        raise ValueError(f"dropout call sites {starts} do not grow evenly")
    return base, step
