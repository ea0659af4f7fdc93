"""Small buffers that no checkpoint has, such as rotary frequencies: a program has their values as constants.

What is computed of them alone is then computed once, and in float32 where the plan computes in 16 bits: no bfloat16 is
the position 257. Buffers of equal layers stay buffers, since the layers' code is one.
"""

from math import prod

import torch
from torch import Tensor, nn

from ..initial_values import InitialValues
from .equal_layers import equal_layers
from .literals import MAX_CONSTANT, has_values


def fixed_buffers(module: nn.Module, *, valued: bool = False) -> dict[str, Tensor]:
    """Such buffers by name: those with values if `valued`, those without otherwise."""
    layers = tuple(f"{path}." for path in equal_layers(module))
    carried = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    found = {}
    for name, buffer in module.named_buffers():
        if id(buffer) in carried or name.startswith(layers) or buffer.numel() > MAX_CONSTANT:
            continue
        if has_values(buffer) is valued and not (valued and not bool(buffer.isfinite().all())):
            found[name] = buffer
    return found


def set_buffers(module: nn.Module, values: InitialValues) -> None:
    """Give buffers on meta the values that the constructor computes, where they are known and few."""
    known: dict[str, Tensor] = dict(values.values)
    for write in values.writes:
        if write.name is not None and write.kind == "values" and prod(write.shape) == len(write.numbers):
            known[write.name] = torch.tensor(write.numbers, dtype=getattr(torch, write.dtype)).view(write.shape)
    for name, buffer in fixed_buffers(module).items():
        if name in known and known[name].shape == buffer.shape:
            path, _, own = name.rpartition(".")
            module.get_submodule(path)._buffers[own] = known[name]
