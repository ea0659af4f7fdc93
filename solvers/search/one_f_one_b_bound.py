"""Lower bound on the step of 1F1B, slot by slot, from the times of its stages.

Let f_s and b_s be a stage's forward and backward of one micro-batch, t_s their sum, x_s the messages, both ways,
between it and the next stage, p the number of stages, K that of micro-batches, T = Σ t_s + Σ x_s. A step is at least as
long as any path through its slots. Stage s keeps m = min(p - s, K) micro-batches, so that it may wait for the first one
to come back, before or after it has worked on the others, or both. A path along the first stage, m and D of that:

    once       T + (K - 1) t - (m - 1) min(f, b)        one of both waits
    twice      T + D + (K - m) t                        both waits, K > m; D = T - t, a way there and back
    rounds     (n + 1) T + Σ_(q ≤ s < q + r) t_s + Σ_(q ≤ s < q + r - 1) x_s        n p + r = K - 1, r < p

*Rounds*: a micro-batch passes all stages and comes back. Stage 0 then begins the p-th after it, so that every p-th
takes a whole round, and so do the first and the last. What is left, r, passes r stages in a row, from any stage q that
keeps fewer than K micro-batches.

Stages s to e in a row are such a pipeline too. Stage e runs L = p - 1 - e more forwards before its first backward, so
that its forward of micro-batch k + L is there before its backward of k: without the first L forwards and the last L
backwards the slots of these stages are those of K - L micro-batches in a pipeline of their own. Stage s runs all of
them, and a micro-batch comes and goes through the stages before. So for all s ≤ e a step takes at least

    Σ_(r < s) (t_r + x_r) + L t_s + the longest path through stages s to e for K - L micro-batches.

The first stage ends last, and then updates its weights, so its update comes on top: what it takes at least, whole; the
rest only as the share of the stage's slots and update together that a path has. Others may update meanwhile: theirs
count in no path. But each stage is the first one of a pipeline with those after it, and ends with its own update: the
path *once* from there, after a forward through the stages before, counts where the search has bounded the sum of a
stage's slots and its update (`PartNetworks.least_updated`). Its slots may be all of that sum, so min(f, b) is at most
half of it.

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
from .shortest_cut import CutPath, Times, shortest

Nodes = npt.NDArray[np.int64]

_FAR = 1 << 49
"""Longer than any step, and short enough to be added up for all micro-batches."""

_MOST_ROUNDS = 4
"""Rounds whose least lengths over all cuts are compared, beside the paths along one stage."""

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
    def _both_ways(self) -> Times:
        """[2, n, n]: floors of every part's slots, forward and backward: none is shorter than the message it sends."""
        forward, backward = (way[None, :] - way[:, None] for way in (self.forward, self.backward))
        ahead, back = self.messages
        return self.micro_batches * np.stack([np.maximum(forward, ahead[None, :]), np.maximum(backward, back[:, None])])

    @cached_property
    def larger_way(self) -> Times:
        """[n, n]: the larger floor of every part's slots, forward or backward."""
        found: Times = self._both_ways.max(axis=0)
        return found

    @cached_property
    def least_busy(self) -> Times:
        """[n, n]: what the slots of every part take at least, whatever it computes."""
        found: Times = self._both_ways.sum(axis=0)
        return found

    @cached_property
    def _passed(self) -> Times:
        """[n, n]: floors of a forward through every part, and of the message that it sends ahead."""
        found: Times = self._both_ways[0] + self.micro_batches * self.messages[0][None, :]
        return found

    @cached_property
    def _sent(self) -> Nodes:
        """[n]: K times what crosses each boundary, both ways."""
        found: Nodes = self.micro_batches * self.messages.sum(axis=0)
        return found

    def step_ns(
        self, bounds: Sequence[int], busy: Sequence[int], larger: Sequence[int], updated: Sequence[int] = ()
    ) -> int:
        """Lower bound on the step of stages between these boundaries that are busy so long, K t_s each.

        `larger`: lower bounds on K times the longer of f_s and b_s; `updated`: on K t_s and the update.
        """
        if max(busy) >= INFINITE:
            return INFINITE
        own = np.array(self._in_slots(bounds, busy))
        sent = self._sent[np.array(bounds[1:])]
        once = self.micro_batches * int(self.update[bounds[1]])
        lengths = once + self._paths @ np.concatenate([own, sent, _smaller(own, np.array(larger))])
        ends = self.ends_ns(bounds, busy, larger, updated) if updated else []
        return max([-(-int(lengths.max()) // self.micro_batches), *ends])

    def ends_ns(
        self, bounds: Sequence[int], busy: Sequence[int], larger: Sequence[int], updated: Sequence[int]
    ) -> list[int]:
        """Lower bounds on the end of each stage, its update included; arguments as of `step_ns`."""
        p, k = self.stages, self.micro_batches
        own, ends = self._in_slots(bounds, busy), [*pairwise(bounds)]
        passed, sent = [int(self._passed[e]) for e in ends], [int(self._sent[b]) for b in bounds[1:]]
        found = list[int]()
        for s in range(p):
            smaller = int(_smaller(np.array(max(own[s], updated[s])), np.array(larger[s])))
            others = sum(passed[:s]) + sum(own[s + 1 :]) + sum(sent[s:-1])
            found.append(updated[s] - (-(others - (min(p - s, k) - 1) * smaller) // k))
        return found

    def waiting_ns(self, bounds: Sequence[int], busy: Sequence[int]) -> list[int]:
        """For every stage what *once* would come to if one of its forward and backward took no time."""
        k, busy = self.micro_batches, self._in_slots(bounds, busy)
        total = sum(busy) + sum(int(self._sent[b]) for b in bounds[1:])
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
    def _paths(self) -> Nodes:
        return _paths(self.stages, self.micro_batches)[0]

    # The best cuts

    def best_path(
        self, at: Nodes, busy: Sequence[Times], larger: Sequence[Times], updated: Sequence[Times] = ()
    ) -> CutPath | None:
        """The path of least step from node 0 to the last; `busy[s]`, `larger[s]` and `updated[s]` [n, n] as above.

        `at`: the boundary of a node.
        """
        k, sent, least = self.micro_batches, self._sent[at], self.least_busy[np.ix_(at, at)]
        none = [t >= INFINITE for t in busy]
        update = self.update[at]
        slots = [busy[0] - update[None, :], *busy[1:]]
        own = [np.where(no, _FAR, np.maximum(t, least)) for t, no in zip(slots, none, strict=True)]
        smaller = [_smaller(t, way) for t, way in zip(own, larger, strict=True)]
        after = self._after([t + sent for t in own], sent)
        waits = [self._waits(s, t, smaller[s], after[s][None, :]) for s, t in enumerate(own)]
        alone = self._alone(own, sent, smaller, k * update)
        passed = self._before([np.where(no, _FAR, self._passed[np.ix_(at, at)]) for no in none]) if updated else []
        for s, ns in enumerate(updated):
            less = (min(self.stages - s, k) - 1) * _smaller(np.maximum(own[s], np.minimum(ns, _FAR)), larger[s])
            ends = passed[s][:, None] + k * np.minimum(ns, _FAR) + after[s][None, :] - less
            alone[s] = np.maximum(alone[s], ends)
        best: CutPath | None = None
        while True:  # without the stages that take as long as the best path, or longer, by themselves
            found = self._least(_Slots(own, sent, smaller, none, k * update), waits)
            if found is None or (best is not None and found.objective >= best.objective):
                break
            longest = max(int(t[ends]) for t, ends in zip(alone, pairwise(found.nodes), strict=True))
            if best is None or max(found.objective, longest) < best.objective:
                best = CutPath(found.nodes, max(found.objective, longest))
            if longest <= found.objective:
                break
            none = [no | (t >= longest) for t, no in zip(alone, none, strict=True)]
        return None if best is None else CutPath(best.nodes, -(-best.objective // k))

    def _least(self, slots: _Slots, waits: Sequence[Times]) -> CutPath | None:
        """The least of max(T + M, rounds), where M is no less than what any stage waits, and each is least for itself.

        The rounds are those that are the longest where the others are least. The cuts are those of the longest.
        """
        sums = slots.lengths(np.ones_like(self._paths[0]) - np.repeat([0, 0, 1], self.stages))
        found = shortest(sums, waits, INFINITE - 1)
        if found is None:
            return None
        search, best = _LeastLongest(waits, sums), CutPath(found[1], 0)
        left = _paths(self.stages, self.micro_batches)[1]
        while len(left) and len(search.rounds) < _MOST_ROUNDS:
            lengths = left @ slots.along(best.nodes) + int(slots.once[best.nodes[1]])
            longest = int(lengths.argmax())
            if int(lengths[longest]) <= best.objective:
                break
            search.rounds.append(slots.lengths(left[longest]))
            best, left = search.run(), np.delete(left, longest, axis=0)
        return best

    def _alone(self, own: Sequence[Times], sent: Nodes, smaller: Sequence[Times], updated: Nodes) -> list[Times]:
        """By stage what a step takes at least by its own time, the least of all before it, and of some after it."""
        p, k = self.stages, self.micro_batches
        before = self._before([t + sent + (0 if s else updated) for s, t in enumerate(own)])
        between: list[Nodes] = []  # by the last stage, the least from a boundary to its end
        found = list[Times]()
        for stage in reversed(range(p)):
            t, most = own[stage], k * own[stage]
            for last, way in enumerate(between, start=stage + 1):
                if last < p - 1 and (kept := k - (p - 1 - last)) > 0:
                    size = last - stage + 1
                    once = k * t + way[None, :] - (min(size, kept) - 1) * smaller[stage]
                    twice = (k - size + 1) * t + 2 * way[None, :] if kept > size else once
                    most = np.maximum(most, np.maximum(once, twice))
            found.append(before[stage][:, None] + most + (0 if stage else updated))
            through = [np.zeros_like(sent), *between]
            between = [np.minimum(sent + (t + way[None, :]).min(axis=1), _FAR) for way in through]
        return found[::-1]

    def _before(self, sums: Sequence[Times]) -> list[Nodes]:
        """For every stage the least time of all before it, by where it begins."""
        found = [np.full(len(sums[0]), _FAR)]
        found[0][0] = 0
        for times in sums[:-1]:
            found.append(np.minimum((found[-1][:, None] + times).min(axis=0), _FAR))
        return found

    def _after(self, sums: Sequence[Times], sent: Nodes) -> list[Nodes]:
        """For every stage the least time of all after it, by where it ends."""
        rest, found = np.full(len(sent), _FAR), list[Nodes]()
        rest[-1] = 0
        for times in reversed(sums):
            found.append(np.minimum(rest + sent, _FAR))
            rest = np.minimum((times + rest[None, :]).min(axis=1), _FAR)
        return found[::-1]

    def _waits(self, stage: int, own: Times, smaller: Times, after: Times) -> Times:
        """What a stage adds to the sum of all."""
        k, kept = self.micro_batches, min(self.stages - stage, self.micro_batches)
        once = (k - 1) * own - (kept - 1) * smaller
        found: Times = np.maximum((k - kept) * own + after, once) if k > kept else once
        return found


@dataclass(frozen=True)
class _Slots:
    """By stage and part K times t_s, and the most that min(f_s, b_s) can be; by node K times x_s; `none`: barred.

    `once`: by node where the first stage ends K times the least that it does once a step.
    """

    own: Sequence[Times]
    sent: Nodes
    smaller: Sequence[Times]
    none: Sequence[npt.NDArray[np.bool_]]
    once: Nodes

    def lengths(self, path: Nodes) -> list[Times]:
        """What every part adds to a path through the slots."""
        by_stage = path.reshape(3, -1).T.tolist()
        found = [
            np.where(no, INFINITE, a * t + b * self.sent[None, :] + c * less)
            for (a, b, c), t, less, no in zip(by_stage, self.own, self.smaller, self.none, strict=True)
        ]
        found[0] = np.minimum(found[0] + self.once[None, :], INFINITE)
        return found

    def along(self, nodes: Sequence[int]) -> Nodes:
        """The three of all stages between these nodes, one after the other."""
        ends = [*pairwise(nodes)]
        own, less = ([int(t[e]) for t, e in zip(times, ends, strict=True)] for times in (self.own, self.smaller))
        return np.array([*own, *self.sent[np.array(nodes[1:])], *less])


class _LeastLongest:
    """The least of max(T + M, rounds) by values of M; no stage waits longer than M."""

    def __init__(self, waits: Sequence[Times], sums: Sequence[Times]) -> None:
        self.waits, self.sums, self.rounds = waits, sums, list[list[Times]]()
        self.known: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def run(self) -> CutPath:
        ends = [self._waited(shortest(times, self.waits, INFINITE - 1)) for times in (self.sums, *self.rounds)]
        values = np.unique(np.concatenate([t[t <= max(ends)] for t in self.waits])).tolist()
        best, stack = min(self._at(values[0]), self._at(values[-1])), [(0, len(values) - 1)]
        while stack:
            first, last = stack.pop()
            best = min(best, self._at(values[first]), self._at(values[last]))
            if last - first > 1 and self._at(values[last], values[first + 1])[0] < best[0]:
                middle = (first + last) // 2
                stack += [(middle, last), (first, middle)]
        return CutPath(best[2], best[0])

    def _at(self, most: int, waited: int | None = None) -> tuple[int, int, tuple[int, ...]]:
        """The least of all cuts in which no stage waits longer than `most`, and one `waited`; M; the cuts."""
        waited = most if waited is None else waited
        every = [self._shortest(number, most) for number in range(1 + len(self.rounds))]
        total, nodes = max((ns + (0 if number else waited), nodes) for number, (ns, nodes) in enumerate(every))
        return min(total, INFINITE), most, nodes

    def _shortest(self, number: int, most: int) -> tuple[int, tuple[int, ...]]:
        if (number, most) not in self.known:
            times = (self.sums, *self.rounds)[number]
            self.known[number, most] = shortest(times, self.waits, most) or (INFINITE, ())
        return self.known[number, most]

    def _waited(self, found: tuple[int, tuple[int, ...]] | None) -> int:
        assert found is not None
        return max(int(t[ends]) for t, ends in zip(self.waits, pairwise(found[1]), strict=True))


def _smaller(own: Times, larger: Times) -> Times:
    """The most that the smaller one of forward and backward can take, where the larger one takes so much at least."""
    found: Times = np.minimum(own - own // 2, np.maximum(own - larger, 0))
    return found


@lru_cache(maxsize=64)
def _paths(p: int, k: int) -> tuple[Nodes, Nodes]:
    """[paths, 3 · p]: how often paths have t_s, x_s and, less than none, min(f_s, b_s); and those of rounds alone."""
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
            n, rest = divmod(kept - 1, size)
            for begin in range(max(0, size - kept + 1), size - rest + 1) if rest and size > 1 else range(size > 1):
                rounds.append(_path(p, row, n + 1, more, rest=range(first + begin, first + begin + rest)))
    return np.array([*paths, *rounds], dtype=np.int64), np.unique(np.array(rounds, dtype=np.int64), axis=0)


def _path(p: int, row: range, times: int, own: int, *, smaller: int = 0, rest: range = range(0)) -> Nodes:
    """So many times through a row of stages, the slots of its first one besides, and the rest once more."""
    found = np.zeros((3, p), dtype=np.int64)
    found[:2, : row.start] = 1
    found[0, row.start : row.stop] = found[1, row.start : row.stop - 1] = times
    found[0, row.start] += own
    found[0, rest.start : rest.stop] += 1
    found[1, rest.start : max(rest.start, rest.stop - 1)] += 1
    found[2, row.start] = -smaller
    return found.ravel()
