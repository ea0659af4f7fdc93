"""What a module returns, with the planned loss in place of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ...model.capture.objective import Loss, objective


class Form:
    """Learns from a copy of the module without memory what it returns; the copy is dropped after its first call."""

    def __init__(self, module: nn.Module, mode: FakeTensorMode, loss: Loss) -> None:
        self.module, self.mode, self.given = module, mode, loss
        self.result: Any = None
        self.loss: Tensor | None = None

    def of(self, args: Any, kwargs: Any) -> Callable[[Tensor], Any]:
        """A function from the loss to what the module returns; tensors that the plan does not compute are None.

        Where the loss is computed from the output, it stands for it. Raises PartitaError if there is no loss.
        """
        if self.loss is None:
            with self.mode:
                args, kwargs = pytree.tree_map_only(
                    Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype), (args, kwargs)
                )
                self.result = self.module.forward(*args, **kwargs)  # its hooks run around the planned forward
                (self.loss,) = objective(self.result, self.given, self.module).tensors
            del self.module
            if all(x is not self.loss for x in _tensors(self.result)):  # computed from the output
                self.result = self.loss
        return lambda value: _filled(self.result, self.loss, value)


def _tensors(result: Any) -> list[Tensor]:
    """The tensors in an output, as `_filled` goes through it."""
    if isinstance(result, Tensor):
        return [result]
    inner: Any = ()
    if isinstance(result, Mapping):
        inner = result.values()
    elif isinstance(result, list | tuple):
        inner = result
    elif dataclasses.is_dataclass(result):
        inner = [getattr(result, field.name) for field in dataclasses.fields(result)]
    return [x for value in inner for x in _tensors(value)]


def _filled(result: Any, loss: Tensor | None, value: Tensor) -> Any:
    """`result` with `value` in place of its loss and None in place of other tensors."""
    if isinstance(result, Tensor):
        return value.view(result.shape) if result is loss else None

    def inner(x: Any) -> Any:
        return _filled(x, loss, value)

    if isinstance(result, Mapping):
        filled = {key: inner(x) for key, x in result.items()}
        return type(result)(**filled) if dataclasses.is_dataclass(result) else type(result)(filled)  # type: ignore[call-arg]
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*map(inner, result))
    if isinstance(result, list | tuple):
        return type(result)(map(inner, result))
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {field.name: inner(getattr(result, field.name)) for field in dataclasses.fields(result)}
        return dataclasses.replace(result, **fields)
    return result
