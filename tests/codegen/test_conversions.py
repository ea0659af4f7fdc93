"""Planners' plans as space-time plans: they are valid, compute what the model does, and can be changed."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partita
from partita import micro_batches, op_assign, op_join, op_trans, recompute, replicate, split
from partita.bench import conversions
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.overlap import weights_together
from partita.formulation.parallelism import Parallelism
from partita.formulation.placement.placement import Placement
from partita.formulation.search_space import EVERYTHING, SearchSpace
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.mask import STATES, VALUE
from partita.formulation.spacetime.materialized import Accumulate, Collective, Join, Pad, Run, Send, Slice, Zeros
from partita.formulation.spacetime.op import Phase
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.strategies.tensor_classes import classes
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, S
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import segments
from partita.model.machine.machine import Machine, stage_machine
from partita.model.machine.precision import precision
from partita.model.training import Training
from partita.model.zoo import build
from partita.solvers.budget import Budget

from ..levels import EXHAUSTIVE, example_count, some
from .conftest import machine_of
from .conversions import MODELS, changed, checked, converted, one_by_one, planners_plan, random_plan, trained
from .pipelines import captured, piped
from .test_recycling import Recycled

PIPELINES: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {"schedule": "interleaved", "chunks": 2}),
    ("bert-large", {"schedule": "interleaved", "chunks": 2}),
    ("mbart-4.7b", {"recompute": "full"}),
    ("mlp", {"schedule": "zero-bubble"}),
    ("mixtral-8x7b", {"schedule": "eager-1f1b"}),
    ("llama-7b", {"schedule": "gpipe", "recompute": "full"}),
    ("gpt2", {"schedule": "eager-1f1b", "recompute": "selective"}),
]


def planned(name: str, machine: tuple[int, ...] = (4,), **options: Any) -> Plan:
    module, inputs = build(name, small=True)
    given: dict[str, Any] = {"batch": 8, "workers": 1, "dropout": "counters", **options}
    return partita.optimize(module, inputs, partita.Machine.adhoc(machine), **given)


@pytest.mark.parametrize("name", some(["mlp", "candle-uno", "dlrm", "bert-large", "llama-7b", "mbart-4.7b"], every=6))
def test_a_plan_of_one_stage_is_verified(name: str) -> None:
    plan = planned(name, (2, 2), stages=1, micro_batches=2, recompute="full")
    made = partita.space_time(plan.space_time_graph(), plan.machine)
    verdict = made.verify(steps=2)
    assert verdict["ok"], verdict["failure"]


@pytest.mark.parametrize(("name", "options"), some(PIPELINES))
def test_a_pipeline_is_verified(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    plan = piped(captured(name, 8), (2, 2), (2, 1), 4, **options)
    graph = plan.space_time_graph()
    trained(checked(graph, plan.ranks), tmp_path)
    (order,) = graph.schedules
    assert next(op.of.name for op in order.stages[0]) in {node.name for node in plan.stages[0].graph.nodes}
    assert any(op.split for op in graph.forward) == (options.get("schedule") == "zero-bubble")
    assert any(op.group for op in graph.forward) == ("recompute" in options)


@pytest.mark.parametrize(
    ("name", "schedule"), some([("mlp", "1f1b"), ("bert-large", "gpipe"), ("llama-7b", "zero-bubble")])
)
def test_a_pipeline_of_rewritten_graphs_is_verified(name: str, schedule: str) -> None:
    plan = planned(name, (2,), stages=2, micro_batches=4, schedule=schedule, rewrite=True)
    assert plan.report["rewritten"]
    graph = plan.space_time_graph()
    own = {node.op for part in plan.stages for node in part.graph.nodes}
    assert {op.of.op for op in graph.forward} == own - {"input", "parameter", "buffer", "receive", "send"}
    assert not {node.op for node in graph.pcg.nodes} <= {node.op for node in plan.graph.nodes}
    verdict = partita.space_time(graph, plan.machine).verify(steps=2)
    assert verdict["ok"], verdict["failure"]


def test_any_choices_convert_and_any_changes_are_refused_or_right(tmp_path: Path) -> None:
    """`python -m tests.codegen.conversions` runs hundreds."""
    refused = 0
    for seed in (*range(example_count(18, 6)), 4005):  # 4005: zeros are added whose gradient is read
        plan = random_plan(random.Random(seed), MODELS if EXHAUSTIVE or seed == 4005 else ("mlp",))
        graph = converted(plan)
        if isinstance(graph, str):
            assert "space-time plans have equal parts" in graph
            continue
        trained(checked(graph, plan.ranks, plan.optimizer), tmp_path)
        graph = one_by_one(graph, seed)
        refusal = changed(graph, seed)
        try:
            trained(checked(graph, plan.ranks, plan.optimizer), tmp_path)
        except PartitaError as error:
            refusal = refusal or str(error)
        refused += bool(refusal)
    assert refused < 10


def test_what_the_planner_finds_converts_and_can_be_changed(tmp_path: Path) -> None:
    """`python -m tests.codegen.conversions planned` has other models, and many more."""
    plans = [planners_plan(random.Random(seed), ("mlp",)) for seed in range(example_count(16, 4))]
    found = [(seed, plan) for seed, plan in enumerate(plans) if not isinstance(plan, str)]
    assert len(found) > len(plans) // 2
    for seed, plan in found:
        trained(checked(plan.space_time_graph(), plan.ranks, plan.optimizer, plan.dtype), tmp_path)
        graph = plan.space_time_graph()
        if not changed(graph, seed):
            with suppress(PartitaError):
                trained(checked(graph, plan.ranks, plan.optimizer, plan.dtype), tmp_path)


# One choice at a time


def chain(width: int) -> PCG:
    """loss = Σ down(up(x)) of 8 samples."""
    b = Builder(8)
    h = b.input("x", (8, 4))
    for name, shape in (("up", (width, 4)), ("down", (4, width))):
        h = b.add("linear", h, b.parameter(f"{name}.weight", shape), shape=(8, shape[0]), name=name)
    return b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def by_samples(sizes: tuple[int, ...] = (2,), micro_batches: int = 1, width: int = 6, **weight: Any) -> Plan:
    """Data parallelism; `weight`: what is chosen for the first weight."""
    graph = chain(width)
    choices = []
    for index, node in enumerate(graph.nodes):
        letters = {"input": S(0), "parameter": B, "sum": P}.get(node.op, S(0))
        inputs = tuple((B if graph.nodes[i].op == "parameter" else S(0),) * len(sizes) for i in node.inputs)
        choice = Choice(inputs, (letters,) * len(sizes))
        choices.append(replace(choice, **weight) if node.name == "up.weight" else choice)
        assert index == len(choices) - 1
    place = Placement(sizes, tuple((size,) for size in sizes))
    machine = replace(machine_of(sizes), device=Machine.load("v100-32gb").device)
    return Plan(with_batch(graph, 8 // micro_batches), machine, place, micro_batches, tuple(choices))


def held(graph: Graph, phase: Phase, name: str = "up.weight") -> dict[int | None, str]:
    return {op.device: str(op.mask(None)) for op in tasks(graph).ops if op.phase is phase and op.of.name == name}


def test_weights_lie_with_their_readers() -> None:
    graph = by_samples((2, 2), 2).space_time_graph()
    assert not graph.stores
    assert held(graph, Phase.UPDATE) == dict.fromkeys(range(4), "[0:6, 0:4]")
    parts = [(op.name, op.device) for op in graph.find("up")]
    assert parts[0] == ("up forward (micro 1 to 2, data 1/2, data2 1/2)", 0)
    assert parts[-1] == ("up forward (micro 1 to 2, data 2/2, data2 2/2)", 3)


def test_weights_that_are_stored_split_are_placed(tmp_path: Path) -> None:
    """ZeRO-3."""
    plan = by_samples((2, 2), output=(S(0), S(1)))
    graph = plan.space_time_graph()
    found = {0: "[0:3, 0:2]", 1: "[0:3, 2:4]", 2: "[3:6, 0:2]", 3: "[3:6, 2:4]"}
    assert held(graph, Phase.STORE) == held(graph, Phase.UPDATE) == found
    trained(checked(graph, 4), tmp_path)


@pytest.mark.parametrize("output", [(B, S(1)), (S(1), B)])
def test_sharded_states_split_updates(tmp_path: Path, output: tuple[int, int]) -> None:
    """ZeRO-1, of a weight that is split over the other axis."""
    graph = by_samples((2, 2), output=output, sharded_states=True).space_time_graph()
    devices = (0, 1, 2, 3) if output[0] == B else (0, 2, 1, 3)
    boxes = ("[0:3, 0:2]", "[0:3, 2:4]", "[3:6, 0:2]", "[3:6, 2:4]")
    assert held(graph, Phase.UPDATE) == dict(zip(devices, boxes, strict=True))
    trained(checked(graph, 4), tmp_path)


@pytest.mark.parametrize("scattered", [False, True])
def test_sharded_gradients_are_summed_in_every_micro_batch(scattered: bool, tmp_path: Path) -> None:
    """ZeRO-2; without, gradients of micro-batches are added up first."""
    plan = by_samples((2,), 4, sharded_states=True, sharded_gradients=scattered)
    made = checked(plan.space_time_graph(), 2)
    for own in made.program.devices:
        (weight,) = (i for i in made.pcg.of("parameter") if made.pcg.nodes[i].name == "up.weight")
        sums = [i for i in own if isinstance(i, Collective) and i.kind == "reduce_scatter"]
        assert [i.target.tensor.node for i in sums].count(weight) == (3 if scattered else 1)  # first, between, last
        (total,) = {i.total.mask.box for i in own if isinstance(i, Accumulate) and i.total.tensor.node == weight}
        assert (total == ((0, 6), (0, 4))) != scattered
    trained(made, tmp_path)


def visits(made: SpaceTimePlan) -> list[int]:
    """By device, bytes of states that come from the host and go back."""
    lasting = [living.spans for living in made.prediction.living]
    return [sum(span.size_bytes for span in spans if span.tensor.kind == STATES) for spans in lasting]


@pytest.mark.parametrize("dtype", some(["mixed-bfloat16", "mixed-bfloat16-fp32grad"]))
@pytest.mark.parametrize("sharded", [False, True])
def test_states_on_the_host(sharded: bool, dtype: str, tmp_path: Path) -> None:
    """Each update has its states on the device while it runs; with the copy of the weight, if there is one."""
    plan = replace(by_samples((2,), sharded_states=sharded, offloaded=True), dtype=dtype)
    machine = Machine.load("dgx-a100", nodes=1)
    made = partita.space_time(plan.space_time_graph(), machine, devices=2, dtype=dtype)
    here, copies = 24 // (2 if sharded else 1), precision(dtype).copied
    assert [living.always["states"] for living in made.prediction.living] == [24 * 4 * (2 + copies)] * 2  # of `down`
    assert visits(made) == [here * 4 * (2 + copies)] * 2
    beside = replace(plan, choices=tuple(replace(c, offloaded=False) for c in plan.choices))
    other = partita.space_time(beside.space_time_graph(), machine, devices=2, dtype=dtype)
    assert machine.device.host_bandwidth is not None
    more = ceil(2 * visits(made)[0] / machine.device.host_bandwidth * 1e9)
    assert made.prediction.step_ns == other.prediction.step_ns + more
    trained(made, tmp_path)


@pytest.mark.parametrize("stages", [(0,), (1,), (0, 1)])
def test_states_of_a_tied_table_are_on_the_host_in_some_stages(stages: tuple[int, ...], tmp_path: Path) -> None:
    plan = piped(captured("gpt2", 8), (1, 2), (1, 2), 2, schedule="eager-1f1b")
    own = [conversions.on_host(part) if number in stages else part for number, part in enumerate(plan.stages)]
    machine = replace(plan.machine, device=Machine.load("dgx-a100", nodes=1).device)
    own = [replace(part, machine=replace(part.machine, device=machine.device)) for part in own]
    plan = replace(plan, stages=tuple(own), machine=machine)
    made = partita.space_time(plan.space_time_graph(), machine)
    assert {device for device, size in enumerate(visits(made)) if size} == {*stages}
    assert [living.always["states"] == 0 for living in made.prediction.living] == [n in stages for n in (0, 1)]
    assert made.prediction.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=3e-6)
    trained(made, tmp_path)


@pytest.mark.parametrize("devices", [1, 2])
def test_gradients_that_a_device_has_anyway_are_summed_in_place(devices: int, tmp_path: Path) -> None:
    """There is nothing to share: every device computes all samples. Memory and step are as without shards."""

    def made(sharded: bool) -> SpaceTimePlan:
        graph = partita.graph(nn.Linear(64, 64), (torch.zeros(1, 64),), batch=12, loss="projection")
        for op in graph.forward:
            for device, part in enumerate(op_trans(op, replicate(devices))):
                op_assign(op_trans(part, micro_batches(6)), device)
        if sharded:
            partita.shard_gradients(graph.optimizer)
        return checked(graph, devices)

    one, other = made(sharded=True), made(sharded=False)
    assert one.looped.loop is not None
    assert [x.peak for x in one.prediction.memory] == [x.peak for x in other.prediction.memory]
    assert one.prediction.step_ns == other.prediction.step_ns
    trained(one, tmp_path)


def test_gradients_that_are_sent_are_summed_in_place(tmp_path: Path) -> None:
    """A weight that another device keeps: it adds up what each micro-batch sends."""
    graph = partita.graph(nn.Linear(64, 64, bias=False), (torch.zeros(1, 64),), batch=12, loss="projection")
    for op in graph.forward:
        op_assign(op_trans(op, micro_batches(6)), 0)
    partita.place(graph, "weight", None, [1])
    made = checked(graph, 2)
    assert made.looped.loop is not None
    assert any(isinstance(i, Accumulate) for i in made.program.devices[1])
    trained(made, tmp_path)


def test_a_weight_that_one_device_reads_is_gathered_in_one_message(tmp_path: Path) -> None:
    graph = partita.graph(nn.Linear(8, 8), (torch.zeros(1, 8),), 8, loss="projection")
    op_assign(graph.forward, 1)
    partita.place(graph, "weight", split(("weight", 1), 4), [0, 1, 2, 3])
    made = checked(graph, 4)
    for own in made.program.devices:
        gathers = [i.kind for i in own if isinstance(i, Collective) and i.target.tensor.kind == VALUE]
        assert gathers == ["all_gather"]
        assert not any(isinstance(i, Send) and i.source.tensor.kind == VALUE for i in own)
    trained(made, tmp_path)


def test_gradients_are_sharded_of_what_is_updated() -> None:
    graph = partita.Graph(chain(6))
    with pytest.raises(PartitaError, match="up forward updates no parameter: shard gradients of operators of"):
        partita.shard_gradients(graph.find("up"))


def test_a_weight_that_is_stored_in_unequal_parts_stays_so(tmp_path: Path) -> None:
    graph = by_samples((2,), width=7, output=(S(0),)).space_time_graph()
    assert held(graph, Phase.STORE) == {0: "[0:4, 0:4]", 1: "[4:7, 0:4]"}
    trained(checked(graph, 2), tmp_path)


def test_constants_are_computed_once_a_step() -> None:
    plan = planned("llama-7b", (2,), stages=1, micro_batches=2)
    parts = partita.space_time(plan.space_time_graph(), plan.machine).program.tasks.graph
    assert len(parts.find("cos")) == 2 and len(parts.find("layers.0.up")) == 4


PARALLEL = [
    (Parallelism(dp=4, zero=0), 1),
    (Parallelism(dp=4, zero=0), 2),
    (Parallelism(dp=4, zero=1), 1),
    (Parallelism(dp=4, zero=3), 1),
    (Parallelism(dp=4, zero=3), 2),
    (Parallelism(tp=4), 1),
]


def planned_for_gpus(
    graph: PCG, parallelism: Parallelism, micro_batches: int, recompute: str = "none", dtype: str = "float32"
) -> Plan:
    space = SearchSpace(
        parallelism=parallelism,
        micro_batches=micro_batches,
        stages=1,
        recompute=recompute,
        bundles=False,
        offload=False,
    )
    one = stage_machine(Machine.load("dgx-a100", nodes=1), (1, 2))
    training = Training(graph.batch, dtype=dtype)
    return plan_graph(graph, one, training, space, Budget(workers=1), Context(emits=False))


def at_its_price(graph: PCG, parallelism: Parallelism, micro_batches: int, recompute: str = "none") -> Plan:
    """A plan whose conversion has the same step, to the nanosecond."""
    plan = planned_for_gpus(graph, parallelism, micro_batches, recompute)
    found = partita.space_time(plan.space_time_graph(), plan.machine).prediction
    assert found.step_ns == stage_price(plan).objective_ns
    return plan


@pytest.mark.parametrize(("parallelism", "micro_batches"), PARALLEL)
@pytest.mark.parametrize("name", some(["llama-7b", "mixtral-8x7b"]))
def test_a_step_costs_what_it_does_in_the_plan(name: str, parallelism: Parallelism, micro_batches: int) -> None:
    """To the nanosecond: kernels, messages with their shares of latency, and what hides in layers."""
    plan = at_its_price(captured(name, 16), parallelism, micro_batches)
    assert parallelism.zero is None or stage_price(plan).hidden_ns > 0


@pytest.mark.parametrize("mode", some(["full", "selective"]))
def test_weights_that_are_recomputed_with_are_gathered_once_on_the_way_back(mode: str) -> None:
    at_its_price(captured("llama-7b", 16), Parallelism(dp=4, zero=3), 2, mode)


def test_products_that_exchange_data_are_computed_again(tmp_path: Path) -> None:
    """Attention of the ranks that share its tokens, in a selective layer; other products are kept."""
    options: dict[str, Any] = {"mesh": (2,), "stages": 1, "micro_batches": 1, "fix": {"layers.*.attention": "ring"}}
    graph = planned("llama-7b", (2,), recompute="selective", **options).space_time_graph()
    again = {op.of.op for op in graph.forward if op.recomputed and not op.is_kept}
    assert {op.of.op for op in graph.forward if op.is_kept} == {"linear"} and "attention" in again
    trained(checked(graph, 2), tmp_path)


def test_a_selective_group_without_products_keeps_nothing(tmp_path: Path) -> None:
    graph = by_samples().space_time_graph()
    for op in graph.find("loss"):
        recompute(op, selective=True)
    made = checked(graph, 2)
    trained(made, tmp_path)
    assert "keep=True" not in made.source()


def test_a_layer_in_parts_is_computed_one_part_after_another(tmp_path: Path) -> None:
    """Its parts run to the end one by one, forward and again; what the next layer reads in parts is not joined."""
    plan = planned_for_gpus(captured("llama-7b", 16), Parallelism(dp=4, zero=0), 1, "full")
    plan = replace(plan, recompute=dict.fromkeys(plan.recompute, "2 parts"))
    made = checked(plan.space_time_graph(), 4)
    trained(made, tmp_path)
    runs = [i.op for i in made.program.devices[0] if isinstance(i, Run) and i.op.of.path.startswith("layers.0")]
    for phase, numbers in ((Phase.FORWARD, [0, 1]), (Phase.RECOMPUTE, [1, 0]), (Phase.BACKWARD, [1, 0])):
        own = [op.coordinate("samples") for op in runs if op.phase is phase]
        assert [number for number, _ in groupby(own)] == numbers
    assert len([i for i in made.program.devices[0] if isinstance(i, Join)]) == 2  # of the last layer, and of gradients
    pipeline = piped(captured("llama-7b", 8), (1, 2), (1, 2), 2, recompute="2 parts")
    trained(checked(pipeline.space_time_graph(), 2), tmp_path)


def test_sharded_gradients_cost_what_they_do_in_the_plan() -> None:
    """They are added up twice: whole in a micro-batch, and in parts over micro-batches."""
    at_its_price(captured("mlp", 16), Parallelism(dp=4, zero=2), 2)


@pytest.mark.parametrize(("zero", "recompute"), some([(0, "none"), (3, "none"), (3, "full")]))
def test_weights_of_several_passes_cost_what_they_do_in_the_plan(zero: int, recompute: str) -> None:
    """The pass with a gradient gives it, behind its layer; what the first pass gets is a fill, made in parts."""
    graph = capture(Recycled(), (torch.zeros(2, 4, 8), torch.zeros(2, 6, 8)), batch=16)
    plan = at_its_price(graph, Parallelism(dp=4, zero=zero), 2, recompute)
    cut = [item for item in stage_price(plan).items if item.kind == "slice" and item.phase == "forward"]
    assert cut and not any(item.ns for item in cut)


def test_nothing_is_cut_for_one_rank() -> None:
    graph = capture(Recycled(), (torch.zeros(2, 4, 8), torch.zeros(2, 6, 8)), batch=16)
    space = SearchSpace(micro_batches=1, stages=1, recompute="none", offload=False)
    plan = plan_graph(graph, Machine.adhoc((1,)), Training(16), space, Budget(workers=1), Context(emits=False))
    made = partita.space_time(plan.space_time_graph(), plan.machine)
    assert made.prediction.step_ns == stage_price(plan).objective_ns


@pytest.mark.parametrize(("name", "dtype", "zero"), [("gpt2", "float32", 1), ("mlp", "mixed-bfloat16", 0)])
def test_states_on_the_host_cost_what_they_do_in_the_plan(name: str, dtype: str, zero: int) -> None:
    """Copies from the host and back, rounded for each weight."""
    plan = planned_for_gpus(captured(name, 16), Parallelism(dp=4, zero=zero), 1, dtype=dtype)
    away = conversions.on_host(plan)
    made = partita.space_time(away.space_time_graph(), away.machine, dtype=dtype)
    assert made.prediction.step_ns == stage_price(away).objective_ns > stage_price(plan).objective_ns
    assert all(living.always["states"] == 0 for living in made.prediction.living)
    assert stage_price(away).memory["states"] < stage_price(plan).memory["states"]


def test_kernels_wait_for_a_bias_that_one_rank_adds() -> None:
    """The other ranks make zeros of it, which does not travel ahead."""
    plan = at_its_price(captured("gpt2", 16), Parallelism(tp=4), 1)
    zeros = [item for item in stage_price(plan).items if item.kind == "keep first"]
    assert zeros and all(item.waits for item in zeros)


@pytest.mark.parametrize("name", some(["gpt2", "bert-large"]))
def test_unequal_parts_cost_what_they_do_in_the_plan(name: str) -> None:
    """They travel in collectives: three factors of a fused weight, or six heads, on two axes of two ranks each."""
    machine = stage_machine(Machine.load("dgx-a100", nodes=1), (1, 2))
    space = SearchSpace(mesh=(2, 2), micro_batches=1, stages=1, recompute="none", bundles=False, offload=False)
    plan = plan_graph(captured(name, 16), machine, Training(16), space, Budget(workers=1), Context(emits=False))
    made = partita.space_time(plan.space_time_graph(), plan.machine)
    collectives = [i for own in made.program.devices for i in own if isinstance(i, Collective)]
    assert any(own.cuts for own in collectives)
    assert made.prediction.step_ns == pytest.approx(stage_price(plan).objective_ns, rel=2e-5)


@pytest.mark.parametrize("schedule", some(["gpipe", "eager-1f1b", "zero-bubble", "interleaved"], 2))
def test_a_schedule_that_is_priced_by_its_slots_costs_what_it_does_in_the_plan(schedule: str) -> None:
    """Half of a product's backward is deferred, and the sum of a tied weight's gradients is a message of its own, for
    which the updates of both stages wait.
    """
    chunks = 2 if schedule == "interleaved" else 1
    plan = piped(captured("gpt2", 16), (1, 2), (1, 2), 4, schedule=schedule, chunks=chunks)
    found = partita.space_time(plan.space_time_graph(), plan.machine).prediction
    assert found.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=3e-6)


def test_a_split_cross_entropy_costs_what_it_does_in_the_plan() -> None:
    machine = stage_machine(Machine.load("dgx-a100", nodes=1), (1, 4))
    module, inputs = build("llama-7b", small=True)
    plan = partita.optimize(
        module, inputs, machine, batch=8, mesh=(2,), stages=1, micro_batches=2, recompute="none", workers=1,
        dropout="counters", fix={"cross_entropy": "vocabulary"},
    )  # fmt: skip
    made = partita.space_time(plan.space_time_graph(), plan.machine)
    assert any(op.of.op == "cross_entropy" for op in made.program.tasks.meetings)
    assert made.prediction.step_ns == stage_price(plan).objective_ns


# What is refused


def refusal(plan: Plan) -> str:
    found = converted(plan)
    assert isinstance(found, str)
    return found


def test_unequal_parts_are_converted(tmp_path: Path) -> None:
    graph = by_samples((3,)).space_time_graph()
    assert sorted(op.mask(None).sizes[0] for op in graph.find("up") if op.is_forward) == [2, 3, 3]
    trained(checked(graph, 3), tmp_path)


def test_pipelines_that_are_refused() -> None:
    graph = captured("gpt2", 8)
    assert "compute" in refusal(piped(graph, (2, 2), (2, 1), 4, schedule="2bw"))


# Changes


def test_one_layer_is_cut_in_another_way_and_the_embedding_shared(tmp_path: Path) -> None:
    """The embedding of a pipeline is computed by both stages, by its width, and an up projection by columns."""
    plan = piped(captured("gpt2", 8), (2, 2), (2, 1), 2)
    graph = plan.space_time_graph()
    for name, dim in (("layers.0.up", "o"), ("token_embedding", ("token_embedding.weight", 1))):
        parts = graph.find(name)
        devices = sorted({op.device or 0 for op in parts}) if dim == "o" else range(4)
        for part, device in zip(op_trans(op_join(parts), split(dim, len(devices))), devices, strict=True):
            op_assign(part, device)
    assert {op.device for op in graph.find("token_embedding")} == {0, 1, 2, 3}
    trained(checked(graph, 4), tmp_path)


# Pipelines whose stages have two ranks


def on_a_dgx(name: str, schedule: str, ranks: int = 1) -> tuple[Plan, SpaceTimePlan]:
    """A pipeline of two stages with fully sharded weights, and the same converted."""
    space = SearchSpace(
        parallelism=Parallelism(dp=ranks, tp=1, zero=3 if ranks > 1 else None),
        stages=2,
        micro_batches=4,
        schedule=schedule,
        recompute="none",
        bundles=False,
        offload=False,
    )
    machine = stage_machine(Machine.load("dgx-a100", nodes=1), (1, 4 // ranks))
    plan = plan_graph(captured(name, 16), machine, Training(16), space, Budget(workers=1), Context(emits=False))
    return plan, partita.space_time(plan.space_time_graph(), plan.machine)


@pytest.mark.parametrize("name", some(["bert-large", "mbart-4.7b"]))
def test_a_tied_table_is_gathered_and_summed_in_each_stage_and_over_stages_once_a_step(
    name: str, tmp_path: Path
) -> None:
    """The first stage of mBART reads it twice."""
    plan, made = on_a_dgx(name, "eager-1f1b", 2)
    table = "token_embedding.weight"
    for device, own in enumerate(made.program.devices):
        moves = [i for i in own if isinstance(i, Collective) and made.pcg.nodes[i.target.tensor.node].name == table]
        stage = (0, 1) if device < 2 else (2, 3)
        assert {i.group for i in moves if i.kind != "all_reduce"} == {stage}
        assert [i.group for i in moves if i.kind == "all_reduce"] == [(device % 2, device % 2 + 2)]
    price = plan_price(plan)
    early = price.objective_ns - made.prediction.step_ns  # a stage gathers its first layer while it waits for a message
    first = sum(item.ns for item in price.stages[1].items if item.kind == "all-gather" and item.phase == "forward")
    assert 0 < early < 2 * first
    trained(checked(plan.space_time_graph(), 4), tmp_path)


@pytest.mark.parametrize("name", some(["gpt2", "llama-7b"]))
def test_weights_of_a_stage_of_one_layer_share_a_message(name: str) -> None:
    plan, made = on_a_dgx(name, "eager-1f1b", 2)
    assert min(len(segments(part.graph)) for part in plan.stages) == 1
    assert all(part.together.keys() >= {s.name for s in segments(part.graph)} for part in plan.stages)
    assert made.prediction.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=3e-5)


@pytest.mark.parametrize("way", ["tensor", "2x2"])
def test_padded_biases_and_sliced_gradients_cost_the_same(way: str) -> None:
    """Biases are stored in parts and read as addends; of their gradients a device keeps a copy of its part."""
    plan = conversions.planned(next(case for case in conversions.CASES if case.name == f"candle-uno {way}"))
    made = partita.space_time(plan.space_time_graph(), plan.machine, dtype=plan.dtype, module=plan.module)
    own = [i for i in made.program.devices[1] if isinstance(i, Pad | Slice)]
    assert {type(i) for i in own} == {Pad, Slice} and all(i.copied for i in own if isinstance(i, Slice))
    assert made.prediction.step_ns == plan_price(plan).objective_ns
    assert made.verify(steps=2)["ok"]


@pytest.mark.parametrize("name", ["candle-uno bundles", "resnext-50 bundles"])
def test_parallel_branches_are_on_their_own_devices(name: str) -> None:
    """They meet in a cat, or in a sum: a device adds nothing to what it has of it."""
    plan = conversions.planned(next(case for case in conversions.CASES if case.name == name))
    made = partita.space_time(plan.space_time_graph(), plan.machine, dtype=plan.dtype, module=plan.module)
    devices: dict[int, set[int | None]] = {i: set() for i, choice in enumerate(plan.choices) if choice.beside}
    for op in made.program.tasks.graph.forward:
        devices.get(op.node, set()).add(op.device)
    assert {frozenset(own) for own in devices.values() if own} == {frozenset({0, 1}), frozenset({2, 3})}
    zeros = [i.omitted for own in made.program.devices for i in own if isinstance(i, Zeros)]
    assert zeros == [True] * len(zeros) and bool(zeros) == name.startswith("resnext")
    assert made.prediction.step_ns <= plan_price(plan).objective_ns
    assert made.verify(steps=2)["ok"]


@pytest.mark.parametrize("name", ["resnext-50 tensor", "mixtral-8x7b 2x2"])
def test_devices_wait_for_collectives_of_activations_as_in_planners_programs(name: str) -> None:
    """Unless the graph says otherwise: then shortcuts and experts are computed meanwhile."""
    plan = conversions.planned(next(case for case in conversions.CASES if case.name == name))
    graph = plan.space_time_graph()
    made = partita.space_time(graph, plan.machine, dtype=plan.dtype, module=plan.module)
    assert made.prediction.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=1e-5)
    graph.waits = False
    beside = partita.space_time(graph, plan.machine, dtype=plan.dtype, module=plan.module)
    assert beside.prediction.step_ns < 0.99 * made.prediction.step_ns
    texts = [own.source().count(").wait()") for own in (made, beside)]
    activations = {
        i.key
        for i in made.program.devices[0]
        if isinstance(i, Collective) and made.pcg.nodes[i.target.tensor.node].op != "parameter"
    }
    assert texts[0] - texts[1] >= len(activations) > 0
    assert made.verify(steps=2)["ok"]


def test_what_a_slot_sends_is_one_message() -> None:
    """Of Mixtral that is a layer's result and a loss of its experts, which is there a kernel earlier."""
    plan = conversions.planned(next(case for case in conversions.CASES if case.name == "mixtral-8x7b GPipe"))
    made = partita.space_time(plan.space_time_graph(), plan.machine, dtype=plan.dtype, module=plan.module)
    sent = [i for i in made.program.devices[0] if isinstance(i, Send)]
    assert [i.more for i in sent] == [True, False] * (len(sent) // 2)
    assert made.prediction.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=3e-6)
    assert made.source().count(", more=True)") >= 2  # sent and received
    graph = plan.space_time_graph()
    graph.waits = False
    alone = partita.space_time(graph, plan.machine, dtype=plan.dtype, module=plan.module)
    assert alone.prediction.step_ns > made.prediction.step_ns and ", more=True" not in alone.source()
    assert made.verify(steps=2)["ok"]


@pytest.mark.parametrize("again", [False, True])
def test_a_weight_is_gathered_again_for_backward_as_planned(again: bool, tmp_path: Path) -> None:
    plan, down = by_samples((2,)), Choice((), (S(0),), regather=again)
    named = zip(plan.graph.nodes, plan.choices, strict=True)
    plan = replace(plan, choices=tuple(down if node.name == "down.weight" else choice for node, choice in named))
    made = checked(plan.space_time_graph(), 2)
    fetched = [i for i in made.program.devices[0] if isinstance(i, Collective) and i.kind == "all_gather"]
    assert [i.target.tensor.kind for i in fetched] == ["value"] * (1 + again)
    trained(made, tmp_path)


@pytest.mark.parametrize("name", ["mlp", "swin-1.8b"])
def test_receives_are_posted_before_the_message_is_sent(name: str) -> None:
    """Half a slot earlier, as long as a message takes here; one of Swin's stages has more views than the other."""
    plan, made = on_a_dgx(name, "gpipe")
    assert made.prediction.step_ns == plan_price(plan).objective_ns


def test_no_stage_waits_for_the_sum_of_a_tied_weight_while_it_has_weight_gradients_left() -> None:
    plan, made = on_a_dgx("mbart-4.7b", "zero-bubble")
    own = [i for i in made.program.devices[1] if isinstance(i, Run | Collective)]
    (summed,) = (at for at, i in enumerate(own) if isinstance(i, Collective))
    assert {i.op.phase for i in own[summed:] if isinstance(i, Run)} == {Phase.UPDATE, Phase.KEEP}
    assert made.prediction.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=3e-5)


def test_messages_go_both_ways_at_once() -> None:
    plan, made = on_a_dgx("mlp", "chimera")
    assert made.prediction.step_ns == pytest.approx(plan_price(plan).objective_ns, rel=1e-3)


def test_branches_on_other_devices_do_not_keep_traffic_from_hiding() -> None:
    """The planner's stage has no two parallel branches of its own."""
    plan, made = on_a_dgx("candle-uno", "eager-1f1b", 2)
    known = classes(made.pcg)
    assert not weights_together(made.pcg, known, EVERYTHING, 4)
    for number, part in enumerate(plan.stages):
        nodes = {op.node for op in made.program.tasks.ops if op.is_forward and op.device == 2 * number}
        own = {s.name for s in segments(part.graph)}
        there = weights_together(part.graph, classes(part.graph), EVERYTHING, 4)
        here = weights_together(made.pcg, known, EVERYTHING, 4, part=nodes)
        assert there.keys() & own and {name: here[name] for name in there if name in own} == {
            name: there[name] for name in there if name in own
        }
    assert made.prediction.step_ns < plan_price(plan).objective_ns


@pytest.mark.parametrize("way", ["ZeRO-3", "interlaced"])
def test_constants_tied_weights_and_shared_stages_leave_a_loop(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "BATCH", 32)
    found = next(known for known in conversions.WAYS if known.name == way)
    plan = conversions.planned(conversions.Case("gpt2", replace(found, space=found.space | {"micro_batches": 8})))
    graph = plan.space_time_graph()
    made = space_time(graph, plan.machine, dtype=plan.dtype, optimizer=plan.optimizer, module=plan.module)
    assert made.looped.loop is not None
    assert made.looped.loop.count == 8
