"""Placements and reduction programs as variables of one network: equal to enumerating placements."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import partita
from partita.codegen.planner.problem import problem_of
from partita.formulation.network.checks import check_network
from partita.formulation.network.direct_sum import direct_sum
from partita.formulation.network.network import INFINITE, Chain, Edge, Network, Switch, Variable, evaluate
from partita.formulation.placement.placement import arrangements, every_order
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.enumeration import programs
from partita.formulation.reduction.program import Reduction
from partita.formulation.reduction.program_variables import program_variables
from partita.formulation.search_space import JOINT, SearchSpace
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.protocol import Status, solver
from partita.solvers.reduction import by_placement
from partita.solvers.reduction.joint_search import joint_problem, search_placements
from partita.solvers.search.planning_problem import PlanningProblem


def random_network(rng: np.random.Generator) -> Network:
    """Variables 0, 1, 2 and 4 in a row, 5 without edges; mode 3 decides on 0 and its edge. A capacity may bind."""
    sizes = [*rng.integers(2, 4, 3).tolist(), 2, 2, 2]

    def table(*shape: int) -> np.ndarray:
        return np.where(rng.random(shape) < 0.1, INFINITE, rng.integers(0, 20, shape))

    def use(*shape: int) -> np.ndarray:
        return rng.integers(0, 5, (*shape, 1))

    variables = [Variable(f"v{v}", table(n), use(n)) for v, n in enumerate(sizes)]
    variables[3] = Variable("mode", np.arange(2), np.zeros((2, 1), np.int64))
    pairs = [(u, v, sizes[u], sizes[v]) for u, v in ((0, 1), (1, 2), (3, 2), (2, 4))]
    edges = [Edge(u, v, table(n, m), use(n, m)) for u, v, n, m in pairs]
    first, edge = variables[0], edges[0]
    assert edge.use is not None
    of_first = np.stack([first.cost, table(sizes[0])]), np.stack([first.use, use(sizes[0])]), None
    of_edge = np.stack([edge.cost, table(*edge.cost.shape)]), np.stack([edge.use, use(*edge.cost.shape)]), None
    switch = Switch(3, {0: of_first}, {0: of_edge})
    capacity, constant = rng.integers(5, 20), rng.integers(9)
    return Network(tuple(variables), tuple(edges), (int(capacity),), int(constant), (), (switch,))


def assignments(network: Network) -> Iterator[tuple[int, ...]]:
    """All of them."""
    return product(*(range(len(v.cost)) for v in network.variables))


@pytest.mark.parametrize("seed", [2, 3])
def test_a_direct_sum_has_the_assignments_of_all_networks_at_their_costs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    networks = [random_network(rng) for _ in range(3)]
    made = direct_sum(networks)
    check_network(made.network)
    costs = []
    for number, network in enumerate(networks):
        for own in assignments(network):
            starts = (0 if start is None else start[number] for start in made.starts)
            lifted = [*(x + start for x, start in zip(own, starts, strict=True)), number]
            verdict, whole = evaluate(network, own), evaluate(made.network, lifted)
            assert (verdict.feasible, verdict.cost) == (whole.feasible, whole.cost)
            assert made.chosen(lifted) == (number, own)
            costs += [verdict.cost] if verdict.feasible else []
    for name in ("auto", "cpsat", "smt", "milp"):
        answer = solver(name).solve(made.network)
        assert answer.status is (Status.OPTIMAL if costs else Status.INFEASIBLE)
        assert answer.objective == min(costs, default=None)
        if answer.assignment is not None:
            number, own = made.chosen(answer.assignment)
            assert evaluate(networks[number], own).cost == answer.objective


def test_options_of_different_networks_exclude_each_other() -> None:
    rng = np.random.default_rng(0)
    networks = [random_network(rng) for _ in range(2)]
    made = direct_sum(networks)
    starts = [0 if start is None else start[1] for start in made.starts]
    for v in set(range(6)) - {3}:  # the mode is shared
        mixed = evaluate(made.network, [*(starts[:v]), 0, *starts[v + 1 :], 1])
        assert not mixed.feasible
    with pytest.raises(ValueError, match="2 networks of 2 forms"):
        direct_sum([networks[0], replace(networks[0], edges=networks[0].edges[:-1])])


def test_chains_of_all_networks_are_kept() -> None:
    def chained(step: int) -> Network:
        ends = [Variable(f"b{i}", np.zeros(2, np.int64), np.zeros((2, 0), np.int64)) for i in range(4)]
        cost = np.array([[1, 5], [2, step]])
        return Network(
            tuple(ends), tuple(Edge(i, i + 1, cost) for i in range(3)), (), 0, (Chain((0, 1, 2, 3), ((), (), ())),)
        )

    made = direct_sum([chained(3), chained(0)])
    check_network(made.network)
    assert [len(chain) for chain in made.network.chains] == [3]
    answer = solver("elimination").solve(made.network)
    assert answer.objective == 0 and answer.assignment is not None
    assert made.chosen(answer.assignment) == (1, (1, 1, 1, 1))


@pytest.mark.parametrize("seed", range(4))
def test_no_program_beats_the_one_that_is_not_dominated(seed: int) -> None:
    rng, machine = random.Random(seed), Machine.load(("summit", "gcp-a100")[seed % 2], nodes=4)
    placements = arrangements(machine.hierarchy, (4, machine.devices // 4))
    for one in rng.sample(program_variables(machine, placements), 6):
        for p, (placement, axes) in enumerate(zip(placements, one.axes, strict=True)):
            reduction = Reduction(placement, axes)
            sent = rng.choice((one.first, (one.stop or 2**31) - 1, rng.randrange(one.first, one.stop or 2**31)))
            if one.kind == "all_reduce" and reduction.sizes:
                best = program_price(machine, reduction, one.programs[p]).ns(sent)
                every = (program_price(machine, reduction, each).ns(sent) for each in programs(len(reduction.sizes)))
                assert best <= min(every) + 1
            variable, edge = one.variable(1), one.edge(0, 1)
            assert len(variable.cost) == edge.cost.shape[1] and (edge.cost[p] < INFINITE).sum() == 1


MLP = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))


def tiny_problem(machine: Machine, space: SearchSpace) -> PlanningProblem:
    """Three layers on every placement."""
    return problem_of(capture(MLP, (torch.zeros(16, 32),), loss="projection"), machine, Training(16), space)


@pytest.mark.parametrize(
    ("name", "memory", "mesh", "groups"),
    [("auto", 1.0, None, {1, 3}), ("cpsat", 1.0, (2, 4), {3}), ("auto", 0.7, (2, 4), {3})],
)
def test_the_joint_optimum_is_that_of_all_placements(
    name: str, memory: float, mesh: tuple[int, ...] | None, groups: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, space = Machine.adhoc((2, 2, 2)), SearchSpace(stages=1, micro_batches=1, mesh=mesh)
    apart = search_placements(tiny_problem(machine, space), solver("auto"))
    assert apart.encoding is not None and apart.assignment is not None
    if memory < 1:
        network, device = apart.encoding.network, machine.device
        held = device.memory_bytes - network.capacities[0]
        scarce = held + int(evaluate(network, apart.assignment).use[0] * memory)
        machine, free = replace(machine, device=replace(device, memory_bytes=scarce)), apart.objective
        apart = search_placements(tiny_problem(machine, space), solver("auto"))
        assert apart.objective is not None and free is not None and apart.objective > free
    problem = tiny_problem(machine, replace(space, joint=JOINT))
    assert {len(group) for group in joint_problem(problem).groups} == groups
    monkeypatch.setattr(by_placement, "MOST_PAIRS", 0)  # each placement alone, for backends that work on parts
    joint = search_placements(problem, solver(name))
    assert joint.status is apart.status is Status.OPTIMAL and joint.objective == apart.objective
    assert joint.configuration is not None and joint.configuration.placement in every_order(problem.placements)
    assert (joint.orders, joint.orders_left_out) == (apart.orders, apart.orders_left_out)
    assert joint.orders > 0 or mesh is not None  # with other orders of the axes in the joint networks
    assert joint.programs and joint.asked < apart.asked


def test_z3_chooses_a_placement_and_the_plan_is_verified() -> None:
    module, inputs = nn.Linear(16, 16), (torch.zeros(16, 16),)
    fixed: dict[str, Any] = {"machine": Machine.adhoc((2, 4)), "mesh": (2, 4), "micro_batches": 1, "recompute": "none"}
    apart, joint = (
        partita.optimize(module, inputs, **fixed, loss="projection", cache="none", joint=names, solver=name)
        for names, name in (((), "auto"), (JOINT, "smt"))
    )
    assert joint.report["status"] == "optimal" and joint.report["objective_ns"] == apart.report["objective_ns"]
    assert joint.report["space"]["placements"] == 2
    assert joint.report["space"]["joint"]["variables"] == [*JOINT]
    assert joint.verify()["ok"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"joint": ("reductions",)}, "placement, or placement,reductions, is needed"),
        ({"joint": ("placement", "placement")}, "placement, or placement,reductions, is needed"),
        ({"joint": ("stages",)}, "choose from placement, reductions"),
        ({"joint": JOINT, "mapping": "unity-1d"}, "fixes the placement"),
        ({"joint": JOINT, "stages": 2}, "without a pipeline"),
    ],
)
def test_what_joint_networks_do_not_choose_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        SearchSpace(**given)
