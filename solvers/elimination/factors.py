"""The tables of a cost network as floats, exact below 2^53."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ...formulation.network.network import INFINITE, Network, Table, WindowStreams, streams_by_part
from .kernels import Floats, Ints, add_priced, add_weighted

_Table = TypeVar("_Table", Floats, Ints)


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A table of the network over some variables: `time` +inf where forbidden, `use` [..., R] or None.

    With `rows` [P, 2], `use` is [..., P], as in `Variable`; the factors of a circuit have none. `extra` [...] is the
    transient use of the switch scope[0]. `streams`: the windows that it is in, by number, with the ns [K, ...] that it
    adds to their streams: the network's own tables, its largest. Only the first of equal copies has factors. Floats are
    integers below 2^53.
    """

    scope: tuple[int, ...]
    time: Floats
    use: Floats | None
    rows: Ints | None = None
    extra: Floats | None = None
    streams: WindowStreams = ()

    def priced(self, time: int, price: Sequence[float], weights: Mapping[int, Sequence[float]] | None = None) -> Floats:
        """time * (cost + ⌊Σ_wk weights_wk * stream_wk⌋) + Σ_r price_r * use_r, +inf where forbidden; `time` is 0 or 1.

        The table itself where nothing is added.
        """
        streams = [(table, weights[w]) for w, table in self.streams if weights and time and w in weights]
        paid = np.array(price, np.float64) if self.use is not None and any(price) else np.zeros(0)
        if time and not streams and not len(paid):
            return self.time
        found, use = np.zeros(self.time.size), np.zeros((0, 1)) if self.use is None else self.use
        for table, own in streams:
            add_weighted(found, np.ascontiguousarray(table.reshape(len(table), -1)), np.array(own, np.float64))
        rows = np.ascontiguousarray(use.reshape(-1, use.shape[-1]))
        add_priced(found, np.ascontiguousarray(self.time).reshape(-1), rows, paid, bool(time))
        return found.reshape(self.time.shape)

    def narrow(self) -> "Factor":
        """The factor without variables of one option; the first is kept if there is no other."""
        keep = [k for k, n in enumerate(self.time.shape) if n > 1] or [0]
        if len(keep) == len(self.scope):
            return self
        shape = [self.time.shape[k] for k in keep]
        use = None if self.use is None else self.use.reshape(*shape, -1)
        extra = None if self.extra is None else self.extra.reshape(shape)
        streams = tuple((w, table.reshape(len(table), *shape)) for w, table in self.streams)
        return Factor(tuple(self.scope[k] for k in keep), self.time.reshape(shape), use, self.rows, extra, streams)

    def take(self, options: Sequence[Ints]) -> "Factor":
        """The factor restricted to these options of each variable."""
        at = np.ix_(*options)
        use, extra = (None if table is None else table[at] for table in (self.use, self.extra))
        streams = tuple((w, np.stack([stream[at] for stream in table])) for w, table in self.streams)
        return Factor(self.scope, self.time[at], use, self.rows, extra, streams)


def dense(network: Network) -> Network:
    """The network with the use of every capacity in place of `rows`."""
    if all(v.rows is None for v in network.variables):
        return network
    count = len(network.capacities)
    return replace(network, variables=tuple(replace(v, use=v.dense(count), rows=None) for v in network.variables))


def reachable(network: Network) -> Network:
    """The network with capacities beyond 2^52 lowered to the sum of all uses, which binds as little."""
    if max(network.capacities, default=0) < 1 << 52:
        return network
    uses = [t for term in network.terms() for t in (term.use, term.extra) if t is not None]
    total = _sum_of(uses, lambda t: t.max(initial=0))
    return replace(network, capacities=tuple(min(capacity, total) for capacity in network.capacities))


def network_factors(
    network: Network,
    variables: Iterable[int] | None = None,
    edges: Iterable[int] | None = None,
    *,
    outline: bool = False,
) -> list[Factor]:
    """The factors of these variables and edges (None: all).

    `outline`: with zeros in place of the tables of costs and uses, which have the same shapes and take no memory.
    """
    costs: dict[int, Floats] = {}
    uses: dict[int, Floats | None] = {}
    of_variable, of_edge = streams_by_part(network)
    numbers = range(len(network.variables)) if variables is None else list(variables)
    others = range(len(network.edges)) if edges is None else list(edges)
    windows = [*(of_variable.get(v, ()) for v in numbers), *(of_edge.get(k, ()) for k in others)]
    factors = []
    for term, own in zip(network.terms(numbers, others), windows, strict=True):
        use, extra = (None if table is None else _uses(table, uses, outline) for table in (term.use, term.extra))
        time, rows = _floats(term.cost, costs, outline), term.rows
        factors.append(Factor(term.scope, time, use, rows, extra, own))
    return factors


def _floats(cost: Ints, known: dict[int, Floats], outline: bool) -> Floats:
    if id(cost) not in known:
        known[id(cost)] = _converted(cost, outline)
        if not outline:
            known[id(cost)][cost >= INFINITE] = np.inf
    return known[id(cost)]


def _uses(use: Ints, known: dict[int, Floats | None], outline: bool) -> Floats | None:
    if id(use) not in known:
        known[id(use)] = _converted(use, outline) if use.any() else None
    return known[id(use)]


def _converted(table: Ints, outline: bool) -> Floats:
    if outline:
        return np.broadcast_to(np.zeros(()), table.shape)
    return table.astype(np.float64, order="C")  # tables of layouts are taken in any order


def exact_in_floats(network: Network) -> bool:
    """True if costs, uses, capacities and the constant stay below 2^52 in absolute value when summed."""
    terms = list(network.terms())
    cost = _sum_of([t.cost for t in terms], lambda t: np.abs(np.where(t >= INFINITE, 0, t)).max())
    streams = [t for window in network.windows for of in (window.variables, window.edges) for t in of.values()]
    cost += _sum_of(streams, lambda t: t.max(initial=0))
    uses = [table for t in terms for table in (t.use, t.extra) if table is not None]
    use = _sum_of(uses, lambda t: t.max(initial=0))
    return max(cost, use, abs(network.constant), *reachable(network).capacities) < 1 << 52


def _sum_of(tables: Sequence[Table], measure: Callable[[Table], int]) -> int:
    return sum(map(int, each(tables, measure)))


def each(tables: Sequence[_Table | None], measure: Callable[[_Table], float]) -> list[float]:
    """A measure of every table, computed once for identical ones; 0 for None."""
    values = {id(t): 0 if t is None else measure(t) for t in {id(t): t for t in tables}.values()}
    return [values[id(t)] for t in tables]
