"""The cheapest reduction program: against all enumerated ones, by the rules, on integers, in time."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from partita.bench.truth import P2
from partita.formulation.placement.placement import of_rows, placements
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.enumeration import programs
from partita.formulation.reduction.optimal import MOST_BYTES, envelope, optimal
from partita.formulation.reduction.program import Collective, Reduction, ReductionProgram, Step, flat, groups
from partita.formulation.reduction.semantics import validate
from partita.formulation.reduction.statuses import KINDS, Kind, Transpose, graph, mirrored, transposes
from partita.model.errors import PartitaError
from partita.model.files import read_json
from partita.model.machine.machine import PROFILES, Level, Machine

DEVICE = Machine.load("gcp-a100").device
AR, RS, AG, R, B = (Collective(name) for name in ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"))


def tree(*hierarchy: int) -> Machine:
    """Switches, four times as fast on every next level inwards."""
    levels = [Level(f"level {i}", size, 8e9 * 4**i, 14000 / 2**i) for i, size in enumerate(hierarchy)]
    return Machine("tree", tuple(levels), DEVICE)


def whole(machine: Machine) -> Reduction:
    """The reduction over all devices."""
    return Reduction(of_rows([machine.hierarchy]), (0,))


@st.composite
def reductions(draw: st.DrawFn) -> tuple[Machine, Reduction]:
    """A hierarchy of one to three levels with any links, and a reduction over some or all of its devices."""
    count = draw(st.sampled_from((1, 2, 2, 3)))
    row = draw(st.lists(st.sampled_from((1, 2, 3, 4, 8, 16)), min_size=count, max_size=count))
    rest = draw(st.lists(st.sampled_from((1, 1, 2, 4)), min_size=count, max_size=count))
    exponent = st.floats(8, 12)
    levels = [
        Level(f"level {i}", m * n, 10 ** draw(exponent), 10 ** draw(st.floats(1, 5)))
        for i, (m, n) in enumerate(zip(row, rest, strict=True))
    ]
    between = draw(st.integers(0, count))  # so many levels are between nodes, for the tree
    levels = [replace(level, name="node" if i + 1 == between else level.name) for i, level in enumerate(levels)]
    device = replace(DEVICE, launch_ns=draw(st.sampled_from((0, 10, 5000))))
    return Machine("any", tuple(levels), device), Reduction(of_rows([tuple(row), tuple(rest)]), (0,))


BYTES = st.floats(0, 11).map(lambda exponent: int(10**exponent))


# Cost


@given(reductions(), BYTES, st.sampled_from(PROFILES))
@settings(max_examples=250, deadline=None)
def test_no_enumerated_program_is_cheaper(where: tuple[Machine, Reduction], size: int, profile: str) -> None:
    machine, reduction = where
    if not reduction.sizes:
        assert optimal(machine, reduction, size).program == ()
        return
    best = optimal(machine, reduction, size, profile=profile, limit=5)
    assert len(best.program) <= 5
    assert best.price.ns_per_byte == pytest.approx(
        program_price(machine, reduction, best.program, profile).ns_per_byte, rel=1e-9
    )
    mine = at(best.price, size)
    assert mine == pytest.approx(at(program_price(machine, reduction, best.program, profile), size), rel=1e-9)
    assert best.ns == best.price.ns(size)
    for program in programs(len(reduction.sizes)):
        assert mine <= at(program_price(machine, reduction, program, profile), size) * (1 + 1e-9), program


def at(price: Any, size: float) -> float:
    return float(price.latency_ns + price.ns_per_byte * size)


PAPER = [
    (group["hierarchy"], tuple(group["parallelism_axes"]), tuple(group["reduce_axes"]))
    for group in read_json(P2)["groups"]
]


@pytest.mark.parametrize("profile", ["nccl-ring", "nccl-tree"])
def test_on_the_paper_s_groups_it_is_the_best_enumerated_one_or_better(profile: str) -> None:
    size = 10 * 2**31
    for hierarchy, axes, reduced in PAPER:
        machine = Machine.load("gcp-a100", nodes=hierarchy[0])
        for placement in placements(machine.hierarchy, mesh=axes):
            reduction = Reduction(placement, reduced)
            best = optimal(machine, reduction, size, profile=profile, limit=5)
            found = programs(len(reduction.sizes))
            assert best.ns <= min(program_price(machine, reduction, each, profile).ns(size) for each in found)
            validate(best.program, reduction.sizes)


def test_wires_make_the_position_matter() -> None:
    """Pairs of neighbours on a V100 node's NVLink ring, and pairs at a distance of four: the row is the same."""
    machine = Machine.load("gcp-v100", nodes=1)
    near, far = (Reduction(of_rows(rows), axes) for rows, axes in ((((1, 4), (1, 2)), (1,)), (((1, 2), (1, 4)), (0,))))
    assert near.row == far.row == (1, 2)
    times = [optimal(machine, pairs, 10**9).ns for pairs in (near, far)]
    assert times[0] < times[1]
    for pairs, ns in zip((near, far), times, strict=True):
        assert ns == min(program_price(machine, pairs, each).ns(10**9) for each in programs(1))


def test_switches_make_only_the_row_matter() -> None:
    machine = tree(4, 8)
    a, b = Reduction(of_rows([(2, 4), (2, 2)]), (0,)), Reduction(of_rows([(1, 2), (2, 2), (2, 2)]), (0, 2))
    assert a.row == b.row
    assert envelope(machine, a) is envelope(machine, b)


# Envelope


@given(reductions(), BYTES, st.sampled_from(PROFILES), st.sampled_from(KINDS))
@settings(max_examples=200, deadline=None)
def test_the_envelope_is_the_optimum_everywhere(
    where: tuple[Machine, Reduction], size: int, profile: str, kind: Kind
) -> None:
    machine, reduction = where
    found = envelope(machine, reduction, kind, profile)
    least = min(at(price, size) for price in found.prices)
    assert least == pytest.approx(at(optimal(machine, reduction, size, kind, profile).price, size), abs=0.2, rel=1e-9)
    rates = [price.ns_per_byte for price in found.prices]
    assert rates == sorted(set(rates), reverse=True)
    for small, large in pairwise(found.prices):
        assert at(small, 1) <= at(large, 1) + 0.2


def test_of_a_big_machine_the_envelope_has_few_entries_from_latency_to_bandwidth() -> None:
    machine = tree(8, 8, 16)
    found = envelope(machine, whole(machine))
    assert 2 <= len(found.programs) <= 10
    assert all(step.collective is AR for step in found.programs[0])
    assert any({RS, AG} <= {step.collective for step in program} for program in found.programs)
    assert found.programs[-1] == flat((8, 8, 16))  # a ring over all moves the fewest bytes, in the most messages
    assert found.prices[-1].ns(MOST_BYTES) == optimal(machine, whole(machine), MOST_BYTES).ns


# What the programs do


@given(reductions(), BYTES, st.sampled_from(PROFILES), st.sampled_from(KINDS), st.sampled_from((None, 2, 5)))
@settings(max_examples=200, deadline=None)
def test_programs_keep_the_rules_and_sum_rightly(
    where: tuple[Machine, Reduction], size: int, profile: str, kind: Kind, limit: int | None
) -> None:
    machine, reduction = where
    program = optimal(machine, reduction, size, kind, profile, limit).program
    small = tuple(min(m, 3) for m in reduction.sizes)
    if small:
        validate(program, small, kind)
        check_sums(program, small, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_all_programs_of_envelopes_sum_rightly(kind: Kind) -> None:
    for hierarchy in ((4,), (2, 3), (3, 2, 4), (2, 3, 2, 2)):
        for profile in PROFILES:
            for program in envelope(tree(*hierarchy), whole(tree(*hierarchy)), kind, profile).programs:
                check_sums(program, hierarchy, kind)


def test_a_program_that_gathers_in_another_order_is_repaired() -> None:
    """Two of the four that P²'s rules allow although chunks end permuted."""
    everything = (Step(RS, 0, 1), Step(AG, 0, 0), Step(AG, 1, 1))
    crossed = (Step(RS, 0, 0), Step(RS, 1, 1), Step(AG, 0, 0), Step(AG, 1, 1))
    for program in (everything, crossed):
        assert transposes(program, (2, 3), "all_reduce") == (None, Transpose((3, 2), (1, 0)))
        check_sums(program, (2, 3), "all_reduce")
        assert transposes(mirrored(program), (2, 3), "all_reduce") == (None, None)


def check_sums(program: ReductionProgram, sizes: tuple[int, ...], kind: Kind) -> None:
    """Run a program on integers, buffers cut and joined as they lie."""
    k = math.prod(sizes)
    addends = np.random.default_rng(0).integers(0, 1000, (k, k * 2))
    chunks = addends.sum(axis=0).reshape(k, 2)
    before, after = transposes(program, sizes, kind)
    start = chunks if kind == "all_gather" else addends
    buffers: list[NDArray[np.int64] | None] = [moved(buffer, before) for buffer in start]
    for step in program:
        for group in groups(step, sizes):
            run(step.collective, group, buffers)
    for member, buffer in enumerate(buffers):
        assert buffer is not None
        expected = chunks[member] if kind == "reduce_scatter" else chunks.ravel()
        assert (moved(buffer, after) == expected).all(), (program, sizes, member)


def moved(x: NDArray[np.int64], how: Transpose | None) -> NDArray[np.int64]:
    return x if how is None else x.reshape(*how.sizes, -1).transpose(*how.order, len(how.order)).ravel()


def run(collective: Collective, group: tuple[int, ...], buffers: list[NDArray[np.int64] | None]) -> None:
    inputs = [buffers[member] for member in group]
    held = [x for x in inputs if x is not None]
    if collective is B:
        for member in group:
            buffers[member] = inputs[0]
        return
    assert len(held) == len(group)
    result = np.concatenate(held) if collective is AG else np.sum(held, axis=0)
    parts = np.split(result, len(group)) if collective is RS else [result] * len(group)
    for member, part in zip(group, parts, strict=True):
        buffers[member] = None if collective is R and member != group[0] else part


# Time and errors


@pytest.mark.parametrize(("hierarchy", "seconds"), [((8, 8, 16), 0.3), ((8, 8, 8, 8, 16), 6.0)])
def test_it_is_quick(hierarchy: tuple[int, ...], seconds: float) -> None:
    """1,024 devices within 0.1 s and 65,536 in five levels within 2 s on a free core; three times that here."""
    graph.cache_clear()
    machine = replace(tree(*hierarchy), name="new")
    start = time.process_time()
    best = optimal(machine, whole(machine), 10**8)
    assert time.process_time() - start < seconds
    assert best.ns < program_price(machine, whole(machine), flat(hierarchy)).ns(10**8)


def test_a_limit_binds_and_equal_costs_give_the_shorter_program() -> None:
    machine = tree(4, 4, 4)
    times = [optimal(machine, whole(machine), 10**9, limit=limit).ns for limit in (1, 3, 5)]
    assert times == sorted(times, reverse=True) and len(set(times)) == 3
    assert optimal(machine, whole(machine), 10**9, limit=1).program == flat((4, 4, 4))
    free = replace(machine, levels=tuple(replace(level, latency_ns=0.0) for level in machine.levels))
    free = replace(free, device=replace(DEVICE, launch_ns=0))
    assert len(optimal(free, whole(free), 0).program) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limit": 0}, "no program has 0 steps"),
        ({"kind": "all_to_all"}, "no programs for 'all_to_all'"),
        ({"size_bytes": -1}, "-1 bytes"),
        ({"profile": "smoke"}, "smoke"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: dict[str, Any], words: str) -> None:
    machine = tree(2, 2)
    with pytest.raises(PartitaError, match=words):
        optimal(machine, whole(machine), **({"size_bytes": 1} | arguments))


def test_one_device_needs_no_program() -> None:
    alone = Reduction(of_rows([(1, 1), (2, 2)]), (0,))
    assert optimal(tree(2, 2), alone, 10**9).ns == 0
    found = envelope(tree(2, 2), alone)
    assert [price.ns(10**9) for price in found.prices] == [0] and found.programs == ((),)
