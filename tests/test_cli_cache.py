"""`partita plan` with answers that are kept: the same plan sooner, whatever has become of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.solvers.cache.store import FILE

Run = Callable[..., tuple[int, str, str]]
PLAN = ("plan", "mlp", "--small", "--hierarchy", "2x2", "--json")


def answer(said: tuple[int, str, str]) -> dict[str, Any]:
    """All of the answer but its times, and the words beside it."""
    code, output, words = said
    found: dict[str, Any] = json.loads(output)
    assert code == 0 and found.pop("seconds")
    return found | {"words": words}


def test_what_was_planned_once_is_planned_again_without_solving(partita: Run, tmp_path: Path) -> None:
    plain, first, second = (
        answer(partita(*PLAN, *options))
        for options in ((), ("--cache", tmp_path / "made"), ("--cache", tmp_path / "made"))
    )
    solved = plain["space"]["networks_solved"]
    assert [x["space"].pop("networks_kept") for x in (plain, first, second)] == [0, 0, solved] and solved
    assert plain == first == second and plain["words"] == ""


def test_the_environment_names_the_folder(partita: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "named"))
    for option in (("--no-cache",), ("--cache", "none")):
        partita(*PLAN, *option)
        assert not (tmp_path / "named").exists()
    partita(*PLAN)
    assert (tmp_path / "named" / FILE).exists()
    assert answer(partita(*PLAN))["space"]["networks_kept"]


def test_a_damaged_file_costs_a_line(partita: Run, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database" * 1000)
    plain, mended = answer(partita(*PLAN)), answer(partita(*PLAN, "--cache", tmp_path))
    assert mended.pop("words") == (
        f"partita: the cache {tmp_path / FILE} was damaged; moved to {FILE}.corrupt-1 and recreated\n"
    )
    assert plain.pop("words") == "" and plain == mended


def test_a_folder_that_cannot_be_made_costs_a_line(partita: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = answer(partita(*PLAN, "--cache", tmp_path / "file"))
    assert found["words"].startswith(f"partita: the cache {tmp_path / 'file' / FILE} cannot be used")
    assert found["words"].count("\n") == 1


def test_an_empty_path_is_refused(partita: Run) -> None:
    code, output, words = partita(*PLAN, "--cache", "")
    assert (code, output) == (2, "") and words.count("\n") == 1 and "the path of the cache is empty" in words
