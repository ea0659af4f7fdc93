"""Pipelined plans: emitted, verified beside the module, kept in files; what does not fit together is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita.codegen.pipeline.file import load_plan
from partita.codegen.pipeline.plan import PipelinePlan
from partita.codegen.verification.verify import verify
from partita.model.errors import PartitaError

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
