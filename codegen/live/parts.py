"""This rank's parts of a program's weights, as the parameters and buffers of a live module."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ...model.errors import PartitaError

Names: TypeAlias = Mapping[str, str]
"""The names of planned tensors in the user's module, tied ones under each, with the name that the program uses."""


_NORMS = frozenset({torch.linalg.vector_norm, torch.linalg.norm, torch.norm, Tensor.norm, torch._foreach_norm})


class PartGradient(Tensor):
    """The gradient of a part. Optimizers use it as any tensor; its norm, from which one clips, is refused."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NORMS:
            raise PartitaError(
                "this rank has only parts of the gradients, whose norm is another: call clip_grad_norm_ of what "
                "parallelize returned, also in place of a Trainer's accelerator.clip_grad_norm_"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @staticmethod
    def mark(parameter: Tensor) -> None:
        """Make the gradient of a parameter one; for a hook that runs after it is accumulated."""
        grad = parameter.grad
        if grad is not None and not grad.is_sparse and not isinstance(grad, PartGradient):
            parameter.grad = grad.as_subclass(PartGradient)


class Part:
    """This rank's part of one original tensor: `own`, all of a weight of the program or some rows of it.

    `value` is the parameter or buffer of the user's module. It shares the memory of `own` but not its gradient, so that
    hooks and gradients of the user's are apart from those of the program.
    """

    def __init__(self, weight: Tensor, place: Any, name: str) -> None:
        self.weight, self.place, self.name = weight, place, name
        self.own = weight.detach() if place is None else weight.detach()[place]
        self.value: Tensor | None = None

    @property
    def apart(self) -> bool:
        """True if the user's tensor has other memory, as after `.data = ...`, `.to(dtype)` and the like."""
        return self.value is not None and self.value.data_ptr() != self.own.data_ptr()

    def gradient(self) -> Tensor:
        """The gradient of this part in the program."""
        grad = self.weight.grad
        assert grad is not None, self.name
        return grad if self.place is None else grad[self.place]

    def put_gradient(self) -> None:
        """Give the program the gradient that the user's module has, zeros where it has none."""
        given = None if self.value is None else self.value.grad
        if given is not None:
            given = given.coalesce() if given.is_sparse else given.as_subclass(Tensor)
        if self.place is None:
            self.weight.grad = torch.zeros_like(self.weight) if given is None else given.to(self.weight.dtype)
            return
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        if given is not None:
            self.weight.grad[self.place] = given


class Parts:
    """All parts, put in place of the tensors of `module`; parameters stay the objects that they are.

    Those of other pipeline stages become empty: all ranks have the same names, and an optimizer finds parameters on a
    rank that trains none.
    """

    def __init__(
        self, module: nn.Module, program: ModuleType, model: nn.Module, names: Names, device: torch.device
    ) -> None:
        self.module, self.names = module, names
        self.all = [Part(weight, place, name) for weight, place, name in _placed(program, model)]
        here = {part.name: part for part in self.all}
        whole = True  # False if this rank does not have all elements
        elsewhere: dict[str, nn.Parameter] = {}
        self._buffers: list[tuple[nn.Module, str, Part]] = []
        for name, original in names.items():
            path, _, leaf = name.rpartition(".")
            owner, part = module.get_submodule(path), here.get(original)
            given = owner._parameters.get(leaf)
            if given is None and leaf not in owner._buffers:
                continue  # a plain attribute, which nothing changes
            if given is None:
                owner._buffers[leaf] = None if part is None else part.own
                if part is not None:
                    part.value = part.own
                    self._buffers.append((owner, leaf, part))
                continue
            given.grad = None
            whole = whole and part is not None and (part.value is not None or part.own.shape == given.shape)
            if part is not None:
                if part.value is None:
                    given.data, part.value = part.own, given
                owner._parameters[leaf] = part.value  # type: ignore[assignment]
            else:
                if original not in elsewhere:
                    given.data = torch.empty((0, *given.shape[1:]), dtype=given.dtype, device=device)
                owner._parameters[leaf] = elsewhere.setdefault(original, given)
        values = [part.value for part in self.all if isinstance(part.value, nn.Parameter)]
        self.trained = [part for part in self.all if part.value is not None and part.weight.requires_grad]
        self.frozen = [p for p in values if not p.requires_grad]
        self.empty = [p for p in elsewhere.values() if p.requires_grad]
        for value in () if whole else self.values():
            value.register_post_accumulate_grad_hook(PartGradient.mark)  # type: ignore[no-untyped-call]
        self._inner = [(name, inner) for name, inner in module.named_modules() if name]
        for name, inner in self._inner:
            inner.register_forward_pre_hook(functools.partial(_refuse_call, name))
        self._hooks = self._hooked()
        self._held = self._now()

    def values(self) -> list[Tensor]:
        """The trained tensors of the user's module, also empty ones."""
        return [*(part.value for part in self.trained if part.value is not None), *self.empty]

    def gradients(self) -> list[Tensor]:
        """Those of `values`, as the program has them."""
        return [*(part.gradient() for part in self.trained), *map(torch.zeros_like, self.empty)]

    def check(self) -> None:
        """Raise PartitaError where the module trains otherwise than planned."""
        if any(p.requires_grad for p in self.frozen):
            name = next(part.name for part in self.all if part.value is not None and part.value.requires_grad)
            raise PartitaError(f"{name!r} is planned as frozen: plan the module as it is trained")
        if further := sorted(self._hooked() - self._hooks):
            raise PartitaError(
                f"a hook of {further[0][0]!r} was registered after parallelize, but the plan runs no modules inside: "
                "use hooks of the whole module or of parameters, or register it before planning"
            )

    def _hooked(self) -> set[tuple[str, int]]:
        """The hooks of modules inside."""
        found: set[tuple[str, int]] = set()
        for name, inner in self._inner:
            for hooks in (
                inner._forward_hooks, inner._forward_pre_hooks, inner._backward_hooks, inner._backward_pre_hooks
            ):  # fmt: skip
                found.update((name, key) for key in hooks)
        return found

    def _now(self) -> dict[str, nn.Parameter]:
        return dict(self.module.named_parameters(remove_duplicate=False))

    def follow(self) -> None:
        """Take over values of tensors that the user has given other memory, and of other buffers, as after `.to()`.

        Raises PartitaError where the module has other parameters than it had: the plan would train other tensors.
        """
        now = self._now()
        if changed := sorted(
            name for name in now.keys() | self._held.keys() if now.get(name) is not self._held.get(name)
        ):
            what = "replaced" if changed[0] in now and changed[0] in self._held else "added or removed"
            raise PartitaError(
                f"{changed[0]!r} was {what} after parallelize (as by load_state_dict(assign=True) or new adapters): "
                "load values by load_whole_state or without assign, and change modules before planning"
            )
        for owner, leaf, part in self._buffers:
            part.value = owner._buffers.get(leaf)
        for part in self.all:
            if part.apart:
                assert part.value is not None
                if part.value.shape != part.own.shape:
                    raise PartitaError(
                        f"{part.name!r} is now {list(part.value.shape)}, but this rank's part of it is "
                        f"{list(part.own.shape)}: load whole values by load_whole_state"
                    )
                with torch.no_grad():
                    part.own.copy_(part.value)

    def hand_back(self, weights: bool = False) -> None:
        """Copy buffers, or `weights` as well, from the program to tensors that the user has given other memory."""
        with torch.no_grad():
            for part in self.all:
                if part.apart and (weights or not isinstance(part.value, nn.Parameter)):
                    assert part.value is not None
                    part.value.copy_(part.own)


def _refuse_call(name: str, *_: Any) -> None:
    raise PartitaError(f"{name!r} has this rank's parts of weights and cannot run alone: call the whole module")


def _placed(program: ModuleType, model: nn.Module) -> Iterator[tuple[Tensor, Any, str]]:
    """The program's weights: their rows and names, of each tensor that one joins."""
    for weight in model.parameters():
        joined = getattr(weight, "tables", None)
        if joined is None:
            yield weight, None, weight.original  # type: ignore[attr-defined]
            continue
        rows: dict[str, list[int]] = {name: [] for name in joined}
        for name, _, ((_, place, length), *_) in program.blocks_of(weight):
            rows[name] += [place, place + length]
        yield from ((weight, slice(min(ends, default=0), max(ends, default=0)), name) for name, ends in rows.items())
