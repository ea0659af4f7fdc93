"""Units of repetition and chains of them: what is alike in them, up to the weights' names and dropout's call sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from ....model.graph.layout import B, Layout, R
from ...plan.plan import Plan

Divided: TypeAlias = frozenset[tuple[int, int]]
"""(node, operand) of what is divided by the number of micro-batches."""


@dataclass(frozen=True, slots=True)
class NodeKinds:
    """A number for every node, equal where operator, shape, attributes, layouts and divided operands are.

    `values`: without what only the backward knows, so B is R. SegmentCall sites of dropout and inputs are left out.
    """

    full: tuple[int, ...]
    values: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, divided: Divided) -> NodeKinds:
        """The numbers of a plan's nodes."""
        known: dict[object, int] = {}
        full, values = [], []
        for i, node in enumerate(plan.graph.nodes):
            choice = plan.choices[i]
            attributes = tuple((k, v) for k, v in node.attributes if k != "site")
            parts = tuple((i, k) in divided for k in range(len(node.inputs)))
            of_node = node.op, node.shape, node.dtype, attributes, parts
            layouts = *choice.inputs, choice.output
            full.append(known.setdefault((of_node, node.gradient, layouts), len(known)))
            values.append(known.setdefault((of_node, tuple(map(_of_value, layouts))), len(known)))
        return cls(tuple(full), tuple(values))


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes of one turn: `first` is its number in the list.

    `carried` are the values that it is handed by the turn before, `outs` those that it gives in their places, in
    `layouts`; -1 stands for one that it hands on as it is, since nobody reads it.
    """

    first: int
    nodes: tuple[int, ...]
    weights: tuple[int, ...]
    outside: tuple[int, ...]  # what it reads from outside, in order of first use
    outs: tuple[int, ...]
    carried: tuple[int, ...] = ()
    layouts: tuple[Layout, ...] = ()
    signature: Any = None

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in self.outside if i not in self.carried)


@dataclass(frozen=True)
class BlockChain:
    """Units that run one after another: `prefix` is their list in the user's model, `period` its entries per unit.

    `passes` are the runs over the list, each the same entries; `main` is the last one that has a gradient. Pass p is
    computed as `like[p]` is: the same forward in every unit.
    """

    prefix: str
    period: int
    passes: tuple[tuple[Block, ...], ...]
    main: int = 0
    like: tuple[int, ...] = (0,)

    @property
    def units(self) -> tuple[Block, ...]:
        return self.passes[self.main]

    @property
    def ways(self) -> tuple[int, ...]:
        """The passes that have a forward of their own; first the main one."""
        return (self.main, *sorted(set(self.like) - {self.main}))

    @cached_property
    def nodes(self) -> frozenset[int]:
        return frozenset(i for units in self.passes for u in units for i in u.nodes)

    def weights(self, place: int) -> tuple[int, ...]:
        """The weights of an entry, in all passes."""
        return tuple(dict.fromkeys(i for p in (self.main, *self.like) for i in self.passes[p][place].weights))


def entry_name(prefix: str, number: int | str) -> str:
    """How names below one entry of the list begin."""
    return f"{prefix}.{number}." if prefix else f"{number}."


def relative_name(prefix: str, first: int, name: str) -> tuple[int, str]:
    """A weight's name below its list: which entry of the unit, and the rest."""
    head = f"{prefix}." if prefix else ""
    number, _, rest = name.removeprefix(head).partition(".")
    return int(number) - first, rest


def signature(plan: Plan, prefix: str, unit: Block, looks: NodeKinds, values_only: bool = False) -> Any:
    """What units of one class have in common: operators, shapes, choices, and how values reach them.

    `values_only`: without what only the backward knows, so B is R.
    """
    graph = plan.graph
    place: dict[int, tuple[str, int]] = {}
    for kind, numbers in (("n", unit.nodes), ("w", unit.weights), ("o", unit.outside)):
        place.update({i: (kind, k) for k, i in enumerate(numbers)})
    layout = _of_value if values_only else tuple
    look = looks.values if values_only else looks.full
    first, outs = _first_site(plan, unit), dict(zip(unit.outs, unit.layouts, strict=False))

    def entry(i: int) -> Any:
        node = graph.nodes[i]
        inputs = tuple([place.get(k, ("literal", k)) for k in node.inputs])
        site = node["site"] - first if node.op == "dropout" else 0
        return look[i], inputs, site, layout(outs.get(i, plan.choices[i].given))

    weights = tuple(
        (
            graph.nodes[i].shape,
            graph.nodes[i].dtype,
            graph.nodes[i].gradient,
            relative_name(prefix, unit.first, graph.nodes[i].name),
            tuple((relative_name(prefix, unit.first, k), rows) for k, rows in graph.nodes[i].originals.items()),
            replace(plan.choices[i], at=()),
            tuple((relative_name(prefix, unit.first, name), *piece) for name, *piece in plan.choices[i].at),
        )
        for i in unit.weights
    )
    given = tuple(layout(plan.choices[i].given) for i in unit.outside)
    carried = tuple(unit.outside.index(i) for i in unit.carried)
    return tuple(map(entry, unit.nodes)), weights, given, carried, tuple(place.get(i) for i in unit.outs)


def _of_value(layout: Layout) -> Layout:
    return tuple(R if letter == B else letter for letter in layout)


def again(plan: Plan, chain: BlockChain, looks: NodeKinds) -> BlockChain | None:
    """A chain of several passes with those that are computed alike; None where it must not become loops.

    A pass without gradient may be as one with gradient is, with R for B: the values are the same. Of several passes
    with gradient none may convert weights, since the plan converts them once for all.
    """
    if len(chain.passes) == 1:
        return chain
    gradient = [any(plan.graph.nodes[i].gradient for u in units for i in u.nodes) for units in chain.passes]
    main = max(range(len(gradient)), key=lambda p: (gradient[p], p))
    if sum(gradient) > 1 and any(_converted(plan, i) for u in chain.passes[main] for i in u.weights):
        return None

    entries = range(len(chain.units))
    like: dict[int, int] = {}
    for p in (main, *range(len(gradient))):
        if p not in like:
            like[p] = next((q for q in like.values() if all(alike(plan, chain, p, q, k, looks) for k in entries)), p)
    return replace(chain, main=main, like=tuple(like[p] for p in range(len(gradient))))


def alike(plan: Plan, chain: BlockChain, p: int, q: int, place: int, looks: NodeKinds) -> bool:
    """Whether passes p and q compute the same in a unit."""
    units = chain.passes[p][place], chain.passes[q][place]
    gradient = [any(plan.graph.nodes[i].gradient for i in unit.nodes) for unit in units]
    one, other = (signature(plan, chain.prefix, u, looks, gradient[0] != gradient[1]) for u in units)
    return bool(one == other)


def _converted(plan: Plan, weight: int) -> bool:
    """Whether any reader of a weight reads it in another layout than the stored one."""
    nodes, choices = plan.graph.nodes, plan.choices
    asked = {
        layout
        for reader in plan.graph.consumers[weight]
        for i, layout in zip(nodes[reader].inputs, choices[reader].inputs, strict=True)
        if i == weight
    }
    return {*asked, choices[weight].given} != {choices[weight].output}


def _dropouts(plan: Plan, unit: Block) -> list[int]:
    return [plan.graph.nodes[i]["site"] for i in unit.nodes if plan.graph.nodes[i].op == "dropout"]


def _first_site(plan: Plan, unit: Block) -> int:
    return min(_dropouts(plan, unit), default=0)


def site_step(plan: Plan, units: Sequence[Block]) -> tuple[int, int] | None:
    """a and b such that the unit at entry i starts with dropout call site a + b i; None if there is no dropout."""
    starts = [(u.first, _first_site(plan, u)) for u in units if _dropouts(plan, u)]
    if not starts:
        return None
    (first, start), (last, end) = starts[0], starts[-1]
    slope = (end - start) // (last - first) if last > first else len(_dropouts(plan, units[0]))
    return start - slope * first, slope


def steady(plan: Plan, chain: BlockChain) -> bool:
    """Whether dropout's call sites grow by the same number from entry to entry in every pass."""
    slopes = set()
    for units in chain.passes:
        step = site_step(plan, units)
        if step is None:
            continue
        base, slope = step
        slopes.add(slope)
        if any(_dropouts(plan, u) and _first_site(plan, u) != base + slope * u.first for u in units):
            return False
    return len(slopes) <= 1
