"""What a constructor has written into memory, as far as ranks can do it by rows: drawn, filled, copied, changed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..initial_values import SERIAL, Call, Write, draws
from .random_stream import Position


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the constructor: a view of storage number `storage`."""

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """True if its elements lie one after another."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers: their distribution and where they are in the stream."""

    kind: str
    numbers: tuple[float, ...]
    position: Position | None


@dataclass(frozen=True, slots=True)
class Piece:
    """What is known of the elements from `start` on of a storage.

    `order`: the number of the call that drew random ones, else of that which put them here. `calls` came after.
    `within`: elements beyond these ends were drawn again, all in the same `rounds`, one after another in the stream.
    """

    order: int
    start: int
    count: int
    dtype: torch.dtype
    kind: str
    numbers: tuple[float, ...]
    position: Position | None = None
    calls: tuple[Call, ...] = ()
    within: tuple[float, float] | None = None
    rounds: int = 1

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def random(self) -> bool:
        return self.kind != "constant"

    @property
    def value(self) -> float | None:
        """The one value that all elements have; None if they differ."""
        return None if self.random or self.calls else self.numbers[0]

    @property
    def ends(self) -> tuple[float, float] | None:
        """Numbers between which all elements are, if known: normal ones of 53 bits are within 9 deviations."""
        if any(name != "to" for name, _ in self.calls):
            return None
        if self.kind == "normal":
            mean, deviation = self.numbers
            return mean - 9 * deviation, mean + 9 * deviation
        return min(self.numbers), max(self.numbers)

    @property
    def draws(self) -> int:
        """The 32-bit numbers of one round."""
        return draws(self.kind, self.count, dtype_name(self.dtype))

    def rejects(self, count: int) -> bool:
        """True if these `count` elements may be the start of a truncated normal that ranks can draw."""
        wide = self.dtype in (torch.float32, torch.float64)
        known = self.kind == "normal" and self.position is not None and not self.calls
        return wide and known and self.start == 0 and self.count == count >= SERIAL

    def meets(self, start: int, stop: int) -> bool:
        return self.start < stop and start < self.stop


@dataclass(frozen=True, slots=True)
class Beyond:
    """A tensor of booleans: which elements of a piece are below `low` or above `high`."""

    piece: Piece
    low: float = -math.inf
    high: float = math.inf


Content: TypeAlias = tuple[Piece, ...] | None
"""The pieces of a storage, later ones over earlier ones; None: not understood."""

_NEW = {f"{base}{suffix}": base for base in ("empty", "zeros", "ones", "full") for suffix in ("", "_like")}
_NEW |= {f"new_{base}": base for base in ("empty", "zeros", "ones", "full")} | {"empty_strided": "empty"}
_ELEMENTWISE = frozenset(
    (
        *("mul", "div", "add", "sub", "pow", "exp", "log", "neg", "sqrt", "rsqrt", "reciprocal", "abs"),
        *("erf", "erfinv", "tanh", "sigmoid", "log1p", "expm1", "clamp", "clamp_min", "clamp_max"),
    )
)


def drawn(name: str, args: Sequence[Any], options: Mapping[str, Any], position: Position | None) -> Draw | None:
    """What a call draws, if its tensors are all filled from one known distribution."""
    kind = {"uniform_": "uniform", "rand": "uniform", "rand_like": "uniform"}.get(name)
    kind = kind or {"normal_": "normal", "randn": "normal", "randn_like": "normal"}.get(name)
    if kind is None:
        return None
    given = _numbers(args) if name.endswith("_") else []
    first, second = ("from", "to") if kind == "uniform" else ("mean", "std")
    numbers = [*given, *(0.0, 1.0)[len(given) :]]
    return Draw(kind, (float(options.get(first, numbers[0])), float(options.get(second, numbers[1]))), position)


class Contents:
    """The contents of storages, by number; `order` counts the calls."""

    def __init__(self) -> None:
        self.of_storage: dict[int, Content] = {}
        self.beyond: dict[int, Beyond] = {}  # tensors of booleans, or one boolean: whether any is true
        self.order = 0

    def of(self, ref: Ref) -> Content:
        """The pieces of a tensor, counted from its first element."""
        content = self.of_storage[ref.storage]
        if content is None or not ref.contiguous:
            return None
        start, stop = ref.offset, ref.offset + ref.count
        touched = [_clipped(piece, start, stop) for piece in content if piece.meets(start, stop)]
        if any(piece.start < start or stop < piece.stop for piece in touched):
            return None
        hidden = {k for k, p in enumerate(touched) for q in touched[k + 1 :] if q.start <= p.start and p.stop <= q.stop}
        return tuple(replace(piece, start=piece.start - start) for k, piece in enumerate(touched) if k not in hidden)

    def value(self, ref: Ref) -> float | None:
        """The one value of all elements of a tensor, if it is known."""
        return _value(self.of(ref))

    def unset(self, ref: Ref) -> bool:
        """True if some elements of a tensor were never written."""
        pieces = self.of(ref)
        return pieces is not None and not _covered(pieces, ref.count)

    def make(
        self, name: str, ref: Ref, args: Sequence[Any], options: Mapping[str, Any], draw: Draw | None = None
    ) -> None:
        """Follow a call that makes a tensor."""
        self.of_storage[ref.storage] = self._made(name, ref, args, options, draw)
        if self.of_storage[ref.storage] is None and (beyond := self._compared(name, args)):
            self.beyond[ref.storage] = beyond

    def _compared(self, name: str, args: Sequence[Any]) -> Beyond | None:
        """What a comparison of normal numbers, or a call on such comparisons, finds out."""
        tensors, numbers = [x for x in args if isinstance(x, Ref)], _numbers(args)
        if name in ("lt", "gt") and len(tensors) == len(numbers) == 1:
            content = self.of(tensors[0])
            if not content or len(content) > 1 or not content[0].rejects(tensors[0].count):
                return None
            return Beyond(content[0], **{"low" if name == "lt" else "high": float(numbers[0])})
        found = [self.beyond.get(x.storage) for x in tensors]
        first, last = found[0] if found else None, found[-1] if found else None
        if first is None or last is None or name not in ("any", "bitwise_or", "logical_or") or numbers:
            return None
        if first.piece != last.piece:
            return None
        return Beyond(first.piece, max(first.low, last.low), min(first.high, last.high))

    def change(
        self, name: str, ref: Ref, args: Sequence[Any], options: Mapping[str, Any], draw: Draw | None = None
    ) -> None:
        """Follow a call that changes a tensor in place."""
        self.beyond.pop(ref.storage, None)
        content = self.of_storage[ref.storage]
        call = _call(name.removesuffix("_"), args, options)
        if call is not None:
            self.of_storage[ref.storage] = self._called(ref, (name, call[1]))
            return
        new = self._written(name, ref, args, draw) if ref.contiguous else None
        if new is None or content is None:
            self.of_storage[ref.storage] = None
            return
        start, stop = ref.offset, ref.offset + ref.count
        kept = (piece for piece in content if piece.start < start or stop < piece.stop)
        self.of_storage[ref.storage] = (*kept, *(replace(piece, start=piece.start + start) for piece in new))

    def _fill(self, ref: Ref, value: float) -> Content:
        return (Piece(self.order, 0, ref.count, ref.dtype, "constant", (float(value),)),)

    def _draw(self, ref: Ref, draw: Draw) -> Content:
        return (Piece(self.order, 0, ref.count, ref.dtype, draw.kind, numbers=draw.numbers, position=draw.position),)

    def _made(self, name: str, ref: Ref, args: Sequence[Any], options: Mapping[str, Any], draw: Draw | None) -> Content:
        """The pieces of a new tensor."""
        base, numbers = _NEW.get(name), _numbers(args)
        if base is not None:
            value = {"zeros": 0.0, "ones": 1.0}.get(base, numbers[-1] if numbers else None)
            return () if base == "empty" else None if value is None else self._fill(ref, value)
        if draw is not None:
            return self._draw(ref, draw) if ref.contiguous else None
        tensors = [x for x in args if isinstance(x, Ref)]
        contents = [self.of(x) for x in tensors]
        if name == "where" and len(tensors) == 3:
            return self._redrawn(self.beyond.get(tensors[0].storage), contents[1], contents[2])
        if not contents or contents[0] is None:
            return None
        copied = name in ("clone", "_to_copy") or (name == "constant_pad_nd" and not any(args[1]))
        if copied and ref.contiguous:
            return _cast(contents[0], tensors[0].dtype, ref.dtype)
        if (call := _call(name, args, options)) and tensors[0].dtype == ref.dtype:
            return tuple(replace(piece, calls=(*piece.calls, call)) for piece in contents[0])
        truth = _truth(name, contents, numbers)
        return None if truth is None else self._fill(ref, truth)

    def _redrawn(self, beyond: Beyond | None, drawn: Content, kept: Content) -> Content:
        """Normal numbers, of which those beyond the ends are drawn anew, as `nn.init.trunc_normal_` does."""
        if beyond is None or kept != (beyond.piece,) or drawn is None or len(drawn) != 1:
            return None
        piece, fresh, ends = beyond.piece, drawn[0], (beyond.low, beyond.high)
        at = piece.position and replace(piece.position, offset=piece.position.offset + piece.rounds * piece.draws)
        alike = replace(piece, order=fresh.order, position=at, within=None, rounds=1) == fresh
        if not alike or piece.within not in (None, ends):
            return None
        return (replace(piece, within=ends, rounds=piece.rounds + 1),)

    def _written(self, name: str, ref: Ref, args: Sequence[Any], draw: Draw | None) -> Content:
        """The pieces that a call puts in place of a tensor's, counted from its first element."""
        if draw is not None:
            return self._draw(ref, draw)
        numbers = _numbers(args)
        if name == "zero_" or (name == "fill_" and numbers):
            return self._fill(ref, numbers[0] if numbers else 0.0)
        if name != "copy_" or not isinstance(args[1], Ref):
            return None
        source, found = args[1], self.of(args[1])
        whole = _value(self.of_storage[source.storage])
        if whole is not None and source.count:
            return self._fill(ref, whole)  # perhaps broadcast
        if found is None or source.count != ref.count:
            return None
        cast = _cast(found, source.dtype, ref.dtype) or ()
        return tuple(piece if piece.random else replace(piece, order=self.order) for piece in cast)

    def _called(self, ref: Ref, call: Call) -> Content:
        """A storage after a call on each element of a tensor."""
        content, start, stop = self.of_storage[ref.storage], ref.offset, ref.offset + ref.count
        if content is None or not ref.contiguous:
            return None
        touched = [piece.meets(start, stop) for piece in content]
        if any(met and not (start <= p.start and p.stop <= stop) for met, p in zip(touched, content, strict=True)):
            return None
        return tuple(
            replace(piece, calls=(*piece.calls, call)) if met else piece
            for met, piece in zip(touched, content, strict=True)
        )

    def writes(self, name: str, ref: Ref) -> list[tuple[int, Position | None, Write]] | None:
        """What was written into a weight, each with its order and position in the stream.

        None if it is not understood, or not all elements were written, or not by rows.
        """
        pieces = self.of(ref)
        if pieces is None or not _covered(pieces, ref.count) or any(_late(*pair) for pair in combinations(pieces, 2)):
            return None
        row, found = prod(ref.shape[1:]), []
        for piece in pieces:
            if not row or piece.start % row or piece.count % row or (piece.random and piece.position is None):
                return None
            shape = ref.shape if piece.count == ref.count else (piece.count // row, *ref.shape[1:])
            numbers, calls = piece.numbers, piece.calls
            if piece.within and any(call in ("pow", "pow_") for call, _ in piece.calls):
                return None  # ranks mark what is to be drawn again with NaN, and NaN^0 = 1
            if not piece.random:
                numbers, calls = (_folded(piece),), ()
                if not math.isfinite(numbers[0]):
                    return None
            elif piece.dtype == torch.float32 and piece.count >= SERIAL:
                numbers = tuple(map(shortest, numbers))  # torch computes with these
            kind = piece.kind
            if piece.within:
                kind, numbers = "truncated", (*numbers, *piece.within, float(piece.rounds))
            write = Write(name, shape, kind, numbers, calls, first=piece.start // row, dtype=dtype_name(piece.dtype))
            found.append((piece.order, piece.position, write))
        return found


def _numbers(args: Iterable[Any]) -> list[float]:
    return [x for x in args if isinstance(x, int | float)]


def _call(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Call | None:
    """A call on each element, if its other arguments are numbers."""
    others = (*args[1:], *options.values())
    if name not in _ELEMENTWISE or not options.keys() <= {"min", "max"}:
        return None
    if any(isinstance(x, bool) or not (x is None or isinstance(x, int | float)) for x in others):
        return None
    if name == "clamp":
        positional = [*args[1:], None, None]
        return name, (options.get("min", positional[0]), options.get("max", positional[1]))
    return name, tuple(others)


def _value(content: Content) -> float | None:
    return content[0].value if content is not None and len(content) == 1 else None


def _clipped(piece: Piece, start: int, stop: int) -> Piece:
    """The elements of a piece between two ends, if it is a constant: others are drawn whole."""
    first, last = max(piece.start, start), min(piece.stop, stop)
    return piece if piece.random else replace(piece, start=first, count=last - first)


def _truth(name: str, contents: Sequence[Content], numbers: Sequence[float]) -> bool | None:
    """The one result of a comparison for all elements, where that is known."""
    if name in ("lt", "gt") and len(numbers) == 1 and contents[0]:
        found = {_compared(name, piece.ends, numbers[0]) for piece in contents[0]}
        return found.pop() if len(found) == 1 else None
    values = [_value(content) for content in contents]
    if name not in ("any", "bitwise_or", "logical_or") or None in values:
        return None
    return any(values)


def _compared(name: str, ends: tuple[float, float] | None, number: float) -> bool | None:
    if ends is None:
        return None
    low, high = ends if name == "lt" else (-ends[1], -ends[0])
    number = number if name == "lt" else -number
    return True if high < number else False if low >= number else None


def _late(piece: Piece, after: Piece) -> bool:
    """True if of two overlapping pieces the one that counts was drawn before the other."""
    return after.order < piece.order and piece.meets(after.start, after.stop)


def _covered(pieces: Iterable[Piece], count: int) -> bool:
    """True if every element has a value."""
    end = 0
    for piece in sorted(pieces, key=lambda p: p.start):
        if piece.start > end:
            return False
        end = max(end, piece.stop)
    return end >= count


def _cast(content: Sequence[Piece], source: torch.dtype, target: torch.dtype) -> Content:
    if source == target:
        return tuple(content)
    cast: Call = ("to", (dtype_name(target),))
    return tuple(replace(piece, calls=(*piece.calls, cast)) for piece in content)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shortest(number: float) -> float:
    """The number with the fewest digits that is the same in float32."""
    return float(str(np.float32(number)))


def _folded(piece: Piece) -> float:
    """The value of a constant after its calls."""
    with _disable_current_modes():
        x = torch.full((1,), piece.numbers[0], dtype=piece.dtype)
        for name, arguments in piece.calls:
            method: Callable[..., Tensor] = getattr(x, name)
            x = method(*(getattr(torch, a) if isinstance(a, str) else a for a in arguments))
        value = x.double().item()
    return shortest(value) if x.is_floating_point() and x.dtype != torch.float64 else value
