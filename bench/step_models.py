"""The small models whose steps are measured: made alike by the planner and on every rank."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..model.zoo.gpt import GPT
from ..model.zoo.llama import Llama

SEED = 0


@dataclass(frozen=True, slots=True)
class StepModel:
    """A language model, the layers of which are `module.layers`; `split`: rows of its layers in tensor parallelism."""

    build: Callable[[], nn.Module]
    vocabulary: int
    sequence: int
    split: Mapping[str, str]
    dropout: bool = False

    def module(self) -> nn.Module:
        """The model with the weights that every rank begins with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.build()

    def batch(self, samples: int) -> dict[str, Tensor]:
        """Random tokens, the same at every call."""
        draw = torch.Generator().manual_seed(SEED)
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


def _gpt(layers: int, width: int, vocabulary: int, sequence: int, dropout: float = 0.0) -> StepModel:
    heads = max(width // 32, 2)
    return StepModel(
        lambda: GPT(vocabulary, sequence, layers, width, heads, dropout), vocabulary, sequence, GPT_SPLIT, dropout > 0
    )


def _llama(layers: int, width: int, vocabulary: int, sequence: int) -> StepModel:
    heads = max(width // 32, 2)
    inner = -(-width * 8 // 3 // 16) * 16
    return StepModel(lambda: Llama(vocabulary, layers, width, heads, heads, inner), vocabulary, sequence, LLAMA_SPLIT)


MODELS: Mapping[str, StepModel] = {
    "gpt": _gpt(4, 256, 2048, 128),
    "gpt, dropout 0.1": _gpt(4, 256, 2048, 128, dropout=0.1),
    "llama": _llama(4, 256, 2048, 128),
    "gpt, narrow": _gpt(6, 160, 512, 128),
    "llama, narrow": _llama(6, 160, 512, 128),
    "gpt, tiny": _gpt(2, 32, 64, 16),
    "llama, tiny": _llama(2, 32, 64, 16),
}
