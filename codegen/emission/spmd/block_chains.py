"""Repeated blocks: layers of the user's model with the same structure and the same choices become one class and a loop.

A block is what the model computes in one entry of a list (`layers.3`), or in a few that repeat together (`0` linear,
`1` relu). Blocks form a chain: each passes the same number of values to the next, and all read the same values from
outside. A model that runs a list several times (recycling) gets one loop per pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ....model.graph.layout import Layout
from ....model.graph.pcg import SOURCES
from ....model.graph.segments import LIST_INDEX, Entries, list_above, lists, with_glue
from ....model.operators.loss import LOSSES
from ...plan.plan import Plan
from ..common.names import is_literal, is_outside
from . import recomputation
from .repeated_blocks import (
    Block,
    BlockChain,
    NodeKinds,
    entry_name,
    has_regular_dropout_sites,
    merge_passes,
    signature,
)

PERIODS = (1, 2, 3, 4)


def chains(plan: Plan, kinds: NodeKinds, single: bool = False) -> tuple[BlockChain, ...]:
    """The loops of a plan's program, in the order of the model; `single`: also those of one turn, as stages have."""
    nodes = enumerate(plan.graph.nodes)
    known = lists(plan.graph, [i for i, node in nodes if node.op not in SOURCES and not is_outside(plan, i)])
    # Parallel branches have methods of their own.
    branches = {
        prefix
        for choice, node in zip(plan.choices, plan.graph.nodes, strict=True)
        if choice.beside or choice.joins
        for prefix in (node.path[: match.start()] for match in LIST_INDEX.finditer(node.path))
    }
    known = {prefix: entries for prefix, entries in known.items() if prefix not in branches}
    above = {prefix: list_above(prefix, known) for prefix in known}
    found: list[BlockChain] = []
    for prefix in known:
        if above[prefix] is None:
            found += _of_lists(plan, prefix, known, above, kinds, single)
    return tuple(sorted(found, key=lambda chain: chain.blocks[0].nodes[0]))


def _of_lists(
    plan: Plan,
    prefix: str,
    known: Mapping[str, Entries],
    above: Mapping[str, str | None],
    kinds: NodeKinds,
    single: bool,
) -> list[BlockChain]:
    """The loops over a list and over lists inside it that these do not cover; or only the inner ones, if better."""
    outer = _of_list(plan, prefix, known[prefix], kinds, single)
    inside = [below for below in known if above[below] == prefix]
    inner = [chain for below in inside for chain in _of_lists(plan, below, known, above, kinds, single)]
    covered = {i for chain in outer for i in chain.nodes}
    kept = [chain for chain in inner if covered.isdisjoint(chain.nodes)]
    return inner if _nodes_saved(inner) > 1.2 * _nodes_saved(outer + kept) else outer + kept


def _of_list(plan: Plan, prefix: str, entries: Entries, kinds: NodeKinds, single: bool) -> list[BlockChain]:
    """The loops over one list, with the period that saves the most nodes."""
    passes = [with_glue(plan.graph, prefix, one) for one in _passes(plan, entries)]
    best: list[BlockChain] = []
    for period in PERIODS:
        made = _of_period(plan, prefix, passes, period, kinds, single and period == 1)
        if _nodes_saved(made) > 1.2 * _nodes_saved(best):
            best = made
    return best


def _nodes_saved(made: Sequence[BlockChain]) -> int:
    """The number of nodes that another block of the same class already writes, less a cost per run of a list."""
    return sum(
        len(chain.nodes) * (1 + (len(chain.blocks) == 1))  # a single block is another stage's class too
        - sum(
            len(nodes)
            for number in chain.distinct_passes
            for nodes in {block.signature: block.nodes for block in chain.passes[number]}.values()
        )
        - 2 * sum(1 for _ in groupby(u.signature for u in chain.blocks))
        for chain in made
    )


def _passes(plan: Plan, entries: Entries) -> list[Entries]:
    """The nodes of every pass over a list. A pass begins where the entries start over with the same weights."""
    found: list[dict[int, list[int]]] = [{}]
    before = -1
    for index, number in sorted((i, number) for number, nodes in entries.items() for i in nodes):
        if number < before:
            found.append({})
        found[-1].setdefault(number, []).append(index)
        before = number
    same = all(
        number in found[0] and _weights_read(plan, nodes) & _weights_read(plan, found[0][number])
        for one in found[1:]
        for number, nodes in one.items()
    )
    return [*found] if same else [entries]


def _weights_read(plan: Plan, nodes: Sequence[int]) -> set[int]:
    graph = plan.graph
    return {i for n in nodes for i in graph.nodes[n].inputs if graph.nodes[i].op in ("parameter", "buffer")}


def _of_period(
    plan: Plan, prefix: str, passes: Sequence[Entries], period: int, kinds: NodeKinds, single: bool
) -> list[BlockChain]:
    numbers = sorted(number for entries in passes for number in entries)
    firsts = range(numbers[0], numbers[-1] + 2 - period, period)
    nodes_of = {f: {i for e in passes for k in range(period) for i in e.get(f + k, ())} for f in firsts}
    runs = []
    for entries in passes:
        blocks = []
        for first in firsts:
            nodes = sorted(i for k in range(period) for i in entries.get(first + k, ()))
            blocks.append(_block(plan, prefix, first, period, nodes, nodes_of[first]) if nodes else None)
        runs.append(_runs(plan, blocks))
    result = []
    least = 1 if single and len(passes) == 1 else 2
    for group in _in_all_passes(runs, least):
        linked = [_linked(plan, run) for run in group]
        signed = tuple(tuple(_signed(plan, prefix, u, kinds) for u in run) for run in linked)
        made = merge_passes(plan, BlockChain(prefix, period, signed), kinds)
        if made is not None and has_regular_dropout_sites(plan, made) and recomputation.segments_fit(plan, made):
            result.append(made)
    return result


def _signed(plan: Plan, prefix: str, block: Block, kinds: NodeKinds) -> Block:
    return replace(
        block, signature=(signature(plan, prefix, block, kinds), recomputation.segments_inside(plan, prefix, block))
    )


def _in_all_passes(runs: Sequence[Sequence[Sequence[Block]]], least: int) -> Iterator[list[list[Block]]]:
    """The pieces of at least `least` blocks that are in one run of every pass, each as its blocks in every pass.

    `runs[p]` are the runs of pass p.
    """
    blocks = [{block.first: (number, block) for number, run in enumerate(one) for block in run} for one in runs]
    common = sorted(set(blocks[0]).intersection(*blocks))
    for _, group in groupby(common, key=lambda first: [one[first][0] for one in blocks]):
        firsts = list(group)
        if len(firsts) >= least:
            yield [[one[first][1] for first in firsts] for one in blocks]


def _block(plan: Plan, prefix: str, first: int, period: int, nodes: list[int], own_nodes: set[int]) -> Block | None:
    """The nodes as a block; None if they give nothing, or compute the loss.

    `own_nodes`: those of all passes below these entries. A weight that other nodes read too comes from outside.
    """
    graph, inside = plan.graph, set(nodes)
    if any(graph.nodes[i].op in LOSSES for i in nodes) or graph.loss in inside:
        return None
    outs = tuple(i for i in nodes if not inside.issuperset(graph.consumers[i]))
    if not outs:
        return None
    weights: list[int] = []
    outside: list[int] = []
    for index in nodes:
        for i in graph.nodes[index].inputs:
            if i in inside or i in weights or i in outside or is_literal(plan, i):
                continue
            own = graph.nodes[i].op in ("parameter", "buffer") and own_nodes.issuperset(graph.consumers[i])
            names = (graph.nodes[i].name, *graph.nodes[i].originals)
            entries = [entry_name(prefix, first + k) for k in range(period)]
            if own and any(all(name.startswith(entry) for name in names) for entry in entries):
                weights.append(i)
            else:
                outside.append(i)
    return Block(first, tuple(nodes), tuple(weights), tuple(outside), outs)


def _runs(plan: Plan, blocks: Sequence[Block | None]) -> list[list[Block]]:
    """Group the blocks into runs that can be the turns of one loop."""
    runs: list[list[Block]] = []
    current: list[Block] = []
    for block in (*blocks, None):
        if block is not None and (not current or _follows(plan, current, block)):
            current.append(block)
            continue
        if len(current) > 1 and len(current[-1].outs) > len(_places(current[0], current[1])):
            current.pop()  # gives more values than are carried
        runs.append(current)
        current = [] if block is None else [block]
    return [run for run in runs if len(run) > 1 or (run and _carried(plan, run[0]) is not None)]


def _carried(plan: Plan, block: Block) -> tuple[int, ...] | None:
    """The values that a single block receives in the places of its results: of the same shape and dtype."""
    nodes, found = plan.graph.nodes, list[int]()
    if len(block.nodes) < LEAST_SINGLE:
        return None
    for out in block.outs:
        here = nodes[out].shape, nodes[out].dtype, nodes[out].gradient
        for i in block.outside:
            alike = (nodes[i].shape, nodes[i].dtype, nodes[i].gradient) == here and nodes[i].op not in SOURCES
            if alike and i not in found:
                found.append(i)
                break
    return tuple(found) if len(found) == len(block.outs) else None


LEAST_SINGLE = 6
"""Nodes from which on a single entry of a list gets a class of its own."""


def _places(block: Block, following: Block) -> tuple[int, ...]:
    """Positions of the previous turn's results among the values that a turn reads."""
    return tuple(following.outside.index(i) for i in block.outs if i in following.outside)


def _follows(plan: Plan, run: Sequence[Block], block: Block) -> bool:
    """True if a block can be the next turn of the loop: it alone reads all results of the last one."""
    last, places = run[-1], _places(run[-1], block)
    if len(places) != len(last.outs) or len(block.outside) != len(last.outside):
        return False
    if len(run) > 1 and places != _places(run[-2], last):
        return False
    if not {*last.nodes, *block.nodes}.issuperset(c for i in last.outs for c in plan.graph.consumers[i]):
        return False
    others = [i for place, i in enumerate(last.outside) if place not in places]
    if [i for place, i in enumerate(block.outside) if place not in places] != others:
        return False
    # What the first turn reads must exist before the loop.
    inside = {i for u in (*run, block) for i in u.nodes}
    return inside.isdisjoint(_ancestors(plan, run[0].outside, min(inside)))


def _ancestors(plan: Plan, nodes: Sequence[int], least: int) -> set[int]:
    """Ancestors of nodes, down to number `least`."""
    found: set[int] = set()
    stack = list(nodes)
    while stack:
        i = stack.pop()
        if i >= least and i not in found:
            found.add(i)
            stack.extend(plan.graph.nodes[i].inputs)
    return found


def _linked(plan: Plan, run: Sequence[Block]) -> list[Block]:
    """The turns of a loop with the values they receive and pass on, both in the order in which a turn computes them."""
    if len(run) == 1:
        carried = [_carried(plan, run[0]) or ()]
    else:
        places = _places(run[0], run[1])
        carried = [tuple(block.outside[place] for place in places) for block in run]
    outs = [*carried[1:], _last_outs(plan, run, carried[-1])]
    plain = [  # a value passed on as it is computed; the last turn need not convert it either
        all(plan.choices[i].output == plan.choices[i].given for i in (o[slot] for o in outs[:-1]))
        for slot in range(len(carried[0]))
    ]
    result = []
    for block, values, given in zip(run, carried, outs, strict=True):
        layouts = tuple(_layout_of_result(plan, block, i, raw) for i, raw in zip(given, plain, strict=True))
        result.append(replace(block, carried=values, outs=given, layouts=layouts))
    return result


def _layout_of_result(plan: Plan, block: Block, index: int, plain: bool) -> Layout:
    """The layout in which a block passes a value on: as computed if `plain`, else as all readers get it."""
    if index < 0:
        return ()
    choice = plan.choices[index]
    return choice.output if plain and set(block.nodes).isdisjoint(plan.graph.consumers[index]) else choice.given


def _last_outs(plan: Plan, run: Sequence[Block], handed: Sequence[int]) -> tuple[int, ...]:
    """What the last turn passes on in the place of each carried value; -1: that value itself, which nothing reads."""
    nodes, free = plan.graph.nodes, list(run[-1].outs)
    if len(free) == len(handed):
        return tuple(free)
    result = []
    for i in handed:
        fits = [k for k in free if i in nodes[k].inputs] or [k for k in free if nodes[k].shape == nodes[i].shape]
        result.append(fits[0] if fits else -1)
        free = [k for k in free if k != result[-1]]
    return tuple(free.pop(0) if i < 0 and free else i for i in result)
