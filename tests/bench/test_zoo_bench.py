"""The bench of the zoo plans small twins, and says what is missing where a model fits nowhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from partita.bench import bench, zoo
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine


def test_small_twins_are_planned_to_the_end() -> None:
    result = bench("zoo", small=True, only=("mlp", "dlrm"))
    assert [row["model"] for row in result["rows"]] == ["mlp", "dlrm"]
    assert all(row["status"] == "optimal" and row["gap"] == 0 for row in result["rows"])
    assert all(0 < row["capture_s"] < row["total_s"] and row["memory_gib"] > 0 for row in result["rows"])


def test_what_fits_nowhere_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(name: str, nodes: int) -> Machine:
        machine = Machine.load(name, nodes=nodes)
        device = machine.device
        return replace(machine, device=replace(device, memory_bytes=device.reserved_bytes + 5000))

    monkeypatch.setattr(zoo, "Machine", type("Machine", (), {"load": staticmethod(tiny)}))
    row = zoo.measure("mlp", small=True)
    assert re.search(r"[1-9][0-9.]* (B|KiB) are missing", row["status"]) and row["gap"] is None and row["total_s"] > 0


def test_a_name_that_no_model_has_is_refused() -> None:
    with pytest.raises(PartitaError, match="no model has nothing such in its name"):
        bench("zoo", small=True, only=("nothing such",))
