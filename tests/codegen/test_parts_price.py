"""Segments in parts of their samples have one price: the network's tables, and the plan priced node by node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions, StageContext
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, evaluate
from partita.formulation.pipeline.stage_transfers import transfer_price
from partita.formulation.placement.placement import Placement, of_rows
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.segments import IN_PARTS, MODES
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine
from partita.solvers.protocol import solver

from ..levels import some
from .test_recompute_price import MACHINE, ONE, TWO, plan_of, twin_of

ALL = (*MODES, *IN_PARTS)
PAIR = of_rows([(2,)])


def walk(found: Encoding, start: tuple[int, ...], count: int, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Assignments next to those that the network allows, one variable or mode changed after the other."""
    rng, sizes, here = random.Random(seed), [len(v.cost) for v in found.network.variables], list(start)
    modes = sorted(found.recompute.values())
    for step in range(count):
        there = list(here)
        v = rng.choice(modes) if step % 3 == 0 else rng.randrange(len(sizes))
        there[v] = rng.randrange(sizes[v])
        there = list(found.settled(there))
        yield tuple(there)
        if evaluate(found.network, there).cost < INFINITE:
            here = there


def in_parts(found: Encoding, count: int, **more: Any) -> int:
    """How many plans in parts cost what the network says, on a walk from the best one for every number of parts."""
    check_network(found.network)
    reserved, parted = MACHINE.device.capacity_bytes - found.network.capacities[0], 0
    for mode in (mode for mode in found.recompute_modes if mode in IN_PARTS):
        for assignment in walk(found, best(found, mode), count):
            said = evaluate(found.network, assignment)
            try:
                plan = plan_of(found, assignment, **more)
            except PartitaError:  # also random layouts of views that no operator asks for
                assert said.cost >= INFINITE
                continue
            if said.cost < INFINITE:
                cost = stage_price(plan)
                assert (cost.objective_ns, cost.memory_bytes) == (said.cost, said.use[0] + reserved)
                parted += mode in plan.recompute.values()
    return parted


def best(found: Encoding, mode: str) -> tuple[int, ...]:
    """The best assignment in one mode for all segments."""
    number = found.recompute_modes.index(mode)
    fixed = list(found.network.variables)
    for z in found.recompute.values():
        cost = np.full_like(fixed[z].cost, INFINITE)
        cost[number] = fixed[z].cost[number]
        fixed[z] = replace(fixed[z], cost=cost)
    answer = solver("auto").solve(replace(found.network, variables=tuple(fixed))).assignment
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("model", "placement", "micro_batches", "dtype", "modes"),
    some(
        [
            ("gpt3-1.3b", ONE, 1, "mixed-bfloat16", ("none", "2 parts")),
            ("swin-1.8b", ONE, 1, "float32", ("full", "2 parts")),
            ("alphafold2-87m", ONE, 1, "mixed-bfloat16", ("2 parts", "none")),
            ("gpt3-1.3b", ONE, 2, "float32", ALL[:-1]),
            ("llama-7b", TWO, 1, "mixed-float16", ALL),
        ],
        3,
    ),
)
def test_a_plan_costs_what_the_network_says(
    model: str, placement: Placement, micro_batches: int, dtype: str, modes: tuple[str, ...]
) -> None:
    graph = with_batch(twin_of(model), 8 // micro_batches)
    options = EncodingOptions(recompute=modes)
    found = encode(graph, MACHINE, placement, micro_batches=micro_batches, dtype=dtype, options=options)
    assert in_parts(found, 40) > 4


@pytest.mark.parametrize("host_ns", [300, 30_000])
def test_parts_need_the_host_as_many_times(host_ns: int) -> None:
    """Kernels so short that the host is the longest in some layers, or in all."""
    machine = replace(MACHINE, device=replace(MACHINE.device, host_ns=host_ns))
    options = EncodingOptions(recompute=("none", "4 parts"))
    found = encode(twin_of("llama-7b"), machine, TWO, dtype="mixed-bfloat16", options=options)
    assert in_parts(found, 40) > 4


def test_a_stage_of_a_pipeline_keeps_what_enters_parts_of_every_micro_batch() -> None:
    whole = with_batch(twin_of("swin-1.8b"), 4)
    middle = stage(whole, 1, len(boundaries(whole)) - 2).graph
    line = transfer_price(MACHINE, (1, 2))
    options, context = EncodingOptions(recompute=("none", "2 parts")), StageContext(3, line)
    found = encode(middle, Machine.adhoc((2,)), PAIR, micro_batches=4, options=options, stage=context)
    assert in_parts(found, 40, in_flight=3, transfer=line) > 10
