"""Recomputation has one price: the network's tables in every mode, and the plan priced node by node."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.decode import choices, report
from partita.codegen.pricing.pipeline_runs import runs
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.pricing.price_items import Item
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.facts import facts
from partita.codegen.report.text import text
from partita.codegen.report.trace import timeline
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions, StageContext
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE, evaluate
from partita.formulation.pipeline.stage_transfers import transfer_price
from partita.formulation.placement.placement import Placement, of_rows
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import MODES, is_product, segments
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine

from ..levels import some
from .pipelines import at_random

MACHINE = Machine.adhoc((2, 2))
ONE, TWO = of_rows([(2, 2)]), of_rows([(2, 1), (1, 2)])


@cache
def twin_of(name: str) -> PCG:
    module, inputs = load_module(name, small=True)
    return capture(module, inputs, batch=8)


def assignments(found: Encoding, count: int, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Random ones; hubs that say themselves whether they are kept say so where a mode asks."""
    rng, variables, modes = random.Random(seed), found.network.variables, found.recompute.values()
    for _ in range(count):
        result = [rng.randrange(len(v.cost)) for v in variables]
        for z in rng.sample(sorted(modes), rng.randrange(len(modes) + 1)):
            result[z] = 0
        for edge in found.network.edges:
            if edge.u in modes and edge.cost[result[edge.u], result[edge.v]] >= INFINITE:
                size = len(variables[edge.v].cost)
                result[edge.v] = (result[edge.v] + size // 2) % size
        yield found.settled(result)


def plan_of(found: Encoding, assignment: Sequence[int], **more: Any) -> Plan:
    args = found.placement, found.micro_batches, choices(found, assignment), found.precision.name, "adam"
    more |= {"recompute": found.recomputed(assignment), "together": found.together}
    return Plan(found.pcg, found.machine, *args, **more)


@pytest.mark.parametrize(
    ("model", "placement", "micro_batches", "dtype", "modes"),
    some(
        [
            ("gpt2", TWO, 2, "mixed-bfloat16", MODES),
            ("gpt2", ONE, 1, "float32", ("selective",)),
            ("gpt3-15b", TWO, 2, "float32", ("none", "full")),
            ("llama-70b", TWO, 1, "mixed-float16", MODES),
            ("bert-large", ONE, 2, "float32", ("full", "none")),
            ("mbart-4.7b", TWO, 2, "float32", MODES),
            ("mixtral-8x7b", ONE, 1, "mixed-bfloat16", MODES),
            ("swin-1.8b", ONE, 2, "float32", MODES),
            ("alphafold2-87m", ONE, 2, "float32", MODES),
        ]
    ),
)
def test_a_plan_costs_what_the_network_says(
    model: str, placement: Placement, micro_batches: int, dtype: str, modes: tuple[str, ...]
) -> None:
    graph = with_batch(twin_of(model), 8 // micro_batches)
    options = EncodingOptions(recompute=modes)
    found = encode(graph, MACHINE, placement, micro_batches=micro_batches, dtype=dtype, options=options)
    assert set(found.recompute) == {segment.name for segment in segments(graph)}
    agree(found, 4 if len(graph.nodes) > 1000 else 8)


def agree(found: Encoding, count: int, **more: Any) -> None:
    """The network and the price say the same of random assignments, some of which compute segments again."""
    check_network(found.network)
    reserved = MACHINE.device.capacity_bytes - found.network.capacities[0]
    tried = 0
    for assignment in assignments(found, count):
        try:
            plan = plan_of(found, assignment, **more)
        except PartitaError:  # random layouts of views that no operator asks for
            continue
        cost, said = stage_price(plan), evaluate(found.network, assignment)
        assert (cost.objective_ns, cost.memory_bytes) == (said.cost, said.use[0] + reserved)
        told = report(found, assignment)
        taken = sum(told["parts_ns"].values()) - told["hidden_ns"]
        assert (taken, told["memory_bytes"]) == (said.cost, cost.memory_bytes)
        tried += bool(plan.recompute)
    assert tried > 1


@pytest.mark.parametrize("model", ["gpt2", "swin-1.8b"])
def test_a_stage_keeps_what_enters_of_every_micro_batch_in_flight(model: str) -> None:
    """What is brought back is there once, since one micro-batch runs backward at a time."""
    whole = with_batch(twin_of(model), 2)
    middle = stage(whole, 1, len(boundaries(whole)) - 2).graph
    line, memory = transfer_price(MACHINE, (1, 2)), []
    for count in (1, 3):
        options, context = EncodingOptions(recompute=MODES), StageContext(count, line)
        found = encode(middle, MACHINE, ONE, micro_batches=4, options=options, stage=context)
        agree(found, 8, in_flight=count, transfer=line)
        assignment = next(a for a in assignments(found, 8) if found.recomputed(a))
        memory.append(stage_price(plan_of(found, assignment, in_flight=count, transfer=line)).memory)
    once, thrice = memory
    assert thrice["recomputed"] == once["recomputed"] > 0 and thrice["activations"] == 3 * once["activations"]


def test_what_stages_compute_again_is_part_of_their_backward() -> None:
    plan = at_random(twin_of("gpt2"), 2, (2,), 4, random.Random(3), recompute=True)
    assert plan.recompute and plan.summary()["recompute"] == plan.recompute
    cost = plan_price(plan)
    timeline = runs(plan, cost.stages)
    for device, priced in enumerate(cost.stages):
        slots = sum(run.length_ns for run in timeline if run.device == device)
        busy = priced.objective_ns - sum(item.total_ns for item in priced.items if item.kind == "receive")
        assert busy <= slots < busy + 8  # a micro-batch's share is rounded up
    assert all(name in str(plan).partition("Stage 0")[0] for name in ("recompute", *{*plan.recompute.values()}))


def example() -> tuple[Encoding, tuple[int, ...]]:
    """Without overlap, so that a step takes the sum of its parts."""
    options = EncodingOptions(recompute=MODES, space=SearchSpace(overlap=False))
    found = encode(twin_of("gpt2"), MACHINE, TWO, options=options)
    return found, next(assignments(found, 1, seed=5))


def in_modes(found: Encoding, assignment: Sequence[int], modes: Sequence[str]) -> Plan:
    """The same layouts with these modes."""
    result = list(assignment)
    for z, mode in zip(found.recompute.values(), modes, strict=True):
        result[z] = MODES.index(mode)
    return plan_of(found, result)


def kernels(items: Sequence[Item], phase: str) -> Counter[tuple[int, str, int]]:
    return Counter((i.at, i.kind, i.ns) for i in items if i.phase == phase and i.part == "compute" and not i.axes)


def test_what_runs_again_is_the_forward_of_the_segment() -> None:
    """In full all kernels, collectives and casts of its forward; of products nothing runs again in selective."""
    found, assignment = example()
    (first, second, _), graph = segments(found.pcg), found.pcg
    plan = in_modes(found, assignment, ("full", "selective", "none"))
    items = stage_price(plan).items
    forward, again = (
        Counter((i.part, i.kind, i.node, i.at, i.slot, i.ns, i.axes, i.bytes) for i in items if i.phase == phase)
        for phase in ("forward", "recompute")
    )
    special = {i.at for i in items if i.kind == "keep first"}  # which may be part of an operator
    assert {at for _, _, _, at, *_ in again} <= {*first.nodes, *second.nodes}
    for key, count in forward.items():
        part, kind, _, at, *_ = key
        product = is_product(graph, at) and part == "compute" and kind == graph.nodes[at].op
        if at in first.nodes or (at in second.nodes and not product and at not in special):
            assert again[key] == count, key
    assert again and not again - forward


def test_time_rises_and_memory_falls() -> None:
    found, assignment = example()
    plans = [in_modes(found, assignment, (mode,) * 3) for mode in ("none", "selective", "full")]
    costs = [stage_price(plan) for plan in plans]
    assert costs[0].objective_ns < costs[1].objective_ns < costs[2].objective_ns
    kept = [cost.memory["activations"] + cost.memory["weights"] for cost in costs]
    assert kept[0] > kept[1] > kept[2]
    assert costs[0].memory["recomputed"] == 0 < costs[1].memory["recomputed"] <= costs[2].memory["recomputed"]
    assert all(cost.memory["states"] == costs[0].memory["states"] for cost in costs)


def test_one_segment_runs_again_at_a_time() -> None:
    """Of what they bring back the largest counts."""
    found, assignment = example()
    alone = [
        stage_price(in_modes(found, assignment, ["full" if i == k else "none" for i in range(3)])).memory["recomputed"]
        for k in range(3)
    ]
    every = stage_price(in_modes(found, assignment, ("full",) * 3)).memory["recomputed"]
    assert every == max(alone) > min(alone) > 0


def test_reports_show_what_runs_again() -> None:
    """The timeline runs a segment's forward before its backward, and still adds up; text and PCG name it."""
    found, assignment = example()
    plan = in_modes(found, assignment, ("none", "full", "none"))
    told, cost = facts(plan), stage_price(plan)
    events = [e for e in timeline(told)["traceEvents"] if e["ph"] == "X"]
    assert sum(round(e["dur"] * 1e3) for e in events) == cost.objective_ns
    whens = [(e["name"], e["args"]["when"].rpartition(" ")[2]) for e in events]
    again = [place for place, (_, when) in enumerate(whens) if when == "recompute"]
    inside = [place for place, (name, when) in enumerate(whens) if when == "backward" and name.startswith("layers.1.")]
    assert (
        again == list(range(again[0], again[-1] + 1))
        and whens.index(("cross_entropy cross_entropy", "forward")) < again[0]
    )
    assert again[-1] < inside[-1]
    assert "recomputed" in text(told) and "recomputed" not in text(facts(replace(plan, recompute={})))
    work = [w for node in plan.parallel_graph().nodes for w in node.work]
    assert sum(w.ns * w.count for w in work) == cost.objective_ns and any(w.phase == "recompute" for w in work)
    assert json.loads(json.dumps(plan.to_json()))["recompute"] == {"layers.1": "full"}
