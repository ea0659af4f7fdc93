"""The search finds the exact optimum, which CP-SAT proves: SuperScaler's Table 3 and random states."""

from __future__ import annotations

import pytest

from partita.bench.rvd import Case, one_and_many, randoms, table_3
from partita.formulation.rvd.roles import D
from partita.formulation.rvd.search import forget, search, send_receive
from partita.formulation.rvd.state import RVD, State
from partita.model.machine.machine import Machine
from partita.solvers.protocol import Limits, Status
from partita.solvers.reduction.rvd import every_roles, optimum

from ..levels import some

V100 = Machine.load("v100-32gb", nodes=4)


@pytest.mark.parametrize("case", [*table_3(), *one_and_many()], ids=str)
def test_table_3_and_one_device_with_many(case: Case) -> None:
    exact = optimum(case.source, case.target, case.shape, case.itemsize, V100)
    assert exact.status is Status.OPTIMAL
    assert search(case.source, case.target, case.shape, case.itemsize, V100).cost_ns == exact.cost_ns == exact.bound_ns


@pytest.mark.parametrize("case", some(list(randoms(10, seed=7)), 2), ids=str)
def test_random_states(case: Case) -> None:
    exact = optimum(case.source, case.target, case.shape, case.itemsize, V100)
    assert exact.status is Status.OPTIMAL
    assert search(case.source, case.target, case.shape, case.itemsize, V100).cost_ns == exact.cost_ns


def test_a_search_that_leaves_something_out_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = State.natural(RVD(8, 1, (1,)), range(8)), State.natural(RVD(8, 1, (1,)), range(8, 16))
    monkeypatch.setattr("partita.formulation.rvd.search.allowed", lambda a, b: frozenset({"RD"}))
    forget()
    lame = search(source, target, (2**20,), 4, V100).cost_ns
    forget()
    assert optimum(source, target, (2**20,), 4, V100).cost_ns < lame


def test_more_layers_find_nothing_more_and_fewer_find_less() -> None:
    """Addends of one server to copies on another take a transition on each side."""
    source, target = State.natural(RVD(1, 4, (1,)), range(4)), State.natural(RVD(4, 1, (1,)), range(8, 12))
    few, enough, many = (optimum(source, target, (2**20,), 4, V100, layers=n) for n in (1, 3, 5))
    assert few.cost_ns == enough.cost_ns == many.cost_ns == search(source, target, (2**20,), 4, V100).cost_ns
    source = State.natural(RVD(1, 16, (1,)), range(16))
    target = State.natural(RVD(16, 1, (1,)), range(16))
    assert (
        optimum(source, target, (1,), 4, V100, layers=1).cost_ns < send_receive(source, target, (1,), 4, V100).cost_ns
    )


def test_without_time_nothing_is_proved() -> None:
    source, target = State.natural(RVD(1, 8, (1,)), range(8)), State.natural(RVD(8, 1, (1,)), range(8, 16))
    stopped = optimum(source, target, (2**20,), 4, V100, limits=Limits(seconds=0.0))
    assert stopped.status is Status.FEASIBLE
    assert (
        stopped.cost_ns == send_receive(source, target, (2**20,), 4, V100).cost_ns
        and stopped.bound_ns < stopped.cost_ns
    )


def test_states_are_sets_and_sequences() -> None:
    """Two digits in R, V and one dim: sets of R and V, 2 orders in the dim."""
    found = list(every_roles(2, D + 1))
    assert len(found) == len(set(found)) == 4 + 2 * 2 + 2
    assert ((), (), (1, 0)) in found and ((0,), (1,), ()) in found
