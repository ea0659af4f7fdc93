"""Prices of collectives, on machines whose numbers make them easy to check by hand."""

import numpy as np
import pytest

from partita.model.collectives import FREE, KINDS, CollectivePrice, Kind, joint, price
from partita.model.machine import Device, Level, Machine

DEVICE = Device("d", 10, 1, 1e9, {"float32": 1e9}, 0.5, 1.0)


def machine(*levels: tuple[int, float, float]) -> Machine:
    """Levels of (size, bytes per ns of a unit, latency in ns)."""
    named = tuple(Level(f"l{i}", size, rate * 1e9, latency) for i, (size, rate, latency) in enumerate(levels))
    return Machine("m", named, DEVICE)


RING = machine((8, 2, 100))  # one level: 2 bytes/ns a device, 100 ns a message
TWO = machine((2, 4, 1000), (4, 8, 10))  # a node has 4 bytes/ns, 1 for each of its 4 devices; a device has 8 inside

D = 8_000_000


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_reduce", 2 * 7 * D // 8 // 2 + 14 * 100),
        ("reduce_scatter", 7 * D // 8 // 2 + 7 * 100),
        ("all_gather", 7 * D // 8 // 2 + 7 * 100),
        ("all_to_all", 7 * D // 8 // 2 + 7 * 100),
        ("broadcast", D // 2 + 7 * 100),
        ("send", D // 2 + 100),
    ],
)
def test_ring_of_eight(kind: Kind, expected: int) -> None:
    assert price(RING, kind, (8,)).ns(D) == expected


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        # inside a node: 3/4 D over 8 bytes/ns
        ("all_gather", (1, 4), 3 * D // 4 // 8 + 3 * 10),
        # one device in each node, four such groups at once: half of D over a quarter of the node's link
        ("all_gather", (2, 1), D // 2 // 1 + 1000),
        # both: outside, a quarter of D (half of it travels); then D inside
        ("all_gather", (2, 4), D // 4 // 2 // 1 + 1000 + 3 * D // 4 // 8 + 3 * 10),
        ("all_gather", (2, 2), D // 2 // 2 // 1 + 1000 + D // 2 // 8 + 10),
        ("all_reduce", (2, 4), 2 * (D // 8 + 1000 + 3 * D // 32 + 30)),
        # half of D goes to the other node, of the other half three quarters to the three neighbours
        ("all_to_all", (2, 4), D // 2 // 1 + 1000 + D // 2 * 3 // 4 // 8 + 3 * 10),
        # every device of a node fetches a quarter of D from outside, then D inside
        ("broadcast", (2, 4), D // 4 // 1 + 1000 + D // 8 + 3 * 10),
        # the neighbour may be in the other node
        ("send", (2, 4), D // 1 + 1000),
        ("send", (1, 4), D // 8 + 10),
    ],
)
def test_two_levels(kind: Kind, row: tuple[int, ...], expected: int) -> None:
    assert price(TWO, kind, row).ns(D) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_is_free(kind: Kind) -> None:
    assert price(TWO, kind, (1, 1)) == FREE
    assert price(TWO, kind, (1, 1)).ns(10**12) == 0


def test_all_reduce_is_reduce_scatter_and_all_gather() -> None:
    for row in [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]:
        assert price(TWO, "all_reduce", row) == price(TWO, "reduce_scatter", row) + price(TWO, "all_gather", row)


def test_a_gather_over_two_axes_in_turn_costs_what_the_joint_gather_costs() -> None:
    outer, inner = (2, 1), (1, 4)
    both = price(TWO, "all_gather", joint([outer, inner]))
    # over the outer axis first: each device then holds a quarter of D
    assert both.ns(D) == price(TWO, "all_gather", outer).ns(D // 4) + price(TWO, "all_gather", inner).ns(D)


def test_a_larger_group_never_gathers_faster() -> None:
    flat = machine((16, 1, 5))
    times = [price(flat, "all_reduce", (m,)).ns(D) for m in (1, 2, 4, 8, 16)]
    assert times == sorted(times) and len(set(times)) == 5


def test_joint_rows_multiply_elementwise() -> None:
    assert joint([(2, 1, 3), (1, 4, 2)]) == (2, 4, 6)
    assert joint([(2, 4)]) == (2, 4)


def test_times_round_up() -> None:
    third = CollectivePrice(0.0, 1 / 3)
    assert [third.ns(n) for n in range(7)] == [0, 1, 1, 1, 2, 2, 2]  # 3 * (1/3) is exactly 1, whatever the floats say
    assert CollectivePrice(0.1, 0.0).ns(0) == 1
    with pytest.raises(ValueError, match="-1 bytes"):
        third.ns(-1)


def test_arrays_agree_with_scalars() -> None:
    rng = np.random.default_rng(3)
    sizes = np.concatenate([rng.integers(0, 10**6, 2000), rng.integers(0, 10**13, 2000)])
    for kind in KINDS:
        line = price(TWO, kind, (2, 4))
        assert line.ns_array(sizes).tolist() == [line.ns(int(size)) for size in sizes]


@pytest.mark.parametrize("row", [(8,), (2, 4, 1), (3, 1), (2, 8), (0, 4)])
def test_rows_that_do_not_fit(row: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not fit the hierarchy"):
        price(TWO, "all_reduce", row)


def test_unknown_collective() -> None:
    with pytest.raises(ValueError, match="unknown collective 'gossip'; known: all_reduce"):
        price(TWO, "gossip", (2, 4))  # type: ignore[arg-type]
