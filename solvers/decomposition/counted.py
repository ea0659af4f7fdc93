"""The cost network as an integer program that counts the copies of chains, for every backend.

    x[v,i] ∈ {0,1}        variable v takes option i
    y[e,p,q] ∈ {0,1}      edge e = (u,v) joins an option of u's class p to one of v's class q
    n[c,k] ∈ {0..L_c}     copies of chain c that take label k, from layout a_k to layout b_k
    min  Σ c[v,i] x[v,i] + Σ c[e,p,q] y[e,p,q] + Σ t[c,k] n[c,k]                         (ns)
    s.t. (1) Σ_i x[v,i] = 1                                                   ∀ v
         (2) Σ_q y[e,p,q] = Σ_{i ∈ p} x[u,i]                                  ∀ e, p
         (3) Σ_p y[e,p,q] = Σ_{j ∈ q} x[v,j]                                  ∀ e, q
         (4) Σ m[v,i,r] x[v,i] + Σ m[e,p,q,r] y[e,p,q] + Σ m[c,k,r] n[c,k] ≤ M_r   ∀ r (bytes)
         (5) Σ_k n[c,k] = L_c                                                 ∀ c
             Σ_{k at i} n[c,k] = L_c x[v,i]                                   ∀ c, what it reads v, i
         (6) Σ_{k into a} n[c,k] - Σ_{k out of a} n[c,k] = x[b_L,a] - x[b_0,a]     ∀ c, a
         (7) cycles that (6) allows besides the path b_0 → b_L are cut off: those at one layout at first, others
             as they appear
         (8) Σ e[f,k] y[f,k] ≤ τ, the transient memory, added to (4) for r = 0     ∀ switches, its tables f
         (9) Σ s[v,i,k] x[v,i] + Σ s[e,p,q,k] y[e,p,q] ≤ T_w, added to the cost     ∀ windows w, streams k

Options of u with equal rows in e are one class, as are those of v with equal columns; forbidden y do not exist.
Tables that a switch decides have its mode as one more index of y.
Solutions of (5) to (7) are trails over the layouts, so that permutations of equal copies are one solution.

Where memory binds, elimination leaves few options, pairs and labels within a slack above the bound of the best price:
`count_within` makes a program of them, which a backend solves.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import numpy as np

from ...formulation.network.network import Chain, Network, WindowStreams
from ..elimination.circuit import Circuit
from ..elimination.factors import Factor
from ..elimination.kernels import Floats, Ints
from ..elimination.labels import LabelBounds, Labels, Listing, enumerate_labels
from ..elimination.memory_price import Price
from ..elimination.order import restrict
from ..elimination.tables import Tables
from ..protocol import Proof, Search

_COLUMNS = 1 << 15  # labels per chain in a program
_FEW_ENTRIES = 1 << 12  # of the tables of a whole network with windows

Terms: TypeAlias = list[tuple[int, int]]
"""Amounts and the columns that they multiply."""
Value: TypeAlias = Callable[[int], int]
"""The number of a column in a solution."""
Decode: TypeAlias = Callable[[Value], tuple[int, ...] | None]
"""The assignment that a solution stands for; None for one with a cycle besides the path (7)."""


def is_small(network: Network) -> bool:
    """True for a network with windows that a backend may solve as one program; larger ones seldom end."""
    return sum(term.cost.size for term in network.terms()) <= _FEW_ENTRIES


@dataclass(frozen=True, slots=True, eq=False)
class CopyLabels:
    """The K labels of one copy of a chain: from layout `ends[0]` to `ends[1]`, `time` [K], `use` [K, R].

    `reads`: what the chain reads, with the option [K] of each label. `streams`: as in `Factor`, [streams, K].
    """

    first: int  # the variables b_0 and b_L
    last: int
    length: int
    ends: Ints
    time: Ints
    use: Ints
    reads: Mapping[int, Ints]
    streams: WindowStreams = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Σ amount · column is `right` if `equal`, else at most `right`."""

    terms: Terms
    equal: bool
    right: int


@dataclass(slots=True, eq=False)
class CountedProgram:
    """min Σ cost · column under `rows`, each column an integer from 0 to its `upper`; the network's constant excluded.

    `x` are the columns of variables, `counts` those of the labels of `chains`. `maxima` are the last columns, τ and
    T_w, with the rows of the sums that each is at least: the least is whole where these are.
    """

    x: dict[int, list[int]]
    chains: Sequence[CopyLabels]
    counts: list[list[int]] = field(default_factory=list)
    upper: list[int] = field(default_factory=list)
    cost: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    maxima: dict[int, list[Row]] = field(default_factory=dict)

    def column(self, upper: int = 1) -> int:
        """A new column without cost."""
        self.upper.append(upper)
        self.cost.append(0)
        return len(self.upper) - 1

    def equal(self, terms: Terms, right: int) -> None:
        self.rows.append(Row(terms, True, right))

    def at_most(self, terms: Terms, right: int) -> None:
        self.rows.append(Row(terms, False, right))

    def maximum(self, upper: int, sums: Iterable[Terms]) -> int:
        """A new column that is at least every one of some sums."""
        found = self.column(upper)
        self.maxima[found] = [Row([*terms, (-1, found)], False, 0) for terms in sums]
        self.rows += self.maxima[found]
        return found

    def read(self, value: Value) -> tuple[dict[int, int], list[list[int]]]:
        """The option of each variable and the count of each label."""
        picks = {v: next(i for i, b in enumerate(xs) if value(b)) for v, xs in self.x.items()}
        return picks, [[value(n) for n in ns] for ns in self.counts]

    def cut_cycles(self, value: Value) -> list[tuple[int, frozenset[int]]]:
        """Add (7) for the cycles of a solution; returns the chain and the layouts of each."""
        picks, counts = self.read(value)
        found = []
        for c, (labels, ns) in enumerate(zip(self.chains, counts, strict=True)):
            _, missed = trail(picks[labels.first], labels.ends, ns)
            parts: list[frozenset[int]] = []
            for k in np.flatnonzero(ns).tolist():
                if (arc := frozenset(labels.ends[:, k].tolist())) <= missed:
                    met = [part for part in parts if part & arc]
                    parts = [*(part for part in parts if not part & arc), arc.union(*met)]
            found += [(c, part) for part in parts]
        for c, part in found:
            self.cut_off(c, part)
        return found

    def cut_off(self, c: int, layouts: frozenset[int]) -> None:
        """Add (7): a chain has labels within these layouts only if one enters them, or it begins there."""
        labels, own = self.chains[c], self.counts[c]
        arcs = list(zip(*labels.ends.tolist(), own, strict=True))
        within = [(1, n) for a, b, n in arcs if a in layouts and b in layouts]
        entering = [(-labels.length, n) for a, b, n in arcs if a not in layouts and b in layouts]
        begins = [(-labels.length, x) for i, x in enumerate(self.x[labels.first]) if i in layouts]
        self.at_most([*within, *entering, *begins], 0)


Run: TypeAlias = Callable[[CountedProgram, Search, Decode, int], bool]
"""How a backend solves a program: `PartSolver.count`."""


def build(
    factors: Iterable[Factor],
    size: Mapping[int, int],
    capacities: Sequence[int],
    chains: Sequence[CopyLabels] = (),
) -> CountedProgram:
    """The program of factors over variables of `size` options and of chains by their labels."""
    program = CountedProgram({}, chains)
    for v, n in sorted(size.items()):
        program.x[v] = [program.column() for _ in range(n)]
        program.equal([(1, b) for b in program.x[v]], 1)  # (1)
    sums = _Sums(program, [[] for _ in capacities], defaultdict(list), defaultdict(list))
    for f in factors:
        if len(f.scope) == 1:
            _unary(program, f, program.x[f.scope[0]], sums)
        else:
            _joint(program, f, [program.x[v] for v in f.scope], sums)
    for c in chains:
        _count(program, c, size, sums)
    if capacities and sums.extras:
        sums.loads[0].append((1, program.maximum(capacities[0], sums.extras.values())))  # (8)
    for window in sorted({w for w, _ in sums.streams}):
        own = [load for (w, _), load in sums.streams.items() if w == window]
        most = max(sum(ns * program.upper[b] for ns, b in load) for load in own)
        program.cost[program.maximum(most, own)] = 1  # (9)
    for load, capacity in zip(sums.loads, capacities, strict=True):
        program.at_most(load, capacity)  # (4)
    return program


@dataclass(frozen=True, slots=True)
class _Sums:
    """Terms (amount, column) of each capacity, each switch's transient use, and each window's streams."""

    program: CountedProgram
    loads: list[Terms]
    extras: dict[int, Terms]
    streams: dict[tuple[int, int], Terms]

    def add(self, b: int, time: int, uses: Iterable[int], rows: Iterable[tuple[int, int]] | None = None) -> None:
        """Add the cost of column `b` and its use of every capacity, or of the half-open ranges `rows` of them."""
        self.program.cost[b] += time
        ranges = ((r, r + 1) for r in count()) if rows is None else rows
        for amount, (first, last) in zip(uses, ranges, strict=False):
            if amount:
                for r in range(first, last):
                    self.loads[r].append((amount, b))

    def run(self, b: int, windows: Sequence[tuple[int, int]], streams: Iterable[int]) -> None:
        """Add what column `b` adds to each of these windows' streams."""
        for place, ns in zip(windows, streams, strict=True):
            if ns:
                self.streams[place].append((int(ns), b))


def _streams(of: WindowStreams, shape: tuple[int, ...]) -> tuple[list[tuple[int, int]], Floats]:
    """The windows and streams [S] that tables of a shape add to, and what they add [..., S]."""
    places = [(w, k) for w, table in of for k in range(len(table))]
    tables = [stream for _, table in of for stream in table]
    return places, np.stack(tables, axis=-1) if tables else np.zeros((*shape, 0))


def _unary(program: CountedProgram, f: Factor, x: list[int], sums: _Sums) -> None:
    rows = None if f.rows is None else f.rows.tolist()
    windows, streams = _streams(f.streams, f.time.shape)
    for b, time, uses, ns in zip(x, f.time.tolist(), _uses(f).tolist(), streams.tolist(), strict=True):
        if time == np.inf:
            program.upper[b] = 0
        else:
            sums.add(b, int(time), uses, rows)
            sums.run(b, windows, ns)


def _count(program: CountedProgram, c: CopyLabels, size: Mapping[int, int], sums: _Sums) -> None:
    """Add a chain: how many of its copies take each label."""
    ns = [program.column(c.length) for _ in range(len(c.time))]
    program.counts.append(ns)
    for n, time, uses in zip(ns, c.time.tolist(), c.use.tolist(), strict=True):
        sums.add(n, time, uses)
    places, streams = _streams(c.streams, c.time.shape)
    for n, added in zip(ns, streams.tolist(), strict=True):
        sums.run(n, places, added)
    program.equal([(1, n) for n in ns], c.length)  # (5)
    for v, options in c.reads.items():
        for i, x in enumerate(program.x[v]):
            program.equal([(-c.length, x), *((1, ns[k]) for k in np.flatnonzero(options == i).tolist())], 0)
    flow: defaultdict[int, Terms] = defaultdict(list)
    for a, b, n in zip(*c.ends.tolist(), ns, strict=True):
        if a != b:
            flow[a].append((-1, n))
            flow[b].append((1, n))
    for a in range(size[c.first]):
        program.equal([*flow[a], (-1, program.x[c.last][a]), (1, program.x[c.first][a])], 0)  # (6)
    for a in np.unique(c.ends[0, c.ends[0] == c.ends[1]]).tolist():
        program.cut_off(len(program.counts) - 1, frozenset({a}))


def _uses(f: Factor) -> Ints:
    """Uses [..., R] as integers; R = 0 if nothing is used."""
    return np.zeros((*f.time.shape, 0), np.int64) if f.use is None else f.use.astype(np.int64)


def _joint(program: CountedProgram, f: Factor, x: Sequence[list[int]], sums: _Sums) -> None:
    """Add a table over several variables; options of equal slices are one class."""
    extra = np.zeros(f.time.shape) if f.extra is None else f.extra
    windows, streams = _streams(f.streams, f.time.shape)
    table = np.concatenate([f.time[..., None], extra[..., None], streams, _uses(f)], axis=-1)
    classes = []
    for axis in range(len(f.scope)):
        table, of = np.unique(table, axis=axis, return_inverse=True)
        classes.append(of.ravel())
    joined: list[list[Terms]] = [[[] for _ in range(n)] for n in table.shape[:-1]]
    allowed = np.nonzero(table[..., 0] < np.inf)
    for key, (time, transient, *rest) in zip(
        zip(*(k.tolist() for k in allowed), strict=True), table[allowed].astype(np.int64).tolist(), strict=True
    ):
        y = program.column()
        sums.add(y, time, rest[len(windows) :])
        sums.run(y, windows, rest[: len(windows)])
        if transient:
            sums.extras[f.scope[0]].append((transient, y))
        for axis, c in enumerate(key):
            joined[axis][c].append((1, y))
    for axis, (options, of) in enumerate(zip(x, classes, strict=True)):
        for c, terms in enumerate(joined[axis]):
            program.equal([*terms, *((-1, options[i]) for i in np.flatnonzero(of == c).tolist())], 0)  # (2), (3)


def trail(start: int, ends: Ints, counts: Sequence[int]) -> tuple[list[int], set[int]]:
    """The labels in the order of a walk from layout `start` (Hierholzer), and the layouts that it misses."""
    out: dict[int, list[int]] = defaultdict(list)
    for k in reversed(range(len(counts))):
        out[int(ends[0, k])] += [k] * counts[k]
    stack: list[tuple[int, int]] = [(start, -1)]
    walk: list[int] = []
    while stack:
        at, by = stack[-1]
        if out[at]:
            k = out[at].pop()
            stack.append((int(ends[1, k]), k))
        else:
            stack.pop()
            walk.append(by)
    left = {int(e) for ks in out.values() for k in ks for e in ends[:, k]}
    return walk[::-1][1:], left


def count_within(circuit: Circuit, best: Price, search: Search, run: Run, through: Tables, reach: int) -> bool:
    """Offer the best solution of cost up to `reach` and below the ceiling, if any; True if the search was complete."""
    max_total = best.max_total(circuit, reach)
    small = restrict(circuit, through, max_total)
    if small is None:
        return True
    tops = small.copies
    bounds = LabelBounds(np.array(best.price), max_total, _COLUMNS, search.until)
    listing = enumerate_labels(small, bounds, tops or (0,))
    chains = [_of_chain(chain, listing.slots[top]) for chain, top in zip(small.network.chains, tops, strict=True)]
    rest = sorted(small.below([small.root], stop=tops))
    factors = [small.factors[slot] for slot in rest if slot < len(small.factors)]
    variables = {v for f in factors for v in f.scope} | {v for c in chains for v in (c.first, c.last, *c.reads)}
    size = {v: len(small.kept[small.domain[v]]) for v in variables}
    program = build(factors, size, search.network.capacities, chains)
    left = sum(n > 1 for n in size.values()) + sum(len(c.time) for c in chains)
    search.proof = Proof(search.source, 1 + len(chains), len(search.network.variables), left)

    def decode(value: Value) -> tuple[int, ...] | None:
        picks, counts = program.read(value)
        walks = []
        for labels, ns in zip(chains, counts, strict=True):
            walk, missed = trail(picks[labels.first], labels.ends, ns)
            if missed:
                return None
            walks.append(walk)
        return _assemble(listing, picks, walks)

    return run(program, search, decode, reach + 1)


def _of_chain(chain: Chain, labels: Labels) -> CopyLabels:
    """The labels of a chain's copy, of entries (b_i, b_{i+1}, what it reads...)."""
    ends = chain.boundaries[0], chain.boundaries[-1]
    reads = dict(zip(chain.reads, labels.at[2:], strict=True))
    return CopyLabels(*ends, len(chain), labels.at[:2], labels.time, use=labels.use, reads=reads)


def _assemble(listing: Listing, picks: dict[int, int], walks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The assignment given by options outside of chains, and by each chain's labels in order."""
    circuit = listing.circuit
    for chain, one, walk in zip(circuit.network.chains, circuit.copies, walks, strict=True):
        for i, label in enumerate(walk):
            picks = picks | {chain.boundaries[i + 1]: int(listing.slots[one].at[1, label])}
    starts = [(one, label, i) for one, walk in zip(circuit.copies, walks, strict=True) for i, label in enumerate(walk)]
    return circuit.assemble(starts, listing.choose, picks)
