"""Bounds of interlaced pipelines against all plans of small models, where memory binds."""

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partita import Machine, capture
from partita.codegen.planner.pipeline_space import pipeline_space
from partita.codegen.planner.problem import problem_of
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.network.network import INFINITE, Network, evaluate
from partita.formulation.pipeline.configuration import Configuration, step_ns
from partita.formulation.search_space import SearchSpace
from partita.model.training import Training
from partita.solvers.backends.auto import Auto
from partita.solvers.protocol import Solution, Status
from partita.solvers.search.part_encoding import encoding as part_encoding
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import ConfigurationSpace
from partita.solvers.search.search import search
from partita.solvers.search.shared_operators import CROSSING, _allowed
from partita.solvers.search.shared_operators import encoding as shared_encoding

TRANSFERS = ("receive", "send", *CROSSING)


class Words(nn.Module):
    """Layers between look-ups and scores of one table."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(nn.functional.linear(x, self.table.weight).flatten(0, 1), labels.flatten())


def made(levels: tuple[int, ...], kib: int, words: int, count: int) -> tuple[PlanningProblem, ConfigurationSpace]:
    """A model of so many layers on devices of so much memory, in two micro-batches."""
    machine = Machine.adhoc(levels)
    device = replace(machine.device, memory_bytes=machine.device.reserved_bytes + kib * 1024)
    ids = torch.zeros(4, 2, dtype=torch.int64)
    space = SearchSpace(schedule="interlaced", micro_batches=2, offload=False, recompute="none")
    graph = capture(Words(words, 8, count), (ids, ids))
    problem = problem_of(graph, replace(machine, device=device), Training(4), space)
    found = pipeline_space(problem, space)
    assert found is not None
    return problem, found


def best_of_all(problem: PlanningProblem, space: ConfigurationSpace, shares: int) -> int:
    """The least step by the formula, of all cuts and layouts of what crosses, and of so many shares of memory."""
    least, pipeline = INFINITE, PipelineProblem(problem)
    for row, places in space.placements.items():
        for place, k in product(places, problem.micro_batches):
            own = Configuration(row, place.matrix, k, space.schedule)
            shared = shared_encoding(problem, own)
            for inner in combinations(range(1, pipeline.count - 1), prod(row) - 1):
                ends = list(pairwise((0, *inner, pipeline.count - 1)))
                stages = [part_encoding(pipeline, own, part, own.in_flight(s)) for s, part in enumerate(ends)]
                least = min(least, *_steps(problem, own, shared, stages, shares), INFINITE)
    return least


def _steps(
    problem: PlanningProblem, own: Configuration, shared: Encoding, stages: list[Encoding], shares: int
) -> Iterator[int]:
    """The steps of stages for all layouts and shares of memory: the fastest shared operators in each."""
    capacity = problem.machine.device.capacity_bytes
    crossing = [[_transfers(stage, op) for op in TRANSFERS] for stage in stages]
    names = [
        name for each_ in crossing for op, each in zip(TRANSFERS, each_, strict=True) if op in CROSSING for name in each
    ]
    choices = {name: sorted(set(each[name][1])) for each_ in crossing for each in each_ for name in each}
    for letters in product(*choices.values()):
        layout = dict(zip(choices, letters, strict=True))
        network = _allowed(shared, {name: layout[name] for name in names})
        limit = capacity - shared.fixed_bytes
        while (beside := _solved(network, limit)).assignment is not None:
            used = evaluate(network, beside.assignment).use[0]
            room = capacity - used - shared.fixed_bytes
            busy = [_least(stage, layout, room - stage.fixed_bytes) for stage in stages]
            if max(busy) < INFINITE:
                assert beside.objective is not None
                yield beside.objective + step_ns(own.devices, own.rounds, busy)
            limit = min(used - 1, limit - capacity // shares)


def _transfers(found: Encoding, op: str) -> dict[str, tuple[int, list[Any]]]:
    """The variables of transfers, and the layouts of their options, by the tensor's name."""
    made_: dict[str, tuple[int, list[Any]]] = {}
    for node in found.pcg.of(op):
        variable, options = found.operators[node]
        layouts = [options.output_space.layout(int(code)) for code in options.output]
        made_[str(found.pcg.nodes[node].get("peer") or found.pcg.nodes[node].name)] = variable, layouts
    return made_


def _least(found: Encoding, layout: dict[str, Any], room: int) -> int:
    """The least time of a stage in these layouts and in this room."""
    variables = list(found.network.variables)
    for op in TRANSFERS:
        for name, (variable, layouts) in _transfers(found, op).items():
            cost = np.where([x == layout[name] for x in layouts], variables[variable].cost, INFINITE)
            variables[variable] = replace(variables[variable], cost=cost)
    answer = _solved(replace(found.network, variables=tuple(variables)), room)
    return INFINITE if answer.objective is None else answer.objective


def _solved(network: Network, room: int) -> Solution:
    answer = Auto().solve(replace(network, capacities=(max(room, 0),)))
    assert answer.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return answer


def test_no_bound_is_above_the_least_step_where_memory_binds() -> None:
    problem, space = made((2,), 64, 512, 2)
    found, best = search(problem, Auto(), space=space), best_of_all(problem, space, 6)
    roomy = search(made((2,), 1 << 20, 512, 2)[0], Auto(), space=space)
    assert roomy.objective is not None and roomy.objective < found.bound <= best < INFINITE


def compare(first: int, last: int) -> None:
    """Random models and memories, one for each seed: `python -m tests.solvers.test_interlaced_bounds 0 100`."""
    for seed in range(first, last):
        drawn = random.Random(seed)
        levels = drawn.choice([(2,), (1, 2), (2, 1), (2, 2)])
        given = levels, drawn.randrange(16, 96), drawn.choice([64, 128, 256, 512]), drawn.randint(2, 3)
        problem, space = made(*given)
        found, best = search(problem, Auto(), space=space), best_of_all(problem, space, 12)
        print(seed, *given, found.bound, best, found.objective, "WRONG" * (found.bound > best), flush=True)


if __name__ == "__main__":
    compare(int(sys.argv[1]), int(sys.argv[2]))
