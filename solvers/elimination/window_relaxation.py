"""Relaxation of windows: the longest of their streams becomes a weighted sum of the streams.

    max_k S_wk  =  max over a_w of Σ_k a_wk S_wk,      a_wk ≥ 0,  Σ_k a_wk = 1           ∀ windows w

So any weights give a lower bound, whose network has no windows. Together with prices λ of capacities,

    L(a, λ) = min_x cost(x) + Σ_wk a_wk S_wk(x) + Σ_r λ_r (use_r(x) - M_r)

is concave, and every solution is a cut, as in `memory_price.py`; equal windows share weights, those of a chain's copies
and of other equal layers, whose tables then stay equal. Kelley's method maximises the minimum of the cuts; where that
does not raise the bound, the next point is nearer to the best one.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, prod

import numpy as np

from ...formulation.network.network import INFINITE, Window
from ..protocol import Search
from ..work import LINEAR_PROGRAM, spend
from .circuit import Circuit, Weights
from .copy_descent import offer_descended
from .copy_mixtures import Mixtures
from .crossover import crossed
from .factors import Factor, dense
from .kernels import Bools, Floats
from .memory_price import LP_SECONDS, Price, at_price, least_use_of
from .order import restrict
from .tables import Tables

_GRAIN = 1 << 12  # weights are multiples of one part of this, so that sums are exact
_LEAST = 1 / 256  # of any stream's weight at first, so that ties go to less of the others
_ROUNDS, _ROUGH = 40, 3
_WORTH = 0.1  # of what is left to the ceiling: a rise that begins the rounds of a rough search again
_FARTHER, _NEARER, _NEAREST = 2.0, 0.5, 0.1  # what a step from the best point is multiplied by if it raises the bound
_LITTLE, _IDLE = 0.05, 5  # share of what cuts allow, and steps that raise the bound by less, after which it is left
_CLOSE, _OF_GAP = 1e-6, 0.1  # of the bound, and of the gap of the search, likewise
_ENOUGH = 0.05  # of the gap: a bound that can rise by less is left to lists
_FIRST, _GROWTH = 0.1, 8.0  # the first price adds at most a tenth of the cost
_BEYOND = 2.0  # or so many times what is left to the ceiling
_COARSE = 0.1  # a gap that a few evaluations reach
_SHARED = 2.0  # times the work: what equal layers would take by themselves, from which leaving options out does not pay
_NEAR, _NARROWED = 0.05, 0.5  # slack, of the bound and of that before, from which leaving options out pays


@dataclass(frozen=True, slots=True, eq=False)
class WindowPrice:
    """The best weights found, the best price at these weights, and costs (without constant) and uses of solutions.

    They are of `circuit`, which has all solutions below the ceiling of the search. `mix` are solutions that the relaxed
    one is mixed from, with their shares; `mixtures` hold all that were found.
    """

    circuit: Circuit
    weights: Weights
    price: Price
    cuts: tuple[tuple[int, ...], ...] = ()
    mix: tuple[tuple[float, tuple[int, ...]], ...] = ()
    mixtures: Mixtures | None = None

    def restricted(self, reach: int, until: float) -> Circuit | None:
        """The circuit without what is in no solution of cost up to `reach`; None if nothing is left."""
        through = self.circuit.backward(self.price.slots, until)
        return restrict(self.circuit, through, self.price.max_total(self.circuit, reach), ())

    def smaller(self, reach: int, until: float) -> Circuit | None:
        """As `restricted`, but the circuit itself where that takes less work: equal layers share what is left whole."""
        work = self.circuit.size[1]
        if sum(prod(bucket.dims) for bucket in self.circuit.buckets) > _SHARED * work:
            return self.circuit
        found = self.restricted(reach, until)
        return self.circuit if found is not None and found.size[1] >= work else found

    @property
    def is_mixed(self) -> bool:
        """True if several streams of a window have more than the least weight: else one of them is the longest."""
        return any(max(own) < 1 - len(own) * _LEAST for own in self.weights.values())


def weighted_factors(factors: Iterable[Factor], weights: Weights) -> list[Factor]:
    """The factors with the weighted sum of their streams, rounded down, in their costs; equal ones share tables."""
    known: dict[Hashable, Floats] = {}

    def total(f: Factor) -> Factor:
        key = id(f.time), *(x for w, table in f.streams for x in (weights[w], id(table)))
        if key not in known:
            known[key] = f.priced(1, (), weights)
        return replace(f, time=known[key], streams=())

    return [total(f) if f.streams else f for f in factors]


class Cuts:
    """Cuts (cost, streams..., use...) of solutions of a circuit, and what they say of a point (weights, prices)."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        streams = {w: len(table) for f in circuit.factors for w, table in f.streams}
        self.alike = alike(circuit.network.windows, streams)
        self.counts = {w: k for w, k in streams.items() if self.alike[w] == w}
        self.size = sum(self.counts.values())  # of the weights in a point
        self.capacities = np.array(circuit.network.capacities, np.float64)
        self.box = np.zeros(len(self.capacities))  # largest prices
        self.rows: list[tuple[int, ...]] = []
        self.mix: tuple[float, ...] = ()  # of the rows, at the highest point
        most = max((table.max(initial=0) for f in circuit.factors for _, table in f.streams), default=0)
        self._grain = float(min(_GRAIN, 2 ** max(0, 51 - ceil(log2(2 + most)))))

    def _parts(self) -> Iterator[tuple[int, slice]]:
        """The windows, with the places of their streams."""
        at = 0
        for w, k in self.counts.items():
            yield w, slice(at, at + k)
            at += k

    def first(self) -> Floats:
        """The point, without prices, in which the first stream of every window, its kernels, has most of the weight."""
        point = np.zeros(self.size + len(self.capacities))
        for _, part in self._parts():
            point[part] = _LEAST
            point[part.start] = 1 - _LEAST * (part.stop - part.start - 1)
        return point

    def start(self, given: Sequence[float]) -> Floats:
        """The point `given` by a similar problem, as far as it has these weights and prices, or prices alone."""
        rows = len(self.capacities)
        if len(given) == rows != self.size:
            given = [*self.first()[: self.size], *given]
        if len(given) not in (self.size, self.size + rows) or not min(given, default=0.0) >= 0:
            return self.first()
        return self.normal([*given, *[0.0] * rows][: self.size + rows])

    def normal(self, point: Sequence[float]) -> Floats:
        """The point with weights that add up to one for every window."""
        found = np.array(point)
        for _, part in self._parts():
            total = found[part].sum()
            found[part] = found[part] / total if total > 0 else 1 / (part.stop - part.start)
        return found

    def weights(self, point: Floats) -> Weights:
        """The weights of a point, rounded so that sums are exact."""
        own = {w: _rounded(point[part], self._grain) for w, part in self._parts()}
        return {w: own[first] for w, first in self.alike.items()}

    def add(self, slots: Tables) -> tuple[int, tuple[int, ...]]:
        """Add the cut of the best solution in the tables of a weighted circuit; returns a lower bound on its cost, and
        its use."""
        row = totals(self.circuit, slots, self.alike)
        self.rows.append(row)
        streams = row[1 : 1 + self.size]
        return row[0] + sum(max(streams[part]) for _, part in self._parts()), row[1 + self.size :]

    def highest(self, least: float) -> tuple[Floats, float]:
        """The point within the box, of weights at least `least`, that maximises the minimum of the cuts; that."""
        from scipy.optimize import linprog

        spend(LINEAR_PROGRAM)
        rows = np.array(self.rows, np.float64)
        slopes = rows[:, 1:].copy()
        slopes[:, self.size :] -= self.capacities
        slopes[:, self.size :] *= self.box
        scale = max(1.0, float(np.abs(rows[:, 0]).max()), float(slopes[:, : self.size].max(initial=0)))
        sums = np.zeros((len(self.counts), 1 + self.size + len(self.capacities)))
        for n, (_, part) in enumerate(self._parts()):
            sums[n, 1 + part.start : 1 + part.stop] = 1
        bounds = [(None, None), *[(least, 1.0)] * self.size, *[(0.0, 1.0)] * len(self.capacities)]
        answer = linprog(
            [-1.0] + [0.0] * (len(bounds) - 1),
            A_ub=np.hstack([np.ones((len(rows), 1)), -slopes / scale]),
            b_ub=rows[:, 0] / scale,
            A_eq=sums,
            b_eq=np.ones(len(self.counts)),
            bounds=bounds,
            method="highs",
            options={"time_limit": LP_SECONDS},
        )
        if answer.x is None:  # HiGHS may give up
            return self.first(), -np.inf
        self.mix = tuple((-answer.ineqlin.marginals).tolist())
        point = np.maximum(answer.x[1:], 0.0)
        point[self.size :] *= self.box
        return point, float(answer.x[0]) * scale


def price_windows(
    circuit: Circuit, search: Search, reach: int = INFINITE, mixtures: Mixtures | None = None
) -> WindowPrice | None:
    """Raise the bound of `search` by weights and prices, and offer the solutions found, and mixtures; None if
    infeasible.

    The circuit has all solutions of cost up to `reach`. `mixtures` hold what is known of other circuits of the network.
    """
    return _Pricing(circuit, search, mixtures or Mixtures(search.network), reach).maximised()


class _Pricing:
    """The search for the best point."""

    def __init__(self, circuit: Circuit, search: Search, mixtures: Mixtures, reach: int) -> None:
        self.circuit, self.search, self.mixtures, self.cuts = circuit, search, mixtures, Cuts(circuit)
        self.best: WindowPrice | None = None
        self.point = np.zeros(0)  # of `best`
        self.solutions: list[tuple[int, ...]] = []  # cost, of windows too, and use
        self.assignments: list[tuple[int, ...]] = []  # of the same solutions, where there are capacities
        self.fitting: dict[bool, tuple[int, ...]] = {}  # by whether it fits: the last solution
        self.descended: set[tuple[int, ...]] = set()  # solutions from which options were changed one by one
        self.sufficient: set[int] = set()  # rows whose capacity is at least the least use
        self.reach = self.narrowed = reach  # of the solutions that the circuit has, and when it was looked at last

    def maximised(self) -> WindowPrice | None:
        search, cuts = self.search, self.cuts
        if not self._evaluate(cuts.start(search.limits.prices)):
            return None
        assert self.best is not None
        if search.done:
            return self.best
        use = cuts.rows[0][1 + cuts.size :]
        cuts.box = np.maximum(
            _FIRST * max(1.0, abs(self.best.price.total)) / np.maximum(np.maximum(1.0, use), cuts.capacities),
            2 * np.array(self.best.price.price),
        )
        excess, left = use - cuts.capacities, search.ceiling - self.best.price.bound
        if search.ceiling < INFINITE:  # where the first cut reaches it
            cuts.box = np.where(excess > 0, np.maximum(cuts.box, _BEYOND * left / np.maximum(1.0, excess)), cuts.box)
        step = 1.0 if (excess > 0).any() else 0.5  # prices have to rise
        least, idle, close = _LEAST, 0, max(_CLOSE, _OF_GAP * search.limits.gap)
        rounds = _ROUGH if search.limits.rough else _ROUNDS
        while rounds and not search.done:
            rounds -= 1
            target, upper = cuts.highest(least)
            before = self.best.price.value
            gain = upper - before
            room = search.ceiling - self.best.price.bound if search.ceiling < INFINITE else 0
            if idle > _IDLE or gain <= max(close * abs(upper), _ENOUGH * room):
                over = self._at_edge(target)
                if over.any():
                    if not self._has_room(over):
                        return self._closed()
                    cuts.box[over] *= _GROWTH
                    continue
                if not least:
                    break
                least, idle = 0.0, 0
                continue
            if not self._evaluate(self.point + step * (target - self.point)):
                return self._closed()
            if not self._narrow():
                return self._closed()
            risen = self.best.price.value - before
            if search.limits.rough and room and risen > _WORTH * room:
                rounds = _ROUGH
            step = min(1.0, step * _FARTHER) if risen > 0 else max(_NEAREST, step * _NEARER)
            idle = 0 if risen > _LITTLE * gain else idle + 1
        if len(self.fitting) > 1 and not search.done:
            if search.limits.rough or not search.network.chains:
                cross(self.fitting, search)
            else:  # these have crossovers between copies, too
                self.mixtures.offer_best(search)
        of_rows = self.assignments[len(self.solutions) - len(cuts.rows) :]
        mix = tuple(part for part in zip(cuts.mix, of_rows, strict=False) if part[0] > 0)
        return replace(self.best, cuts=tuple(self.solutions), mix=mix)

    def _closed(self) -> WindowPrice | None:
        """The result where the circuit has no solution: all others reach the ceiling."""
        if self.reach == INFINITE:
            return None
        self.search.raise_bound(self.reach + 1)
        return self.best

    def _narrow(self) -> bool:
        """Leave out of the circuit what is in no solution below the ceiling, if that is much; False if nothing is left.

        Later evaluations are of a smaller circuit, so that they cost a fraction.
        """
        search, best = self.search, self.best
        if search.objective is None and len(self.fitting) > 1:
            cross(self.fitting, search)
        assert best is not None
        reach = min(search.ceiling - 1, self.circuit.max_cost)
        slack, before = reach - best.price.bound, self.narrowed - best.price.bound
        any_will_do = search.limits.rough or search.limits.gap >= _COARSE
        if search.done or any_will_do or slack > min(_NEAR * abs(best.price.bound), _NARROWED * before):
            return True
        small, self.narrowed = best.smaller(reach, search.until), reach
        if small is self.circuit:
            return True
        if small is None:
            self.reach = reach
            return False
        small.__dict__["max_cost"] = self.circuit.max_cost  # bounds what may be searched, not what is left
        self.circuit = self.cuts.circuit = small
        self.reach, self.cuts.rows, self.cuts.mix, self.best = reach, [], (), None
        left = self._evaluate(self.point)
        self.best = self.best or best
        return left

    def _evaluate(self, point: Floats) -> bool:
        """Add the cut of the best solution at a point, offer it, and raise the bound; False if there is no solution."""
        search, circuit = self.search, self.circuit
        weights = self.cuts.weights(point)
        relaxed = circuit.weighted(weights)
        now = at_price(relaxed, point[self.cuts.size :].tolist(), search.until)
        if now.total == np.inf or now.bound > circuit.max_cost:
            return False
        search.raise_bound(min(now.bound, self.reach + 1))
        if self.best is None or now.value > self.best.price.value:
            self.best = WindowPrice(circuit, weights, now, mixtures=self.mixtures)
            self.point = np.array([*(a for w in self.cuts.counts for a in weights[w]), *now.price])
            search.prices = tuple(self.point.tolist())
        if search.limits.cutoff is not None and now.bound >= search.limits.cutoff:  # no solution is needed
            return True
        cost, use = self.cuts.add(now.slots)
        self.solutions.append((cost, *use))
        fits = all(u <= c for u, c in zip(use, circuit.network.capacities, strict=True))
        found = relaxed.decode(now.slots)
        if use or search.better(cost + search.network.constant):
            self.fitting[fits] = found
            if use:
                self.assignments.append(found)
                self.mixtures.add(found)
            if fits and search.better(cost + search.network.constant):
                search.offer(found)
        if fits and found not in self.descended and not (search.done or search.limits.rough):
            self.descended.add(found)
            better = offer_descended(circuit, found, search)
            if better is not None and use:
                self.mixtures.add(better)
        return True

    def _at_edge(self, target: Floats) -> Bools:
        """The rows whose prices are at the edge of their box, where the last solution uses too much."""
        cuts = self.cuts
        use = np.array(cuts.rows[-1][1 + cuts.size :])
        found: Bools = (target[cuts.size :] >= cuts.box * (1 - 1e-9)) & (use > cuts.capacities)
        return found

    def _has_room(self, rows: Bools) -> bool:
        """False if some row's least use exceeds its capacity; rows are looked at once, as their prices rise."""
        for r in np.flatnonzero(rows).tolist():
            if r not in self.sufficient:
                if least_use_of(self.circuit, r, self.search.until) > self.cuts.capacities[r]:
                    return False
                self.sufficient.add(r)
        return True


def cross(sides: Mapping[bool, tuple[int, ...]], search: Search) -> None:
    """Offer crossovers of a solution that fits the capacities and one that does not."""
    ends = list(sides.values())
    for before, after in (ends, ends[::-1]):
        mixed = crossed(dense(search.network), before, after)
        if mixed is not None and search.better(mixed[0]):
            search.offer(mixed[1])


def _rounded(weights: Floats, grain: float) -> tuple[float, ...]:
    """Multiples of 1 / grain that add up to one."""
    parts = np.floor(weights * grain + 1e-6)
    parts[int(np.argmax(weights))] += grain - parts.sum()
    return tuple((parts / grain).tolist())


def alike(windows: Sequence[Window], which: Iterable[int]) -> dict[int, int]:
    """For each of some windows the first of them that has the same tables."""
    first: dict[Hashable, int] = {}
    found = {}
    for w in which:
        key: Hashable = w
        if w < len(windows):
            own, between = windows[w].variables.values(), windows[w].edges.values()
            key = tuple(sorted(map(id, own))), tuple(sorted(map(id, between)))  # equal parts share tables
        found[w] = first.setdefault(key, w)
    return found


def totals(circuit: Circuit, slots: Tables, alike: Mapping[int, int]) -> tuple[int, ...]:
    """Cost (without the constant), streams of the windows and use of the assignment that `decode` finds in `slots`.

    `slots` are tables of the weighted circuit; windows that are `alike` are added up, and those of a chain.
    """
    counts = {alike[w]: len(table) for f in circuit.factors for w, table in f.streams}
    start = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    cost, streams, use = 0, [0] * sum(counts.values()), [0] * len(circuit.network.capacities)
    for leaf, entries in zip(circuit.leaves, circuit.counts(slots), strict=True):
        for entry, n in entries.items():
            cost += n * int(leaf.time[entry])
            for r, u in enumerate(() if leaf.use is None else leaf.use[entry].tolist()):
                use[r] += n * int(u)
            for w, table in leaf.streams:
                for k, stream in enumerate(table):
                    streams[start[alike[w]] + k] += n * int(stream[entry])
    return cost, *streams, *use
