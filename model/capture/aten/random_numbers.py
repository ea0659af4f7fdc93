"""Random calls: numbers that are functions of seed, step, call site and place in the whole, numbered like dropouts.

The reference of `verify` draws the same ones (`codegen/verification/random_calls.py`).
"""

from collections.abc import Sequence

from ...graph.dtypes import FLOATS
from ..translation import A, Index, Rule, T, Value, dtype_name
from .elementwise import dropout

_MOST = 2**31
"""Most whole numbers of which one is drawn."""


def _numbers(t: T, kind: str, like: Index, **given: float) -> Index:
    """Numbers for the elements of a tensor, at the next call site."""
    t.sites += 1
    dtype = "int64" if kind == "integers" else t.at(like).dtype
    return t.add("random", like, shape=t.shape(like), dtype=dtype, gradient=False, kind=kind, site=t.sites - 1, **given)


def _blank(t: T, shape: Sequence[int] | None = None, dtype: str | None = None) -> Index:
    """Zeros of a shape and dtype, by default of what the current call returns, to draw numbers for."""
    dtype = dtype_name(t.like.dtype) if dtype is None else dtype
    shape = tuple(int(size) for size in (t.like.shape if shape is None else shape))
    return t.expand(t.full(0.0, (), dtype if dtype in FLOATS else "float32"), shape)


def _exact(t: T, shape: Sequence[int]) -> Index:
    """Numbers from 0 up to 1 that are not rounded to the dtype of the plan."""
    return _numbers(t, "uniform", _blank(t, shape, "float64"))


def _line(t: T, x: Index, factor: float, shift: float) -> Index:
    x = t.scale(x, factor)
    return t.shift(x, shift) if shift else x


def _of_a_shape(kind: str) -> Rule:
    """rand, randn and the like; of a tensor (`rand_like`) they are laid out as it is."""

    def rule(t: T, a: A) -> Value:
        like = a.get("self")
        if dtype_name(t.like.dtype) not in FLOATS:
            return t.no("of integers")
        same = isinstance(like, Index) and t.at(like).dtype == dtype_name(t.like.dtype)
        return _numbers(t, kind, like if same and like is not None else _blank(t))

    return rule


def _uniform(t: T, a: A) -> Value:
    return _line(t, _numbers(t, "uniform", a["self"]), a["to"] - a["from"], a["from"])


def _normal(t: T, a: A) -> Value:
    """Around a mean with a deviation, numbers or tensors, through which no gradient flows."""
    drawn = _numbers(t, "normal", a["self"] if "self" in a else _blank(t))
    mean, deviation = (
        t.add("detach", x, shape=t.shape(x), gradient=False) if isinstance(x, Index) and t.at(x).gradient else x
        for x in (a["mean"], a["std"])
    )
    scaled = (
        t.add("mul", drawn, deviation, shape=t.shape(drawn))
        if isinstance(deviation, Index)
        else t.scale(drawn, deviation)
    )
    if isinstance(mean, Index):
        return t.add("add", scaled, mean, shape=t.shape(drawn))
    return t.shift(scaled, mean) if mean else scaled


def _bernoulli(t: T, a: A) -> Value:
    """1 with a probability: a number, or the entries of a tensor."""
    x, share = a["self"], a.get("p")
    if isinstance(share, float | int) and not isinstance(share, Index):
        if share == 0:
            t.sites += 1
            return t.full(0.0, t.shape(x), t.at(x).dtype)
        return _numbers(t, "bernoulli", x, p=1.0 - share)
    shares = x if share is None else share
    hit = t.add("relate", _exact(t, t.shape(x)), shares, shape=t.shape(x), dtype="bool", relation="lt")
    return t.to(hit, t.like.dtype)


def _exponential(t: T, a: A) -> Value:
    """-log(1 - u) / rate, but never 0, as in torch: its logarithm is taken for Gumbel's numbers."""
    drawn = _exact(t, t.shape(a["self"]))
    logarithm = t.add("unary", t.scale(drawn, -1.0), shape=t.shape(drawn), function="log1p")
    positive = t.add("clamp", t.scale(logarithm, -1.0), shape=t.shape(drawn), min=2.0**-25, max=None)
    return t.to(t.scale(positive, 1 / a["lambd"]), t.like.dtype)


def _integers(t: T, a: A) -> Value:
    """Whole numbers from `low` up to `high`."""
    low, high = a.get("low") or 0, a["high"]
    if isinstance(high, Index) or not 0 < high - low <= _MOST:
        return t.no(f"whole numbers from {low} up to {high}; at most 2^31 of them, given as Python numbers, are known")
    return t.to(_numbers(t, "integers", _blank(t, dtype="float32"), low=low, high=high), t.like.dtype)


def _order(t: T, a: A) -> Value:
    """A random order: that of random numbers."""
    drawn = _exact(t, t.like.shape)
    order = t.add("argsort", drawn, dtype="int64", dim=0, descending=False, stable=True)
    return t.to(order, t.like.dtype)


def _rrelu(t: T, a: A) -> Value:
    """A leaky ReLU whose slope is drawn in training."""
    x, low, high = a["self"], a["lower"], a["upper"]
    if not a["training"]:
        return t.add("leaky_relu", x, slope=(low + high) / 2)
    shape = t.shape(x)
    slope = _line(t, _numbers(t, "uniform", x), high - low, low)
    negative = t.add("compare", x, shape=shape, dtype="bool", relation="le", value=0)
    return t.add("where", negative, t.add("mul", x, slope, shape=shape), x, shape=shape)


def _feature_dropout(t: T, a: A) -> Value:
    """Dropout of whole channels."""
    x, shape = a["input"], t.shape(a["input"])
    if not a["train"] or not a["p"]:
        return x
    if a["p"] == 1:
        return t.scale(x, 0.0)
    ones = t.full(1.0, (*shape[:2], *(1 for _ in shape[2:])), t.at(x).dtype)
    return t.add("mul", x, dropout(t, ones, a["p"]))


def _native_dropout(t: T, a: A) -> Value:
    return [dropout(t, a["input"], a["p"]) if a["train"] is not False and a["p"] else a["input"], None]


TABLE: dict[str, Rule] = {
    **dict.fromkeys(["rand", "rand_like"], _of_a_shape("uniform")),
    **dict.fromkeys(["randn", "randn_like"], _of_a_shape("normal")),
    "uniform": _uniform,
    **dict.fromkeys(["normal", "normal_functional"], _normal),
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    **dict.fromkeys(["randint", "randint_like"], _integers),
    "randperm": _order,
    **dict.fromkeys(["rrelu", "rrelu_with_noise"], _rrelu),
    "feature_dropout": _feature_dropout,
    "native_dropout": _native_dropout,
}
