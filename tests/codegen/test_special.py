"""Special strategies: the registry, the check of one, their rows by name, and prices that agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.special import verify_strategy
from partita.formulation.special import special_strategies, special_strategy
from partita.formulation.special.registry import Special, register_strategy
from partita.formulation.strategies.strategy import row_names


class Words(nn.Module):
    """Scores of some words, of which labels may be ignored."""

    def __init__(self, words: int = 23, smoothing: float = 0.0) -> None:
        super().__init__()
        self.scores, self.smoothing = nn.Linear(8, words), smoothing

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(x), labels, ignore_index=3, label_smoothing=self.smoothing)


def planned(module: nn.Module, **options: Any) -> Any:
    inputs = torch.zeros(6, 8), torch.zeros(6, dtype=torch.int64)
    return partita.optimize(module, inputs, options.pop("machine"), batch=6, **options)


def test_cross_entropy_over_split_classes() -> None:
    verdicts = verify_strategy("vocabulary", ranks=(2, 3, 4, 8))
    assert [verdict["ranks"] for verdict in verdicts] == [2, 3, 4, 8]
    assert all(verdict["ok"] for verdict in verdicts), [verdict["failure"] for verdict in verdicts]


@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16"])
def test_logits_are_never_gathered(dtype: str) -> None:
    """Columns of the last layer, then the loss on them, beside samples over another axis."""
    machine = partita.Machine.adhoc((2, 2))
    fix = {"scores": "b.0,o", "cross_entropy": "n,vocabulary"}
    plan = planned(Words(), machine=machine, mesh=(2, 2), fix=fix, micro_batches=3, dtype=dtype)
    assert stage_price(plan).objective_ns == plan.report["objective_ns"]
    text = plan.emit()
    assert "vocabulary_cross_entropy(" in text and "class VocabularyCrossEntropy" in text
    assert plan.verify()["ok"]


def test_only_where_it_applies() -> None:
    graphs = [
        partita.capture(module, (torch.zeros(6, 8), torch.zeros(6, dtype=torch.int64)), batch=6)
        for module in (Words(), Words(smoothing=0.1))
    ]
    names = [row_names(graph, graph.of("cross_entropy")[0]) for graph in graphs]
    assert "vocabulary" in names[0] and "vocabulary" not in names[1]


def test_one_axis_has_the_classes_to_itself() -> None:
    with pytest.raises(partita.PartitaError, match="cannot be fixed"):
        planned(
            Words(), machine=partita.Machine.adhoc((2, 2)), mesh=(2, 2), fix={"cross_entropy": "vocabulary,vocabulary"}
        )


def test_the_registry() -> None:
    found = special_strategies()
    assert [entry.name for entry in found] == sorted(entry.name for entry in found)
    assert all(entry.examples for entry in found)  # each can be tried
    with pytest.raises(partita.PartitaError, match=r"unknown .*known: "):
        special_strategy("nothing such")
    with pytest.raises(ValueError, match="registered already"):
        register_strategy(found[0])


def test_an_example_without_a_row_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from partita.formulation.special import registry

    def example(b: Any) -> int:
        return int(b.add("relu", b.input("x", (6, 4)), shape=(6, 4)))

    entry = Special("idle", ("relu",), lambda at: (), lambda part: (), lambda *_: "", examples=(example,))
    monkeypatch.setitem(registry._REGISTRY, "idle", entry)
    with pytest.raises(partita.PartitaError, match="no row for its example 0"):
        verify_strategy("idle")


class Named(nn.Module):
    """An input, a list of layers and a value that are called as functions and classes of programs are."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizes = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(3))

    def forward(self, x: Tensor, normalize: Tensor) -> Tensor:
        for layer in self.normalizes:
            x = torch.tanh(layer(x))
        return F.mse_loss(x, normalize)


def test_names_of_the_model_do_not_hide_those_of_strategies() -> None:
    inputs = torch.zeros(6, 8), torch.zeros(6, 8)
    graph = partita.capture(Named(), inputs, batch=6)
    norms = [graph.nodes[i].name for i in graph.of("layer_norm")]
    row = next(name for name in row_names(graph, graph.of("layer_norm")[0]) if name.startswith("normalize"))
    plan = partita.optimize(
        Named(), inputs, partita.Machine.adhoc((2,)), batch=6, mesh=(2,), fix=dict.fromkeys(norms, row)
    )
    assert "class Normalize(" in plan.emit()
    assert plan.verify()["ok"], plan.verify()["failure"]
