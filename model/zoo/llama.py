"""Llama 2 (Touvron et al., 2023): pre-norm decoder with RMS norms, rotary positions and gated perceptrons."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotary_tables(length: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position times frequency, [length, width]; angles are computed in float64."""
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=like.device)
    positions = torch.arange(length, dtype=torch.float64, device=like.device)
    half = positions[:, None] * 10000.0 ** (-steps / width)
    angles = torch.cat((half, half), -1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + width / 2) of the last dim by the angles of their positions."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return x * cosine + torch.cat((-high, low), -1) * sine


class Attention(nn.Module):
    """Every token looks at itself and those before it; positions enter as rotations of queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Attention and a gated perceptron, each normalized before."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        y = self.norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x


class Llama(nn.Module):
    """Scores of the next token; the output matrix is its own."""

    def __init__(
        self, vocabulary: int = 32000, layers: int = 32, width: int = 4096, heads: int = 32, inner: int = 11008
    ) -> None:
        super().__init__()
        self.head_width = width // heads
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.scores = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Both [batch, sequence]; `labels` holds the token that follows. Mean cross entropy."""
        x = self.token_embedding(ids)
        cosine, sine = rotary_tables(ids.shape[1], self.head_width, x)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return F.cross_entropy(self.scores(self.norm(x)).flatten(0, 1), labels.flatten())
