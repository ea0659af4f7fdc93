"""Small buffers that no checkpoint has, such as rotary frequencies: the program contains their values as constants.

What depends on them alone is then computed once, and in float32 even if the plan computes in bfloat16, which cannot
represent position 257. Buffers inside equal layers stay buffers, because those layers share one class.
"""

import torch
from torch import Tensor, nn

from ..initial_values import InitialValues
from .equal_layers import equal_layers
from .held_tensors import carried
from .literals import MAX_CONSTANT


def fixed_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Such buffers by name, those on meta included, whose values are not known yet."""
    layers, known = tuple(f"{path}." for path in equal_layers(module)), carried(module)
    return {
        name: buffer
        for name, buffer in module.named_buffers()
        if id(buffer) not in known and buffer.numel() <= MAX_CONSTANT and not name.startswith(layers)
    }


def set_buffers(module: nn.Module, values: InitialValues) -> None:
    """Give buffers on meta the values that the constructor computes, where these are known."""
    known: dict[str, Tensor] = dict(values.values)
    for write in values.writes:
        if write.name is not None and write.kind == "values":
            known[write.name] = torch.tensor(write.numbers, dtype=getattr(torch, write.dtype)).view(write.shape)
    for name, buffer in fixed_buffers(module).items():
        if buffer.is_meta and name in known and known[name].shape == buffer.shape:
            path, _, own = name.rpartition(".")
            module.get_submodule(path)._buffers[own] = known[name]
