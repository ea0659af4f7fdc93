"""Tables joined in one parameter: programs train them, and know them by their own names."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.threads import RankError
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import some
from .beginnings import begun, saved

BATCH = 12
ROWS = (10, 2, 9, 4)
IDS = torch.zeros(BATCH, 4, dtype=torch.int64)
BAGS = torch.zeros(BATCH, 4, 3, dtype=torch.int64)
Force = Callable[..., Plan]


class Clicks(nn.Module):
    """Four tables of 25 rows in all, whose 8 columns are two heads of four; `norm` has running statistics."""

    def __init__(self, bags: bool = False, sparse: bool = True, norm: bool = False) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bags else nn.Embedding
        options = {"mode": "sum"} if bags else {}
        self.tables = nn.ModuleList(kind(rows, 8, sparse=sparse, **options) for rows in ROWS)
        self.weigh = nn.Parameter(torch.ones(2, 1))
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.score = nn.Linear(32, 1)

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        found = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        heads = found.unflatten(2, (2, 4)) * self.weigh
        loss: Tensor = 30 * (self.score(self.norm(heads.flatten(1))).squeeze(1) - y).square().mean()
        return loss


def planned(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    mesh: tuple[int, ...],
    strategy: str = "",
    micro_batches: int = 1,
    dtype: str = "float64",
    optimizer: str = "sgd",
) -> Plan:
    fix = (("tables", strategy),) if strategy else ()
    training = Training(BATCH, dtype, optimizer)
    space = SearchSpace(mesh=mesh, micro_batches=micro_batches, fix=fix, stages=1)
    loss = None if isinstance(module, Clicks) else "projection"
    return plan_graph(capture(module, inputs, batch=BATCH, loss=loss), Machine.adhoc(mesh), training, space)


def judged(plan: Plan, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    verdict = verify(plan, module=module, inputs=inputs)
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize(
    ("mesh", "strategy"),
    some(
        [
            ((2,), "ids"),
            ((2,), "e:0"),
            ((2,), "e:1"),
            ((2,), "R"),
            ((4,), "ids"),
            ((7,), "ids"),
            ((2, 2), "ids,e:1"),
            ((2, 2), "e:0,ids"),
            ((3, 2), "ids,ids"),
            ((2, 3), "R,ids"),
        ]
    ),
)
def test_a_program_trains_joined_tables(mesh: tuple[int, ...], strategy: str, micro_batches: int) -> None:
    """Rows split across tables, columns within or between heads, some axes without a split."""
    for bags in (False, True):
        module, inputs = Clicks(bags), (BAGS if bags else IDS, torch.zeros(BATCH))
        plan = planned(module, inputs, mesh, strategy, micro_batches)
        assert [len(node.originals) for node in plan.graph.nodes if node.op.startswith("embedding")] == [1]
        judged(plan, module, inputs)


@pytest.mark.parametrize("seed", some(range(12), 4))
def test_any_strategy_of_dense_ones(seed: int, force: Force) -> None:
    """States sharded, tables gathered for use, copies with gradients to add up; in every order of axes."""
    module, inputs = Clicks(bags=seed % 2 == 1, sparse=False), (BAGS if seed % 2 else IDS, torch.zeros(BATCH))
    graph = capture(module, inputs, batch=BATCH)
    plan = force(graph, ((2,), (3,), (2, 2), (3, 2))[seed % 4], random.Random(seed))
    judged(plan, module, inputs)


def test_beside_running_statistics() -> None:
    module, inputs = Clicks(norm=True), (IDS, torch.zeros(BATCH))
    judged(planned(module, inputs, (2, 2), "ids,ids"), module, inputs)


@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16", "mixed-float16"])
def test_in_every_precision(dtype: str) -> None:
    module, inputs = Clicks(), (IDS, torch.zeros(BATCH))
    judged(planned(module, inputs, (2, 2), "ids,e:0", 2, dtype), module, inputs)


class Many(nn.Module):
    """More tables than fit a line."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100 + i, 4) for i in range(40))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)


def test_long_lists_of_numbers_stand_on_top(tmp_path: Path) -> None:
    module, ids = Many(), torch.zeros(BATCH, 40, dtype=torch.int32)
    plan = planned(module, (ids,), (2,), optimizer="adamw")
    judged(plan, module, (ids,))
    path = tmp_path / "program.py"
    begun(plan).emit(path)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,B,I"]):
        done = subprocess.run(
            [*ruff, *command, "--isolated", "--line-length", "120", path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
    program = load_program(path)
    drawn = program.synthetic(0)["ids"]
    assert drawn.dtype == torch.int32
    assert program.VALUES["ids"] == [100 + i for i in range(40)]
    assert all(100 > drawn[:, i].max() - i > drawn[:, i].min() - i >= -i for i in range(40))


class Layers(nn.Module):
    """Layers of one kind, each with tables of its own."""

    def __init__(self, rows: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(of_layer) for of_layer in rows)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.zeros(BATCH, 8)
        for layer in self.layers:
            x = layer(x, ids)
        return x


class Layer(nn.Module):
    def __init__(self, rows: tuple[int, int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in rows)
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        found = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        return torch.tanh(self.mix(x + found))


@pytest.mark.parametrize("rows", [[(5, 3)] * 4, [(5, 3)] * 3 + [(3, 5)]])
def test_tables_of_equal_layers(rows: list[tuple[int, int]]) -> None:
    """One class names the tables of its layer; (5, 3) and (3, 5) are as many rows, but other tables."""
    module = Layers(rows)
    plan = planned(module, (IDS,), (2,), optimizer="adamw")
    text = plan.emit()
    assert 'tables={f"layers.{i}.tables.0.weight": 5, f"layers.{i}.tables.1.weight": 3}' in text
    assert ('tables.1.weight": 5}' in text) == (len(set(rows)) > 1)
    judged(plan, module, (IDS,))


def test_tables_of_other_names_are_no_layers() -> None:
    """As a file may have them: the layer's own class could not name them."""
    data = json.loads(json.dumps(planned(Layers([(5, 3)] * 3), (IDS,), (2,), optimizer="adamw").to_json()))
    for number, node in enumerate(n for n in data["graph"]["nodes"] if "tables" in n["attributes"]):
        node["attributes"]["tables"] = [[f"a{number}", 5], [f"layers.b{number}", 3]]
    text = Plan.from_json(data).emit()
    assert 'tables={"a2": 5, "layers.b2": 3}' in text


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same model with rows split, columns split, tables whole, and on one rank."""
    folder = tmp_path_factory.mktemp("tables")
    paths = []
    for number, (mesh, strategy) in enumerate((((4,), "ids"), ((2, 2), "e:1,ids"), ((2,), "R"), ((1,), "R"))):
        plan = planned(Clicks(), (IDS, torch.zeros(BATCH)), mesh, strategy)
        paths.append(folder / f"program{number}.py")
        begun(plan).emit(paths[-1])
    return paths


def test_checkpoints_are_those_of_the_module(programs: list[Path], tmp_path: Path) -> None:
    """From the module through every plan after another, back to the module."""
    first, last = Clicks().double(), Clicks().double()
    torch.save(first.state_dict(), tmp_path / "0.pt")
    for number, path in enumerate(programs):
        saved(path, tmp_path / f"{number}.pt", tmp_path / f"{number + 1}.pt")
    last.load_state_dict(torch.load(tmp_path / f"{len(programs)}.pt", weights_only=True))
    for (name, a), (_, b) in zip(first.state_dict().items(), last.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_random_values_do_not_depend_on_the_plan(programs: list[Path], tmp_path: Path) -> None:
    one, *others = (saved(path, None, tmp_path / "initial.pt") for path in programs)
    assert {f"tables.{i}.weight" for i in range(4)} < one.keys()
    for other in others:
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_table_that_is_missing_or_of_another_size_is_named(
    programs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Clicks().double().state_dict()
    for damaged, words in (
        ({k: v for k, v in state.items() if k != "tables.2.weight"}, "damaged.pt has no tables.2.weight"),
        (state | {"tables.1.weight": torch.zeros(3, 8)}, "damaged.pt, not [2, 8]"),
    ):
        torch.save(damaged, tmp_path / "damaged.pt")
        with pytest.raises(RankError):
            saved(programs[0], tmp_path / "damaged.pt", tmp_path / "never.pt")
        assert words in capsys.readouterr().err


def test_a_saved_plan_is_read_again(tmp_path: Path) -> None:
    plan = planned(Clicks(), (IDS, torch.zeros(BATCH)), (2, 2), "ids,e:0", 2)
    plan.save(tmp_path)
    again = Plan.load(tmp_path)
    assert again == replace(plan, module=None) and again.emit() == plan.emit()
