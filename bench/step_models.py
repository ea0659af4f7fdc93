"""The small models whose steps are measured: made alike by the planner and on every rank."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..model.zoo.bert import Bert
from ..model.zoo.gpt import GPT
from ..model.zoo.llama import Llama
from ..model.zoo.mlp import MLP

SEED = 0


@dataclass(frozen=True, slots=True)
class StepModel:
    """A model; `split`: rows of its layers, which are `module.layers`, in tensor parallelism.

    It reads tokens and labels of `sequence` from a `vocabulary`, or what `inputs` makes for so many samples.
    """

    build: Callable[[], nn.Module]
    vocabulary: int
    sequence: int
    split: Mapping[str, str]
    dropout: bool = False
    inputs: Callable[[int, torch.Generator], dict[str, Tensor]] | None = None

    def module(self) -> nn.Module:
        """The model with the weights that every rank begins with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.build()

    def batch(self, samples: int) -> dict[str, Tensor]:
        """Random inputs, the same at every call."""
        draw = torch.Generator().manual_seed(SEED)
        if self.inputs is not None:
            return self.inputs(samples, draw)
        ids, labels = torch.randint(self.vocabulary, (2, samples, self.sequence), generator=draw)
        return {"ids": ids, "labels": labels}


GPT_SPLIT = {
    "layers.*.attention.qkv": "o:1",
    "layers.*.attention.output": "i:0",
    "layers.*.up": "o",
    "layers.*.down": "i",
}
LLAMA_SPLIT = {
    **{f"layers.*.attention.{name}": "o:0" for name in ("query", "key", "value")},
    "layers.*.attention.output": "i:0",
    **{f"layers.*.{name}": "o" for name in ("gate", "up")},
    "layers.*.down": "i",
}


def _gpt(
    layers: int, width: int, vocabulary: int, sequence: int, dropout: float = 0.0, per_head: int = 32
) -> StepModel:
    heads = max(width // per_head, 2)
    return StepModel(
        lambda: GPT(vocabulary, sequence, layers, width, heads, dropout), vocabulary, sequence, GPT_SPLIT, dropout > 0
    )


def _llama(layers: int, width: int, vocabulary: int, sequence: int, per_head: int = 32) -> StepModel:
    heads = max(width // per_head, 2)
    inner = -(-width * 8 // 3 // 16) * 16
    return StepModel(lambda: Llama(vocabulary, layers, width, heads, heads, inner), vocabulary, sequence, LLAMA_SPLIT)


def _bert(layers: int, width: int, vocabulary: int, sequence: int, per_head: int = 32) -> StepModel:
    def inputs(samples: int, draw: torch.Generator) -> dict[str, Tensor]:
        ids, labels = torch.randint(vocabulary, (2, samples, sequence), generator=draw)
        return {"ids": ids, "types": torch.zeros_like(ids), "labels": labels}

    heads = width // per_head
    return StepModel(
        lambda: Bert(vocabulary, sequence, layers, width, heads=heads, inner=4 * width, dropout=0.0),
        vocabulary,
        sequence,
        {},
        inputs=inputs,
    )


def _mlp(layers: int, width: int) -> StepModel:
    def inputs(samples: int, draw: torch.Generator) -> dict[str, Tensor]:
        x, target = torch.randn(2, samples, width, generator=draw)
        return {"x": x, "target": target}

    return StepModel(lambda: MLP(layers, width), 0, 0, {}, inputs=inputs)


MODELS: Mapping[str, StepModel] = {
    "gpt": _gpt(4, 256, 2048, 128),
    "gpt, dropout 0.1": _gpt(4, 256, 2048, 128, dropout=0.1),
    "llama": _llama(4, 256, 2048, 128),
    "gpt, narrow": _gpt(6, 160, 512, 128),
    "llama, narrow": _llama(6, 160, 512, 128),
    "gpt, wide": _gpt(2, 384, 1024, 64),
    "llama, wide": _llama(2, 384, 1024, 64),
    "bert": _bert(3, 192, 1024, 128),
    "mlp": _mlp(6, 512),
    "gpt, 124M": _gpt(12, 768, 50304, 1024, per_head=64),
    "gpt, 124M, dropout 0.1": _gpt(12, 768, 50304, 1024, dropout=0.1, per_head=64),
    "gpt, 354M": _gpt(24, 1024, 50304, 1024, per_head=64),
    "llama, 268M": _llama(16, 1024, 32000, 1024, per_head=64),
    "bert, 110M": _bert(12, 768, 30592, 512, per_head=64),
    "mlp, 400M": _mlp(6, 8192),
    "gpt, tiny": _gpt(2, 32, 64, 16),
    "llama, tiny": _llama(2, 32, 64, 16),
}
