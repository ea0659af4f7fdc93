"""Segments of which backward runs the forward again: the same numbers, with masks and micro-batch of the first run."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.batch import with_batch
from partita.model.graph.layout import R
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import segments
from partita.model.machine.machine import Level, Machine
from partita.model.training import Training

from ..levels import some
from .beginnings import begun

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Plan]
BATCH, PLACES, WIDTH = 4, 4, 8


class Layer(nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.down(torch.relu(self.up(self.norm(x)))))
        return x + y


class Masked(Layer):
    """A layer that reads something more."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        return super().forward(x * mask)


class Stack(nn.Module):
    """Layers of which every second one may be another kind."""

    def __init__(self, layers: int, alternating: bool = False) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList((Masked if alternating and i % 2 else Layer)() for i in range(layers))
        self.register_buffer("mask", torch.linspace(0, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, self.mask) if isinstance(layer, Masked) else layer(x)
        return (x**2).mean()


@cache
def stack(layers: int, alternating: bool = False) -> PCG:
    return capture(Stack(layers, alternating), (torch.zeros(BATCH, PLACES, WIDTH),))


def copies(graph: PCG, modes: Sequence[str], micro_batches: int = 2) -> Plan:
    """Everything whole on two ranks, and a mode for every segment."""
    graph = with_batch(graph, graph.batch // micro_batches)
    machine = Machine.adhoc((2,))
    plan = plan_graph(
        graph, machine, Training(graph.batch, "float64", "adamw"), SearchSpace(mesh=(2,), micro_batches=1, stages=1)
    )
    assert plan.size == 1
    choices = tuple(Choice(((R,),) * len(node.inputs), (R,)) for node in plan.graph.nodes)
    return recomputed(replace(plan, micro_batches=micro_batches, choices=choices, report={}), modes)


def recomputed(plan: Plan, modes: Sequence[str]) -> Plan:
    pairs = zip(segments(plan.graph), modes, strict=True)
    return replace(plan, recompute={segment.name: mode for segment, mode in pairs if mode != "none"})


def model_of(text: str) -> str:
    return text.partition("# The model.")[2].partition("# Weights, under")[0]


# What it looks like


def test_layers_of_one_mode_are_a_loop() -> None:
    text = copies(stack(3), ["full"] * 3).emit()
    assert 'for layer in self.layers:\n            x = recomputed("full", mesh, layer, x)' in text
    assert model_of(text).count("class ") == 2 and "create_selective" not in text


def test_modes_are_no_part_of_the_class(judge: Judge) -> None:
    plan = copies(stack(4), ["full", "full", "none", "selective"])
    text = plan.emit()
    assert 'in zip(self.layers, ["full", "full", "none", "selective"], strict=True)' in text
    assert "x = recomputed(mode, mesh, layer, x)" in text and model_of(text).count("class ") == 2
    judge(plan)


def test_segments_in_a_turn_of_a_loop_are_methods(judge: Judge) -> None:
    plan = copies(stack(4, True), ["full", "selective"] * 2)
    text = plan.emit()
    assert "for i in range(0, 4, 2))" in text and model_of(text).count("class ") == 2
    assert 'recomputed("full", mesh, self.entry_0, x)' in text
    assert 'recomputed("selective", mesh, self.entry_1, x, mask)' in text
    judge(plan)


def test_turns_are_told_the_modes_where_they_differ(judge: Judge) -> None:
    plan = copies(stack(6, True), ["full", "none", "none", "none", "selective", "full"])
    text = plan.emit()
    assert 'zip(self.layers, [("full", "none"), ("none", "none"), ("selective", "full")], strict=True)' in text
    assert "layer(x, self.mask, modes)" in text and "recomputed(modes[1], mesh, self.entry_1, x, mask)" in text
    assert model_of(text).count("class ") == 2
    judge(plan)


def test_a_segment_outside_of_loops_is_a_method(judge: Judge) -> None:
    plan = copies(stack(1), ["selective"])
    assert 'x = recomputed("selective", mesh, self.layers_0, enter)' in plan.emit()
    judge(plan)


def test_without_recomputation_there_is_no_trace_of_it() -> None:
    text = copies(stack(2), ["none"] * 2).emit()
    assert "recomputed" not in text and "torch.utils" not in text


def test_formatted_and_without_lint(tmp_path: Path) -> None:
    cases = [(stack(3), ["full"] * 3), (stack(3), ["full", "none", "selective"]), (stack(4, True), ["full"] * 4)]
    cases += [(stack(6, True), ["full", "none", "none", "none", "selective", "full"]), (stack(1), ["selective"])]
    for number, (graph, modes) in enumerate(cases):
        copies(graph, modes, 1 + number % 2).emit(tmp_path / f"program{number}.py")
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,B,I"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", str(tmp_path)]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


# What it computes


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_several_micro_batches_in_flight(mode: str, tmp_path: Path) -> None:
    """Backward of the first comes after forward of the last, and in another step: masks are those of its forward."""
    graph = stack(3)
    batch = {name: x.double() for name, x in synthetic(graph, BATCH, 0).items()}

    def gradients(program: ModuleType, rank: int) -> list[Tensor]:
        mesh = program.Mesh()
        if rank:  # threads share the random state that masks are drawn from
            return []
        model = program.Model(mesh, dtype=torch.float64)
        program.initialize(model)
        mesh.step = 3
        losses = [model(**program.share(batch, mesh, m)) for m in range(2)]
        mesh.step = 4
        for loss in losses:
            loss.backward()
            assert (mesh.step, mesh.micro.index) == (4, 1)
        return [p.grad for p in model.parameters() if p.requires_grad]

    found = []
    for number, modes in enumerate((["none"] * 3, ["none", mode, mode])):
        path = tmp_path / f"program{number}.py"
        begun(copies(graph, modes)).emit(path)
        program = load_program(path)
        found.append(run_threads(lambda rank, p=program: gradients(p, rank), 2)[0])  # type: ignore[misc]
    assert found[0] and all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_ranks_recompute_at_the_same_place(tmp_path: Path) -> None:
    """Before the backward of all that a block computes, whatever a rank keeps, and to its end."""
    path = tmp_path / "program.py"
    copies(stack(1), ["full"], 1).emit(path)
    program = load_program(path)
    mesh = program.Mesh.__new__(program.Mesh)
    mesh.step = 0

    log: list[str] = []

    class Sent(torch.autograd.Function):
        """Keeps nothing."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
            ctx.name = name
            log.append(name)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            log.append(f"back {ctx.name}")
            return grad, None

    def block(x: Tensor, keeps: bool) -> tuple[Tensor, Tensor]:
        x = Sent.apply(x, "first")  # type: ignore[no-untyped-call]
        x = x.sin() if keeps else x + 1
        return Sent.apply(x, "last"), torch.arange(3)  # type: ignore[no-untyped-call]

    for keeps in (True, False):
        log.clear()
        y, numbers = program.recomputed("full", mesh, block, torch.ones(2, requires_grad=True), keeps)
        assert not numbers.requires_grad
        y.sum().backward()
        assert log == ["first", "last", "first", "last", "back last", "back first"]


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How often each operator runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Experts(nn.Module):
    """A product that joins letters which lie apart, and so would copy its operand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(WIDTH), nn.Parameter(torch.ones(2, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.norm(x).unflatten(1, (2, -1))
        return x + torch.relu(torch.einsum("becd,edf->becf", parts, self.weight)).flatten(1, 2)


@pytest.mark.parametrize("kind", [Layer, Experts])
def test_selective_computes_no_product_again(kind: type[nn.Module], tmp_path: Path) -> None:
    """Products forward; those of backward come once in any mode."""
    found = dict[str, int]()
    graph = capture(nn.Sequential(kind(), kind()), (torch.zeros(BATCH, PLACES, WIDTH),), loss="projection")
    for mode in ("none", "selective", "full"):
        path = tmp_path / f"{mode}.py"
        begun(copies(graph, [mode] * 2, 1)).emit(path)
        program = load_program(path)

        def products(_: int, program: ModuleType = program) -> int:
            mesh = program.Mesh()
            mesh.step = 0
            model = program.Model(mesh, dtype=torch.float64)
            program.initialize(model)
            x = {name: part.double() for name, part in synthetic(graph, BATCH, 0).items()}
            with Count() as count:
                model(**program.share(x, mesh)).backward()
            return sum(count.counts[name] for name in ("mm", "addmm", "bmm"))

        found[mode] = run_threads(products, 2)[0]
    forward = 2 * (2 if kind is Layer else 1)
    assert found["selective"] == found["none"] == found["full"] - forward


MODELS = [("gpt2", (2, 2), 2), ("mbart-4.7b", (2, 2), 1), ("swin-1.8b", (4,), 1), ("mixtral-8x7b", (2,), 2)]


@pytest.mark.parametrize(("name", "mesh", "micro_batches"), some(MODELS, 2))
def test_models_of_the_zoo(name: str, mesh: tuple[int, ...], micro_batches: int) -> None:
    """Planned for devices so slow that splitting pays; modes by turns."""
    module, inputs = load_module(name, small=True, device="cpu")
    device = Machine.adhoc((1,)).device
    slow = replace(device, peak=dict.fromkeys(device.peak, 1e9), memory_bandwidth=1e9, launch_ns=0.0)
    machine = Machine("slow", tuple(Level(f"level{k}", n, 8e10, 0.0) for k, n in enumerate(mesh)), slow)
    training, space = Training(4, "float64", "adamw"), SearchSpace(mesh=mesh, micro_batches=micro_batches, stages=1)
    plan = plan_graph(capture(module, inputs, batch=4), machine, training, space)
    assert plan.size == 1
    modes = [("full", "selective", "none")[k % 3] for k in range(len(segments(plan.graph)))]
    verdict = verify(recomputed(plan, modes), module=module, inputs=inputs, steps=2)
    assert verdict["ok"], verdict["failure"]


@pytest.mark.parametrize("seed", range(6))
def test_random_plans(seed: int, force: Force, judge: Judge) -> None:
    """Any strategy, storage and shared layout; weights that backward gathers again among them."""
    rng = random.Random(seed)
    graph, k = stack(3, seed % 2 == 1), rng.choice((1, 2))
    plan = force(with_batch(graph, BATCH // k), rng.choice([(2,), (3,), (2, 2)]), rng, None, k)
    judge(recomputed(plan, [rng.choice(("none", "full", "selective")) for _ in segments(plan.graph)]), graph)
