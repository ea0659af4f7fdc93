"""Programs as modules of a user's own loop: every rank's samples, evaluation, and batches of another size."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from partita.codegen.plan.plan import Plan
from partita.codegen.verification.reference import materialize, state_of
from partita.codegen.verification.threads import RankError, run_threads
from partita.codegen.verification.worker import load_program
from partita.model.capture.capture import capture
from partita.model.graph.pcg import PCG

from .pipelines import at_random

Force = Callable[..., Plan]
SAMPLES = 12


class Classifier(nn.Module):
    """What differs in evaluation, and labels of which some do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.scores = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.scores(self.drop(self.norm(self.first(x)).relu())), labels)


class Words(nn.Module):
    """Tied weights, and two dims of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scores = nn.Linear(8, 9, bias=False)
        self.scores.weight = self.embedding.weight

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Any]:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x).relu(), 0.2, self.training)
        scores = self.scores(self.norm(x))
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}


def data(name: str, count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    if name == "classifier":
        x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        batch = {"x": x, "labels": torch.randint(4, (count,), generator=generator)}
    else:
        ids, labels = torch.randint(9, (2, count, 5), generator=generator)
        batch = {"ids": ids, "labels": labels}
    batch["labels"].view(count, -1)[::3, 0] = -100
    return batch


MODULES: dict[str, Callable[[], nn.Module]] = {"classifier": Classifier, "words": Words}


def graph_of(name: str, batch: int = SAMPLES) -> PCG:
    module = MODULES[name]()
    return capture(module, data(name, 2), batch=batch)


def plan_of(name: str, kind: int, force: Force) -> Plan:
    """Random plans: of one stage, of several micro-batches, of a pipeline."""
    rng = random.Random(f"{name} {kind}")
    if kind < 6:
        return force(graph_of(name), ((2,), (4,), (2, 2), (3,), (5,), (2, 3))[kind], rng)
    if name == "words" and kind == 6:
        return force(graph_of(name, SAMPLES // 3), (2,), rng, micro_batches=3)
    return at_random(graph_of("words"), 2, (2,), 3, rng, schedule="zero-bubble" if kind == 7 else "1f1b")


def program_of(plan: Plan, folder: Path) -> ModuleType:
    plan.emit(folder / "program.py")
    return load_program(folder / "program.py")


CASES = [("classifier", 0), ("classifier", 1), ("classifier", 5), *(("words", kind) for kind in (2, 4, 6, 7, 8))]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_samples_of_a_rank_and_evaluation(name: str, kind: int, force: Force, tmp_path: Path) -> None:
    """Ranks that read their own samples train as with whole batches, and `evaluate` is the module in evaluation."""
    plan = plan_of(name, kind, force)
    program, module = program_of(plan, tmp_path), materialize(MODULES[name]())
    state, whole, count = state_of(module), data(name, 3 * SAMPLES), 3 * SAMPLES
    rows = [{key: x[i] for key, x in whole.items()} for i in range(count)]

    def train(rank: int) -> tuple[list[float], list[float], float, list[int]]:
        mesh, model, optimizer = program.build(state)
        numbers = [order for order, _ in zip(program.Samples(mesh, count), range(4), strict=False)]
        loader = DataLoader(rows, batch_sampler=program.Samples(mesh, count))  # type: ignore[arg-type]
        first = []
        for step, batch in zip(range(4), loader, strict=False):
            assert all(torch.equal(batch[key], x[numbers[step]]) for key, x in whole.items())
            first.append(program.train_step(model, optimizer, batch, mesh, step, local=True))
        last = program.evaluate(model, {key: x[:SAMPLES] for key, x in whole.items()}, mesh)
        trained = program.whole_weights(model, mesh)
        if rank == 0:
            module.load_state_dict(trained, strict=False)
        mesh, model, optimizer = program.build(state)
        second = []
        for step in range(4):
            order = torch.randperm(count, generator=torch.Generator().manual_seed(program.SEED + step // 3))
            own = order[step % 3 * SAMPLES :][:SAMPLES]
            assert {*numbers[step]} <= {*own.tolist()}
            inputs = {key: x[own] for key, x in whole.items()}
            second.append(program.train_step(model, optimizer, inputs, mesh, step))
        return first, second, last, numbers[0]

    results = run_threads(train, plan.ranks, timeout=60)
    first, second, last, _ = results[0]
    assert first == second
    expected = module.eval()(**{key: x[:SAMPLES] for key, x in whole.items()})
    expected = expected["loss"] if isinstance(expected, Mapping) else expected
    assert abs(last - expected.item()) < 1e-9
    assert {number for *_, numbers in results for number in numbers} == {
        *torch.randperm(count, generator=torch.Generator().manual_seed(program.SEED))[:SAMPLES].tolist()
    }


def test_batches_of_another_size_are_refused(force: Force, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("words", 0, force)
    program, batch = program_of(plan, tmp_path), data("words", SAMPLES)
    wrong = (
        {key: x[:9] for key, x in batch.items()},
        {"ids": batch["ids"][:, :4], "labels": batch["labels"]},
        {"ids": batch["ids"]},
    )
    for inputs, words in zip(
        wrong, ("ids is [9, 5], but [12, 5] is planned", "ids is [12, 4], but", "the inputs lack labels"), strict=True
    ):
        with pytest.raises(RankError):
            run_threads(lambda _, inputs=inputs: _step(program, inputs), plan.ranks, timeout=60)  # type: ignore[misc]
        assert words in capfd.readouterr().err


def _step(program: ModuleType, inputs: Mapping[str, Tensor]) -> float:
    mesh, model, optimizer = program.build()
    loss: float = program.train_step(model, optimizer, inputs, mesh, 0)
    return loss
