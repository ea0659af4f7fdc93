"""Random cost networks of a shape, a width, a domain size and a tightness of the capacities; the same for a seed.

An assignment is planted: no pair of it is forbidden, and every capacity but an infeasible one holds what it uses.
Cheap options use much. Of the edges of a matching, the pair of least uses is forbidden, so that the least uses of
single variables add up to less than any assignment needs.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..formulation.network.network import INFINITE, Edge, Network, Table, Variable

Pairs = list[tuple[int, int]]

MOST_COST = 1000
MOST_PAIR_COST = 500
FORBIDDEN = 0.15
"""The share of an edge's pairs that are forbidden."""


@dataclass(frozen=True, slots=True)
class Family:
    """`variables` in a `shape` of treewidth at most `width`, with `domain` options each.

    With several `capacities` each variable is alive at some of them in a row.
    """

    shape: str
    variables: int
    width: int
    domain: int
    tightness: str
    capacities: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        times = "" if self.capacities == 1 else f" {self.capacities} capacities"
        return f"{self.shape} {self.variables} width {self.width} domain {self.domain} {self.tightness}{times}"


def network(family: Family) -> Network:
    """The network of a family. KeyError: no such shape or tightness."""
    rng = np.random.default_rng([zlib.crc32(family.name.encode()), family.seed])
    n, d = family.variables, family.domain
    pairs = SHAPES[family.shape](n, family.width, rng)
    cost = rng.integers(0, MOST_COST, (n, d))
    use = _uses(cost, family.capacities, rng)
    least = use.sum(axis=2).argmin(axis=1)
    planted = np.where(rng.random(n) < 0.5, least, rng.integers(0, d, n))
    matched = _matching(pairs, n)
    for u, v in matched:
        if (planted[u], planted[v]) == (least[u], least[v]):
            planted[v] = (planted[v] + 1) % d
    tables = []
    for u, v in pairs:
        table = np.where(rng.random((d, d)) < FORBIDDEN, INFINITE, rng.integers(0, MOST_PAIR_COST, (d, d)))
        if (u, v) in matched:
            table[least[u], least[v]] = INFINITE
        table[planted[u], planted[v]] = rng.integers(0, MOST_PAIR_COST)
        tables.append(table.astype(np.int64))
    edges = tuple(Edge(u, v, table) for (u, v), table in zip(pairs, tables, strict=True))
    limits = TIGHTNESS[family.tightness](cost, use, planted, [e for e in edges if (e.u, e.v) in matched])
    variables = tuple(Variable(f"x{v}", cost[v], use[v, :, : len(limits)]) for v in range(n))
    return Network(variables, edges, tuple(limits))


def _uses(cost: Table, capacities: int, rng: np.random.Generator) -> Table:
    """[variables, options, capacities]: what is cheap uses much, while the variable is alive."""
    n, d = cost.shape
    amount = 1 + (MOST_COST - cost) * rng.integers(50, 150, (n, d)) // 100
    first = np.sort(rng.integers(0, capacities, n))
    last = np.minimum(first + rng.integers(1, max(capacities, 2), n), capacities)
    times = np.arange(capacities)
    alive = (first[:, None] <= times) & (times < last[:, None])
    uses: Table = amount[:, :, None] * alive[:, None, :]
    return uses


# Shapes: pairs of variables


def _grid(n: int, width: int, rng: np.random.Generator) -> Pairs:
    return [
        (v, w)
        for v in range(n)
        for w in ((v + 1,) if (v + 1) % width else ()) + (v + width,)
        if w < n
    ]  # fmt: skip


def _tree(n: int, width: int, rng: np.random.Generator) -> Pairs:
    """A k-tree: every further variable joins a clique of `width` that is there."""
    first = tuple(range(min(width + 1, n)))
    cliques = [tuple(w for w in first if w != v) for v in first]
    pairs = [(u, v) for v in first for u in range(v)]
    for v in range(len(first), n):
        chosen = cliques[int(rng.integers(len(cliques)))]
        pairs += [(u, v) for u in chosen]
        cliques += [tuple(w for w in (*chosen, v) if w != u) for u in chosen]
    return pairs


def _chords(n: int, width: int, rng: np.random.Generator) -> Pairs:
    """A chain, and as many chords that span at most `width` of it."""
    chords = {(v, v + int(rng.integers(2, width + 1))) for v in range(n) if width > 1}
    return sorted({(v, v + 1) for v in range(n - 1)} | {(u, v) for u, v in chords if v < n})


SHAPES: dict[str, Callable[[int, int, np.random.Generator], Pairs]] = {
    "grid": _grid,
    "tree": _tree,
    "chords": _chords,
}


def _matching(pairs: Pairs, n: int) -> set[tuple[int, int]]:
    """Pairs of which no two share a variable, taken in their order."""
    free, taken = [True] * n, set()
    for u, v in pairs:
        if free[u] and free[v]:
            free[u] = free[v] = False
            taken.add((u, v))
    return taken


# Tightness: capacities


def _none(cost: Table, use: Table, planted: Table, matched: list[Edge]) -> list[int]:
    return []


def _tight(cost: Table, use: Table, planted: Table, matched: list[Edge]) -> list[int]:
    """What the planted assignment uses."""
    return [int(x) for x in _total(use, planted)]


def _loose(cost: Table, use: Table, planted: Table, matched: list[Edge]) -> list[int]:
    """Halfway from there to what the cheapest options of single variables use."""
    greedy = _total(use, cost.argmin(axis=1))
    return [int(x + max(0, y - x) // 2) for x, y in zip(_total(use, planted), greedy, strict=True)]


def _infeasible(cost: Table, use: Table, planted: Table, matched: list[Edge]) -> list[int]:
    """As tight, but where matched pairs need most beyond single variables there is one less than all need together."""
    least = use.min(axis=1)
    beyond = np.zeros(use.shape[2], np.int64)
    for e in matched:
        both = use[e.u][:, None] + use[e.v]
        beyond += both[e.cost < INFINITE].min(axis=0) - least[e.u] - least[e.v]
    limits, r = _tight(cost, use, planted, matched), int(beyond.argmax())
    limits[r] = int(least[:, r].sum() + beyond[r]) - 1
    return limits


TIGHTNESS: dict[str, Callable[[Table, Table, Table, list[Edge]], list[int]]] = {
    "none": _none,
    "loose": _loose,
    "tight": _tight,
    "infeasible": _infeasible,
}


def _total(use: Table, choice: Table) -> Table:
    total: Table = use[np.arange(len(choice)), choice].sum(axis=0)
    return total
