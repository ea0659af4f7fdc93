"""Programs of a few random plans; the evidence is `partita bench programs`."""

from __future__ import annotations

from typing import Any

import pytest

from partita.bench import programs
from partita.bench.programs import Program, run, totals


def test_random_programs_train_right_in_any_order_of_turns() -> None:
    sums = totals(run(True, (), print, count=2, seed=3))
    assert sums["cases"] == 2 and sums["failed"] == 0
    assert sums["behind"] > 0


def test_a_result_that_depends_on_turns_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ranks call collectives in an order that depends on which one is first."""
    errors = iter((0.0, 1e-12))

    def verdicts(*_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"ok": True, **dict.fromkeys(programs.ERRORS, next(errors))}]

    monkeypatch.setattr(programs, "verdicts", verdicts)
    told: list[str] = []
    (row,) = run(True, (), told.append, count=1, seed=3)
    assert row["why"] == "the order of turns changes the result"
    assert any("program = Program(3)" in words for words in told)


def test_the_program_of_a_seed_is_the_same_every_time() -> None:
    one, other = (Program(3).planned()[0].emit() for _ in range(2))
    assert one == other
