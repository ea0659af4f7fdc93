"""The ways in which branches side by side are computed: those that take least time where they are.

Inside a bundle every operator has one strategy, so that what a way takes there is known before anything is chosen, and
parts that share nothing are chosen for on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from ...model.graph.pcg import PCG
from .bundles import Bundle, computed


def selections(pcg: PCG, bundles: Sequence[Bundle]) -> list[Mapping[int, int]]:
    """Ways for the tensors inside: the first of each, the second, and so on; none where all have only one.

    A way that reads across branches is none of theirs, since what is computed side by side stands for itself.
    """
    outer = bundles[0]
    inside = {node for branch in outer.branches for node in branch.nodes}
    allowed = {
        node: [way for way in ways if node not in inside or _apart(pcg, computed(pcg, outer, {node: way}))]
        for node, ways in pcg.members.items()
    }
    most = max((len(ways) for node, ways in allowed.items() if node in inside), default=1)
    tried = (
        {n: ways[number] if number < len(ways) else ways[0] for n, ways in allowed.items()} for number in range(most)
    )
    return [ways for ways in tried if most > 1 and _once(pcg, computed(pcg, outer, ways))]


def _apart(pcg: PCG, bundle: Bundle | None) -> bool:
    """Whether no branch holds a weight that joins one of another branch: then that would be computed there too."""
    if bundle is None:
        return False
    held = [{name for i in branch.weights for name in pcg.nodes[i].originals} for branch in bundle.branches]
    return len(set().union(*held)) == sum(map(len, held))


def _once(pcg: PCG, bundle: Bundle | None) -> bool:
    """Whether no weight is inside that joins others that are inside too."""
    if bundle is None:
        return False
    names = [name for branch in bundle.branches for i in branch.weights for name in pcg.nodes[i].originals]
    return len({*names}) == len(names)


def quickest(pcg: PCG, tried: Sequence[tuple[Mapping[int, int], Mapping[int, int]]]) -> Mapping[int, int]:
    """Of the selections tried, each with the ns of the nodes that it takes, for every part the quickest.

    Empty if that is the first way everywhere.
    """
    if len(tried) < 2:
        return {}
    parts = _parts(pcg, tried)
    chosen: dict[int, int] = {}
    for part in parts:
        costs = [sum(times[i] for i in _cones(pcg, part, ways, times)) for ways, times in tried]
        ways = tried[costs.index(min(costs))][0]
        chosen |= {node: ways[node] for node in part}
    return chosen if any(node != way for node, way in chosen.items()) else {}


def _parts(pcg: PCG, tried: Sequence[tuple[Mapping[int, int], Mapping[int, int]]]) -> list[Set[int]]:
    """The tensors inside with several ways, those together that in any selection share a node that computes them."""
    found: list[tuple[set[int], set[int]]] = []  # tensors, and what they are computed by
    for ways, times in tried:
        for node in [node for node, way in ways.items() if way in times]:
            tensors, nodes = {node}, set(_cones(pcg, {node}, ways, times))
            for others in [other for other in found if node in other[0] or not nodes.isdisjoint(other[1])]:
                found.remove(others)
                tensors |= others[0]
                nodes |= others[1]
            found.append((tensors, nodes))
    return [tensors for tensors, _ in found]


def _cones(pcg: PCG, part: Set[int], ways: Mapping[int, int], times: Mapping[int, int]) -> Iterator[int]:
    """What computes tensors inside in these ways, up to others of the graph that can be computed in several."""
    stack, seen = [ways[node] for node in part if ways[node] in times], set[int]()
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            yield index
            read = [i for i in pcg.nodes[index].inputs if i not in ways or i not in pcg.plain]
            stack += [j for j in (ways.get(i, i) for i in read) if j in times]
