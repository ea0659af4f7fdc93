"""Scatters of entries: sums, replacements and extremes, by ids of each entry or of whole rows."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight

X = (BATCH, 5, 4)


def _ids(b: Builder, shape: tuple[int, ...], high: int) -> int:
    batch_dim = 0 if shape[0] == BATCH else None
    return b.add("input", name=b.name("ids"), shape=shape, dtype="int64", batch_dim=batch_dim, high=high)


def _distinct(b: Builder, size: int, dim: int) -> int:
    """Ids that differ: of equal ones each rank may keep another entry, but on CPUs it is the last one."""
    shape = [size if d == dim else 1 for d in range(3)]
    return b.add("constant", shape=shape, dtype="int64", name=b.name("ids"), values=(4, 0, 2)[:size])


def sums(dim: int, size: int, ids: tuple[int, ...]) -> Build:
    def build(b: Builder) -> int:
        shape = tuple(size if d == dim else n for d, n in enumerate(X))
        return b.add("scatter_add", _ids(b, ids, size), leaf(b, *X), shape=shape, dim=dim)

    return build


def written(distinct: bool, **attributes: Any) -> Build:
    def build(b: Builder) -> int:
        values = () if attributes else (leaf(b, BATCH, 3, 4),)
        ids = _distinct(b, 3, 1) if distinct else _ids(b, (BATCH, 3, 1), 2)
        if attributes:
            ids = b.add("expand", ids, shape=(BATCH, 3, 4), dtype="int64")
        return b.add("scatter", leaf(b, *X), ids, *values, shape=X, dim=1, **attributes)

    return build


def reduced(reduce: str, include_self: bool) -> Build:
    def build(b: Builder) -> int:
        ids = _ids(b, (BATCH, 3, 4), 5)
        given = leaf(b, *X), ids, leaf(b, BATCH, 3, 4)
        return b.add("scatter_reduce", *given, shape=X, dim=1, reduce=reduce, include_self=include_self)

    return build


def of_edges(b: Builder) -> int:
    """Messages along edges, which no sample has: to the nodes of a weight."""
    return b.add("scatter_add", _ids(b, (7, 1), 4), weight(b, 7, 3), shape=(4, 3), dim=0)


CASES: Cases = {
    "scatter_add": (sums(1, 3, X), sums(1, 7, (1, 5, 1)), sums(0, 4, (BATCH, 1, 1)), of_edges),
    "scatter": (written(True), written(False), written(True, value=2.5)),
    "scatter_reduce": (reduced("amax", True), reduced("amin", False), reduced("prod", True)),
}
