"""Networks of equal layers with two tensors between them, of which one has little at stake: loose, it bounds them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from partita.bench.cases import captured
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding_options import EncodingOptions
from partita.formulation.network import joined_pairs
from partita.formulation.network.checks import check_network
from partita.formulation.network.loose_hubs import Loosened, loosened
from partita.formulation.network.network import INFINITE, Network, Table, evaluate
from partita.formulation.placement.placement import placements
from partita.formulation.search_space import SearchSpace
from partita.model.machine.machine import Machine
from partita.solvers.protocol import NO_LIMITS, Limits, Status, solver

from .layer_pairs import assert_agrees, layered

LARGE = 1000
"""What tables of the first tensor of a layer are multiplied by; the second one has little at stake."""


@pytest.fixture(autouse=True)
def _few_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the pairs of these small networks have too many to be joined, but for one that is loose."""
    monkeypatch.setattr(joined_pairs, "MOST_OPTIONS", 3)


def layers(rng: random.Random, count: int) -> Network:
    """Equal layers of two operators that read the hubs of the layer before; `u` is dear, `v` cheap."""
    sizes = {"a": 2, "b": 3, "u": 2, "v": 3}

    def table(*shape: int, most: int = 9) -> Table:
        return np.array([rng.randint(0, most) for _ in range(int(np.prod(shape)))], dtype=np.int64).reshape(shape)

    ends = [(x, y, further) for x, y, further in (*product("ab", "uv", (False,)), *product("uv", "ab", (True,)))]
    scale = {key: LARGE if "u" in key else 1 for key in ends}
    costs = {key: scale[key] * table(sizes[key[0]], sizes[key[1]]) for key in ends}
    uses = {key: table(*costs[key].shape, 1, most=9 if "u" in key else 1) for key in ends}
    own = {name: (LARGE * table(sizes[name]), table(sizes[name], 1)) for name in "ab"}
    free = {name: (np.zeros(sizes[name], np.int64), np.zeros((sizes[name], 1), np.int64)) for name in "uv"}
    if rng.random() < 0.5:
        costs["a", "v", False][0, 0] = INFINITE
    switched, windowed = rng.random() < 0.5, rng.random() < 0.5
    decided = {
        key: (np.stack([costs[key], scale[key] * table(*costs[key].shape)]), np.stack([uses[key]] * 2), None)
        for key in ends[:2]
    }
    extra = table(2, 2, 3)
    streams = {key: scale[key] * table(2, *costs[key].shape) for key in ends[2:]}
    edges = {key: (costs[key], uses[key]) for key in ends}
    modes = {key: (*decided[key][:2], extra if key[1] == "v" else None) for key in decided if switched}
    made = layered(count, own | free, edges, modes, streams if windowed else {}, rng.randint(14, 40) * count)
    check_network(made)
    return made


def is_loose(network: Network) -> Loosened:
    found = loosened(network, lambda _: True)
    assert found is not None and {v for _, v in network.pairs} == found.loose
    assert joined_pairs.joined(found.network) is not None
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_assignment_costs_or_uses_less(seed: int) -> None:
    rng = random.Random(seed)
    network = layers(rng, 5)
    loose = is_loose(network)
    check_network(loose.network)
    for _ in range(20):
        assignment = tuple(rng.randrange(len(v.cost)) for v in network.variables)
        its = tuple(0 if v in loose.loose else x for v, x in enumerate(assignment))
        ours, bound = evaluate(network, assignment), evaluate(loose.network, its)
        assert bound.cost <= ours.cost and bound.use <= ours.use
        rest = loose.rest(its)
        check_network(rest)
        left = tuple(x if v in loose.open else 0 for v, x in enumerate(assignment))
        assert loose.assignment(its, left) == assignment and evaluate(rest, left) == ours


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["auto", "elimination"])
def test_bounds_hold(name: str, seed: int, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a solver that loosens nothing; too wide where layers are no copies of a chain, or not."""
    network = layers(random.Random(seed), 5)
    is_loose(network)
    reference = solver("cpsat-plain").solve(network, NO_LIMITS)
    assert reference.status in (Status.OPTIMAL, Status.INFEASIBLE)
    if wide:
        monkeypatch.setattr("partita.solvers.wide.solve_loosened.is_narrow", lambda given: not given.pairs)
    for gap in (0.0, 0.05):
        answer = solver(name).solve(network, Limits(gap=gap))
        assert_agrees(network, answer, reference)
        if reference.objective is not None and name == "auto" and not wide:
            assert answer.gap is not None and answer.gap <= gap


def test_hubs_of_consequence_stay() -> None:
    network = layers(random.Random(0), 6)
    alike = replace(network, edges=tuple(replace(e, cost=np.minimum(e.cost, 9)) for e in network.edges))
    assert loosened(replace(alike, switches=(), windows=()), lambda _: True) is None
    assert loosened(network, lambda _: False) is None
    assert loosened(replace(network, pairs=network.pairs[:2]), lambda _: True) is None


def test_a_mixture_of_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its balancing losses lead from layer to layer: loose, they bound the optimum that elimination finds without."""
    monkeypatch.setattr(joined_pairs, "MOST_OPTIONS", 256)
    machine = Machine.load("dgx-h100", nodes=1)
    graph, training = captured("mixtral-8x7b", machine, layers=6)
    mesh = placements(machine.hierarchy, mesh=(4, 2))[0]
    options = EncodingOptions(SearchSpace(overlap=False), ("none",), capacity_bytes=1 << 45)
    network = encode(graph, machine, mesh, optimizer=training.optimizer, options=options).network
    assert loosened(network, lambda _: True) is not None
    best, near = (solver("auto").solve(network, Limits(gap=gap)) for gap in (0.0, 0.01))
    assert best.status is Status.OPTIMAL and best.objective is not None and near.objective is not None
    assert near.bound <= best.objective <= near.objective and near.gap is not None and near.gap <= 0.01
