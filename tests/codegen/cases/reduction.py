"""Sums, means and the like, and cumulative ones."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, unary


def reduced(op: str, dims: tuple[int, ...], keepdim: bool, **attributes: Any) -> Build:
    def build(b: Builder) -> int:
        shape = (BATCH, 5, 4)
        kept = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
        counted: dict[str, Any] = {}
        if op == "mean":
            counted["count"] = 1
            for d in dims:
                counted["count"] *= shape[d]
        return b.add(op, leaf(b, *shape), shape=kept, dims=dims, keepdim=keepdim, **counted, **attributes)

    return build


CASES: Cases = {
    "cumsum": (unary("cumsum", dim=1),),
    "cumprod": (unary("cumprod", dim=1),),
    "logsumexp": (reduced("logsumexp", (1,), False), reduced("logsumexp", (0, 2), True)),
    "norm": (reduced("norm", (1,), True, ord=2), reduced("norm", (0, 1, 2), False, ord=3)),
    "sum": (reduced("sum", (1,), False), reduced("sum", (0, 2), True), reduced("sum", (0, 1, 2), False)),
    "mean": (reduced("mean", (2,), True), reduced("mean", (0, 1), False), reduced("mean", (1, 2), False)),
    "logcumsumexp": (unary("logcumsumexp", dim=1),),
    "amin": (reduced("amin", (1, 2), False),),
    "amax": (reduced("amax", (1,), False), reduced("amax", (2,), True)),
}
