"""Ranges of coordinates for branches of a sum: what a part of the machine is, and that the best divisions are found."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.formulation.bundles.ranges import divisions, within
from partita.formulation.placement.placement import of_rows
from partita.model.machine.machine import Machine


def test_a_part_of_a_machine_has_its_share_of_outer_links() -> None:
    machine = Machine.adhoc((2, 6))
    part = within(machine, of_rows([(2, 1), (1, 6)]), 1, 4)
    assert part is not None and part[0].hierarchy == (2, 4) and part[1].matrix == ((2, 1), (1, 4))
    shares = [own.bandwidth / level.bandwidth for own, level in zip(part[0].levels, machine.levels, strict=True)]
    assert shares == pytest.approx([2 / 3, 1])
    assert within(machine, of_rows([(2, 6)]), 0, 4) is None  # over two levels


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 20), min_size=5, max_size=5), min_size=2, max_size=3), st.integers(0, 5))
def test_no_division_is_faster(times: list[list[int]], add_ns: int) -> None:
    """Than the first, or than a coordinate for each group, among all ways to divide five coordinates."""
    count, every, alone = len(times), list[int](), list[int]()
    for places in product(range(count), repeat=count):
        groups = [[b for b in range(count) if places[b] == place] for place in {*places}]
        for shares in product(range(1, 5), repeat=len(groups)):
            if len(groups) > 1 and sum(shares) <= 5:
                pairs = zip(groups, shares, strict=True)
                every.append(max(sum(times[b][s - 1] for b in g) + add_ns * (len(g) - 1) for g, s in pairs))
                alone += every[-1:] if max(shares) == 1 else []
    found = divisions(count, 5, lambda branch, share: (times[branch][share - 1], 1), add_ns)
    assert min([*(x.time for x in found), *alone]) == min(every)
    assert all(one.time < other.time and one.size > other.size for one, other in pairwise(found))
    assert all(max(x.shares) > 1 and x.time in every for x in found)
