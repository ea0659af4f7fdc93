"""The split of a network's graph into a tree of parts that share one or two variables.

Parts are the blocks (biconnected components) of the graph whose edges are the network's tables; further edges join what
a switch decides, so a switch lies within one block. Blocks meet in single variables: cuts of the model's graph,
boundaries of equal layers, ends of series-parallel pieces. Small blocks join the block above, so that a part is about
half a layer. A variable that ties distant parts of a model, such as a shared weight, would leave one block: it is set
aside, and belongs to the separators of all parts between its uses.

So the least cost of all parts below, for every option of a separator, is all that the rest needs to know of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...formulation.network.network import Network

FEW, MANY = 6, 60
"""Variables of a block: with at most `FEW` it joins the block above; beyond `MANY` a tie is looked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """The variables of a part, ascending; its `separator` from the part above; the indices of the parts `below`."""

    variables: tuple[int, ...]
    separator: tuple[int, ...]
    below: tuple[int, ...] = ()


def split(network: Network, few: int = FEW, many: int = MANY) -> tuple[Part, ...]:
    """The parts, each after those below it; a part with an empty separator is the last of its component."""
    near: list[set[int]] = [set() for _ in network.variables]
    for term in network.terms():
        for v in term.scope:
            near[v].update(term.scope)
    for s in network.switches:
        # What it decides may share nothing but its mode: each joins the next two, so that no cut divides them.
        row = s.scope(network.edges)
        for u, v in (*pairwise(row), *zip(row, row[2:], strict=False)):
            near[u].add(v)
            near[v].add(u)
    for v, around in enumerate(near):
        around.discard(v)
    found = _Blocks(near, few).parts()
    if max((len(p.variables) for p in found), default=0) <= many:
        return found
    decided = {s.variable for s in network.switches}.union(*(s.variables for s in network.switches))
    spans = {v: max(around) - min(around) for v, around in enumerate(near) if around and v not in decided}
    for tie in sorted(spans, key=lambda v: (-spans[v], v))[:2]:
        other = _without(near, tie, few)
        if max(len(p.variables) for p in other) < max(len(p.variables) for p in found):
            found = other
    return found


def _without(near: Sequence[set[int]], tie: int, few: int) -> tuple[Part, ...]:
    """The parts of the graph without one variable, which joins the parts between its uses."""
    rest = [set() if v == tie else around - {tie} for v, around in enumerate(near)]
    parts = list(_Blocks(rest, few, tie).parts())
    own = [sum(v in near[tie] and v not in p.separator for v in p.variables) for p in parts]
    uses = list(own)
    for k, part in enumerate(parts):
        uses[k] += sum(uses[b] for b in part.below)
    tops = [k for k, part in enumerate(parts) if not part.separator]
    total, last = sum(uses[k] for k in tops), max(k for k in tops if uses[k])
    has = [0 < used < total and k != last for k, used in enumerate(uses)]  # whether the separator has the tie
    for k, part in enumerate(parts):
        others = tuple(b for b in tops if b != last and uses[b]) if k == last else ()
        inside = own[k] > 0 or any(has[b] for b in (k, *part.below, *others))
        parts[k] = Part(
            tuple(sorted({*part.variables, tie})) if inside else part.variables,
            (*part.separator, tie) if has[k] else part.separator,
            (*part.below, *others),
        )
    return _ordered(parts)


def _ordered(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts, renumbered so that each follows those below it."""
    order: list[int] = []
    stack = [(k, False) for k, part in enumerate(parts) if not part.separator]
    while stack:
        k, done = stack.pop()
        if done:
            order.append(k)
        else:
            stack.append((k, True))
            stack += [(b, False) for b in parts[k].below]
    number = {k: n for n, k in enumerate(order)}
    return tuple(replace(parts[k], below=tuple(number[b] for b in parts[k].below)) for k in order)


@dataclass(slots=True)
class _Blocks:
    """Depth-first search for blocks (Hopcroft and Tarjan 1973); `waiting` are those whose block above is still open."""

    near: Sequence[set[int]]
    few: int
    without: int = -1
    found: list[Part] = field(default_factory=list)
    waiting: dict[int, list[tuple[set[int], tuple[int, ...]]]] = field(default_factory=dict)

    def parts(self) -> tuple[Part, ...]:
        seen = {self.without}
        for root in reversed(range(len(self.near))):
            if root not in seen:
                self._search(root, seen)
        return tuple(self.found)

    def _search(self, root: int, seen: set[int]) -> None:
        depth, low, above = {root: 0}, {root: 0}, {root: -1}
        path, stack, rest = [root], [root], {root: iter(sorted(self.near[root]))}
        while path:
            v = path[-1]
            u = next(rest[v], None)
            if u is None:
                path.pop()
                top = above[v]
                if top < 0:
                    break
                low[top] = min(low[top], low[v])
                if low[v] >= depth[top]:
                    at = stack.index(v, depth[top])  # variables above v in the stack form the block
                    self._close({top, *stack[at:]}, top)
                    del stack[at:]
            elif u not in depth:
                depth[u] = low[u] = len(path)
                above[u], rest[u] = v, iter(sorted(self.near[u]))
                path.append(u)
                stack.append(u)
            elif u != above[v]:
                low[v] = min(low[v], depth[u])
        seen.update(depth)
        self._close({root}, None)

    def _close(self, block: set[int], top: int | None) -> None:
        """Join the small blocks that hang on a block; keep the result if it is large, or the last."""
        below: list[int] = []
        queue = [v for v in block if v != top]
        while queue:
            for small, parts in self.waiting.pop(queue.pop(), ()):
                block |= small
                below += parts
        if top is not None and len(block) <= self.few:
            self.waiting.setdefault(top, []).append((block, tuple(below)))
            return
        self.found.append(Part(tuple(sorted(block)), () if top is None else (top,), tuple(sorted(below))))
        if top is not None:
            self.waiting.setdefault(top, []).append((set(), (len(self.found) - 1,)))
