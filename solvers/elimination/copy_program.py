"""Good solutions of one copy of a chain, by a small mixed-integer program.

Weights of streams bound a copy well, but the solutions at these weights have one stream much longer than the other, and
label lists get long within the gap that they leave. The program has a row for every stream, and finds one that balances
them at its first node, as a rule.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from ..decomposition.counted import build
from ..decomposition.counted_linear import linear
from ..wide.highs import good_point
from ..wide.integer import RANGE
from ..work import spend
from .circuit import Circuit

_COLUMNS = 1 << 13  # of a program; that takes about a second
_COLUMN = 1e-4  # seconds for each
_NODES = 20
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """A solution within the capacities: its cost, windows included, and the options of all variables."""

    cost: int
    options: tuple[int, ...]


def good_solution(circuit: Circuit, gap: float, seconds: float = inf) -> Found | None:
    """A solution of a circuit without chains about that relative gap from the best; None if none was found, or the
    program would be too large."""
    if sum(np.count_nonzero(f.time < inf) for f in circuit.factors) > _COLUMNS:
        return None
    met = {v for f in circuit.factors for v in f.scope}
    size = {v: len(circuit.kept[circuit.domain[v]]) for v in sorted(met)}
    program = build(circuit.factors, size, circuit.network.capacities)
    spend(_COLUMN * len(program.upper))
    scale = max(1.0, max(map(abs, program.cost), default=0) / RANGE)
    point = good_point(linear(program, scale, whole=True), gap, _NODES, min(seconds, _SECONDS))
    if point is None:
        return None
    picks, _ = program.read(np.round(point).astype(np.int64).tolist().__getitem__)
    cost = _cost(circuit, picks)
    places = [picks.get(v, 0) for v in range(len(circuit.network.variables))]
    options = tuple(int(circuit.kept[d][x]) for d, x in zip(circuit.domain, places, strict=True))
    return None if cost is None else Found(cost, options)


def _cost(circuit: Circuit, picks: dict[int, int]) -> int | None:
    """What options cost, among those left, windows included; None if they are forbidden or use too much."""
    cost, streams, use = 0.0, dict[int, list[int]](), np.zeros(len(circuit.network.capacities))
    for f in circuit.factors:
        at = tuple(picks[v] for v in f.scope)
        cost += f.time[at]
        if f.use is not None:
            use += f.use[at]
        for w, table in f.streams:
            own = streams.setdefault(w, [0] * len(table))
            for k in range(len(table)):
                own[k] += int(table[k][at])
    if cost == inf or (use > np.array(circuit.network.capacities)).any():
        return None
    return int(cost) + sum(map(max, streams.values()))
