"""GPT-2, GPT-3 and Megatron-LM's largest (Radford et al., 2019; Brown et al., NeurIPS'20; Narayanan et al., SC'21).

Pre-norm decoders with tied embeddings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import NEXT_TOKEN, Entry, superscaler


class Attention(nn.Module):
    """Every token looks at itself and those before it; queries, keys and values come from one matrix."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        result: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Attention and a perceptron, each normalized before."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.down(F.gelu(self.up(self.norm(x)), approximate="tanh")))
        return x


class GPT(nn.Module):
    """Scores of the next token; the output matrix is the token embedding."""

    def __init__(
        self,
        vocabulary: int = 50257,
        sequence: int = 1024,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(sequence, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        self.scores.weight = self.token_embedding.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Both [batch, sequence]; `labels` holds the token that follows. Mean cross entropy."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.token_embedding(ids) + self.position_embedding(positions))
        for layer in self.layers:
            x = layer(x)
        scores = self.scores(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


_SMALL = {"vocabulary": 96, "layers": 4, "width": 64, "heads": 4, "dropout": 0.0}


def _gpt3(layers: int, width: int, nodes: int) -> Entry:
    """One of SuperScaler's sizes, there at sequence 16,384 and here at 2048.

    The vocabulary is padded to 51,200, the embeddings are tied, and there is no dropout.
    """
    return superscaler(
        GPT,
        {"vocabulary": 51200, "layers": layers, "width": width, "heads": 32, "dropout": 0.0},
        _SMALL,
        NEXT_TOKEN,
        sequence=2048,
        small_sequence=8,
        nodes=nodes,
    )


ENTRIES = {
    "gpt2": Entry(
        GPT,
        {},
        {"vocabulary": 101, "layers": 3, "width": 48, "heads": 4},
        NEXT_TOKEN,
        batch=512,
        sequence=1024,
        small_sequence=12,
        dtype="mixed-bfloat16",
        optimizer="adamw",
        machine="dgx-a100",
    ),
    "gpt3-1.3b": _gpt3(24, 2048, 1),
    "gpt3-2.6b": _gpt3(32, 2560, 1),
    "gpt3-6.7b": _gpt3(32, 4096, 2),
    "gpt3-15b": _gpt3(48, 5120, 4),
    "gpt-1008b": Entry(
        GPT,
        {"vocabulary": 51200, "layers": 128, "width": 25600, "heads": 160, "dropout": 0.0},
        _SMALL,
        NEXT_TOKEN,
        batch=3072,
        sequence=2048,
        small_sequence=8,
        dtype="mixed-float16",
        optimizer="adam",
        machine="dgx-a100",
        nodes=384,
    ),
}
