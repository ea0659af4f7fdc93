"""A live module of which this rank trains its part: parameters, calls, gradients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, SupportsIndex

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.optim import Optimizer

from ...model.capture.held_tensors import all_buffers
from ...model.errors import PartitaError
from .arguments import Arguments
from .outputs import Form
from .own_optimizers import OwnOptimizers
from .parts import Names, Parts


class Parallel:
    """A module that this rank trains its part of; what a loop needs besides `module(...)`.

    `step` counts calls with gradients; dropout masks follow from it, so set it when a run goes on.
    """

    def __init__(
        self, module: nn.Module, program: ModuleType, arguments: Arguments, form: Form, *, local: bool, names: Names
    ) -> None:
        self.module, self.program, self.local, self.step = module, program, local, 0
        self._arguments, self._form = arguments, form
        self._saved = frozenset(module.state_dict())  # without buffers that modules leave out
        self.mesh, self._model, self._optimizer = program.build(_state(module))
        self._parts = Parts(module, program, self._model, names, self.mesh.device)
        module.forward = Forward(self, module.forward)

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call of the module returns."""
        self._parts.check()
        self._parts.follow()
        inputs = self._arguments.inputs(args, kwargs)
        form = self._form.of(args, kwargs)
        if not (torch.is_grad_enabled() or not self.module.training):
            raise PartitaError("a forward without gradients is an evaluation: call module.eval() before")
        self._model.train(self.module.training)
        if torch.is_grad_enabled():
            loss = _Planned.apply(self, inputs, *self._parts.values())  # type: ignore[no-untyped-call]
        else:
            found = self.program.evaluate(self._model, inputs, self.mesh, self.local)
            dtype = torch.promote_types(self._model.dtype, torch.float32)
            loss = torch.tensor(found, device=self.mesh.device, dtype=dtype)
        self._parts.hand_back()
        return form(loss)

    def gradients(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The loss over the whole batch, and the gradient of every trained part, summed over the ranks."""
        with torch.enable_grad(), torch.autocast(self.mesh.device.type, enabled=False):
            loss = self.program.backward(self._model, self._optimizer, inputs, self.mesh, self.step, self.local)
        self.step += 1
        found = self._parts.gradients()
        self._let_go()
        return loss, found

    def _let_go(self) -> None:
        """Leave gradients to the user's parameters; the program takes other memory for the next ones."""
        for bucket in self._optimizer.buckets:
            bucket.flat = None
        for w in self._model.parameters():
            w.grad = w.message = None  # the bucket makes new ones when it allocates

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients of `module` to a norm of at most `max_norm`; returns their norm, over all ranks' parts.

        In place of `nn.utils.clip_grad_norm_`, which knows this rank's parts only. Every rank takes part.
        """
        for part in self._parts.trained:
            part.put_gradient()
        norm: Tensor = self._optimizer.norm()
        self._let_go()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for x in self._parts.values():
            if x.grad is not None:
                x.grad.mul_(factor.to(x.grad.dtype))
        return norm

    def samples(self, count: int, first: int = 0) -> Any:
        """A DataLoader's `batch_sampler`: the samples of a data set of `count` that this rank reads, from step `first`.

        An epoch an iteration, each shuffled anew; for `local=True`.
        """
        return self.program.Samples(self.mesh, count, first)

    def whole_state(self) -> dict[str, Tensor]:
        """The module's state dict, whole, on rank 0's CPU (elsewhere {}); every rank takes part."""
        self._parts.follow()
        state: dict[str, Tensor] = self.program.whole_weights(self._model, self.mesh)
        if dist.get_rank():
            return {}
        rest = self.module.state_dict().items()
        state |= {name: x.detach().cpu() for name, x in rest if name not in self._parts.names}
        return {name: x for name, x in state.items() if name in self._saved}

    def load_whole_state(self, state: Mapping[str, Tensor] | Path | str) -> None:
        """Copy this rank's parts from whole weights under their original names: a dict, or a file."""
        self._parts.follow()
        self.program.load(self._model, dict(state) if isinstance(state, Mapping) else state, self.mesh)
        self._parts.hand_back(weights=True)

    def save_training(self, folder: Path | str, *optimizers: Optimizer, frozen: bool = True) -> None:
        """Write what training goes on from, as emitted programs do: weights, `optimizers`' states, `step`.

        Every rank takes part. Without `frozen` only weights that training changes. Hyperparameters and schedules of the
        optimizers are not in it. Raises PartitaError for states that are not elementwise.
        """
        self._parts.follow()
        own = OwnOptimizers(optimizers, self._parts, self.step)
        save = self.program.save_training
        partly = not frozen and "frozen" in inspect.signature(save).parameters
        save(self._model, own, str(folder), self.step, **({"frozen": False} if partly else {}))

    def resume(self, folder: Path | str, *optimizers: Optimizer) -> int:
        """Go on from the last checkpoint in `folder`, of whichever plan of the module, or of its emitted program.

        Every rank takes part. Returns the number of steps done, which `step` is then, too.
        """
        self._parts.follow()
        own = OwnOptimizers(optimizers, self._parts, self.step)
        self.step = self.program.resume(self._model, own, str(folder))
        own.put_back()
        self._parts.hand_back(weights=True)
        return self.step


class Forward:
    """The planned forward of one module, in place of its own; a copy of the module would train that one's weights."""

    def __init__(self, parallel: Parallel, own: Callable[..., Any]) -> None:
        functools.update_wrapper(self, own)  # its signature
        self.parallel = parallel
        self.run = torch.compiler.disable(parallel.forward)  # type: ignore[no-untyped-call]  # it runs a whole step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(args, kwargs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """For pickle, torch.save and copy.deepcopy."""
        raise PartitaError(
            f"a parallelized {type(self.parallel.module).__name__} cannot be copied or pickled: copy it before and "
            "parallelize each, save whole_state(), or train on from save_training"
        )


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


def _state(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, under all their names; not copied."""
    return {
        **{name: x.detach() for name, x in module.named_parameters(remove_duplicate=False)},
        **{name: x.detach() for name, x in all_buffers(module).items()},
    }
