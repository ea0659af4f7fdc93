"""Optimizers of the user's loop, as a program's functions for checkpoints know an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...model.errors import PartitaError
from .parts import Part, Parts


class OwnOptimizers:
    """Their states by weights of the program.

    Stands for the program's optimizer, and for the one of torch inside of it; its schedule only counts.
    Raises PartitaError for optimizers that train none of the parts, and for states that are not elementwise.
    """

    def __init__(self, optimizers: Sequence[Optimizer], parts: Parts, updates: int) -> None:
        self.inner, self.schedule = self, SimpleNamespace(last_epoch=updates, step=lambda: None)
        self.optimizers = optimizers
        held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        self.params = [p for p in parts.values() if id(p) in held]
        if not self.params:
            raise PartitaError("these optimizers train no parameter of the parallelized module")
        self.param_groups = [{"params": self.params}]
        self._parts = [part for part in parts.trained if id(part.value) in held]
        self.state = self._found()

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
        self.state = self._found()

    def _found(self) -> dict[Tensor, dict[str, Tensor]]:
        """The states themselves; of a weight that joins several tensors of the module, copies put together."""
        found: dict[Tensor, dict[str, Tensor]] = {}
        for part in self._parts:
            for kind, value in self._of(part).items():
                states = found.setdefault(part.weight, {})
                if not isinstance(value, Tensor):
                    states[kind] = torch.tensor(value)
                elif part.place is None or not value.dim():
                    states[kind] = value
                else:
                    whole = states.setdefault(kind, value.new_zeros(part.weight.shape))
                    whole[part.place] = value
        return found

    def _of(self, part: Part) -> dict[str, Any]:
        """The states of a part: tensors and numbers."""
        found: dict[str, Any] = {}
        for kind, value in self._own(part).items():
            if isinstance(value, Tensor) and value.dim() and value.shape != part.own.shape:
                raise PartitaError(
                    f"the optimizer's {kind} of {part.name!r} is {list(value.shape)} for a part that is "
                    f"{list(part.own.shape)}: checkpoints have states of single elements only"
                )
            if isinstance(value, Tensor | int | float):
                found[kind] = value
        return found

    def _own(self, part: Part) -> dict[str, Any]:
        """What its optimizer knows of a part."""
        assert part.value is not None
        return next((optimizer.state[part.value] for optimizer in self.optimizers if part.value in optimizer.state), {})

    def put_back(self) -> None:
        """Give the optimizers what was read into `state`."""
        for part in self._parts:
            for kind, value in self._of(part).items():
                read = self.state[part.weight][kind]
                if not isinstance(value, Tensor):
                    self._own(part)[kind] = type(value)(read.item())
                elif value is not read:
                    value.copy_(read if part.place is None or not value.dim() else read[part.place])
