"""Pipelined plans: emitted, verified beside the module, kept in files; what does not fit together is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.codegen.plan.plan import PipelinePlan, Plan
from partita.codegen.plan.plan_file import load_plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.graph_module import trial_of
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program, train
from partita.formulation.search_space import SearchSpace
from partita.model.errors import PartitaError
from partita.model.graph.layout import B, S
from partita.model.machine.machine import Machine
from partita.model.training import Training

from .beginnings import begun
from .conftest import Judge
from .pipelines import captured, piped

GPT2: dict[str, Any] = {"reference": "gpt2", "small": True}


@pytest.fixture(scope="module")
def gpt2() -> PipelinePlan:
    """Two stages of three layers over two ranks each; the embedding is tied."""
    return piped(captured("gpt2", 8), (4,), (2,), 4, model=GPT2)


def test_trains_like_the_module(gpt2: PipelinePlan) -> None:
    verdict = gpt2.verify()
    assert verdict["ok"], verdict
    assert verdict["checked"] > 80


def test_is_kept(gpt2: PipelinePlan, tmp_path: Path) -> None:
    gpt2.save(tmp_path / "plan")
    assert load_plan(tmp_path / "plan") == gpt2 == PipelinePlan.load(tmp_path / "plan" / "plan.json")
    gpt2.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").emit() == (tmp_path / "plan" / "program.py").read_text()
    assert verify(tmp_path / "plan", steps=1)["ok"]
    data = json.loads((tmp_path / "plan.json").read_text())
    assert "graph" in data and not any("graph" in stage for stage in data["stages"])


def test_its_choices_are_those_of_its_stages(gpt2: PipelinePlan) -> None:
    assert isinstance(gpt2, Plan) and gpt2.size == 2
    with pytest.raises(PartitaError, match="a pipelined plan has no PCG"):
        gpt2.parallel_graph()
    with pytest.raises(PartitaError, match=r"ask one of `plan\.stages`"):
        gpt2.layout_text(0, gpt2.stages[0].choices[0].output)
    assert not gpt2.separate_states


def test_what_does_not_fit_is_refused(gpt2: PipelinePlan) -> None:
    first, second = gpt2.stages
    for changed, why in (
        ({"row": (1,)}, "over 1 parts"),
        ({"bounds": (0, 3, 5)}, "stage 0: its graph is not what lies between its boundaries"),
        ({"bounds": (0, 5)}, "2 stages between boundaries"),
        ({"stages": (first,)}, "1 stages for 2 parts"),
        ({"schedule": "fastest"}, "choose from 1f1b, "),
        ({"chunks": 2}, "2 stages for 2 parts of the devices with 2 each"),
        ({"schedule": "gpipe"}, "stage 0 has room for 2 micro-batches, gpipe keeps 4"),
        ({"stages": (first, replace(second, optimizer="sgd"))}, "all stages share"),
        ({"machine": replace(gpt2.machine, name="another")}, "is planned for adhoc-4, a stage of 2, not"),
    ):
        with pytest.raises(PartitaError, match=why):
            replace(gpt2, **changed)


@pytest.mark.parametrize(("recompute", "schedule"), [("full", "1f1b"), ("none", "zero-bubble")])
def test_all_kinds_of_parallelism_at_once(judge: Judge, recompute: str, schedule: str) -> None:
    """16 ranks: pipeline x data x tensor x fully sharded, in micro-batches, with or without recomputation."""
    graph = captured("llama-7b", 32)
    columns = [f"layers.{i}.{name}" for i in range(2) for name in ("gate", "up")]
    heads = [f"layers.{i}.attention.{name}" for i in range(2) for name in ("query", "key", "value")]
    rows = [f"layers.{i}.down" for i in range(2)]
    split = {f"layers.{i}.attention": "b.0" for i in range(2)} | {
        f"layers.{i}.attention.output": "i:0" for i in range(2)
    }
    split |= dict.fromkeys(columns, "o") | dict.fromkeys(heads, "o:0") | dict.fromkeys(rows, "i") | {"scores": "o"}
    plan = piped(
        graph, (2, 8), (2, 1), 4, (2, 2, 2), bounds=(0, 2, 4), schedule=schedule, dtype="float64", recompute=recompute,
        fixed={name: ("b.1", row, "b.1") for name, row in split.items()},
        stored={f"{name}.weight": (B, S(int(name in rows)), S(int(name not in rows))) for name in columns + rows},
    )  # fmt: skip
    assert plan.ranks == 16 and plan.axes[:3] == ("pipeline", "data", "tensor")
    text = plan.emit()
    assert "gather" in text and ("recomputed(" in text) == (recompute != "none")
    judge(plan, graph)


def test_weights_begin_as_without_a_pipeline(gpt2: PipelinePlan, tmp_path: Path) -> None:
    """Any plan of a model begins with the same values, and saves them alike."""

    def initial(path: Path, ranks: int) -> dict[str, torch.Tensor]:
        program = load_program(path)

        def begin(_: int) -> dict[str, torch.Tensor]:
            mesh = program.Mesh()
            model = program.Model(mesh, dtype=torch.float32)
            program.initialize(model)
            found: dict[str, torch.Tensor] = program.whole_weights(model, mesh)
            return found

        return run_threads(begin, ranks)[0]

    graph = captured("gpt2", 8)
    alone = plan_graph(
        graph,
        Machine.adhoc((2,)),
        Training(8, "float32", "adamw"),
        SearchSpace(micro_batches=1, stages=1),
        context=Context(dict(GPT2)),
    )
    assert alone.size == 1 and isinstance(gpt2, Plan) and not isinstance(alone, PipelinePlan)
    begun(alone).emit(tmp_path / "alone.py")
    begun(gpt2).emit(tmp_path / "pipeline.py")
    wanted, found = initial(tmp_path / "alone.py", alone.ranks), initial(tmp_path / "pipeline.py", 4)
    assert found.keys() == wanted.keys() and len(found) > 30
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("dtype", ["mixed-float16", "mixed-bfloat16"])
def test_mixed_precision_trains(dtype: str, tmp_path: Path) -> None:
    """Scaled losses give the same gradients through all stages, up to what the narrow type rounds."""
    plan = piped(captured("mlp", 24), (2, 2), (2, 1), 3, (2,), dtype=dtype)
    made = trial_of(plan, tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    state = {name: value.float() for name, value in made.state.items()}
    found = run_threads(lambda _: train(program, state, made.batches, state, program.DTYPE), plan.ranks)[0]
    assert found is not None and found.losses == pytest.approx(made.truth.losses, rel=0.02)
    for name, value in made.truth.gradients.items():
        assert (found.gradients[name].double() - value).norm() <= 0.15 * value.norm(), name
    assert {value.dtype for value in found.weights.values()} == {torch.float32}
