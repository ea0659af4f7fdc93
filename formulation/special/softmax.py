"""Softmax or log-softmax over a split dim: ranks agree on the largest value of each row, then add up its sum."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.layout import Action
from ..strategies.row import Row
from .example_inputs import scaled_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy


def _rows(at: Situation) -> Iterator[Row]:
    x, y = (at.split(operand, at.node["dim"]) for operand in (0, -1))
    if x is not None and y is not None:
        yield Row((x,), y, ("softmax", 0), "softmax")


def _messages(part: Part) -> Iterator[Message]:
    """One number a row, twice forward and once backward; and what separate kernels read and write in addition.

    A fused kernel has a third of the passes that the cost model counts for it, forward and backward.
    """
    wide = max(part.item, 4)
    rows = prod(part.output) // part.output[part.node["dim"]]
    yield Message(Action.SUM, rows * wide, times=2)
    yield Message(Action.SUM, rows * wide, True)
    yield Message(Action.PAD, prod(part.output) * wide, times=3)
    yield Message(Action.PAD, prod(part.output) * wide, True, 2)


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    ((axis, _),) = splits
    logarithm = ", logarithm=True" if site.node.op == "log_softmax" else ""
    return f"sharded_softmax({names[0]}, {site.node['dim']}, {site.axes[axis]}{logarithm})"


def _example(op: str, b: Builder) -> int:
    return b.add(op, scaled_input(b, 6, 23, 4), shape=(6, 23, 4), dim=1)


register_strategy(
    Special(
        "softmax",
        ("softmax", "log_softmax"),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "softmax.py",
        primitives=("all_reduce",),
        examples=(partial(_example, "softmax"), partial(_example, "log_softmax")),
    )
)
