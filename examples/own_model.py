"""A model for the command line: `partita plan examples/own_model.py:translator --small --hierarchy 2x2 -o plan`.

A factory takes any of `small` and `sequence` by name and returns the module and example inputs, whose dim 0 counts
samples. The module returns its loss; of one that does not, a third item says what its loss is
(docs/what-is-trained.md). Weights are made on the meta device: planning needs shapes only.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Tower(nn.Module):
    """Residual layers with a norm in front."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.scores = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(ids)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return F.cross_entropy(self.scores(x).flatten(0, 1), labels.flatten())


def translator(small: bool = False, sequence: int = 512) -> tuple[nn.Module, dict[str, Tensor]]:
    """The module and example inputs, by argument name."""
    model = Tower(64, 32, 2) if small else Tower(32000, 4096, 24)
    ids = torch.zeros(2, 8 if small else sequence, dtype=torch.int64)
    return model, {"ids": ids, "labels": ids}
