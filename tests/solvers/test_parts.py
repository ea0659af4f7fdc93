"""Splitting a network, proving its parts, and adding up: nothing is lost, and no backend decides otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from partita.bench.families import Family
from partita.bench.families import network as family_network
from partita.codegen.planner.problem import problem_of
from partita.formulation.network.network import INFINITE, Edge, Network, Switch, Variable
from partita.formulation.network.without_switches import without_switches
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.decomposition import decomposed
from partita.solvers.decomposition.blocks import split
from partita.solvers.decomposition.counted import CountedProgram
from partita.solvers.decomposition.narrowing import narrowed
from partita.solvers.decomposition.part_solver import PartSolver
from partita.solvers.decomposition.parts import priced, problems
from partita.solvers.protocol import Limits, Status, solver
from partita.solvers.search.search import search
from partita.solvers.wide.form import flattened
from partita.solvers.wide.solve_reduced import unflattened

DECOMPOSED = ("cpsat", "milp", "smt")
made = cache(solver)
"""One of each backend, so that HiGHS's process starts once."""


def layers(seed: int, copies: int = 4, tie: bool = True, switch: bool = False) -> Network:
    """Equal layers in a row, and a variable that ties the first layer to the last."""
    rng = np.random.default_rng(seed)
    inner, size = 3, 3

    def table(*shape: int) -> np.ndarray:
        found = rng.integers(0, 60, shape)
        return np.where(rng.random(shape) < 0.15, INFINITE, found) if len(shape) > 1 else found

    own, joint = [table(size) for _ in range(inner)], {k: table(size, size) for k in range(6)}
    use, nothing = rng.integers(0, 9, (inner, size, 1)), np.zeros(size, np.int64)
    variables, edges, switches = [Variable("b", table(size), np.zeros((size, 1), np.int64))], [], []
    for _ in range(copies):
        b = len(variables) - 1
        variables += [Variable("x", own[k], use[k]) for k in range(inner)]
        variables.append(Variable("b", nothing, np.zeros((size, 1), np.int64)))
        links = ((b, b + 1), (b + 1, b + 2), (b + 1, b + 3), (b + 2, b + 3), (b + 3, b + 4), (b, b + 4))
        edges += [Edge(u, v, joint[k]) for k, (u, v) in enumerate(links)]
    if tie:
        variables.append(Variable("tie", table(size), np.zeros((size, 1), np.int64)))
        edges += [Edge(v, len(variables) - 1, table(size, size)) for v in (0, 1, len(variables) - 3)]
    if switch:
        decided = {1: np.stack([own[0], own[0] + 5]), len(variables) + 1: np.array([[0, 4], [2, 2]])}
        switches.append(Switch(len(variables), {v: (cost, None, None) for v, cost in decided.items()}, {}))
        variables.append(Variable("mode", np.array([0, 3]), np.zeros((2, 1), np.int64)))
        variables.append(Variable("shares the mode alone", np.array([0, 4]), np.zeros((2, 1), np.int64)))
    return Network(
        tuple(replace(v, use=v.use[:, :0]) for v in variables), tuple(edges), (), 7, switches=tuple(switches)
    )


NETWORKS = {
    "layers": layers(0),
    "no tie": layers(3, tie=False),
    "a switch": layers(4, switch=True),
    "chords": family_network(Family("chords", 16, 2, 4, "none")),
    "a tree": family_network(Family("tree", 14, 2, 4, "none")),
    "a grid": family_network(Family("grid", 15, 3, 3, "none")),
    "alone": Network(tuple(Variable("v", np.array([3, 1]), np.zeros((2, 0), np.int64)) for _ in range(3))),
}


@pytest.mark.parametrize("many", [3, 60])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_table_is_in_a_part_and_separators_are_small(name: str, many: int) -> None:
    network = NETWORKS[name]
    parts = split(network, few=1, many=many)
    together = [term.scope for term in network.terms()] + [(s.variable, *s.variables) for s in network.switches]
    assert all(any(set(scope) <= set(part.variables) for part in parts) for scope in together)
    above = {b: k for k, part in enumerate(parts) for b in part.below}
    for k, part in enumerate(parts):
        assert all(b < k for b in part.below) and len(part.separator) <= 2
        assert set(part.separator) <= set(part.variables)
        assert not part.separator or set(part.separator) <= set(parts[above[k]].variables)
    for v in range(len(network.variables)):  # the parts of a variable hang together
        holders = {k for k, part in enumerate(parts) if v in part.variables}
        tops = [k for k in holders if v not in parts[k].separator]
        assert len(tops) == 1 and all(above[k] in holders for k in holders - set(tops))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_optima_of_the_parts_add_up(name: str) -> None:
    network = NETWORKS[name]
    found = problems(priced(network, ()))
    assert found is not None
    for problem in found:  # another solver agrees on each
        assert solver("cpsat-plain").solve(problem.network).objective == problem.least
    assert network.constant + sum(p.least * p.count for p in found) == solver("auto").solve(network).objective


def test_equal_layers_are_one_problem() -> None:
    found = problems(layers(0, 40, tie=False))
    assert found is not None and len(found) < 8 and max(p.count for p in found) > 12


def test_nothing_fits_a_part() -> None:
    network = layers(0)
    barred = replace(network.edges[0], cost=np.full((3, 3), INFINITE))
    network = replace(network, edges=(barred, *network.edges[1:]))
    assert problems(network) is None
    assert all(made(name).solve(network).status is Status.INFEASIBLE for name in DECOMPOSED)


@pytest.mark.parametrize("most", [1, 10_000])
@pytest.mark.parametrize("name", ["layers", "a switch", "alone"])
def test_narrowing_keeps_the_best(name: str, most: int) -> None:
    for problem in (problems(NETWORKS[name]) or ())[:2]:
        part = narrowed(problem.network, problem.least, most)
        assert part.bound <= problem.least and part.flat is not None and part.reparametrized is not None
        whole = flattened(without_switches(problem.network).network)
        assert part.left <= whole.variables
        for flat in (part.flat, part.reparametrized):
            assert solver("cpsat-plain").solve(unflattened(flat)).objective == problem.least
        assert min(part.reparametrized.cost.min(), part.reparametrized.table.min(initial=0)) >= 0


@pytest.mark.parametrize("backend", DECOMPOSED)
@pytest.mark.parametrize("name", ["layers", "a switch", "chords", "alone"])
def test_each_backend_proves_the_optimum_by_parts(name: str, backend: str) -> None:
    network = NETWORKS[name]
    best = made("auto").solve(network).objective
    answer = made(backend).solve(network, Limits(seconds=60))
    assert (answer.status, answer.objective, answer.bound) == (Status.OPTIMAL, best, best)
    assert answer.proof is not None and answer.proof.backend == backend and answer.proof.parts > 0
    assert 0 < answer.proof.left <= answer.proof.variables
    if name == "layers":
        below = made(backend).solve(network, Limits(seconds=60, cutoff=best))
        assert below.objective is None and below.bound == best


@pytest.mark.parametrize("backend", DECOMPOSED)
@pytest.mark.parametrize("tightness", ["loose", "tight", "infeasible"])
def test_capacities_that_bind(tightness: str, backend: str) -> None:
    network = family_network(Family("chords", 6, 2, 3, tightness))
    expected = made("elimination").solve(network)
    answer = made(backend).solve(network, Limits(seconds=60))
    assert (answer.status, answer.objective, answer.bound) == (expected.status, expected.objective, expected.bound)


@pytest.mark.parametrize("backend", DECOMPOSED)
@pytest.mark.parametrize("seed", [50, 71, 91])
def test_copies_of_chains_are_counted(
    seed: int, backend: str, make_network: Callable[[int], Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no label list has found the best solution."""
    network, programs = make_network(seed), []
    counting, count = made(backend), type(made(backend).part_solver).count

    def noted(self: PartSolver, program: CountedProgram, *rest: Any) -> bool:
        programs.append(program)
        return count(self, program, *rest)

    monkeypatch.setattr(decomposed, "close_by_labels", lambda *_: None)
    monkeypatch.setattr(type(counting.part_solver), "count", noted)
    expected, answer = made("elimination").solve(network), counting.solve(network, Limits(seconds=60))
    assert (answer.status, answer.objective) == (Status.OPTIMAL, expected.objective)
    assert answer.words == "proved by counting" and any(c.length > 1 for p in programs for c in p.chains)


@pytest.mark.parametrize("backend", DECOMPOSED)
def test_what_the_backend_cannot_prove_is_not_called_optimal(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, failing = NETWORKS["layers"], solver(backend)
    monkeypatch.setattr(type(failing.part_solver), "prove", lambda *_: -INFINITE)
    best = made("auto").solve(network).objective
    answer = failing.solve(network)
    assert (answer.objective, answer.bound) in ((best, best - 1), (best, best))
    assert answer.status is (Status.OPTIMAL if answer.bound == best else Status.FEASIBLE)


@pytest.mark.parametrize("backend", DECOMPOSED)
def test_the_backend_proves_the_plan_that_pricing_found(backend: str) -> None:
    module, inputs = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), (torch.zeros(8, 8),)
    space = SearchSpace(stages=1, micro_batches=1)
    found = search(
        problem_of(capture(module, inputs, loss="projection"), Machine.adhoc((2,)), Training(8), space), made(backend)
    )
    assert found.status is Status.OPTIMAL and found.proof is not None
    assert found.proof.parts > 0 and found.proof.left > 0
