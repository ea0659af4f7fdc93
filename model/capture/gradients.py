"""Which weights get gradients; and errors for custom gradients, which torch.export would lose silently."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd import Function

from ..errors import PartitaError
from ..graph.pcg import Node

_MODULE_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def trained(nodes: Sequence[Node], loss: int) -> list[Node]:
    """The nodes, with parameters frozen that no gradient of the loss reaches: autograd leaves theirs None, not zero."""
    reached = {loss}
    for index in reversed(range(len(nodes))):
        if index in reached:
            reached.update(i for i in nodes[index].inputs if nodes[i].gradient)
    return [
        replace(node, gradient=False) if node.op == "parameter" and index not in reached else node
        for index, node in enumerate(nodes)
    ]


def check_hooks(module: nn.Module) -> None:
    """Raise PartitaError if a hook of a module or a parameter may change gradients."""
    found = [(name, part, _MODULE_HOOKS) for name, part in module.named_modules()]
    found += [(name, weight, _TENSOR_HOOKS) for name, weight in module.named_parameters()]
    for name, owner, hooks in found:
        if any(getattr(owner, hook, None) for hook in hooks):
            raise PartitaError(f"{name or 'the module'!r} has a hook on its gradient, which the program would not run")


class _Template:
    """`apply` as the code that stands for `Function.apply` meanwhile: it has the same cell, `__class__`."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        _ = super()  # which makes the cell
        return globals()["_partita_applied"](cls, *args, **kwargs)


@contextmanager
def _applying(applied: Callable[..., Any]) -> Iterator[None]:
    """Within it, `Function.apply` is `applied(its own code, class, arguments)`.

    The code of the method is replaced, not the method: modules keep `apply = MyFunction.apply`, which is bound.
    """
    method: Any = Function.apply.__func__  # type: ignore[attr-defined]
    template: Any = _Template.apply.__func__  # type: ignore[attr-defined]
    code, names = method.__code__, method.__globals__
    own = FunctionType(code, names, method.__name__, method.__defaults__, method.__closure__)
    names["_partita_applied"] = partial(applied, own)
    method.__code__ = template.__code__
    try:
        yield
    finally:
        method.__code__ = code
        del names["_partita_applied"]


@contextmanager
def only_autograd(custom: Callable[..., Any]) -> Iterator[None]:
    """Within it `custom` gets calls of user-defined functions; hooks and `torch.inference_mode` raise PartitaError."""
    enter = torch.inference_mode.__enter__

    def applied(apply: Callable[..., Any], kind: type[Function], *args: Any, **kwargs: Any) -> Any:
        if kind.__name__ == "CheckpointFunction":
            raise PartitaError("forward uses a reentrant checkpoint, which is not supported; use use_reentrant=False")
        if kind.__module__.partition(".")[0] != "torch":
            return custom(kind, *args, **kwargs)
        return apply(kind, *args, **kwargs)

    def hooked(tensor: Tensor, hook: Any) -> NoReturn:
        raise PartitaError("forward registers a hook on a gradient, which the program would not run")

    def entered(region: Any) -> None:
        if region.mode:
            raise PartitaError("forward uses torch.inference_mode, which is not supported; use torch.no_grad")
        enter(region)

    with (
        _applying(applied),
        patch.object(Tensor, "register_hook", hooked),
        patch.object(torch.inference_mode, "__enter__", entered),
    ):
        yield
