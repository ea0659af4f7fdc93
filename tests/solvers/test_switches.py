"""Switches: the mode of a segment, on which many tables depend."""

import json
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from partita.formulation.network.chains import Position, find_chains
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import (
    INFINITE,
    Chain,
    Network,
    Switch,
    SwitchTables,
    Variable,
    chain_edges,
    evaluate,
    extras,
)
from partita.formulation.network.network_file import network_json, read_network
from partita.formulation.network.without_switches import without_switches
from partita.solvers.elimination import transient_memory as transient
from partita.solvers.elimination.crossover import crossed
from partita.solvers.elimination.order import compile_network
from partita.solvers.elimination.transient_memory import without_extras
from partita.solvers.protocol import Limits, Status, solver
from partita.solvers.wide.solve_reduced import without_loose_pairs

from ..levels import example_count

MODES = 2


def switched(network: Network, seed: int, extras: bool) -> Network:
    """Random tables in other modes: one or two switches outside of chains, and in every copy, all copies alike."""
    rng = np.random.default_rng(seed)
    variables, switches, chains = list(network.variables), list[Switch](), list[Chain]()
    resources = len(network.capacities)

    def modes(cost: np.ndarray, use: np.ndarray | None) -> SwitchTables:
        none = np.zeros((*cost.shape, resources), np.int64)
        more, less = rng.integers(0, 10, (MODES - 1, *cost.shape)), rng.integers(1, 4, MODES - 1)
        uses = none if use is None else use
        extra = rng.integers(0, 5, more.shape) * (rng.random() < 0.7)
        return (
            np.stack([cost, *(np.where(cost >= INFINITE, INFINITE, cost + m) for m in more)]),
            None if use is None and rng.random() < 0.5 else np.stack([uses, *(uses // k for k in less)]),
            np.stack([0 * cost, *extra]) if extras and rng.random() < 0.8 else None,
        )

    def part(own: list[int], among: list[int]) -> list[tuple[dict[int, SwitchTables], list[int]]]:
        """The tables of one or two switches over the places of variables `own`, and their edges `among`."""
        groups = [own] if len(own) < 2 or rng.random() < 0.5 else [own[: len(own) // 2], own[len(own) // 2 :]]
        edges = [k for k in among if rng.random() < 0.7]
        tables = [
            {v: modes(network.variables[v].cost, network.variables[v].use) for v in group if rng.random() < 0.7}
            for group in groups
        ]
        return [(of, edges[g :: len(groups)]) for g, of in enumerate(tables)]

    def mode() -> Variable:
        return Variable("mode", rng.integers(0, 5, MODES), rng.integers(0, 3, (MODES, resources)).astype(np.int64))

    copy_edges, rest = chain_edges(network)
    chained = {v for c in network.chains for part in (c.boundaries, *c.copies) for v in part}
    outside = [v for v in range(len(network.variables)) if v not in chained]
    for of, edges in part(outside, rest):
        variables.append(mode())
        tables = {k: modes(network.edges[k].cost, network.edges[k].use) for k in edges}
        switches.append(Switch(len(variables) - 1, of, tables))
    for chain, inside in zip(network.chains, copy_edges, strict=True):
        copies = [list(copy) for copy in chain.copies]
        for of, edges in part(list(chain.copies[0]), inside[0]):
            tables = {inside[0].index(k): modes(network.edges[k].cost, network.edges[k].use) for k in edges}
            own = mode()
            for i, copy in enumerate(chain.copies):
                variables.append(own)
                copies[i].append(len(variables) - 1)
                mine = {copy[chain.copies[0].index(v)]: t for v, t in of.items()}
                switches.append(Switch(len(variables) - 1, mine, {inside[i][p]: t for p, t in tables.items()}))
        chains.append(replace(chain, copies=tuple(map(tuple, copies))))
    return replace(network, variables=tuple(variables), chains=tuple(chains), switches=tuple(switches))


def found(make_network, seed: int, extras: bool) -> Network:
    """A small network; half of them with the capacities that some assignment needs."""
    network, rng = switched(make_network(seed), seed, extras), np.random.default_rng(seed)
    assume(prod(len(v.cost) for v in network.variables) <= 2000)
    check_network(network)
    if rng.random() < 0.5:
        return network
    some = [int(rng.integers(len(v.cost))) for v in network.variables]
    return replace(network, capacities=evaluate(network, some).use)


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize(
    ("name", "examples"), [("auto", 50), ("elimination", 40), ("cpsat", 12), ("cpsat-plain", 20), ("milp", 12)]
)
def test_solvers_agree_with_brute_force(make_network, truth, name: str, examples: int, extras: bool) -> None:
    @settings(max_examples=example_count(examples), deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras)
        best = truth(network)
        assert solver(name).accepts(network)
        for problem in (network, replace(network, chains=())):
            solution = solver(name).solve(problem)
            assert solution.objective == best, (seed, solution)
            assert solution.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL), (seed, solution)

    agree()


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize(("name", "examples"), [("auto", 60), ("elimination", 40), ("cpsat", 10)])
def test_bounds_hold_where_a_gap_is_allowed(make_network, truth, name: str, examples: int, extras: bool) -> None:
    @settings(max_examples=example_count(examples), deadline=None)
    @given(st.integers(0, 10**6), st.sampled_from([0.02, 0.1, 0.4]))
    @example(882, 0.1)  # an incumbent that is found within a slack lowers what is looked at
    @example(380, 0.1)
    def hold(seed: int, gap: float) -> None:
        network = found(make_network, seed, extras)
        best = truth(network)
        solution = solver(name).solve(network, Limits(gap=gap))
        if best is None:
            assert solution.status is Status.INFEASIBLE
            return
        assert solution.objective is not None
        assert solution.bound <= best <= solution.objective, (seed, gap, solution)
        assert solution.bound >= solution.objective - abs(solution.objective) * gap - 1, (seed, gap, solution)

    hold()


def test_files_keep_switches(make_network) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras=True)
        again = read_network(json.loads(json.dumps(network_json(network))))
        assert network_json(again) == network_json(network)
        rng = np.random.default_rng(seed)
        for _ in range(5):
            picks = [int(rng.integers(len(v.cost))) for v in network.variables]
            assert evaluate(again, picks) == evaluate(network, picks)

    agree()


def test_pairs_use_nothing_where_no_assignment_exceeds_a_capacity(make_network) -> None:
    """What a network without their use allows is what it allowed; one byte less of each capacity may matter."""

    dropped = kept = 0
    for seed in range(40):
        network = switched(make_network(seed), seed, False)
        ranges = [range(len(v.cost)) for v in network.variables]
        if prod(map(len, ranges)) > 500 or not network.capacities:
            continue
        every = [
            evaluate(replace(network, capacities=(1 << 40,) * len(network.capacities)), x) for x in product(*ranges)
        ]
        most = np.max([e.use for e in every if e.feasible] or [[0] * len(network.capacities)], axis=0)
        for room in (most + 12, most - 1):
            tight = replace(network, capacities=tuple(np.maximum(room, 0).tolist()))
            plain = without_loose_pairs(tight)
            check_network(plain)
            dropped, kept = dropped + (plain is not tight), kept + (plain is tight)
            for x in product(*ranges):
                one, other = evaluate(tight, x), evaluate(plain, x)
                assert (one.feasible, one.cost) == (other.feasible, other.cost)
    assert dropped > 5 and kept > 5


def test_pairs_cost_what_switches_do(make_network) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras=False)
        pairs = without_switches(network)
        check_network(pairs.network)
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
    check_network(network)
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
        check_network(replace(network, switches=PROBLEMS[problem](network.switches[0])))


def test_a_switch_lies_inside_one_copy(make_network) -> None:
    made = (switched(make_network(seed), seed, False) for seed in range(100))
    network = next(n for n in made if n.chains and len(n.chains[0]) > 1 and n.switches[-1].variables)
    outside = Variable("outside", np.zeros(MODES, np.int64), np.zeros((MODES, len(network.capacities)), np.int64))
    switches = (*network.switches[:-1], replace(network.switches[-1], variable=len(network.variables)))
    with pytest.raises(ValueError, match="is partly in a copy of a chain"):
        check_network(replace(network, variables=(*network.variables, outside), switches=switches))


def with_modes(network: Network) -> Network:
    """A chain's copies with a third mode and a second one, of less use and more time."""
    slower = {id(t): np.stack([t, t + t // 3, t + t // 2]) for v in network.variables for t in (v.cost,)}
    slower |= {id(e.cost): np.where(e.cost < INFINITE, np.stack([e.cost] * 3), INFINITE) for e in network.edges}
    less = {id(v.use): np.stack([v.use, v.use // 2, v.use // 8]) for v in network.variables}
    extra = {id(v.use): np.stack([0 * v.use[:, 0], v.use[:, 0] // 3, v.use[:, 0] // 2]) for v in network.variables}
    (chain,), (copy_edges,) = network.chains, chain_edges(network)[0]
    mode, first = Variable("mode", np.zeros(3, np.int64), np.zeros((3, 1), np.int64)), len(network.variables)
    copies = tuple((*copy, first + i) for i, copy in enumerate(chain.copies))
    switches = tuple(
        Switch(
            copy[-1],
            {
                v: (slower[id(x.cost)], less[id(x.use)], extra[id(x.use)])
                for v in copy[:-1]
                for x in (network.variables[v],)
            },
            {k: (slower[id(network.edges[k].cost)], None, None) for k in edges},
        )
        for copy, edges in zip(copies, copy_edges, strict=True)
    )
    return replace(
        network,
        variables=(*network.variables, *[mode] * len(copies)),
        chains=(Chain(chain.boundaries, copies),),
        switches=switches,
    )


def test_a_switch_is_eliminated_last(make_transformer) -> None:
    """So that M modes cost M times what one does, not M of them at every step."""
    plain = make_transformer(4, axes=2)
    network = with_modes(plain)
    check_network(network)
    one, three = compile_network(plain), compile_network(network)
    assert one.size[1] < three.size[1] < 3.3 * one.size[1]
    assert three.work(2) < 3.3 * one.work(2)  # modes are not so many on each of several axes


@pytest.mark.parametrize("name", ["auto", "elimination"])
def test_layers_are_counted(make_transformer, name: str) -> None:
    """Under less memory than mode 0 needs, copies cost what the same network costs without chains."""
    network = with_modes(make_transformer(3, axes=1, memory=0))
    network = replace(network, capacities=(int(0.85 * network.capacities[0]),))
    solution = solver(name).solve(network)
    assert solution.status is Status.OPTIMAL
    assert max(extras(network, solution.assignment or ()).values()) > 0
    assert solver("auto").solve(replace(network, chains=())).objective == solution.objective
    assert without(network, name) < solution.objective
    quick = solver(name).solve(network, Limits(quick=True))
    assert quick.bound <= solution.objective <= quick.objective


def without(network: Network, name: str) -> int:
    objective = solver(name).solve(without_extras(network)).objective
    assert objective is not None
    return objective


def test_long_lists_are_divided(make_network, truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lists so short, what is told stays true."""
    monkeypatch.setattr(transient, "_LABELS", 3)
    closed = []

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6))
    def agree(seed: int) -> None:
        network = found(make_network, seed, extras=True)
        best, solution = truth(network), solver("elimination").solve(network)
        closed.append(solution.status in (Status.OPTIMAL, Status.INFEASIBLE))
        if closed[-1]:
            assert solution.objective == best, seed
        elif best is not None:
            assert solution.bound <= best <= (solution.objective or best), seed

    agree()
    assert any(closed)


def test_chains_hold_whole_switches(make_transformer) -> None:
    """A cut in the reach of a switch is none; equal copies have equal switches."""
    network = with_modes(make_transformer(4, axes=1))
    (chain,) = network.chains
    first = {s.variable: copy[0] - 0.5 for s, copy in zip(network.switches, chain.copies, strict=True)}
    pieces = [
        Position(first.get(v, v), v in chain.boundaries or x.name == "hub2", False)
        for v, x in enumerate(network.variables)
    ]
    (found,) = find_chains(replace(network, chains=()), pieces)
    assert (found.boundaries, {*map(frozenset, found.copies)}) == (chain.boundaries, {*map(frozenset, chain.copies)})
    check_network(replace(network, chains=(found,)))
    alone = replace(network.switches[0], variables={}, edges={})
    unlike = find_chains(replace(network, chains=(), switches=(alone, *network.switches[1:])), pieces)
    assert [len(c) for c in unlike] == [3]


@pytest.mark.parametrize("seed", range(30))
def test_solutions_are_crossed_with_their_switches(make_network, seed: int) -> None:
    """A switch goes with the first variable that it decides on; what is used for a while counts at each place."""
    network, rng = switched(make_network(seed), seed, extras=True), np.random.default_rng(seed)
    first = {s.variable: min(s.variables, default=s.variable) - 0.5 for s in network.switches}
    order = sorted(range(len(network.variables)), key=lambda v: first.get(v, v))
    before, after = ([int(rng.integers(len(v.cost))) for v in network.variables] for _ in range(2))
    costs = []
    for n in range(len(order) + 1):
        verdict = evaluate(network, [before[v] if v in order[:n] else after[v] for v in range(len(order))])
        costs += [verdict.cost] if verdict.feasible else []
    answer = crossed(network, before, after)
    assert (answer and answer[0]) == min(costs, default=None)
    assert answer is None or evaluate(network, answer[1]).cost == answer[0]
