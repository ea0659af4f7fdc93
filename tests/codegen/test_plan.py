"""Plans are saved, read again, and refused where they cannot be run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita import Machine, NoPlanError, PartitaError, optimize
from partita.codegen.plan.plan import Plan
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.solvers.protocol import Progress

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
    plan.save(tmp_path / "new" / "plan.json")
    plan.save(tmp_path / "folder")
    assert Plan.load(tmp_path / "new" / "plan.json") == plan == Plan.load(tmp_path / "folder")
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


def test_a_plan_keeps_the_module_that_it_was_made_from() -> None:
    module, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), torch.zeros(4, 6)
    made = optimize(module, (x,), Machine.adhoc((2,)), batch=8, loss="projection")
    assert made.module is not None and made.module[0] is module
    assert made.verify()["ok"]  # nothing but the plan says how to build it
    for alone in ({"inputs": (x,)}, {"loss": "projection"}):
        with pytest.raises(PartitaError, match="give verify that module"):
            made.verify(**alone)
    again = Plan.from_json(made.to_json())
    assert again == made and again.module is None
    with pytest.raises(PartitaError, match="give verify the module"):
        again.verify()
    assert again.verify(module=module, inputs=(x,))["ok"]


@pytest.mark.parametrize("module", ["x", None, nn.Linear])
def test_what_is_no_module_is_refused(module: Any) -> None:
    with pytest.raises(PartitaError, match=r"torch\.nn\.Module"):
        optimize(module, (), Machine.adhoc((2,)))


def test_no_plan_in_time_raises_with_its_summary() -> None:
    module, x = nn.Linear(6, 8), torch.zeros(4, 6)
    with pytest.raises(NoPlanError) as found:
        optimize(module, (x,), Machine.adhoc((2,)), time_limit=1e-9, loss="projection")
    assert found.value.summary["status"] == "unknown" and not found.value.interrupted
    assert found.value.summary.keys() == optimize(module, (x,), Machine.adhoc((2,)), loss="projection").summary().keys()


def test_progress_tells_of_plans_that_fit_and_get_no_worse() -> None:
    with torch.device("meta"):
        layers = [nn.Linear(256, 256) for _ in range(6)]
        module, x = nn.Sequential(*layers), torch.zeros(64, 256)
    roomy = optimize(module, (x,), Machine.adhoc((2, 2)), loss="projection")
    tight = Machine.adhoc((2, 2))
    device = replace(tight.device, memory_bytes=tight.device.reserved_bytes + roomy.report["memory_bytes"] * 4 // 5)
    told: list[Progress] = []
    plan = optimize(
        module,
        (x,),
        replace(tight, device=device),
        loss="projection",
        progress=lambda p: told.append(p) if isinstance(p, Progress) else None,
    )
    assert plan.report["objective_ns"] > roomy.report["objective_ns"] and plan.report["gap"] == 0
    costs = [p.incumbent for p in told if p.incumbent is not None]
    assert costs == sorted(costs, reverse=True) and costs[-1] == plan.report["objective_ns"]
    assert all(p.bound <= plan.report["objective_ns"] for p in told)


def test_the_space_lists_the_micro_batches_that_are_admitted() -> None:
    def counts(module: nn.Module) -> list[int]:
        plan = optimize(module, (torch.zeros(4, 6),), Machine.adhoc((2,)), loss="projection")
        found: list[int] = plan.report["space"]["micro_batches"]
        return found

    assert counts(nn.Linear(6, 8)) == [1, 2, 4]
    assert counts(nn.Sequential(nn.Linear(6, 8), nn.Softmax(dim=0))) == [1]


def test_a_machine_survives_json() -> None:
    machine = Machine.load("summit", nodes=2)
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine
