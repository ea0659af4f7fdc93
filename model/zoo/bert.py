"""BERT (Devlin et al., NAACL'19): post-norm encoder, trained as a masked language model."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import TOKENS, unity


class Attention(nn.Module):
    """Every token looks at every other."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        result: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Attention and a perceptron, each normalized after its residual."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.output_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        x = self.output_norm(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return x


class Bert(nn.Module):
    """Scores of masked tokens from an encoder; the output matrix is the token embedding."""

    def __init__(
        self,
        vocabulary: int = 30522,
        sequence: int = 512,
        layers: int = 24,
        width: int = 1024,
        heads: int = 16,
        inner: int = 4096,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(sequence, width)
        self.type_embedding = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, inner, dropout) for _ in range(layers))
        self.head = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary)
        self.scores.weight = self.token_embedding.weight

    def forward(self, ids: Tensor, types: Tensor, labels: Tensor) -> Tensor:
        """All [batch, sequence]; labels are -100 where a token is not masked. Mean cross entropy of the others."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions) + self.type_embedding(types)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        scores = self.scores(self.head_norm(F.gelu(self.head(x))))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


ENTRIES = {
    "bert-large": unity(
        Bert,
        {},
        {"vocabulary": 90, "layers": 2, "width": 48, "heads": 6, "inner": 96},
        {"ids": TOKENS, "types": TOKENS, "labels": TOKENS},
        batch=4,
        optimizer="adam",
        sequence=512,
        small_sequence=8,
    ),
}
