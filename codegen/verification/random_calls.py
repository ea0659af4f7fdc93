"""Random calls of the reference: they draw the numbers of the emitted program, functions of counters.

The counterpart of `model/capture/aten/random_numbers.py`, on whole tensors.
"""

# mypy: disable-error-code="no-untyped-call"
# (the counters are program text without types)

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..emission.templates.counters import dropout_mask, integer_numbers, normal_numbers, uniform_numbers

Draw: TypeAlias = Callable[[tuple[int, ...], str, tuple[float, ...]], Tensor]
"""(shape, kind, numbers) -> the numbers of the next call site, as the operator `random` has them."""


def counted_numbers(shape: tuple[int, ...], kind: str, given: tuple[float, ...], keys: tuple[int, int, int]) -> Tensor:
    """The numbers that `random` draws for a whole tensor at (seed, step, call site), in float64 or int64.

    `given`: the probability of zeros; the least of whole numbers, and the end of their range.
    """
    index = torch.arange(torch.Size(shape).numel()).view(shape)
    if kind == "integers":
        numbers: Tensor = integer_numbers(index, *given, *keys)
        return numbers
    if kind == "bernoulli":
        (p,) = given
        zeros: Tensor = dropout_mask(index, p, *keys) == 0 if p < 1 else torch.ones(shape, dtype=torch.bool)
        return (~zeros).double()
    numbers = (uniform_numbers if kind == "uniform" else normal_numbers)(index, *keys)
    return numbers


def drawn(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], draw: Draw) -> Tensor | None:
    """What a call of ATen returns, or writes to its first operand; None if it is not random."""
    schema = func._schema
    name = schema.name.removeprefix("aten::").removesuffix("_")
    if name not in _CALLS:
        return None
    given = {item.name: item.default_value for item in schema.arguments if item.has_default_value()}
    given |= dict(zip((item.name for item in schema.arguments), args, strict=False)) | dict(kwargs)
    numbers = _CALLS[name](given, draw)
    like = next((x for x in given.values() if isinstance(x, Tensor)), None)
    plain = torch.int64 if name in ("randint", "randperm") else torch.get_default_dtype()
    dtype = kwargs.get("dtype") or (plain if like is None else like.dtype)
    return None if numbers is None else numbers.to(dtype)


def _shape(a: Mapping[str, Any]) -> tuple[int, ...]:
    found: Tensor | None = next((a[name] for name in ("self", "mean", "std") if isinstance(a.get(name), Tensor)), None)
    return tuple(a["size"] if found is None else found.shape)


def _uniform(a: Mapping[str, Any], draw: Draw) -> Tensor:
    low, high = float(a.get("from", 0.0)), float(a.get("to", 1.0))
    return draw(_shape(a), "uniform", ()) * (high - low) + low


def _normal(a: Mapping[str, Any], draw: Draw) -> Tensor:
    deviation: Tensor | float = a.get("std", 1.0)
    mean: Tensor | float = a.get("mean", 0.0)
    return draw(_shape(a), "normal", ()) * deviation + mean


def _bernoulli(a: Mapping[str, Any], draw: Draw) -> Tensor:
    share = a.get("p", a["self"])
    if isinstance(share, Tensor):
        return (draw(_shape(a), "uniform", ()) < share).double()
    return draw(_shape(a), "bernoulli", (1 - share,))


def _exponential(a: Mapping[str, Any], draw: Draw) -> Tensor:
    return torch.log1p(-draw(_shape(a), "uniform", ())) / -float(a["lambd"])


def _integers(a: Mapping[str, Any], draw: Draw) -> Tensor:
    return draw(_shape(a), "integers", (int(a.get("low", 0)), int(a["high"])))


def _orders(a: Mapping[str, Any], draw: Draw) -> Tensor:
    return draw((int(a["n"]),), "uniform", ()).argsort(stable=True)


def _rrelu(a: Mapping[str, Any], draw: Draw) -> Tensor | None:
    """It also writes the slopes, which backward reads."""
    if not a["training"]:
        return None
    x: Tensor = a["self"]
    slopes = draw(_shape(a), "uniform", ()) * (a["upper"] - a["lower"]) + a["lower"]
    a["noise"].copy_(torch.where(x <= 0, slopes, 1.0))
    return torch.where(x <= 0, x * slopes, x)


_CALLS: dict[str, Callable[[Mapping[str, Any], Draw], Tensor | None]] = {
    **dict.fromkeys(["rand", "rand_like", "uniform"], _uniform),
    **dict.fromkeys(["randn", "randn_like", "normal", "normal_functional"], _normal),
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    **dict.fromkeys(["randint", "randint_like"], _integers),
    "randperm": _orders,
    "rrelu_with_noise": _rrelu,
}
