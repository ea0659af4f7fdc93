"""A stack of square dense layers (Unity, OSDI'22, evaluation)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Input, unity


class MLP(nn.Module):
    """`layers` dense layers of `width`, ReLU between them; mean squared error against a target."""

    def __init__(self, layers: int = 16, width: int = 8192) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return F.mse_loss(self.layers[-1](x), target)


ENTRIES = {
    "mlp": unity(
        MLP,
        {},
        {"layers": 4, "width": 48},
        {"x": Input(("width",)), "target": Input(("width",))},
        batch=256,
    ),
}
