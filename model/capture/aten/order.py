"""Orders: positions along a dim, and the values looked up by them, through which gradients flow."""

from typing import Any

from ..translation import A, Index, Rule, T, Value
from .lookups import look_up


def _looked_up(t: T, op: str, x: Index, dim: int, **attributes: Any) -> Value:
    """[values, positions] of a call that returns both."""
    places = t.add(op, x, like=t.like[1], dtype="int64", dim=dim, **attributes)
    return [look_up(t, "gather", x, places, like=t.like[0], dim=dim), places]


def _topk(t: T, a: A) -> Value:
    return _along(t, a, "topk", k=a["k"], largest=a["largest"])


def _along(t: T, a: A, op: str, **attributes: Any) -> Value:
    """[values, positions], as many as are asked for along `dim`."""
    x = a["self"]
    if not t.shape(x):
        return t.no("a tensor without dims")
    return _looked_up(t, op, x, a["dim"] % len(t.shape(x)), **attributes)


def _sort(t: T, a: A) -> Value:
    """Another algorithm sorts where the order of equal entries does not matter."""
    return _along(t, a, "argsort", descending=a["descending"], stable=bool(a.get("stable")))


def _argsort(t: T, a: A) -> Value:
    x = a["self"]
    if not t.shape(x):
        return t.no("a tensor without dims")
    return t.add("argsort", x, dim=a["dim"] % len(t.shape(x)), descending=a["descending"], stable=bool(a.get("stable")))


def _one_of(op: str) -> Rule:
    """[values, positions] of one entry along `dim`."""

    def rule(t: T, a: A) -> Value:
        return one_of(t, op, a)

    return rule


def one_of(t: T, op: str, a: A) -> Value:
    """[values, positions] of the entry along `dim` that `op` finds."""
    x, shape = a["self"], t.shape(a["self"])
    if not shape:
        return t.no("a tensor without dims")
    dim = a["dim"] % len(shape)
    kept = [1 if d == dim else n for d, n in enumerate(shape)]
    attributes = {"k": a["k"]} if op == "kthvalue" else {}
    places = t.add(op, x, shape=kept, dtype="int64", dim=dim, keepdim=True, **attributes)
    values = look_up(t, "gather", x, places, shape=kept, dim=dim)
    return [t.view(y, like.shape) for y, like in zip((values, places), t.like, strict=True)]


def _position(op: str) -> Rule:
    """argmax and argmin; without `dim`, among all entries in row-major order."""

    def rule(t: T, a: A) -> Value:
        x, dim = a["self"], a["dim"]
        if dim is None or not t.shape(x):
            places = t.add(op, t.view(x, (t.at(x).numel,)), shape=(), dtype="int64", dim=0, keepdim=False)
            return t.view(places, t.like.shape)
        return t.add(op, x, dim=dim % len(t.shape(x)), keepdim=a["keepdim"])

    return rule


def _median(t: T, a: A) -> Value:
    """With `dim` an entry; without, all entries that equal the median share its gradient."""
    if "dim" in a:
        return one_of(t, "median", a)
    x = t.view(a["self"], (t.at(a["self"]).numel,))
    places = t.add("median", x, shape=(1,), dtype="int64", dim=0, keepdim=True)
    median = look_up(t, "gather", x, places, shape=(1,), dim=0)
    if not t.at(x).gradient:
        return t.view(median, ())
    equal = t.add("relate", x, median, shape=t.shape(x), dtype="bool", relation="eq")
    own = t.add("where", equal, x, t.full(0.0, (), t.at(x).dtype), shape=t.shape(x))
    count = t.to(t.reduce("sum", equal, 0, False), t.at(x).dtype)
    return t.add("div", t.reduce("sum", own, 0, False), count)


def _searchsorted(t: T, a: A) -> Value:
    """Positions of values in sorted rows, before equal entries or behind them."""
    return _searched(t, a, a["sorted_sequence"], a["right"] or a["side"] == "right")


def _bucketize(t: T, a: A) -> Value:
    return _searched(t, a, a["boundaries"], a["right"])


def _searched(t: T, a: A, rows: Index, right: bool) -> Value:
    if a.get("sorter") is not None:
        return t.no("rows that are sorted by a sorter: sort them first, rows.gather(-1, sorter)")
    x, right_side = t.tensor(a["self"], t.at(rows).dtype), {"right": True} if right else {}
    if not t.shape(x):  # one number
        x = t.view(x, (1,) * len(t.shape(rows)))
    if len(t.shape(rows)) not in (1, len(t.shape(x))):
        return t.no("rows and values must have equally many dims")
    found = t.add("searchsorted", rows, x, shape=t.shape(x), dtype="int64", **right_side)
    return t.to(t.view(found, t.like.shape), t.like.dtype)


TABLE: dict[str, Rule] = {
    "topk": _topk,
    "sort": _sort,
    "argsort": _argsort,
    "cummax": lambda t, a: _along(t, a, "cummax"),
    "cummin": lambda t, a: _along(t, a, "cummin"),
    **{name: _one_of(name) for name in ("kthvalue", "mode")},
    "median": _median,
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "searchsorted": _searchsorted,
    "bucketize": _bucketize,
}
