"""Verification itself, on a program written by hand: it passes when right, and every planted fault is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita
from partita import PartitaError
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification import reference
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.verify import Trial, memory_bytes, run, trial, verify
from partita.formulation.placement.placement import Placement
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.strategy import rows
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.capture.objective import PROJECTION, TrainedModule, objective
from partita.model.graph.builder import Builder
from partita.model.machine.machine import Machine
from partita.model.training import Training

RANKS, BATCH, WIDTH, CLASSES = 2, 12, 6, 5

# Data parallel over 2 ranks; the hidden layer's columns are whole. The mask and the divisor count the whole batch.
PROGRAM = '''
"""A two-layer classifier, its batch split over 2 ranks."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from partita.codegen.verification.reference import Optimizer
from partita.codegen.emission.templates.counters import dropout_mask

RANKS, BATCH, MICRO_BATCHES, SEED = 2, 12, 1, 7
SHARE = BATCH // RANKS


class Mesh:
    def __init__(self):
        if dist.get_world_size() != RANKS:
            raise SystemExit(f"planned for {RANKS} ranks, not {dist.get_world_size()}")
        self.rank = dist.get_rank()


class Model(nn.Module):
    def __init__(self, mesh, dtype=torch.float32):
        super().__init__()
        self.up = nn.Linear(6, 8, dtype=dtype)
        self.down = nn.Linear(8, 5, dtype=dtype)
        self.frozen = nn.Parameter(torch.empty(5, dtype=dtype), requires_grad=False)

    def forward(self, x, labels, count, mesh, step):
        x = F.gelu(self.up(x))
        index = torch.arange(x.numel()).view(x.shape) + mesh.rank * x.numel()
        x = x * dropout_mask(index, 0.25, SEED, step, 0)
        return F.cross_entropy(self.down(x) + self.frozen, labels, reduction="sum") / count


def load(model, source, mesh):
    model.load_state_dict(source)


def make_optimizer(model, mesh, **options):
    return Optimizer("adamw", model)


def train_step(model, optimizer, inputs, mesh, step):
    mine = slice(mesh.rank * SHARE, (mesh.rank + 1) * SHARE)
    labels = inputs["labels"][mine]
    count = (labels != -100).sum()
    dist.all_reduce(count)
    loss = model(inputs["x"][mine], labels, count, mesh, step)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
    model.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()


def whole_gradients(model, optimizer, mesh):
    return model.kept


def whole_weights(model, mesh):
    return dict(model.state_dict())
'''


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 8)
        self.down = nn.Linear(8, CLASSES)
        self.dropout = nn.Dropout(0.25)
        self.frozen = nn.Parameter(torch.zeros(CLASSES), requires_grad=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.down(self.dropout(functional.gelu(self.up(x)))) + self.frozen, labels)


INPUTS = {"x": torch.zeros(4, WIDTH), "labels": torch.zeros(4, dtype=torch.int64)}


def prepared(path: Path, text: str, module: nn.Module | None = None) -> Trial:
    path.write_text(text)
    module = module or Classifier()
    return trial(path, capture(module, INPUTS), TrainedModule(module, INPUTS), RANKS, BATCH, "adamw")


def check(folder: Path, text: str, level: str = "threads", module: nn.Module | None = None) -> dict[str, Any]:
    return run([prepared(folder / "program.py", text, module)], level, timeout=60)[0]


def test_a_right_program_passes(tmp_path: Path) -> None:
    verdict = check(tmp_path, PROGRAM)
    assert verdict["ok"], verdict
    assert verdict["ranks"] == RANKS
    assert verdict["dtype"] == "float64"
    assert verdict["tolerance"] == 1e-9
    assert verdict["checked"] == 3 + 4 + 5  # losses, gradients, weights
    assert max(verdict["loss_error"], verdict["gradient_error"], verdict["weight_error"]) < 1e-12
    assert "failure" not in verdict


FAULTS = [
    ("gradients are not summed", "            dist.all_reduce(p.grad)", "            pass", "largest error"),
    ("divisor of one rank", "    dist.all_reduce(count)\n", "", "largest error"),
    ("the same mask on every rank", " + mesh.rank * x.numel()", "", "largest error"),
    ("loss of one rank", "    dist.all_reduce(total)\n", "", "of step"),
    ("a mask that ignores the step", "SEED, step, 0", "SEED, 0, 0", "largest error"),
    (
        "wrong weights at the end",
        "dict(model.state_dict())",
        "{k: v * 1.001 for k, v in model.state_dict().items()}",
        "weight",
    ),
    (
        "one rank skips an update",
        "    optimizer.step()",
        "    if mesh.rank == 0 or step < 2:\n        optimizer.step()",
        "on rank 1",
    ),
    ("a weight is missing", "dict(model.state_dict())", "{}", "no weight of"),
    ("not a number", "return total.item()", 'return float("nan")', "of step 0"),
    ("one rank raises", "    labels = inputs", "    mesh.rank or 1 / 0\n    labels = inputs", "ZeroDivisionError"),
    ("one rank goes its own way", "    dist.all_reduce(count)", "    mesh.rank or dist.all_reduce(count)", "rank 1"),
]


@pytest.mark.parametrize(("old", "new", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_found(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in PROGRAM
    verdict = check(tmp_path, PROGRAM.replace(old, new))
    assert not verdict["ok"]
    assert words in verdict["failure"]


class BeforeNorm(nn.Module):
    """A bias without effect: AdamW makes steps of the rounding of its gradient, which the small inputs enlarge."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, 8), nn.BatchNorm1d(8, eps=1e-20), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.down(functional.gelu(self.norm(self.up(x * 1e-3)))), labels)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "", None),
        ("(self.gradients(), factor)", "(self.gradients(), factor * (1 + 1e-7))", "largest error"),
        ("betas=(0.9, 0.95)", "betas=(0.9, 0.951)", "weight norm.bias"),
    ],
)
def test_rounding_that_an_update_enlarges_is_no_fault(tmp_path: Path, old: str, new: str, words: str | None) -> None:
    module, path = BeforeNorm(), tmp_path / "program.py"
    graph = capture(module, INPUTS, batch=BATCH)
    plan = plan_graph(graph, Machine.adhoc((RANKS,)), Training(BATCH, "float32", "adamw"), SearchSpace(stages=1))
    assert old in plan.emit()
    path.write_text(plan.emit().replace(old, new))
    verdict = run([trial(path, graph, TrainedModule(module, INPUTS), RANKS, BATCH, "adamw", 2)])[0]
    assert verdict["ok"] == (words is None)
    assert words is None or words in verdict["failure"]
    if words is None:
        assert verdict["tolerance"] < verdict["weight_error"] < 10 * verdict["rounding"]
        assert "accepted" in verdict["note"]


def test_a_count_plus_a_fraction_is_not_rounded() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (self.first(x) * mask.unsqueeze(-1)).sum() / (mask.sum() + 1e-5)

    inputs = {"x": torch.zeros(4, WIDTH), "mask": torch.ones(4, dtype=torch.bool)}
    plan = partita.optimize(Masked(), inputs, Machine.adhoc((2,)), workers=1)
    assert plan.verify()["ok"]
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-9), (torch.bfloat16, 1e-5)])
def test_the_tolerance_is_wider_only_where_the_module_narrows(
    tmp_path: Path, dtype: torch.dtype, tolerance: float
) -> None:
    class Narrow(Classifier):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return super().forward(x.to(dtype).to(self.up.weight.dtype), labels)

    verdict = check(tmp_path, PROGRAM, module=Narrow())
    assert verdict["tolerance"] == tolerance
    assert verdict["ok"] == (dtype is torch.float32), verdict  # the program narrows nowhere


@pytest.mark.parametrize(
    ("text", "words"),
    [("RANKS = 3", "for 3 ranks"), ("RANKS =", "SyntaxError"), ("import nothing_there", "nothing_there")],
)
def test_what_is_no_program_for_the_plan(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        check(tmp_path, text)


def test_a_module_that_fails_on_the_data(tmp_path: Path) -> None:
    class Picky(Classifier):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            if x.shape[0] == BATCH:
                raise KeyError("twelve")
            return super().forward(x, labels)

    with pytest.raises(PartitaError, match="KeyError: 'twelve'"):
        check(tmp_path, PROGRAM, module=Picky())


def test_the_callers_module_is_left_alone() -> None:
    module = Classifier().eval()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    whole = reference.materialize(module)
    assert not whole.training and not module.training
    assert all(p.dtype == torch.float64 for p in whole.parameters())
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_weights_depend_on_names_alone() -> None:
    one, other = reference.materialize(Classifier()), reference.materialize(Classifier().to("meta"))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

    whole = reference.materialize(Tied())
    assert whole.get_parameter("a.weight") is whole.get_parameter("b.weight")
    assert reference.state_of(whole).keys() == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_a_buffer_without_values_is_refused() -> None:
    module = nn.BatchNorm1d(3, affine=False).to("meta")
    with pytest.raises(PartitaError, match="running_mean"):
        reference.materialize(module)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: functional.dropout(x, 0.5),
        lambda x: nn.Dropout(0.5)(x),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: functional.dropout(x.T, 0.5).T,
    ],
)
def test_every_way_to_dropout_is_counted(drop: Any) -> None:
    x = torch.ones(4, 3, dtype=torch.float64)
    with reference.CountedNumbers(seed=1, step=2) as mode:
        first, again = drop(x), drop(x)
    with reference.CountedNumbers(seed=1, step=2):
        repeated = drop(x)
    assert mode.sites == 2
    assert torch.equal(first, repeated)
    assert not torch.equal(first, again)
    assert set(first.unique().tolist()) <= {0.0, 2.0}


def test_attention_dropout_is_a_mask_on_the_probabilities() -> None:
    q, k, v = (
        torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    with reference.CountedNumbers(seed=1, step=0):
        fused = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True)
    scores = (q @ k.mT / 2).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    with reference.CountedNumbers(seed=1, step=0):
        explicit = functional.dropout(scores.softmax(-1), 0.5) @ v
    assert torch.allclose(fused, explicit, rtol=0, atol=1e-14)


def test_outputs_are_projected() -> None:
    x, y = torch.ones(2, 3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    outputs: Any = {"logits": x, "hidden": y, "ids": torch.ones(2, dtype=torch.int64)}
    both = reference.loss_of(objective(outputs, PROJECTION, nn.Identity()), seed=3)
    alone = reference.loss_of(objective((x,), PROJECTION, nn.Identity()), seed=3)
    assert both.shape == alone.shape == ()
    assert both != alone
    assert reference.loss_of(objective({"loss": y[0], "logits": x}, None, nn.Identity()), seed=3) == 1


def labelled(ids_too: bool) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    graph = Builder(8)
    scores = graph.input("scores", (8, 5))
    t = graph.add("input", shape=(8,), name="t", dtype="int64", batch_dim=0, high=5)
    table = graph.parameter("table", (5, 5))
    if ids_too:
        scores = graph.add("embedding", table, t, shape=(8, 5), name="looked_up")
    else:
        scores = graph.add("matmul", scores, table, shape=(8, 5), name="scored")
    loss = graph.add("cross_entropy", scores, t, shape=(), ignore_index=-100, reduction="mean")
    built = graph.build(loss)
    return synthetic(built, 32, 0), synthetic(built, 32, 1)


def test_synthetic_inputs() -> None:
    first, second = labelled(ids_too=False)
    ignored = first["t"] == -100
    assert first["scores"].shape == (32, 5)
    assert first["scores"].dtype == torch.float64
    assert not torch.equal(first["scores"], second["scores"])
    assert 0 < ignored[:16].sum() < ignored[16:].sum() < 16  # unevenly
    assert set(first["t"][~ignored].tolist()) <= set(range(5))
    ids, _ = labelled(ids_too=True)
    assert (ids["t"] >= 0).all()  # labels that are looked up too cannot be ignored


def plan_of_mlp() -> Plan:
    """The small mlp on 2 ranks, every operator by its first strategy."""
    module, inputs = load_module("mlp", small=True)
    graph = capture(module, inputs)
    first = [rows(graph, index)[0] for index in range(len(graph.nodes))]
    choices = tuple(Choice(tuple((letter,) for letter in row.inputs), (row.output,)) for row in first)
    machine, placement = Machine.adhoc((2,)), Placement((2,), ((2,),))
    return Plan(graph, machine, placement, 1, choices, model={"reference": "mlp", "small": True})


def test_a_plan_is_verified_as_it_was_saved(tmp_path: Path) -> None:
    plan = plan_of_mlp()
    assert plan.verify(ranks=2)["ok"]
    plan.save(tmp_path)
    assert verify(tmp_path)["ok"]
    program = tmp_path / "program.py"
    program.write_text(program.read_text().replace("    return loss\n", "    return loss + 1e-8\n"))
    for target in (tmp_path, tmp_path / "plan.json"):  # the file in the folder is run, not what would be emitted now
        verdict = verify(target)
        assert not verdict["ok"] and verdict["program"] == str(program)
    program.unlink()
    for target in (tmp_path, tmp_path / "plan.json"):
        with pytest.raises(PartitaError, match=r"no program\.py"):
            verify(target)
    assert plan.verify()["program"] is None


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_program_that_exits_is_no_program(tmp_path: Path, code: int) -> None:
    with pytest.raises(PartitaError, match=f"SystemExit: {code}"):
        check(tmp_path, f"{PROGRAM}\nraise SystemExit({code})\n")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_exits_in_a_step_is_a_failure(tmp_path: Path, rank: int) -> None:
    early = f"    if mesh.rank == {rank}:\n        raise SystemExit(0)\n    labels = inputs"
    verdict = check(tmp_path, PROGRAM.replace("    labels = inputs", early))
    assert not verdict["ok"] and "SystemExit: 0" in verdict["failure"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"ranks": 3}, "for 2 ranks, not 3"), ({"level": "gpu"}, "threads, pool, torchrun"), ({"steps": 0}, "0 steps")],
)
def test_what_cannot_be_verified(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        verify(plan_of_mlp(), **options)


def test_a_plan_without_its_module_is_refused() -> None:
    plan = replace(plan_of_mlp(), model={})
    with pytest.raises(PartitaError, match="give verify the module"):
        verify(plan)
    module, inputs = load_module("mlp", small=True)
    assert verify(plan, module=module, inputs=inputs)["ok"]


def test_a_plan_too_large_for_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of_mlp()
    monkeypatch.setattr("partita.codegen.verification.verify.available_bytes", lambda: memory_bytes(plan))
    with pytest.raises(PartitaError, match="small twin"):
        verify(plan)


def test_the_estimate_of_memory_counts_weights_and_their_states_on_every_rank() -> None:
    plan = plan_of_mlp()
    weights = sum(node.numel for node in plan.graph.nodes if node.op == "parameter")
    assert memory_bytes(plan) >= 8 * weights * 4 * 2


def test_module_whose_backward_fails_is_refused() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(PartitaError, match="the backward of Linear fails: one of the variables"):
        reference.train(module, lambda batch, step: module.weight.exp().add_(1).sum(), [{}], "sgd")
