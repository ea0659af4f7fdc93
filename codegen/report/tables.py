"""A table of a report."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...formulation.reduction.program import Reduction
from ..plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Table:
    """`text` says in a sentence what the table shows; the first `words` columns are left aligned, the others right."""

    title: str
    text: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def place(plan: Plan, axes: Sequence[int]) -> str:
    """The units that a group over some axes joins: `8 nodes`, `2 nodes x 3 gpus`."""
    row = Reduction(plan.placement, tuple(axes)).row
    names = [f"{m} {level.name}s" for m, level in zip(row, plan.machine.levels, strict=True) if m > 1]
    return " x ".join(names) or "one device"


def axis_heads(plan: Plan) -> tuple[str, ...]:
    """A column for every axis: `data=8`."""
    return tuple(f"{name}={size}" for name, size in zip(plan.axes, plan.placement.sizes, strict=True))
