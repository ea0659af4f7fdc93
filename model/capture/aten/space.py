"""Convolutions, pooling, group norms, resampling and shuffles."""

from collections.abc import Iterable
from math import prod
from typing import Any

from ..translation import A, Index, Rule, T, Value, present

DIMS = (1, 2, 3)


def _each(value: Any, rank: int) -> tuple[Any, ...]:
    """One entry for every spatial dim; ATen may have one for all."""
    entries = tuple(value) if isinstance(value, Iterable) else (value,)
    return entries * rank if len(entries) == 1 else entries


def _batched(t: T, x: Index, rank: int) -> Index:
    """`x` with a dim of samples, added if it has none."""
    return t.view(x, (1, *t.shape(x))) if len(t.shape(x)) == rank + 1 else x


def _convolution(op: str, rank: int) -> Rule:
    def rule(t: T, a: A) -> Value:
        own = {name: _each(a[name], rank) for name in ("stride", "dilation")}
        padding = a["padding"]
        own["padding"] = padding if padding == "same" else _each(0 if padding == "valid" else padding, rank)
        if op == "conv_transpose":
            own["output_padding"] = _each(a["output_padding"], rank)
        x = _batched(t, a["input"], rank)
        shape = t.like.shape if x == a["input"] else (1, *t.like.shape)
        operands = present(x, a["weight"], a["bias"])
        return t.view(t.add(op, *operands, shape=shape, groups=a["groups"], **own), t.like.shape)

    return rule


def _pool(op: str, rank: int, *more: str) -> Rule:
    """`more`: names of further arguments."""

    def rule(t: T, a: A) -> Value:
        own: A = {name: _each(a[name], rank) for name in ("kernel_size", "padding", "dilation") if name in a}
        own["stride"] = _each(a["stride"], rank) or own["kernel_size"]
        own |= {name: a[name] for name in ("ceil_mode", *more) if a.get(name) is not None}
        return t.add(op, a["self"], like=_values(t), **own)

    return rule


def _values(t: T) -> Any:
    """The result of the call; of (values, indices) the values."""
    return t.like[0] if isinstance(t.like, list | tuple) else t.like


def _adaptive(op: str, rank: int) -> Rule:
    """Adaptive pooling; to one place it is a mean, to the input's size the identity."""

    def rule(t: T, a: A) -> Value:
        x, shape = a["self"], tuple(int(size) for size in _values(t).shape)
        if shape == t.shape(x):
            return x
        if op == "adaptive_avg_pool" and prod(shape[-rank:]) == 1:
            return t.view(t.reduce("mean", x, range(-rank, 0), False), shape)
        return t.add(op, x, like=_values(t), output_size=shape[-rank:])

    return rule


def _with_indices(rule: Rule) -> Rule:
    return lambda t, a: [rule(t, a), None]


def _interpolate(mode: str) -> Rule:
    def rule(t: T, a: A) -> Value:
        if "scale_factors" not in a:
            return None
        size, scale = a["output_size"], a["scale_factors"]
        return t.add(
            "interpolate",
            a["input"],
            size=None if size is None else tuple(size),
            scale_factor=None if scale is None else tuple(scale),
            mode=mode,
            align_corners=True if a.get("align_corners") else None,
        )

    return rule


def _normalized(
    t: T, x: Index, weight: Index | None, bias: Index | None, groups: int, eps: float, several: bool = False
) -> Value:
    if weight is None and bias is not None:  # PyTorch has no backward for it
        raise t.refusal("a group norm with a bias but no weight")
    return t.add("group_norm", *present(x, weight, bias), like=t.like[0] if several else None, groups=groups, eps=eps)


def _native_group_norm(t: T, a: A) -> Value:
    """Without its statistics, whose gradients PyTorch does not compute."""
    return [_normalized(t, a["input"], a["weight"], a["bias"], a["group"], a["eps"], several=True), None, None]


def _instance_norm(t: T, a: A) -> Value:
    """A group norm with a group for every channel."""
    x = a["input"]
    if a["running_mean"] is not None or not a["use_input_stats"]:
        raise t.refusal("an instance norm with running statistics")
    return _normalized(t, x, a["weight"], a["bias"], t.shape(x)[1], a["eps"])


def _shuffled(t: T, x: Index, dims: tuple[int, ...], order: tuple[int, ...]) -> Value:
    """The last three dims viewed as `dims`, permuted and joined again."""
    before = t.shape(x)[:-3]
    kept = tuple(range(len(before)))
    cut = t.view(x, (*before, *dims))
    return t.view(t.permute(cut, (*kept, *(len(kept) + d for d in order))), t.like.shape)


def _pixel_shuffle(t: T, a: A) -> Value:
    r, (channels, height, width) = a["upscale_factor"], t.shape(a["self"])[-3:]
    return _shuffled(t, a["self"], (channels // r**2, r, r, height, width), (0, 3, 1, 4, 2))


def _pixel_unshuffle(t: T, a: A) -> Value:
    r, (channels, height, width) = a["downscale_factor"], t.shape(a["self"])[-3:]
    return _shuffled(t, a["self"], (channels, height // r, r, width // r, r), (0, 2, 4, 1, 3))


def _channel_shuffle(t: T, a: A) -> Value:
    x, groups = a["self"], a["groups"]
    n, channels, *space = t.shape(x)
    grouped = t.view(x, (n, groups, channels // groups, *space))
    return t.view(t.transpose(grouped, 1, 2), t.shape(x))


_MODES = {
    **{f"upsample_nearest{n}d": "nearest" for n in DIMS},
    **{f"_upsample_nearest_exact{n}d": "nearest-exact" for n in DIMS},
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_bicubic2d": "bicubic",
    "upsample_trilinear3d": "trilinear",
}

TABLE: dict[str, Rule] = {
    **{f"{op}{n}d": _convolution(op, n) for op in ("conv", "conv_transpose") for n in DIMS},
    **{f"max_pool{n}d": _pool("max_pool", n) for n in DIMS},
    **{f"max_pool{n}d_with_indices": _with_indices(_pool("max_pool", n)) for n in DIMS},
    **{f"avg_pool{n}d": _pool("avg_pool", n, "count_include_pad", "divisor_override") for n in DIMS},
    **{f"adaptive_avg_pool{n}d": _adaptive("adaptive_avg_pool", n) for n in DIMS},
    **{f"adaptive_max_pool{n}d": _with_indices(_adaptive("adaptive_max_pool", n)) for n in DIMS},
    **{name: _interpolate(mode) for name, mode in _MODES.items()},
    "group_norm": lambda t, a: _normalized(t, a["input"], a["weight"], a["bias"], a["num_groups"], a["eps"]),
    "native_group_norm": _native_group_norm,
    "instance_norm": _instance_norm,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
}
