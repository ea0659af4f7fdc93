"""What is trained: the loss among the outputs of a module."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import PartitaError
from ..training import PROJECTION

Loss: TypeAlias = Callable[[Any], Tensor] | str | None
"""A function of the module's output, `PROJECTION`, or None: the loss that the module returns."""


GIVEN = "given"
"""How a plan file says that its loss is a function, which cannot be saved."""


class TrainedModule(NamedTuple):
    """A module, example inputs, and which of its outputs is trained."""

    module: nn.Module
    inputs: Any
    loss: Loss = None


def mode_of(module: nn.Module) -> str:
    """`train` or `eval`, as `Module.train` and `Module.eval` set it; `mixed` if its parts differ."""
    modes = {part.training for part in module.modules()}
    return "mixed" if len(modes) > 1 else "train" if modes.pop() else "eval"


@dataclass(frozen=True)
class Objective:
    """What is minimized: a loss, or the `projected` tensors; `words` say which output that is."""

    tensors: tuple[Tensor, ...]
    words: str
    projected: bool = False


def check_loss(loss: Loss) -> None:
    """Raise PartitaError unless `loss` is a function, `PROJECTION` or None."""
    if not (loss is None or loss == PROJECTION or callable(loss)):
        raise PartitaError(f"loss={loss!r}: a function of the module's output is needed, or {PROJECTION!r}")


def objective(result: Any, loss: Loss, module: nn.Module) -> Objective:
    """What of the output of `module` is minimized.

    A given function says it. Otherwise it is the only floating scalar, or among several the only one whose name is
    `loss`. With `PROJECTION` it is every floating tensor, for a module without loss. Raises PartitaError, which says
    what to write, where this does not single out one scalar.
    """
    name = type(module).__name__
    found = [(path, t) for path, t in _tensors(result, "out") if t.is_floating_point()]
    if loss == PROJECTION:
        if not found:
            raise PartitaError(f"{name}.forward returns no floating tensor, so there is nothing to train")
        words = f"a random projection of {', '.join(path for path, _ in found)}, which is not a loss"
        return Objective(tuple(t for _, t in found), words, projected=True)
    if callable(loss):
        return Objective((_given(loss, result, found, name),), "the given function of the output")
    scalars = [(path, t) for path, t in found if _is_one_number(t)]
    named = [(path, t) for path, t in found if _is_loss(path)]
    chosen = named if len(named) == 1 else scalars
    if len(chosen) == 1 and _is_one_number(chosen[0][1]):
        return Objective((chosen[0][1],), chosen[0][0])
    raise _refusal(result, found, named, scalars, name)


def _given(loss: Callable[[Any], Tensor], result: Any, found: list[tuple[str, Tensor]], name: str) -> Tensor:
    """The value of the user's function. Raises PartitaError where that is no floating scalar."""
    try:
        value: Any = loss(result)
    except (LookupError, TypeError, AttributeError) as error:
        raise PartitaError(
            f"loss fails on the output of {name}: {type(error).__name__}: {error}; out has {_list(found)}"
        ) from error
    if not isinstance(value, Tensor):
        raise PartitaError(f"loss gives {type(value).__name__} of the output of {name}, not a scalar tensor")
    if not (_is_one_number(value) and value.is_floating_point()):
        raise PartitaError(f"loss gives {_shape(value)} of the output of {name}, not a floating scalar")
    return value


def _refusal(
    result: Any,
    found: list[tuple[str, Tensor]],
    named: list[tuple[str, Tensor]],
    scalars: list[tuple[str, Tensor]],
    name: str,
) -> PartitaError:
    """The error where no single scalar is the loss."""
    choose = "give loss=lambda out: {} (on the command line: file.py:factory that returns (module, inputs, loss))"
    if len(named) == 1:
        path, tensor = named[0]
        return PartitaError(
            f"{name}.forward returns {path} as {_shape(tensor)}, not a scalar: " + choose.format(f"{path}.mean()")
        )
    several = named or scalars
    if several:
        return PartitaError(
            f"{name}.forward returns several scalars ({', '.join(path for path, _ in several)}), and which one is the "
            "loss is not known: " + choose.format(several[-1][0])
        )
    missing = " (its loss is None: are labels missing among the inputs?)" if _without_loss(result) else ""
    return PartitaError(
        f"{name}.forward returns no scalar to minimize, but {_list(found)}{missing}: return the loss from forward, or "
        + choose.format(f"{found[0][0] if found else 'out'}.mean()")
        + f"; to check a module without a loss, give loss={PROJECTION!r} (--loss {PROJECTION})"
    )


def _without_loss(result: Any) -> bool:
    """True for an output that has a place for its loss, left empty."""
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"] is None
    return getattr(result, "loss", ...) is None  # a ModelOutput leaves out what is None, but for its attributes


def _is_one_number(tensor: Tensor) -> bool:
    """True for one element; a size that depends on the data is none that is known."""
    return all(isinstance(size, int) and size == 1 for size in tensor.shape)


def _is_loss(path: str) -> bool:
    return path.endswith((".loss", "['loss']"))


def _list(found: list[tuple[str, Tensor]]) -> str:
    shown = [f"{path} of shape {tuple(t.shape)}" for path, t in found[:8]]
    return ", ".join(shown + ["..."] * (len(found) > 8)) or "no floating tensor"


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in an output, with the expression that gives it."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        inner = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif hasattr(value, "_fields"):  # a named tuple
        inner = [(f"{path}.{name}", getattr(value, name)) for name in value._fields]
    elif isinstance(value, list | tuple):
        inner = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
    elif dataclasses.is_dataclass(value):
        inner = [(f"{path}.{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(getattr(value, "loss", None), torch.Tensor):
        inner = [(f"{path}.loss", value.loss)]
    for name, item in inner:
        yield from _tensors(item, name)
