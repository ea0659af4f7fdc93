"""Pipelined plans as JSON: the whole graph once, and of every stage what its plan says of its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...model.errors import PartitaError
from ...model.graph.graph_file import graph_from_json, graph_to_json
from ...model.graph.stages import boundaries, stage
from ...model.machine.machine import Machine, stage_machine, whole
from .choice import as_list
from .pipeline_plan import PipelinePlan
from .plan import Plan, read_plan, read_report

KIND, FORMAT = "pipeline", 1
_SHARED = ("format", "model", "dtype", "optimizer", "micro_batches", "machine")
"""What stages need not say: the pipeline does."""


def load_plan(path: Path | str) -> Plan | PipelinePlan:
    """Read a plan with or without a pipeline: a file, or a folder with plan.json.

    Raises PartitaError that says what is wrong.
    """
    return read_plan(path, of_kind)


def of_kind(data: Any) -> Plan | PipelinePlan:
    """The plan that JSON says, with or without a pipeline."""
    pipelined = isinstance(data, Mapping) and data.get("kind") == KIND
    return from_json(data) if pipelined else Plan.from_json(data)


def to_json(plan: PipelinePlan) -> dict[str, Any]:
    """Everything but the module."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "model": plan.model,
        "dtype": plan.dtype,
        "optimizer": plan.optimizer,
        "micro_batches": plan.micro_batches,
        "machine": plan.machine.to_json(),
        "row": list(plan.row),
        "bounds": list(plan.bounds),
        "schedule": plan.schedule,
        "chunks": plan.chunks,
        "stages": [_stage_json(plan, number) for number in range(len(plan.stages))],
        "report": plan.report,
        "graph": graph_to_json(plan.graph),
    }


def _stage_json(plan: PipelinePlan, number: int) -> dict[str, Any]:
    """What a stage's plan says; its graph only where that was rewritten."""
    part = plan.stages[number]
    plain = part.graph == stage(plan.graph, *plan.bounds[number : number + 2]).graph
    left_out = (*_SHARED, "graph") if plain else _SHARED
    return {key: value for key, value in part.to_json().items() if key not in left_out}


def from_json(data: Mapping[str, Any]) -> PipelinePlan:
    """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
    if data.get("format") != FORMAT:
        raise PartitaError(f"pipelined plan of format {data.get('format')!r}; this version reads format {FORMAT}")
    where = "the plan"
    try:
        graph, machine = graph_from_json(data["graph"]), Machine.from_json(data["machine"])
        row, bounds = (tuple(map(whole, as_list(data[key]))) for key in ("row", "bounds"))
        texts, stages = as_list(data["stages"]), []
        if len(bounds) != len(texts) + 1:
            raise ValueError(f"{len(bounds)} bounds for {len(texts)} stages")
        if not all(0 <= a < b < len(boundaries(graph)) for a, b in pairwise(bounds)):
            raise ValueError(f"bounds {bounds} are no rising numbers of boundaries")
        shared = {key: data[key] for key in ("dtype", "optimizer", "micro_batches")}
        shared |= {"format": 1, "model": {}, "machine": stage_machine(machine, row).to_json()}
        for number, text in enumerate(texts):
            where = f"stage {number}"
            if not isinstance(text, Mapping):
                raise ValueError("it is no object")
            own = None if "graph" in text else stage(graph, *bounds[number : number + 2]).graph
            stages.append(Plan.from_json({"graph": None, **text, **shared}, own))
        where = "the plan"
        if not isinstance(data["model"], Mapping) or not isinstance(data["report"], Mapping):
            raise ValueError("model and report are not objects")
        return PipelinePlan(
            graph,
            machine,
            row,
            bounds,
            tuple(stages),
            str(data["schedule"]),
            whole(data["chunks"]),
            dict(data["model"]),
            read_report(data["report"]),
        )
    except KeyError as error:
        raise PartitaError(f"{where}: {error} is missing") from error
    except PartitaError as error:
        raise PartitaError(f"{where}: {error}" if where.startswith("stage") else str(error)) from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise PartitaError(f"{where}: {error}") from error
