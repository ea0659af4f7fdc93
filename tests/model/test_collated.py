"""Batches as collators make them."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from partita.model.capture.capture import capture
from partita.model.errors import PartitaError


class Options(TypedDict, total=False):
    """What forward hands on."""

    scale: float


class Model(nn.Module):
    """A model with optional inputs, nested ones, and keywords of a stated kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(
        self, x: Tensor, labels: Tensor, mask: Tensor | None = None, extra: Any = None, **kwargs: Unpack[Options]
    ) -> dict[str, Tensor]:
        y = self.linear(x if mask is None else x * mask)
        return {"loss": functional.cross_entropy(y * kwargs.get("scale", 1.0) + extra["shift"][0], labels)}


def batch(**more: Any) -> UserDict[str, Any]:
    extra = UserDict({"shift": [torch.ones(2, 3)], "note": None})
    return UserDict({"x": torch.ones(2, 4), "labels": torch.zeros(2, dtype=torch.int64), "extra": extra} | more)


def test_any_mapping_is_a_batch() -> None:
    graph = capture(Model(), batch(mask=None, scale=2.0))
    assert [graph.nodes[i].name for i in graph.of("input")] == ["x", "labels", "extra_shift_0"]


def test_names_that_forward_does_not_take() -> None:
    with pytest.raises(PartitaError, match=r"Model.forward: it takes no 'length', 'tokens_mask'; leave them out"):
        capture(Model(), batch(length=torch.ones(2), tokens_mask=torch.ones(2, 4)))


@dataclass
class Sample:
    """What a data loader may give."""

    x: Tensor
    labels: Tensor


class OfSamples(nn.Linear):
    def forward(self, sample: Any) -> Tensor:
        return functional.cross_entropy(super().forward(sample.x), sample.labels)


def test_a_dataclass_is_an_input_once_torch_knows_it() -> None:
    sample = Sample(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(PartitaError, match=r"a Sample, whose tensors \(x, labels\) .*register_dataclass\(Sample\)"):
        capture(OfSamples(4, 3), (sample,))
    torch.export.register_dataclass(Sample)
    graph = capture(OfSamples(4, 3), (sample,))
    assert [graph.nodes[i].name for i in graph.of("input")] == ["sample_x", "sample_labels"]
