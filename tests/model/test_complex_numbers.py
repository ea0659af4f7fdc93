"""Complex tensors are pairs of real and imaginary parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.model.capture.capture import capture
from partita.model.errors import PartitaError

X = torch.zeros(2, 3, 8)


class Signals(nn.Module):
    """Complex calls that move elements, write in place, or have no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        z = torch.view_as_complex(x.reshape(2, 3, 4, 2))
        turned = z.transpose(-1, -2).permute(1, 0, 2)[..., 1:].movedim(-1, 0)
        out = torch.zeros_like(z)
        out[:, 1:, :] = z[:, :2]
        out[..., -1] += z.select(-1, 0)
        angles = torch.outer(torch.arange(3, dtype=x.dtype), torch.arange(4, dtype=x.dtype))
        y = out * torch.polar(torch.ones_like(angles), angles) - 1j * z.conj() / 3
        y = torch.cat([y, torch.complex(x[..., :4], x[..., 4:]) * x[..., :4]], -1)
        y = torch.fft.ifft(torch.fft.rfft(x, n=15).roll(1, -1) + y).mH @ z
        return torch.view_as_real(y).sum() + turned.abs().sum() + (turned.real * turned.imag).sum()


def test_agrees(agrees: Any) -> None:
    agrees(Signals(), (X,))


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).abs()


def test_complex_parameter_is_refused() -> None:
    with pytest.raises(PartitaError, match=r"parameter 'weight' holds complex numbers: hold torch.view_as_real"):
        capture(Weighted(), (X,), loss="projection")


def test_complex_share_of_an_addend_is_refused() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = torch.complex(x, x)
            return torch.add(z, z, alpha=1j).abs()

    with pytest.raises(PartitaError, match="argument 1j"):
        capture(Turned(), (X.requires_grad_(),), loss="projection")
