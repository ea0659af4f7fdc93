"""Lower bound on the step of stages with times of their own, of 1F1B, eager 1F1B and GPipe; the cuts of least bound.

Stage s computes W_s for K micro-batches; among that are the first message to it and, of stage 0 alone, its updates,
which end the step. So a micro-batch takes at least t_s = W_s / K there and on the way there, forward and backward.
Stage s begins once a micro-batch has come through the stages before it, and ends before its gradient has gone back:

    step ≥ Σ_(r < s) t_r + W_s + idle_s

A micro-batch is away for D_s = Σ_(r > s) t_r between its forward and its backward on stage s, which meanwhile works on
others. In GPipe the last one has no others: idle_s = D_s. In 1F1B m forwards come before the first backward (`ahead`),
so that m - 1 others lie between: forwards at first, backwards at last, both in between. Windows of m micro-batches do
not overlap, therefore

    idle_s ≥ (2 D_s - (m - 1) t_s)⁺ + (⌊(K - 1) / m⌋ - 1)⁺ (D_s - (m - 1) t_s)⁺    if K > m
    idle_s ≥ (D_s - (m - 1) t_s / 2)⁺                                               otherwise

The bound grows with every W. From the last stage to the first it depends on two numbers alone, so the least over all
cuts is found by keeping, for every boundary, the pairs that no other one is below (`best_cuts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...formulation.network.network import INFINITE
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.schedule import GPIPE

Rows: TypeAlias = Sequence[Sequence[int]]
"""[n][n]: a time for every part."""


@dataclass(frozen=True, slots=True)
class Label:
    """Stages from one on to the last: 2 K times their bound, and K times a micro-batch's time there; their cuts."""

    longest: int
    after: int
    bounds: tuple[int, ...]


@dataclass(frozen=True)
class ShareBound:
    """The bound of K micro-batches; `ahead`: by stage its forwards before its first backward, or None in GPipe."""

    micro_batches: int
    ahead: tuple[int, ...] | None

    def before(self, stage: int, start: int, ns: int, label: Label) -> Label:
        """The label of stages with one more before them, which begins at a boundary and takes so many ns."""
        K, w = self.micro_batches, max(0, ns - self.micro_batches)  # slots are rounded down to ns
        idle = 2 * label.after
        if self.ahead is not None:
            m = min(self.ahead[stage], K)
            idle = max(0, 2 * label.after - (m - 1) * w)
            if m < K:
                idle = 2 * idle + 2 * max(0, (K - 1) // m - 1) * max(0, label.after - (m - 1) * w)
        longest = max(label.longest + 2 * w, 2 * K * w + idle)
        return Label(longest, label.after + w, (start, *label.bounds))

    def step_ns(self, label: Label) -> int:
        """The bound of all stages."""
        return -(-label.longest // (2 * self.micro_batches))

    def of(self, times: Sequence[int]) -> int:
        """The bound of stages with these times."""
        label = Label(0, 0, ())
        for stage in reversed(range(len(times))):
            label = self.before(stage, stage, times[stage], label)
        return self.step_ns(label)


def share_bound(configuration: Configuration) -> ShareBound:
    """The bound of a configuration of unequal stages."""
    every = range(configuration.stages)
    ahead = None if configuration.schedule.name == GPIPE.name else tuple(map(configuration.forwards_ahead, every))
    return ShareBound(configuration.micro_batches, ahead)


def best_cuts(
    bound: ShareBound, times: Sequence[Rows], may_begin: Callable[[int, int], bool], below: int = INFINITE
) -> tuple[int, tuple[int, ...]] | None:
    """The cuts of least bound, and that bound; None if none is below a step.

    `times`: for every stage those of all parts, INFINITE where a part is none. `may_begin(stage, boundary)`: False
    excludes cuts.
    """
    last, stages = len(times[0]) - 1, len(times)
    labels: list[list[Label]] = [[] for _ in range(last)] + [[Label(0, 0, (last,))]]
    most = 2 * bound.micro_batches * (below - 1)
    for stage in reversed(range(stages)):
        found: list[list[Label]] = [[] for _ in labels]
        for i in range(stage, last) if stage else (0,):
            if may_begin(stage, i):
                row = times[stage][i]
                every = [
                    made
                    for j in range(i + 1, last + 1)
                    if row[j] < INFINITE
                    for label in labels[j]
                    if (made := bound.before(stage, i, row[j], label)).longest <= most
                ]
                found[i] = _least(every)
        labels = found
    best = min(labels[0], key=lambda label: label.longest, default=None)
    return None if best is None else (bound.step_ns(best), best.bounds)


def _least(labels: list[Label]) -> list[Label]:
    """Those labels that no other one is below in both numbers."""
    kept = list[Label]()
    for label in sorted(labels, key=lambda x: (x.longest, x.after, x.bounds)):
        if not kept or label.after < kept[-1].after:
            kept.append(label)
    return kept
