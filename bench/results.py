"""P²'s five results by name: the numbers that the paper measured, and those that we predict.

The experiments are those of the table in P²'s appendix (MLSys 2022) on A100; on V100, of which `data/` has no table,
one and two axes in every split and reduction. Each by NCCL's ring and tree, with the paper's payload and programs of at
most five steps. A matrix is in a node where every group of its reduction is; "alike" is within 1 %.

Where several axes are reduced over (H, I), the paper's times fit groups that cross nodes even in steps inside of one.
Ours are ordered by level, so that programs are as fast in one matrix as in the other: placement costs nothing there.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean

from ..formulation.reduction.enumeration import instructions, search
from ..formulation.reduction.program import DEFAULT_LIMIT, Reduction, groups
from ..formulation.reduction.ranking import Ranked, ranking
from ..formulation.reduction.rules import goal, initial
from ..model.files import read_json
from ..model.machine.machine import Machine
from .cases import Row, Tell, each
from .truth import P2, machine_of

ALIKE = 1.01
PROFILES = ("nccl-ring", "nccl-tree")
V100 = tuple(f"{nodes} nodes each with 8 V100" for nodes in (2, 4))

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A reduction over some axes of a mesh, in all its matrices on one machine, by one algorithm."""

    machine: Machine
    axes: tuple[int, ...]
    reduced: tuple[int, ...]
    profile: str


@cache
def experiments() -> tuple[Experiment, ...]:
    """All experiments."""
    found = [
        (machine_of(group["system"], group["hierarchy"]), tuple(group["parallelism_axes"]), tuple(group["reduce_axes"]))
        for group in read_json(P2)["groups"]
    ]
    for system in V100:
        n = int(system[0]) * 8
        machine = machine_of(system, (n // 8, 8))
        splits = [(m, n // m) for m in range(2, n) if n % m == 0]
        found += [(machine, (n,), (0,)), *((machine, axes, (axis,)) for axes in splits for axis in (0, 1))]
    return tuple(Experiment(*facts, profile) for facts in found for profile in PROFILES)


@cache
def matrices(experiment: Experiment) -> tuple[Ranked, ...]:
    """The matrices of an experiment with their predicted times."""
    return ranking(experiment.machine, experiment.axes, experiment.reduced, profile=experiment.profile)


def _within_node(experiment: Experiment, row: Ranked) -> bool:
    return Reduction(row.placement, experiment.reduced).row[0] == 1


def _rows(within: bool) -> Iterator[Ranked]:
    """Matrices of all experiments that are in a node, or that are not."""
    return (
        row for experiment in experiments() for row in matrices(experiment) if _within_node(experiment, row) is within
    )


def _named(system: str, hierarchy: tuple[int, int], reduced: tuple[int, ...], profile: str, matrix: Matrix) -> Ranked:
    """One matrix that the paper names."""
    axes = tuple(map(math.prod, matrix))
    experiment = Experiment(machine_of(system, hierarchy), axes, reduced, profile)
    return next(row for row in matrices(experiment) if row.placement.matrix == matrix)


def _gains(within: bool) -> list[float]:
    return [row.allreduce_ns / row.best.ns for row in _rows(within)]


def _over(a: Ranked, b: Ranked, best: bool = False) -> float:
    """How many times as long the first takes, by one all-reduce or by the optimal programs."""
    return a.best.ns / b.best.ns if best else a.allreduce_ns / b.allreduce_ns


_A100 = "{} nodes each with 16 A100"
F1 = (_A100.format(2), (2, 16), (0,), "nccl-ring", ((1, 8), (2, 2)))
F2 = (_A100.format(2), (2, 16), (0,), "nccl-ring", ((2, 4), (1, 4)))
G1 = (_A100.format(4), (4, 16), (0,), "nccl-tree", ((1, 4), (4, 4)))
G2 = (_A100.format(4), (4, 16), (0,), "nccl-tree", ((4, 1), (1, 16)))
H1 = (_A100.format(4), (4, 16), (0, 2), "nccl-ring", ((1, 16), (2, 1), (2, 1)))
H2 = (_A100.format(4), (4, 16), (0, 2), "nccl-ring", ((2, 8), (2, 1), (1, 2)))
I1 = (_A100.format(4), (4, 16), (0, 2), "nccl-ring", ((2, 1), (2, 1), (1, 16)))
I2 = (_A100.format(4), (4, 16), (0, 2), "nccl-ring", ((1, 2), (2, 1), (2, 8)))
"""Matrices by the paper's names: system, hierarchy, axes reduced over, algorithm, matrix (its tables 3 and 4)."""


def _largest_ratio() -> float:
    """The slowest all-reduce of an experiment by its fastest, the most of all experiments."""
    times = ([row.allreduce_ns for row in matrices(experiment)] for experiment in experiments())
    return max(max(ns) / min(ns) for ns in times)


def _synthesis_seconds() -> float:
    """Enumerating the programs of all matrices of an experiment on its own devices, the longest."""
    return max(_seconds(experiment) for experiment in experiments() if experiment.profile == PROFILES[0])


def _seconds(experiment: Experiment) -> float:
    start = time.perf_counter()
    for row in matrices(experiment):
        sizes = Reduction(row.placement, experiment.reduced).sizes
        steps = [instruction.step(len(sizes)) for instruction in instructions(len(sizes))]
        k = math.prod(sizes)
        search([(s.collective, groups(s, sizes)) for s in steps], initial(k), goal(k), DEFAULT_LIMIT)
    return time.perf_counter() - start


def _most_programs() -> float:
    return max(sum(row.programs or 0 for row in matrices(experiment)) for experiment in experiments())


def _fastest_in_node(profile: str) -> float:
    """Of the experiments that have a matrix in a node, those where one all-reduce there is alike the fastest of all."""
    shares = []
    for experiment in experiments():
        inside = [row.allreduce_ns for row in matrices(experiment) if _within_node(experiment, row)]
        if inside and experiment.profile == profile:
            shares.append(min(inside) <= ALIKE * min(row.best.ns for row in matrices(experiment)))
    return mean(shares)


def _outperformed() -> float:
    return mean(gain > ALIKE for gain in (*_gains(True), *_gains(False)))


@dataclass(frozen=True, slots=True)
class Result:
    """A result, a number that the paper gives for it, and where ours comes from."""

    name: str
    what: str
    paper: float
    ours: Callable[[], float]


ONE = "Result 1: placement decides how fast an all-reduce is"
TWO = "Result 2: synthesis is fast"
THREE = "Result 3: in a node, one all-reduce is best"
FOUR = "Result 4: programs change what placement costs"
FIVE = "Result 5: across nodes, programs beat one all-reduce"
RESULTS = (
    Result(ONE, "slowest by fastest matrix, the most", 448.5, _largest_ratio),
    Result(TWO, "programs of an experiment, the most", 235, _most_programs),
    Result(TWO, "seconds of enumeration, the most", 2.0, _synthesis_seconds),
    Result(THREE, "F2 by F1, all-reduce", 99.06, lambda: _over(_named(*F2), _named(*F1))),
    Result(THREE, "share of experiments, nccl-ring", 1.0, partial(_fastest_in_node, "nccl-ring")),
    Result(THREE, "share of experiments, nccl-tree", 1.0, partial(_fastest_in_node, "nccl-tree")),
    Result(FOUR, "G2 by G1, all-reduce", 448.5, lambda: _over(_named(*G2), _named(*G1))),
    Result(FOUR, "G2 by G1, optimal programs", 330.2, lambda: _over(_named(*G2), _named(*G1), best=True)),
    Result(FOUR, "H1 by H2, all-reduce", 4.79 / 4.91, lambda: _over(_named(*H1), _named(*H2))),
    Result(FOUR, "H1 by H2, optimal programs", 1.49, lambda: _over(_named(*H1), _named(*H2), best=True)),
    Result(FOUR, "I2 by I1, all-reduce", 1.10, lambda: _over(_named(*I2), _named(*I1))),
    Result(FOUR, "I2 by I1, optimal programs", 1.60, lambda: _over(_named(*I2), _named(*I1), best=True)),
    Result(FIVE, "speed-up, mean", 1.28, lambda: mean(_gains(within=False))),
    Result(FIVE, "speed-up, the most", 2.04, lambda: max(_gains(within=False))),
    Result(FIVE, "share of all matrices that gain", 0.69, _outperformed),
)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """One row for every number of a result; `small` changes nothing."""
    return [
        {"result": result.name, "what": result.what, "paper": result.paper, "ours": float(result.ours())}
        for result in each(RESULTS, only, tell, what="result")
    ]
