"""The models of `bench models` that need nothing but PyTorch; how refusals and failures become rows."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from partita.bench import models
from partita.bench.models import EMPTY, apart, first_sentence, measured, totals


def test_a_model_is_planned_and_verified() -> None:
    row = measured("graph convolution")
    assert row["result"] == "verified"
    assert row["unsplit"] < 0.1


def test_a_process_that_fails_becomes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(command: Any, **options: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nKeyError: 'x'\n")

    monkeypatch.setattr(models.subprocess, "run", failed)
    rows = [apart("GPT-2"), EMPTY | {"result": "verified", "unsplit": 0.2}]
    assert rows[0]["result"] == "crashed: KeyError: 'x'"
    assert totals(rows) == {"models": 2, "verified": 1, "split": 0, "wrong": 1}


def test_the_first_sentence_of_a_refusal() -> None:
    assert first_sentence("cannot capture x, at model.py:3: y = x[0]; write z instead") == (
        "cannot capture x, at model.py:3: y = x[0]"
    )
