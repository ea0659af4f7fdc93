"""The cheapest reduction program by CP-SAT and Z3 on boolean states, beside the shortest path."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.encoding import MOST_LEVELS, UNITS, Clauses, encode_programs, options
from partita.formulation.reduction.optimal import optimal
from partita.formulation.reduction.program import Collective, Reduction, Step
from partita.formulation.reduction.semantics import validate
from partita.formulation.reduction.statuses import KINDS, Kind
from partita.model.errors import PartitaError
from partita.model.machine.machine import PROFILES, Level, Machine
from partita.solvers.protocol import Status
from partita.solvers.reduction.exact_program import solve_by_cpsat, solve_by_z3

from ..levels import some

DEVICE = Machine.load("gcp-a100").device
SOLVERS = {"cpsat": solve_by_cpsat, "z3": solve_by_z3}


def random_reduction(seed: int, levels: int) -> tuple[Machine, Reduction, int, str]:
    """Any hierarchy, a reduction over all of it, bytes and a profile."""
    rng = random.Random(seed)
    sizes = [rng.choice((2, 3, 4, 8, 16)) for _ in range(levels)]
    made = [
        Level(f"level {i}", size, 10 ** rng.uniform(8, 12), 10 ** rng.uniform(1, 5)) for i, size in enumerate(sizes)
    ]
    if rng.random() < 0.5:
        made[-1] = replace(made[-1], name="node")  # all levels are between nodes
    machine = Machine("any", tuple(made), replace(DEVICE, launch_ns=rng.choice((0, 10, 5000))))
    return machine, Reduction(of_rows([tuple(sizes)]), (0,)), int(10 ** rng.uniform(0, 9)), rng.choice(PROFILES)


@given(st.integers(0, 10**6), st.sampled_from((1, 2, 2)), st.sampled_from(KINDS))
@settings(max_examples=25, deadline=None)
def test_boolean_states_have_the_optimum_of_the_shortest_path(seed: int, levels: int, kind: Kind) -> None:
    """CP-SAT and Z3, on random hierarchies."""
    machine, reduction, size, profile = random_reduction(seed, levels)
    best = optimal(machine, reduction, size, kind, profile, limit=5)
    mine = best.price.latency_ns + best.price.ns_per_byte * size
    question = encode_programs(machine, reduction, size, kind, profile)
    for solve in SOLVERS.values():
        answer = solve(question)
        assert answer.status is Status.OPTIMAL and answer.program is not None
        assert answer.ns == pytest.approx(mine, rel=1e-7)
        assert answer.bound == pytest.approx(mine, rel=1e-7)
        validate(answer.program, reduction.sizes, kind)


def groups_of_the_paper() -> list[tuple[str, int, tuple[int, ...]]]:
    """(system, nodes, row) of every reduction of P² that costs something of its own: rows say what it costs.

    Of the A100 systems those of its table, of the V100 systems all that cross nodes and use several GPUs of each.
    """
    table = json.loads((files("partita.bench.data") / "p2_a100.json").read_text())
    found = set()
    for group in table["groups"]:
        for row in group["rows"]:
            reduction = Reduction(of_rows(map(tuple, row["matrix"])), tuple(group["reduce_axes"]))
            found.add(("gcp-a100", group["hierarchy"][0], reduction.row))
    for nodes in (2, 4):
        rows = itertools.product((2, 4)[: nodes // 2], (2, 4, 8))
        found |= {("gcp-v100", nodes, row) for row in rows}
    return sorted(found)


@pytest.mark.parametrize(
    ("system", "nodes", "row", "profile"),
    some([(*group, ("nccl-ring", "nccl-tree")[number % 2]) for number, group in enumerate(groups_of_the_paper())]),
)
def test_the_groups_of_the_paper(system: str, nodes: int, row: tuple[int, ...], profile: str) -> None:
    """CP-SAT and Z3 agree with the shortest path, by rings and by trees in turns."""
    machine, size = Machine.load(system, nodes=nodes), 10 * 2**31
    rest = tuple(h // m for h, m in zip(machine.hierarchy, row, strict=True))
    reduction = Reduction(of_rows([row, rest]), (0,))
    best = optimal(machine, reduction, size, profile=profile, limit=5)
    question = encode_programs(machine, reduction, size, profile=profile)
    for solve in SOLVERS.values():
        answer = solve(question)
        assert answer.status is Status.OPTIMAL
        assert answer.ns == pytest.approx(best.price.latency_ns + best.price.ns_per_byte * size, rel=1e-7)


@pytest.mark.parametrize("name", SOLVERS)
def test_no_time_proves_nothing(name: str) -> None:
    machine, reduction, size, profile = random_reduction(0, 2)
    question = encode_programs(machine, reduction, size, profile=profile)
    answer = SOLVERS[name](question, 0.001)
    assert answer.status in (Status.UNKNOWN, Status.FEASIBLE)
    best = optimal(machine, reduction, size, profile=profile, limit=5)
    assert answer.bound <= best.ns


@pytest.mark.parametrize("name", SOLVERS)
def test_what_no_program_can_do_is_infeasible(name: str) -> None:
    """One step that is not the one over all levels."""
    machine, reduction, size, profile = random_reduction(0, 2)
    question = encode_programs(machine, reduction, size, profile=profile, limit=1)
    for literal, step in question.choices[0].items():
        if step and (step.first, step.last) == (0, 1):
            question.add(-literal)
    assert SOLVERS[name](question).status is Status.INFEASIBLE


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_every_option_is_one_of_a_kind(levels: int) -> None:
    found = list(options(levels))
    assert len(found) == len(set(found)) == {1: 5, 2: 35, 3: 170}[levels]
    for step, cut in found:
        assert not set(cut) & {*step.levels, *step.zero}


@pytest.mark.parametrize("name", SOLVERS)
def test_where_a_chain_is_long_one_all_reduce_leads(name: str) -> None:
    """The first member of an all-reduce alone goes on: no product of statuses, and cheapest by NCCL's tree."""
    levels = (Level("rack", 2, 1e9, 1000.0), Level("node", 16, 1e12, 1000.0))
    machine = Machine("m", levels, DEVICE)
    whole = Reduction(of_rows([(2, 16)]), (0,))
    answer = SOLVERS[name](encode_programs(machine, whole, 10**6, profile="nccl-tree"))
    collectives = (Collective.ALL_REDUCE, Collective.ALL_REDUCE, Collective.BROADCAST)
    led = tuple(map(Step, collectives, (1, 0, 1), (1, 0, 1), ((), (1,), ())))
    assert answer.program == optimal(machine, whole, 10**6, profile="nccl-tree").program == led
    validate(led, (2, 16))


def test_nothing_costs_more_than_one_step_that_does_it_all() -> None:
    machine, reduction, size, profile = random_reduction(1, 2)
    assert max(encode_programs(machine, reduction, size, profile=profile).costs.values()) == UNITS


def test_clauses_mean_what_they_say() -> None:
    """`equal` and `some`, by all values of four variables."""
    clauses = Clauses(1.0)
    a, b, where = (clauses.new() for _ in range(3))
    either = clauses.some((a, -b))
    clauses.equal(a, b, where)
    for values in itertools.product((False, True), repeat=4):
        true = dict(zip((a, b, where, either), values, strict=True))
        holds = all(any(true[abs(x)] == (x > 0) for x in clause) for clause in clauses.clauses)
        expected = true[either] == (true[a] or not true[b]) and (not true[where] or true[a] == true[b])
        assert holds == expected


@pytest.mark.parametrize(
    ("levels", "limit", "words"),
    [(MOST_LEVELS + 1, 5, "support 1 to 3 levels, not 4"), (2, 0, "no program has 0 steps")],
)
def test_what_cannot_be_asked_is_refused(levels: int, limit: int, words: str) -> None:
    machine, reduction, size, _ = random_reduction(0, levels)
    with pytest.raises(PartitaError, match=words):
        encode_programs(machine, reduction, size, limit=limit)
