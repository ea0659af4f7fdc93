"""Programs begin with the values of their modules: every rank makes its own part of them."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.planner import plan as plan_model
from partita.codegen.verification.threads import RankError, run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine
from partita.model.machine.machine_choice import MachineChoice
from partita.solvers.budget import Budget

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 22), nn.Linear(22, WIDTH)
        nn.init.normal_(self.down.weight, std=0.02 / layers**0.5)
        nn.init.orthogonal_(self.up.weight)
        self.scale = nn.Parameter(1e-5 * torch.ones(WIDTH))

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(x * self.gamma)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, WIDTH, padding_idx=33)
        self.blocks = nn.Sequential(*(Block(3) for _ in range(3)))
        self.position = nn.Parameter(torch.zeros(1, 4, WIDTH))
        nn.init.trunc_normal_(self.position)
        self.level = nn.Parameter(torch.randn(()))

    def forward(self, ids):
        return (self.level * self.blocks(self.table(ids) + self.position)).square().mean()


WIDTH = 9


def model():
    return Model(), (torch.zeros(2, 4, dtype=torch.int64),)
"""


@pytest.fixture
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a plan of the module above, by its factory."""
    (tmp_path / "model.py").write_text(MODEL)
    space: SearchSpace = request.param
    made = plan_model(
        f"{tmp_path / 'model.py'}:model", MachineChoice(hierarchy=(2, 2)), {"batch": 4}, space, Budget(workers=1)
    )
    made.save(tmp_path / "plan")
    return tmp_path / "plan"


SPLIT = SearchSpace(mesh=(2, 2), stages=1, fix=(("table", "e,ids"),))
SPACES = [SPLIT, SearchSpace(mesh=(2, 2), stages=1), SearchSpace(stages=2)]


@pytest.mark.parametrize("saved", SPACES, indirect=True)
def test_a_program_begins_as_its_module(saved: Path) -> None:
    """Split unevenly, in several draws of a weight; what is stored too."""
    text = (saved / "program.py").read_text()
    (saved / "program.py").write_text(text.replace("CHUNK = 1 << 22", "CHUNK = 64"))
    verdict = verify(saved)
    assert verdict["ok"] and verdict["initial_error"] < 1e-12  # 1e-05 in float64 is another number
    assert sorted(torch.load(saved / "initial.pt")) == [f"blocks.{i}.up.weight" for i in range(3)]
    assert Plan.load(saved).emit() == text
    (saved / "program.py").write_text(text.replace("0.011547006", "0.02"))  # the deviation of three weights
    assert re.search(r"of initial blocks\.\d\.down\.weight on rank \d$", verify(saved)["failure"])
    (saved / "initial.pt").unlink()
    assert not verify(saved)["ok"]
    assert Plan.load(saved).verify()["ok"]  # the module that its factory makes has the values


def test_a_live_module_begins_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.BatchNorm1d(10), nn.Linear(10, 3))
    with torch.no_grad():
        module[2].running_mean.fill_(0.5)
    plan = partita.optimize(module, torch.zeros(8, 6), Machine.adhoc((2,)), mesh=(2,), loss=torch.sum)
    assert plan.verify()["initial_error"] == 0.0
    plan.emit(tmp_path / "alone.py")
    program = load_program(tmp_path / "alone.py")

    def begin(_: int) -> dict[str, Tensor]:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.initialize(model)
        found: dict[str, Tensor] = program.whole_weights(model, mesh)
        return found

    with pytest.raises(RankError):
        run_threads(begin, 2)
    assert "initial.pt: it has initial values; save the plan in a folder" in capsys.readouterr().err
    plan.save(tmp_path)
    program = load_program(tmp_path / "program.py")
    found = run_threads(begin, 2)[0]
    assert all(torch.equal(found[name], x) for name, x in module.state_dict().items() if name in found)
    assert found["2.running_mean"].tolist() == [0.5] * 10


def test_constants_alone_begin(tmp_path: Path) -> None:
    """Nothing is drawn, read or split."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Scale(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.scale = nn.Parameter(torch.ones(3))\n\n"
        "    def forward(self, x):\n        return (x * self.scale).sum()\n\n\n"
        "def model():\n    return Scale(), (torch.zeros(4, 3),)\n"
    )
    made = plan_model(
        f"{tmp_path / 'model.py'}:model", MachineChoice(hierarchy=(1,)), {"batch": 4}, SearchSpace(), Budget()
    )
    assert made.verify()["initial_error"] == 0.0


def test_without_values_a_program_needs_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(6, 10, device="meta"), nn.Linear(10, 3))
    plan = partita.optimize(module, torch.zeros(8, 6), Machine.adhoc((1,)), loss=torch.sum)
    assert plan.verify()["initial_error"] is None
    plan.save(tmp_path)
    program = load_program(tmp_path / "program.py")
    with pytest.raises(SystemExit):
        program.initialize(None)
    assert (
        "no initial values of 2 weights (0.bias and others): give the program a checkpoint" in capsys.readouterr().err
    )


def test_a_damaged_plan_is_refused() -> None:
    plan = partita.optimize(nn.Linear(6, 10), torch.zeros(8, 6), Machine.adhoc((1,)), loss=torch.sum)
    data = plan.to_json()
    data["initial"] = {"writes": [{"name": "weight", "shape": [10, 6], "cauchy": [1]}], "stored": []}
    with pytest.raises(PartitaError, match="the plan: "):
        Plan.from_json(data)
