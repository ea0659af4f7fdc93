"""Prices: those of the planner where groups fill the machine, by hand where they do not, bounds that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import step_price
from partita.formulation.reduction.program import Collective, Reduction, Step
from partita.formulation.rvd.prices import TransitionPrices
from partita.model.machine.machine import Machine

V100 = Machine.load("v100-32gb", nodes=4)
KINDS = {kind.value.replace("-", "_"): kind for kind in Collective}


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("machine", ["v100-32gb", "gcp-v100", "dgx-a100"])
@pytest.mark.parametrize("rows", [((1, 8), (4, 1)), ((4, 1), (1, 8)), ((2, 2), (2, 4)), ((4, 8), (1, 1))])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"])
def test_groups_of_the_whole_machine_cost_what_the_planner_pays(
    machine: str, rows: tuple[tuple[int, int], ...], kind: str, measured: bool
) -> None:
    """Row 0 is reduced; its groups are those of every other coordinate."""
    known = Machine.load(machine, nodes=4)
    if measured:  # what `partita profile` names, and gathers that reach half of the bandwidth
        levels = tuple(replace(level, scatter_share=0.5) for level in known.levels)
        known = replace(known, levels=levels, collectives="nccl")
    reduction = Reduction(of_rows(rows), (0,))
    depth = len(reduction.sizes)
    planner = step_price(known, reduction, Step(KINDS[kind], 0, depth - 1, ()), 1.0)
    groups = reduction.members().reshape(-1, int(np.prod(reduction.sizes)))
    ours = TransitionPrices(known).collective(kind, groups)
    assert ours.latency_ns == pytest.approx(planner.latency_ns)
    assert ours.ns_per_byte == pytest.approx(planner.ns_per_byte)


def test_rounds_of_gloo_s_broadcast_mix_as_the_planner_says() -> None:
    known, reduction = Machine.load("v100-32gb", nodes=2), Reduction(of_rows(((2, 4), (1, 2))), (0,))
    gloo = replace(known, collectives="gloo")
    groups = reduction.members().reshape(-1, 8)
    for kind in ("broadcast", "reduce"):
        planner = step_price(gloo, reduction, Step(KINDS[kind], 0, 1, ()), 1.0)
        ours = TransitionPrices(gloo).collective(kind, groups)
        assert (ours.latency_ns, ours.ns_per_byte) == pytest.approx((planner.latency_ns, planner.ns_per_byte))


def test_a_root_elsewhere_turns_the_ring() -> None:
    """From the middle of a node the way round leaves and enters it again."""
    prices, (node, gpu) = TransitionPrices(V100), (V100.latency_ns(0), V100.latency_ns(1))
    first, middle = (prices.collective("broadcast", np.array([group])) for group in ([0, 1, 8, 9], [1, 0, 8, 9]))
    assert first.latency_ns - V100.device.launch_ns == node + 2 * gpu
    assert middle.latency_ns - V100.device.launch_ns == 2 * node + gpu
    assert first.ns_per_byte == middle.ns_per_byte


def test_fewer_groups_on_a_card_cost_less() -> None:
    prices = TransitionPrices(V100)
    one, all_ = (np.array([[i, 8 + i] for i in range(count)]) for count in (1, 8))
    assert prices.collective("all_gather", all_).ns_per_byte == 8 * prices.collective("all_gather", one).ns_per_byte


def test_equal_groups_elsewhere_cost_the_same() -> None:
    prices = TransitionPrices(V100)
    here, there = np.array([[0, 1], [2, 3]]), np.array([[16, 17], [18, 19]])
    assert prices.collective("all_reduce", here) is prices.collective("all_reduce", there)


def test_sends_share_a_card_and_wait_for_their_device() -> None:
    prices, launch, mb = TransitionPrices(V100), V100.device.launch_ns, 10**6
    inside, across = V100.latency_ns(1), V100.latency_ns(0)
    assert prices.sends([0], [1], [mb]) == launch + inside + -(-mb * 10**9 // 135 // 10**9)
    one = prices.sends([0], [8], [mb])
    assert one == pytest.approx(launch + across + mb / 11.25, abs=1)
    # Eight from one server share its card; to other servers each waits for its latency.
    assert prices.sends(list(range(8)), list(range(8, 16)), [mb] * 8) == pytest.approx(
        launch + across + 8 * mb / 11.25, abs=1
    )
    assert prices.sends([0, 0], [8, 16], [mb] * 2) == pytest.approx(launch + 2 * across + 2 * mb / 11.25, abs=1)
    assert prices.sends([], [], []) == 0


def test_what_stays_costs_a_copy() -> None:
    prices = TransitionPrices(V100)
    assert prices.local(0) == 0
    assert prices.local(810_000) == V100.device.launch_ns + 2000


def test_a_flat_group_pays_for_the_hops_from_member_to_member() -> None:
    """Three on one node and one on the next: no grid of units."""
    line = TransitionPrices(V100).collective("all_gather", np.array([[0, 1, 2, 8]]))
    assert line.latency_ns == V100.device.launch_ns + 2 * V100.latency_ns(1) + V100.latency_ns(0)


def test_distance() -> None:
    prices = TransitionPrices(V100)
    assert [prices.distance(0, other) for other in (0, 1, 8)] == [0, 1, 2]
