"""CANDLE's Uno (Exascale Computing Project): how a tumour grows under two drugs at given doses.

Features and towers are those of FlexFlow's candle_uno: 942 gene expressions, and 5,270 descriptors and 2,048
fingerprints of each drug, each through a tower of its own with 8 layers of 4,192. FlexFlow's trunk of 4 layers makes
821 M parameters, whose weights and gradients take 6.6 GB in float32. Unity (OSDI'22) evaluates a model that exceeds
the 16 GB of a GPU and does not print its size; so the trunk here has 80 layers, with the residual connections that
Uno offers: 2.16 G parameters, 17.3 GB.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Input, unity


class Tower(nn.Module):
    """Dense layers for one vector of features."""

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width if layer else features, width) for layer in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Uno(nn.Module):
    """A tower for each vector of features, then a trunk for all of them with the doses."""

    def __init__(
        self,
        genes: int = 942,
        descriptors: int = 5270,
        fingerprints: int = 2048,
        width: int = 4192,
        tower: int = 8,
        trunk: int = 80,
    ) -> None:
        super().__init__()
        features = (genes, descriptors, fingerprints, descriptors, fingerprints)
        self.towers = nn.ModuleList(Tower(size, width, tower) for size in features)
        self.join = nn.Linear(len(features) * width + 2, width)
        self.trunk = nn.ModuleList(nn.Linear(width, width) for _ in range(trunk - 1))
        self.growth = nn.Linear(width, 1)

    def forward(
        self,
        doses: Tensor,
        genes: Tensor,
        descriptors1: Tensor,
        fingerprints1: Tensor,
        descriptors2: Tensor,
        fingerprints2: Tensor,
        growth: Tensor,
    ) -> Tensor:
        """Doses [batch, 2], features [batch, their number], growth [batch]. Mean squared error."""
        features = (genes, descriptors1, fingerprints1, descriptors2, fingerprints2)
        encoded = [tower(x) for tower, x in zip(self.towers, features, strict=True)]
        x = torch.relu(self.join(torch.cat((*encoded, doses), 1)))
        for layer in self.trunk:
            x = x + torch.relu(layer(x))
        return F.mse_loss(self.growth(x).squeeze(1), growth)


_DRUG = {"descriptors": Input(("descriptors",)), "fingerprints": Input(("fingerprints",))}

ENTRIES = {
    "candle-uno": unity(
        Uno,
        {},
        {"genes": 12, "descriptors": 24, "fingerprints": 16, "width": 12, "tower": 2, "trunk": 3},
        {
            "doses": Input((2,)),
            "genes": Input(("genes",)),
            **{f"{name}{drug}": given for drug in (1, 2) for name, given in _DRUG.items()},
            "growth": Input(),
        },
        batch=256,
    ),
}
