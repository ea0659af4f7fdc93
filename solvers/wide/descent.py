"""Local search for large networks: tree blocks under hard capacities, with annealed noise.

A block is solved under prices of the capacities. If the result exceeds one, its price rises just until the result
gains nothing over the current choice; if it fits but costs more, prices fall to that point; so a block finds its own
prices within a few solves. Results that fit and are no worse are taken. Noise on the options (perturb-and-MAP, after
Papandreou and Yuille 2011), which cools over a cycle, lets the search leave local optima.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Floats, Ints, compiled
from .blocks import (
    Net,
    Scratch,
    changed_cost,
    changed_load,
    clear,
    grow,
    net_of,
    random,
    scratch,
    solve_tree,
    sum_prices,
    take,
)
from .form import Flat
from .shared_state import Deadline

_TRIES = 8, 3  # solves per block, each under new prices: without noise, with it
_NOTHING = 1e-15  # smaller prices are 0
_MOST = 2000, 1000  # variables per block: without noise, with it
_HOT = 0.03, 1.0  # range of a cycle's first noise, times the median cost of changing one variable
_COOLED = 1e-3  # the share left at the end of a cycle
_FIRST = 64  # rounds of the first cycle; the length doubles with each
_QUIET = 4  # rounds without noise after each
_WORSE = 0.002  # relative excess over the best cost allowed within a cycle
_KEPT = 0.02  # weight of a block's prices in the next blocks' first ones


@compiled
def account(net: Net, room: Scratch, load: Ints, prices: Floats) -> tuple[float, float]:
    """The priced use of `room.load`, and its excess: the sum over rows of excess times added use."""
    paid, over = 0.0, 0.0
    for r in range(load.shape[0]):
        more = room.load[r]
        paid += prices[r] * more
        if more > 0 and load[r] + more > net.limits[r]:
            over += float(min(more, load[r] + more - net.limits[r])) * more
    return paid, over


@compiled
def charge(net: Net, room: Scratch, load: Ints, prices: Floats, step: float) -> None:
    """Raise the prices where `room.load` exceeds a capacity, by `step` per unit."""
    for r in range(load.shape[0]):
        more = room.load[r]
        if more > 0 and load[r] + more > net.limits[r]:
            prices[r] += step * min(more, load[r] + more - net.limits[r])


class _Round(NamedTuple):
    """The effort of a round: blocks of at most `most` variables, tries per block, noise, and cost budget."""

    blocks: int
    most: int
    tries: int
    noise: float
    budget: float


@compiled
def search(net: Net, room: Scratch, choice: Ints, load: Ints, prices: Floats, effort: _Round, state: Ints) -> None:
    """Solve blocks and take results that fit and cost no more; with noise, up to `budget` more in total.

    Exceeded rows may not rise. Moves `prices` towards those at which blocks fit.
    """
    blocks, most, tries, noise, budget = effort
    variables, total = choice.shape[0], 0.0
    local = np.empty_like(prices)
    for _ in range(blocks):
        smaller = max(random(state, 20) - 9, 0)  # for every other block: small ones find what prices miss
        size = max(most >> smaller, 1)
        count = grow(net, room, random(state, variables), size, state)
        local[:] = prices
        for _ in range(tries):
            sum_prices(local, room.prefix)
            solve_tree(net, room, count, choice, noise, state)
            cost = changed_cost(net, room, count, choice)
            changed_load(net, room, count, choice)
            paid, over = account(net, room, load, local)
            if over > 0:
                charge(net, room, load, local, max(-1.001 * (cost + paid), 1.0) / over)
                continue
            if cost <= 0 or (noise > 0 and total + cost <= budget):
                take(room, count, choice, load)
                total += cost
                local *= 0.8 if noise > 0 else 0.5
                if noise > 0 or local.sum() < _NOTHING:
                    break
            else:
                local *= min(0.999 * cost / -paid, 0.99) if paid < 0 else 0.5
        for i in range(count):
            room.new[room.order[i]] = choice[room.order[i]]
        clear(net, room, count)
        for r in range(prices.shape[0]):
            price = prices[r] + _KEPT * (local[r] - prices[r])
            prices[r] = price if price > _NOTHING else 0.0


@compiled
def relax(
    net: Net, room: Scratch, choice: Ints, load: Ints, prices: Floats, blocks: int, most: int, state: Ints
) -> None:
    """Solve blocks under fixed prices, ignoring capacities."""
    sum_prices(prices, room.prefix)
    for _ in range(blocks):
        count = grow(net, room, random(state, choice.shape[0]), most, state)
        solve_tree(net, room, count, choice, 0.0, state)
        changed_load(net, room, count, choice)
        clear(net, room, count)
        take(room, count, choice, load)


def raised_prices(prices: Floats, load: Ints, limits: Ints, share: float, unit: float) -> Floats:
    """Raise prices in proportion to the excess of each row, at most by a share of the largest price (or `unit`)."""
    excess = np.maximum(load - limits, 0).astype(np.float64)
    step = share * max(prices.max(initial=0.0), unit)
    raised: Floats = prices + step * excess / max(excess.max(initial=0.0), 1.0)
    return raised


@compiled
def least_changes(net: Net, choice: Ints) -> Floats:
    """[V]: the least positive cost of changing one variable alone; inf if there is none."""
    least = np.full(choice.shape[0], np.inf)
    for v in range(choice.shape[0]):
        low, n = net.start[v], net.start[v + 1] - net.start[v]
        total = net.cost[low : low + n].copy()
        for arc in range(net.first[v], net.first[v + 1]):
            row = net.at[arc] + choice[net.other[arc]] * n
            total += net.pool[row : row + n]
        total -= total[choice[v]]
        for x in range(n):
            if 0 < total[x] < least[v]:
                least[v] = total[x]
    return least


class Descent:
    """Local search from one choice. `best` is the best feasible choice so far (or None), `cost` its cost.

    `choice` is the current choice, `prices` [R] are per unit of every capacity. Deterministic given seed, start and
    number of rounds. Compiled loops release the GIL: descents in threads run in parallel and may share `net`.
    """

    def __init__(
        self, flat: Flat, choice: Ints, prices: Floats | None = None, seed: int = 0, net: Net | None = None
    ) -> None:
        self.flat, self.net = flat, net_of(flat) if net is None else net
        self.start = np.zeros(len(flat.limits)) if prices is None else prices.astype(np.float64)
        self.prices = self.start.copy()
        largest = float(flat.cost[flat.cost < INFINITE].max(initial=1))
        self.unit = largest / max(int(flat.limits.max(initial=1)), 1)
        self.state = np.array([(seed + 1) * 0x9E3779B97F4A7C15 % (1 << 63) | 1], np.int64)
        self.rng = np.random.default_rng(seed)
        self.room = scratch(self.net, choice)
        self.best: Ints | None = None
        self.cost: int | None = None
        self.adopt(choice)

    def adopt(self, choice: Ints) -> None:
        """Continue from this choice."""
        self._go_to(choice)
        self.noises = self._noises()

    def run(self, until: Deadline) -> Ints | None:
        """Search until the deadline; returns the best feasible choice so far."""
        while not until.past:
            self.round()
        return self.best

    def round(self) -> None:
        """Solve as many blocks as cover about every variable."""
        if not self.flat.variables:
            return
        if (self.load > self.flat.limits).any():
            self._relax()
        else:
            self._search(next(self.noises))
        self._keep()

    def _relax(self) -> None:
        """Descend under prices that rise from round to round; restart from a random choice if that fails for long."""
        if self.share > 10:
            self.prices = self.start.copy()
            self._go_to(self._random_choice())
        self.prices = raised_prices(self.prices, self.load, self.flat.limits, self.share, self.unit)
        self.share *= 1.2
        blocks = -(-2 * self.flat.variables // _MOST[0])
        arrays = self.room, self.choice, self.load, self.prices
        relax(self.net, *arrays, blocks, _MOST[0], self.state)

    def _search(self, noise: float) -> None:
        most, tries = min(_MOST[noise > 0], self.flat.variables), _TRIES[noise > 0]
        now = self.flat.price(self.choice)
        budget = 0.0 if now is None or self.cost is None else self.cost + _WORSE * abs(self.cost) - now
        blocks = 8 + 2 * self.flat.variables // most
        arrays = self.room, self.choice, self.load, self.prices
        search(self.net, *arrays, _Round(blocks, most, tries, noise, budget), self.state)

    def _go_to(self, choice: Ints) -> None:
        self.choice = choice.astype(np.int64)
        self.room.new[:] = self.choice
        self.load = self.flat.loads(self.choice)
        self.share = 0.02
        self._keep()

    def _random_choice(self) -> Ints:
        return self.rng.integers(0, self.flat.sizes)

    def _keep(self) -> None:
        price = self.flat.price(self.choice)
        if price is not None and (self.cost is None or price < self.cost):
            self.best, self.cost = self.choice.copy(), price

    def _noises(self) -> Iterator[float]:
        """The noise of every round: cooling cycles, each from the best choice and twice as long."""
        length = _FIRST
        yield from [0.0] * _QUIET
        while True:
            least = least_changes(self.net, self.choice)
            least = least[least < self.net.forbidden]
            unit = float(np.median(least)) if len(least) else 0.0
            hot = unit * float(np.exp(self.rng.uniform(*np.log(_HOT))))
            for i in range(length):
                yield hot * _COOLED ** (i / length)
            yield from [0.0] * _QUIET
            self._go_to(self._random_choice() if self.best is None else self.best)
            length *= 2
