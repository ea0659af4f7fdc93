"""What the zoo holds: for each name the module at its full size, a small twin, and what it is trained with by default.

The sizes and settings are those of the papers that evaluate on these models (Unity, OSDI'22, for `mlp` and
`bert-large`; SuperScaler for `gpt3-*`, there at sequence 16,384 and here at 2048). GPT-3's vocabulary is padded to
51,200, its embeddings are tied, and it is trained without dropout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PartitaError
from .bert import Bert
from .gpt import GPT
from .llama import Llama
from .mlp import MLP

EXAMPLE = 2
"""Samples in the example inputs; a graph is made for any number of them."""


@dataclass(frozen=True)
class Entry:
    """One model: `make(**sizes)` builds it, `inputs` names its arguments with how many of each a sample has.

    `batch` counts samples in a step: of every device if `per_device`, else of all. `sequence` and `small_sequence`
    are None for models without one. An input is "ids" (integers, one a token) or the width of a vector of floats.
    """

    make: Callable[..., nn.Module]
    full: dict[str, Any]
    small: dict[str, Any]
    inputs: dict[str, str]
    batch: int
    per_device: bool
    dtype: str
    optimizer: str
    machine: str
    nodes: int
    sequence: int | None = None
    small_sequence: int | None = None
    small_batch: int = 12
    takes_sequence: bool = False  # whether the module's sizes depend on the sequence (learned positions)

    def default_batch(self, small: bool, devices: int) -> int:
        """Samples in a step on `devices` devices, where nothing else is said."""
        if small:
            return self.small_batch
        return self.batch * devices if self.per_device else self.batch


def _gpt3(layers: int, width: int, nodes: int) -> Entry:
    return Entry(
        GPT,
        {"vocabulary": 51200, "layers": layers, "width": width, "heads": 32, "dropout": 0.0},
        {"vocabulary": 96, "layers": 4, "width": 64, "heads": 4, "dropout": 0.0},
        {"ids": "ids", "labels": "ids"},
        batch=512,
        per_device=False,
        sequence=2048,
        small_sequence=8,
        dtype="mixed-float16",
        optimizer="adam",
        machine="v100-32gb",
        nodes=nodes,
        takes_sequence=True,
    )


_ENTRIES: dict[str, Entry] = {
    "mlp": Entry(
        MLP,
        {"layers": 16, "width": 8192},
        {"layers": 4, "width": 48},
        {"x": "width", "target": "width"},
        batch=256,
        per_device=True,
        dtype="float32",
        optimizer="sgd",
        machine="summit",
        nodes=1,
    ),
    "bert-large": Entry(
        Bert,
        {},
        {"vocabulary": 90, "layers": 2, "width": 48, "heads": 6, "inner": 96},
        {"ids": "ids", "types": "ids", "labels": "ids"},
        batch=4,
        per_device=True,
        sequence=512,
        small_sequence=8,
        dtype="float32",
        optimizer="adam",
        machine="summit",
        nodes=1,
        takes_sequence=True,
    ),
    "gpt2": Entry(
        GPT,
        {},
        {"vocabulary": 101, "layers": 3, "width": 48, "heads": 4},
        {"ids": "ids", "labels": "ids"},
        batch=512,
        per_device=False,
        sequence=1024,
        small_sequence=12,
        dtype="mixed-bfloat16",
        optimizer="adamw",
        machine="dgx-a100",
        nodes=1,
        takes_sequence=True,
    ),
    "gpt3-1.3b": _gpt3(24, 2048, 1),
    "gpt3-15b": _gpt3(48, 5120, 4),
    "llama-7b": Entry(
        Llama,
        {},
        {"vocabulary": 96, "layers": 2, "width": 48, "heads": 6, "inner": 120},
        {"ids": "ids", "labels": "ids"},
        batch=512,
        per_device=False,
        sequence=4096,
        small_sequence=8,
        dtype="mixed-bfloat16",
        optimizer="adamw",
        machine="dgx-h100",
        nodes=1,
    ),
}


def zoo() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """The entry of a model. Raises PartitaError with the nearest names."""
    if name not in _ENTRIES:
        near = get_close_matches(name, _ENTRIES, n=3, cutoff=0.4) or list(_ENTRIES)
        raise PartitaError(f"no model {name!r} in the zoo; did you mean {', '.join(near)}? (or give file.py:factory)")
    return _ENTRIES[name]


def build(
    name: str, *, small: bool = False, sequence: int | None = None, device: str = "meta"
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model in training mode and example inputs for it, by argument name. Raises PartitaError on a bad sequence."""
    found = entry(name)
    length = found.small_sequence if small else found.sequence
    if sequence is not None:
        if length is None:
            raise PartitaError(f"{name} has no sequence; leave --sequence out")
        if sequence < 1:
            raise PartitaError(f"sequence {sequence} is not positive")
        length = sequence
    sizes = dict(found.small if small else found.full)
    if found.takes_sequence:
        sizes["sequence"] = length
    with torch.device(device):
        module = found.make(**sizes)
        inputs = {
            argument: torch.zeros(EXAMPLE, length, dtype=torch.int64)
            if kind == "ids" and length
            else torch.zeros(EXAMPLE, sizes[kind])
            for argument, kind in found.inputs.items()
        }
    return module.train(), inputs
