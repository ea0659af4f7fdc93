"""The planner's own choice for groups of published runs, beside the fastest run of each that was measured.

A group is a model on a number of GPUs; of each model in the file the smallest, the middle and the largest with four
measured runs or more. The planner decides all that it can: meshes, layouts, how weights are stored, micro-batches,
pipelines and recomputation, in compiled programs that overlap, within `GAP` of the optimum or `LIMIT_S` seconds. States
stay on the device. The batch, the precision and the machine are those of the runs, but for its memory: a plan may use
so much that it would fit if its memory were underestimated as much as that of any run of tier A that is predicted too.
That error is of nanotron's program, whose memory has fitted constants (`first_rank`); what the planner's own program
needs was not measured, and the error is only taken to be no larger. Without such runs nothing is planned.

    ratio      the planned step's predicted seconds by the measured ones of the fastest run
    best_ratio the same of the fastest run's own configuration, as predicted
    memory_gib the plan's memory
    limit_gib  the most that it may need: what the device has, its reserve left out, by the error of memory
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from ..model.machine.machine import Machine
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.cache.store import store_in
from .cases import GIB, Row, Tell, sizes_of
from .published_runs import Run
from .training_runs import LEAST_GROUP, captured, predicted

GAP = 0.02
LIMIT_S = 90.0
EACH = 3
"""Groups of each model."""


def groups(runs: Iterable[Run]) -> list[list[Run]]:
    """The measured runs of each group, by model and number of GPUs."""
    found: dict[str, dict[int, list[Run]]] = {}
    for run in runs:
        if run.seconds is not None:
            found.setdefault(run.model, {}).setdefault(run.devices, []).append(run)
    picked = []
    for of in found.values():
        sizes = sorted(devices for devices, own in of.items() if len(own) >= LEAST_GROUP)
        places = {round(i * (len(sizes) - 1) / (EACH - 1)) for i in range(EACH)} if sizes else set[int]()
        picked += [of[sizes[place]] for place in sorted(places)]
    return picked


def memory_error(rows: Iterable[Row]) -> float | None:
    """The largest ratio of measured to predicted memory of tier A's runs, at least 1; None without such runs.

    Of the program that ran (`first_rank_bytes`), not of the planner's own; and of the runs given, so of those chosen.
    """
    known = [row for row in rows if row["tier"] == "A" and row["measured_gib"] is not None]
    return max([1.0, *(float(row["measured_gib"] / row["predicted_gib"]) for row in known)]) if known else None


def compared(
    runs: Sequence[Run], rows: Sequence[Row], tell: Tell, plan: Callable[[Run, float], Plan] | None = None
) -> list[Row]:
    """A row for each group of which some run is among the predicted `rows`."""
    known, error = {row["run"]: row for row in rows}, memory_error(rows)
    found = []
    for own in groups(runs):
        if any(run.name in known for run in own):
            best = min(own, key=lambda run: run.seconds or 0.0)
            tell(f"the planner's choice for {best.model} on {best.devices} GPUs")
            found.append(_row(best, known.get(best.name) or predicted(best)[0], error, plan or planned))
    return found


def planned(case: Run, error: float) -> Plan:
    """The planner's plan for the model, the batch and the machine of a run, with memory for such an error."""
    base = Machine.load(case.machine)
    machine = base.with_nodes(max(1, case.devices // prod(base.hierarchy[1:])))
    memory = machine.device.reserved_bytes + int(machine.device.capacity_bytes / error)
    machine = replace(machine, device=replace(machine.device, memory_bytes=memory))
    space = SearchSpace(offload=False, compile=True)
    budget = Budget(gap=GAP, time_limit=LIMIT_S, store=store_in("none"))
    training = Training(case.batch, case.dtype, "adamw")
    return plan_graph(captured(case.decoder), machine, training, space, budget, Context(emits=False))


def _row(best: Run, of_best: Row, error: float | None, plan: Callable[[Run, float], Plan]) -> Row:
    measured, capacity = best.seconds, Machine.load(best.machine).device.capacity_bytes
    assert measured is not None
    row: Row = {
        **{"group": f"{best.model}, {best.devices} GPUs", "plan": None, "planned_s": None, "gap": None},
        **{"ratio": None, "fastest run": best.name.removeprefix(f"{best.model} "), "measured_s": measured},
        **{"best_ratio": of_best["predicted_s"] / measured, "memory_gib": None},
        "limit_gib": None if error is None else capacity / error / GIB,
    }
    if error is None:
        return row | {"verdict": "not comparable: no run of tier A says how far memory is off"}
    try:
        made = plan(best, error)
    except PartitaError as refusal:
        return row | {"verdict": f"not comparable: {refusal}"}
    seconds, memory = made.report["objective_ns"] / 1e9, made.report["memory_bytes"] / GIB
    return row | {
        **{"plan": sizes_of(made), "planned_s": seconds, "gap": made.report["gap"], "ratio": seconds / measured},
        "memory_gib": memory,
        "verdict": verdict(seconds, of_best["predicted_s"], measured, fits=of_best["fits"]),
    }


def verdict(planned_s: float, best_s: float, measured_s: float, fits: bool) -> str:
    """Whether the choice is at least as fast as the fastest measured run, or why that does not show.

    It is if it is predicted to be no slower than both the run's measured and its predicted seconds, the latter but for
    the gap that the search may leave.
    """
    if planned_s > best_s * (1 + GAP):
        slower = f"slower than the run's own prediction, by {planned_s / best_s - 1:.1%}"
        return slower if fits else "not comparable: the run is predicted not to fit"
    if planned_s <= measured_s:
        return "at least as fast"
    return f"not comparable: the run itself is predicted {best_s / measured_s - 1:+.1%}"


def summary(rows: Sequence[Row]) -> list[Row]:
    """How many choices are at least as fast, slower, and not comparable."""
    return [
        {
            "groups": len(rows),
            "at least as fast": sum(row["verdict"] == "at least as fast" for row in rows),
            "slower": sum(row["verdict"].startswith("slower") for row in rows),
            "not comparable": sum(row["verdict"].startswith("not") for row in rows),
        }
    ]
