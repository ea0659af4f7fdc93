"""What a search proves of the slots of 1F1B's stages, against stages priced slot by slot."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from partita.codegen.planner.confirmed_plan import confirmed_plan, step_ns
from partita.codegen.pricing.pipeline_runs import phase_ns
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.network.network import evaluate
from partita.formulation.pipeline.schedule import GPIPE, ONE_F_ONE_B, Schedule
from partita.formulation.placement.placement import distinct, placements
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.machine.machine import Machine, stage_machine
from partita.model.training import Training
from partita.solvers.protocol import solver
from partita.solvers.search.part_networks import PartNetworks
from partita.solvers.search.pipeline_problem import PipelineProblem
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import ConfigurationSpace, SearchResult
from partita.solvers.search.search import search
from partita.solvers.search.state import Effort, Level


class Layer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return y


class Tower(nn.Module):
    def __init__(self, width: int, inner: tuple[int, ...]) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(512, width), nn.Linear(width, 512)
        self.layers = nn.ModuleList(Layer(width, n) for n in inner)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(x).logsumexp(-1)
        return scores.mean()


def asked(
    inner: tuple[int, ...], levels: tuple[tuple[int, float, float], ...], batch: int, k: int, space: SearchSpace
) -> PlanningProblem:
    """`levels`: size, how many times slower than usual, and latency in ns."""
    with torch.device("meta"):
        module = Tower(64, inner).train()
    sizes = tuple(size for size, *_ in levels)
    machine = Machine.adhoc(sizes)
    slow = tuple(
        replace(level, bandwidth=level.bandwidth / less, latency_ns=ns)
        for level, (_, less, ns) in zip(machine.levels, levels, strict=True)
    )
    device = replace(machine.device, launch_ns=3000.0)
    graph = capture(module, (torch.zeros(batch, 32, dtype=torch.int64),), batch=batch)
    every = distinct(placements(sizes))
    return PlanningProblem(
        graph, replace(machine, levels=slow, device=device), Training(batch, "float32", "sgd"), every, (k,), space
    )


def found_in(problem: PlanningProblem, row: tuple[int, ...], schedule: Schedule = ONE_F_ONE_B) -> SearchResult:
    every = distinct(placements(stage_machine(problem.machine, row).hierarchy))
    places = tuple(place for place in every if len(place.sizes) == 1)
    return search(problem, solver("auto"), space=ConfigurationSpace({row: places}, schedule, step_ns=step_ns))


def test_slots_take_what_bounds_them_where_the_host_hides_behind_reductions() -> None:
    """These count as updates, which are in none of the slots."""
    problem = asked((128, 128, 128), ((8, 1000.0, 1000.0),), 8, 1, SearchSpace())
    device = replace(problem.machine.device, host_ns=8000, launch_ns=0.0)
    copied = tuple((n.name, "b.0") for n in problem.pcg.nodes if n.name.endswith(("up", "down")))
    machine = replace(problem.machine, device=device)
    problem = replace(problem, machine=machine, space=SearchSpace(fix=copied))
    found = found_in(problem, (2,))
    plan, configuration = confirmed_plan(problem, found, {}), found.configuration
    assert configuration is not None
    parts = PartNetworks(PipelineProblem(problem), configuration, solver("auto"))
    prices = [stage_price(part, delays_messages=True) for part in plan.stages]
    ahead, back = (
        [sum(i.ns for i in own.items if i.kind == "receive" and i.phase == phase) for own in prices]
        for phase in ("forward", "backward")
    )
    assert ahead[0] == 0 < ahead[1] and back == [0, 0]  # a price has the first message alone
    for s, (ends, (_, taken)) in enumerate(zip(pairwise(found.bounds), found.stages, strict=True)):
        flight = configuration.in_flight(s)
        forward, backward, update = (phase_ns(prices[s], phase) for phase in ("forward", "backward", "update"))
        assert parts.least_backward(*ends, flight, Effort(Level.PRICED)) <= backward
        whole, count = forward - ahead[s] + backward, configuration.micro_batches
        assert parts.least_ending(*ends, flight, Effort(Level.PRICED)) <= whole + count * update
        network = parts.encoding(*ends, flight).network
        slots = forward - ahead[s] + backward + (0 if s else update)
        assert evaluate(network, taken).cost <= slots + ahead[1]  # each sends a message, and both are as long
    streams = [len(next(iter(window.variables.values()))) for window in network.windows]
    assert streams == [3, 2] * (len(streams) // 2) and streams  # no host in the backward that ends with reductions


def test_the_plan_of_the_formula_is_tried_too() -> None:
    """With one micro-batch GPipe is 1F1B; in little memory stages of the least slots end in long reductions."""
    with torch.device("meta"):
        module, x = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]), torch.zeros(64, 256)
    graph, roomy = capture(module, (x,), batch=64, loss="projection"), Machine.adhoc((2, 2))
    tight = replace(roomy, device=replace(roomy.device, memory_bytes=roomy.device.reserved_bytes + 4392550))
    problem = PlanningProblem(graph, tight, Training(64), distinct(placements((2, 2))), (1,), SearchSpace())
    formula = replace(ONE_F_ONE_B, name="formula", formula_bounds=False, has_step_formula=True)
    by_formula, *by_slots = (
        min(found.objective for row in ((2, 1), (1, 2)) if (found := found_in(problem, row, own)).objective is not None)
        for own in (formula, ONE_F_ONE_B, GPIPE)
    )
    assert by_slots[0] == by_slots[1] < by_formula


def test_stages_are_cut_for_the_updates_that_end_the_step() -> None:
    """The step of the best cuts, where a bound without the second stage's update prefers others, 12 % slower."""
    space = SearchSpace(recompute="full", overlap=False)
    problem = asked((128, 128), ((3, 1000.0, 1000.0), (2, 10000.0, 10.0)), 16, 16, space)
    found = found_in(problem, (1, 2))
    assert found.bounds == (0, 2, 4) and found.gap is not None and found.gap < 0.1, (found.bounds, found.gap)
