"""Messages that share links: wiring of one level, routes, the busiest resource."""

import sys

import numpy as np
import pytest

from partita.model.errors import PartitaError
from partita.model.machine.link_flows import busiest, routes, streamed
from partita.model.machine.link_kinds import Link, SharedMedium, Switch
from partita.model.machine.machine import Device, Level, Machine
from partita.model.machine.wiring import Wiring

DEVICE = Device("d", 10, 1, 1e9, {"float32": 1e9}, 0.5, 1.0)
RING = Link(20.0, ((0, 1), (1, 2), (2, 3), (3, 0)))
WIRED = Wiring((RING, Switch(4.0, 2)))
"""Four units: fast links between neighbours, 0 and 2 as well as 1 and 3 only over the switches of pairs."""


def machine(wiring: Wiring | None, size: int = 4) -> Machine:
    return Machine("m", (Level("node", 2, 3.0, 0.0), Level("gpu", size, 10.0, 0.0, wiring)), DEVICE)


def seconds(where: Machine, *flows: tuple[int, int, float]) -> float:
    source, target, size = zip(*flows, strict=True)
    return busiest(where, np.array(source), np.array(target), np.array(size, dtype=float))


def test_a_switch() -> None:
    where = machine(None)
    assert seconds(where, (0, 1, 10)) == 1.0
    assert seconds(where, (0, 1, 10), (1, 0, 10)) == 1.0  # directions do not share
    assert seconds(where, (0, 1, 10), (2, 1, 10)) == 2.0
    assert seconds(where, (0, 4, 10), (1, 5, 10)) == 20 / 3  # both leave the node
    assert seconds(where, (0, 0, 10)) == 0.0


def test_direct_links_go_before_switches() -> None:
    where = machine(WIRED)
    assert seconds(where, (0, 1, 10)) == 0.5
    assert seconds(where, (0, 1, 10), (1, 0, 10), (1, 2, 10), (2, 3, 10), (3, 0, 10)) == 0.5
    assert seconds(where, (0, 2, 10)) == 2.5
    assert seconds(where, (0, 2, 10), (1, 3, 10)) == 5.0  # one uplink for units 0 and 1
    assert seconds(where, (0, 2, 10), (3, 1, 10)) == 2.5  # the other direction
    assert seconds(where, (0, 2, 10), (4, 6, 10)) == 2.5  # another node


def test_both_directions_can_share_an_uplink() -> None:
    where = machine(Wiring((RING, Switch(4.0, 2, duplex=False))))
    assert seconds(where, (0, 2, 10), (3, 1, 10)) == 5.0
    assert seconds(where, (0, 2, 10)) == 2.5


def test_a_medium_is_shared_by_all_that_has_no_link() -> None:
    where = machine(Wiring((RING, SharedMedium(2.0))))
    assert seconds(where, (0, 1, 10)) == 0.5
    assert seconds(where, (0, 2, 10)) == 5.0
    assert seconds(where, (0, 2, 10), (1, 3, 10), (3, 1, 10)) == 15.0
    assert seconds(where, (0, 2, 10), (4, 6, 10)) == 5.0  # another node has its own
    assert seconds(where, (0, 4, 10), (1, 3, 10)) == 10.0  # what leaves the node passes it, at either end


def test_what_leaves_the_node_climbs_the_switches() -> None:
    where = machine(Wiring((RING, Switch(1.0, 2), Switch(8.0, 1))))
    assert seconds(where, (0, 4, 10)) == 10.0
    assert seconds(where, (0, 4, 10), (2, 6, 10)) == 10.0
    assert seconds(where, (0, 4, 10), (1, 5, 10)) == 20.0


def test_messages_under_way_share_fairly_and_wait_for_those_before() -> None:
    where = machine(None)  # 3 bytes/s between nodes, 10 inside

    def done(*flows: tuple[int, int, int]) -> float:
        source, target, after = (np.array(x) for x in zip(*flows, strict=True))
        return streamed(where, source, target, 10.0, after)

    assert done((0, 1, -1)) == pytest.approx(1.0)
    assert done((0, 1, -1), (1, 2, 0)) == pytest.approx(2.0)
    assert done((0, 4, -1), (1, 5, -1)) == pytest.approx(20 / 3)  # both share the node's link
    assert done((0, 4, -1), (0, 1, -1)) == pytest.approx(10 / 3)  # what a link leaves is the other's
    assert done((0, 4, -1), (1, 5, -1), (4, 6, 0)) == pytest.approx(20 / 3 + 1)  # both have come late


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("inside", [10.0, 1e30, sys.float_info.max])
@pytest.mark.parametrize("seed", range(20))
def test_messages_all_come_whatever_rounding_does(seed: int, inside: float) -> None:
    """Not before the busiest resource is done, and not after one message at a time would be."""
    rng = np.random.default_rng(seed)
    wirings = (None, Wiring((SharedMedium(inside),)), Wiring((Switch(inside, 2),)))
    node = Level("node", 2, float(rng.random()), 0.0)
    where = Machine("m", (node, Level("gpu", 4, inside, 0.0, wirings[seed % 3])), DEVICE)
    source = rng.integers(0, 8, 12)
    target = (source + rng.integers(1, 8, 12)) % 8
    after = np.array([int(rng.integers(-1, i)) for i in range(12)])
    size = float(rng.random())
    found = streamed(where, source, target, size, after)
    alone = [busiest(where, source[[i]], target[[i]], np.array([size])) for i in range(12)]
    assert busiest(where, source, target, np.full(12, size)) * (1 - 1e-6) <= found <= sum(alone) * (1 + 1e-6)


def test_routes_are_seconds_a_byte_of_every_resource() -> None:
    table = routes(WIRED, 4)
    assert table.shape == (5, 5, 2 * 4 + 2 * 2)
    assert (table[range(5), range(5)] == 0).all()
    assert table[0, 1].max() == 1 / 20 and table[0, 1].sum() == 1 / 20
    assert sorted(table[0, 2][table[0, 2] > 0]) == [0.25, 0.25]  # up from one pair, down to the other


@pytest.mark.parametrize(
    ("wiring", "words"),
    [
        (Wiring((Link(1.0, ((0, 4),)), Switch(1.0, 1))), r"two different units of 0 to 3, not \[0, 4\]"),
        (Wiring((Link(1.0, ((1, 1),)), Switch(1.0, 1))), r"two different units of 0 to 3, not \[1, 1\]"),
        (Wiring((RING, Link(1.0, ((1, 0),)), Switch(1.0, 1))), "units 1 and 0 are linked twice"),
        (Wiring((Switch(1.0, 3),)), "a switch of 3 units does not divide the 4 around it"),
        (Wiring((Switch(1.0, 1), Switch(1.0, 2))), "a switch of 2 units does not divide the 1 around it"),
        (Wiring((RING,)), "units 0 and 2 have no link, switch or shared medium"),
        (Wiring((SharedMedium(1.0), SharedMedium(2.0))), "'shared' has 2 links, a level can have one"),
    ],
)
def test_wiring_that_does_not_join_the_units(wiring: Wiring, words: str) -> None:
    with pytest.raises(PartitaError, match=f"level gpu of m: .*{words}"):
        machine(wiring)


def test_wiring_has_a_limit() -> None:
    with pytest.raises(PartitaError, match="at most 256 units, not 300"):
        machine(Wiring((Switch(1.0, 1),)), 300)


def test_a_fully_linked_level_needs_no_switch() -> None:
    pairs = tuple((a, b) for b in range(4) for a in range(b))
    assert seconds(machine(Wiring((Link(5.0, pairs),))), (0, 2, 10), (1, 3, 10)) == 2.0
