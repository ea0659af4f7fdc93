"""Building blocks of cases: a function adds the node under test and its inputs to a graph."""

from collections.abc import Callable
from typing import Any, TypeAlias

from partita.model.graph.builder import Builder

Build: TypeAlias = Callable[[Builder], int]
Cases: TypeAlias = dict[str, tuple[Build, ...]]
BATCH = 6


def leaf(b: Builder, *shape: int) -> int:
    """A tensor that depends on samples (dim 0) and through which a gradient flows."""
    x = b.input(b.name("x"), shape)
    return b.add("mul", x, b.parameter(b.name("scale"), shape[1:]), shape=shape)


def weight(b: Builder, *shape: int) -> int:
    return b.parameter(b.name("w"), shape)


def unary(op: str, positive: bool = False, **attributes: Any) -> Build:
    def build(b: Builder) -> int:
        x = leaf(b, BATCH, 5, 4)
        if positive:  # away from zero, where some functions are not defined
            x = b.add("shift", b.add("mul", x, x, shape=(BATCH, 5, 4)), shape=(BATCH, 5, 4), value=0.5)
        return b.add(op, x, shape=(BATCH, 5, 4), **attributes)

    return build
