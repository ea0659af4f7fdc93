"""Autograd functions that look independent or linear on random inputs, and are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from partita.model.capture.function_checks import Translated, translated
from partita.model.capture.function_tracing import FunctionCall, UntraceableError
from partita.model.capture.independence import NotPureError

Way = Callable[..., Any]


def identity(ctx: Any, grad: Tensor) -> Tensor:
    return grad


def centred(x: Tensor, when: Tensor) -> Tensor:
    return torch.where(when, x - x.mean(0), x)


def found(forward: Way, backward: Way = identity, size: int = 6) -> Translated:
    kind = type("Own", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    return translated(FunctionCall(kind, 1, (), (((size, 4), torch.float32, True),), ""), (True,))


WHOLE, COLUMNS, EACH = "y[d0, d1] = f(x0[:, :])[d0, d1]", "y[d0, i0] = f(x0[:, i0])[d0]", "y[i0, i1] = f(x0[i0, i1])"


@pytest.mark.parametrize(
    ("forward", "notation"),
    [
        (lambda ctx, x: centred(x, x.abs().max() > 1e7), WHOLE),  # no random input is as large
        (lambda ctx, x: centred(x, (x > 17.3).any() & (x < 18.5).all()), WHOLE),
        (lambda ctx, x: x + x.roll(1, 0), COLUMNS),
        (lambda ctx, x: x * (torch.arange(x.shape[0]) < 300)[:, None], COLUMNS),
        (lambda ctx, x: x.float().exp(), EACH),
    ],
)
def test_independence(forward: Way, notation: str) -> None:
    assert found(forward).findings[0].notation == notation


@pytest.mark.parametrize(
    ("backward", "linear"),
    [
        (lambda ctx, grad: torch.where(grad.abs().max() > 1e3, grad / 2, grad), False),
        (lambda ctx, grad: grad.clamp(-1e6, 1e6), False),
        (lambda ctx, grad: grad - grad.mean(0), True),
    ],
)
def test_linearity(backward: Way, linear: bool) -> None:
    assert found(lambda ctx, x: x.clone(), backward).linear == [linear]


def test_result_without_gradient() -> None:
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = 2 * x, 3 * x
        ctx.mark_non_differentiable(second)
        return first, second

    made = found(forward, lambda ctx, one, other: 2 * one + other)
    assert [each.gradient for each in made.findings] == [True, False]


def test_inputs_without_gradient() -> None:
    assert not found(lambda ctx, x: x.round(), lambda ctx, grad: None).findings[0].gradient


def test_gradients_that_mix_are_refused() -> None:
    with pytest.raises(NotPureError, match="mixes the gradients"):
        found(lambda ctx, x: (2 * x, 3 * x), lambda ctx, one, other: one * other)


def test_refusal_says_what_failed_and_where() -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if not isinstance(x, torch._subclasses.FakeTensor) and x.device.type == "cpu":
            raise NotImplementedError("only on GPUs")
        return x * 2

    with pytest.raises(UntraceableError, match=r"only on GPUs, at .*test_function_checks.py:\d+: raise Not"):
        found(forward)
