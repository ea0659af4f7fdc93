"""PipeDream-2BW: steps that do not wait for each other, with gradients at the weights of a step ago."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.verification import graph_module
from partita.codegen.verification.graph_module import trial_of
from partita.codegen.verification.reference import Semantics
from partita.codegen.verification.verify import run
from partita.codegen.verification.worker import load_program
from partita.model.errors import PartitaError

from .conftest import Judge
from .pipelines import at_random, captured, piped


@pytest.mark.parametrize(
    ("name", "size", "mesh", "micros"),
    [("mlp", 4, (1,), 4), ("gpt2", 3, (2,), 3), ("mbart-32b", 2, (2,), 2)],
)
def test_any_choices(judge: Judge, name: str, size: int, mesh: tuple[int, ...], micros: int) -> None:
    graph = captured(name, 12)
    judge(at_random(graph, size, mesh, micros, random.Random(name), schedule="2bw"), graph, steps=3)


def test_it_is_not_what_training_in_turn_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge sees the staleness: the first loss is the same, then losses and weights differ."""
    plan = piped(captured("mlp", 24), (2,), (2,), 4, schedule="2bw")
    assert run([trial_of(plan, tmp_path / "program.py", 3)])[0]["ok"]
    monkeypatch.setattr(graph_module, "semantics", lambda _: Semantics())
    verdict = run([trial_of(plan, tmp_path / "program.py", 3)])[0]
    assert verdict["gradient_error"] < 1e-12 and verdict["loss_error"] > 1e-6 and verdict["weight_error"] > 1e-6


def test_no_step_waits_for_the_one_before(tmp_path: Path) -> None:
    """Every device begins a step before the update of the last one, which comes before the step after that."""
    path = tmp_path / "program.py"
    piped(captured("mlp", 24), (4,), (4,), 4, schedule="2bw").emit(path)
    program = load_program(path)
    for device in range(4):
        slots = list(program.order(device, program.PIPELINE, program.MICRO_BATCHES, 3))
        place = {slot: number for number, slot in enumerate(slots)}
        assert len(place) == len(slots) == 2 * 12 + 3
        for step in range(2):
            assert place["forward", device, 4 * step + 4] < place["update", device, step]
        assert place["update", device, 0] < place["forward", device, 8]


def test_two_versions_are_priced() -> None:
    stale, flushed = (piped(captured("gpt2", 16), (4,), (4,), 4, schedule=name) for name in ("2bw", "1f1b"))
    assert plan_price(stale).objective_ns == max(plan_price(stale).busy_ns) < plan_price(flushed).objective_ns
    for number, (two, one) in enumerate(zip(plan_price(stale).stages, plan_price(flushed).stages, strict=True)):
        graph = stale.stages[number].graph
        weights = 4 * sum(graph.nodes[i].numel for i in graph.of("parameter"))
        assert two.memory_bytes - one.memory_bytes == weights * (1 if number < 2 else 2)


def test_what_cannot_be_stale_is_refused() -> None:
    plan = piped(captured("mlp", 24), (2,), (2,), 4, schedule="2bw")
    few = tuple(replace(part, micro_batches=1, in_flight=1) for part in plan.stages)
    with pytest.raises(PartitaError, match="2bw with 2 stages needs at least 2 micro-batches, not 1"):
        replace(plan, stages=few)
    with pytest.raises(PartitaError, match="does not scale losses"):
        replace(plan, stages=tuple(replace(part, dtype="mixed-float16") for part in plan.stages))
