"""Tables of DLRM and XDL spread over the GPUs of Summit: loads and steps of the solver's spread and of heuristics.

A load is what the busiest GPU has: columns, which are time, and bytes. `round-robin` deals whole tables out by number,
as Unity's expert does for DLRM (OSDI'22), `greedy` the largest first to the GPU with the fewest bytes. Steps are
predicted: of the plan that the planner chooses, of those whose look-ups are fixed to the spread, to rows found by
masking (`ids`) and to rows found at their owners, and of the expert, which is the plan with the spread where tables are
dealt round-robin; the rest of it is the planner's best, with data-parallel perceptrons.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from ..codegen.plan.plan import Plan
from ..codegen.plan.table_spread import at_of
from ..codegen.pricing.stage_price import stage_price
from ..formulation.search_space import SearchSpace
from ..formulation.special.table_spread import ColumnRange, TableSpread, row_columns
from ..model.graph.dtypes import ITEMSIZE
from ..model.graph.joined_tables import table_rows
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.machine.precision import precision
from ..solvers.backends.table_spread import solve
from .cases import GIB, Row, Tell, captured, chosen, plan_of_one_stage

MODELS = ("dlrm", "xdl")
DEVICES = (6, 8, 24)
SMALL = (4, 6)


def round_robin(rows: tuple[int, ...], width: int, ranks: int) -> TableSpread:
    """Whole tables, dealt out by number, as Unity's expert does for DLRM. PartitaError: fewer tables than ranks."""
    return _whole(rows, width, [[t for t in range(len(rows)) if t % ranks == c] for c in range(ranks)])


def greedy_by_size(rows: tuple[int, ...], width: int, ranks: int) -> TableSpread:
    """Whole tables, the largest first, each to the coordinate with the fewest elements. PartitaError as above."""
    own: list[list[int]] = [[] for _ in range(ranks)]
    held = [(0, 0, c) for c in range(ranks)]
    for table in sorted(range(len(rows)), key=lambda t: (-rows[t], t)):
        elements, count, c = heapq.heappop(held)
        own[c].append(table)
        heapq.heappush(held, (elements + rows[table], count + 1, c))
    return _whole(rows, width, own)


def _whole(rows: tuple[int, ...], width: int, own: Sequence[Sequence[int]]) -> TableSpread:
    return TableSpread(rows, width, tuple(tuple(ColumnRange(t, 0, width) for t in sorted(tables)) for tables in own))


def machine_of(devices: int) -> Machine:
    """So many V100 of Summit: all 6 of a node, or 4 (2 at each socket) where 6 do not divide them."""
    if devices % 6 == 0:
        return Machine.load("summit", nodes=devices // 6)
    machine = Machine.load("summit", nodes=devices // 4)
    *outer, inner = machine.levels
    return replace(machine, name="summit, 4 of 6", levels=(*outer, replace(inner, size=2)))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """One row for every model and number of devices; `small`: their small twins on few."""
    names = chosen(MODELS, only, str, "model")
    rows = []
    for name in names:
        for devices in SMALL if small else DEVICES:
            tell(f"{name} on {devices} devices")
            rows.append(_row(name, small, machine_of(devices)))
    return rows


def _row(name: str, small: bool, machine: Machine) -> Row:
    ranks = machine.devices
    graph, training = captured(name, machine, small=small)
    (table,) = (i for i in graph.of("parameter") if table_rows(graph.nodes[i]))
    rows, width = table_rows(graph.nodes[table]), graph.nodes[table].shape[1]
    solved = solve(rows, width, ranks, row_columns(machine.device, precision(training.dtype), sparse=False))
    assert solved is not None
    simple = {"round-robin": round_robin(rows, width, ranks), "greedy": greedy_by_size(rows, width, ranks)}
    spreads = {"spread": solved.spread, **simple}
    space = SearchSpace(stages=1)
    free = plan_of_one_stage(graph, machine, training, space)
    forced = {
        row: plan_of_one_stage(graph, machine, training, replace(space, mesh=(ranks,), fix=(("tables", row),)))
        for row in ("spread", "ids", "owners")
    }
    steps = {row: plan.report["objective_ns"] for row, plan in forced.items()}
    steps["expert"] = _with_spread(forced["spread"], graph, table, simple["round-robin"])
    return {
        "case": f"{name}, {ranks}",
        **{f"columns, {way}": spread.largest.columns for way, spread in spreads.items()},
        **{f"GiB, {way}": spread.largest.elements * ITEMSIZE["float32"] / GIB for way, spread in spreads.items()},
        "unit": solved.spread.unit,
        "pieces": sum(map(len, solved.spread.pieces)),
        "status": solved.status.value,
        "columns, bound": solved.columns,
        "GiB, bound": solved.elements * ITEMSIZE["float32"] / GIB,
        "gap": solved.gap,
        "seconds": solved.seconds,
        "chosen": free.layout_text(table, free.choices[table].output),
        "step ms, chosen": free.report["objective_ns"] / 1e6,
        **{f"step ms, {way}": ns / 1e6 for way, ns in steps.items()},
    }


def _with_spread(plan: Plan, graph: PCG, table: int, spread: TableSpread) -> int:
    """What a plan would take with other pieces."""
    choices = list(plan.choices)
    choices[table] = replace(choices[table], at=at_of(graph.nodes[table], spread))
    return stage_price(replace(plan, choices=tuple(choices))).objective_ns


def summary(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Tables of loads, proofs and steps."""

    def part(*keys: str) -> list[Row]:
        return [{"case": row["case"]} | {key: row[key] for key in row if key.startswith(keys)} for row in rows]

    return {
        "Columns of the busiest GPU": part("columns"),
        "GiB of the fullest GPU": part("GiB"),
        "The solver's spread": part("unit", "pieces", "status", "gap", "seconds"),
        "Predicted step": part("chosen", "step"),
    }
