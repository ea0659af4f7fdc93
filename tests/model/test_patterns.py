"""What the algorithms of NCCL and gloo send: every member gets and gives what the collective needs."""

import math

import numpy as np
import pytest

from partita.model.machine.collective_patterns import PATTERNS, Shape, double_tree, doubling, exchange, from_root, ring
from partita.model.machine.machine import PROFILES

SIZES = [(2,), (3,), (8,), (2, 2), (3, 2), (2, 5), (4, 3), (2, 3, 2)]


def received(shape: Shape, members: int) -> list[float]:
    return np.bincount(shape.target, shape.share, members).tolist()


def total(profile: str, kind: str, sizes: tuple[int, ...], across: int = 0) -> float:
    return sum(float(x.shape.share.sum()) * x.share for x in PATTERNS[profile][kind](sizes, across))


@pytest.mark.parametrize("sizes", SIZES)
def test_bytes_of_all_members_together(sizes: tuple[int, ...]) -> None:
    m = math.prod(sizes)
    for profile in PROFILES:
        assert total(profile, "all_gather", sizes) == pytest.approx(m - 1)
        assert total(profile, "all_to_all", sizes) == pytest.approx(m - 1)
        assert total(profile, "broadcast", sizes) == pytest.approx(m - 1)
        assert total(profile, "send", sizes) == m
        for across in range(len(sizes) + 1):
            by_switch = profile == "nccl-nvls" and not across
            assert total(profile, "all_reduce", sizes, across) == pytest.approx(m + 1 if by_switch else 2 * (m - 1))
    assert total("nccl-ring", "reduce_scatter", sizes) == pytest.approx(m - 1)
    # gloo reduces everything everywhere, and keeps a part
    assert total("gloo", "reduce_scatter", sizes) == pytest.approx(2 * (m - 1))
    assert total("gloo", "reduce", sizes) == pytest.approx((m - 1) + (m - 1) / m)


@pytest.mark.parametrize("sizes", SIZES)
def test_hops_add_up_to_a_walk_over_all_members(sizes: tuple[int, ...]) -> None:
    assert sum(ring(sizes).hops) == sum(from_root(sizes).hops) == math.prod(sizes) - 1


def test_what_leaves_the_root_goes_both_ways_round() -> None:
    shape = from_root((4,))
    edges = list(zip(shape.source.tolist(), shape.target.tolist(), strict=True))
    assert edges == [(0, 1), (1, 2), (2, 3), (0, 3), (3, 2), (2, 1)]
    assert received(shape, 4) == [0, 1, 1, 1]  # D in halves


def test_hops_by_level() -> None:
    assert ring((2, 4)).hops == (1, 6)  # 1 -> 2 nodes, three neighbours in each
    assert double_tree((4, 8), 1).hops == (2, 7)  # up two steps of a tree of four, along a chain of eight
    assert double_tree((2, 3, 4), 2).hops == (1, 2, 3)
    assert exchange((2, 4)).hops == (1, 3)
    assert [doubling((2, 4), i).hops for i in range(3)] == [(0, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 8, 16, 33])
def test_both_trees_reach_every_node_and_no_node_is_inner_in_both(nodes: int) -> None:
    shape = double_tree((nodes,), 1)
    given, got = np.bincount(shape.source, shape.share, nodes), received(shape, nodes)
    assert given.tolist() == got  # what goes up an edge comes down again
    # A node has at most one parent and two children in one tree, and is a leaf in the other: 4 x D/2.
    assert max(got) <= 2.0 and sum(got) == pytest.approx(2 * (nodes - 1))
    reached, edges = {0}, set(zip(shape.source.tolist(), shape.target.tolist(), strict=True))
    while more := {b for a, b in edges if a in reached} - reached:
        reached |= more
    assert reached == set(range(nodes))


def test_traffic_of_a_node_in_trees_of_two_and_four_nodes() -> None:
    """P²'s V100 systems: 2.30 s over two nodes, 4.57 s over four, on one card a node."""
    assert max(received(double_tree((2,), 1), 2)) == 1.0
    assert max(received(double_tree((4,), 1), 4)) == 2.0


def test_rounds_of_doubling() -> None:
    holders = {0}
    for i in range(3):
        shape = doubling((6,), i)
        assert set(shape.source.tolist()) <= holders
        holders |= set(shape.target.tolist())
    assert holders == set(range(6))


@pytest.mark.parametrize("sizes", SIZES)
def test_an_exchange_sends_as_much_out_of_every_unit_as_all_pairs_do(sizes: tuple[int, ...]) -> None:
    m, shape = math.prod(sizes), exchange(sizes)
    for level in range(len(sizes)):
        inside = math.prod(sizes[level + 1 :])
        apart = shape.source // inside != shape.target // inside
        sent = np.bincount(shape.source[apart] // inside, shape.share[apart])
        assert sent.tolist() == pytest.approx([inside * (m - inside) / m] * (m // inside))
