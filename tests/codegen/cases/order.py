"""Positions of the largest entries, and insertion positions in sorted rows."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases


def topk(dim: int, k: int, largest: bool) -> Build:
    def build(b: Builder) -> int:
        shape = tuple(k if d == dim else n for d, n in enumerate((BATCH, 5, 4)))
        x = b.input(b.name("x"), (BATCH, 5, 4))
        return b.add("topk", x, shape=shape, dtype="int64", k=k, dim=dim, largest=largest)

    return build


def searchsorted(b: Builder) -> int:
    """Sums of positive numbers are sorted."""
    shape = (BATCH, 5, 4)
    positive = b.add("exp", b.input(b.name("x"), shape), shape=shape)
    rows = b.add("cumsum", positive, shape=shape, dim=2)
    return b.add("searchsorted", rows, b.input(b.name("x"), (BATCH, 5, 3)), shape=(BATCH, 5, 3), dtype="int64")


CASES: Cases = {
    "topk": (topk(2, 2, largest=True), topk(1, 3, largest=False)),
    "searchsorted": (searchsorted,),
}
