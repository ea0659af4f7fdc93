"""Instances of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism (IOPDDL), and their solutions.

    one option x_v per node v
    min  Σ_v c_v(x_v) + Σ_(u,v) c_uv(x_u, x_v)
    s.t. Σ_{v alive at t} m_v(x_v) ≤ M                                     ∀ times t

A node is alive in an interval [first, last) of times. An instance is read once into arrays; `network` is the same
problem for the solvers, `evaluate` prices a choice without it.
"""

import reprlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ...model.errors import PartitaError
from ...model.files import read_json, write_atomically
from ...model.garbage_collection import without_collection
from .network import INFINITE, Edge, Network, Table, Variable

FORBIDDEN = 10**18  # what published instances write for infinity
_LARGEST = (1 << 63) - 1


class Verdict(NamedTuple):
    """What a choice costs on the original instance, and whether it fits; `why` says what does not, else is empty."""

    cost: int
    feasible: bool
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """N nodes and E edges of an instance, all arrays int64 and not negative.

    Node v has the options start[v] to start[v+1] of `cost` and `usage` (`start` [N+1]) and is alive from
    intervals[v, 0] to intervals[v, 1] (half-open). Edge e joins ends[e, 0] and ends[e, 1] (`ends` [E, 2]; pairs may
    occur again, and then add up) by the entries at[e] to at[e+1] of `table`, [n_u, n_v] row by row. `limit` is None
    where usage is free.
    """

    name: str
    start: Table
    cost: Table
    usage: Table
    intervals: Table
    ends: Table
    at: Table
    table: Table
    limit: int | None

    @staticmethod
    @without_collection()
    def read(path: Path | str) -> "Contest":
        """The instance in a file, `.json` or `.json.gz`; raises PartitaError that names the fault and its place."""
        return Contest.from_json(read_json(path))

    @staticmethod
    def from_json(data: Any) -> "Contest":
        """The instance of a parsed file; raises PartitaError that names the fault and its place."""
        problem = _member(data, "problem", "")
        nodes, edges = _member(problem, "nodes", "problem"), _member(problem, "edges", "problem")
        intervals = _pairs(nodes, "intervals", "problem.nodes")
        start, cost = _ragged(nodes, "costs", "problem.nodes")
        usage_start, usage = _ragged(nodes, "usages", "problem.nodes")
        ends = _pairs(edges, "nodes", "problem.edges")
        at, table = _ragged(edges, "costs", "problem.edges")
        sizes, usages = np.diff(start), np.diff(usage_start)
        _as_many("problem.nodes.costs", len(sizes), len(intervals), "intervals")
        _as_many("problem.nodes.usages", len(usages), len(intervals), "intervals")
        _as_many("problem.edges.costs", len(at) - 1, len(ends), "edges")
        backward = intervals[:, 0] > intervals[:, 1]
        _none(backward, "problem.nodes.intervals", lambda v: f"is {intervals[v].tolist()}: it ends before it begins")
        _none(sizes == 0, "problem.nodes.costs", lambda v: "is empty; a node has at least one option")
        _none(usages != sizes, "problem.nodes.usages", lambda v: f"has {usages[v]} numbers for {sizes[v]} options")
        dangling = np.maximum(*ends.T) >= len(sizes)
        _none(dangling, "problem.edges.nodes", lambda e: f"is {ends[e].tolist()}; there are {len(sizes)} nodes")
        _none(ends[:, 0] == ends[:, 1], "problem.edges.nodes", lambda e: f"joins node {ends[e, 0]} to itself")
        found, (n, m) = np.diff(at), sizes[ends].T
        _none(found != n * m, "problem.edges.costs", lambda e: f"has {found[e]} numbers for {n[e]} x {m[e]} options")
        limit = _integer(problem["usage_limit"], "problem.usage_limit") if "usage_limit" in problem else None
        name = problem.get("name", "")
        if not isinstance(name, str):
            _refuse("problem.name", f"is {reprlib.repr(name)}, expected text")
        return Contest(name, start, cost, usage, intervals=intervals, ends=ends, at=at, table=table, limit=limit)

    def evaluate(self, choice: Sequence[int]) -> Verdict:
        """The cost of a choice (an option per node), and whether the usage fits at every time, in Python integers.

        Raises PartitaError when the choice does not name one option of every node.
        """
        picks = self._picks(choice)
        u, v = self.ends.T
        entries = self.at[:-1] + picks[u] * np.diff(self.start)[v] + picks[v]
        own = self.start[:-1] + picks
        cost = sum(self.cost[own].tolist()) + sum(self.table[entries].tolist())
        if self.limit is None:
            return Verdict(cost, True)
        changes: defaultdict[int, int] = defaultdict(int)
        for (first, last), used in zip(self.intervals.tolist(), self.usage[own].tolist(), strict=True):
            changes[first] += used
            changes[last] -= used
        total = 0
        for time in sorted(changes):
            total += changes[time]
            if total > self.limit:
                return Verdict(cost, False, f"{total} of {self.limit} are used at time {time}")
        return Verdict(cost, True)

    @without_collection()
    def network(self) -> Network:
        """The same problem as a cost network: node v is variable v, and costs from FORBIDDEN on are INFINITE.

        Of the times, those remain at which the nodes alive are not all alive at another: each is a capacity.
        """
        count, rows = self._rows()
        pieces = (rows[:, 0] < rows[:, 1]).astype(np.int64).tolist()  # none or one
        cost, table = (np.where(costs >= FORBIDDEN, INFINITE, costs) for costs in (self.cost, self.table))
        use, start, at = self.usage[:, None], self.start.tolist(), self.at.tolist()
        variables = [
            Variable(f"node {v}", cost[a:b], use[a:b, : pieces[v]], rows[v : v + pieces[v]])
            for v, (a, b) in enumerate(pairwise(start))
        ]
        edges = [
            Edge(u, v, table[a:b].reshape(start[u + 1] - start[u], -1))
            for (u, v), a, b in zip(self.ends.tolist(), at[:-1], at[1:], strict=True)
        ]
        return Network(tuple(variables), tuple(edges), (0 if self.limit is None else self.limit,) * count)

    def write(self, path: Path | str, choice: Sequence[int]) -> None:
        """Write a choice in the contest's format: one line, `[0, 0, 2, 1, 0]`.

        Raises PartitaError when the file cannot be written or the choice does not name one option of every node.
        """
        write_atomically(path, f"{self._picks(choice).tolist()}\n")

    def _picks(self, choice: Sequence[int]) -> Table:
        sizes = np.diff(self.start)
        picks = np.asarray(choice)
        if picks.shape != sizes.shape:
            raise PartitaError(f"a choice of shape {list(picks.shape)} for {len(sizes)} nodes")
        if len(picks) and picks.dtype.kind not in "iu":
            raise PartitaError(f"a choice of {picks.dtype}, expected integers")
        for v in np.flatnonzero((picks < 0) | (picks >= sizes)).tolist():
            raise PartitaError(f"node {v} has options 0 to {sizes[v] - 1}, not {picks[v]}")
        return picks.astype(np.int64)

    def _rows(self) -> tuple[int, Table]:
        """How many capacities there are, and on which of them every node counts: [N, 2], half-open.

        Between two times at which nodes come or go, the same ones are alive. Such a span matters if a node comes when
        it begins and one goes when it ends; else a neighbour has all its nodes. No other span need be compared: nodes
        that are all alive in a span further on are so in the next one too.
        """
        rows = np.zeros_like(self.intervals)
        if self.limit is None or not len(rows):
            return 0, rows
        uses = np.maximum.reduceat(self.usage, self.start[:-1]) > 0
        alive = uses & (self.intervals[:, 0] < self.intervals[:, 1])
        times = np.unique(self.intervals[alive])
        matters = np.isin(times[:-1], self.intervals[alive, 0]) & np.isin(times[1:], self.intervals[alive, 1])
        before = np.concatenate([[0], np.cumsum(matters)])
        rows[alive] = before[np.searchsorted(times, self.intervals[alive])]
        return int(matters.sum()), rows


# Reading


def _member(data: Any, key: str, place: str) -> Any:
    if not isinstance(data, Mapping):
        _refuse(place or "the whole", f"is {reprlib.repr(data)}, expected an object")
    if key not in data:
        _refuse(f"{place}.{key}".lstrip("."), "is missing")
    return data[key]


def _ragged(data: Any, key: str, place: str) -> tuple[Table, Table]:
    """Of a list of lists of numbers: where each list begins and the last ends, [lists + 1], and all the numbers."""
    rows = _list(_member(data, key, place), f"{place}.{key}")
    for i, row in enumerate(rows):
        if type(row) is not list:
            _list(row, f"{place}.{key}[{i}]")
    starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))]).astype(np.int64)
    numbers = _numbers(rows, int(starts[-1]))
    if numbers is None:
        i, k, wrong = next((i, k, x) for i, row in enumerate(rows) for k, x in enumerate(row) if _fault(x))
        _refuse(f"{place}.{key}[{i}][{k}]", _fault(wrong))
    return starts, numbers


def _numbers(rows: list[list[Any]], count: int) -> Table | None:
    """All the numbers in lists, or None where one of them is none or out of range."""
    if not set(map(type, chain.from_iterable(rows))) <= {int}:
        return None
    with suppress(OverflowError):
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, count)
        return numbers if numbers.min(initial=0) >= 0 else None
    return None


def _pairs(data: Any, key: str, place: str) -> Table:
    """[n, 2]: a list of lists of two numbers."""
    starts, numbers = _ragged(data, key, place)
    lengths = np.diff(starts)
    _none(lengths != 2, f"{place}.{key}", lambda i: f"has {lengths[i]} numbers, expected 2")
    return numbers.reshape(-1, 2)


def _integer(value: Any, place: str) -> int:
    if _fault(value):
        _refuse(place, _fault(value))
    return int(value)


def _fault(value: Any) -> str:
    """Why a value is no number of an instance; empty where it is one."""
    if type(value) is not int:  # a bool is none either
        return f"is {reprlib.repr(value)}, expected an integer"
    return "" if 0 <= value <= _LARGEST else f"is {reprlib.repr(value)}, expected 0 to 2^63 - 1"


def _none(wrong: npt.NDArray[np.bool_], place: str, words: Callable[[int], str]) -> None:
    """Refuse the first element of `place` that is wrong, in words about its index."""
    for i in np.flatnonzero(wrong)[:1].tolist():
        _refuse(f"{place}[{i}]", words(i))


def _as_many(place: str, found: int, expected: int, of: str) -> None:
    if found != expected:
        _refuse(place, f"has {found} lists for {expected} {of}")


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(place, f"is {reprlib.repr(value)}, expected a list")
    return value


def _refuse(place: str, words: str) -> NoReturn:
    raise PartitaError(f"contest instance: {place} {words}")
