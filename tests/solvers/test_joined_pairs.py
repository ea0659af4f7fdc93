"""Networks whose layers have two streams between them: joined, they are chains, and have the same solutions."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from partita.formulation.network.joined_pairs import Joined, joined
from partita.formulation.network.network import INFINITE, Edge, Network, Table, evaluate
from partita.solvers.protocol import NO_LIMITS, Status, solver

from .layer_pairs import layered


def layers(rng: random.Random, count: int) -> Network:
    """Equal layers of two operators, each with a hub, which both operators of the next layer read."""
    sizes = {"a": 2, "b": 2, "u": 2, "v": 3}

    def table(*shape: int, most: int = 9) -> Table:
        made = np.array([rng.randint(0, most) for _ in range(int(np.prod(shape)))], dtype=np.int64).reshape(shape)
        return made

    own = {name: (table(sizes[name]), table(sizes[name], 1)) for name in "ab"}
    free = {name: (np.zeros(sizes[name], np.int64), np.zeros((sizes[name], 1), np.int64)) for name in "uv"}
    ends = [(x, y, further) for x, y, further in (*product("ab", "uv", (False,)), *product("uv", "ab", (True,)))]
    between = {key: (table(sizes[key[0]], sizes[key[1]]), table(sizes[key[0]], sizes[key[1]], 1)) for key in ends}
    between["a", "b", False] = table(2, 2), None  # type: ignore[assignment]
    if rng.random() < 0.5:
        between["u", "a", True][0][0, 0] = INFINITE
    recomputed = {key: tuple(np.stack([t, table(*t.shape)]) for t in between[key]) for key in ends[:2]}
    extra, streams = table(2, 2, 2), {key: table(2, *between[key][0].shape) for key in ends[2:]}
    switched, windowed = rng.random() < 0.5, rng.random() < 0.5
    modes = {key: (*tables, extra if key[1] == "u" else None) for key, tables in recomputed.items() if switched}
    room = rng.randint(4, 12) * count
    return layered(count, own | free, between, modes, streams if windowed else {}, room)


def is_joined(network: Network) -> Joined:
    found = joined(network)
    assert found is not None and max(map(len, found.network.chains)) >= 3
    return found


@pytest.mark.parametrize("seed", range(30))
def test_assignments_cost_the_same(seed: int) -> None:
    rng = random.Random(seed)
    network = layers(rng, 5)
    found = is_joined(network)
    for _ in range(20):
        assignment = [rng.randrange(len(v.cost)) for v in found.network.variables]
        ours, its = evaluate(network, found.apart(assignment)), evaluate(found.network, assignment)
        assert (ours.cost, ours.use, ours.feasible) == (its.cost, its.use, its.feasible)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["auto", "elimination"])
def test_the_best_is_that_of_the_network_as_it_was(name: str, seed: int) -> None:
    """Against a solver that does not join; chains are solved as all are."""
    network = layers(random.Random(seed), 6)
    is_joined(network)
    answer, reference = (solver(each).solve(network, NO_LIMITS) for each in (name, "cpsat-plain"))
    assert answer.bound <= reference.bound if reference.status is Status.OPTIMAL else reference.objective is None
    if answer.assignment is not None:
        assert evaluate(network, answer.assignment).cost == answer.objective
    if name == "auto":
        assert (answer.status, answer.objective) == (reference.status, reference.objective)


def test_pairs_that_cannot_be_joined_stay() -> None:
    network = layers(random.Random(0), 6)
    u, v = network.pairs[2]
    nothing = np.zeros((2, 3), np.int64)
    beside = Network(network.variables, (*network.edges, Edge(u, v, nothing)), network.capacities, line=network.line)
    assert joined(beside) is None and joined(Network(network.variables, network.edges, network.capacities)) is None
