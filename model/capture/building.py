"""Making the nodes of a PCG: the state of a translation that says how they are named, and steps that rules share."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import torch
from torch import fx

from ..errors import PartitaError
from ..graph.builder import Builder
from ..graph.dtypes import FLOATS
from ..graph.pcg import Node
from ..operators.elementwise import OPERATORS as ELEMENTWISE
from .source_lines import source_line


class Index(int):
    """A node of the PCG, distinguished from a Python number."""


Value: TypeAlias = Any
"""The translation of an fx node: the index of a PCG node, a list of indices, or a Python number."""

# Modules that are one operator: the node is named after the module, not after the operator.
_NAMED = {
    "Linear", "Bilinear", "Embedding", "LayerNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "RMSNorm",
    "Dropout", "GELU", "SiLU", "ReLU", "Tanh", "Sigmoid", "ELU", "LeakyReLU", "Softplus", "ReLU6", "Hardtanh",
    "Hardswish", "Hardsigmoid", "Mish", "SELU", "PReLU", "LogSigmoid", "GroupNorm", "Upsample", "Softmax",
    "LogSoftmax", "CrossEntropyLoss", "MSELoss",
}  # fmt: skip
_SPATIAL = ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "InstanceNorm")
_NAMED |= {f"{kind}{dims}d" for kind in _SPATIAL for dims in (1, 2, 3)}
_PROMOTING = frozenset(entry.name for entry in ELEMENTWISE) - {"to", "where", "random"}
"""Operators of which PyTorch computes a float of whole numbers."""
REMEDY = "use known operators"
"""What helps where an operator has no translation."""


class Complex(Index):
    """A node that holds a complex tensor of `rank` dims: its last dim has the real and the imaginary part."""

    rank: int

    def __new__(cls, index: int, rank: int) -> "Complex":
        made = super().__new__(cls, index)
        made.rank = rank
        return made


@dataclass(frozen=True, slots=True)
class Like:
    """The shape and dtype of a node."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def as_pairs(value: Any) -> Any:
    """Tensors, of which complex ones are described by their pairs of real and imaginary parts."""
    if isinstance(value, list | tuple):
        return [as_pairs(each) for each in value]
    if isinstance(value, torch.Tensor) and value.is_complex():
        return Like((*value.shape, 2), value.dtype.to_real())
    return value


def present(*operands: "Index | None") -> list[Index]:
    """The operands that a call has."""
    return [x for x in operands if x is not None]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all shapes can be expanded to."""
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


class Building:
    """Adds nodes to `builder`, named after the module that the current call is in."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.gradient = True  # False inside torch.no_grad
        self._constants: dict[tuple[object, ...], Index] = {}
        self._current: fx.Node | None = None  # the call that is translated
        self._outer: fx.Node | None = None  # the user's call that `_current` is a part of
        self._path = ""
        self._leaf = False

    @contextmanager
    def kept(self, *names: str) -> Iterator[None]:
        """Within it these attributes may change; afterwards they are as before, whatever was raised."""
        before = {name: getattr(self, name) for name in names}
        try:
            yield
        finally:
            vars(self).update(before)

    def _place(self, node: fx.Node) -> None:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        self._path = re.sub(r"@\d+", "", re.sub(r"^module\.?", "", path))
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        self._leaf = name.startswith("torch.nn.modules") and name.rpartition(".")[2] in _NAMED

    def refusal(self, problem: str, remedy: str = REMEDY) -> PartitaError:
        """The error for what cannot be captured: names the module, the line and the remedy."""
        assert self._current is not None
        if self._outer is not None:  # becomes the reason for another refusal
            return PartitaError(problem)
        return PartitaError(
            f"cannot capture {problem} in module {self._path or '(the top)'!r}, at {source_line(self._current)}; "
            f"{remedy}"
        )

    @property
    def result(self) -> Any:
        """The (fake) tensor that the current call returns, or several."""
        assert self._current is not None
        return self._current.meta["val"]

    @property
    def like(self) -> Any:
        """What the current call returns, with the shapes and dtypes of nodes: complex tensors are pairs."""
        return as_pairs(self.result)

    def at(self, index: int) -> Node:
        return self.builder.nodes[index]

    def shape(self, index: int) -> tuple[int, ...]:
        return self.at(index).shape

    def add(self, op: str, *inputs: int, like: Any = None, shape: Any = None, **attributes: Any) -> Index:
        """Add a node with the shape and dtype of the current call's result, or of `like`, or of `shape`."""
        is_module = op not in ("view", "moments") and (self._leaf or self._path.rpartition(".")[2] == op)
        name = self._path if is_module else f"{self._path}.{op}".lstrip(".")
        dtype: str | None = attributes.pop("dtype", None)
        if shape is None:
            like = self.like if like is None else like
            shape, dtype = like.shape, dtype or dtype_name(like.dtype)
        sizes = tuple(int(size) for size in shape)
        if not self.gradient:
            attributes["gradient"] = False
        if op in _PROMOTING and dtype in FLOATS and not any(self.at(i).dtype in FLOATS for i in inputs):
            inputs = tuple(self.to(Index(i), dtype) for i in inputs)  # PyTorch's default dtype may not be the plan's
        made = self.builder.add(
            op, *map(int, inputs), shape=sizes, dtype=dtype, name=name, path=self._path, **attributes
        )
        return Index(made)

    def view(self, x: Index, shape: Sequence[int]) -> Index:
        """The elements of `x` in row-major order under another shape; a view of a view is one view."""
        shape = tuple(int(size) for size in shape)
        if shape == self.shape(x):
            return x
        if self.at(x).op == "view":
            return self.view(Index(self.at(x).inputs[0]), shape)
        return self.add("view", x, shape=shape)

    def permute(self, x: Index, dims: Sequence[int]) -> Index:
        """The dims of `x` in another order; a permutation of a permutation is one permutation."""
        if self.at(x).op == "permute":
            dims = [self.at(x)["dims"][d] for d in dims]
            x = Index(self.at(x).inputs[0])
        if list(dims) == sorted(dims):
            return x
        return self.add("permute", x, shape=[self.shape(x)[d] for d in dims], dims=tuple(dims))

    def transpose(self, x: Index, a: int, b: int) -> Index:
        dims = list(range(len(self.shape(x))))
        dims[a], dims[b] = dims[b], dims[a]
        return self.permute(x, dims)

    def expand(self, x: Index, shape: Sequence[int]) -> Index:
        return x if tuple(shape) == self.shape(x) else self.add("expand", x, shape=shape)

    def slice(self, x: Index, dim: int, start: int, stop: int, step: int = 1) -> Index:
        shape = list(self.shape(x))
        dim %= len(shape)
        start, stop, step = slice(start, stop, step).indices(shape[dim])
        size = len(range(start, stop, step))
        if size == shape[dim]:
            return x
        shape[dim] = size
        return self.add("slice", x, shape=shape, dim=dim, start=start, stop=stop, step=step)

    def pieces(self, x: Index, dim: int, sizes: Sequence[int]) -> list[Index]:
        """`x` cut along `dim`; equal pieces become a dim of their own first, so that each piece can be split."""
        shape = self.shape(x)
        dim %= len(shape)
        if len(sizes) == 1:
            return [x]
        if len(set(sizes)) > 1:
            ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
            return [self.slice(x, dim, start, stop) for start, stop in pairwise(ends)]
        whole = self.view(x, (*shape[:dim], len(sizes), sizes[0], *shape[dim + 1 :]))
        piece = (*shape[:dim], sizes[0], *shape[dim + 1 :])
        return [self.view(self.slice(whole, dim, i, i + 1), piece) for i in range(len(sizes))]

    def scale(self, x: Index, value: float) -> Index:
        return x if value == 1 else self.add("scale", x, shape=self.shape(x), value=value)

    def shift(self, x: Index, value: float) -> Index:
        return self.add("shift", x, shape=self.shape(x), value=value)

    def to(self, x: Index, dtype: str | torch.dtype | None) -> Index:
        dtype = dtype_name(dtype) if isinstance(dtype, torch.dtype) else dtype
        if dtype is None or dtype == self.at(x).dtype:
            return x
        return self.add("to", x, shape=self.shape(x), dtype=dtype)

    def listed(self, name: str, values: Sequence[float], dtype: str) -> Index:
        """A constant of few numbers, created once."""
        key = ("listed", name, tuple(values), dtype)
        if key not in self._constants:
            shape = (len(values),)
            made = self.builder.add("constant", shape=shape, dtype=dtype, name=name, values=tuple(values))
            self._constants[key] = Index(made)
        return self._constants[key]

    def full(self, value: float, shape: Sequence[int] = (), dtype: str | None = None) -> Index:
        """A constant, created once."""
        dtype = dtype or dtype_name(torch.tensor(value).dtype)
        key = ("full", value, type(value), tuple(shape), dtype)
        if key not in self._constants:
            self._constants[key] = Index(self.builder.add("full", shape=tuple(shape), dtype=dtype, value=value))
        return self._constants[key]

    def causal(self, rows: int, columns: int) -> Index:
        """The causal mask: True up to the query's own position. Created once."""
        key = ("causal", rows, columns)
        if key not in self._constants:
            ones = self.full(True, (rows, columns))
            made = self.builder.add(
                "tril", int(ones), shape=(rows, columns), dtype="bool", name="causal_mask", diagonal=0
            )
            self._constants[key] = Index(made)
        return self._constants[key]

    def is_zero(self, x: Index) -> bool:
        """True for a constant of zeros."""
        return self.at(x).op == "full" and not self.at(x)["value"]

    def number(self, value: Any) -> bool | int | float | None:
        """The value of a Python number or of a scalar constant in the graph; None for other arguments."""
        if isinstance(value, bool | int | float) and not isinstance(value, Index):
            return value
        if isinstance(value, Index) and self.at(value).op == "full" and not self.shape(value):
            number: bool | int | float = self.at(value)["value"]
            return number
        return None

    def tensor(self, value: Any, dtype: str | None = None) -> Index:
        """The node of an argument; numbers become scalar constants."""
        return value if isinstance(value, Index) else self.full(value, (), dtype)

    def reduce(self, op: str, x: Index, dims: int | Sequence[int] | None, keepdim: bool, **attributes: Any) -> Index:
        """sum, mean, amax and the like over `dims` (None: all)."""
        dims = [dims] if isinstance(dims, int) else dims
        shape = self.shape(x)
        rank = len(shape)
        chosen = tuple(sorted({d % rank for d in dims} if dims and rank else range(rank)))
        if not chosen:
            return x
        kept = [1 if d in chosen else size for d, size in enumerate(shape) if keepdim or d not in chosen]
        extra = attributes | ({"count": prod(shape[d] for d in chosen)} if op == "mean" else {})
        counted = op == "sum" and self.at(x).dtype not in FLOATS
        return self.add(op, x, shape=kept, dtype="int64" if counted else None, dims=chosen, keepdim=keepdim, **extra)
