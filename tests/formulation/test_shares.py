"""Shares of a machine: which divisions there are, and what their stages send each other."""

from itertools import product
from math import prod

import numpy as np
import pytest

from partita import Machine, PartitaError
from partita.codegen.planner.pipeline_space import MOST_WAYS, few_shares
from partita.formulation.pipeline.shares import (
    blocks,
    divisions,
    lies_in_units,
    share_row,
    share_rows,
    shares_of,
    ways,
)
from partita.formulation.pipeline.stage_transfers import received_price, transfer_price
from partita.formulation.placement.placement import of_rows, ranks
from partita.model.machine.machine import stage_machine


@pytest.mark.parametrize("levels", [(4,), (2, 4), (6,), (2, 3), (2, 2, 2)])
def test_shares_are_adjacent_devices_of_the_stage_machine(levels: tuple[int, ...]) -> None:
    for share in shares_of(levels):
        row = share_row(levels, share)
        assert row is not None
        inner = stage_machine(Machine.adhoc(levels), row).hierarchy
        assert prod(inner) == share
        numbers = ranks(of_rows((row, inner))).reshape(-1, share)
        assert numbers.tolist() == np.arange(prod(levels)).reshape(-1, share).tolist()


@pytest.mark.parametrize("levels", [(4,), (2, 4), (6,), (2, 3)])
@pytest.mark.parametrize("stages", [None, 3])
def test_all_divisions_are_found(levels: tuple[int, ...], stages: int | None) -> None:
    shares, every = shares_of(levels), prod(levels)
    counts = range(2, every + 1) if stages is None else [stages]
    sums = (way for count in counts for way in product(shares, repeat=count) if sum(way) == every)
    wanted = {way for way in sums if all(lies_in_units(levels, block) for block in blocks(way))}
    assert {*divisions(levels, shares, stages)} == wanted
    assert len([*divisions(levels, shares, stages)]) == len(wanted) == ways(levels, shares, stages)


@pytest.mark.parametrize(
    ("levels", "stages", "least"),
    [((16,), None, 1), ((4, 8), None, 2), ((48,), None, 4), ((96,), None, 8), ((96,), 3, 1), ((2, 8), 16, 1)],
)
def test_no_search_has_too_many_divisions(levels: tuple[int, ...], stages: int | None, least: int) -> None:
    """The smallest shares are left out, which on 48 devices at one switch were divided in 388,764 ways."""
    shares = few_shares(levels, stages)
    assert (shares[-1], 0 < ways(levels, shares, stages) <= MOST_WAYS) == (least, True)
    assert shares == shares_of(levels)[: len(shares)]


def test_shares_across_units_are_refused() -> None:
    assert share_rows((2, 4), (4, 2, 1, 1)) == ((2, 1), (2, 2), (2, 4), (2, 4))
    with pytest.raises(PartitaError, match="devices 2 to 5 of a machine of 2x4"):
        share_rows((2, 4), (2, 4, 2))
    for shares in ((3, 5), (8, 0), (12, -4), (4, 2)):
        with pytest.raises(PartitaError, match=f"stages of {shares[0]}, {shares[1]} devices on a machine of 2x4"):
            share_rows((2, 4), shares)


def test_messages_are_as_many_as_the_other_side_has_partners() -> None:
    """Launch and latency once a message; a receiver's bytes pass its link once, whoever has them."""
    machine = Machine.adhoc((8,))
    one = received_price(machine, range(4), range(4, 8))
    assert one.latency_ns == transfer_price(machine, (2,)).latency_ns
    assert one.ns_per_byte == pytest.approx(transfer_price(machine, (2,)).ns_per_byte)
    gathered = received_price(machine, range(4), range(4, 5))
    assert gathered.latency_ns == 4 * one.latency_ns
    assert gathered.ns_per_byte == pytest.approx(one.ns_per_byte)
    spread = received_price(machine, range(4, 5), range(4))
    assert spread.latency_ns == 4 * one.latency_ns
    assert spread.ns_per_byte == pytest.approx(4 * one.ns_per_byte)
    nodes = Machine.adhoc((2, 4))
    assert (
        received_price(nodes, range(2), range(2, 4)).latency_ns
        < received_price(nodes, range(4), range(4, 8)).latency_ns
    )
