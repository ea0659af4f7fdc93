"""Gradients in shards, states on the host, 16-bit weights: programs that compute the same, and keep what is priced."""

from __future__ import annotations

import math
import random
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.run_search import anything_fits
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.facts import facts
from partita.codegen.report.trace import timeline
from partita.codegen.verification import reference
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import DoesNotFitError, PartitaError
from partita.model.graph.constants import held
from partita.model.graph.dtypes import ITEMSIZE
from partita.model.graph.layout import Action, B
from partita.model.graph.pcg import Node
from partita.model.machine.machine import Machine
from partita.model.machine.precision import precision
from partita.model.training import Training

from ..levels import some
from .pipelines import at_random, captured

BATCH = 16
Kind = Callable[[Node, Choice], dict[str, bool]]


def _mixed(node: Node, choice: Choice) -> dict[str, bool]:
    """Every weight another way."""
    draw, copies = zlib.crc32(node.name.encode()), B in choice.output
    shards = {"sharded_states": copies and draw % 3 > 0, "sharded_gradients": copies and draw % 3 > 1}
    return shards | {"offloaded": draw % 5 < 2}


KINDS: dict[str, Kind] = {
    "whole": lambda node, choice: {"sharded_states": False},
    "zero-1": lambda node, choice: {"sharded_states": B in choice.output},
    "zero-2": lambda node, choice: {f"sharded_{what}": B in choice.output for what in ("states", "gradients")},
    "offloaded": lambda node, choice: {"sharded_states": B in choice.output, "offloaded": True},
    "mixed": _mixed,
}


@cache
def planned(name: str, dtype: str, mesh: tuple[int, ...], micro_batches: int) -> Plan:
    module, inputs = load_module(name, small=True)
    training = Training(BATCH, dtype, "adamw")
    space = SearchSpace(mesh=mesh, micro_batches=micro_batches, stages=1, bundles=False)  # branches store weights whole
    model = {"reference": name, "small": True, "sequence": None, "batch": BATCH}
    return plan_graph(
        capture(module, inputs, batch=BATCH), Machine.adhoc((math.prod(mesh),)), training, space, context=Context(model)
    )


def stored(plan: Plan, kind: str) -> Plan:
    """The plan with its trained weights stored so."""
    choices = (
        replace(choice, **KINDS[kind](node, choice)) if node.op == "parameter" and node.gradient else choice
        for node, choice in zip(plan.graph.nodes, plan.choices, strict=True)
    )
    return replace(plan, choices=tuple(choices))


@pytest.mark.parametrize(
    ("name", "dtype", "mesh", "micro_batches", "kind"),
    some(
        [
            ("gpt2", "float32", (2, 2), 2, "mixed"),
            ("gpt2", "mixed-float16", (4,), 4, "zero-2"),
            ("llama-7b", "mixed-bfloat16", (2, 4), 2, "offloaded"),
            ("llama-7b", "mixed-bfloat16-bf16grad", (4,), 2, "whole"),
            ("llama-7b", "mixed-bfloat16-bf16grad", (2, 2), 1, "mixed"),
            ("gpt2", "mixed-bfloat16-fp32grad", (3,), 2, "zero-2"),
            ("gpt2", "mixed-bfloat16-fp32grad", (2, 2), 4, "mixed"),
            ("gpt2", "pure-bfloat16", (2, 3), 2, "mixed"),
            ("resnext-50", "mixed-bfloat16-bf16grad", (4,), 1, "mixed"),
        ]
    ),
)
def test_the_same_as_the_module(name: str, dtype: str, mesh: tuple[int, ...], micro_batches: int, kind: str) -> None:
    plan = stored(planned(name, dtype, mesh, micro_batches), kind)
    verdict = verify(plan)
    assert verdict["ok"], verdict["failure"]
    assert Plan.from_json(plan.to_json()).emit() == plan.emit()


@pytest.mark.parametrize(
    ("schedule", "dtype"), [("1f1b", "mixed-bfloat16-bf16grad"), ("zero-bubble", "mixed-bfloat16-fp32grad")]
)
def test_stages_of_pipelines(schedule: str, dtype: str) -> None:
    """Weights at both ends are tied; the backward of a zero bubble hands gradients to weights itself."""
    plan = at_random(captured("gpt2", 12), 2, (2, 2), 3, random.Random(4), schedule=schedule)
    plan = replace(plan, stages=tuple(replace(stage, dtype=dtype) for stage in plan.stages))
    taken = [choice for stage in plan.stages for choice in stage.choices]
    assert any(c.sharded_gradients for c in taken) and any(c.offloaded for c in taken)
    module, inputs = load_module("gpt2", small=True, device="cpu")
    verdict = verify(plan, module=module, inputs=inputs, steps=2)
    assert verdict["ok"], verdict["failure"]


# What a run keeps


def program_of(plan: Plan, folder: Path) -> ModuleType:
    path = folder / "program.py"
    plan.emit(path)
    return load_program(path)


def batch_of(plan: Plan, step: int = 0) -> dict[str, Tensor]:
    return {name: t.float() if t.is_floating_point() else t for name, t in synthetic(plan.graph, BATCH, step).items()}


def state_of(plan: Plan) -> dict[str, Tensor]:
    module, _ = load_module(plan.model["reference"], small=True)
    state = reference.state_of(reference.materialize(module))
    return {name: t.float() if t.is_floating_point() else t for name, t in state.items()}


def nbytes(tensors: Any) -> int:
    """Bytes of different storages."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def trained(plan: Plan, folder: Path, steps: int) -> list[dict[str, Any]]:
    """Of every rank, in the plan's own dtypes: bytes that are kept after some steps, on the device and on the host."""
    program, state, batch = program_of(plan, folder), state_of(plan), batch_of(plan)
    hosted: list[Tensor] = []
    if hasattr(program, "to_host"):
        to_host = program.to_host
        program.to_host = lambda x: hosted.append(to_host(x)) or hosted[-1]  # type: ignore[func-returns-value]

    def rank(_: int) -> dict[str, Any]:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.load(model, state, mesh)
        optimizer = program.make_optimizer(model, mesh, warmup=0)
        synchronize, summed = optimizer.synchronize, list[int]()

        def watched() -> None:
            made = [getattr(w, "total", None) if w.grad is None else w.grad for w in model.parameters()]
            made += [b.gradient for b in optimizer.buckets if hasattr(b, "gradient")]
            summed.append(nbytes([x for x in made if x is not None]))
            synchronize()

        optimizer.synchronize = watched
        losses = [program.train_step(model, optimizer, batch, mesh, step) for step in range(steps)]
        inner = optimizer.inner if isinstance(optimizer.inner, list) else [optimizer.inner]
        states = [x for o in inner for kept in o.state.values() for name, x in kept.items() if name != "step"]
        weights = list(model.parameters())
        parts = [b.part for b in optimizer.buckets if getattr(b, "part", None) is not None]
        if isinstance(optimizer.inner, list):
            gradients = [grad for b in optimizer.buckets for grad in b.gradients()]
        else:
            gradients = [p.grad for b in optimizer.buckets for p in b.trained()]
        away = {x.untyped_storage().data_ptr() for x in hosted}
        kept = [x for x in (*states, *parts) if x.untyped_storage().data_ptr() not in away]
        return {
            "losses": losses,
            "held": nbytes([*weights, *kept]) + max(summed),
            "away": nbytes([x for x in (*states, *parts) if x.untyped_storage().data_ptr() in away]),
            "weights": {w.dtype for w in weights if w.requires_grad},
            "summed": {x.dtype for x in gradients},
            "states": {x.dtype for x in (*states, *parts)},
        }  # fmt: skip

    return run_threads(rank, plan.ranks)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    some(
        [
            ("pure-bfloat16", "zero-1"),
            ("mixed-float16", "offloaded"),
            ("mixed-bfloat16", "zero-2"),
            ("mixed-bfloat16-fp32grad", "offloaded"),
            ("mixed-bfloat16-fp32grad", "zero-2"),
            ("mixed-bfloat16-bf16grad", "whole"),
            ("mixed-bfloat16-bf16grad", "mixed"),
            ("float32", "mixed"),
            ("pure-bfloat16", "mixed"),
        ]
    ),
)
def test_a_run_keeps_what_is_priced_and_learns(dtype: str, kind: str, tmp_path: Path) -> None:
    """Every size divides, so that shares are no larger than those of single weights; the loss of one batch falls."""
    plan = stored(planned("gpt2", dtype, (4,), 2), kind)
    kept, form = stage_price(plan).memory["states"], precision(dtype)
    kept -= sum(x.bytes for x in stage_price(plan).kept if x.node in held(plan.graph))  # the model's constants
    away = sum(x.bytes for x in stage_price(plan).items if x.kind == "states to host")
    dtypes = tuple({getattr(torch, x)} for x in (form.parameters, form.gradients, form.master))
    for found in trained(plan, tmp_path, steps=6):
        assert (found["held"], found["away"]) == (kept, away)
        assert (found["weights"], found["summed"], found["states"]) == dtypes
        assert found["losses"][-1] < found["losses"][0] - 0.1


@pytest.mark.parametrize(("dtype", "kept"), [("mixed-bfloat16-fp32grad", "bfloat16"), ("mixed-bfloat16", "float32")])
def test_updated_shares_travel_as_weights_are_stored(dtype: str, kept: str, tmp_path: Path) -> None:
    """Of 32-bit shares: in 16 bits where the dtype stores weights so. Prices count those bytes."""
    plan = stored(planned("gpt2", dtype, (4,), 2), "zero-1")
    program, sent = program_of(plan, tmp_path), set[torch.dtype]()
    gather, publish, publishing = program.all_gather, program.Bucket.publish, threading.local()

    def all_gather(whole: Tensor, x: Tensor, **options: Any) -> Any:
        if getattr(publishing, "now", False):
            sent.add(x.dtype)
        return gather(whole, x, **options)

    def published(bucket: Any) -> Any:
        publishing.now = True
        try:
            return publish(bucket)
        finally:
            publishing.now = False

    program.all_gather, program.Bucket.publish = all_gather, published
    state, batch = state_of(plan), batch_of(plan)

    def rank(_: int) -> set[torch.dtype]:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.load(model, state, mesh)
        optimizer = program.make_optimizer(model, mesh)
        program.train_step(model, optimizer, batch, mesh, 0)
        return {p.dtype for bucket in optimizer.buckets for p in bucket.trained()}

    assert run_threads(rank, 4) == [{torch.float32}] * 4 and sent == {getattr(torch, kept)}
    gathers = [x for x in stage_price(plan).items if x.phase == "update" and x.kind == Action.GATHER.value]
    assert gathers
    assert all(x.bytes == plan.graph.nodes[x.node].numel * ITEMSIZE[kept] for x in gathers)


def test_gradients_in_shards_are_never_kept_whole(tmp_path: Path) -> None:
    """From one micro-batch to the next every rank has its share, summed, and nothing of the rest."""
    plan = stored(planned("gpt2", "mixed-bfloat16", (4,), 4), "zero-2")
    program, state, batch = program_of(plan, tmp_path), state_of(plan), batch_of(plan)
    scattered = {n.name for n, c in zip(plan.graph.nodes, plan.choices, strict=True) if c.sharded_gradients}

    share, models = program.share, dict[int, Any]()
    program.share = lambda inputs, mesh, m, *local: look(mesh, m) or share(inputs, mesh, m, *local)  # type: ignore[func-returns-value]

    def look(mesh: Any, micro_batch: int) -> None:
        """Before a micro-batch: what the ones before it have left."""
        model, buckets, seen = models[id(mesh)]
        assert all(w.grad is None for w in model.parameters() if w.original in scattered)
        for bucket in buckets:
            share = bucket.coming if bucket.gradient is None else bucket.gradient
            if bucket.scattered and share is not None:
                assert 0 <= share.numel() * 4 - sum(bucket.numels) < 4
                seen.add(micro_batch)

    def rank(_: int) -> set[int]:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.load(model, state, mesh)
        optimizer = program.make_optimizer(model, mesh)
        models[id(mesh)] = model, optimizer.buckets, set()
        program.train_step(model, optimizer, batch, mesh, 0)
        found: set[int] = models[id(mesh)][2]
        return found

    assert scattered and run_threads(rank, 4) == [{1, 2, 3}] * 4


# Plans


def test_what_is_said_of_it() -> None:
    plan = stored(planned("gpt2", "mixed-bfloat16", (2, 2), 2), "mixed")
    assert "(ZeRO-2)" in str(plan) and "in the host's memory" in str(plan)
    told = facts(plan)
    assert any("states on the host" in row[-2] for table in told.tables for row in table.rows)
    names = {event["name"] for event in timeline(told)["traceEvents"]}  # whose durations add up to the step
    assert any(name.endswith("states from host") for name in names) and any("reduce-scatter" in x for x in names)
    graph = plan.parallel_graph()
    price = stage_price(plan)
    work = sum(work.ns * work.count for node in graph.nodes for work in node.work)
    assert work - price.hidden_ns == price.objective_ns


@pytest.mark.parametrize(
    ("change", "machine", "optimizer", "words"),
    [
        ({"sharded_gradients": True, "sharded_states": False}, {}, "adamw", "sharded gradients need copies"),
        ({"offloaded": True, "sharded_states": False}, {}, "sgd", "sgd keeps no states of it"),
        ({"offloaded": True}, {"host_bandwidth": None}, "adamw", "has no host_bandwidth"),
    ],
)
def test_what_cannot_be_is_refused(
    change: dict[str, bool], machine: dict[str, Any], optimizer: str, words: str
) -> None:
    plan = planned("gpt2", "float32", (4,), 2)
    index = next(i for i in plan.graph.of("parameter") if B in plan.choices[i].output)
    choices = [*plan.choices]
    choices[index] = replace(choices[index], **change)
    device = replace(plan.machine.device, **machine)
    with pytest.raises(PartitaError, match=words):
        replace(plan, choices=tuple(choices), machine=replace(plan.machine, device=device), optimizer=optimizer)


def test_only_parameters_are_offloaded() -> None:
    plan = planned("gpt2", "float32", (4,), 2)
    choices = [replace(c, offloaded=True) if i == plan.graph.loss else c for i, c in enumerate(plan.choices)]
    with pytest.raises(PartitaError, match="is no parameter"):
        replace(plan, choices=tuple(choices))


def test_two_versions_of_weights_keep_all_beside_them() -> None:
    plan = at_random(captured("mlp", 24), 2, (2,), 4, random.Random(0), schedule="2bw")
    with pytest.raises(PartitaError, match="two versions of the weights: it needs gradients and states next to them"):
        replace(plan, stages=tuple(replace(stage, dtype="mixed-bfloat16-bf16grad") for stage in plan.stages))


def linear() -> tuple[nn.Module, tuple[Tensor]]:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)), (torch.zeros(BATCH, 512),)


def cramped(needed: float) -> Machine:
    """Two devices that have this share of the bytes of weights, gradients and states."""
    machine = Machine.adhoc((2,))
    capacity = int(needed * 16 * (2 * 512 * 2048 + 2048 + 512))
    device = replace(machine.device, memory_bytes=machine.device.reserved_bytes + capacity)
    return replace(machine, device=device)


def test_states_are_on_the_host_wherever_that_is_faster() -> None:
    """Not where all fits, for copies take time; with little memory instead of what is slower; or never."""
    module, inputs = linear()
    options: dict[str, Any] = {"loss": "projection", "mesh": (2,), "micro_batches": 1}
    ample = partita.optimize(module, inputs, cramped(2.0), **options)
    assert not any(c.offloaded for c in ample.choices) and ample.report["space"]["offload"]
    tight = partita.optimize(module, inputs, cramped(0.4), loss="projection")
    assert any(c.offloaded for stage in tight.stages for c in stage.choices) and tight.report["space"]["offload"]
    assert tight.report["memory_bytes"] <= tight.machine.device.capacity_bytes
    assert tight.report["objective_ns"] > ample.report["objective_ns"] and tight.verify()["ok"]
    with pytest.raises(PartitaError, match="fits no placement"):
        partita.optimize(module, inputs, cramped(0.4), loss="projection", offload=False)
    with pytest.raises(PartitaError, match="it fits without the options that narrow the search"):
        partita.optimize(module, inputs, cramped(0.62), offload=False, **options)
    for share in (0.62, 1.1):
        free = partita.optimize(module, inputs, cramped(share), **options)
        try:
            never = partita.optimize(module, inputs, cramped(share), offload=False, **options)
        except DoesNotFitError:
            assert any(c.offloaded for c in free.choices)
        else:
            assert free.report["objective_ns"] <= never.report["objective_ns"]
            assert "offload" in never.report["space"]["outside"]


def test_the_fastest_of_several_dtypes() -> None:
    """One search each: the best of them, with what is proved of all; the first named of those that are equal."""
    module, inputs = linear()
    machine, dtypes = Machine.adhoc((2,)), ("float32", "bfloat16", "mixed-bfloat16-bf16grad", "pure-bfloat16")
    single = {d: partita.optimize(module, inputs, machine, loss="projection", dtype=d, micro_batches=1) for d in dtypes}
    both = partita.optimize(module, inputs, machine, loss="projection", dtype=dtypes, micro_batches=1)
    best = min(single.values(), key=lambda plan: plan.report["objective_ns"])
    assert (both.dtype, both.report["objective_ns"]) == (best.dtype, best.report["objective_ns"])
    assert (both.report["status"], both.report["gap"]) == ("optimal", 0.0)
    told = both.report["space"]["ways"]
    assert [x["dtype"] for x in told] == ["float32", "mixed-bfloat16", *dtypes[2:]]
    assert all(x["bound_ns"] >= both.report["bound_ns"] for x in told)
    again = partita.optimize(module, inputs, machine, loss="projection", dtype=dtypes[::-1], micro_batches=1)
    assert again.dtype == best.dtype and again.report["space"]["ways"][-1]["status"] == "worse"
    assert (
        partita.optimize(module, inputs, machine, loss="projection", dtype="float32,float32", micro_batches=1).dtype
        == "float32"
    )


def test_dtypes_that_do_not_fit_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one fits without the options is asked only if none fits."""
    module, inputs = linear()
    options: dict[str, Any] = {"mesh": (2,), "micro_batches": 1, "offload": False}
    asked: list[object] = []

    def counted(*given: Any) -> bool:
        asked.append(given)
        return anything_fits(*given)

    monkeypatch.setattr("partita.codegen.planner.plan_graph.anything_fits", counted)
    plan = partita.optimize(
        module, inputs, cramped(0.45), loss="projection", dtype=["float32", "pure-bfloat16"], **options
    )
    assert plan.dtype == "pure-bfloat16"
    assert [x["status"] for x in plan.report["space"]["ways"]] == ["infeasible", "optimal"] and not asked
    with pytest.raises(PartitaError, match="fits no placement"):
        partita.optimize(
            module, inputs, cramped(0.05), loss="projection", dtype=["float32", "pure-bfloat16"], **options
        )
    assert len(asked) == 1
    with pytest.raises(PartitaError, match="dtype 'float8': choose from"):
        partita.optimize(module, inputs, cramped(2.0), loss="projection", dtype=["float32", "float8"], **options)
