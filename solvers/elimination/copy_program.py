"""One copy of a chain solved by a small mixed-integer program.

Weights of streams bound a copy well, but the solutions at these weights have one stream much longer than the other. The
program has a row for every stream, so that it finds solutions that balance them, and closes most of the gap that
weights leave, in some tenths of a second.
"""

from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from ..decomposition.counted import build
from ..decomposition.counted_linear import linear, unit_of
from ..wide.highs import End, near_best
from ..wide.integer import HIDDEN
from ..work import spend
from .circuit import Circuit
from .copy_pairs import condensed

_COLUMNS = 1 << 13  # of a program; that takes about a second
_COLUMN = 4e-4  # seconds for each
_NODES = 500
_SECONDS = 10.0
_UNBOUNDED = 1e15


@dataclass(frozen=True, slots=True)
class Found:
    """A lower bound (ns, -inf: unknown), and a solution within the capacities, if one was found: its cost, windows
    included, and the options of all variables.
    """

    bound: float
    cost: float = inf
    options: tuple[int, ...] = ()


def solve_copy(circuit: Circuit, gap: float, seconds: float = inf) -> Found:
    """A circuit without chains solved to about that relative gap, if the program is not too large."""
    if circuit.entries > _COLUMNS:
        return Found(-inf)
    met = {v for f in circuit.factors for v in f.scope}
    size = {v: len(circuit.kept[circuit.domain[v]]) for v in sorted(met)}
    small = condensed(circuit.factors, size)
    program = build(small.factors, small.size, circuit.network.capacities)
    spend(_COLUMN * len(program.upper))
    scale = unit_of(program)
    outcome = near_best(linear(program, scale, whole=True), gap, _NODES, min(seconds, _SECONDS))
    if outcome.end is End.INFEASIBLE:
        return Found(inf)
    proved = (outcome.bound - HIDDEN * len(program.upper)) * scale
    bound = ceil(proved) if outcome.bound > -_UNBOUNDED else -inf  # all costs are whole
    if outcome.point is None:
        return Found(bound)
    picks, _ = program.read(np.round(outcome.point).astype(np.int64).tolist().__getitem__)
    picks = dict.fromkeys(met, 0) | small.options(picks)
    cost = _cost(circuit, picks)
    if cost is None:
        return Found(bound)
    places = [picks.get(v, 0) for v in range(len(circuit.network.variables))]
    return Found(
        bound, float(cost), tuple(int(circuit.kept[d][x]) for d, x in zip(circuit.domain, places, strict=True))
    )


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
