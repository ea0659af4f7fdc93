"""The alternatives taken inside of parallel branches: those of least time.

Inside a bundle every operator has one strategy, so the time of an alternative is known before anything is decided.
Tensors are chosen together, in combinations, if alternatives of both need a node, or if one is needed by some
alternatives of the other only. Such parts are chosen separately.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations, islice, product
from operator import and_, or_
from typing import TypeAlias

from ...model.graph.pcg import PCG
from .bundles import Bundle, computed, find_bundles

Taken: TypeAlias = Mapping[int, int]
"""Tensors with several alternatives, each with the one taken; those that are not named take the captured one."""

MOST_COMBINATIONS = 64
"""Of the alternatives of one part that are compared."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors of a bundle that are chosen together, and the combinations of their alternatives, the captured one first.

    `nodes`: for every combination all nodes and weights of the bundle, where the rest is as captured.
    """

    tensors: frozenset[int]
    combinations: tuple[Taken, ...]
    nodes: tuple[frozenset[int], ...]


def parts_inside(pcg: PCG, bundle: Bundle) -> tuple[Part, ...]:
    """The parts of a bundle that have several combinations of alternatives.

    Combinations that compute, or join a weight of, anything outside of their branch are left out.
    """
    if not pcg.alternatives:
        return ()
    found = []
    for tensors in _connected(pcg, bundle):
        kept: dict[frozenset[int], Taken] = {}
        for taken in _combinations(pcg, tensors):
            made = computed(pcg, bundle, taken)
            if made is not None and _stays_inside(pcg, bundle, made):
                kept.setdefault(frozenset(_held(made)), taken)
        if len(kept) > 1:
            found.append(Part(frozenset(tensors), tuple(kept.values()), tuple(kept)))
    return tuple(found)


def attempts(parts: Sequence[Part]) -> list[Taken]:
    """The first combination of every part, the second of every part, and so on."""
    most = max((len(part.combinations) for part in parts), default=0)
    numbered = ([part.combinations[n if n < len(part.combinations) else 0] for part in parts] for n in range(most))
    return [dict(chain.from_iterable(taken.items() for taken in each)) for each in numbered]


def quickest(parts: Sequence[Part], tried: Sequence[tuple[Taken, Mapping[int, int]]]) -> Taken:
    """For every part the fastest combination of those tried, each with ns of the nodes inside.

    Empty if that is the captured one everywhere.
    """
    times = {node: ns for _, each in tried for node, ns in each.items()}
    chosen: dict[int, int] = {}
    for part in parts:
        costs = [
            (sum(times.get(i, 0) for i in nodes), n)
            for n, (taken, nodes) in enumerate(zip(part.combinations, part.nodes, strict=True))
            if any(every.items() >= taken.items() for every, _ in tried)
        ]
        chosen |= part.combinations[min(costs)[1]] if costs else {}
    return chosen if any(tensor != member for tensor, member in chosen.items()) else {}


def leaves_out(pcg: PCG) -> bool:
    """True if rewritten graphs may have parallel branches that a network does not offer.

    It offers those of the captured graph, as captured and with the alternatives of least time. It has neither slower
    ones that take less memory, nor branches that only rewriting makes or closes.
    """
    bundles = find_bundles(pcg) if pcg.alternatives else ()
    if any(i in pcg.members for bundle in bundles for i in bundle.nodes):
        return True
    known = {i for bundle in bundles for i in bundle.joining}
    joins = [i for i in (*pcg.of("cat"), *pcg.of("add")) if i not in known] if pcg.alternatives else []
    always = _needed_by_all(pcg) if joins else []
    return any(_may_join(pcg, always, join, pair) for join in joins for pair in combinations(pcg.nodes[join].inputs, 2))


def _may_join(pcg: PCG, always: Sequence[int], join: int, ends: Sequence[int]) -> bool:
    """True if, in some rewritten graph, two operands of a node may end branches with weights, affected by rewriting."""
    one, other = ends
    if one == other or always[other] >> one & 1 or always[one] >> other & 1:
        return False
    own = [_above(pcg, end, always[beside]) for end, beside in ((one, other), (other, one))]
    rewritten = join not in pcg.plain or any(i in pcg.members for nodes in own for i in nodes)
    return rewritten and all(any(pcg.nodes[i].op == "parameter" for i in nodes) for nodes in own)


def _above(pcg: PCG, end: int, apart: int) -> set[int]:
    """All that may compute a tensor, but for what these tensors (bits) are computed from."""
    found, stack = set[int](), [end]
    while stack:
        node = stack.pop()
        if node not in found and not apart >> node & 1:
            found.add(node)
            stack += (i for member in pcg.members.get(node, (node,)) for i in pcg.nodes[member].inputs)
    return found


def _needed_by_all(pcg: PCG) -> list[int]:
    """For every tensor, as bits, those that each way to compute it needs, itself included."""
    found: list[int] = []
    for index in range(len(pcg.nodes)):
        ways = [[*pcg.nodes[member].inputs] for member in pcg.members.get(index, (index,))]
        found.append(1 << index | reduce(and_, (reduce(or_, (found[i] for i in way), 0) for way in ways)))
    return found


def _held(bundle: Bundle) -> Iterator[int]:
    return (i for branch in bundle.branches for i in (*branch.nodes, *branch.weights))


def _stays_inside(pcg: PCG, captured: Bundle, bundle: Bundle) -> bool:
    """True if every branch holds weights of its own only, none twice, and computes nothing else of the captured graph.

    Weights of another branch, or of what is outside, would be trained in two places.
    """
    for own, branch in zip(captured.branches, bundle.branches, strict=True):
        names, held = ([name for i in b.weights for name in pcg.nodes[i].originals] for b in (own, branch))
        if len({*held}) < len(held) or not {*held} <= {*names}:
            return False
        if not pcg.plain.intersection(branch.nodes) <= {*own.nodes}:
            return False
    return True


def _combinations(pcg: PCG, tensors: Sequence[int]) -> Iterator[Taken]:
    """All combinations, at most `MOST_COMBINATIONS`: first those that take alternatives of one number."""
    members = [pcg.members[tensor] for tensor in tensors]
    columns = (tuple(m[n if n < len(m) else 0] for m in members) for n in range(max(map(len, members))))
    every = dict.fromkeys(chain(columns, islice(product(*members), MOST_COMBINATIONS)))
    return (dict(zip(tensors, taken, strict=True)) for taken in islice(every, MOST_COMBINATIONS))


def _connected(pcg: PCG, bundle: Bundle) -> list[list[int]]:
    """The tensors inside with several alternatives, grouped by what is chosen together."""
    inside, found = {*_held(bundle)}, list[tuple[set[int], set[int]]]()  # tensors, and what may compute them
    for tensor in bundle.nodes:
        if tensor not in pcg.members:
            continue
        tensors, nodes = _cone(pcg, inside, tensor)
        for others in [other for other in found if not nodes.isdisjoint(other[1])]:
            found.remove(others)
            tensors |= others[0]
            nodes |= others[1]
        found.append((tensors, nodes))
    return [sorted(tensors) for tensors, _ in found]


def _cone(pcg: PCG, inside: Set[int], tensor: int) -> tuple[set[int], set[int]]:
    """A tensor inside with those that only some of its alternatives need, and all else that only some need."""
    tensors, nodes, waiting = {tensor}, {tensor}, [tensor]
    while waiting:
        one = waiting.pop()
        ways = [_below(pcg, inside, member) for member in pcg.members[one]]
        always = set.intersection(*ways) if one in pcg.plain else set[int]()
        some = set.union(*ways) - always
        found = {i for i in some if i in pcg.members} - tensors
        waiting += found
        tensors |= found
        nodes |= some
    return tensors, nodes


def _below(pcg: PCG, inside: Set[int], member: int) -> set[int]:
    """What an alternative is computed from inside, up to tensors with several alternatives, which are included."""
    found, stack = set[int](), [member]
    while stack:
        read = {i for i in pcg.nodes[stack.pop()].inputs if i not in pcg.plain or i in inside} - found
        stack += (i for i in read if i not in pcg.members)
        found |= read
    return found
