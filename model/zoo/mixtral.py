"""Mixtral (Jiang et al., 2024): a Llama whose perceptrons are mixtures of experts; a router chooses two per token.

Mixtral has no capacities. Here an expert takes a fixed number of tokens of every sequence, so that shapes are fixed:
GShard's groups (Lepikhin et al., ICLR 2021), one per sequence. Which tokens are dropped then depends on neither the
batch nor its split. The capacity factor 1.25 and the balancing loss, per sequence too, are Switch's (Fedus et al.,
JMLR 2022); its coefficient is that of Mixtral's published configuration.
"""

from dataclasses import dataclass
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .llama import Attention, decoder, rotary_tables


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens go to experts: each to its best `chosen`, while their slots last.

    `coefficient`: weight of the balance in the loss.
    """

    chosen: int = 2
    capacity_factor: float = 1.25
    coefficient: float = 0.02


MIXTRAL = Routing()
THETA = 1e6  # base of the rotary frequencies


class Matrices(nn.Module):
    """One matrix per expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, inputs, outputs))
        nn.init.normal_(self.weight, std=inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, expert, slot, inputs] to the same with outputs."""
        return torch.einsum("becd,edf->becf", x, self.weight)


def queues(choice: Tensor, experts: int) -> Tensor:
    """How many tokens up to each one chose an expert, [batch, expert, token]; `choice` is [batch, token, k].

    Tokens queue at an expert in the order of the sequence, whether it is their first choice or not. None chooses an
    expert twice.
    """
    numbers = torch.arange(experts, device=choice.device)
    chosen = choice.mT.unsqueeze(1) == numbers[:, None, None]
    return chosen.sum(2).cumsum(-1)


class Mixture(nn.Module):
    """Gated perceptrons; each token goes to the `chosen` ones that the router scores highest."""

    def __init__(self, width: int, inner: int, experts: int, routing: Routing) -> None:
        super().__init__()
        self.experts, self.chosen, self.capacity_factor = experts, routing.chosen, routing.capacity_factor
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = Matrices(experts, width, inner)
        self.up = Matrices(experts, width, inner)
        self.down = Matrices(experts, inner, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The result [batch, token, width], and how unevenly experts are chosen: 1 if evenly, at most `experts`.

        An expert has a slot for each of the first `capacity` tokens of its queue; later tokens are dropped. An empty
        slot holds the last token, whose result is not read.
        """
        batch, tokens, _ = x.shape
        capacity = ceil(self.capacity_factor * self.chosen * tokens / self.experts)
        logits = self.router(x)
        best, choice = logits.topk(self.chosen)
        weights = best.softmax(-1)  # the shares of the best, normalized to add up to 1
        queue = queues(choice, self.experts)

        places = torch.arange(1, capacity + 1, device=x.device).expand(batch, self.experts, capacity).contiguous()
        token = torch.searchsorted(queue, places).clamp(max=tokens - 1)
        y = x.take_along_dim(token.flatten(1).unsqueeze(-1), 1).view(batch, self.experts, capacity, -1)
        y = self.down(F.silu(self.gate(y)) * self.up(y))

        place = queue.gather(1, choice.mT).mT - 1
        slot = choice * capacity + place.clamp(max=capacity - 1)
        y = y.flatten(1, 2).take_along_dim(slot.flatten(1).unsqueeze(-1), 1).view(batch, tokens, self.chosen, -1)
        y = torch.einsum("btk,btkd->btd", torch.where(place < capacity, weights, 0.0), y)

        shares = logits.softmax(-1).mean(1)  # weighted by how often an expert is chosen
        return y, self.experts * shares.gather(1, choice.flatten(1)).mean()


class Layer(nn.Module):
    """Attention and a mixture of experts, each normalized before."""

    def __init__(self, width: int, heads: int, key_heads: int, mixture: Mixture) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, key_heads)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.mixture = mixture

    def forward(self, x: Tensor, balance: Tensor | float, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """`balance` is the sum over the layers before."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        y, own = self.mixture(self.norm(x))
        return x + y, balance + own


class Mixtral(nn.Module):
    """Scores of the next token; the output matrix is its own."""

    def __init__(
        self,
        vocabulary: int = 32000,
        layers: int = 32,
        width: int = 4096,
        heads: int = 32,
        key_heads: int = 8,
        inner: int = 14336,
        experts: int = 8,
        routing: Routing = MIXTRAL,
    ) -> None:
        super().__init__()
        self.head_width, self.coefficient = width // heads, routing.coefficient
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Layer(width, heads, key_heads, Mixture(width, inner, experts, routing)) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.scores = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Both [batch, sequence]; `labels` holds the token that follows. Mean cross entropy, plus the balance."""
        x = self.token_embedding(ids)
        cosine, sine = rotary_tables(ids.shape[1], self.head_width, THETA, x)
        balance: Tensor | float = 0.0
        for layer in self.layers:
            x, balance = layer(x, balance, cosine, sine)
        loss = F.cross_entropy(self.scores(self.norm(x)).flatten(0, 1), labels.flatten())
        return loss + self.coefficient / len(self.layers) * balance


ENTRIES = {
    "mixtral-8x7b": decoder(
        Mixtral,
        {},
        {"vocabulary": 96, "layers": 2, "width": 32, "heads": 4, "key_heads": 2, "inner": 24},
        batch=512,
        sequence=4096,
        nodes=8,
    ),
}
