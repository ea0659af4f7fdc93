"""GPT-2 and GPT-3 (Radford et al., 2019; Brown et al., NeurIPS'20): pre-norm decoders with tied embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
