"""From a module to the ATen graph of what it minimizes, with torch.export and tensors without memory."""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import _trace
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..errors import PartitaError
from .aten.batch_norm import stop_counting
from .buffer_changes import buffers_of, write_assigned
from .custom_functions import CustomFunctions
from .gradients import only_autograd
from .inputs import Inputs
from .objective import Loss, Objective, TrainedModule, objective
from .python_checks import checks_pass
from .repeated_calls import note_calls
from .source_lines import place_of
from .unread_calls import drop_unread_calls


class _Found:
    """What forward minimizes; torch.export restores attributes of modules, not those of this value."""

    objective: Objective | None = None


class _Exported(nn.Module):
    """The module with flat inputs and what it minimizes as outputs, of which `found` knows more after forward."""

    def __init__(self, module: nn.Module, inputs: Inputs, loss: Loss) -> None:
        super().__init__()
        self.module = module
        self.inputs = inputs
        self.loss = loss
        self.found = _Found()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = buffers_of(self.module)
        result = self.inputs.call(self.module, tensors)
        write_assigned(self.module, before)
        found = objective(result, self.loss, self.module)
        self.found.objective = found
        return found.tensors


def without_memory(module: nn.Module, mode: FakeTensorMode, shared: bool = True) -> nn.Module:
    """A copy of the module whose parameters, and buffers without values, are fake tensors on the CPU.

    Other buffers are those of the module if they are `shared`, else copies.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        with mode:
            fake = torch.empty(parameter.shape, dtype=parameter.dtype)
            memo[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        if buffer.device.type == "cpu":
            memo.update({id(buffer): buffer} if shared else {})
        else:
            with mode:
                memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    try:
        copied = copy.deepcopy(module, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise PartitaError(f"cannot copy the module {type(module).__name__} to capture it: {error}") from error
    stop_counting(copied)
    return copied


def _ctc_shapes(mode: FakeTensorMode, func: Any, x: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    """The losses of samples, and one of the tensors that autograd keeps, whose shape nothing reads."""
    with mode:
        losses = x.new_empty(x.shape[1:2] if x.dim() == 3 else ())
        return losses, torch.empty_like(losses)


_SHAPES = dict.fromkeys((torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor), _ctc_shapes)
"""Of calls whose results, as torch has it, have a size that depends on the data, but which capture knows."""

_LOUD = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.export._trace")
"""Loggers that print tracebacks of errors in forward, which PartitaError reports in one line."""


@contextmanager
def _known_shapes() -> Iterator[None]:
    with patch.dict(fake_impls.op_implementations_dict, _SHAPES):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence these loggers, and the graph that torch.export prints where it fails."""
    with ExitStack() as silenced:
        silenced.enter_context(patch.object(_trace, "print", lambda *words, **options: None, create=True))
        for name in _LOUD:
            silenced.enter_context(patch.object(logging.getLogger(name), "disabled", True))
        yield


def _examples(inputs: Inputs, batch: int, mode: FakeTensorMode) -> tuple[torch.Tensor, ...]:
    """Fake inputs for `batch` samples."""
    with mode:
        shapes = zip(inputs.shapes(batch), inputs.tensors, strict=True)
        return tuple(torch.empty(shape, dtype=t.dtype) for shape, t in shapes)


def runs_with(model: TrainedModule, layers: Mapping[str, int], inputs: Inputs, batch: int) -> bool:
    """True if forward gives what is trained for `batch` samples; of equal `layers` only two run."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copied = without_memory(model.module, mode, shared=False)
    note_calls(copied, layers)
    examples = _examples(inputs, batch, mode)
    try:
        with mode, warnings.catch_warnings(), _quiet(), _known_shapes():
            warnings.simplefilter("ignore")
            _Exported(copied, inputs, model.loss)(*examples)
    except Exception:  # whatever the user's forward raises
        return False
    return True


_REMEDIES = {
    ".numpy()": "compute with torch's functions instead of NumPy's, or before the module is called",
    "not allocated yet": "give numbers as tensors, among them the lengths of a CTC loss",
    "devices, meta and cpu": "register tensors of the module as buffers (register_buffer), or make them on the CPU",
    "cuda": "leave devices out of forward, or take that of a tensor (x.device)",
}
"""What helps where torch's words contain a sign."""


def _not_exported(error: Exception, copied: nn.Module, module: nn.Module) -> PartitaError:
    """The error for a forward that cannot be exported: what, where, and what to write instead."""
    place = place_of(error, copied)
    if isinstance(error, GuardOnDataDependentSymNode):
        checked = ": assert " in place
        remedy = (
            "check the inputs before the module is called, or leave the check out"
            if checked
            else "choose with torch.where(condition, a, b), keep numbers as tensors, or decide outside of forward"
        )
        return PartitaError(
            "cannot capture Python code that depends on values of tensors (if, while, assert, float, int, range) "
            f"{place}; {remedy}"
        )
    reason = str(error).strip().split("\n")[0].rstrip(".")
    remedy = next((f"; {words}" for sign, words in _REMEDIES.items() if sign in reason), "")
    return PartitaError(f"cannot export {type(module).__name__}: {type(error).__name__}: {reason}, {place}{remedy}")


def export(
    model: TrainedModule, inputs: Inputs, batch: int, layers: Mapping[str, int], functions: CustomFunctions
) -> tuple[torch.export.ExportedProgram, Objective]:
    """The program at `batch` samples, and what it minimizes. Of equal `layers` it holds two.

    Calls of user-defined autograd functions are noted in `functions`. A forward that asks whether it is compiled, and
    fails if it is, is exported as if it were not.
    """
    try:
        return _exported(model, inputs, batch, layers, functions)
    except PartitaError:
        with patch.object(torch.compiler, "is_compiling", lambda: False), suppress(PartitaError):
            return _exported(model, inputs, batch, layers, functions)
        raise


def _exported(
    model: TrainedModule, inputs: Inputs, batch: int, layers: Mapping[str, int], functions: CustomFunctions
) -> tuple[torch.export.ExportedProgram, Objective]:
    module = model.module
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copied = without_memory(module, mode)
    note_calls(copied, layers)
    wrapped = _Exported(copied, inputs, model.loss)
    examples = _examples(inputs, batch, mode)
    try:
        with warnings.catch_warnings(), _quiet(), _known_shapes(), checks_pass(), only_autograd(functions.apply):
            warnings.simplefilter("ignore")
            program = torch.export.export(wrapped, examples, strict=False)
    except PartitaError:
        raise
    except Exception as error:  # from the user's forward, or what torch.export does not support
        raise _not_exported(error, copied, module) from error
    assert wrapped.found.objective is not None
    drop_unread_calls(program.graph)
    return program, wrapped.found.objective
