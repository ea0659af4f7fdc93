"""The output of `partita placements` and `partita reductions`: one JSON object, or a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...formulation.placement.placement import Placement, Row
from ...formulation.reduction.hierarchies import Synthesis, cheapest, hierarchy_of
from ...formulation.reduction.program import Numbering, Reduction, step_text
from ...formulation.reduction.ranking import Ranked, words
from ...model.machine.machine import Machine

_WIDTH = 120  # where the output is no terminal


def placements_summary(found: Sequence[Placement]) -> dict[str, Any]:
    """`count` and `matrices`, whose rows are the axes."""
    return {"count": len(found), "matrices": [placement.matrix for placement in found]}


def reductions_summary(
    machine: Machine, reduced: Sequence[int], found: Sequence[Ranked], numbering: Numbering = "levels"
) -> dict[str, Any]:
    """`total` programs of all matrices, and for each matrix what `partita reductions` says of it (seconds)."""
    counts = [one.programs for one in found if one.programs is not None]
    return {
        "total": sum(counts) if len(counts) == len(found) else None,
        "matrices": [
            {
                "matrix": one.placement.matrix,
                "programs": one.programs,
                "allreduce_s": one.allreduce_ns / 1e9,
                "optimal_s": one.best.ns / 1e9,
                "optimal": words(
                    one.best.program, Reduction(one.placement, tuple(sorted(reduced)), numbering), machine
                ),
            }
            for one in found
        ],
    }


def synthesis_summary(
    machine: Machine,
    reduced: Sequence[int],
    found: Sequence[Ranked],
    synthesis: Synthesis,
    *,
    size_bytes: int,
    profile: str | None,
    limit: int,
) -> dict[str, Any]:
    """`reductions_summary` of the programs over the levels of a synthesis; `optimal_s` is null where none is valid.

    PartitaError: see `hierarchies.cheapest`.
    """
    summary = reductions_summary(machine, reduced, found)
    for row, one in zip(summary["matrices"], found, strict=True):
        reduction = Reduction(one.placement, tuple(sorted(reduced)))
        best = cheapest(machine, reduction, synthesis, size_bytes, profile, limit)
        names = hierarchy_of(reduction, synthesis).names(machine)
        row["programs"] = best.programs
        row["optimal_s"] = None if best.ns is None else best.ns / 1e9
        row["optimal"] = tuple(step_text(step, names) for step in best.program or ())
    return summary | {"total": sum(row["programs"] for row in summary["matrices"])}


def print_placements(summary: Mapping[str, Any]) -> None:
    """A line for each matrix."""
    table = Table("axes as rows, levels as columns", caption=f"{summary['count']:,} placements")
    for matrix in summary["matrices"]:
        table.add_row(Text(_matrix(matrix)))
    _print(table)


def print_reductions(summary: Mapping[str, Any], title: str) -> None:
    """A line for each matrix, in the order of the summary."""
    table = Table("matrix", title=Text(title), caption=f"{_count(summary['total'])} programs in all")
    for name in ("programs", "all-reduce", "optimal", "gain"):
        table.add_column(name, justify="right")
    table.add_column("optimal program")
    for row in summary["matrices"]:
        flat_s, best_s = row["allreduce_s"], row["optimal_s"]
        table.add_row(
            Text(_matrix(row["matrix"])),
            _count(row["programs"]),
            f"{flat_s:,.6g} s",
            "" if best_s is None else f"{best_s:,.6g} s",
            f"{flat_s / best_s:.2f}x" if best_s else "",
            Text("; ".join(row["optimal"])),
        )
    _print(table)


def _count(programs: int | None) -> str:
    return "uncounted" if programs is None else f"{programs:,}"


def _matrix(rows: Sequence[Row]) -> str:
    return " ".join(f"[{' '.join(map(str, row))}]" for row in rows)


def _print(table: Table) -> None:
    console = Console()
    Console(width=None if console.is_terminal else _WIDTH).print(table)
