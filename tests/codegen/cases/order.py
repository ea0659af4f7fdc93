"""Positions of the largest entries, and insertion positions in sorted rows."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases


def topk(dim: int, k: int, largest: bool) -> Build:
    def build(b: Builder) -> int:
        shape = tuple(k if d == dim else n for d, n in enumerate((BATCH, 5, 4)))
        x = b.input(b.name("x"), (BATCH, 5, 4))
        return b.add("topk", x, shape=shape, dtype="int64", k=k, dim=dim, largest=largest)

    return build


def position(op: str, dim: int, keepdim: bool, **attributes: Any) -> Build:
    def build(b: Builder) -> int:
        shape = [1 if d == dim else n for d, n in enumerate((BATCH, 5, 4)) if keepdim or d != dim]
        x = b.input(b.name("x"), (BATCH, 5, 4))
        return b.add(op, x, shape=shape, dtype="int64", dim=dim, keepdim=keepdim, **attributes)

    return build


def along(op: str, dim: int, **attributes: Any) -> Build:
    def build(b: Builder) -> int:
        x = b.input(b.name("x"), (BATCH, 5, 4))
        return b.add(op, x, shape=(BATCH, 5, 4), dtype="int64", dim=dim, **attributes)

    return build


def one_row(b: Builder) -> int:
    row = b.add("constant", shape=(4,), dtype="float32", name="row", values=(-1.0, -0.2, 0.3, 1.1))
    return b.add("searchsorted", row, b.input(b.name("x"), (BATCH, 5)), shape=(BATCH, 5), dtype="int64", right=True)


def searchsorted(b: Builder) -> int:
    """Sums of positive numbers are sorted."""
    shape = (BATCH, 5, 4)
    positive = b.add("exp", b.input(b.name("x"), shape), shape=shape)
    rows = b.add("cumsum", positive, shape=shape, dim=2)
    return b.add("searchsorted", rows, b.input(b.name("x"), (BATCH, 5, 3)), shape=(BATCH, 5, 3), dtype="int64")


CASES: Cases = {
    "topk": (topk(2, 2, largest=True), topk(1, 3, largest=False)),
    "argsort": (along("argsort", 1, descending=True, stable=True), along("argsort", 2, descending=False, stable=False)),
    "cummax": (along("cummax", 2),),
    "cummin": (along("cummin", 1),),
    "argmax": (position("argmax", 2, True), position("argmax", 1, False)),
    "argmin": (position("argmin", 1, True),),
    "kthvalue": (position("kthvalue", 1, False, k=2),),
    "median": (position("median", 1, True),),
    "mode": (position("mode", 2, False),),
    "searchsorted": (searchsorted, one_row),
}
