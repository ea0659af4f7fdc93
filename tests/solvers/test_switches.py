"""Switches: the mode of a segment, on which many tables depend."""

import json
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.formulation.network import INFINITE, Chain, Network, Switch, Tables3, Variable, evaluate
from partita.formulation.pairwise import pairwise
from partita.solvers.protocol import Status, solver
from partita.solvers.transient import has_extras

MODES = 2


def switched(network: Network, seed: int, extras: bool) -> Network:
    """Random tables in other modes: one switch outside of chains, and one in every copy, all copies alike."""
    rng = np.random.default_rng(seed)
    variables, switches = list(network.variables), []
    resources = len(network.capacities)

    def modes(cost: np.ndarray, use: np.ndarray | None) -> Tables3:
        none = np.zeros((*cost.shape, resources), np.int64)
        others = [
            np.where(cost >= INFINITE, INFINITE, cost + rng.integers(0, 10, cost.shape)) for _ in range(MODES - 1)
        ]
        less = [(none if use is None else use) // int(rng.integers(1, 4)) for _ in range(MODES - 1)]
        extra = [rng.integers(0, 5, cost.shape) * (rng.random() < 0.7) for _ in range(MODES - 1)]
        return (
            np.stack([cost, *others]),
            None if use is None and rng.random() < 0.5 else np.stack([none if use is None else use, *less]),
            np.stack([0 * cost, *extra]) if extras and rng.random() < 0.8 else None,
        )

    def mode(name: str) -> int:
        use = rng.integers(0, 3, (MODES, resources)).astype(np.int64)
        variables.append(Variable(name, rng.integers(0, 5, MODES), use))
        return len(variables) - 1

    chained = {v for c in network.chains for v in (*c.boundaries, *(v for copy in c.copies for v in copy))}
    outside = [v for v in range(len(network.variables)) if v not in chained]
    mine = {v: modes(network.variables[v].cost, network.variables[v].use) for v in outside if rng.random() < 0.7}
    edges = {
        k: modes(e.cost, e.use)
        for k, e in enumerate(network.edges)
        if (e.u in outside or e.v in outside) and rng.random() < 0.7
    }
    if outside:
        switches.append(Switch(mode("z"), mine, edges))
    chains = []
    for chain in network.chains:
        interior = {p: modes(network.variables[v].cost, network.variables[v].use)
                    for p, v in enumerate(chain.copies[0]) if rng.random() < 0.7}  # fmt: skip
        known: dict[tuple[int, ...], Tables3 | None] = {}
        own = Variable("mode", rng.integers(0, 5, MODES), rng.integers(0, 3, (MODES, resources)))
        copies = []
        for i, copy in enumerate(chain.copies):
            place = {v: p for p, v in enumerate((*copy, *chain.boundaries[i : i + 2]))}
            of_edges, count = {}, dict[tuple[int, ...], int]()
            for k, e in enumerate(network.edges):
                if e.u in place and e.v in place:
                    if not {e.u, e.v} & {*copy} and {e.u, e.v} != {*chain.boundaries[i : i + 2]}:
                        continue
                    key = place[e.u], place[e.v]
                    count[key] = count.get(key, 0) + 1
                    name = (*key, count[key])
                    if name not in known:
                        known[name] = modes(e.cost, e.use) if rng.random() < 0.7 else None
                    if known[name] is not None:
                        of_edges[k] = known[name]
            variables.append(own)
            z = len(variables) - 1
            switches.append(Switch(z, {copy[p]: tables for p, tables in interior.items()}, of_edges))
            copies.append((*copy, z))
        chains.append(Chain(chain.boundaries, tuple(copies)))
    return replace(network, variables=tuple(variables), chains=tuple(chains), switches=tuple(switches))


def found(make_network, seed: int, extras: bool) -> Network:
    network = switched(make_network(seed), seed, extras)
    assume(network.switches and prod(len(v.cost) for v in network.variables) <= 4000)
    network.check()
    return network


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize(
    ("name", "examples"), [("auto", 60), ("elimination", 60), ("cpsat", 20), ("cpsat-plain", 20), ("milp", 20)]
)
def test_solvers_agree_with_brute_force(make_network, truth, name: str, examples: int, extras: bool) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras)
        best = truth(network)
        if name == "milp" and has_extras(network):
            assert not solver(name).accepts(network)
            return
        assert solver(name).accepts(network)
        for problem in (network, replace(network, chains=())):
            solution = solver(name).solve(problem)
            assert solution.objective == best, (seed, solution)
            assert solution.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL), (seed, solution)

    agree()


def test_files_keep_switches(make_network) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras=True)
        again = Network.from_json(json.loads(json.dumps(network.to_json())))
        assert again.to_json() == network.to_json()
        rng = np.random.default_rng(seed)
        for _ in range(5):
            picks = [int(rng.integers(len(v.cost))) for v in network.variables]
            assert evaluate(again, picks) == evaluate(network, picks)

    agree()


def test_pairs_cost_what_switches_do(make_network) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras=False)
        pairs = pairwise(network)
        pairs.network.check()
        rng = np.random.default_rng(seed)
        for _ in range(20):
            picks = [int(rng.integers(len(v.cost))) for v in pairs.network.variables]
            for s in network.switches:  # most of the time modes agree
                for v in s.variables:
                    n = len(network.variables[v].cost)
                    if rng.random() < 0.95 and len(pairs.network.variables[v].cost) == MODES * n:
                        picks[v] = picks[s.variable] * n + picks[v] % n
            verdict = evaluate(pairs.network, picks)
            if verdict.feasible or verdict.why.startswith("capacity"):
                assert verdict == evaluate(network, pairs.lift(picks))

    agree()


def small() -> Network:
    """Two variables that keep 6 bytes each, or, in the other mode, nothing but 2 for a while and 3 ns more each."""
    table = np.array([[0, 1]])
    use = np.array([[6, 6]])[..., None]
    variables = [Variable(n, table[0], use[0]) for n in "ab"] + [
        Variable(f"{n} mode", np.zeros(2, np.int64), np.zeros((2, 1), np.int64)) for n in "ab"
    ]
    modes = (np.concatenate([table, table + 3]), np.concatenate([use, 0 * use]), np.array([[0, 0], [2, 2]]))
    switches = (Switch(2, {0: modes}, {}), Switch(3, {1: modes}, {}))
    return Network(tuple(variables), (), (12,), 0, (), switches)


@pytest.mark.parametrize("name", ["auto", "elimination", "cpsat", "cpsat-plain"])
@pytest.mark.parametrize(("capacity", "cost"), [(12, 0), (11, 3), (8, 3), (7, 6), (2, 6), (1, None)])
def test_the_largest_extra_counts(name: str, capacity: int, cost: int | None) -> None:
    network = replace(small(), capacities=(capacity,))
    network.check()
    assert solver(name).solve(network).objective == cost


def test_extras_are_not_added_up() -> None:
    verdict = evaluate(small(), (0, 0, 1, 1))
    assert (verdict.cost, verdict.use, verdict.feasible) == (6, (2,), True)
    assert evaluate(small(), (0, 1, 1, 0)).use == (6 + 2,)


PROBLEMS = {
    "switch 0: variable 9 of 4": lambda s: (replace(s, variable=9),),
    "switch 0: variable 7 of": lambda s: (replace(s, variables={7: s.variables[0]}),),
    "cost, use and extra": lambda s: (replace(s, variables={0: (s.variables[0][0][:1], None, None)}),),
    "not those of mode 0": lambda s: (replace(s, variables={0: (s.variables[0][0] + 1, *s.variables[0][1:])}),),
    "belongs to another switch": lambda s: (s, replace(s, variable=3)),
    "extra: use -2": lambda s: (replace(s, variables={0: (*s.variables[0][:2], -s.variables[0][2])}),),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_check_names_what_is_wrong(problem: str) -> None:
    network = small()
    with pytest.raises(ValueError, match=problem):
        replace(network, switches=PROBLEMS[problem](network.switches[0])).check()


def test_a_switch_lies_inside_one_copy(make_network) -> None:
    made = (switched(make_network(seed), seed, False) for seed in range(100))
    network = next(n for n in made if n.chains and len(n.chains[0]) > 1 and n.switches[-1].variables)
    outside = Variable("outside", np.zeros(MODES, np.int64), np.zeros((MODES, len(network.capacities)), np.int64))
    switches = (*network.switches[:-1], replace(network.switches[-1], variable=len(network.variables)))
    with pytest.raises(ValueError, match="is partly in a copy of a chain"):
        replace(network, variables=(*network.variables, outside), switches=switches).check()
