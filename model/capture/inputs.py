"""Example inputs of a module: flattened, named after its arguments, and which of their dims count samples."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import PartitaError
from ..training import BatchDim
from .collated import check_leaves, check_names, plain_inputs

__all__ = ["BatchDim", "Inputs", "bound_leaves"]


@dataclass(frozen=True)
class Inputs:
    """Example inputs, flattened: the tensors by name, and how to call the module with others in their place.

    `batch_dims`: for every tensor the dim that counts samples, None if there is none. `guessed`: the numbers of the
    tensors of which nobody said it.
    """

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    batch_dims: tuple[int | None, ...]
    guessed: tuple[int, ...]
    _leaves: tuple[Any, ...]
    _structure: Any

    @classmethod
    def of(cls, module: nn.Module, inputs: Any, batch_dim: BatchDim = None) -> "Inputs":
        """Inputs named after the arguments of `module.forward`. Raises PartitaError if they do not fit it.

        Where `batch_dim` does not say it, dim 0 counts samples if it is as large as that of the first such tensor.
        """
        if isinstance(inputs, torch.Tensor):
            inputs = (inputs,)
        if not isinstance(inputs, tuple | list | Mapping):
            raise PartitaError(f"example inputs must be a tuple or a dict of tensors, not {type(inputs).__name__}")
        called = ((), plain_inputs(inputs)) if isinstance(inputs, Mapping) else (tuple(map(plain_inputs, inputs)), {})
        check_names(module, called[1])
        leaves, structure = pytree.tree_flatten(called)
        check_leaves(leaves)
        args, kwargs = pytree.tree_unflatten(range(len(leaves)), structure)
        try:
            numbered = bound_leaves(inspect.signature(module.forward), args, kwargs)
        except TypeError as error:
            raise PartitaError(f"the example inputs do not fit {type(module).__name__}.forward: {error}") from error
        named = {number: name for name, number in numbered}
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        if not tensors:
            raise PartitaError("the example inputs contain no tensor")
        names = tuple(named[number] for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        said = _said(names, tensors, batch_dim)
        sizes = [(tensors[i].shape[d], names[i]) for i, d in said.items() if d is not None]
        for size, name in sizes:
            if size != sizes[0][0]:
                raise PartitaError(
                    f"batch_dim: {sizes[0][1]!r} has {sizes[0][0]} samples, {name!r} has {size}; give batch_dim as a "
                    "dict of input names, with None for inputs without samples"
                )
        batch = sizes[0][0] if sizes else next((t.shape[0] for t in tensors if t.dim()), 1)
        dims = [said.get(i, 0 if t.dim() and t.shape[0] == batch else None) for i, t in enumerate(tensors)]
        guessed = tuple(i for i in range(len(tensors)) if i not in said)
        return cls(names, tensors, tuple(dims), guessed, tuple(leaves), structure)

    def call(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Call `module` with `tensors` in place of the examples."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return module(*args, **kwargs)

    @property
    def batch(self) -> int:
        """Samples in the examples."""
        sizes = (t.shape[d] for t, d in zip(self.tensors, self.batch_dims, strict=True) if d is not None)
        return next(sizes, 1)

    def shapes(self, batch: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors for `batch` samples."""
        return tuple(
            tuple(batch if d == dim else size for d, size in enumerate(t.shape))
            for t, dim in zip(self.tensors, self.batch_dims, strict=True)
        )

    def with_dims(self, dims: Mapping[int, int | None]) -> "Inputs":
        """The same inputs with other batch dims, by the number of the tensor."""
        return replace(self, batch_dims=tuple(dims.get(i, dim) for i, dim in enumerate(self.batch_dims)))


def bound_leaves(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The leaves of a call's arguments, named after the parameters they are for. TypeError: they do not fit."""
    bound = signature.bind(*args, **kwargs).arguments
    return [(_name(path), leaf) for path, leaf in pytree.tree_flatten_with_path(dict(bound))[0]]


def _said(names: Sequence[str], tensors: Sequence[torch.Tensor], batch_dim: BatchDim) -> dict[int, int | None]:
    """What the user says of the batch dims, by the number of the tensor; dims counted from the front."""
    if batch_dim is None:
        return {}
    if isinstance(batch_dim, Mapping):
        unknown = [name for name in batch_dim if name not in names]
        if unknown:
            raise PartitaError(f"batch_dim names {unknown[0]!r}; the inputs are {', '.join(names)}")
        given = {names.index(name): dim for name, dim in batch_dim.items()}
    else:
        given = {i: batch_dim for i, t in enumerate(tensors) if t.dim()}
    for i, dim in given.items():
        rank = tensors[i].dim()
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank):
            raise PartitaError(
                f"batch_dim {dim!r}: input {names[i]!r} has {rank} dims; give batch_dim as a dict of input names, with "
                "None for inputs without samples"
            )
    return {i: dim if dim is None or dim >= 0 else dim + tensors[i].dim() for i, dim in given.items()}


def _name(path: Sequence[Any]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
    return "_".join(part for part in parts if part)
