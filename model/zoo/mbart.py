"""mBART (Liu et al., TACL'20): a pre-norm encoder and decoder for translation, with one embedding for both sides.

Sizes are those of SuperScaler's table 2 at a vocabulary of 500,000. Its layers count encoder and decoder together, half
each: with the embedding that is 4.7, 9.6, 20.2 and 32.7 billion parameters. Sequences are full, so there is no padding
to mask, and there is no dropout (mBART ends its pre-training without).
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import TOKENS, Entry, superscaler


class Attention(nn.Module):
    """Every token of `x` looks at the tokens of `source`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, causal: bool = False) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(source), self.value(source))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        result: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return result


class Perceptron(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(x)))
        return result


class EncoderLayer(nn.Module):
    """Attention and a perceptron, each normalized before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.perceptron = Perceptron(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention_norm(x)
        x = x + self.attention(y, y)
        x = x + self.perceptron(self.norm(x))
        return x


class DecoderLayer(nn.Module):
    """Attention to what is written so far, attention to the source and a perceptron, each normalized before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.cross_norm = nn.LayerNorm(width)
        self.cross = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.perceptron = Perceptron(width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        y = self.attention_norm(x)
        x = x + self.attention(y, y, causal=True)
        x = x + self.cross(self.cross_norm(x), source)
        x = x + self.perceptron(self.norm(x))
        return x


class Embedding(nn.Module):
    """Positions added to tokens that are embedded already, then normalized."""

    def __init__(self, sequence: int, width: int) -> None:
        super().__init__()
        self.position = nn.Embedding(sequence, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        result: Tensor = self.norm(tokens + self.position(positions))
        return result


class MBart(nn.Module):
    """Scores of the next token of a translation; the output matrix is the token embedding."""

    def __init__(self, vocabulary: int, sequence: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.scale = sqrt(width)
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.source_embedding = Embedding(sequence, width)
        self.target_embedding = Embedding(sequence, width)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers // 2))
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers // 2))
        self.decoder_norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        self.scores.weight = self.token_embedding.weight

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """All [batch, sequence]; `labels` holds the token that follows each of `target`. Mean smoothed loss."""
        x = self.source_embedding(self.token_embedding(source) * self.scale)
        for layer in self.encoder:
            x = layer(x)
        memory = self.encoder_norm(x)
        y = self.target_embedding(self.token_embedding(target) * self.scale)
        for layer in self.decoder:
            y = layer(y, memory)
        scores = self.scores(self.decoder_norm(y))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), label_smoothing=0.2)


def _mbart(layers: int, width: int, heads: int, nodes: int) -> Entry:
    return superscaler(
        MBart,
        {"vocabulary": 500_000, "layers": layers, "width": width, "heads": heads},
        {"vocabulary": 96, "layers": 4, "width": 24, "heads": 6},
        {"source": TOKENS, "target": TOKENS, "labels": TOKENS},
        sequence=1024,
        small_sequence=8,
        nodes=nodes,
    )


ENTRIES = {
    "mbart-4.7b": _mbart(24, 3072, 16, 1),
    "mbart-9.5b": _mbart(32, 4096, 32, 1),
    "mbart-20b": _mbart(48, 5120, 32, 2),
    "mbart-32b": _mbart(56, 6144, 32, 4),
}
