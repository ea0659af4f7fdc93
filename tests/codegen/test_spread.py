"""Joined tables that are spread over the coordinates of an axis, with one exchange each way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.table_spread import plan_spread
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.facts import facts
from partita.codegen.report.text import text
from partita.codegen.verification.special import verify_strategy
from partita.codegen.verification.threads import RankError, run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.layout import Action
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import some

BATCH = 31


def planned(name: str, mesh: tuple[int, ...], strategy: str = "spread") -> Plan:
    graph = capture(*load_module(name, small=True), batch=BATCH)
    training, space = Training(BATCH, "float64", "sgd"), SearchSpace(mesh=mesh, fix=(("tables", strategy),), stages=1)
    return plan_graph(graph, Machine.adhoc(mesh), training, space, context=Context({"reference": name, "small": True}))


def table_of(plan: Plan) -> int:
    (found,) = (i for i in plan.graph.of("parameter") if plan.graph.nodes[i].get("tables"))
    return found


def test_its_examples() -> None:
    verdicts = verify_strategy("spread")
    assert {(verdict["example"], verdict["ranks"]) for verdict in verdicts} == {
        (e, r) for e in range(3) for r in (2, 3)
    }
    assert all(verdict["ok"] for verdict in verdicts), verdicts


@pytest.mark.parametrize("ranks", some([2, 3, 4, 6, 8]))
@pytest.mark.parametrize("name", ["dlrm", "xdl"])
def test_the_zoo(name: str, ranks: int) -> None:
    """Sparse gradients, samples that do not divide."""
    plan = planned(name, (ranks,))
    verdict = plan.verify()
    assert verdict["ok"], verdict
    (lookup,) = (i for op in ("embedding", "embedding_bag") for i in plan.graph.of(op))
    items = [item for item in stage_price(plan).items if item.node == lookup]
    sent = [item.phase for item in items if item.kind == Action.EXCHANGE.value]
    assert sent == ["forward", "backward"]


def test_beside_an_axis_of_copies() -> None:
    for mesh, strategy in (((2, 3), "R,spread"), ((3, 2), "spread,R")):
        plan = planned("dlrm", mesh, strategy)
        assert plan.verify()["ok"]


class Clicks(nn.Module):
    """Tables with dense gradients, of a width that two heads share."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 8, sparse=sparse) for rows in (10, 2, 9))
        self.weigh, self.score = nn.Parameter(torch.ones(2, 1)), nn.Linear(24, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        loss: Tensor = self.score((found.unflatten(2, (2, 4)) * self.weigh).flatten(1)).square().mean()
        return loss


IDS = (torch.zeros(26, 3, dtype=torch.int64),)


def clicks(
    module: nn.Module, mesh: tuple[int, ...], strategy: str, dtype: str = "float64", optimizer: str = "adamw"
) -> Plan:
    training = Training(26, dtype, optimizer)
    space = SearchSpace(mesh=mesh, micro_batches=2, fix=(("tables", strategy),), stages=1)
    return plan_graph(capture(module, IDS, batch=26), Machine.adhoc(mesh), training, space)


@pytest.mark.parametrize(("mesh", "strategy"), [((5,), "spread"), ((2, 2), "spread,B"), ((2, 2), "R,spread")])
def test_dense_gradients(mesh: tuple[int, ...], strategy: str) -> None:
    """Optimizer states, copies over another axis, micro-batches."""
    module = Clicks()
    assert verify(clicks(module, mesh, strategy), module=module, inputs=IDS)["ok"]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16", "mixed-float16"])
def test_in_every_precision(dtype: str, sparse: bool) -> None:
    module = Clicks(sparse)
    plan = clicks(module, (3,), "spread", dtype, "sgd")
    assert verify(plan, module=module, inputs=IDS)["ok"]


class Layers(nn.Module):
    """Layers of one kind, each with tables of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.zeros(26, 8)
        for layer in self.layers:
            x = layer(x, ids)
        return x.square().mean()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables, self.mix = nn.ModuleList(nn.Embedding(n, 4) for n in (5, 3)), nn.Linear(8, 8)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        found = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        return torch.tanh(self.mix(x + found))


def test_layers_are_a_loop() -> None:
    module, ids = Layers(), (torch.zeros(26, 2, dtype=torch.int64),)
    graph = capture(module, ids, batch=26)
    lookups = [graph.nodes[i].name for i in graph.of("embedding")]
    training = Training(26, "float64", "adamw")
    space = SearchSpace(mesh=(2,), fix=tuple((name, "spread") for name in lookups), stages=1)
    plan = plan_graph(graph, Machine.adhoc((2,)), training, space)
    assert 'SPREAD[f"layers.{i}.tables.weight"]' in plan.emit()
    assert verify(plan, module=module, inputs=ids)["ok"]


def test_checkpoints_go_from_plan_to_plan(tmp_path: Path) -> None:
    """From the module through a spread over 4 ranks, rows over 3, a spread over 5, back to the module."""
    first, last = Clicks().double(), Clicks().double()
    torch.save(first.state_dict(), tmp_path / "0.pt")
    for number, (mesh, strategy) in enumerate((((4,), "spread"), ((3,), "ids"), ((5,), "spread"))):
        path = tmp_path / f"program{number}.py"
        clicks(Clicks(), mesh, strategy).emit(path)
        program = load_program(path)

        def work(_: int, program: Any = program, number: int = number) -> None:
            mesh = program.Mesh()
            model = program.Model(mesh, dtype=torch.float64)
            program.load(model, str(tmp_path / f"{number}.pt"), mesh)
            program.save(model, tmp_path / f"{number + 1}.pt", mesh)

        run_threads(work, program.RANKS)
    last.load_state_dict(torch.load(tmp_path / "3.pt", weights_only=True))
    for (name, a), (_, b) in zip(first.state_dict().items(), last.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_a_table_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clicks(Clicks(), (2,), "spread").emit(tmp_path / "program.py")
    program, state = load_program(tmp_path / "program.py"), Clicks().double().state_dict()
    del state["tables.1.weight"]

    def work(_: int) -> None:
        mesh = program.Mesh()
        program.load(program.Model(mesh, dtype=torch.float64), state, mesh)

    with pytest.raises(RankError):
        run_threads(work, 2)
    assert "the checkpoint has no tables.1.weight" in capsys.readouterr().err


def test_a_saved_plan_is_read_again(tmp_path: Path) -> None:
    plan = planned("dlrm", (3,))
    plan.save(tmp_path)
    again = Plan.load(tmp_path)
    assert again == replace(plan, module=None) and again.emit() == plan.emit()
    assert plan_spread(again, table_of(again)) == plan_spread(plan, table_of(plan))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda at: at[1:], "are missing"),
        (lambda at: [*at, at[0]], "overlap"),
        (lambda at: [[at[0][0], 0, 13, 0], *at[1:]], "are not in table"),
        (lambda at: [["other", *at[0][1:]], *at[1:]], "no table 'other'"),
        (lambda at: [[*at[0][:3], 7], *at[1:]], "no coordinate 7"),
        (lambda at: [[*piece[:3], 0] for piece in at], "coordinate 1 has no columns"),
        (lambda at: [], "tables have pieces where they are spread"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(change: Any, words: str) -> None:
    data = json.loads(json.dumps(planned("dlrm", (2,)).to_json()))
    data["choices"]["tables.weight"]["at"] = change(data["choices"]["tables.weight"]["at"])
    with pytest.raises(PartitaError, match=words):
        Plan.from_json(data)


def test_any_pieces_that_fit_are_emitted() -> None:
    """Not those of the solver: odd ranges, a table in the middle, and priced as they are."""
    plan = planned("xdl", (2,))
    data = json.loads(json.dumps(plan.to_json()))
    names = list(plan.graph.nodes[table_of(plan)].originals)
    at = [[name, 0, 12, k % 2] for k, name in enumerate(names[:-1])]
    data["choices"]["tables.weight"]["at"] = [*at, [names[-1], 3, 12, 0], [names[-1], 0, 3, 1]]
    other = Plan.from_json(data)
    assert stage_price(other).objective_ns >= stage_price(plan).objective_ns
    assert other.verify()["ok"]


def test_what_is_told() -> None:
    plan = planned("dlrm", (3,))
    told = {s["name"]: s["tables"] for s in plan.summary()["strategies"] if "tables" in s}
    assert set(told) == {"tables.weight"} and told["tables.weight"].keys() == {f"tables.{k}.weight" for k in range(8)}
    assert all(place.startswith("@") for place in told["tables.weight"].values())
    assert f"tables.0.weight{' ' * 19}data:{told['tables.weight']['tables.0.weight']}" in str(plan)
    assert "spread over data, table by table" in str(plan)
    assert "TABLES" in text(facts(plan))
    assert "# tables over data" in plan.emit()
