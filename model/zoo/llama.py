"""Llama 2 and 3 (Touvron et al., 2023; Dubey et al., 2024): RMS norms, rotary positions and gated perceptrons.

Llama 3 70B has eight times as many heads of queries as of keys and values, 405B sixteen times.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import NEXT_TOKEN, Entry


def rotary_tables(length: int, width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position times frequency, [length, width]; angles are computed in float64."""
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=like.device)
    positions = torch.arange(length, dtype=torch.float64, device=like.device)
    half = positions[:, None] * theta ** (-steps / width)
    angles = torch.cat((half, half), -1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + width / 2) of the last dim by the angles of their positions."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return x * cosine + torch.cat((-high, low), -1) * sine


class Attention(nn.Module):
    """Every token looks at itself and those before it; positions enter as rotations of queries and keys.

    Consecutive heads of queries share one of the `key_heads` heads of keys and values.
    """

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, key_heads * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """Attention and a gated perceptron, each normalized before."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, key_heads)
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
        self,
        vocabulary: int = 32000,
        layers: int = 32,
        width: int = 4096,
        heads: int = 32,
        key_heads: int = 32,
        inner: int = 11008,
        theta: float = 10000.0,
    ) -> None:
        super().__init__()
        self.head_width, self.theta = width // heads, theta
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, key_heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.scores = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Both [batch, sequence]; `labels` holds the token that follows. Mean cross entropy."""
        x = self.token_embedding(ids)
        cosine, sine = rotary_tables(ids.shape[1], self.head_width, self.theta, x)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return F.cross_entropy(self.scores(self.norm(x)).flatten(0, 1), labels.flatten())


decoder = partial(
    Entry,
    inputs=NEXT_TOKEN,
    small_sequence=8,
    dtype="mixed-bfloat16",
    optimizer="adamw",
    machine="dgx-h100",
)
"""The entry of a decoder that is trained in bfloat16 on H100."""


def _llama3(layers: int, width: int, heads: int, inner: int, nodes: int) -> Entry:
    return decoder(
        Llama,
        {"layers": layers, "width": width, "heads": heads, "inner": inner}
        | {"vocabulary": 128256, "key_heads": 8, "theta": 500000.0},
        {"vocabulary": 96, "layers": 2, "width": 64, "heads": 8, "key_heads": 4, "inner": 120},
        batch=1024,
        sequence=8192,
        nodes=nodes,
    )


ENTRIES = {
    "llama-7b": decoder(
        Llama,
        {},
        {"vocabulary": 96, "layers": 2, "width": 48, "heads": 6, "key_heads": 6, "inner": 120},
        batch=512,
        sequence=4096,
    ),
    "llama-70b": _llama3(80, 8192, 64, 28672, 8),
    "llama-405b": _llama3(126, 16384, 128, 53248, 64),
}
