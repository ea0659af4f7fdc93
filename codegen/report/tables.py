"""What a table of a report is; the tables of the programs that collectives run, and of spread look-up tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...formulation.reduction.program import Reduction
from ..plan.plan import Plan
from ..plan.table_spread import places, plan_spread, spread_axis
from ..pricing.axis_groups import axis_groups, steps_text
from .words import bytes_text


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


def programs_table(plan: Plan) -> Table:
    """The steps of every collective that takes several for some message."""
    rows = []
    for group in axis_groups(plan):
        axes = "+".join(plan.axes[a] for a in group.axes)
        for kind, known in group.schedules.items():
            name, where = kind.replace("_", "-"), place(plan, group.axes)
            for start, program in zip(known.starts, known.programs, strict=True):
                rows.append((name, axes, where, steps_text(group, program), bytes_text(start)))
    return Table(
        "Programs",
        "Collectives over several levels of the machine: the cheapest steps for messages from so many bytes on.",
        ("collective", "axis", "over", "steps", "from"),
        tuple(rows),
        words=4,
    )


def spread_table(plan: Plan) -> Table:
    """Where tables lie that are spread over an axis, and how much of them."""
    rows = []
    for index in plan.graph.of("parameter"):
        spread, axis = plan_spread(plan, index), spread_axis(plan, index)
        for table, (name, at) in enumerate(places(plan, index).items()):
            assert spread is not None and axis is not None
            own = [p.stop - p.start for part in spread.pieces for p in part if p.table == table]
            rows.append((name, f"{plan.axes[axis]} {at}", f"{spread.rows[table]:,}", ", ".join(map(str, own))))
    return Table(
        "Tables",
        "Joined tables that are spread over the coordinates of an axis: at which of them each table lies, its rows, "
        "and how many of its columns each of these has.",
        ("table", "at", "rows", "columns"),
        tuple(rows),
        words=2,
    )
