"""Compiled plans: their programs compile blocks as one graph each, and their prices fuse what layers compute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partita
from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.pricing.plan_price import plan_price

from ..levels import some
from .beginnings import begun
from .pipelines import captured, piped
from .test_emit import layers, megatron
from .test_gatherings import graph_of, recomputed, sharded
from .test_recompute import copies, stack

RUN = """
import sys
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, sys.argv[1])
import program

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=program.RANKS)  # what is sent does not matter
program.COMPILE = False
mesh, model, optimizer = program.build()
program.compile_blocks(model, backend="aot_eager", fullgraph=True)
for step in range(5):
    torch._dynamo.config.error_on_recompile = step > 2  # by then numbers are known to vary
    program.train_step(model, optimizer, program.synthetic(step), mesh, step)
print(counters["stats"]["unique_graphs"], len(counters["graph_break"]))
"""


def compiled(plan: Plan, compile: bool = True) -> Plan:
    """The plan with compiled blocks, or without."""
    if plan.size == 1:
        return replace(plan, compile=compile)
    return replace(plan, stages=tuple(replace(part, compile=compile) for part in plan.stages))  # type: ignore[call-arg]


PLANS: dict[str, tuple[Callable[[], Plan], int]] = {
    "dropout by counters": (lambda: megatron(layers(), micro=1), 4),
    "gathered weights": (lambda: sharded(graph_of(8), (2, 2), 1), 2),
    "recomputed": (lambda: recomputed(sharded(graph_of(8), (2, 2), 1), "full", "none"), 2),
    "pipeline": (lambda: piped(captured("gpt2", 4), (2,), (2,), 2), 3),
}
"""A plan, and how many graphs it may take: the last layer is another one, as are numbers that are found to vary."""


@pytest.mark.parametrize("name", some(PLANS, 4))
def test_blocks_compile_without_breaks(name: str, tmp_path: Path) -> None:
    make, most = PLANS[name]
    begun(compiled(make())).emit(tmp_path / "program.py")
    done = subprocess.run([sys.executable, "-c", RUN, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    graphs, breaks = map(int, done.stdout.split())
    assert 1 <= graphs <= most and not breaks


def test_a_layer_outside_of_loops_is_compiled_too() -> None:
    """As a method of its own, which gathers no weights and recomputes nothing."""
    text = compiled(copies(stack(3, True), ("none", "none", "none"))).emit()
    assert '    compiled = ("layers_0", "layers_1", "layers_2")\n' in text
    text = compiled(sharded(graph_of(8), (2, 2), 1)).emit()
    assert (
        '    compiled = ("layers_2_compute",)\n' in text and "return self.layers_2_compute(x, self.gathering())" in text
    )


def test_other_programs_compile_nothing() -> None:
    assert "compile" not in megatron(layers(), micro=1).emit().replace("torch.compiler", "")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (x + self.down(nn.functional.gelu(self.up(self.norm(x))))).tanh()
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def planned(**options: object) -> Plan:
    """A plan of `Net` for two ranks; both pricers agree on it, else planning fails."""
    torch.manual_seed(0)
    machine = partita.Machine.adhoc((2,))
    return partita.optimize(Net(), (torch.zeros(4, 8),), machine, compile=True, workers=1, cache="none", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"stages": 1}, {"stages": 2, "micro_batches": 2}, {"recompute": "full"}])
def test_a_compiled_plan_costs_less_than_the_same_plan(options: dict[str, object]) -> None:
    plan = planned(**options)
    one, other = plan_price(plan), plan_price(compiled(plan, compile=False))
    assert one.objective_ns < other.objective_ns and one.memory_bytes == other.memory_bytes
    assert plan.report["space"]["fixed"][-1] == "compiled blocks"


def test_files_keep_it(tmp_path: Path) -> None:
    for number, options in enumerate([{"stages": 1}, {"stages": 2, "micro_batches": 2}]):
        plan = planned(**options)
        plan.save(tmp_path / str(number))
        loaded = partita.load_plan(tmp_path / str(number))
        assert loaded.compile and loaded == plan and loaded.emit() == plan.emit()


def test_verified_compiled_in_processes() -> None:
    plan = planned(stages=1)
    found = plan.verify(level="torchrun")
    assert found["ok"] and found["compiled"] == "aot_eager"
    found = plan.verify()
    assert found["ok"] and found["compiled"] is None


def test_refused() -> None:
    with pytest.raises(PartitaError, match="recomputed whole, in mode full"):
        compiled(recomputed(sharded(graph_of(8), (2,), 0), "selective"))
    with pytest.raises(PartitaError, match="stage 1 has compile False, stage 0 True"):
        plan = piped(captured("gpt2", 4), (2,), (2,), 2)
        replace(plan, stages=(replace(plan.stages[0], compile=True), plan.stages[1]))
    with pytest.raises(PartitaError, match="cannot be divided"):
        compiled(piped(captured("gpt2", 4), (2,), (2,), 2, schedule="zero-bubble"))
