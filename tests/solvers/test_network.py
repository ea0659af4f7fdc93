"""The cost network: its checks, its verdicts, and its JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import PartitaError
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, Chain, Edge, Network, Variable, evaluate
from partita.formulation.network.network_file import network_json, read_network
from partita.solvers.elimination.factors import dense
from partita.solvers.protocol import Limits, Status, solver

from ..levels import example_count


def table(*rows: object) -> np.ndarray:
    return np.array(rows, np.int64)


def variable(name: str, costs: list[int], uses: list[int]) -> Variable:
    return Variable(name, table(*costs), table(*uses)[:, None])


A, B = variable("a", [1, 5, INFINITE], [4, 0, 0]), variable("b", [2, 3], [3, 1])
PAIR = Network((A, B), (Edge(0, 1, table([0, INFINITE], [7, 1], [0, 0])),), (5,), 100)


@pytest.mark.parametrize(
    ("picks", "cost", "use", "why"),
    [
        ((1, 1), 109, 1, ""),
        ((1, 0), 114, 3, ""),
        ((0, 0), 103, 7, "capacity 0 is exceeded: 7 of 5 bytes"),
        ((0, 1), None, 5, "a with option 0 and b with option 1 exclude each other"),
        ((2, 1), None, 1, "a may not take option 2"),
    ],
)
def test_evaluate(picks: tuple[int, ...], cost: int | None, use: int, why: str) -> None:
    verdict = evaluate(PAIR, picks)
    assert (verdict.feasible, verdict.use, verdict.why) == (not why, (use,), why)
    assert verdict.cost == cost if cost is not None else verdict.cost >= INFINITE


def test_evaluate_refuses_what_is_no_assignment() -> None:
    with pytest.raises(ValueError, match="1 options for 2 variables"):
        evaluate(PAIR, (0,))
    with pytest.raises(ValueError, match="b has options 0 to 1, not 2"):
        evaluate(PAIR, (0, 2))


def chain(costs: list[list[int]]) -> Network:
    """Three boundaries with an interior each, of the given costs."""
    zero = variable("b", [0, 0], [0, 0])
    variables = (zero, variable("i", costs[0], [1, 1]), zero, variable("i", costs[1], [1, 1]), zero)
    link = table([0, 1], [1, 0])
    edges = tuple(Edge(i, i + 1, link) for i in range(4))
    return Network(variables, edges, (9,), 0, (Chain((0, 2, 4), ((1,), (3,))),))


def reading(*tables: np.ndarray, reads: tuple[int, ...] = (5,)) -> Network:
    """Two copies of a chain, which read one more variable by edges of these tables."""
    network = chain([[1, 2], [1, 2]])
    edges = (Edge(5, 1 + 2 * i, t) for i, t in enumerate(tables))
    return replace(
        network,
        variables=(*network.variables, variable("read", [0, 0, 0], [0, 0, 0])),
        edges=(*network.edges, *edges),
        chains=(replace(network.chains[0], reads=reads),),
    )


SMALL, LARGE = table([0, 1], [1, 0], [2, 2]), table([0, 1], [1, 0], [2, 3])


def test_check_accepts_equal_copies() -> None:
    check_network(reading(SMALL, SMALL))
    check_network(chain([[1, 2], [1, 2]]))
    check_network(PAIR)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (chain([[1, 2], [1, 3]]), "copy 1 differs from copy 0 in the tables"),
        (replace(chain([[1, 2], [1, 2]]), chains=(Chain((0, 2, 4), ((1,), (3, 1))),)), "copies of"),
        (replace(chain([[1, 2], [1, 2]]), chains=(Chain((0, 2), ((1,), (3,))),)), "2 boundaries for 2 copies"),
        (replace(chain([[1, 2], [1, 2]]), chains=(Chain((0, 2), ((1,),)), Chain((2, 0), ((1,),)))), "belongs to"),
        (reading(SMALL, LARGE), "copy 1 differs from copy 0 in the tables"),
        (reading(SMALL), "copy 1 differs from copy 0"),
        (reading(SMALL, SMALL, reads=()), "an edge leaves it for read"),
        (reading(SMALL, SMALL, reads=(5, 2)), "reads b, which is inside chain 0"),
        (reading(SMALL, SMALL, reads=(5, 6)), "variable 6 of 6"),
        (reading(SMALL, SMALL, reads=(5, 5)), "names a variable that it reads twice"),
        (replace(PAIR, edges=(Edge(0, 0, table([0])),)), "edge"),
        (replace(PAIR, edges=(Edge(0, 1, table([0, 0])),)), r"cost \(1, 2\), domains \(3, 2\)"),
        (replace(PAIR, capacities=(5, 5)), "for 2 capacities"),
        (replace(PAIR, capacities=(-1,)), "capacity 0 is -1"),
        (replace(PAIR, variables=(A, variable("b", [1, 1], [-2, 0]))), "use -2 bytes"),
    ],
)
def test_check_says_what_is_inconsistent(network: Network, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_network(network)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_json_keeps_everything(make_network, seed: int) -> None:
    network = make_network(seed)
    check_network(network)
    text = json.dumps(network_json(network))
    again = read_network(json.loads(text))
    assert json.dumps(network_json(again)) == text
    assert again.chains == network.chains and again.capacities == network.capacities
    for a, b in zip((*network.variables, *network.edges), (*again.variables, *again.edges), strict=True):
        assert np.array_equal(np.minimum(a.cost, INFINITE), b.cost)
        assert np.array_equal(a.use, b.use) if a.use is not None else b.use is None


# Rows: of many capacities, those on which a variable counts


def rows(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2)


WIDE = Network(
    (
        Variable("a", table(0, 1), table([3, 1], [0, 5]), rows((0, 3), (1, 2))),
        Variable("b", table(0), table([2]), rows((2, 4))),
        Variable("c", table(0), np.zeros((1, 0), np.int64), rows()),
    ),
    capacities=(3, 4, 5, 2),
)


@pytest.mark.parametrize(
    ("picks", "use", "why"),
    [((0, 0, 0), (3, 4, 5, 2), ""), ((1, 0, 0), (0, 5, 2, 2), "capacity 1 is exceeded: 5 of 4 bytes")],
)
def test_columns_count_on_their_rows(picks: tuple[int, ...], use: tuple[int, ...], why: str) -> None:
    check_network(WIDE)
    for network in (WIDE, dense(WIDE), read_network(json.loads(json.dumps(network_json(WIDE))))):
        verdict = evaluate(network, picks)
        assert (verdict.use, verdict.why) == (use, why)


def wide(seed: int) -> Network:
    """A small network of up to 12 capacities, on ranges of which its variables count; some ranges are empty."""
    rng = np.random.default_rng(seed)
    count, capacities = int(rng.integers(1, 5)), int(rng.integers(1, 13))
    variables = []
    for v in range(count):
        n, columns = int(rng.integers(1, 4)), int(rng.integers(0, 3))
        spans = np.sort(rng.integers(0, capacities + 1, (columns, 2)), axis=1).astype(np.int64)
        cost = np.where(rng.random(n) < 0.1, INFINITE, rng.integers(0, 9, n)).astype(np.int64)
        variables.append(Variable(f"v{v}", cost, rng.integers(0, 5, (n, columns)).astype(np.int64), spans))
    edges = []
    for _ in range(int(rng.integers(0, 5)) if count > 1 else 0):
        u, v = (int(x) for x in rng.choice(count, 2, replace=False))
        shape = len(variables[u].cost), len(variables[v].cost)
        use = rng.integers(0, 3, (*shape, capacities)).astype(np.int64) if rng.random() < 0.2 else None
        edges.append(Edge(u, v, rng.integers(0, 9, shape).astype(np.int64), use))
    return Network(tuple(variables), tuple(edges), tuple(int(c) for c in rng.integers(0, 12, capacities)))


@settings(max_examples=example_count(150), deadline=None)
@given(st.integers(0, 10**9))
def test_solvers_read_rows(truth, seed: int) -> None:
    network = wide(seed)
    check_network(network)
    best = truth(network)
    assert truth(dense(network)) == best
    for name in ("cpsat", "cpsat-plain", "elimination", "auto"):
        backend = solver(name)
        assert backend.accepts(network) or len(network.capacities) > 8
        if backend.accepts(network):
            answer = backend.solve(network, Limits(seconds=120))
            assert (answer.status is Status.INFEASIBLE, answer.objective) == (best is None, best)


def test_elimination_refuses_many_capacities() -> None:
    many = replace(WIDE, capacities=(9,) * 20)
    assert solver("cpsat").accepts(many) and not solver("elimination").accepts(many)
    assert solver("auto").solve(many).objective == 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (rows((0, 5), (1, 2)), r"a: rows \[0, 5\] of 4 capacities"),
        (rows((2, 1), (1, 2)), r"a: rows \[2, 1\] of 4 capacities"),
        (rows((-1, 1), (1, 2)), r"a: rows \[-1, 1\] of 4 capacities"),
        (rows((0, 3)), r"a: cost \(2,\) and use \(2, 2\), for rows \(1, 2\)"),
        (np.zeros((2, 3), np.int64), r"a: rows \(2, 3\) of int64"),
        (None, r"a: cost \(2,\) and use \(2, 2\), for 4 capacities"),
    ],
)
def test_check_says_which_rows_are_wrong(bad: np.ndarray | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_network(replace(WIDE, variables=(replace(WIDE.variables[0], rows=bad), *WIDE.variables[1:])))


def test_copies_of_a_chain_count_on_the_same_rows() -> None:
    one = chain([[1, 2], [1, 2]])
    spelled = tuple(replace(v, rows=rows((0, 1))) for v in one.variables)
    check_network(replace(one, variables=spelled))
    check_network(replace(one, variables=(*one.variables[:3], spelled[3], one.variables[4])))
    none = replace(one.variables[3], rows=rows((0, 0)))
    with pytest.raises(ValueError, match="copy 1 differs from copy 0 in the tables"):
        check_network(replace(one, variables=(*one.variables[:3], none, one.variables[4])))


def test_json_stores_equal_tables_once(make_transformer) -> None:
    few, many = (network_json(make_transformer(layers, axes=1)) for layers in (2, 5))
    assert len(few["tables"]) == len(many["tables"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "x"}, "not a cost network"),
        ({"version": 2}, "version 2"),
        ({"variables": None}, "variables is None, expected list"),
        ({"variables": [{"name": "a"}]}, r"variables\[0\].cost is missing"),
        ({"variables": [{"name": "a", "cost": 99, "use": 0}]}, r"variables\[0\].cost is table 99 of"),
        ({"tables": [{"shape": [2], "values": [1]}]}, r"tables\[0\]"),
        ({"tables": [{"shape": [1], "values": ["x"]}]}, r"tables\[0\].values\[0\] is 'x', expected an integer"),
        (
            {"variables": [{"name": "a", "cost": 0, "use": 1, "rows": [[0, 1, 2]]}]},
            r"variables\[0\].rows\[0\] is \[0, 1, 2\]",
        ),
        (
            {"variables": [{"name": "a", "cost": 0, "use": 1, "rows": [[0, "x"]]}]},
            r"variables\[0\].rows\[0\]\[1\] is 'x'",
        ),
        ({"variables": [{"name": "a", "cost": 0, "use": 1, "rows": [[0, 1 << 63]]}]}, r"variables\[0\].rows\[0\] is"),
        ({"variables": [{"name": "a", "cost": 0, "use": 1, "rows": [[0, 2]]}]}, r"a: rows \[0, 2\] of 1 capacities"),
        ({"capacities": [-3]}, "inconsistent cost network: capacity 0 is -3"),
        ({"chains": [{"boundaries": [0], "copies": []}]}, "inconsistent cost network: chain 0"),
    ],
)
def test_malformed_json_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        read_network(network_json(PAIR) | change)
