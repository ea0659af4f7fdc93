"""Prunes pairs of graphs with equal fingerprints to candidates that no other pair implies (TASO §3).

The steps, in order; each is counted:
    pairs         two graphs that give the same values at all trials
    inputs        one side reads all variables that the other reads
    common        the sides share no value or application, which would not be part of the rule
    direct        no third graph, smaller than both, gives these values: two rules with it say more
    renamed       one per renaming of variables, order of outputs and order of sides
    general       no instance of a rule with more variables, unpartitioned ones, or ones of any size
    basic         does not follow from smaller rules (`consequences`)
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from ...formulation.substitution.rule import Tensor
from .enumeration import RuleGraph
from .expressions import Pair, canonical, identified, kinds_of, operators, read, renamed, side
from .operator_sets import OperatorSet
from .pool import Pool

STEPS = ("pairs", "inputs", "common", "direct", "renamed", "general", "basic")


def groups(found: Iterable[RuleGraph], pools: Sequence[Pool]) -> list[list[RuleGraph]]:
    """Groups of two or more graphs with equal values in all pools."""
    by_value: dict[tuple[int, ...], list[RuleGraph]] = {}
    for graph in found:
        by_value.setdefault(tuple(sorted(graph.sinks)), []).append(graph)
    equal = [group for group in by_value.values() if len(group) > 1]
    for pool in pools:
        equal = [part for group in equal for part in _refined(group, pool) if len(part) > 1]
    return equal


def _refined(group: Sequence[RuleGraph], pool: Pool) -> Iterator[list[RuleGraph]]:
    parts: dict[tuple[int, ...], list[RuleGraph]] = {}
    for graph in group:
        values = _again(graph, pool)
        if values is not None:
            parts.setdefault(tuple(values.get(s, s) for s in sorted(graph.sinks)), []).append(graph)
    yield from parts.values()


def _again(graph: RuleGraph, pool: Pool) -> dict[int, int] | None:
    """The numbers of a graph's values in another pool; None if it does not apply there."""
    values: dict[int, int] = {}
    for place, (application, results) in enumerate(zip(graph.applications, graph.results, strict=True), 1):
        arguments = tuple(values.get(a, a) for a in application[1:])
        made = pool.apply(application[0], arguments, keep=place < len(graph.applications))
        if not made:
            return None
        values |= dict(zip(results, made, strict=True))
    return values


def candidates(equal: Iterable[Sequence[RuleGraph]], chosen: OperatorSet) -> tuple[dict[Pair, bool], Counter[str]]:
    """Pairs in a fixed order, each with True if it follows from smaller rules; and the count after every step.

    A pair follows where graphs of the same values, none larger than both, lead from one side to the other, each sharing
    a part with the next: what is not shared is a rule of smaller graphs.
    """
    left: Counter[str] = Counter()
    kinds = kinds_of(chosen.variables)
    first = frozenset(range(len(chosen.variables)))
    found: dict[Pair, bool] = {}
    for group in equal:
        lengths = [len(graph.applications) for graph in group]
        least = min(lengths)
        parts = {most: _components(group, most) for most in set(lengths)}
        for (i, a), (j, b) in combinations(enumerate(group), 2):
            left["pairs"] += 1
            variables = [(graph.reads | set(graph.sinks)) & first for graph in (a, b)]
            if not (variables[0] <= variables[1] or variables[1] <= variables[0]):
                continue
            left["inputs"] += 1
            if _shared(a, b):
                continue
            left["common"] += 1
            if least < min(lengths[i], lengths[j]):
                continue
            left["direct"] += 1
            used = variables[0] | variables[1]
            if any(v in used and not used.issuperset(kind[:n]) for kind in kinds for n, v in enumerate(kind)):
                continue  # found with the first variables of a kind too
            outputs = sorted(a.sinks)
            pair = side(a, outputs), side(b, outputs)
            if len(outputs) > 1 and not any(map(_entangled, pair)):
                continue  # two independent rules
            linked = parts[max(lengths[i], lengths[j])]
            found[pair] = found.get(pair, False) or linked[i] == linked[j]
    return found, left


def _inside(graph: RuleGraph) -> frozenset[int]:
    """Intermediate values: made and read."""
    return frozenset(v for results in graph.results for v in results) - frozenset(graph.sinks)


def _shared(a: RuleGraph, b: RuleGraph) -> bool:
    """True if two graphs share an intermediate value or an application."""
    return not (_inside(a).isdisjoint(_inside(b)) and set(a.applications).isdisjoint(b.applications))


def _components(group: Sequence[RuleGraph], most: int) -> list[int]:
    """A number per graph, equal if graphs of at most `most` operators that share something link them."""
    part = list(range(len(group)))
    owner: dict[object, int] = {}

    def root(i: int) -> int:
        while part[i] != i:
            part[i] = part[part[i]]
            i = part[i]
        return i

    for i, graph in enumerate(group):
        for thing in (*graph.applications, *_inside(graph)) if len(graph.applications) <= most else ():
            part[root(i)] = root(owner.setdefault(thing, i))
    return [root(i) for i in range(len(group))]


def _entangled(one: tuple[object, ...]) -> bool:
    """True if the outputs of a side share an application."""
    return any(operators(a) & operators(b) for a, b in combinations(one, 2))


def renamings(
    found: Mapping[Pair, bool], kinds: Sequence[Sequence[int]], commutative: frozenset[int]
) -> dict[Pair, bool]:
    """Every pair once, in canonical names."""
    kept: dict[Pair, bool] = {}
    for pair, follows in found.items():
        key = canonical(pair, kinds, commutative)
        kept[key] = kept.get(key, False) or follows
    return kept


def general(found: Iterable[Pair], variables: Sequence[Tensor], commutative: frozenset[int]) -> list[Pair]:
    """The pairs, in canonical names, that are not instances of others."""
    kinds, every = kinds_of(variables), frozenset(found)
    instances = {
        canonical(instance, kinds, commutative) for pair in every for instance in identified(pair, kinds, commutative)
    }
    return [
        pair
        for pair in sorted(every - instances, key=repr)
        if not any(plainer in every for plainer in _plainer(pair, variables, kinds, commutative))
    ]


def _plainer(
    pair: Pair, variables: Sequence[Tensor], kinds: Sequence[Sequence[int]], commutative: frozenset[int]
) -> Iterator[Pair]:
    """The pair with some variables replaced by more general ones: unpartitioned, or of any size."""
    used = sorted(read(pair[0]) | read(pair[1]))
    special = [v for v in used if any(_covers(t, variables[v]) for t in variables)]
    for count in range(1, len(special) + 1):
        for replaced in combinations(special, count):
            names: dict[int, int] = {}
            for old in replaced:
                wider = (v for v, t in enumerate(variables) if _covers(t, variables[old]))
                new = next((v for v in wider if v not in used and v not in names.values()), None)
                if new is not None:
                    names[old] = new
            if len(names) == count:
                a, b = (tuple(renamed(e, names, commutative) for e in one) for one in pair)
                yield canonical((a, b), kinds, commutative)


def _covers(wide: Tensor, narrow: Tensor) -> bool:
    """True if one variable is unpartitioned and of any size, the other the same but partitioned or of given sizes."""
    if any(degree != 1 for degree in (*wide.degrees, wide.replicas)) or any(dim.isdigit() for dim in wide.dims):
        return False
    if len(wide.dims) != len(narrow.dims) or replace(wide, name=narrow.name) == narrow:
        return False
    return all(a == b or b.isdigit() for a, b in zip(wide.dims, narrow.dims, strict=True))
