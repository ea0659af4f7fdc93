"""Predicted memory against what autograd really keeps: every saved tensor of a rank's forward, counted by storage."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.bench.fused_kernels import fuse
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification import reference
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.layout import is_split
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import some

BATCH = 16


def slow_machine(hierarchy: tuple[int, ...], share: float | None = None) -> Machine:
    """Devices so slow that splitting a small twin pays, with `share` bytes of memory where that is given."""
    machine = Machine.adhoc(hierarchy)
    device = replace(
        machine.device,
        peak={dtype: rate / 1e5 for dtype, rate in machine.device.peak.items()},
        memory_bandwidth=machine.device.memory_bandwidth / 1e5,
        launch_ns=0.0,
    )
    if share is not None:
        device = replace(device, memory_bytes=device.reserved_bytes + int(share))
    return replace(machine, device=device, levels=tuple(replace(x, latency_ns=0.0) for x in machine.levels))


def saved_bytes(plan: Plan, module: Any, folder: Path) -> int:
    """Bytes that the forward of one micro-batch keeps for backward, beyond the weights: of the rank with most."""
    path = folder / "program.py"
    plan.emit(path)
    program = load_program(path)
    fuse(program)
    state = {
        name: t.float() if t.is_floating_point() else t
        for name, t in reference.state_of(reference.materialize(module)).items()
    }
    batch = {name: t.float() if t.is_floating_point() else t for name, t in synthetic(plan.graph, BATCH, 0).items()}

    def forward(_: int) -> int:
        mesh = program.Mesh()
        mesh.step = 0
        model = program.Model(mesh, dtype=torch.float32)
        program.load(model, state, mesh)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, torch.Tensor] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            if t.untyped_storage().data_ptr() not in weights:
                kept[t.untyped_storage().data_ptr()] = t
            return t

        more = {"divisor": torch.tensor(7.0)} if "divisor" in inspect.signature(model.forward).parameters else {}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            own = {name: part.clone() for name, part in program.share(batch, mesh).items()}  # as on another device
            model(**own, **more)
        return sum(t.untyped_storage().nbytes() for t in kept.values())

    return max(n for n in run_threads(forward, plan.ranks) if n is not None)


@pytest.mark.parametrize("name", some(["mlp", "bert-large", "gpt2", "gpt3-15b", "llama-7b", "mixtral-8x7b"]))
@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_predicted_activations_are_what_autograd_keeps(name: str, mesh: tuple[int, ...], tmp_path: Path) -> None:
    module, inputs = load_module(name, small=True, device="cpu")
    graph = capture(module, inputs, batch=BATCH, dropout="counters")  # as a GPU: on a CPU masks are floats
    machine = slow_machine(mesh if len(mesh) > 1 else (1, *mesh))
    plan = plan_graph(
        graph, machine, Training(BATCH, "float32", "adamw"), SearchSpace(mesh=mesh, micro_batches=1, stages=1)
    )
    assert any(is_split(x) for choice in plan.choices for x in choice.output)
    predicted = stage_price(plan).memory
    measured = saved_bytes(plan, module, tmp_path)
    # A tensor that is converted in two places counts twice: where memory does not bind, the solver may do that.
    most = 2.0 if name == "mlp" else 1.06
    # One number a query or a row, of attention and norms, is not counted.
    assert 0.99 * measured <= predicted["activations"] + predicted["weights"] <= most * measured


class Images(nn.Module):
    """A grouped convolution between two of 1 x 1, after a maximum and before a mean over windows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.into = nn.Conv2d(32, 32, 1, bias=False)
        self.norm = nn.GroupNorm(8, 32)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=8)
        self.wider = nn.ConvTranspose2d(32, 32, 2, 2, groups=4)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu6(self.stem(x)), 3, 2, 1)
        x = x + F.relu(self.grouped(F.relu(self.norm(self.into(x)))))
        x = F.avg_pool2d(F.interpolate(self.wider(x), scale_factor=2, mode="bilinear"), 2)
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_predicted_activations_of_images(mesh: tuple[int, ...], tmp_path: Path) -> None:
    """The group norm's means and deviations, one of each a group, are not counted."""
    module, inputs = Images(), (torch.zeros(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.int64))
    machine = slow_machine(mesh if len(mesh) > 1 else (1, *mesh))
    training, space = Training(BATCH, "float32", "adamw"), SearchSpace(mesh=mesh, micro_batches=1, stages=1)
    plan = plan_graph(capture(module, inputs, batch=BATCH), machine, training, space)
    predicted, measured = stage_price(plan).memory, saved_bytes(plan, module, tmp_path)
    assert 0.995 * measured <= predicted["activations"] + predicted["weights"] <= 1.06 * measured
