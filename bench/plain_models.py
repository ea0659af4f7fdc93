"""Models in plain PyTorch, as people write them: each returns its own loss."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, dict[str, Tensor]]

SAMPLES = 2
TOKENS = 16
VOCABULARY = 64
WIDTH = 32


# nanoGPT, as model.py of github.com/karpathy/nanoGPT has it: forward returns (logits, loss)


class LayerNorm(nn.Module):
    """LayerNorm with an optional bias."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the last dim."""
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


@dataclass
class GPTConfig:
    """The sizes of a GPT."""

    block_size: int = TOKENS
    vocab_size: int = VOCABULARY
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = WIDTH
    dropout: float = 0.0
    bias: bool = True


class CausalSelfAttention(nn.Module):
    """All heads from one projection; flash attention where PyTorch has it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        self.flash = hasattr(torch.nn.functional, "scaled_dot_product_attention")
        if not self.flash:
            ones = torch.ones(config.block_size, config.block_size)
            self.register_buffer("bias", torch.tril(ones).view(1, 1, config.block_size, config.block_size))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the tokens before."""
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True
            )
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))  # type: ignore[index]
            att = self.attn_dropout(F.softmax(att, dim=-1))
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        out: Tensor = self.resid_dropout(self.c_proj(y))
        return out


class MLP(nn.Module):
    """The feed-forward part of a block."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Two matrices and a GELU."""
        x = self.c_proj(self.gelu(self.c_fc(x)))
        out: Tensor = self.dropout(x)
        return out


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward, each around a residual."""
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    """nanoGPT."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": LayerNorm(config.n_embd, bias=config.bias),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        self.apply(self._init_weights)
        for pn, p in self.named_parameters():
            if pn.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(logits, loss), the loss only with targets."""
        device = idx.device
        _, t = idx.size()
        assert t <= self.config.block_size
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        tok_emb = self.transformer["wte"](idx)
        pos_emb = self.transformer["wpe"](pos)
        x = self.transformer["drop"](tok_emb + pos_emb)
        for block in self.transformer["h"]:  # type: ignore[attr-defined]
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss


def nano_gpt() -> Made:
    """nanoGPT with targets."""
    return GPT(GPTConfig()), {"idx": _tokens(), "targets": _tokens()}


def _tokens() -> Tensor:
    return torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)


# Sequences


class Translator(nn.Module):
    """nn.Transformer between embeddings and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """The cross entropy of the next tokens of the target."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        y = self.transformer(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True)
        return F.cross_entropy(self.head(y).flatten(0, 1), labels.flatten())


class Recurrent(nn.Module):
    """A language model of two recurrent layers, like PyTorch's word_language_model example."""

    def __init__(self, kind: type[nn.Module], batch_first: bool) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = kind(WIDTH, WIDTH, num_layers=2, dropout=0.1, batch_first=batch_first)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.batch_first = batch_first

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The cross entropy of the next tokens."""
        x = self.drop(self.encoder(tokens))
        y, _ = self.rnn(x if self.batch_first else x.transpose(0, 1))
        y = y if self.batch_first else y.transpose(0, 1)
        return F.cross_entropy(self.decoder(self.drop(y)).flatten(0, 1), labels.flatten())


def _sequences(module: nn.Module, *names: str) -> Made:
    return module, {name: _tokens() for name in names}


# Graphs of equally many nodes and edges, in batches: features [samples, nodes, width], edges [samples, edges] of nodes

NODES = 12
EDGES = 32
CLASSES = 8


def _gathered(x: Tensor, nodes: Tensor) -> Tensor:
    return x.gather(1, nodes.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class Convolution(nn.Module):
    """Kipf and Welling's layer: neighbours' features over the square roots of degrees."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Features of all nodes, from those of their neighbours and their own."""
        y = self.linear(x)
        ones = torch.ones_like(target, dtype=y.dtype)
        degree = torch.ones_like(y[:, :, 0]).scatter_add(1, target, ones)
        scale = degree.rsqrt()
        weight = scale.gather(1, source) * scale.gather(1, target)
        message = _gathered(y, source) * weight.unsqueeze(-1)
        index = target.unsqueeze(-1).expand_as(message)
        own: Tensor = y / degree.unsqueeze(-1)
        return own.scatter_add(1, index, message)


class Sage(nn.Module):
    """GraphSAGE's layer: a node's own features and the mean of its neighbours'."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, out), nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Features of all nodes."""
        message = _gathered(x, source)
        index = target.unsqueeze(-1).expand_as(message)
        total = torch.zeros_like(x).scatter_add(1, index, message)
        count = torch.zeros_like(x[:, :, 0]).scatter_add(1, target, torch.ones_like(target, dtype=x.dtype))
        mean = total / count.clamp(min=1).unsqueeze(-1)
        y: Tensor = self.own(x) + self.others(mean)
        return y


class GraphAttention(nn.Module):
    """GAT's layer with one head: messages weighted by a softmax over the edges into a node."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out, bias=False)
        self.into, self.out_of = nn.Linear(out, 1, bias=False), nn.Linear(out, 1, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Features of all nodes."""
        y = self.linear(x)
        score = self.out_of(y).squeeze(-1).gather(1, source) + self.into(y).squeeze(-1).gather(1, target)
        score = F.leaky_relu(score, 0.2)
        nodes = torch.zeros_like(y[:, :, 0])
        most = nodes.scatter_reduce(1, target, score.detach(), "amax", include_self=False)
        share = (score - most.gather(1, target)).exp()
        total = nodes.scatter_add(1, target, share)
        message = _gathered(y, source) * (share / total.gather(1, target)).unsqueeze(-1)
        return torch.zeros_like(y).scatter_add(1, target.unsqueeze(-1).expand_as(message), message)


class GraphNetwork(nn.Module):
    """Two layers of a kind; every node is classified."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(WIDTH, WIDTH), layer(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """The cross entropy over nodes; edges lead from `source` to `target`."""
        x = F.relu(self.first(x, source, target))
        x = F.relu(self.second(x, source, target))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def _graphs(layer: Callable[[int, int], nn.Module]) -> Made:
    def integers(count: int) -> Tensor:
        return torch.zeros(SAMPLES, count, dtype=torch.int64)

    features = torch.zeros(SAMPLES, NODES, WIDTH)
    given = {"x": features, "source": integers(EDGES), "target": integers(EDGES), "labels": integers(NODES)}
    return GraphNetwork(layer), given


PLAIN: Mapping[str, Callable[[], Made]] = {
    "nanoGPT": nano_gpt,
    "nn.Transformer": lambda: _sequences(Translator(), "source", "target", "labels"),
    "LSTM language model": lambda: _sequences(Recurrent(nn.LSTM, batch_first=True), "tokens", "labels"),
    "GRU language model": lambda: _sequences(Recurrent(nn.GRU, batch_first=False), "tokens", "labels"),
    "graph convolution": lambda: _graphs(Convolution),
    "GraphSAGE": lambda: _graphs(Sage),
    "graph attention": lambda: _graphs(GraphAttention),
}
"""Name -> (module, example inputs)."""


class Denoiser(nn.Module):
    """A diffusion model that is trained to predict the noise that was added."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, noisy: Tensor, timestep: Tensor, noise: Tensor, **condition: Any) -> Tensor:
        """The mean squared error of the noise."""
        return F.mse_loss(self.model(noisy, timestep=timestep, **condition).sample, noise)
