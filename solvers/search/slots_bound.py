"""Lower bound on a step that is timed slot by slot, by paths through the slots of its order.

A path has a_s forwards and c_s backwards of every stage s, some of the messages between stages, and ends on a device
with the updates of its stages. Its length is linear in these times, so any weighted mean of paths bounds the step as
well, and the bound of given stages is that of the best mean. Let n = min(a_s, c_s). Of a stage are known the least
time of its slots, K t_s, of these with its update, w_s, and of its forwards, backwards and update by themselves, f_s,
b_s and u_s.
With the update counted m ≤ 1 times, the mean has at least

    n / K w_s + (m - n / K) u_s, or m w_s + (n / K - m) K t_s where m < n / K,
    (a_s - n) f_s + (c_s - n) b_s, and its messages.

Of the first stage, with which all paths begin, the least of K (t_s + u_s) is known too. There n ≥ m, so that the update
may be counted as what follows from that and w_s.

The best cuts for one mean are a shortest path. The best mean is that of a game: cuts, with times as they are for a
mean, are found for means, and means for the cuts found, until both agree; paths come from the slots as they run with
the mean of these cuts. Where the best mean is of several cuts, cuts are followed stage by stage, and left once
the best mean or one of its paths is too long (`_Followed`). Where too many are left, what a boundary can be is halved.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from .shortest_cut import CutPath, Times, shortest
from .slot_paths import Floats, Ints, Path, SlotGraph, first_paths, slot_floors, slot_graph

_CLOSE, _ROUGH = 5e-4, 4e-3
"""Shares of a step to which bounds are sought."""
_MOST_HALVES, _MOST_ROUNDS, _MOST_MEANS, _MOST_PIVOTS = 8, 40, 512, 500
_MOST_CUTS, _MOST_FOLLOWED = 1024, 12
"""The most cuts up to one stage that are followed, and how often all are."""
_ALMOST, _SOME = 1e-9, 1e-6
_PART = 1 << 12
"""Lengths of cuts are rounded down to this fraction of a ns: shortest paths are found in integers."""
_SURE = 1 - 1e-13
"""Lowers a bound by more than floating-point rounding can have raised it."""


@dataclass(eq=False)
class SlotsBound:
    """`forward`, `backward` [n]: lower bounds in ns on what a micro-batch takes before each boundary.

    `messages` [2, n]: on what crosses it, ahead and back. `update` [n]: on the updates of the weights before it.
    """

    configuration: Configuration
    forward: Times
    backward: Times
    messages: Times
    update: Times
    paths: dict[Path, None] = field(init=False)
    means: deque[_Mean] = field(init=False)

    def __post_init__(self) -> None:
        self.paths = dict.fromkeys(first_paths(*self._shape))
        self.means = deque(maxlen=_MOST_MEANS)

    @property
    def _shape(self) -> tuple[Any, int, int, int]:
        own = self.configuration
        return own.schedule, own.devices, own.chunks, own.micro_batches

    @property
    def _graph(self) -> SlotGraph:
        return slot_graph(*self._shape)

    @cached_property
    def _ways(self) -> Times:
        """[2, n, n]: floors of every part's slots, forward and backward, of all micro-batches."""
        return self.configuration.micro_batches * slot_floors(self.forward, self.backward, self.messages)

    @property
    def larger_way(self) -> Times:
        """[n, n]: floors of every part's backwards."""
        found: Times = self._ways[1]
        return found

    @cached_property
    def least_busy(self) -> Times:
        """[n, n]: what the slots of every part take at least, whatever it computes."""
        found: Times = self._ways.sum(axis=0)
        return found

    def spread_ns(self, total: int) -> int:
        """Lower bound on the step of stages that are busy so long together."""
        return int(total * _even(*self._shape) * _SURE)

    # Given stages

    def step_ns(
        self,
        bounds: Sequence[int],
        busy: Sequence[int],
        backward: Sequence[int],
        updated: Sequence[int] = (),
        ending: int = 0,
    ) -> int:
        """Lower bound on the step of stages between these boundaries that are busy so long, K t_s each.

        That of the first one includes its update. `backward`: lower bounds on K b_s; `updated`: on K t_s and the
        update; `ending`: on K times the last slots of the first stage, of one micro-batch, and its update.
        """
        if max(busy) >= INFINITE:
            return INFINITE
        return _whole(float(self._lengths(self._stages(bounds, busy, backward, updated, ending)).max()))

    def ends_ns(
        self, bounds: Sequence[int], busy: Sequence[int], backward: Sequence[int], updated: Sequence[int]
    ) -> Ints:
        """K times lower bounds on the end of the device of each stage, updates included; arguments as of `step_ns`."""
        lengths = self._lengths(self._stages(bounds, busy, backward, updated))
        ends = [0.0] * self.configuration.devices
        for device, length in zip(self.every[1].tolist(), lengths.tolist(), strict=False):
            ends[device] = max(ends[device], length)
        k = self.configuration.micro_batches
        return np.array([k * _whole(ends[s % len(ends)]) for s in range(len(busy))])

    def waiting_ns(self, bounds: Sequence[int], busy: Sequence[int]) -> list[int]:
        """For every stage the length that a path could have if its forward or its backward took no time."""
        ways = [int(self.larger_way[ends]) for ends in pairwise(bounds)]
        stages = self._stages(bounds, busy, ways, ())
        counts, _ = self._rows
        more = np.abs(counts[:, 0] - counts[:, 1]) * stages.slots
        return [_whole(float(ns)) for ns in (self._lengths(stages)[:, None] + more).max(axis=0)]

    def _stages(
        self,
        bounds: Sequence[int],
        busy: Sequence[int],
        backward: Sequence[int],
        updated: Sequence[int],
        ending: int = 0,
    ) -> _Stages:
        """The times of given stages, [stages] each."""
        starts, ends = np.array(bounds[:-1]), np.array(bounds[1:])
        each = (
            (
                np.array(busy[s]),
                np.array(backward[s]),
                np.array(updated[s] if updated else 0),
                np.array(ending * (not s)),
            )
            for s in range(len(busy))
        )
        made = (self._stage(s, (i, j), own) for s, (i, j, own) in enumerate(zip(starts, ends, each, strict=True)))
        return _Stages(*map(np.array, zip(*made, strict=True)))

    def _stage(self, stage: int, between: tuple[Any, Any], known: tuple[Times, Times, Times, Times]) -> _Stages:
        """The times of a stage between two boundaries, or between any two, of which these four times are known."""
        busy, backward, updated, ending = known
        (i, j), k = between, self.configuration.micro_batches
        forward, least, update = self._ways[0][i, j], self.least_busy[i, j], self.update[j] - self.update[i]
        slots = np.maximum(np.maximum(busy if stage else least, least), forward + backward)
        whole = np.maximum(np.maximum(updated, busy), slots + update)
        ahead, back = self.messages[0][j] + 0 * least, self.messages[1][i] + 0 * least
        implied = np.maximum(update, (ending - whole) // max(1, k - 1))
        return _Stages(
            slots, whole, update, implied, forward=forward, backward=backward, ahead=k * ahead, back=k * back
        )

    def _lengths(self, stages: _Stages) -> Floats:
        """The least lengths of all paths, and of the latest means."""
        counts, updates = self._rows
        found: Floats = stages.length(counts.swapaxes(0, 1), updates).sum(axis=1)
        return found

    @cached_property
    def _rows(self) -> tuple[Floats, Floats]:
        """The counts of all paths, and of the latest means, and how often they have each update."""
        own, (counts, ends) = self.configuration, self.every
        updates = ends[:, None] == np.arange(own.stages) % own.devices
        if not self.means:
            return counts, updates.astype(np.float64)
        means, of_means = (np.array(each) for each in zip(*self.means, strict=True))
        return np.concatenate([counts, means]), np.concatenate([updates, of_means])

    # The best cuts

    def best_path(
        self,
        at: Ints,
        busy: Sequence[Times],
        backward: Sequence[Times],
        updated: Sequence[Times] = (),
        ending: Times | None = None,
        *,
        closely: bool = True,
    ) -> CutPath | None:
        """A path of nearly the least bound from node 0 to the last, and a lower bound on that of all.

        `busy[s]`, `backward[s]`, `updated[s]` and `ending` [n, n] as above; `at`: the boundary of a node.
        `closely`: what boundaries can be is halved where that raises the bound.
        """
        barred = [times >= INFINITE for times in busy]
        none = np.zeros_like(busy[0])
        both = at[:, None], at[None, :]
        given = zip(busy, backward, updated or [none] * len(busy), barred, strict=True)
        stages = [
            self._stage(
                s,
                both,
                (np.where(no, 0, own), ways, np.minimum(more, INFINITE), none if s or ending is None else ending),
            )
            for s, (own, ways, more, no) in enumerate(given)
        ]
        return _Cuts(self, at, stages, barred, closely).best()

    def explore(self, column: _Stages, least: float) -> tuple[float, bool]:
        """The longest path of stages with these times, [stages] each; True if it is new, and longer than `least`."""
        k, own = self.configuration.micro_batches, self.configuration
        times = np.stack([column.forward, column.backward, column.ahead, column.back]) / k
        closing = [float(column.update[d :: own.devices].sum()) for d in range(own.devices)]
        lengths, came = self._graph.longest(times, closing)
        device = int(np.argmax(lengths))
        return lengths[device], lengths[device] > least and self._add(self._graph.path(came, device))

    def _add(self, path: Path) -> bool:
        if path in self.paths:
            return False
        self.paths[path] = None
        self._forget("every", "_rows")
        return True

    def keep(self, mean: _Mean) -> None:
        """Count a mean in the bounds of given stages."""
        self.means.append(mean)
        self._forget("_rows")

    def _forget(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)

    @cached_property
    def every(self) -> tuple[Floats, Ints]:
        """The counts of all paths by micro-batch, [paths, 4, stages], and where they end."""
        return _stacked(self.paths, self.configuration.micro_batches)

    def alone(self, path: int) -> _Mean:
        """The mean that is the path of this number."""
        return self.mean(np.eye(1, len(self.paths), path)[0])

    def mean(self, shares: Floats) -> _Mean:
        """The mean with these shares of paths."""
        own, (counts, ends) = self.configuration, self.every
        updates: Floats = np.bincount(ends, shares, own.devices).astype(np.float64)
        return _Mean(np.tensordot(shares, counts, 1), updates[np.arange(own.stages) % own.devices])


class _Mean(NamedTuple):
    """`counts` [4, stages] by micro-batch, and how often updates are counted, [stages]."""

    counts: Floats
    updates: Floats


class _Stages(NamedTuple):
    """Times of stages, K micro-batches each: of one stage by part, or of every stage of a cut.

    `slots`: all of them; `whole`: with the update; `implied`: the update where `whole` is no longer than is known of
    it; `ahead`, `back`: the messages that it sends.
    """

    slots: Any
    whole: Any
    update: Any
    implied: Any
    forward: Any
    backward: Any
    ahead: Any
    back: Any

    def length(self, counts: Any, updates: Any) -> Any:
        """What the stages add to a mean, at least."""
        forward, backward, ahead, back = counts
        both = np.minimum(forward, backward)
        early = both * self.whole + (updates - both) * self.implied
        late = updates * self.whole + (both - updates) * self.slots
        found = np.where(updates >= both, early, late) + ahead * self.ahead + back * self.back
        return found + (forward - both) * self.forward + (backward - both) * self.backward

    def at(self, ends: tuple[int, int]) -> _Stages:
        """Of one part."""
        return _Stages(*(times[ends] for times in self))

    def as_counted(self, mean: _Mean) -> _Stages:
        """Times of the stages with which a mean has just its least length; `slots` and `whole` are then of no use."""
        ahead, back, *_ = mean.counts
        early = mean.updates >= np.minimum(ahead, back)
        slots = np.where(early, np.maximum(self.whole - self.implied, self.slots), self.slots)
        update = np.where(early, self.implied, self.whole - self.slots)
        least, known = slots - self.forward - self.backward, self.forward + self.backward
        share = np.where(known > 0, self.forward / np.maximum(known, 1), 0.5)
        more = np.where(ahead == back, share, ahead < back) * least
        forward = self.forward + more
        return self._replace(forward=forward, backward=slots - forward, update=update)


class _Column(NamedTuple):
    """A cut, with the times of its stages as they are for some mean.

    `times`: of their slots and messages, by rows of counts; `closing`: of the updates of each device.
    """

    nodes: tuple[int, ...]
    stages: _Stages
    times: Floats
    closing: Floats


_Ranges = tuple[tuple[int, int], ...]
"""The first and the last boundary at which each stage may begin, and at which the last one ends."""


class _Cuts:
    """The best cuts of stages with these times by part."""

    def __init__(self, bound: SlotsBound, at: Ints, stages: list[_Stages], barred: list[Any], closely: bool) -> None:
        self.bound, self.at, self.stages, self.barred = bound, at, stages, barred
        self.close, self.halves = (_CLOSE, _MOST_HALVES) if closely else (_ROUGH, 0)
        self.columns: list[_Column] = []
        self.best_length, self.best_nodes = inf, tuple[int, ...]()

    def best(self) -> CutPath | None:
        last = int(self.at[-1])
        whole: _Ranges = ((0, 0), *[(0, last)] * (len(self.stages) - 1), (last, last))
        open_: list[tuple[float, int, _Ranges, list[_Column]]] = []
        least, count = inf, 0

        def add(ranges: _Ranges) -> None:
            nonlocal count
            count += 1
            length, columns = self._least(ranges)
            if columns:
                heapq.heappush(open_, (length, count, ranges, columns))

        add(whole)
        while open_:
            length, _, ranges, columns = open_[0]
            if length >= min(self.best_length * (1 - self.close), least) or count >= 2 * self.halves:
                least = min(least, length)
                break
            heapq.heappop(open_)
            cuts = self.at[np.array([column.nodes for column in columns])]
            spread = cuts.max(axis=0) - cuts.min(axis=0)
            if not spread.any():  # one cut, but for layouts
                least = min(least, length)
                continue
            stage = int(spread.argmax())
            middle = min(int(cuts[:, stage].mean()), int(cuts[:, stage].max()) - 1)
            low, high = ranges[stage]
            add((*ranges[:stage], (low, middle), *ranges[stage + 1 :]))
            add((*ranges[:stage], (middle + 1, high), *ranges[stage + 1 :]))
        if not self.best_nodes:
            return None
        return CutPath(self.best_nodes, _whole(min(least, self.best_length)))

    def _least(self, ranges: _Ranges) -> tuple[float, list[_Column]]:
        """A lower bound on the step of all cuts within these ranges, and the columns of the best mean; none: no cut."""
        inside = [(self.at >= low) & (self.at <= high) for low, high in ranges]
        free = [~no & a[:, None] & b[None, :] for no, (a, b) in zip(self.barred, pairwise(inside), strict=True)]
        columns = [
            c for c in self.columns if all(own[n] for own, n in zip(inside, c.nodes, strict=True))
        ]  # fmt: skip
        least, length, shares, paths = 0.0, inf, np.ones(0), [0]
        mean = self.bound.mean(np.full(len(self.bound.paths), 1 / len(self.bound.paths)))
        for _ in range(_MOST_ROUNDS):
            if columns:
                length, mean, shares, paths = self._game(columns)
            found = self._shortest(mean, free)
            if found is None:
                return inf, []
            least = max(least, found[0])
            if least >= self.best_length:
                break
            if length <= least * (1 + self.close / 2):
                if not self.bound.explore(self._mean_of(columns, shares), length * (1 + self.close / 2))[1]:
                    break
                continue
            column = self._column(found[1], mean)
            columns.append(column)
            self.columns.append(column)
            if len(self.columns) < 4:
                self.bound.explore(column.stages, least * (1 + self.close))
        used = [column for column, share in zip(columns, shares, strict=False) if share > _SOME] or columns[-1:]
        self._compare(used, least)
        if len({column.nodes for column in used}) > 1 and least < self.best_length * (1 - self.close):
            least = max(least, self._followed(mean, paths, free))
        return least, used

    def _followed(self, mean: _Mean, paths: Sequence[int], free: Sequence[Any]) -> float:
        """A lower bound on the step of all cuts: on that of each, not of means of cuts, by a mean and some paths.

        `paths`: the first ones; more are found that are longest for the best cuts. The best of these cuts is kept.
        """
        found, followed, paths = 0.0, _Followed(self.stages, free), [*paths]
        for each in (mean, *map(self.bound.alone, paths)):
            followed.add(each)
        for _ in range(_MOST_FOLLOWED):
            length, nodes, row = followed.least(self.best_length)
            found = max(found, length)
            if not nodes:
                break
            column = self._column(nodes, followed.rows[row])
            step, _ = self.bound.explore(column.stages, length)
            if step < self.best_length:
                self.best_length, self.best_nodes = step, nodes
            longest = int(self._lengths([column])[0].argmax())
            if longest in paths or step <= length * (1 + self.close / 2):
                break
            paths.append(longest)
            followed.add(self.bound.alone(longest))
        return found

    def _compare(self, columns: list[_Column], least: float) -> None:
        """Keep the best cut; where there is but one, its step is no less than the least."""
        alone = len({column.nodes for column in columns}) == 1
        for column in columns:
            length, _ = self.bound.explore(column.stages, inf)
            length = least if alone else length
            if length < self.best_length:
                self.best_length, self.best_nodes = length, column.nodes

    def _game(self, columns: list[_Column]) -> tuple[float, _Mean, Floats, list[int]]:
        """The mean of paths of which the shortest of these cuts is longest; that, the shares of cuts for which no mean
        is longer, and the numbers of the paths.
        """
        lengths = self._lengths(columns)
        unit = lengths.max()
        if len(columns) == 1:
            path = int(lengths[0].argmax())
            return float(unit), self.bound.alone(path), np.ones(1), [path]
        length, shares, parts = _best_mean(lengths / unit)
        mean = self.bound.mean(shares)
        self.bound.keep(mean)
        return length * float(unit), mean, parts, np.flatnonzero(shares > _SOME).tolist()

    def _lengths(self, columns: Sequence[_Column]) -> Floats:
        """What all paths take of each cut."""
        counts, ends = self.bound.every
        times, closing = np.array([c.times for c in columns]), np.array([c.closing for c in columns])
        found: Floats = times @ counts.reshape(len(counts), -1).T + closing[:, ends]
        return found

    def _shortest(self, mean: _Mean, free: Sequence[Any]) -> tuple[float, tuple[int, ...]] | None:
        """The shortest cut by a mean."""
        lengths = []
        for s, (own, may) in enumerate(zip(self.stages, free, strict=True)):
            length = own.length(mean.counts[:, s], mean.updates[s])
            lengths.append(np.where(may, np.minimum(length * (_PART * _SURE), INFINITE - 1), INFINITE).astype(np.int64))
        found = shortest(lengths, lengths, INFINITE - 1)
        return None if found is None else (found[0] / _PART, found[1])

    def _column(self, nodes: tuple[int, ...], mean: _Mean) -> _Column:
        cut = [own.at(ends) for own, ends in zip(self.stages, pairwise(nodes), strict=True)]
        stages, devices = (
            _Stages(*map(np.array, zip(*cut, strict=True))).as_counted(mean),
            self.bound.configuration.devices,
        )
        times = np.concatenate([stages.forward, stages.backward, stages.ahead, stages.back])
        return _Column(nodes, stages, times, stages.update.reshape(-1, devices).sum(axis=0))

    def _mean_of(self, columns: list[_Column], shares: Floats) -> _Stages:
        """The mean of the times of these cuts."""
        parts = shares / shares.sum()
        return _Stages(
            *(np.tensordot(parts, np.array(own), 1) for own in zip(*(c.stages for c in columns), strict=True))
        )


class _Followed:
    """Cuts that are followed stage by stage, and left where a mean is too long; `free`: the parts that may be taken."""

    def __init__(self, stages: Sequence[_Stages], free: Sequence[Any]) -> None:
        self.stages, self.free = stages, free
        self.rows: list[_Mean] = []
        count = len(free[0])
        self.tables = np.zeros((len(stages), 0, count, count))  # by stage and mean what every part adds
        self.rest = np.zeros((len(stages) + 1, 0, count))  # by stage, mean and node the least that is left

    def add(self, row: _Mean) -> None:
        """Add a mean by which cuts are compared; the first one decides which are looked at."""
        counts = zip(self.stages, self.free, row.counts.T, row.updates, strict=True)
        tables = [np.where(may, own.length(each, closing), inf) for own, may, each, closing in counts]
        rest = [np.where(np.arange(len(tables[0])) == len(tables[0]) - 1, 0.0, inf)]
        for table in tables[::-1]:
            rest.append((table + rest[-1][None, :]).min(axis=1))
        self.rows.append(row)
        self.tables = np.concatenate([self.tables, np.array(tables)[:, None]], axis=1)
        self.rest = np.concatenate([self.rest, np.array(rest[::-1])[:, None]], axis=1)

    def least(self, below: float) -> tuple[float, tuple[int, ...], int]:
        """A lower bound on the longest mean of all cuts, or `below` if it is less; the cut with the least, of those
        that were followed to their end, and the number of its longest mean.

        Where there are too many the most promising are followed, and the bound is that of the others too.
        """
        nodes, taken, left = np.zeros((1, 1), dtype=np.int64), np.zeros((len(self.rows), 1)), below
        for table, rest in zip(self.tables, self.rest[1:], strict=True):
            at = nodes[:, -1]
            first = taken[0, :, None] + table[0][at] + rest[0]
            of, to = np.nonzero(first < below)
            now = taken[:, of] + table[:, at[of], to]
            long = (now + rest[:, to]).max(axis=0)
            kept = np.flatnonzero(long < below)
            if len(kept) > _MOST_CUTS:
                kept = kept[np.argpartition(long[kept], _MOST_CUTS)]
                left = min(left, float(long[kept[_MOST_CUTS]]))
                kept = np.sort(kept[:_MOST_CUTS])
            nodes, taken = np.concatenate([nodes[of[kept]], to[kept, None]], axis=1), now[:, kept]
        if not len(nodes):
            return left, (), 0
        best = int(taken.max(axis=0).argmin())
        return min(left, float(taken[:, best].max())), tuple(nodes[best].tolist()), int(taken[:, best].argmax())


def _whole(length: float) -> int:
    """A bound in whole ns from a length that rounding may have raised."""
    return ceil(length * _SURE) if length < INFINITE else INFINITE


def _stacked(paths: Iterable[Path], micro_batches: int) -> tuple[Floats, Ints]:
    return np.array([path.counts for path in paths]) / micro_batches, np.array([path.device for path in paths])


@lru_cache(maxsize=64)
def _even(*shape: Any) -> float:
    """The least step, as a share of the time that all stages are busy together, however it is spread over them."""
    counts, _ = _stacked(first_paths(*shape), shape[-1])
    each = counts[:, :2].reshape(len(counts), -1)
    _, shares, _ = _best_mean(each.T)
    return float((shares @ each).min())


def _best_mean(rows: Floats) -> tuple[float, Floats, Floats]:
    """The mean of columns whose least entry is largest; that entry, and the shares of rows for which none is larger.

    The shares of rows are proportional to the y ≥ 0 of largest sum with (1 + rows.T) y ≤ 1, found by the simplex
    method, and those of columns to its prices; entries are at least 0.
    """
    count, columns = rows.shape
    table = np.ones((columns + 1, count + 1))
    table[:-1, :-1], table[-1] = 1 + rows.T, [-1] * count + [0]
    inside, outside = np.arange(count, count + columns), np.arange(count)
    for _ in range(_MOST_PIVOTS):
        enters = int(table[-1, :-1].argmin())
        if table[-1, enters] >= -_ALMOST:
            break
        column = table[:, enters].copy()
        ratios = np.where(column[:-1] > _ALMOST, table[:-1, -1] / np.maximum(column[:-1], _ALMOST), inf)
        leaves = int(ratios.argmin())
        row = table[leaves] / column[leaves]
        table -= np.outer(column, row)
        table[leaves], table[:, enters] = row, -column / column[leaves]
        table[leaves, enters] = 1 / column[leaves]
        inside[leaves], outside[enters] = outside[enters], inside[leaves]
    parts, prices = np.zeros(count + columns), np.zeros(count + columns)
    parts[inside], prices[outside] = np.maximum(table[:-1, -1], 0), np.maximum(table[-1, :-1], 0)
    shares = prices[count:] / prices[count:].sum()
    return float((rows @ shares).min()), shares, parts[:count] / parts[:count].sum()
