"""Recommendation from Criteo's click logs: DLRM (Naumov et al., 2019) and XDL (Jiang et al., DLP-KDD'19)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Input, unity

CRITEO_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Values of each of the 26 categories in the Kaggle data, 33,762,577 in all; as the authors' code for DLRM counts."""


def perceptron(sizes: Sequence[int]) -> nn.ModuleList:
    """Dense layers from each size to the next."""
    return nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))


class DLRM(nn.Module):
    """Clicks from dense features, brought to one more vector, and from the products of all pairs of vectors."""

    pairs: Tensor

    def __init__(
        self,
        dense: int = 13,
        tables: tuple[int, ...] = CRITEO_KAGGLE,
        bottom: tuple[int, ...] = (512, 256, 128),
        top: tuple[int, ...] = (1024, 1024, 512, 256),
    ) -> None:
        super().__init__()
        width, vectors = bottom[-1], len(tables) + 1
        self.bottom = perceptron((dense, *bottom))
        self.tables = nn.ModuleList(nn.Embedding(rows, width, sparse=True) for rows in tables)
        self.top = perceptron((width + vectors * (vectors - 1) // 2, *top))
        self.score = nn.Linear(top[-1], 1)
        pairs = torch.tensor([i * vectors + j for i in range(vectors) for j in range(i)])
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(self, dense: Tensor, ids: Tensor, clicks: Tensor) -> Tensor:
        """Dense features [batch, dense], a row of every table [batch, tables], clicks [batch]. Mean cross entropy."""
        rows = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        for layer in self.bottom:
            dense = torch.relu(layer(dense))
        vectors = torch.cat((dense.unsqueeze(1), rows), 1)
        products = (vectors @ vectors.mT).flatten(1)[:, self.pairs]  # below the diagonal
        x = torch.cat((dense, products), 1)
        for layer in self.top:
            x = torch.relu(layer(x))
        return F.binary_cross_entropy_with_logits(self.score(x).squeeze(1), clicks)


class XDL(nn.Module):
    """Clicks from one vector for each category, the sum of its rows; all side by side into a perceptron."""

    def __init__(
        self,
        tables: tuple[int, ...] = CRITEO_KAGGLE,
        width: int = 128,
        top: tuple[int, ...] = (1024, 1024, 1024, 1024),
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for rows in tables)
        self.top = perceptron((len(tables) * width, *top))
        self.score = nn.Linear(top[-1], 1)

    def forward(self, ids: Tensor, clicks: Tensor) -> Tensor:
        """Rows of every table [batch, tables, bag], clicks [batch]. Mean cross entropy."""
        rows = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        x = rows.flatten(1)
        for layer in self.top:
            x = torch.relu(layer(x))
        return F.binary_cross_entropy_with_logits(self.score(x).squeeze(1), clicks)


FEW = (24, 4, 60, 8, 36, 6, 16, 12)

ENTRIES = {
    "dlrm": unity(
        DLRM,
        {},
        {"dense": 6, "tables": FEW, "bottom": (24, 12), "top": (24, 12)},
        {"dense": Input(("dense",)), "ids": Input(("tables",), integer=True), "clicks": Input()},
        batch=1024,
    ),
    "xdl": unity(  # one id per category
        XDL,
        {"bag": 1},
        {"tables": FEW, "width": 12, "top": (24, 24), "bag": 3},
        {"ids": Input(("tables", "bag"), integer=True), "clicks": Input()},
        batch=1024,
    ),
}
