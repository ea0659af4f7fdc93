"""Complex tensors as real ones with a last dim of two: the real and the imaginary part, as in `torch.view_as_real`.

What only moves elements is translated by the rule for real tensors. The rest are opaque calls, which read and return
complex views of such pairs; in which dims they are independent is found as for any opaque call.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .building import Building, Complex, Index, Value, broadcast, dtype_name

Arguments: TypeAlias = dict[str, Any]
Ruled: TypeAlias = Callable[[str, Arguments], Value]
"""Translates an ATen call by its rule for real tensors."""

_MOVES = frozenset([
    "view", "view_as", "_unsafe_view", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "expand", "expand_as", "broadcast_to", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "permute",
    "slice", "slice_scatter", "select", "select_scatter", "narrow", "split", "split_with_sizes", "chunk",
    "tensor_split", "unbind", "cat", "concat", "concatenate", "stack", "repeat", "roll", "flip", "detach", "clone",
    "contiguous", "alias", "lift_fresh", "lift_fresh_copy", "neg", "zeros", "zeros_like", "new_zeros", "zero", "empty",
    "empty_like", "new_empty",
])  # fmt: skip
"""Calls whose rule is right for pairs: it never looks at the last dim."""
_SAME = frozenset(["view_as_complex", "view_as_real", "resolve_conj", "resolve_neg"])
_DIMS = ("dim", "dim0", "dim1", "axis0", "axis1", "dims", "source", "destination")


def is_complex(value: Any) -> bool:
    """True for a complex tensor, or several of which one is."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    return isinstance(value, torch.Tensor) and value.is_complex()


def counted_from_front(arguments: Arguments, result: Any) -> Arguments:
    """The arguments with no negative dims, if they have complex tensors: these have a further dim at the end."""
    values = [v for value in arguments.values() for v in (value if isinstance(value, list) else [value])]
    pairs = [v for v in values if isinstance(v, Complex)]
    if not pairs or not isinstance(arguments.get("self", arguments.get("tensors")), Complex | list):
        return arguments
    joined = "tensors" in arguments and isinstance(result, torch.Tensor)  # cat or stack
    rank = result.dim() if joined else pairs[0].rank
    dims = {name: arguments[name] for name in _DIMS if arguments.get(name) is not None}
    return arguments | {
        name: [d % rank for d in given] if isinstance(given, list) else given % rank for name, given in dims.items()
    }


def numbers_as_pairs(t: Building, target: Any, arguments: Arguments) -> Arguments:
    """The arguments of a call of `target`, with complex numbers in the place of tensors as constants."""
    tensors = [item.name for item in target._schema.arguments if str(item.type) == "Tensor"]
    own = {name: arguments[name] for name in tensors if isinstance(arguments[name], complex)}
    return arguments | {
        name: Complex(t.listed("number", (number.real, number.imag), dtype_name(t.like.dtype)), 0)
        for name, number in own.items()
    }


def by_rule(t: Building, packet: str, a: Arguments, ruled: Ruled) -> Value:
    """A call that reads or returns complex tensors, by rules for real ones; None if it is opaque."""
    x, other = a.get("self"), a.get("other")
    if packet in _SAME:
        return Index(x if x is not None else a["input"])
    if packet in ("real", "imag") and isinstance(x, Complex):
        last = len(t.shape(x)) - 1
        return t.view(t.slice(x, last, int(packet == "imag"), 1 + int(packet == "imag")), t.shape(x)[:-1])
    if packet in ("_conj", "conj", "conj_physical", "mT", "mH", "adjoint") and isinstance(x, Complex):
        turned = x if packet.endswith(("conj", "physical")) else t.transpose(x, x.rank - 2, x.rank - 1)
        signs = t.listed("conjugation", (1.0, -1.0), t.at(x).dtype)
        return turned if packet == "mT" else t.add("mul", turned, signs, shape=t.shape(turned))
    if packet in ("to", "_to_copy", "copy", "complex"):
        return _converted(t, packet, a)
    if packet in ("add", "sub") and isinstance(x, Complex) and isinstance(other, Complex):
        return None if isinstance(a.get("alpha"), complex) else ruled(packet, a)
    if packet in ("mul", "div") and isinstance(x, Complex) and not a.get("rounding_mode"):
        if isinstance(other, Index) and not isinstance(other, Complex):
            other = t.view(other, (*t.shape(other), 1))
        return ruled(packet, a | {"other": other}) if not isinstance(other, Complex | complex) else None
    if packet == "permute":
        a = a | {"dims": [*a["dims"], len(a["dims"])]}
    if packet == "repeat":
        a = a | {"repeats": [*a["repeats"], 1]}
    return ruled(packet, a) if packet in _MOVES else None


def _converted(t: Building, packet: str, a: Arguments) -> Value:
    """A tensor of another dtype, or a complex one of its parts."""
    if packet == "complex":
        return pair(t, a["real"], a["imag"])
    x = a["src"] if packet == "copy" else a["self"]
    if not is_complex(t.result):
        return None
    if not isinstance(x, Complex):
        real = t.to(x, t.like.dtype)
        x = pair(t, real, t.full(0.0, t.shape(real), t.at(real).dtype))
    return t.expand(Index(x), tuple(int(size) for size in t.like.shape))


def pair(t: Building, real: Index, imaginary: Index) -> Index:
    """A complex tensor of its parts."""
    shape = broadcast(t.shape(real), t.shape(imaginary))
    parts = [t.view(t.expand(x, shape), (*shape, 1)) for x in (real, imaginary)]
    return t.add("cat", *parts, shape=(*shape, 2), dtype=t.at(real).dtype, dim=len(shape))
