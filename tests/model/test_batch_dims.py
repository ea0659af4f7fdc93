"""Which dims of the inputs count samples: as the user says, or guessed, and a wrong guess is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita.codegen.planner.planner import optimize
from partita.codegen.verification.verify import verify
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine
from partita.model.training import parse_batch_dim

PLACES = 5


class Masked(nn.Module):
    """Samples first; as many of them as places in the mask, by accident."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = x @ self.keys(x).mT + mask
        return (scores.softmax(-1) @ self.values(x)).square().mean()


class PlacesFirst(nn.Module):
    """Places first, samples second, as in torch's attention by default."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.scores = nn.MultiheadAttention(8, 2), nn.Linear(8, 7)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return F.cross_entropy(self.scores(x).flatten(0, 1), labels.flatten())


class Pooled(nn.Module):
    """Samples second in one input and first in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 7)

    def forward(self, x: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(x.tanh().mean(0) * scale), labels)


def test_graphs_of_hand_written_plans_have_it() -> None:
    inputs = torch.zeros(5, 4, 8), torch.zeros(5, 4, dtype=torch.int64)
    found = partita.graph(PlacesFirst(), inputs, batch=8, batch_dim=1).pcg
    assert [found.nodes[i].shape[:2] for i in found.of("input")] == [(5, 8), (5, 8)]


class Contrast(nn.Module):
    """Every sample is compared with all others."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.left(x) @ self.right(y).mT, torch.arange(len(x)))


class OneBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.linear(x).view(4, 3, 2) * y.view(4, 3, 2)).square().mean()


MASKED = {"x": torch.zeros(PLACES, PLACES, 6), "mask": torch.zeros(PLACES, PLACES)}
SECOND = {"x": torch.zeros(PLACES, 4, 8), "labels": torch.zeros(PLACES, 4, dtype=torch.int64)}
POOLED = torch.zeros(PLACES, 4, 8), torch.zeros(4, dtype=torch.int64), torch.zeros(8)


def dims(*given: Any, **options: Any) -> dict[str, Any]:
    graph = capture(*given, **options)
    return {graph.nodes[i].name: graph.nodes[i]["batch_dim"] for i in graph.of("input")}


@pytest.mark.parametrize("batch", [None, PLACES, 8])
def test_rows_that_are_no_samples_are_refused(batch: int | None) -> None:
    words = r"dim 0 of mask is 5.*Give batch_dim=\{'mask': None\} \(--batch-dim mask=none\)"
    with pytest.raises(PartitaError, match=words):
        capture(Masked(), MASKED, batch=batch)
    assert dims(Masked(), MASKED, batch=batch, batch_dim={"mask": None}) == {"x": 0, "mask": None}


def test_places_that_are_no_samples_are_refused() -> None:
    with pytest.raises(PartitaError, match=r"attention 'attention.*combines them.*give batch_dim=1"):
        capture(PlacesFirst(), SECOND)
    with pytest.raises(PartitaError, match="the loss is not a sum over them"):
        capture(Pooled(), POOLED)
    assert dims(PlacesFirst(), SECOND, batch_dim=0) == {"x": 0, "labels": 0}
    assert dims(PlacesFirst(), SECOND, batch_dim=1, batch=6) == {"x": 1, "labels": 1}


@pytest.mark.parametrize("module", [Contrast(), OneBatch()])
def test_what_needs_its_batch_is_captured(module: nn.Module) -> None:
    assert dims(module, (torch.zeros(4, 6), torch.zeros(4, 6))) == {"x": 0, "y": 0}


@pytest.mark.parametrize(
    ("batch_dim", "words"),
    [
        ({"image": 0}, "batch_dim names 'image'; the inputs are x, labels, scale"),
        ({"labels": 1}, "batch_dim 1: input 'labels' has 1 dims"),
        (1, "batch_dim 1: input 'labels' has 1 dims; .* None for inputs without samples"),
        (0, "'x' has 5 samples, 'labels' has 4"),
        ({"x": True}, "batch_dim True"),
    ],
)
def test_bad_batch_dims(batch_dim: Any, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(Pooled(), POOLED, batch_dim=batch_dim)


@pytest.mark.parametrize(
    ("module", "inputs", "batch_dim"), [(PlacesFirst(), SECOND, 1), (Pooled(), POOLED, {"x": 1, "labels": 0})]
)
def test_plans_split_the_samples(module: nn.Module, inputs: Any, batch_dim: Any, tmp_path: Path) -> None:
    """In micro-batches, and the program reads the next samples where they lie."""
    options: dict[str, Any] = {"batch": 8, "micro_batches": 2, "mesh": (2,), "dtype": "float64", "cache": "none"}
    plan = optimize(module, inputs, Machine.adhoc((2,)), batch_dim=batch_dim, workers=1, **options)
    assert plan.verify()["ok"]
    text = plan.emit()
    assert 'data["x"].narrow(1, step * 8, 8)' in text
    assert f'data["labels"].narrow({1 if batch_dim == 1 else 0}, step * 8, 8)' in text
    plan.save(tmp_path)
    assert verify(tmp_path, module=module, inputs=inputs, steps=1)["ok"]


@pytest.mark.parametrize("text", ["x", "x=", "x=one", "=1", "1,2"])
def test_the_command_line_says_it(text: str) -> None:
    assert parse_batch_dim(None) is None and parse_batch_dim("0") == 0
    assert parse_batch_dim("x=1, mask=none") == {"x": 1, "mask": None}
    with pytest.raises(PartitaError, match="--batch-dim"):
        parse_batch_dim(text)
