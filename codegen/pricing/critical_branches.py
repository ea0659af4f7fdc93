"""Parallel branches: only the slowest coordinate counts for time, and the fullest for memory."""

from collections import Counter
from dataclasses import replace

from ...formulation.bundles.bundles import inside
from ...formulation.strategies.tensor_classes import Classes
from ...model.graph.buffer_updates import updated
from ..plan.plan import Plan
from .price_items import StagePrice


def critical_path(plan: Plan, classes: Classes, price: StagePrice) -> StagePrice:
    """The price with, of every bundle, the times of the slowest coordinate and the memory of the fullest."""
    found, changed = plan.bundles, updated(plan.graph)
    if not found:
        return price
    path: dict[int, list[tuple[int, int]]] = {}  # node -> the bundles it is inside of, innermost last, and its place
    for join in sorted(found, key=lambda join: -len(found[join].nodes)):
        for i, place in inside(found[join], plan.choices[join].joins[1:]):
            if not classes.constant[i] or i in changed:  # constants are everywhere
                path.setdefault(i, []).append((join, place))
    times, sizes = Counter[tuple[tuple[int, int], ...]](), Counter[tuple[tuple[int, int], ...]]()
    for item in price.items:
        times[tuple(path.get(item.at, ()))] += item.total_ns
    for kept in price.kept:
        sizes[tuple(path.get(kept.node, ()))] += kept.bytes
    slow, full = _critical(times), _critical(sizes)
    return replace(
        price,
        items=[item for item in price.items if all(slow[join] == at for join, at in path.get(item.at, ()))],
        kept=[kept for kept in price.kept if all(full[join] == at for join, at in path.get(kept.node, ()))],
    )


def _critical(amounts: Counter[tuple[tuple[int, int], ...]]) -> dict[int, int]:
    """For every bundle the coordinate with the largest amount; inner bundles first, since only their largest counts."""
    found: dict[int, int] = {}
    left = dict(amounts)
    while any(left):
        depth = max(map(len, left))
        sums: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
        for (*outer, (join, at)), amount in [(p, n) for p, n in left.items() if len(p) == depth]:
            of_join = sums.setdefault((*outer, (join, -1)), {})
            of_join[at] = of_join.get(at, 0) + amount
            del left[*outer, (join, at)]
        for (*outer, (join, _)), by_place in sums.items():
            found[join] = min(by_place, key=lambda at: (-by_place[at], at))
            left[tuple(outer)] = left.get(tuple(outer), 0) + by_place[found[join]]
    return found
