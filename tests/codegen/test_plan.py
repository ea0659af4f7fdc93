"""Plans are saved, read again, and refused where they cannot be run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.plan import Plan
from partita.model.pcg import PCG, Builder

Force = Callable[..., Plan]
Edit = Callable[[dict[str, Any]], Any]


def graph() -> PCG:
    b = Builder(4)
    x, t = b.input("x", (4, 6)), b.input("target", (4, 6))
    h = b.add("linear", x, b.parameter("up.weight", (8, 6)), shape=(4, 8), name="up", path="up")
    y = b.add("linear", h, b.parameter("down.weight", (6, 8)), shape=(4, 6), name="down", path="down")
    return b.build(b.add("mse_loss", y, t, shape=(), reduction="mean", name="loss"))


@pytest.fixture
def plan(force: Force) -> Plan:
    return force(graph(), (2, 2), random.Random(1))


def test_round_trip(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    plan.save(tmp_path / "folder")
    assert Plan.load(tmp_path / "plan.json") == plan == Plan.load(tmp_path / "folder")
    assert (tmp_path / "folder" / "program.py").read_text() == plan.emit()


def test_summary_has_every_node_and_is_json(plan: Plan) -> None:
    summary = json.loads(json.dumps(plan.summary(), allow_nan=False))
    assert [s["name"] for s in summary["strategies"]] == [n.name for n in plan.graph.nodes]
    assert sorted(summary["mesh"].values()) == [2, 2]
    assert "up.weight" in str(plan)


def _in(*path: str | int) -> Callable[[Any], Edit]:
    def value(new: Any) -> Edit:
        def edit(data: dict[str, Any]) -> None:
            place: Any = data
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = new

        return edit

    return value


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_in("format")(2), "format 2"),
        (_in("placement")([[2, 2]]), "placement"),
        (_in("placement")([[4], [2]]), "does not fit"),
        (_in("placement")([[0], [4]]), "factor below 1"),
        (_in("micro_batches")(0), "0 micro-batches"),
        (_in("micro_batches")(1.5), "not an integer"),
        (_in("dtype")("int8"), "int8"),
        (_in("optimizer")("lion"), "lion"),
        (_in("choices", "up", "output")(["Q", "R"]), "no letter"),
        (_in("choices", "up", "output")(["R"]), "1 letters|shorter|no strategy"),
        (_in("choices", "up", "inputs")([["P", "P"], ["P", "P"]]), "no strategy"),
        (_in("choices", "up", "output")(["S(9)", "R"]), "no letter"),
        (_in("choices", "up", "regather")(True), "no parameter"),
        (_in("choices", "up.weight", "sharded_states")("yes"), "true or false"),
        (_in("choices", "up.weight", "colour")("red"), "colour"),
        (_in("choices", "nobody")({"inputs": [], "output": ["R", "R"]}), "nobody"),
        (lambda d: d["choices"].pop("up"), "missing"),
        (lambda d: d.pop("machine"), "missing"),
        (lambda d: d.pop("graph"), "not a plan"),
        (_in("machine", "device", "memory_bytes")(-1), "reserves"),
        (_in("machine", "levels", 0, "bandwidth")("fast"), "not a number"),
        (_in("graph", "nodes", 2, "shape")([4, 7]), "node 2|down|up"),
        (_in("graph", "loss")(77), "loss"),
    ],
)
def test_edits_are_refused(plan: Plan, edit: Edit, message: str) -> None:
    data = copy.deepcopy(plan.to_json())
    edit(data)
    with pytest.raises(PartitaError, match=message):
        Plan.from_json(data)


@pytest.mark.parametrize("cut", [0, 1, 100, 1000, -2])
def test_a_truncated_file_is_refused(plan: Plan, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(path.read_text()[:cut])
    with pytest.raises(PartitaError, match=r"plan\.json"):
        Plan.load(path)


def test_a_number_that_is_none_is_refused(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(path.read_text().replace('"micro_batches": 1', '"micro_batches": NaN'))
    with pytest.raises(PartitaError, match="NaN"):
        Plan.load(path)
