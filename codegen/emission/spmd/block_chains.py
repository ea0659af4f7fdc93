"""Repeated blocks: layers of the user's model with the same structure and the same choices become one class and a loop.

A unit is what the model computes below one entry of a list (`layers.3`), or below a few that repeat together (`0`
linear, `1` relu). Units form a chain: each hands values to the next, the same number everywhere; all else that they
read from outside is the same for all. A model that runs a list several times (recycling) has one loop for every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ....model.graph.layout import Layout
from ....model.graph.pcg import SOURCES
from ....model.graph.segments import LIST_INDEX, Entries, list_above, lists, with_glue
from ....model.operators.loss import LOSSES
from ...plan.plan import Plan
from ..common.names import is_literal
from . import recomputation
from .repeated_blocks import Block, BlockChain, NodeKinds, again, entry_name, signature, steady

PERIODS = (1, 2, 3, 4)


def chains(plan: Plan, looks: NodeKinds, alone: bool = False) -> tuple[BlockChain, ...]:
    """The loops of a plan's program, in the order of the model; `alone`: also those of one turn, as stages may have."""
    nodes = enumerate(plan.graph.nodes)
    known = lists(plan.graph, [i for i, node in nodes if node.op not in SOURCES and not is_literal(plan, i)])
    # What runs beside something else is written by itself.
    apart = {m for i, c in enumerate(plan.choices) if c.beside or c.joins for m in _prefixes(plan.graph.nodes[i].path)}
    known = {prefix: entries for prefix, entries in known.items() if prefix not in apart}
    above = {prefix: list_above(prefix, known) for prefix in known}
    found: list[BlockChain] = []
    for prefix in known:
        if above[prefix] is None:
            found += _of_lists(plan, prefix, known, above, looks, alone)
    return tuple(sorted(found, key=lambda chain: chain.units[0].nodes[0]))


def _prefixes(path: str) -> list[str]:
    """The lists that a node is below."""
    return [path[: match.start()] for match in LIST_INDEX.finditer(path)]


def _of_lists(
    plan: Plan,
    prefix: str,
    known: Mapping[str, Entries],
    above: Mapping[str, str | None],
    looks: NodeKinds,
    alone: bool,
) -> list[BlockChain]:
    """The loops over a list, and over lists inside of it where its own do not reach; or only the latter, if better."""
    outer = _of_list(plan, prefix, known[prefix], looks, alone)
    inner = [c for below in known if above[below] == prefix for c in _of_lists(plan, below, known, above, looks, alone)]
    covered = {i for chain in outer for i in chain.nodes}
    kept = [chain for chain in inner if covered.isdisjoint(chain.nodes)]
    return inner if _gain(inner) > 1.2 * _gain(outer + kept) else outer + kept


def _of_list(plan: Plan, prefix: str, entries: Entries, looks: NodeKinds, alone: bool) -> list[BlockChain]:
    """The loops over one list, with the period that saves most."""
    passes = [with_glue(plan.graph, prefix, one) for one in _passes(plan, entries)]
    best: list[BlockChain] = []
    for period in PERIODS:
        made = _of_period(plan, prefix, passes, period, looks, alone and period == 1)
        if _gain(made) > 1.2 * _gain(best):
            best = made
    return best


def _gain(made: Sequence[BlockChain]) -> int:
    """How many nodes need not be written, because another unit of the same class has them; lists of many runs cost."""
    return sum(
        len(chain.nodes) * (1 + (len(chain.units) == 1))  # one that stands alone is another stage's too
        - sum(len(nodes) for way in chain.ways for nodes in {u.signature: u.nodes for u in chain.passes[way]}.values())
        - 2 * sum(1 for _ in groupby(u.signature for u in chain.units))
        for chain in made
    )


def _passes(plan: Plan, entries: Entries) -> list[Entries]:
    """The nodes of every pass over a list: one begins where the entries start again, with the weights that they had."""
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
    plan: Plan, prefix: str, passes: Sequence[Entries], period: int, looks: NodeKinds, alone: bool
) -> list[BlockChain]:
    numbers = sorted(number for entries in passes for number in entries)
    firsts = range(numbers[0], numbers[-1] + 2 - period, period)
    homes = {f: {i for e in passes for k in range(period) for i in e.get(f + k, ())} for f in firsts}
    runs = []
    for entries in passes:
        units = []
        for first in firsts:
            nodes = sorted(i for k in range(period) for i in entries.get(first + k, ()))
            units.append(_unit(plan, prefix, first, period, nodes, homes[first]) if nodes else None)
        runs.append(_runs(plan, units))
    result = []
    least = 1 if alone and len(passes) == 1 else 2
    for group in _in_all(runs, least):
        linked = [_linked(plan, run) for run in group]
        signed = tuple(tuple(_signed(plan, prefix, u, looks) for u in run) for run in linked)
        made = again(plan, BlockChain(prefix, period, signed), looks)
        if made is not None and steady(plan, made) and recomputation.fits(plan, made):
            result.append(made)
    return result


def _signed(plan: Plan, prefix: str, unit: Block, looks: NodeKinds) -> Block:
    return replace(unit, signature=(signature(plan, prefix, unit, looks), recomputation.inside(plan, prefix, unit)))


def _in_all(runs: Sequence[Sequence[Sequence[Block]]], least: int) -> Iterator[list[list[Block]]]:
    """The pieces of runs that every pass has, each as its units in every pass; `runs[p]` are those of pass p.

    Pieces have at least so many units.
    """
    units = [{unit.first: (number, unit) for number, run in enumerate(one) for unit in run} for one in runs]
    common = sorted(set(units[0]).intersection(*units))
    for _, group in groupby(common, key=lambda first: [one[first][0] for one in units]):
        firsts = list(group)
        if len(firsts) >= least:
            yield [[one[first][1] for first in firsts] for one in units]


def _unit(plan: Plan, prefix: str, first: int, period: int, nodes: list[int], home: set[int]) -> Block | None:
    """The nodes as a unit, unless they give nothing or compute what must be computed once.

    `home`: the nodes of all passes below these entries; weights that are read elsewhere too come from outside.
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
            own = graph.nodes[i].op in ("parameter", "buffer") and home.issuperset(graph.consumers[i])
            names = (graph.nodes[i].name, *graph.nodes[i].originals)
            entries = [entry_name(prefix, first + k) for k in range(period)]
            if own and any(all(name.startswith(entry) for name in names) for entry in entries):
                weights.append(i)
            else:
                outside.append(i)
    return Block(first, tuple(nodes), tuple(weights), tuple(outside), outs)


def _runs(plan: Plan, units: Sequence[Block | None]) -> list[list[Block]]:
    """Units that can be the turns of one loop."""
    runs: list[list[Block]] = []
    current: list[Block] = []
    for unit in (*units, None):
        if unit is not None and (not current or _follows(plan, current, unit)):
            current.append(unit)
            continue
        if len(current) > 1 and len(current[-1].outs) > len(_places(current[0], current[1])):
            current.pop()  # gives more than is handed on
        runs.append(current)
        current = [] if unit is None else [unit]
    return [run for run in runs if len(run) > 1 or (run and _carried(plan, run[0]) is not None)]


def _carried(plan: Plan, unit: Block) -> tuple[int, ...] | None:
    """What a unit that stands alone is handed by what comes before it, in the places of what it gives: alike values."""
    nodes, found = plan.graph.nodes, list[int]()
    if len(unit.nodes) < LEAST_ALONE:
        return None
    for out in unit.outs:
        here = nodes[out].shape, nodes[out].dtype, nodes[out].gradient
        for i in unit.outside:
            alike = (nodes[i].shape, nodes[i].dtype, nodes[i].gradient) == here and nodes[i].op not in SOURCES
            if alike and i not in found:
                found.append(i)
                break
    return tuple(found) if len(found) == len(unit.outs) else None


LEAST_ALONE = 6
"""Nodes that make an entry of a list a class of its own where no other entry is beside it."""


def _places(unit: Block, following: Block) -> tuple[int, ...]:
    """Where among the values that a turn reads are those that the turn before gives."""
    return tuple(following.outside.index(i) for i in unit.outs if i in following.outside)


def _follows(plan: Plan, run: Sequence[Block], unit: Block) -> bool:
    """Whether a unit can be the next turn of the loop: it alone reads all that the last one gives."""
    last, places = run[-1], _places(run[-1], unit)
    if len(places) != len(last.outs) or len(unit.outside) != len(last.outside):
        return False
    if len(run) > 1 and places != _places(run[-2], last):
        return False
    if not {*last.nodes, *unit.nodes}.issuperset(c for i in last.outs for c in plan.graph.consumers[i]):
        return False
    others = [i for place, i in enumerate(last.outside) if place not in places]
    if [i for place, i in enumerate(unit.outside) if place not in places] != others:
        return False
    # What the first turn reads must exist before the loop.
    inside = {i for u in (*run, unit) for i in u.nodes}
    return inside.isdisjoint(_ancestors(plan, run[0].outside, min(inside)))


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


def _linked(plan: Plan, run: Sequence[Block]) -> list[Block]:
    """The turns of a loop with what each is handed and gives, both in the order in which a turn computes them."""
    if len(run) == 1:
        carried = [_carried(plan, run[0]) or ()]
    else:
        places = _places(run[0], run[1])
        carried = [tuple(unit.outside[place] for place in places) for unit in run]
    outs = [*carried[1:], _last_outs(plan, run, carried[-1])]
    plain = [  # a value that is handed on as it is computed; the last turn need not convert it either
        all(plan.choices[i].output == plan.choices[i].given for i in (o[slot] for o in outs[:-1]))
        for slot in range(len(carried[0]))
    ]
    result = []
    for unit, values, given in zip(run, carried, outs, strict=True):
        layouts = tuple(_handed(plan, unit, i, raw) for i, raw in zip(given, plain, strict=True))
        result.append(replace(unit, carried=values, outs=given, layouts=layouts))
    return result


def _handed(plan: Plan, unit: Block, index: int, plain: bool) -> Layout:
    """In which layout a unit gives a value: as it is computed where that is the rule, else as all readers get it."""
    if index < 0:
        return ()
    choice = plan.choices[index]
    return choice.output if plain and set(unit.nodes).isdisjoint(plan.graph.consumers[index]) else choice.given


def _last_outs(plan: Plan, run: Sequence[Block], handed: Sequence[int]) -> tuple[int, ...]:
    """What the last turn gives in the place of each value that it is handed; -1: that value, which nobody reads."""
    nodes, free = plan.graph.nodes, list(run[-1].outs)
    if len(free) == len(handed):
        return tuple(free)
    result = []
    for i in handed:
        fits = [k for k in free if i in nodes[k].inputs] or [k for k in free if nodes[k].shape == nodes[i].shape]
        result.append(fits[0] if fits else -1)
        free = [k for k in free if k != result[-1]]
    return tuple(free.pop(0) if i < 0 and free else i for i in result)
