"""Lower bound on the step of 1F1B, slot by slot, from the times of its stages.

Let f_s and b_s be a stage's forward and backward of one micro-batch, t_s their sum, x_s the messages, both ways,
between it and the next stage, p the number of stages, K that of micro-batches, T = Σ t_s + Σ x_s. A step is at least as
long as any path through its slots. Stage s keeps m = min(p - s, K) micro-batches, so that it may wait for the first one
to come back, before or after it has worked on the others, or both. A path along the first stage, m of that:

    once       T + (K - 1) t - (m - 1) min(f, b)        one of both waits
    twice      2 T + (K - m - 1) t                      both waits, K > m
    nearer     2 T + n N + Σ_(s < r) t_s + Σ_(s < r - 1) x_s        both waits, n d + r = K - m - 1, r < d
    rounds     (n + 1) T + Σ_(q ≤ s < q + r) t_s + Σ_(q ≤ s < q + r - 1) x_s        n p + r = K - 1, r < p

*Rounds*: a micro-batch passes all stages and comes back. Stage 0 then begins the p-th after it, so that every p-th
takes a whole round, and so do the first and the last. What is left, r, passes r stages in a row, from any stage q that
keeps fewer than K micro-batches.

*Nearer*: between both waits micro-batches that pass the first d stages alone, N of time, and come back. Stage d - 1 has
run d - 1 fewer forwards ahead of its backwards than the first one, so that it sends another micro-batch back than the
one that came; and the first one begins the d-th after that which it began before.

Stages s to e in a row are such a pipeline too. Stage e runs L = p - 1 - e more forwards before its first backward, so
that its forward of micro-batch k + L is there before its backward of k: without the first L forwards and the last L
backwards the slots of these stages are those of K - L micro-batches in a pipeline of their own. Stage s runs all of
them, and a micro-batch comes and goes through the stages before. So for all s ≤ e a step takes at least

    Σ_(r < s) (t_r + x_r) + L t_s + the longest path through stages s to e for K - L micro-batches.

The first stage ends last, and then updates its weights, so its update u comes on top: what it takes at least, whole;
the rest only as the share of the stage's slots and update together that a path has. The search bounds t + u too
(`PartNetworks.least_ending`), beside K t + u: (K - 1) (c t + u) = (K - c) (t + u) + (c - 1) (K t + u) for a path with c
of its slots. Others may update meanwhile: theirs count in no path. But each stage is the first one of a pipeline with
those after it, and ends with its own update: the path *once* from there, after a forward through the stages before,
counts where the search has bounded the sum of a stage's slots and its update (`PartNetworks.least_updated`). Its slots
may be all of that sum, so min(f, b) is at most half of it.

Of f_s and b_s only floors are known: min(f_s, b_s) is at most half of t_s, and what the larger one leaves of it. Where
that decides, the search bounds the backwards of a stage (`PartNetworks.least_backward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...formulation.network.network import INFINITE
from .shortest_cut import CutPath, Times
from .slot_paths import slot_floors

Nodes = npt.NDArray[np.int64]

_FAR = 1 << 49
"""Longer than any step, and short enough to be added up for all micro-batches."""

_NEVER = INFINITE // 4
"""Longer than any cuts take, and short enough that a few of it add up."""

_MOST_PATHS = 24
"""Paths whose least lengths over all cuts are compared."""

_MOST_CUTS = 4096
"""The most cuts up to one stage that are followed."""

_NEAR = 8
"""The most stages in a row within a longer pipeline whose paths count, but for those up to its end."""


@dataclass(frozen=True, eq=False)
class OneFOneBBound:
    """`forward`, `backward` [n]: lower bounds in ns on what a micro-batch takes before each boundary.

    `messages` [2, n]: on what crosses it, ahead and back. `update` [n]: on the updates of the weights before it. All
    sums here are K times as long: those of K micro-batches.
    """

    stages: int
    micro_batches: int
    forward: Times
    backward: Times
    messages: Times
    update: Times

    @cached_property
    def _ways(self) -> Times:
        """[2, n, n]: floors of every part's slots, forward and backward, of all micro-batches."""
        return self.micro_batches * slot_floors(self.forward, self.backward, self.messages)

    @cached_property
    def larger_way(self) -> Times:
        """[n, n]: the larger floor of every part's slots, forward or backward."""
        found: Times = self._ways.max(axis=0)
        return found

    @cached_property
    def least_busy(self) -> Times:
        """[n, n]: what the slots of every part take at least, whatever it computes."""
        found: Times = self._ways.sum(axis=0)
        return found

    @cached_property
    def forward_through(self) -> Times:
        """[n, n]: floors of a forward through every part, and of the message that it sends ahead."""
        found: Times = self._ways[0] + self.micro_batches * self.messages[0][None, :]
        return found

    @cached_property
    def sent(self) -> Nodes:
        """[n]: K times what crosses each boundary, both ways."""
        found: Nodes = self.micro_batches * self.messages.sum(axis=0)
        return found

    def step_ns(
        self,
        bounds: Sequence[int],
        busy: Sequence[int],
        larger: Sequence[int],
        updated: Sequence[int] = (),
        ending: int = 0,
    ) -> int:
        """Lower bound on the step of stages between these boundaries that are busy so long, K t_s each.

        `larger`: lower bounds on K times the longer of f_s and b_s; `updated`: on K t_s and the update; `ending`: on
        K times the last slots of the first stage, of one micro-batch, and its update.
        """
        if max(busy) >= INFINITE:
            return INFINITE
        return -(-int(self.paths_ns(bounds, busy, larger, updated, ending).max()) // self.micro_batches)

    def paths_ns(
        self, bounds: Sequence[int], busy: Sequence[int], larger: Sequence[int], updated: Sequence[int], ending: int
    ) -> Nodes:
        """K times the least lengths of all paths through the slots, then the least ends of all stages."""
        own, sent = np.array(self._in_slots(bounds, busy)), self.sent[np.array(bounds[1:])]
        times = np.concatenate([own, sent, _smaller(own, np.array(larger))])
        found = self.lengths(times, int(self.update[bounds[1]]), ending)
        return np.concatenate([found, self.ends_ns(bounds, busy, larger, updated)]) if updated else found

    def ends_ns(
        self, bounds: Sequence[int], busy: Sequence[int], larger: Sequence[int], updated: Sequence[int]
    ) -> Nodes:
        """K times lower bounds on the end of each stage, its update included; arguments as of `step_ns`."""
        p, k = self.stages, self.micro_batches
        own, ends = self._in_slots(bounds, busy), [*pairwise(bounds)]
        passed, sent = [int(self.forward_through[e]) for e in ends], [int(self.sent[b]) for b in bounds[1:]]
        found = list[int]()
        for s in range(p):
            smaller = int(_smaller(np.array(max(own[s], updated[s])), np.array(larger[s])))
            others = sum(passed[:s]) + sum(own[s + 1 :]) + sum(sent[s:-1])
            found.append(k * updated[s] + others - (min(p - s, k) - 1) * smaller)
        return np.array(found)

    def lengths(self, times: Nodes, update: int, ending: int) -> Nodes:
        """K times what all paths take: `times` are those of all stages, K t_s, K x_s and K min(f_s, b_s)."""
        paths = self.paths
        plain = paths @ times + self.micro_batches * update
        if not ending:
            return plain
        counts, of_first = paths[:, 0], paths[:, 2 * self.stages]
        others = plain - counts * times[0] - self.micro_batches * update
        ended = self.with_update(counts, times[0] + update, ending) + others
        found: Nodes = np.where(of_first == 0, np.maximum(plain, ended), plain)
        return found

    def with_update(self, count: int | Nodes, busy: int | Times, ending: int | Times) -> Times:
        """K times so many micro-batches in the first stage, and its update.

        `busy`: K micro-batches and the update; `ending`: K times one micro-batch and the update.
        """
        k = self.micro_batches
        return np.asarray(((k - count) * ending + k * (count - 1) * busy) // max(1, k - 1))

    def waiting_ns(self, bounds: Sequence[int], busy: Sequence[int]) -> list[int]:
        """For every stage the length of the path *once* if its forward or its backward took no time."""
        k, busy = self.micro_batches, self._in_slots(bounds, busy)
        total = sum(busy) + sum(int(self.sent[b]) for b in bounds[1:])
        return [-(-(total + (k - 1) * own) // k) for own in busy]

    def _in_slots(self, bounds: Sequence[int], busy: Sequence[int]) -> list[int]:
        """The same without what the first stage's update takes at least."""
        busy = [busy[0] - int(self.update[bounds[1]]), *busy[1:]]
        return [max(ns, int(self.least_busy[ends])) for ns, ends in zip(busy, pairwise(bounds), strict=True)]

    def spread_ns(self, total: int) -> int:
        """Lower bound on the step of stages that are busy so long together."""
        p, k = self.stages, self.micro_batches
        if k > p:  # the mean of all rounds whose rest passes r stages of a circle
            return total * (k - 1 + p) // (p * k)
        return max(total // p, total // k)

    @property
    def paths(self) -> Nodes:
        """[paths, 3 · p]: how often paths have t_s, x_s and, less than none, min(f_s, b_s)."""
        return _paths(self.stages, self.micro_batches)

    # The best cuts

    def best_path(
        self,
        at: Nodes,
        busy: Sequence[Times],
        larger: Sequence[Times],
        updated: Sequence[Times] = (),
        ending: Times | None = None,
    ) -> CutPath | None:
        """The path of least step from node 0 to the last, or one near it, with a bound on the step of all.

        `busy[s]`, `larger[s]`, `updated[s]` and `ending` [n, n] as above. `at`: the boundary of a node.
        """
        cuts = _Cuts(self, at, busy, larger, updated, np.zeros_like(busy[0]) if ending is None else ending)
        chosen, best, step = [0], None, _NEVER
        while True:  # of the paths through slots those that are the longest somewhere
            found = cuts.least(chosen, step)
            if not found.nodes:
                break
            lengths = cuts.along(found.nodes)
            longest = int(lengths.argmax())
            if int(lengths[longest]) < step:
                best, step = found.nodes, int(lengths[longest])
            if longest in chosen or len(chosen) == _MOST_PATHS:
                return CutPath(found.nodes, -(-found.objective // self.micro_batches))
            chosen.append(longest)
        return None if best is None else CutPath(best, -(-found.objective // self.micro_batches))


class _Cuts:
    """All cuts: by stage and part K times t_s, and the most that min(f_s, b_s) can be; by node K times x_s."""

    def __init__(
        self,
        bound: OneFOneBBound,
        at: Nodes,
        busy: Sequence[Times],
        larger: Sequence[Times],
        updated: Sequence[Times],
        ending: Times,
    ) -> None:
        self.bound, self.at, self.busy, self.larger, self.updated, self.ending = (
            bound,
            at,
            busy,
            larger,
            updated,
            ending,
        )
        least, self.sent, self.update = bound.least_busy[np.ix_(at, at)], bound.sent[at], bound.update[at][None, :]
        self.none = [t >= INFINITE for t in busy]
        slots = [busy[0] - self.update, *busy[1:]]
        self.own = [np.where(no, _FAR, np.maximum(t, least)) for t, no in zip(slots, self.none, strict=True)]
        self.tables: dict[int, list[Times]] = {}
        self.rest: dict[int, list[Nodes]] = {}

    def along(self, nodes: Sequence[int]) -> Nodes:
        """K times what all paths through the slots take, with the stages between these nodes."""
        ends, bounds = [*pairwise(nodes)], [int(self.at[node]) for node in nodes]
        busy, larger, updated = (
            [int(t[e]) for t, e in zip(of, ends, strict=True)] if of else []
            for of in (self.busy, self.larger, self.updated)
        )
        return self.bound.paths_ns(bounds, busy, larger, updated, int(self.ending[ends[0]]))

    def least(self, chosen: Sequence[int], below: int) -> CutPath:
        """The cuts whose longest chosen path is shortest, with a bound on it; no cuts if those followed take `below`.

        Where there are too many the most promising are followed, and the bound is that of the others too.
        """
        for path in chosen:
            self._prepare(path)
        labels = np.zeros((1, 1), dtype=np.int64)
        taken = np.zeros((1, len(chosen)), dtype=np.int64)  # of every label what the chosen paths have so far
        left = below
        for s in range(self.bound.stages):
            nodes = labels[:, -1]
            whole = [taken[:, n, None] + self.tables[path][s][nodes] for n, path in enumerate(chosen)]
            long = np.maximum.reduce([t + self.rest[path][s + 1] for path, t in zip(chosen, whole, strict=True)])
            of, to = np.nonzero(long < below)
            if len(of) > _MOST_CUTS:
                order = np.argsort(long[of, to], kind="stable")
                left = min(left, int(long[of[order[_MOST_CUTS]], to[order[_MOST_CUTS]]]))
                of, to = of[order[:_MOST_CUTS]], to[order[:_MOST_CUTS]]
            labels = np.concatenate([labels[of], to[:, None]], axis=1)
            taken = np.stack([t[of, to] for t in whole], axis=1)
        if not len(labels):
            return CutPath((), left)
        steps = taken.max(axis=1)
        best = int(steps.argmin())
        return CutPath(tuple(labels[best].tolist()), min(left, int(steps[best])))

    def _prepare(self, path: int) -> None:
        """What every part adds to a path through the slots, and by stage and node the least that is left."""
        if path in self.tables:
            return
        p = self.bound.stages
        tables = self._of_end(path - len(self.bound.paths)) if path >= len(self.bound.paths) else self._of_path(path)
        self.tables[path] = [np.where(no, _NEVER, t) for t, no in zip(tables, self.none, strict=True)]
        rest = [np.full(len(self.at), _NEVER)]
        rest[0][-1] = 0
        for s in reversed(range(p)):
            rest.append(np.minimum((self.tables[path][s] + rest[-1][None, :]).min(axis=1), _NEVER))
        self.rest[path] = rest[::-1]

    def _of_path(self, path: int) -> list[Times]:
        by_stage, sent = self.bound.paths[path].reshape(3, -1).T.tolist(), self.sent[None, :]
        found = [
            a * own + b * sent + (c * _smaller(own, way) if c else 0)
            for (a, b, c), own, way in zip(by_stage, self.own, self.larger, strict=True)
        ]
        found[0] = found[0] + self.bound.micro_batches * self.update
        count, times, less = by_stage[0]
        if less == 0:
            ended = self.bound.with_update(count, self.own[0] + self.update, self.ending) + times * sent
            found[0] = np.where(self.ending > 0, np.maximum(found[0], ended), found[0])
        return found

    def _of_end(self, stage: int) -> list[Times]:
        k, sent = self.bound.micro_batches, self.sent[None, :]
        passed = self.bound.forward_through[np.ix_(self.at, self.at)]
        own, updated = self.own[stage], np.minimum(self.updated[stage], _FAR)
        less = (min(self.bound.stages - stage, k) - 1) * _smaller(np.maximum(own, updated), self.larger[stage])
        after = [t + sent for t in self.own[stage + 1 :]]
        return [*[passed] * stage, k * updated + sent - less, *after]


def _smaller(own: Times, larger: Times) -> Times:
    """The most that the smaller one of forward and backward can take, where the larger one takes so much at least."""
    found: Times = np.minimum(own - own // 2, np.maximum(own - larger, 0))
    return found


@lru_cache(maxsize=64)
def _paths(p: int, k: int) -> Nodes:
    """See `OneFOneBBound.paths`."""
    paths, rounds = list[Nodes](), [_path(p, range(p), 1, 0)]
    for first in range(p):
        paths.append(_path(p, range(first, first + 1), 0, k))
        for last in range(first, p):
            more, size = p - 1 - last, last - first + 1
            kept, row = k - more, range(first, last + 1)
            if kept <= 0 or (more and size > _NEAR):
                continue
            paths.append(_path(p, row, 1, k - 1, smaller=min(size, kept) - 1))
            if kept > size:
                paths.append(_path(p, row, 2, k - size - 1))
            for near in range(2, size if kept > size + 1 else 0):
                n, rest = divmod(kept - 1 - size, near)
                inner = (n, range(first, first + near)), (1, range(first, first + rest))
                rounds.append(_path(p, row, 2, more, inner=inner))
            n, rest = divmod(kept - 1, size)
            for begin in range(max(0, size - kept + 1), size - rest + 1) if rest and size > 1 else range(size > 1):
                again = ((1, range(first + begin, first + begin + rest)),)
                rounds.append(_path(p, row, n + 1, more, inner=again))
    return np.unique(np.array([*paths, *rounds], dtype=np.int64), axis=0)


def _path(
    p: int, row: range, times: int, own: int, *, smaller: int = 0, inner: Sequence[tuple[int, range]] = ()
) -> Nodes:
    """So many times through a row of stages, the slots of its first one besides, and through rows within it."""
    found = np.zeros((3, p), dtype=np.int64)
    found[:2, : row.start] = 1
    found[0, row.start : row.stop] = found[1, row.start : row.stop - 1] = times
    found[0, row.start] += own
    for more, within in inner:
        found[0, within.start : within.stop] += more
        found[1, within.start : max(within.start, within.stop - 1)] += more
    found[2, row.start] = -smaller
    return found.ravel()
