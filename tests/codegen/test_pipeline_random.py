"""Pipelined plans with any legal choices, on many meshes and in every schedule, trained beside the whole graph."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from partita.codegen.verification.meeting import Hub
from partita.codegen.verification.verify import verify
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module

from ..levels import some
from .conftest import Judge
from .pipelines import at_random, captured

SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "eager-1f1b": {"schedule": "eager-1f1b"},
    "gpipe": {"schedule": "gpipe"},
    "interleaved": {"schedule": "interleaved", "chunks": 2},
    "recomputed": {"recompute": True},
}


@pytest.fixture(autouse=True)
def _shuffled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranks take turns in a random order."""
    made: list[Hub] = []

    def shuffled(ranks: int, _: bool) -> Hub:
        made.append(Hub(ranks, shuffled=True))
        return made[-1]

    monkeypatch.setattr("partita.codegen.verification.threads.Hub", shuffled)
    yield
    assert made


@pytest.mark.parametrize(
    ("name", "size", "mesh", "micros", "schedule"),
    some(
        [
            ("mlp", 4, (1,), 6, "eager-1f1b"),
            ("mlp", 2, (2,), 2, "interleaved"),
            ("gpt2", 4, (2,), 4, "recomputed"),
            ("gpt2", 2, (3,), 4, "interleaved"),
            ("llama-7b", 2, (3,), 3, "gpipe"),
            ("bert-large", 3, (2, 2), 6, "1f1b"),
            ("mbart-32b", 3, (2,), 3, "recomputed"),
            ("mbart-32b", 2, (2,), 4, "interleaved"),  # three stages have the embedding, two of them on one device
            ("candle-uno", 2, (2, 2), 2, "gpipe"),
            ("mixtral-8x7b", 3, (2,), 1, "1f1b"),
        ]
    ),
)
def test_any_choices(judge: Judge, name: str, size: int, mesh: tuple[int, ...], micros: int, schedule: str) -> None:
    graph = captured(name, 12)
    plan = at_random(graph, size, mesh, micros, random.Random(f"{name} {size} {mesh}"), **SCHEDULES[schedule])
    judge(plan, graph)


@pytest.mark.parametrize(
    ("name", "size", "mesh", "micros"), [("resnext-50", 4, (2,), 3), ("swin-1.8b", 2, (2,), 2), ("dlrm", 2, (3,), 2)]
)
def test_with_buffers(name: str, size: int, mesh: tuple[int, ...], micros: int) -> None:
    """Running statistics, positions and sparse tables: beside the module, whose buffers a graph does not know."""
    module, inputs = load_module(name, small=True, device="cpu")
    graph = capture(module, inputs, batch=12, statistics="micro-batch")
    optimizer = "sgd" if name == "dlrm" else "adam"
    plan = at_random(graph, size, mesh, micros, random.Random(name), optimizer=optimizer)
    verdict = verify(plan, steps=2, module=module, inputs=inputs)
    assert verdict["ok"], verdict
