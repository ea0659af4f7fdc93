"""The report of a search: its space, and the error if it found no plan."""

import math
from collections.abc import Sequence
from typing import Any

from ...formulation.pipeline.shares import divisions
from ...formulation.rewriting.saturate import Rewritten
from ...model.errors import DoesNotFitError, NoPlanError, PartitaError
from ...model.graph.stages import boundaries
from ...model.sizes import bytes_text
from ...solvers.protocol import Status
from ...solvers.search.planning_problem import PlanningProblem
from ...solvers.search.result import ConfigurationSpace, SearchResult
from .left_out import fixed, outside
from .run_search import SearchOutcome

INTERRUPTED_EARLY = "interrupted before any plan was found"


def searched_space(
    problem: PlanningProblem,
    space: ConfigurationSpace | None,
    found: SearchResult,
    rewritten: Rewritten | None,
    schedules: Sequence[tuple[str, int]],
) -> dict[str, Any]:
    """The `space` entry of a report; `space` is None without pipelines. `schedules`: all that are compared.

    Machine levels, and the rows of a placement over them, are named outermost first.
    """
    every = problem.placements if space is None else [p for places in space.placements.values() for p in places]
    report: dict[str, Any] = {
        "meshes": len({p.sizes for p in every}),
        "placements": len(every) + found.orders - found.left_out,
        "left_out": found.left_out,
        "fixed": fixed(problem.space),
        "outside": outside(problem, space, found, rewritten, schedules),
        "axis_order": "every order" if problem.orders and not found.orders_left_out else "outermost level first",
        "micro_batches": list(problem.micro_batches),
        **({"offload": True} if _offloads(problem, space) else {}),
        "recompute": list(problem.space.modes),
        **(
            {"joint": {"variables": [*chosen], "programs": [*found.programs]}}
            if (chosen := problem.space.joint)
            else {}
        ),
    }
    if space is not None:
        report |= {
            "stages": _stages(problem, space),
            "schedule": space.schedule.name,
            "configurations": found.configurations,
            "configurations_asked": found.asked,
        }
    report |= {"options": found.options, "networks_solved": found.solved, "networks_kept": found.kept}
    limits_hit = []
    if rewritten:
        report["rewritings"] = rewritten.to_json() | {"without": len(found.unrewritten)}
        limits_hit += [f"rewriting: {limit}" for limit in rewritten.limits_hit]
        limits_hit += ["rewriting: width"] if found.unrewritten else []
    if found.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        limits_hit.append(_ended_by(found))
        report |= {"refused": refusal_text(found)} if found.refused else {}
    return report | {"limits_hit": limits_hit}


def _stages(problem: PlanningProblem, space: ConfigurationSpace) -> list[int]:
    """The numbers of stages of the pipelines that were searched."""
    if space.shares:
        ways = divisions(problem.machine.hierarchy, space.shares, problem.space.stages)
        return sorted({len(way) for way in ways if len(way) < len(boundaries(problem.pcg))})
    return sorted({math.prod(row) * space.chunks for row in space.placements if math.prod(row) > 1})


def _offloads(problem: PlanningProblem, space: ConfigurationSpace | None = None) -> bool:
    """True if optimizer states may be in the host's memory: not those of weights that have two versions."""
    if space is not None and space.schedule.double_buffered and all(math.prod(row) > 1 for row in space.placements):
        return False
    return problem.space.offloads(problem.machine)


def _ended_by(found: SearchResult) -> str:
    """The limit that ended a search without a proof."""
    if found.interrupted:
        return "interrupt"
    if found.near or not found.exhausted:
        return "gap" if found.near else "time"
    return "refused" if found.refused else "bound"


def refusal_text(found: SearchResult) -> str:
    """How many networks the solver refused, and its words: `2 of 5 networks: too large for one program`."""
    return f"{found.refused} of {found.solved} networks: {found.solver_words}"


def without_plan(outcome: SearchOutcome, model: dict[str, Any], searched: dict[str, Any], solver: str) -> PartitaError:
    """The error for a search without a plan: no placement fits, it ended too soon, or the solver gave no answer."""
    problem, found = outcome.problem, outcome.found
    machine, capacity = problem.machine, problem.machine.device.capacity_bytes
    if found.status is Status.INFEASIBLE:
        missing, needs = found.missing_bytes or 0, f"more than {bytes_text(capacity)} a device"
        if missing:  # else the search proved a lack of memory, but not its size
            needs = f"at least {bytes_text(capacity + missing)} a device of {bytes_text(capacity)}, "
            needs += f"{bytes_text(missing)} are missing"
        return DoesNotFitError(
            f"the model fits no placement on {machine.devices} x {machine.device.name}: it needs {needs}"
            + (", with optimizer states in the host's memory" if _offloads(problem) else "")
            + (f" (not looked at: {found.left_out} placements of more axes)" if found.left_out else "")
        )
    summary = {
        "model": model.get("reference"),
        "machine": machine.name,
        "devices": machine.devices,
        "batch": problem.batch,
        "sequence": model.get("sequence"),
        "dtype": problem.training.dtype,
        "optimizer": problem.training.optimizer,
        "loss": "projection" if problem.pcg.of("projection") else model.get("loss", "module"),
        "mode": model.get("mode"),
        "micro_batches": None,
        **{key: searched.get(key) for key in ("status", "objective_ns", "bound_ns", "gap", "proof", "seconds")},
        "memory_bytes": None,
        "capacity_bytes": capacity,
        "mesh": None,
        "placement": None,
        "recompute": {},
        "strategies": [],
        "unsplit_flops": None,
        "opaque": [],
        "space": searched["space"],
        "bundles": [],
        "without_bundles": None,
        "rewritten": [],
        "program": None,
    }
    if found.interrupted:
        return NoPlanError(INTERRUPTED_EARLY, summary, interrupted=True)
    refusal = f"{solver} gave no answer for {refusal_text(found)}"
    if found.refused and (found.exhausted or found.refused == found.solved):
        remedy = "" if solver == "auto" else "; use --solver auto, or a smaller space, such as --recompute none"
        return NoPlanError(f"no plan was found: {refusal}{remedy}", summary)
    told = f" ({refusal})" if found.refused else ""
    return NoPlanError(f"no plan was found in the time given; give it more{told}", summary)
