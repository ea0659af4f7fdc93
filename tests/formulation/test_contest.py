"""Instances of the contest: what is read, what is refused, and that the network is the same problem."""

import gzip
import json
import os
import random
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import PartitaError
from partita.formulation.network.checks import check_network
from partita.formulation.network.contest import FORBIDDEN, Contest
from partita.formulation.network.network import evaluate
from partita.solvers.backends.instance import solve_instance
from partita.solvers.budget import Budget

# The example of the contest's description.
EXAMPLE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data/contest_example.json").read_text())
INSTANCES = sorted(Path(os.environ.get("PARTITA_IOPDDL", "/nowhere")).glob("*.json.gz"))


@pytest.mark.parametrize(
    ("choice", "cost", "why"),
    [
        ([0, 0, 2, 0, 0], 545, ""),
        ([0, 0, 2, 1, 0], 445, ""),
        ([0, 1, 2, 0, 0], 495, ""),
        ([0, 0, 1, 1, 0], 415, "55 of 50 are used at time 50"),
    ],
)
def test_the_example(choice: list[int], cost: int, why: str) -> None:
    assert Contest.from_json(EXAMPLE).evaluate(choice) == (cost, not why, why)


def test_without_a_limit_everything_fits() -> None:
    free = Contest.from_json(changed("usage_limit"))
    assert free.evaluate([0, 0, 1, 1, 0]) == (415, True, "")
    assert free.network().capacities == ()


def test_the_network_keeps_the_times_that_matter() -> None:
    """Nodes 0, 1, 2 are together from 50 to 70, and 2, 3, 4 from 110 to 120; all other times have fewer of them."""
    network = Contest.from_json(EXAMPLE).network()
    assert network.capacities == (50, 50)
    rows = [v.rows.tolist() for v in network.variables if v.rows is not None]
    assert rows == [[[0, 1]], [[0, 1]], [[0, 2]], [[1, 2]], [[1, 2]]]


@pytest.mark.parametrize("choice", [[0, 0, 0, 0], [0] * 6, [0, 0, -1, 0, 0], [0, 2, 0, 0, 0], [0.0] * 5, [[0] * 5]])
def test_what_is_no_choice(choice: Any, tmp_path: Path) -> None:
    contest = Contest.from_json(EXAMPLE)
    with pytest.raises(PartitaError):
        contest.evaluate(choice)
    with pytest.raises(PartitaError):
        contest.write(tmp_path / "out", choice)
    assert not list(tmp_path.iterdir())


def test_solutions_are_written_as_the_contest_asks(tmp_path: Path) -> None:
    Contest.from_json(EXAMPLE).write(tmp_path / "out", np.array([0, 0, 2, 1, 0]))
    assert (tmp_path / "out").read_text() == "[0, 0, 2, 1, 0]\n"


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("solver", ["auto", "cpsat", "elimination"])
def test_the_example_is_solved(tmp_path: Path, name: str, solver: str) -> None:
    raw = json.dumps(EXAMPLE).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    answer = solve_instance(tmp_path / name, Budget(solver=solver), output=tmp_path / "out")
    assert (answer["status"], answer["objective"], answer["evaluated"], answer["bound"]) == ("optimal", 445, 445, 445)
    assert (tmp_path / "out").read_text() == "[0, 0, 2, 1, 0]\n"


def test_sums_beyond_64_bits_are_exact() -> None:
    most, many = (1 << 63) - 1, 5
    nodes = {"intervals": [[0, 2]] * many, "costs": [[most]] * many, "usages": [[most]] * many}
    edges = {"nodes": [[0, 1], [0, 1]], "costs": [[most], [most]]}
    contest = Contest.from_json({"problem": {"nodes": nodes, "edges": edges, "usage_limit": most}})
    assert contest.evaluate([0] * many) == (7 * most, False, f"{many * most} of {most} are used at time 0")


def test_times_may_be_far() -> None:
    nodes = {"intervals": [[0, 1 << 62], [5, 5], [1 << 40, 1 << 41]], "costs": [[1]] * 3, "usages": [[2]] * 3}
    contest = Contest.from_json({"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}, "usage_limit": 3}})
    assert contest.evaluate([0] * 3) == (3, False, f"4 of 3 are used at time {1 << 40}")
    assert contest.network().capacities == (3,)


# Against the definition


def instance(seed: int) -> dict[str, Any]:
    """A small instance: parallel edges, empty intervals, ties, infinities, any limit or none."""
    rng = random.Random(seed)
    count, times = rng.randint(0, 5), rng.randint(1, 6)
    sizes = [rng.randint(1, 3) for _ in range(count)]

    def costs(n: int) -> list[int]:
        return [FORBIDDEN if rng.random() < 0.1 else rng.choice([0, 1, 2, 10**13]) for _ in range(n)]

    ends = [rng.sample(range(count), 2) for _ in range(rng.randint(0, 6))] if count > 1 else []
    nodes = {
        "intervals": [sorted(rng.randint(0, times) for _ in range(2)) for _ in range(count)],
        "costs": [costs(n) for n in sizes],
        "usages": [[rng.randint(0, 4) for _ in range(n)] for n in sizes],
    }
    edges = {"nodes": ends, "costs": [costs(sizes[u] * sizes[v]) for u, v in ends]}
    problem: dict[str, Any] = {"nodes": nodes, "edges": edges}
    return {"problem": problem | ({"usage_limit": rng.randint(0, 12)} if rng.random() < 0.8 else {})}


def defined(data: dict[str, Any], choice: tuple[int, ...]) -> tuple[list[int], bool]:
    """The costs of a choice, and whether it fits, as the contest says it: time by time."""
    problem, nodes, edges = data["problem"], data["problem"]["nodes"], data["problem"]["edges"]
    costs = [row[x] for row, x in zip(nodes["costs"], choice, strict=True)]
    for (u, v), row in zip(edges["nodes"], edges["costs"], strict=True):
        costs.append(row[choice[u] * len(nodes["costs"][v]) + choice[v]])
    loads = [
        sum(
            nodes["usages"][v][x]
            for v, x in enumerate(choice)
            if nodes["intervals"][v][0] <= t < nodes["intervals"][v][1]
        )
        for t in range(10)
    ]
    return costs, "usage_limit" not in problem or max(loads) <= problem["usage_limit"]


def spans(data: dict[str, Any]) -> int:
    """How many sets of using nodes that are alive at one time are part of no other such set."""
    nodes = data["problem"]["nodes"]
    alive = {
        frozenset(v for v, (a, b) in enumerate(nodes["intervals"]) if a <= t < b and any(nodes["usages"][v]))
        for t in range(10)
    }
    return sum(bool(one) and not any(one < other for other in alive) for one in alive)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_the_network_is_the_same_problem(seed: int) -> None:
    data = instance(seed)
    contest = Contest.from_json(data)
    network = contest.network()
    check_network(network)
    assert len(network.capacities) == (spans(data) if "usage_limit" in data["problem"] else 0)
    for choice in product(*(range(len(row)) for row in data["problem"]["nodes"]["costs"])):
        costs, fits = defined(data, choice)
        verdict, found = contest.evaluate(choice), evaluate(network, choice)
        assert (verdict.cost, verdict.feasible, not verdict.why) == (sum(costs), fits, fits)
        assert found.feasible == (fits and max(costs, default=0) < FORBIDDEN)
        assert found.cost == sum(costs) or not found.feasible


# What is refused


def changed(place: str, value: Any = None) -> dict[str, Any]:
    """The example with another value at a place such as `nodes.costs.2.1`; without one, the place is left out."""
    data = deepcopy(EXAMPLE)
    *way, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    target = data["problem"]
    for key in way:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the whole is [], expected an object"),
        ({}, "problem is missing"),
        ({"problem": 3}, "problem is 3, expected an object"),
        (changed("nodes"), "problem.nodes is missing"),
        (changed("edges", []), "problem.edges is [], expected an object"),
        (changed("edges.costs"), "problem.edges.costs is missing"),
        (changed("nodes.costs", {}), "problem.nodes.costs is {}, expected a list"),
        (changed("nodes.costs.2", 5), "problem.nodes.costs[2] is 5, expected a list"),
        (changed("nodes.costs.2.1", -4), "problem.nodes.costs[2][1] is -4, expected 0 to 2^63 - 1"),
        (
            changed("nodes.costs.2.1", 1 << 63),
            "problem.nodes.costs[2][1] is 9223372036854775808, expected 0 to 2^63 - 1",
        ),
        (changed("nodes.costs.2.1", 1.0), "problem.nodes.costs[2][1] is 1.0, expected an integer"),
        (changed("nodes.costs.2.1", True), "problem.nodes.costs[2][1] is True, expected an integer"),
        (changed("nodes.usages.1.0", "25"), "problem.nodes.usages[1][0] is '25', expected an integer"),
        (changed("nodes.usages.1.0", [25]), "problem.nodes.usages[1][0] is [25], expected an integer"),
        (changed("edges.costs.4.1", -1), "problem.edges.costs[4][1] is -1, expected 0 to 2^63 - 1"),
        (changed("nodes.costs.4", []), "problem.nodes.costs[4] is empty; a node has at least one option"),
        (changed("nodes.costs.4"), "problem.nodes.costs has 4 lists for 5 intervals"),
        (changed("nodes.usages.4"), "problem.nodes.usages has 4 lists for 5 intervals"),
        (changed("nodes.usages.2.1"), "problem.nodes.usages[2] has 2 numbers for 3 options"),
        (
            changed("nodes.intervals.3", [140, 110]),
            "problem.nodes.intervals[3] is [140, 110]: it ends before it begins",
        ),
        (changed("nodes.intervals.3", [140]), "problem.nodes.intervals[3] has 1 numbers, expected 2"),
        (changed("nodes.intervals.3.0", -1), "problem.nodes.intervals[3][0] is -1"),
        (changed("edges.nodes.1", [0, 5]), "problem.edges.nodes[1] is [0, 5]; there are 5 nodes"),
        (changed("edges.nodes.1", [0, -1]), "problem.edges.nodes[1][1] is -1"),
        (changed("edges.nodes.1", [2, 2]), "problem.edges.nodes[1] joins node 2 to itself"),
        (changed("edges.nodes.1", [0, 2, 1]), "problem.edges.nodes[1] has 3 numbers, expected 2"),
        (changed("edges.nodes.1"), "problem.edges.costs has 5 lists for 4 edges"),
        (changed("edges.costs.2.0"), "problem.edges.costs[2] has 3 numbers for 2 x 2 options"),
        (changed("usage_limit", -1), "problem.usage_limit is -1, expected 0 to 2^63 - 1"),
        (changed("usage_limit", 1e9), "problem.usage_limit is 1000000000.0, expected an integer"),
        (changed("usage_limit", {}), "problem.usage_limit is {}, expected an integer"),
        (changed("name", 7), "problem.name is 7, expected text"),
    ],
)
def test_malformed_instances_are_refused_with_the_place(data: Any, words: str) -> None:
    with pytest.raises(PartitaError) as error:
        Contest.from_json(data)
    assert str(error.value).startswith(f"contest instance: {words}")


JUNK: list[Any] = [None, True, -1, 2, 1.5, 1 << 63, "", [], [[]], [0], [0, 1, 2], {}, [[1, 2]]]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_junk_anywhere_is_refused_or_harmless(seed: int) -> None:
    rng = random.Random(seed)
    at: Any = {"": changed("name", "x")}
    data, key = at, ""
    while isinstance(at[key], list | dict) and at[key] and rng.random() < 0.8:
        at = at[key]
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
    at[key] = rng.choice(JUNK)
    try:
        contest = Contest.from_json(data[""])
    except PartitaError as error:
        assert str(error).startswith("contest instance: ")
    else:
        check_network(contest.network())
        contest.evaluate([0] * (len(contest.start) - 1))


@pytest.mark.skipif(not INSTANCES, reason="PARTITA_IOPDDL names no folder with the contest's instances")
@pytest.mark.parametrize("path", INSTANCES, ids=lambda p: p.name)
def test_published_instances(path: Path) -> None:
    """Both evaluators agree on a few choices, one of them within the limit where the least usages are."""
    contest = Contest.read(path)
    network = contest.network()
    least = [int(np.argmin(contest.usage[a:b])) for a, b in zip(contest.start[:-1], contest.start[1:], strict=True)]
    for choice in ([0] * len(network.variables), least):
        verdict, found = contest.evaluate(choice), evaluate(network, choice)
        assert verdict.feasible == all(u <= c for u, c in zip(found.use, network.capacities, strict=True))
        assert found.cost == verdict.cost or found.cost > FORBIDDEN
        assert max(found.use) == max(loads(contest, choice))


def loads(contest: Contest, choice: list[int]) -> list[int]:
    """What is used at every time, one by one."""
    steps = [0] * (int(contest.intervals.max()) + 1)
    for (a, b), first, x in zip(contest.intervals.tolist(), contest.start.tolist(), choice, strict=False):
        steps[a] += int(contest.usage[first + x])
        steps[b] -= int(contest.usage[first + x])
    return np.cumsum(steps).tolist()
