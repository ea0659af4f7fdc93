"""Prices of steps and programs: by hand, and the closed form against messages routed one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.placement.placement import of_rows, placements
from partita.formulation.reduction.cost import exchange_price, listed, program_price, routed, step_price, symmetric
from partita.formulation.reduction.program import Collective, Reduction, Step, flat
from partita.model.errors import PartitaError
from partita.model.machine.collective_price import FREE
from partita.model.machine.link_kinds import Switch
from partita.model.machine.machine import PROFILES, Device, Level, Machine
from partita.model.machine.wiring import Wiring

AR, RS, AG, R, B = Collective
DEVICE = Device("d", 10, 1, 1e9, {"float32": 1e9}, 0.5, 5.0)
NAMES = ("rack", "node", "gpu", "core")


def machine(*levels: tuple[int, float, float], collectives: str = "nccl-ring") -> Machine:
    """Levels of (size, bytes per ns of a unit, latency in ns)."""
    names = NAMES[-len(levels) - 1 : -1] if len(levels) < 4 else NAMES
    named = tuple(Level(n, size, rate * 1e9, ns) for n, (size, rate, ns) in zip(names, levels, strict=True))
    return Machine("m", named, DEVICE, collectives)


TWO = machine((2, 4, 1000), (4, 8, 10))
ALL = Reduction(of_rows([(2, 4)]), (0,))
ACROSS = Reduction(of_rows([(2, 1), (1, 4)]), (0,))
WITHIN = Reduction(of_rows([(2, 1), (1, 4)]), (1,))


# By hand


@pytest.mark.parametrize(
    ("reduction", "step", "latency", "rate"),
    [
        (WITHIN, Step(AR, 0, 0), 2 * 3 * 10, 2 * 3 / 4 / 8),
        (WITHIN, Step(RS, 0, 0), 3 * 10, 3 / 4 / 8),
        (WITHIN, Step(AG, 0, 0), 3 * 10, 3 / 4 / 8),
        (WITHIN, Step(B, 0, 0), 3 * 10, 1 / 8),
        (WITHIN, Step(R, 0, 0), 3 * 10, 1 / 8),
        (ACROSS, Step(AR, 0, 0), 2 * 1000, 4 * 1 / 4),  # four groups share the node's link
        (ALL, Step(AR, 0, 0), 2 * 1000, 4 * 1 / 4),
        (ALL, Step(AR, 0, 0, zero=(1,)), 2 * 1000, 1 / 4),  # one of them only
        (ALL, Step(AR, 0, 1), 2 * (1000 + 2 * 3 * 10), 2 * 7 / 8 / 4),  # a ring of eight enters a node once
        (ALL, Step(AR, 1, 1), 2 * 3 * 10, 2 * 3 / 4 / 8),
    ],
)
def test_steps_of_a_ring(reduction: Reduction, step: Step, latency: float, rate: float) -> None:
    price = step_price(TWO, reduction, step, 1.0)
    assert (price.latency_ns, price.ns_per_byte) == pytest.approx((5 + latency, rate))
    part = step_price(TWO, reduction, step, 0.25)
    assert (part.latency_ns, part.ns_per_byte) == pytest.approx((5 + latency, rate / 4))


def test_a_tree_over_two_nodes_passes_the_card_once() -> None:
    price = step_price(TWO, ALL, Step(AR, 0, 1), 1.0, "nccl-tree")
    assert (price.latency_ns, price.ns_per_byte) == pytest.approx((5 + 2 * (1000 + 3 * 10), 1 / 4))
    assert step_price(TWO, ALL, Step(RS, 0, 1), 1.0, "nccl-tree") == step_price(TWO, ALL, Step(RS, 0, 1), 1.0)


def test_a_switch_adds_up_inside_a_node() -> None:
    """It reads D of each member, who reads a fourth of the sums; each writes that to the switch, and receives D."""
    price = step_price(TWO, WITHIN, Step(AR, 0, 0), 1.0, "nccl-nvls")
    assert (price.latency_ns, price.ns_per_byte) == pytest.approx((5 + 2 * 10, 5 / 4 / 8))
    across = step_price(TWO, ALL, Step(AR, 0, 1), 1.0, "nccl-nvls")
    assert across == step_price(TWO, ALL, Step(AR, 0, 1), 1.0, "nccl-tree")


def test_gloo() -> None:
    gloo = replace(TWO, collectives="gloo")
    assert step_price(gloo, ALL, Step(RS, 0, 1), 1.0) == step_price(TWO, ALL, Step(AR, 0, 1), 1.0)
    # Rounds of 1, 2 and 4 messages that mix: the link between the nodes is full but for the first eighth.
    price = step_price(gloo, ALL, Step(B, 0, 1), 1.0)
    assert (price.latency_ns, price.ns_per_byte) == pytest.approx((5 + 10 + 10 + 1000, 1 / 8 + 4 / 4))


def test_a_program_adds_up_its_steps_with_what_is_left() -> None:
    scattered = (Step(RS, 1, 1), Step(AR, 0, 0), Step(AG, 1, 1))
    price = program_price(TWO, ALL, scattered)
    inside = 2 * 3 / 4 / 8
    assert (price.latency_ns, price.ns_per_byte) == pytest.approx((3 * 5 + 2 * 1000 + 2 * 30, inside + 4 * (1 / 4) / 4))
    rooted = program_price(TWO, ALL, (Step(R, 1, 1), Step(AR, 0, 0, (1,)), Step(B, 1, 1)))
    assert rooted.ns_per_byte == pytest.approx(1 / 8 + 1 / 4 + 1 / 8)
    assert program_price(TWO, Reduction(of_rows([(2, 4), (1, 1)]), (1,)), ()) == FREE


def test_three_levels() -> None:
    """A ring over racks alone: all six devices of a rack share its link, and the three of a node the node's."""
    where = machine((2, 1, 0), (2, 1, 0), (3, 100, 0))
    step = Step(AR, 0, 0)
    reduction = Reduction(of_rows([(2, 1, 1), (1, 2, 3)]), (0,))
    assert step_price(where, reduction, step, 1.0).ns_per_byte == pytest.approx(6)
    wide = machine((2, 10, 0), (2, 1, 0), (3, 100, 0))
    assert step_price(wide, reduction, step, 1.0).ns_per_byte == pytest.approx(3)


def test_exchanges() -> None:
    price = exchange_price(TWO, ALL, "all_to_all")
    assert (price.latency_ns, price.ns_per_byte) == pytest.approx((5 + 1000 + 30, 4 * 4 / 8 / 4))
    assert exchange_price(TWO, WITHIN, "send").ns_per_byte == pytest.approx(1 / 8)
    assert exchange_price(TWO, ALL, "send").ns_per_byte == pytest.approx(1 / 4)  # one device sends to the other node
    assert exchange_price(TWO, Reduction(of_rows([(2, 4), (1, 1)]), (1,)), "send") == FREE


# Any machine of switches


@st.composite
def cases(draw: st.DrawFn) -> tuple[Machine, Reduction, tuple[int, int, tuple[int, ...]], str, str]:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).filter(lambda x: 1 < _product(x) <= 96))
    levels = [(size, draw(st.integers(1, 9)), draw(st.integers(0, 9))) for size in sizes]
    placement = draw(st.sampled_from(placements(sizes)))
    axes = draw(st.sets(st.integers(0, len(placement.sizes) - 1), min_size=1))
    reduction = Reduction(placement, tuple(sorted(axes)))
    depth = len(reduction.sizes)
    first = draw(st.integers(0, depth - 1))
    last = draw(st.integers(first, depth - 1))
    others = [level for level in range(depth) if not first <= level <= last]
    zero = tuple(level for level in others if draw(st.booleans()))
    kind = draw(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "all_to_all"]))
    return machine(*levels), reduction, (first, last, zero), kind, draw(st.sampled_from(PROFILES))


def _product(sizes: list[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


@settings(max_examples=300, deadline=None)
@given(cases())
def test_the_closed_form_is_what_routing_every_message_gives(case: tuple) -> None:  # type: ignore[type-arg]
    where, reduction, over, kind, profile = case
    closed = symmetric(where, reduction.row, over, kind, profile)
    every = routed(where, reduction, over, kind, profile)
    assert closed.latency_ns == every.latency_ns
    assert closed.ns_per_byte == pytest.approx(every.ns_per_byte, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_wiring_that_is_a_switch_changes_nothing(case: tuple) -> None:  # type: ignore[type-arg]
    where, reduction, over, kind, profile = case
    wired = replace(where, levels=tuple(replace(x, wiring=Wiring((Switch(x.bandwidth, 1),))) for x in where.levels))
    closed = symmetric(where, reduction.row, over, kind, profile)
    assert routed(wired, reduction, over, kind, profile).ns_per_byte == pytest.approx(closed.ns_per_byte, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_members_of_one_axis_have_one_order(case: tuple) -> None:  # type: ignore[type-arg]
    """Listed groups of any machine of switches cost what the closed form says."""
    where, reduction, over, kind, profile = case
    one = Reduction(
        of_rows([reduction.row, tuple(h // m for h, m in zip(where.hierarchy, reduction.row, strict=True))]), (0,)
    )
    closed = symmetric(where, one.row, over, kind, profile)
    by_list = listed(where, replace(one, numbering="axes"), over, kind, profile)
    assert (closed.latency_ns, closed.ns_per_byte) == pytest.approx((by_list.latency_ns, by_list.ns_per_byte))


def test_members_numbered_by_axes_may_span_nodes() -> None:
    """Axis 0 has both digits inside of nodes, axis 1 is the nodes: the inner two of (2, 2) are in two nodes."""
    where = machine((2, 1, 0), (4, 100, 0))
    matrix = [(1, 4), (2, 1)]
    levels, axes = Reduction(of_rows(matrix), (0, 1)), Reduction(of_rows(matrix), (0, 1), "axes")
    assert levels.sizes == axes.sizes == (2, 4)
    assert sorted(axes.members()[0, :4]) == [0, 1, 4, 5]
    inside = Step(AR, 1, 1)
    assert step_price(where, levels, inside, 1.0).ns_per_byte == pytest.approx(2 * 3 / 4 / 100)
    assert step_price(where, axes, inside, 1.0).ns_per_byte == pytest.approx(2 * 2 * 3 / 4)  # two groups share the link
    assert step_price(where, axes, Step(AR, 0, 1), 1.0) == step_price(where, levels, Step(AR, 0, 1), 1.0)


def test_parts_of_unequal_size_are_refused() -> None:
    """Runs of two in 3 x 2: 0 0, 0 1 | 1 0, 1 1 lie in a node each or in two."""
    where = machine((2, 1, 0), (3, 1, 0))
    crossed = Reduction(of_rows([(1, 3), (2, 1)]), (0, 1), "axes")
    with pytest.raises(PartitaError, match="unequal parts"):
        step_price(where, crossed, Step(AR, 1, 1), 1.0)


def test_rounds_of_gloo_s_broadcast_mix_over_several_levels() -> None:
    """On 4 nodes of 4, node 0 sends 4 D to node 1 and 4 D to node 2 at once, and then node 1 sends 4 D to node 3."""
    where = machine((4, 1, 0), (4, 10**6, 0))
    whole = Reduction(of_rows([(4, 4)]), (0,))
    mixed = step_price(where, whole, Step(Collective.BROADCAST, 0, 1), 1.0, "gloo").ns_per_byte
    assert mixed == pytest.approx(12 / where.levels[0].bandwidth * 1e9, rel=1e-4)
    nodes = step_price(where, whole, Step(Collective.BROADCAST, 0, 0), 1.0, "gloo").ns_per_byte
    assert nodes == pytest.approx(8 / where.levels[0].bandwidth * 1e9, rel=1e-4)  # four groups, round by round


# The V100 servers of P²


SERVERS = Machine.load("gcp-v100", nodes=4)
NVLINK, PCIE, CARD = 67.5, 9.8, 11.2  # bytes per ns


def rate(rows: list[tuple[int, ...]], axis: int, profile: str = "nccl-ring") -> float:
    reduction = Reduction(of_rows(rows), (axis,))
    return step_price(SERVERS, reduction, flat(reduction.sizes)[0], 1.0, profile).ns_per_byte


def test_groups_on_the_ring_of_a_v100_server() -> None:
    # The closed ring of eight turns both ways, a pair of neighbours has one cable.
    assert rate([(1, 8), (4, 1)], 0) == pytest.approx(2 * 7 / 8 / (2 * NVLINK))
    assert rate([(4, 4), (1, 2)], 1) == pytest.approx(1 / NVLINK)
    # Four neighbours close their ring over PCIe, in both directions together.
    assert rate([(4, 2), (1, 4)], 1) == pytest.approx(2 * 3 / 4 / PCIE)
    # So does half of a reduce and of a broadcast, one way.
    four = Reduction(of_rows([(4, 2), (1, 4)]), (1,))
    assert program_price(SERVERS, four, (Step(R, 0, 0), Step(B, 0, 0))).ns_per_byte == pytest.approx(2 / 2 / PCIE)
    # On the closed ring of eight both halves pass NVLink only.
    eight = Reduction(of_rows([(1, 8), (4, 1)]), (0,))
    assert step_price(SERVERS, eight, Step(B, 0, 0), 1.0).ns_per_byte == pytest.approx(1 / (2 * NVLINK))
    # Devices four apart: both of a switch send and receive everything.
    assert rate([(1, 2), (4, 4)], 0) == pytest.approx(2 * 2 * 1 / PCIE)
    # A tree is a chain in one server and needs no closing edge.
    assert rate([(4, 2), (1, 4)], 1, "nccl-tree") == pytest.approx(1 / NVLINK)


def test_groups_between_v100_servers_share_the_card() -> None:
    assert rate([(1, 8), (4, 1)], 1) == pytest.approx(8 * 2 * 3 / 4 / CARD)
    # One group passes the PCIe switches of two devices only, which are slower than the card.
    assert rate([(4, 8)], 0) == pytest.approx(2 * 31 / 32 / PCIE)


# Refusals


@pytest.mark.parametrize(
    ("reduction", "step", "profile", "words"),
    [
        (ALL, Step(AR, 0, 1), "mpi", r"unknown collectives 'mpi'; known: nccl-ring, nccl-tree, nccl-nvls, gloo"),
        (ALL, Step(AR, 0, 2), None, "levels 0 to 2"),
        (ALL, Step(AR, 1, 0), None, "levels 1 to 0"),
        (ALL, Step(AR, 0, 0, (0,)), None, r"levels 0 to 0 \(0 of \(0,\)\)"),
        (Reduction(of_rows([(3, 4)]), (0,)), Step(AR, 0, 1), None, "does not fit the hierarchy"),
        (Reduction(of_rows([(2, 4, 1)]), (0,)), Step(AR, 0, 1), None, "does not fit the hierarchy"),
    ],
)
def test_steps_that_do_not_fit(reduction: Reduction, step: Step, profile: str | None, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        step_price(TWO, reduction, step, 1.0, profile)
