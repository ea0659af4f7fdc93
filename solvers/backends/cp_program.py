"""The cost network as a CP-SAT program that counts the copies of chains.

    x[v,i] ∈ {0,1}        variable v takes option i
    y[e,p,q] ∈ {0,1}      edge e = (u,v) joins an option of u's class p to one of v's class q
    n[c,k] ∈ {0..L_c}     copies of chain c that take label k, from layout a_k to layout b_k
    min  Σ c[v,i] x[v,i] + Σ c[e,p,q] y[e,p,q] + Σ t[c,k] n[c,k]                         (ns)
    s.t. (1) Σ_i x[v,i] = 1                                                   ∀ v
         (2) Σ_q y[e,p,q] = Σ_{i ∈ p} x[u,i]                                  ∀ e, p
         (3) Σ_p y[e,p,q] = Σ_{j ∈ q} x[v,j]                                  ∀ e, q
         (4) Σ m[v,i,r] x[v,i] + Σ m[e,p,q,r] y[e,p,q] + Σ m[c,k,r] n[c,k] ≤ M_r   ∀ r (bytes)
         (5) Σ_k n[c,k] = L_c                                                 ∀ c
         (6) Σ_{k into a} n[c,k] - Σ_{k out of a} n[c,k] = x[b_L,a] - x[b_0,a]     ∀ c, a
         (7) cycles that (6) allows besides the path b_0 → b_L are cut off as they appear
         (8) Σ e[f,k] y[f,k] ≤ τ, the transient memory, added to (4) for r = 0     ∀ switches, its tables f

Options of u with equal rows in e are one class, as are those of v with equal columns; forbidden y do not exist.
Tables that a switch decides have its mode as one more index of y.
Solutions of (5) to (7) are trails over the layouts, so that permutations of equal copies are one solution.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.factors import Factor
from ..elimination.kernels import Ints

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel


@dataclass(frozen=True, slots=True, eq=False)
class CopyLabels:
    """The K labels of one copy of a chain: from layout `ends[0]` to `ends[1]`, `time` [K], `use` [K, R]."""

    first: int  # the variables b_0 and b_L
    last: int
    length: int
    ends: Ints
    time: Ints
    use: Ints


@dataclass(slots=True, eq=False)
class CpProgram:
    """A CP-SAT model and its variables; `cost` is its objective, the network's constant excluded."""

    model: "CpModel"
    x: dict[int, list[Any]]
    counts: list[list[Any]]
    chains: Sequence[CopyLabels]
    cost: Any

    def read(self, value: Callable[[Any], int]) -> tuple[dict[int, int], list[list[int]]]:
        """The option of each variable and the count of each label; `value` reads a CP-SAT variable."""
        picks = {v: next(i for i, b in enumerate(xs) if value(b)) for v, xs in self.x.items()}
        return picks, [[int(value(n)) for n in ns] for ns in self.counts]

    def cut(self, chain: int, cut_off: set[int]) -> None:
        """Constraint (7): labels within the layouts `cut_off` need one that enters them."""
        labels, ns = self.chains[chain], self.counts[chain]
        arcs = list(zip(*labels.ends.tolist(), ns, strict=True))
        entering = [n for a, b, n in arcs if a not in cut_off and b in cut_off]
        begins = [x for i, x in enumerate(self.x[labels.first]) if i in cut_off]
        for a, b, n in arcs:
            if a in cut_off and b in cut_off:
                self.model.add(n <= labels.length * (sum(entering) + sum(begins)))


def build(
    factors: Iterable[Factor],
    size: Mapping[int, int],
    capacities: Sequence[int],
    chains: Sequence[CopyLabels] = (),
    tau: tuple[int, int] = (0, INFINITE),
) -> CpProgram:
    """The program of factors over variables of `size` options and of chains by their labels; `tau` bounds τ."""
    from ortools.sat.python.cp_model import CpModel

    model = CpModel()
    x = {v: [model.new_bool_var(f"x[{v},{i}]") for i in range(n)] for v, n in sorted(size.items())}
    for v in x:
        model.add_exactly_one(x[v])  # (1)
    sums = _Sums([], [[] for _ in capacities], defaultdict(list))
    for f in factors:
        if len(f.scope) == 1:
            _unary(model, f, x[f.scope[0]], sums)
        else:
            _joint(model, f, [x[v] for v in f.scope], sums)
    counts = [[model.new_int_var(0, c.length, f"n[{k},{j}]") for j in range(len(c.time))] for k, c in enumerate(chains)]
    for c, ns in zip(chains, counts, strict=True):
        for n, time, uses in zip(ns, c.time.tolist(), c.use.tolist(), strict=True):
            sums.add(n, time, uses)
        model.add(sum(ns) == c.length)  # (5)
        flow = defaultdict(list)
        for a, b, n in zip(*c.ends.tolist(), ns, strict=True):
            flow[a].append(-n)
            flow[b].append(n)
        for a in range(size[c.first]):
            model.add(sum(flow[a]) == x[c.last][a] - x[c.first][a])  # (6)
    if capacities and sums.extras:
        transient = model.new_int_var(tau[0], min(tau[1], capacities[0]), "tau")
        sums.loads[0].append((1, transient))
        for load in sums.extras.values():
            model.add(sum(amount * b for amount, b in load) <= transient)  # (8)
    for load, capacity in zip(sums.loads, capacities, strict=True):
        model.add(sum(amount * b for amount, b in load) <= capacity)  # (4)
    cost = sum(time * b for time, b in sums.cost)
    model.minimize(cost)
    return CpProgram(model, x, counts, chains, cost)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Terms (amount, CP-SAT variable) of the objective, of each capacity, and of each switch's transient use."""

    cost: list[tuple[int, Any]]
    loads: list[list[tuple[int, Any]]]
    extras: dict[int, list[tuple[int, Any]]]

    def add(self, b: Any, time: int, uses: Iterable[int], rows: Iterable[tuple[int, int]] | None = None) -> None:
        """Add the cost of `b` and its use of every capacity, or of the half-open ranges `rows` of them."""
        if time:
            self.cost.append((time, b))
        ranges = ((r, r + 1) for r in count()) if rows is None else rows
        for amount, (first, last) in zip(uses, ranges, strict=False):
            if amount:
                for r in range(first, last):
                    self.loads[r].append((amount, b))


def _unary(model: "CpModel", f: Factor, x: list[Any], sums: _Sums) -> None:
    rows = None if f.rows is None else f.rows.tolist()
    for b, time, uses in zip(x, f.time.tolist(), _uses(f).tolist(), strict=True):
        if time == np.inf:
            model.add(b == 0)
        else:
            sums.add(b, int(time), uses, rows)


def _uses(f: Factor) -> Ints:
    """Uses [..., R] as integers; R = 0 if nothing is used."""
    return np.zeros((*f.time.shape, 0), np.int64) if f.use is None else f.use.astype(np.int64)


def _joint(model: "CpModel", f: Factor, x: Sequence[list[Any]], sums: _Sums) -> None:
    """Add a table over several variables; options of equal slices are one class."""
    extra = np.zeros(f.time.shape) if f.extra is None else f.extra
    table = np.concatenate([f.time[..., None], extra[..., None], _uses(f)], axis=-1)
    classes = []
    for axis in range(len(f.scope)):
        table, of = np.unique(table, axis=axis, return_inverse=True)
        classes.append(of.ravel())
    y: dict[tuple[int, ...], Any] = {}
    for key in zip(*np.nonzero(table[..., 0] < np.inf), strict=True):
        time, transient, *uses = table[key].astype(np.int64).tolist()
        y[key] = model.new_bool_var("")
        sums.add(y[key], time, uses)
        if transient:
            sums.extras[f.scope[0]].append((transient, y[key]))
    for axis, (options, of) in enumerate(zip(x, classes, strict=True)):
        joined = defaultdict(list)
        for key, b in y.items():
            joined[key[axis]].append(b)
        for c in range(table.shape[axis]):
            model.add(sum(joined[c]) == sum(options[i] for i in np.flatnonzero(of == c)))  # (2), (3)


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
