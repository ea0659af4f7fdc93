"""Constants made from attributes alone, and triangles."""

from typing import Any

from .build import BATCH, Build, Cases, leaf


def table(op: str, diagonal: int = 0) -> Build:
    return lambda b: b.add(op, leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 4), diagonal=diagonal)


def created(op: str, shape: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Build:
    return lambda b: b.add(op, shape=shape, dtype=dtype, **attributes)


CASES: Cases = {
    "tril": (table("tril"), table("tril", diagonal=-1)),
    "triu": (table("triu", diagonal=1),),
    "full": (created("full", (5, 4), value=0.5), created("full", (), value=2.5)),
    "arange": (
        created("arange", (5,), start=2, stop=12, step=2),
        created("arange", (4,), "int64", start=0, stop=4, step=1),
    ),
    "constant": (created("constant", (2, 2), values=(0.1, 0.2, 0.3, 0.5)),),
}
