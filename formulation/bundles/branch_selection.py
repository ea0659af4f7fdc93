"""The alternatives taken inside of parallel branches: those of least time.

Inside a bundle every operator has one strategy, so the time of an alternative is known before anything is decided, and
parts that share nothing are chosen separately.
"""

from collections.abc import Iterator, Mapping, Sequence, Set

from ...model.graph.pcg import PCG
from .bundles import Bundle, computed


def selections(pcg: PCG, bundles: Sequence[Bundle]) -> list[Mapping[int, int]]:
    """Choices of alternatives for the tensors inside: the first of each, the second, and so on; none if all have one.

    Alternatives that read across branches are left out, since branches do not depend on each other.
    """
    outer = bundles[0]
    inside = {node for branch in outer.branches for node in branch.nodes}
    allowed = {
        node: [m for m in members if node not in inside or _joins_no_other(pcg, computed(pcg, outer, {node: m}))]
        for node, members in pcg.members.items()
    }
    most = max((len(members) for node, members in allowed.items() if node in inside), default=1)
    tried = ({n: m[number] if number < len(m) else m[0] for n, m in allowed.items()} for number in range(most))
    return [choice for choice in tried if most > 1 and _joins_none(pcg, computed(pcg, outer, choice))]


def _joins_no_other(pcg: PCG, bundle: Bundle | None) -> bool:
    """True if no branch holds a weight that joins one of another branch, which would be computed there too."""
    if bundle is None:
        return False
    held = [{name for i in branch.weights for name in pcg.nodes[i].originals} for branch in bundle.branches]
    return len(set().union(*held)) == sum(map(len, held))


def _joins_none(pcg: PCG, bundle: Bundle | None) -> bool:
    """True if no weight inside joins others that are inside too."""
    if bundle is None:
        return False
    names = [name for branch in bundle.branches for i in branch.weights for name in pcg.nodes[i].originals]
    return len({*names}) == len(names)


def quickest(pcg: PCG, tried: Sequence[tuple[Mapping[int, int], Mapping[int, int]]]) -> Mapping[int, int]:
    """For every part the fastest of the choices tried, each with ns of its nodes.

    Empty if that is the first alternative everywhere.
    """
    if len(tried) < 2:
        return {}
    parts = _parts(pcg, tried)
    chosen: dict[int, int] = {}
    for part in parts:
        costs = [sum(times[i] for i in _cones(pcg, part, choice, times)) for choice, times in tried]
        choice = tried[costs.index(min(costs))][0]
        chosen |= {node: choice[node] for node in part}
    return chosen if any(node != member for node, member in chosen.items()) else {}


def _parts(pcg: PCG, tried: Sequence[tuple[Mapping[int, int], Mapping[int, int]]]) -> list[Set[int]]:
    """The tensors inside with several alternatives, grouped if some choice computes them by a common node."""
    found: list[tuple[set[int], set[int]]] = []  # tensors, and what they are computed by
    for choice, times in tried:
        for node in [node for node, member in choice.items() if member in times]:
            tensors, nodes = {node}, set(_cones(pcg, {node}, choice, times))
            for others in [other for other in found if node in other[0] or not nodes.isdisjoint(other[1])]:
                found.remove(others)
                tensors |= others[0]
                nodes |= others[1]
            found.append((tensors, nodes))
    return [tensors for tensors, _ in found]


def _cones(pcg: PCG, part: Set[int], choice: Mapping[int, int], times: Mapping[int, int]) -> Iterator[int]:
    """The nodes that compute tensors inside, up to other tensors with several alternatives."""
    stack, seen = [choice[node] for node in part if choice[node] in times], set[int]()
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            yield index
            read = [i for i in pcg.nodes[index].inputs if i not in choice or i not in pcg.plain]
            stack += [j for j in (choice.get(i, i) for i in read) if j in times]
