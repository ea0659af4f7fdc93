"""The unsharded module against the interpreted graph: loss and gradients in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.capture.capture import capture
from partita.model.capture.inputs import Inputs
from partita.model.capture.objective import Loss, objective
from partita.model.graph.dtypes import FLOATS
from partita.model.graph.input_ranges import highs
from partita.model.graph.interpreter import check_shapes, fixed_noise, run
from partita.model.graph.pcg import PCG
from partita.model.training import PROJECTION


def mask(site: int, shape: tuple[int, ...], p: float) -> Tensor:
    """What dropout number `site` multiplies by."""
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(site), dtype=torch.float64) >= p
    return kept / (1 - p)


class FixedDropout:
    """Replaces torch's dropout by `mask`, its call sites numbered in the order of the calls."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sites = 0
        self.attention = F.scaled_dot_product_attention
        patch.setattr(F, "dropout", self.dropout)
        patch.setattr(F, "scaled_dot_product_attention", self.attend)

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not p:
            return x
        self.sites += 1
        return x * mask(self.sites - 1, tuple(x.shape), p)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if not dropout_p:
            return self.attention(q, k, v, attn_mask, 0.0, is_causal, **options)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
        if attn_mask is not None:
            scores = scores + attn_mask if attn_mask.is_floating_point() else scores.where(attn_mask, -torch.inf)
        return self.dropout(torch.ops.aten._safe_softmax(scores, -1), dropout_p) @ v


def values(module: nn.Module) -> nn.Module:
    """The module on the CPU in float64 with random weights; one from meta gets its memory."""
    if any(p.is_meta for p in module.parameters()):
        module = module.to_empty(device="cpu")
    module = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return module


def data(graph: PCG) -> dict[str, Tensor]:
    """Random inputs as the graph's input nodes ask."""
    generator = torch.Generator().manual_seed(1)
    made = {}
    for index in graph.of("input"):
        node = graph.nodes[index]
        if node.dtype in FLOATS:
            made[node.name] = torch.randn(node.shape, generator=generator, dtype=torch.float64)
        else:
            high = highs(node)
            drawn = torch.randint(int(high.max()), node.shape, generator=generator) % high
            made[node.name] = drawn.to(getattr(torch, node.dtype))
    return made


@pytest.fixture
def agrees(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that captures a module, checks that graph and module agree, and returns the graph.

    Most modules here have no loss: a projection of what they return is compared unless `loss` says otherwise.
    """

    def check(module: nn.Module, inputs: Any, tolerance: float = 1e-10, loss: Loss = PROJECTION, **options: Any) -> PCG:
        graph = capture(module, inputs, loss=loss, **options)
        check_shapes(graph)
        module = values(module)
        weights = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
        given = data(graph)
        copies = {name: t.detach().clone().requires_grad_(t.requires_grad) for name, t in weights.items()}

        call = Inputs.of(module, inputs)
        with monkeypatch.context() as patch:
            FixedDropout(patch)
            found = objective(call.call(module, [given[name] for name in call.names]), loss, module)
        expected = found.tensors[0]
        if found.projected:
            expected = sum(
                ((r * fixed_noise(i, tuple(r.shape))).sum() for i, r in enumerate(found.tensors)), torch.zeros(())
            )
        actual = run(graph, given, copies, mask=mask)[graph.loss]
        assert abs(actual.item() - expected.item()) <= tolerance * (1 + abs(expected.item()))
        expected.sum().backward()
        actual.backward()
        captured = {name for i in graph.of("parameter") for name in graph.nodes[i].originals}
        named = dict(module.named_parameters())
        trained = {name for name, p in named.items() if p.grad is not None}
        assert trained <= captured
        for name in trained:
            found, wanted = copies[name].grad.to_dense(), named[name].grad.to_dense()  # tables may have sparse ones
            assert (found - wanted).abs().max() <= tolerance * (1 + wanted.abs().max()), name
        return graph

    return check
