"""A live module of which this rank trains its part: parameters, calls, gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...model.errors import PartitaError
from .arguments import Arguments
from .outputs import Form

Names: TypeAlias = Mapping[str, str]
"""The names of planned tensors in the user's module, tied ones under each, with the name that the program uses."""


class Parallel:
    """A module that this rank trains its part of; what a loop needs besides `module(...)`.

    `step` counts calls with gradients; dropout masks follow from it, so set it when a run goes on.
    """

    def __init__(
        self, module: nn.Module, program: ModuleType, arguments: Arguments, form: Form, *, local: bool, names: Names
    ) -> None:
        self.module, self.program, self.local, self.step = module, program, local, 0
        self._arguments, self._form = arguments, form
        self.mesh, self._model, self._optimizer = program.build(_state(module))
        self._parts = [_Part(w, place, name) for w, place, name in _placed(self._model)]
        self._register(names)
        values = [(part, part.value) for part in self._parts]
        self._trained = [part for part, p in values if isinstance(p, nn.Parameter) and p.requires_grad]

        @functools.wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._forward(args, kwargs)

        module.forward = forward

    def _register(self, names: Names) -> None:
        """Replace the module's tensors by this rank's parts, tied ones under all their names."""
        here = {part.name: part for part in self._parts}
        for name, original in names.items():
            path, _, leaf = name.rpartition(".")
            owner, part = self.module.get_submodule(path), here.get(original)
            if leaf in owner._buffers:
                owner._buffers[leaf] = None if part is None else part.as_buffer()
                continue
            given = owner._parameters[leaf]
            if part is not None and given is not None and given.requires_grad != part.weight.requires_grad:
                state = "trained" if part.weight.requires_grad else "frozen"
                raise PartitaError(f"{name!r} is planned as {state}: plan the module as it is trained")
            owner._parameters[leaf] = None if part is None else part.as_parameter()
        self._names = frozenset(names)

    def _forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        inputs = self._arguments.inputs(args, kwargs)
        form = self._form.of(args, kwargs)
        self._model.train(self.module.training)
        self._follow()
        if torch.is_grad_enabled():
            return form(_Planned.apply(self, inputs, *(part.value for part in self._trained)))  # type: ignore[no-untyped-call]
        if self.module.training:
            raise PartitaError("a forward without gradients is an evaluation: call module.eval() before")
        loss = self.program.evaluate(self._model, inputs, self.mesh, self.local)
        dtype = torch.promote_types(self._model.dtype, torch.float32)
        return form(torch.tensor(loss, device=self.mesh.device, dtype=dtype))

    def _follow(self) -> None:
        """Take over values that the user's module no longer shares with the program, as after `.data = ...`."""
        with torch.no_grad():
            for part in self._parts:
                if part.value is not None and part.value.data_ptr() != part.own.data_ptr():
                    part.own.copy_(part.value)

    def gradients(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The loss over the whole batch, and the gradient of every trained part, summed over the ranks."""
        with torch.enable_grad(), torch.autocast(self.mesh.device.type, enabled=False):
            loss = self.program.backward(self._model, self._optimizer, inputs, self.mesh, self.step, self.local)
        self.step += 1
        found = [part.gradient() for part in self._trained]
        self._optimizer.zero_grad()
        return loss, found

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients of `module` to a norm of at most `max_norm`; returns their norm, over all ranks' parts.

        In place of `nn.utils.clip_grad_norm_`, which knows this rank's parts only. Every rank takes part.
        """
        self._optimizer.zero_grad()
        for part in self._trained:
            part.put_gradient()
        norm: Tensor = self._optimizer.norm()
        self._optimizer.zero_grad()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for part in self._trained:
            if part.value is not None and part.value.grad is not None:
                part.value.grad.mul_(factor.to(part.value.grad.dtype))
        return norm

    def samples(self, count: int, first: int = 0) -> Iterator[list[int]]:
        """A DataLoader's `batch_sampler`: the samples of a data set of `count` that this rank reads, from step `first`.

        Without end, shuffled anew in every epoch; for `local=True`.
        """
        found: Iterator[list[int]] = self.program.Samples(self.mesh, count, first)
        return found

    def whole_state(self) -> dict[str, Tensor]:
        """All weights, whole, under their original names, on rank 0's CPU (elsewhere {}); every rank takes part."""
        self._follow()
        state: dict[str, Tensor] = self.program.whole_weights(self._model, self.mesh)
        if dist.get_rank():
            return {}
        rest = self.module.state_dict().items()
        return {name: x.detach().cpu() for name, x in rest if name not in self._names} | state

    def load_whole_state(self, state: Mapping[str, Tensor] | str) -> None:
        """Copy this rank's parts from whole weights under their original names: a dict, or a file."""
        self.program.load(self._model, state if isinstance(state, str) else dict(state), self.mesh)


class _Part:
    """This rank's part of one original tensor: `own`, all of a weight of the program or some rows of it.

    `value` is the parameter or buffer that the user's module has in its place. It shares the memory of `own` but not
    its gradient, so that hooks and gradients of the user's are apart from those of the program.
    """

    def __init__(self, weight: Tensor, place: Any, name: str) -> None:
        self.weight, self.place, self.name = weight, place, name
        self.own = weight.detach() if place is None else weight.detach()[place]
        self.value: Tensor | None = None

    def as_parameter(self) -> nn.Parameter:
        if not isinstance(self.value, nn.Parameter):
            self.value = nn.Parameter(self.own, requires_grad=self.weight.requires_grad)
        return self.value

    def as_buffer(self) -> Tensor:
        self.value = self.own
        return self.value

    def gradient(self) -> Tensor:
        """The gradient of this part in the program."""
        grad = self.weight.grad
        assert grad is not None, self.name
        return grad if self.place is None else grad[self.place]

    def put_gradient(self) -> None:
        """Give the program the gradient that the user's module has, zeros where it has none."""
        given = None if self.value is None else self.value.grad
        if self.place is None:
            self.weight.grad = torch.zeros_like(self.weight) if given is None else given
            return
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        if given is not None:
            self.weight.grad[self.place] = given


class _Planned(torch.autograd.Function):
    """One run of the program, forward and backward; its gradients are handed to the user's parameters in backward."""

    @staticmethod
    def forward(ctx: Any, parallel: Parallel, inputs: Mapping[str, Tensor], *_: Tensor) -> Tensor:
        loss, ctx.gradients = parallel.gradients(inputs)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise PartitaError("the gradients of this forward are used up: call the module again")
        return None, None, *(x.mul_(grad.to(x.dtype)) for x in gradients)


def _placed(model: nn.Module) -> Iterator[tuple[Tensor, Any, str]]:
    """The program's weights: their places and names, of each tensor that one joins."""
    for weight in model.parameters():
        tables = getattr(weight, "tables", None)
        if tables is None:
            yield weight, None, weight.original  # type: ignore[attr-defined]
        else:
            yield from ((weight, table.place, table.original) for table in tables)


def _state(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, under all their names; not copied."""
    return {
        **{name: x.detach() for name, x in module.named_parameters(remove_duplicate=False)},
        **{name: x.detach() for name, x in module.named_buffers(remove_duplicate=False)},
    }
