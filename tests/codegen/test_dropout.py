"""Dropout by torch's own generators: the same mask on ranks that hold the same part, other masks on other ranks."""

from __future__ import annotations

import random
import re
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.codegen.plan.plan import Plan
from partita.codegen.plan.plan_file import load_plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.native import counted, is_native_plan
from partita.codegen.verification.reference import materialize, state_of
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.formulation.spacetime.graph import Graph
from partita.formulation.strategies.strategy import rows
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.graph.random_numbers import draws_natively, from_counters
from partita.model.machine.machine import Machine
from partita.model.operators.operator import operator
from partita.model.training import Training

from .conftest import Force

BATCH, TOKENS, WIDTH, HEADS, SITES = 6, 5, 8, 2, 7


class Block(nn.Module):
    """Attention and a perceptron, both with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.1, self.training)
        return x + self.down(F.dropout(F.gelu(self.up(x)), 0.3, self.training))


class Net(nn.Module):
    """Two blocks after dropout of whole features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout1d(x, 0.25, self.training)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


INPUTS = (torch.zeros(BATCH, TOKENS, WIDTH),)


@cache
def graph() -> PCG:
    return capture(Net(), INPUTS)


@pytest.mark.parametrize(("sizes", "micro"), [((2, 2), 2), ((3, 2), 1)])
def test_random_plans(sizes: tuple[int, ...], micro: int, force: Force) -> None:
    """On meshes that do and do not divide the samples, heads and features; also in micro-batches."""
    plan = force(with_batch(graph(), BATCH // micro), sizes, random.Random(micro), None, micro)
    verdict = verify(plan, module=Net(), inputs=INPUTS, steps=2)
    assert verdict["ok"], verdict
    assert verdict["dropout"]["compared"] == "counters" and verdict["dropout"]["native_error"] < 1e-9
    assert verdict["dropout"]["native_masks"] >= SITES * micro


def test_a_recomputed_pipeline() -> None:
    """A part computed again draws the same, another micro-batch something else."""
    space = SearchSpace(stages=2, micro_batches=3, recompute="full", mesh=(2,))
    plan = plan_graph(graph(), Machine.adhoc((4,)), Training(BATCH, "float64"), space)
    verdict = verify(plan, module=Net(), inputs=INPUTS, steps=2)
    assert verdict["ok"], verdict
    assert verdict["dropout"]["native_masks"] % (3 * SITES) == 0


ROWS = {"attention": "b.1,b.0", "dropout": "i.2,B", "dropout_2": "i.2,i.0"}


def heads_and_samples() -> Plan:
    """Samples over the first axis, heads and hidden features over the second."""
    fixed = {f"layers.{i}.{name}": row for i in range(2) for name, row in ROWS.items()}
    space = SearchSpace(mesh=(2, 2), stages=1, micro_batches=1, fix=tuple(fixed.items()))
    return plan_graph(graph(), Machine.adhoc((2, 2)), Training(BATCH, "float64"), space)


def test_mistakes_in_a_program_are_found(tmp_path: Path) -> None:
    plan = heads_and_samples()
    plan.save(tmp_path)
    text = (tmp_path / "program.py").read_text()
    assert re.search(r"attend\([^,]*, k, v, 0.2, [^)]*, mesh, data, tensor, is_causal=True\)", text)
    assert "import contextmanager" in text and "random_bits" not in text

    def failure(pattern: str, written: str) -> str:
        changed, count = re.subn(pattern, written, text)
        assert count
        (tmp_path / "program.py").write_text(changed)
        verdict = verify(tmp_path, module=Net(), inputs=INPUTS, steps=1)
        assert verdict["program"] == str(tmp_path / "program.py")
        return str(verdict.get("failure", ""))

    assert failure("mesh, data, tensor, is_causal", "mesh, data, tensor, is_causal") == ""
    assert "have the same mask" in failure("mesh, data, tensor, is_causal", "mesh, data, is_causal")
    assert "draw different masks" in failure(r"(dropout\(.*, 0.1, .*, mesh, data)\)", r"\1, tensor)")
    assert "have the same mask" in failure("seed_of\\(SEED, mesh.step, site, ", "seed_of(SEED, mesh.step, ")
    assert "another step" in failure("seed_of\\(SEED, mesh.step, ", "seed_of(SEED, ")
    assert "random state" in failure("generator.set_state\\(before\\)", "pass")
    assert "the largest error" in failure("approximate=.none.", "approximate='tanh'")


def trained(program: ModuleType, batch: dict[str, Tensor], rank: int) -> list[float]:
    """The losses of three steps."""
    module = materialize(Net())
    mesh, model, optimizer = program.build(state_of(module))
    before = torch.get_rng_state()
    losses = [float(program.train_step(model, optimizer, batch, mesh, step)) for step in range(3)]
    assert torch.equal(before, torch.get_rng_state())
    module.load_state_dict(program.whole_weights(model, mesh))
    assert abs(float(program.evaluate(model, batch, mesh)) - module.eval()(**batch).item()) < 1e-12
    return losses


def test_what_one_rank_draws(tmp_path: Path) -> None:
    """The same losses in every run and with recomputation, none dropped in evaluation, torch's state as it was."""
    single, losses = Machine.adhoc((1,)), list[list[float]]()
    batch = {"x": torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)}
    for recompute in ("none", "none", "full"):
        plan = plan_graph(graph(), single, Training(BATCH, "float64"), SearchSpace(recompute=recompute))
        plan.emit(tmp_path / "program.py")
        assert ("recomputed(" in (tmp_path / "program.py").read_text()) == (recompute == "full")
        losses.append(run_threads(partial(trained, load_program(tmp_path / "program.py"), batch), 1)[0])
    assert losses[0] == losses[1] == losses[2]


def test_hand_written_plans_draw_from_counters() -> None:
    with pytest.raises(PartitaError, match='capture the model with dropout="counters"'):
        Graph(graph())
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2))
    captured = capture(module, (torch.zeros(4, 4),), loss="projection")
    assert draws_natively(captured) and not draws_natively(Graph(captured).pcg)


def test_prices_and_files(tmp_path: Path) -> None:
    """A pass and a half where counters take 25; a plan file says which."""
    index, entry = graph().of("dropout")[0], operator("dropout")
    assert [entry.moved(each.nodes[index]) for each in (graph(), from_counters(graph()))] == [1.5, 25]
    assert not any(row.special for row in rows(graph(), graph().of("attention")[0]))  # a ring drops nothing
    plan = heads_and_samples()
    plan.save(tmp_path)
    loaded = load_plan(tmp_path)
    assert is_native_plan(loaded) and loaded.emit() == plan.emit() and not is_native_plan(counted(loaded))
    with pytest.raises(PartitaError, match="dropout 'cuda': choose from torch, counters"):
        Training(BATCH, dropout="cuda")
