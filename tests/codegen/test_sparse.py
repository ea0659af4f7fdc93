"""Tables with sparse gradients: programs train as the module does, and what plans promise falls with the rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.graph_file import graph_from_json, graph_to_json
from partita.model.graph.sparse_tables import sparse_tables
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import some
from .beginnings import begun

BATCH = 12


class Clicks(nn.Module):
    """Two tables of 10 and 9 rows, one with padding, and a layer that joins them; `scale` makes clipping bind."""

    def __init__(self, sparse: bool = True, rows: tuple[int, int] = (10, 9), width: int = 7, scale: float = 30) -> None:
        super().__init__()
        self.users = nn.Embedding(rows[0], width, sparse=sparse)
        self.items = nn.Embedding(rows[1], width, sparse=sparse, padding_idx=2)
        self.score = nn.Linear(2 * width, 1)
        self.scale = scale

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        x = torch.cat((self.users(ids[:, 0]), self.items(ids[:, 1])), 1)
        loss: Tensor = self.scale * (self.score(torch.relu(x)).squeeze(1) - y).square().mean()
        return loss


class Bags(nn.Module):
    """Bags of 3 rows, weighted, and means of the same bags from another table."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(10, 7, mode="sum", sparse=True)
        self.items = nn.EmbeddingBag(9, 7, mode="mean", sparse=True)
        self.weigh = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        bags = self.users(ids, per_sample_weights=y.unsqueeze(1) * self.weigh) * self.items(ids)
        loss: Tensor = 30 * (bags.sum(1) - y).square().mean()
        return loss


class Shared(nn.Module):
    """One table that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)
        self.score = nn.Linear(4, 1)

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        x = self.table(ids[:, 0]) * self.table(ids[:, 1])
        loss: Tensor = (self.score(x).squeeze(1) - y).square().mean()
        return loss


class Tied(nn.Module):
    """A table that is also a projection: its gradient is dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.table(ids) @ self.table.weight.T, ids)


INPUTS = (torch.zeros(BATCH, 3, dtype=torch.int64), torch.zeros(BATCH))


def planned(
    module: nn.Module,
    mesh: tuple[int, ...],
    fix: tuple[tuple[str, str], ...] = (),
    micro_batches: int = 1,
    dtype: str = "float64",
) -> Plan:
    graph = capture(module, INPUTS, batch=BATCH)
    training = Training(BATCH, dtype, "sgd")
    space = SearchSpace(mesh=mesh, micro_batches=micro_batches, fix=fix, stages=1)
    return plan_graph(graph, Machine.adhoc(mesh), training, space)


def judged(module: nn.Module, plan: Plan) -> None:
    """Network and price agree, and the program computes what the module computes."""
    found = stage_price(plan)
    assert (found.objective_ns, found.memory_bytes) == (plan.report["objective_ns"], plan.report["memory_bytes"])
    verdict = verify(plan, module=module, inputs=INPUTS)
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize(
    ("mesh", "users", "items"),
    some(
        [
            ((2,), "e", "ids"),
            ((2,), "R", "e"),
            ((3,), "ids", "R"),
            ((4,), "ids", "e"),
            ((4,), "R", "R"),
            ((2, 2), "e,ids", "ids,ids"),
            ((2, 2), "ids,R", "e,e"),
        ]
    ),
)
def test_a_program_trains_sparse_tables(mesh: tuple[int, ...], users: str, items: str, micro_batches: int) -> None:
    """Rows (`ids`) or columns (`e`) split, or whole; two tables alike or not; 10 and 9 rows of 7 split unevenly."""
    for module, suffix in ((Clicks(), ""), (Bags(), ".embedding_bag")):
        fix = ((f"users{suffix}", users), (f"items{suffix}", items))
        judged(module, planned(module, mesh, fix, micro_batches))


@pytest.mark.parametrize("strategy", ["R", "e", "ids"])
def test_a_table_may_be_read_several_times(strategy: str) -> None:
    module = Shared()
    graph = capture(module, INPUTS, batch=BATCH)
    lookups = [i for i in graph.of("embedding") if graph.nodes[i].gradient]
    fix = tuple((graph.nodes[i].name, strategy) for i in lookups)
    judged(module, planned(module, (2,), fix, 2))
    assert sparse_tables(graph) == {graph.of("parameter")[0]: 2 * BATCH}


def test_the_choice_is_free_and_the_same_in_every_precision() -> None:
    module = Clicks()
    for dtype in ("float32", "mixed-bfloat16", "mixed-float16"):
        judged(module, planned(module, (2, 2), micro_batches=2, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16", "mixed-float16"])
def test_gradients_are_sparse_in_the_dtype_of_the_table(dtype: str, tmp_path: Path) -> None:
    plan = planned(Clicks(), (3,), (("users", "ids"), ("items", "e")), 2, dtype)
    path = tmp_path / "program.py"
    begun(plan).emit(path)
    program = load_program(path)
    batch = {k: v.float() if v.is_floating_point() else v for k, v in synthetic(plan.graph, BATCH, 0).items()}

    def step(_: int) -> list[tuple[torch.layout, torch.dtype, int]]:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.initialize(model)
        optimizer = program.make_optimizer(model, mesh)
        for number in range(2):
            assert math.isfinite(program.train_step(model, optimizer, batch, mesh, number))
        return [(t.grad.layout, t.grad.dtype, t.grad.values().shape[1]) for t in optimizer.tables]

    for found in run_threads(step, plan.ranks):
        assert found == [(torch.sparse_coo, torch.float32, 7), (torch.sparse_coo, torch.float32, found[1][2])]


def test_time_and_memory_are_those_of_the_rows() -> None:
    """A table of 5 GB on four devices, of which a batch looks up 12 rows."""
    found = {}
    for sparse in (True, False):
        with torch.device("meta"):
            module = Clicks(sparse, rows=(10_000_000, 1_000), width=128)
        plan = planned(module, (4,), dtype="float32")
        assert (plan.report["objective_ns"], plan.report["memory_bytes"]) == (
            stage_price(plan).objective_ns,
            stage_price(plan).memory_bytes,
        )
        found[sparse] = stage_price(plan)
    table = 10_000_000 * 128 * 4
    assert found[True].memory_bytes < 1.01 * table  # at most one copy of it, and no gradient as large
    assert 20 * found[True].ns["gradients"] < found[False].ns["gradients"]
    assert 20 * found[True].objective_ns < found[False].objective_ns


def test_the_price_of_a_sparse_gradient_by_hand() -> None:
    """Columns split over 2, 3 micro-batches of 4 ids: 4 * (4 columns * 4 bytes + 8) = 96 bytes of gradient each."""
    plan = planned(Clicks(), (2,), (("users", "e"), ("items", "e")), 3, "float32")
    users = plan.graph.of("parameter")[0]
    states = [kept.bytes for kept in stage_price(plan).kept if kept.node == users]
    assert states == [10 * 4 * 4 + 3 * 96]
    bandwidth = plan.machine.device.memory_bandwidth
    times = {item.kind: item.total_ns for item in stage_price(plan).items if item.node == users}
    assert times == {
        "accumulate": math.ceil((2 * 2 + 2 * 3) * 96 / bandwidth * 1e9),
        "update": math.ceil(5 * 3 * 4 * (32 + 8) / bandwidth * 1e9),  # a transaction for 16 bytes
    }


def test_a_tied_table_has_a_dense_gradient() -> None:
    graph = capture(Tied(), (INPUTS[0][:, 0],), batch=BATCH)
    assert not sparse_tables(graph)
    assert not any(node.get("sparse") for node in graph.nodes)


def test_frozen_tables_have_no_gradient_at_all() -> None:
    module = Clicks()
    module.users.weight.requires_grad = False
    graph = capture(module, INPUTS, batch=BATCH)
    assert [graph.nodes[i].name for i in sparse_tables(graph)] == ["items.weight"]


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_only_sgd_applies_them(optimizer: str) -> None:
    graph = capture(Clicks(), INPUTS, batch=BATCH)
    with pytest.raises(PartitaError, match=f"'users.weight' is sparse, which {optimizer} cannot apply: .*sgd"):
        plan_graph(graph, Machine.adhoc((2,)), Training(BATCH, "float32", optimizer), SearchSpace(stages=1))


@pytest.mark.parametrize("strategy", ["B", "P", "b.0"])
def test_copies_with_gradients_to_add_up_are_refused(strategy: str) -> None:
    with pytest.raises(PartitaError, match="would add up their sparse gradients"):
        planned(Clicks(), (2,), (("users", strategy),))


def test_plan_and_graph_files_are_checked() -> None:
    plan = planned(Clicks(), (2,), (("users", "e"), ("items", "ids")))
    data = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(data) == plan
    data["choices"]["users.weight"]["output"] = ["S(0)"]
    with pytest.raises(PartitaError, match=r"'users.weight' is sparse: it must be read and updated as it is stored"):
        Plan.from_json(data)
    with pytest.raises(PartitaError, match="which adam cannot apply"):
        Plan.from_json(json.loads(json.dumps(plan.to_json())) | {"optimizer": "adam"})
    graph = graph_to_json(plan.graph)
    del next(n for n in graph["nodes"] if n["name"] == "items.weight")["gradient"]
    graph["nodes"] = [n | {"gradient": n.get("gradient", False)} for n in graph["nodes"]]
    with pytest.raises(PartitaError, match=r"'items' \(embedding\) is sparse, but 'items.weight' is not a trained"):
        graph_from_json(graph)
