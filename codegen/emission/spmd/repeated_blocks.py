"""Repeated blocks and chains of them, and when two are equal up to weight names and dropout call sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from ....formulation.strategies.tensor_classes import without_addends
from ....model.graph.layout import Layout
from ....model.operators.operator import is_random
from ...plan.in_parts import parts_of_nodes
from ...plan.plan import Plan

Divided: TypeAlias = frozenset[tuple[int, int]]
"""(node, operand) pairs that are divided by the number of micro-batches."""


@dataclass(frozen=True, slots=True)
class NodeKinds:
    """A number per node, equal where operator, shape, parts, attributes, layouts and divided operands are equal.

    `values` ignores what only backward distinguishes: B counts as R. Inputs and dropout call sites are left out.
    """

    full: tuple[int, ...]
    values: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, divided: Divided) -> NodeKinds:
        """Number the nodes of a plan."""
        known: dict[object, int] = {}
        in_parts = parts_of_nodes(plan)
        full, values = [], []
        for i, node in enumerate(plan.graph.nodes):
            choice = plan.choices[i]
            attributes = tuple((k, v) for k, v in node.attributes if k != "site")
            parts = tuple((i, k) in divided for k in range(len(node.inputs)))
            of_node = node.op, node.shape, in_parts.get(i, 1), node.dtype, attributes, parts
            layouts = *choice.inputs, choice.output
            full.append(known.setdefault((of_node, node.gradient, layouts), len(known)))
            values.append(known.setdefault((of_node, tuple(map(without_addends, layouts))), len(known)))
        return cls(tuple(full), tuple(values))


@dataclass(frozen=True, slots=True)
class Block:
    """The nodes of one turn of a loop; `first` is its number in the list of the user's model.

    It receives the values `carried` from the turn before, and passes on `outs` in their places, in `layouts`. -1 in
    `outs` is a value passed on unchanged because nothing reads it.
    """

    first: int
    nodes: tuple[int, ...]
    weights: tuple[int, ...]
    outside: tuple[int, ...]  # values read from outside, in order of first use
    outs: tuple[int, ...]
    carried: tuple[int, ...] = ()
    layouts: tuple[Layout, ...] = ()
    signature: Any = None

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in self.outside if i not in self.carried)


@dataclass(frozen=True)
class BlockChain:
    """Blocks that run one after another: `prefix` is their list in the user's model, `period` its entries per block.

    `passes` are the runs over the list, all with the same entries; `main` is the last one with a gradient. Pass p is
    computed by the forward of pass `computed_as[p]`.
    """

    prefix: str
    period: int
    passes: tuple[tuple[Block, ...], ...]
    main: int = 0
    computed_as: tuple[int, ...] = (0,)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.passes[self.main]

    @property
    def distinct_passes(self) -> tuple[int, ...]:
        """The passes with a forward of their own, the main one first."""
        return (self.main, *sorted(set(self.computed_as) - {self.main}))

    @cached_property
    def nodes(self) -> frozenset[int]:
        return frozenset(i for blocks in self.passes for u in blocks for i in u.nodes)

    def weights(self, place: int) -> tuple[int, ...]:
        """The weights of an entry in all passes."""
        return tuple(dict.fromkeys(i for p in (self.main, *self.computed_as) for i in self.passes[p][place].weights))


def entry_name(prefix: str, number: int | str) -> str:
    """Prefix of the names below one entry of a list."""
    return f"{prefix}.{number}." if prefix else f"{number}."


def relative_name(prefix: str, first: int, name: str) -> tuple[int, str]:
    """A weight's name below its list: the entry within the block, and the rest of the name."""
    head = f"{prefix}." if prefix else ""
    number, _, rest = name.removeprefix(head).partition(".")
    return int(number) - first, rest


def signature(plan: Plan, prefix: str, block: Block, kinds: NodeKinds, values_only: bool = False) -> Any:
    """What blocks of one class share: operators, shapes, choices, and where operands come from.

    `values_only` ignores what only backward distinguishes: B counts as R.
    """
    graph = plan.graph
    place: dict[int, tuple[str, int]] = {}
    for kind, numbers in (("n", block.nodes), ("w", block.weights), ("o", block.outside)):
        place.update({i: (kind, k) for k, i in enumerate(numbers)})
    layout = without_addends if values_only else tuple
    look = kinds.values if values_only else kinds.full
    first, outs = _first_site(plan, block), dict(zip(block.outs, block.layouts, strict=False))

    def entry(i: int) -> Any:
        node = graph.nodes[i]
        inputs = tuple([place.get(k, ("literal", k)) for k in node.inputs])
        site = node["site"] - first if is_random(node) else 0
        return look[i], inputs, site, layout(outs.get(i, plan.choices[i].given))

    weights = tuple(
        (
            graph.nodes[i].shape,
            graph.nodes[i].dtype,
            graph.nodes[i].gradient,
            relative_name(prefix, block.first, graph.nodes[i].name),
            tuple((relative_name(prefix, block.first, k), rows) for k, rows in graph.nodes[i].originals.items()),
            replace(plan.choices[i], at=()),
            tuple((relative_name(prefix, block.first, name), *piece) for name, *piece in plan.choices[i].at),
        )
        for i in block.weights
    )
    given = tuple(layout(plan.choices[i].given) for i in block.outside)
    carried = tuple(block.outside.index(i) for i in block.carried)
    return tuple(map(entry, block.nodes)), weights, given, carried, tuple(place.get(i) for i in block.outs)


def merge_passes(plan: Plan, chain: BlockChain, kinds: NodeKinds) -> BlockChain | None:
    """The chain with each pass computed like an equal earlier one; None if it cannot become loops.

    A pass without gradient may share the forward of one with gradient: with R for B the values are the same. If several
    passes have gradients, none may convert weights, since the plan converts those once for all passes.
    """
    if len(chain.passes) == 1:
        return chain
    gradient = [any(plan.graph.nodes[i].gradient for u in blocks for i in u.nodes) for blocks in chain.passes]
    main = max(range(len(gradient)), key=lambda p: (gradient[p], p))
    if sum(gradient) > 1 and any(_converted(plan, i) for u in chain.passes[main] for i in u.weights):
        return None

    entries = range(len(chain.blocks))
    computed_as: dict[int, int] = {}
    for p in (main, *range(len(gradient))):
        if p not in computed_as:
            earlier = computed_as.values()
            same = (q for q in earlier if all(same_pass(plan, chain, (p, q), k, kinds) for k in entries))
            computed_as[p] = next(same, p)
    return replace(chain, main=main, computed_as=tuple(computed_as[p] for p in range(len(gradient))))


def same_pass(plan: Plan, chain: BlockChain, passes: tuple[int, int], place: int, kinds: NodeKinds) -> bool:
    """True if two passes compute the same in the block at `place`."""
    blocks = [chain.passes[number][place] for number in passes]
    gradient = [any(plan.graph.nodes[i].gradient for i in block.nodes) for block in blocks]
    one, other = (signature(plan, chain.prefix, u, kinds, gradient[0] != gradient[1]) for u in blocks)
    return bool(one == other)


def _converted(plan: Plan, weight: int) -> bool:
    """True if some reader of a weight reads it in another layout than the stored one."""
    nodes, choices = plan.graph.nodes, plan.choices
    read = {
        layout
        for reader in plan.graph.consumers[weight]
        for i, layout in zip(nodes[reader].inputs, choices[reader].inputs, strict=True)
        if i == weight
    }
    return {*read, choices[weight].given} != {choices[weight].output}


def random_calls(plan: Plan, block: Block) -> list[int]:
    """The nodes of a block that draw random numbers."""
    return [i for i in block.nodes if is_random(plan.graph.nodes[i])]


def _sites(plan: Plan, block: Block) -> list[int]:
    return [plan.graph.nodes[i]["site"] for i in random_calls(plan, block)]


def _first_site(plan: Plan, block: Block) -> int:
    return min(_sites(plan, block), default=0)


def site_step(plan: Plan, blocks: Sequence[Block]) -> tuple[int, int] | None:
    """a and b such that the dropout call sites of the block at entry i start at a + b i; None without dropout."""
    starts = [(u.first, _first_site(plan, u)) for u in blocks if _sites(plan, u)]
    if not starts:
        return None
    (first, start), (last, end) = starts[0], starts[-1]
    slope = (end - start) // (last - first) if last > first else len(_sites(plan, blocks[0]))
    return start - slope * first, slope


def has_regular_dropout_sites(plan: Plan, chain: BlockChain) -> bool:
    """True if dropout call sites grow by the same number from entry to entry in every pass."""
    slopes = set()
    for blocks in chain.passes:
        step = site_step(plan, blocks)
        if step is None:
            continue
        base, slope = step
        slopes.add(slope)
        if any(_sites(plan, u) and _first_site(plan, u) != base + slope * u.first for u in blocks):
            return False
    return len(slopes) <= 1
