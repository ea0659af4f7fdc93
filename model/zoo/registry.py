"""The zoo: models by name, at full size or as small twins, with default training options."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PartitaError
from ..wording import nearest
from . import alphafold, bert, candle, dlrm, gpt, inception, llama, mbart, mixtral, mlp, resnext, swin, unet
from .entry import Entry, Input

EXAMPLE = 2
"""Samples in the example inputs; graphs can have any batch."""

_FAMILIES = (mlp, resnext, inception, unet, bert, dlrm, candle, gpt, llama, mixtral, swin, mbart, alphafold)
_ENTRIES: dict[str, Entry] = {name: made for family in _FAMILIES for name, made in family.ENTRIES.items()}


def zoo() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """The entry of a model. Raises PartitaError that suggests the nearest names."""
    if name not in _ENTRIES:
        near = nearest(name, _ENTRIES, 3) or list(_ENTRIES)
        raise PartitaError(f"no model {name!r} in the zoo; did you mean {', '.join(near)}? (or give file.py:factory)")
    return _ENTRIES[name]


def build(
    name: str,
    *,
    small: bool = False,
    sequence: int | None = None,
    device: str = "meta",
    sizes: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model in training mode, and example inputs by argument name; `sizes` replaces some of the entry's.

    Raises PartitaError on an invalid sequence.
    """
    found = entry(name)
    if sequence is not None and found.sequence is None:
        raise PartitaError(f"{name} has no sequence; leave --sequence out")
    if sequence is not None and sequence < 1:
        raise PartitaError(f"sequence {sequence} is not positive")
    known = found.sizes(small, sequence) | dict(sizes or {})
    taken = {name: known[name] for name in inspect.signature(found.make).parameters}
    with torch.device(device):
        module = found.make(**taken)
        inputs = {name: _example(given, known) for name, given in found.inputs.items()}
    return module.train(), inputs


def _example(given: Input, sizes: dict[str, Any]) -> Tensor:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in given.shape]
    counts = [len(size) if isinstance(size, tuple) else size for size in shape]
    return torch.zeros(EXAMPLE, *counts, dtype=torch.int64 if given.integer else None)
