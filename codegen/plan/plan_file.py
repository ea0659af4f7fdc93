"""Plans as files: plan.json, alone or in a folder beside program.py.

Of a pipeline the whole graph stands there once, and of every stage what its plan says of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from ...formulation.pipeline.orders import read_slot_lines, slot_lines
from ...formulation.pipeline.schedule import Schedule, SlotTable, schedule_named, with_orders
from ...formulation.placement.placement import Placement
from ...model.errors import PartitaError
from ...model.files import make_folder, read_json, write_atomically, write_directory
from ...model.graph.graph_file import graph_from_json, graph_to_json
from ...model.graph.pcg import PCG
from ...model.graph.stages import boundaries, stage
from ...model.json_values import number, whole
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine, stage_machine
from .choice import Choice, as_list, choice_json, read_choice
from .pipeline_plan import PipelinePlan
from .plan import Plan
from .spacetime_file import KIND as SPACE_TIME
from .spacetime_file import SavedSpaceTimePlan

FORMAT, PIPELINE = 1, "pipeline"
"""The version of files with and without a pipeline, and the `kind` of those with one."""

T = TypeVar("T")


def save(plan: Plan | PipelinePlan, path: Path | str) -> None:
    """Write a plan to a `.json` file, or plan.json and program.py into a folder."""
    text = json.dumps(plan.to_json(), indent=1, allow_nan=False) + "\n"
    if Path(path).suffix == ".json":
        make_folder(Path(path).parent)
        write_atomically(path, text)
    else:
        write_directory(path, {"plan.json": text, "program.py": plan.emit()})


def load(path: Path | str, read: Callable[[Any], T]) -> T:
    """Apply `read` to the JSON in a file, or in the plan.json of a folder; errors name the file."""
    source = Path(path)
    if source.is_dir():
        source = source / "plan.json"
    try:
        return read(read_json(source))
    except PartitaError as error:
        message = str(error)
        raise PartitaError(message if str(source) in message else f"{source}: {message}") from error


def load_plan(path: Path | str) -> Plan | PipelinePlan:
    """Read a plan with or without a pipeline: a file, or a folder with plan.json.

    Raises PartitaError that says what is wrong.
    """
    return load(path, _from_json)


def load_any(path: Path | str) -> Plan | PipelinePlan | SavedSpaceTimePlan:
    """As `load_plan`, space-time plans included."""

    def read(data: Any) -> Plan | PipelinePlan | SavedSpaceTimePlan:
        return SavedSpaceTimePlan(data) if _kind(data) == SPACE_TIME else _from_json(data)

    return load(path, read)


def to_json(plan: Plan | PipelinePlan) -> dict[str, Any]:
    """Everything but the module and the names of axes."""
    return _pipeline_to_json(plan) if isinstance(plan, PipelinePlan) else _stage_to_json(plan)


def _from_json(data: Any) -> Plan | PipelinePlan:
    return pipeline_from_json(data) if _kind(data) == PIPELINE else stage_from_json(data)


def _kind(data: Any) -> Any:
    return data.get("kind") if isinstance(data, Mapping) else None


@contextmanager
def _errors_at(where: str, prefix: bool = False) -> Iterator[None]:
    """Turn errors of malformed data into PartitaErrors that name the place; `prefix`: PartitaErrors name it too."""
    try:
        yield
    except PartitaError as error:
        if not prefix:
            raise
        raise PartitaError(f"{where}: {error}") from error
    except KeyError as error:
        raise PartitaError(f"{where}: {error} is missing") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise PartitaError(f"{where}: {error}") from error


def _shared_json(plan: Plan | PipelinePlan) -> dict[str, Any]:
    """The fields of both kinds of plan; a pipeline has them once for all of its stages."""
    return {
        "format": FORMAT,
        "model": plan.model,
        "dtype": plan.dtype,
        "optimizer": plan.optimizer,
        "micro_batches": plan.micro_batches,
        "machine": plan.machine.to_json(),
    }


# One stage


def _stage_to_json(plan: Plan) -> dict[str, Any]:
    nodes = enumerate(zip(plan.graph.nodes, plan.choices, strict=True))
    price = plan.transfer
    return {
        **_shared_json(plan),
        "placement": [list(row) for row in plan.placement.matrix],
        "choices": {node.name: choice_json(plan.graph, index, choice) for index, (node, choice) in nodes},
        **({"recompute": dict(plan.recompute)} if plan.recompute else {}),
        **({"in_flight": plan.in_flight} if plan.in_flight > 1 else {}),
        **({"transfer": [price.latency_ns, price.ns_per_byte]} if price else {}),
        "report": plan.report,
        "graph": graph_to_json(plan.graph),
    }


def stage_from_json(data: Any, graph: PCG | None = None) -> Plan:
    """Read what `to_json` gave of one stage; `graph` is the plan's where that is known.

    Raises PartitaError that says what is wrong and where.
    """
    if isinstance(kind := _kind(data), str):
        raise PartitaError(f"a plan of kind {kind!r:.40}: `partita.load_plan` reads pipelined ones")
    if not isinstance(data, Mapping) or "choices" not in data or "graph" not in data:
        raise PartitaError("not a plan")
    if data.get("format") != FORMAT:
        raise PartitaError(f"plan format {data.get('format')!r}; this version reads format {FORMAT}")
    graph = graph_from_json(data["graph"]) if graph is None else graph
    with _errors_at("the plan"):
        matrix = tuple(tuple(whole(x) for x in row) for row in as_list(data["placement"]))
        placement = Placement(tuple(math.prod(row) for row in matrix), matrix)
        machine, choices = Machine.from_json(data["machine"]), _choices(graph, data["choices"])
        model, report, recompute = data["model"], data["report"], data.get("recompute", {})
        if not all(isinstance(part, Mapping) for part in (model, report, recompute)):
            raise ValueError("model, report and recompute are not all objects")
        return Plan(
            graph=graph,
            machine=machine,
            placement=placement,
            micro_batches=whole(data["micro_batches"]),
            choices=choices,
            dtype=str(data["dtype"]),
            optimizer=str(data["optimizer"]),
            model=dict(model),
            report=_report(report),
            recompute=dict(recompute),
            in_flight=whole(data.get("in_flight", 1)),
            transfer=CollectivePrice(*_two_numbers(data["transfer"])) if "transfer" in data else None,
        )


def _choices(graph: PCG, data: Any) -> tuple[Choice, ...]:
    if not isinstance(data, Mapping):
        raise ValueError("choices are not an object")
    unknown = sorted(data.keys() - {n.name for n in graph.nodes})
    if unknown:
        raise ValueError(f"choices name {unknown[0]!r}, which is no node of the graph")
    choices = []
    for index, node in enumerate(graph.nodes):
        with _errors_at(f"the choice of {node.name!r}"):
            choices.append(read_choice(graph, index, data[node.name]))
    return tuple(choices)


def _two_numbers(data: Any) -> tuple[float, float]:
    first, second = map(number, as_list(data))
    return first, second


def _report(data: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a search; the numbers that are shown in words are checked."""
    for name in ("objective_ns", "bound_ns", "memory_bytes", "capacity_bytes"):
        if data.get(name) is not None:
            number(data[name])
    without = data.get("without_bundles")
    if without is not None and without["objective_ns"] is not None:
        number(without["objective_ns"])
    as_list(data.get("bundles", []))
    if data.get("objective_ns") is not None and data.get("bound_ns") is None:
        raise ValueError("the report has an objective without a bound")
    if not isinstance(data.get("gap") or 0, int | float):
        raise ValueError(f"gap {data['gap']!r:.60} is not a number")
    return dict(data)


# Several stages


def _pipeline_to_json(plan: PipelinePlan) -> dict[str, Any]:
    return {
        "kind": PIPELINE,
        **_shared_json(plan),
        "row": list(plan.row),
        "bounds": list(plan.bounds),
        "schedule": plan.schedule.name,
        **({"orders": slot_lines(plan.orders)} if isinstance(plan.schedule.order, SlotTable) else {}),
        "chunks": plan.chunks,
        "stages": [_own_json(plan, number) for number in range(len(plan.stages))],
        "report": plan.report,
        "graph": graph_to_json(plan.graph),
    }


def _own_json(plan: PipelinePlan, number: int) -> dict[str, Any]:
    """The fields of one stage; its graph only if that was rewritten."""
    part = plan.stages[number]
    plain = part.graph == stage(plan.graph, *plan.bounds[number : number + 2]).graph
    left_out = {*_shared_json(part), *(["graph"] if plain else [])}
    return {key: value for key, value in part.to_json().items() if key not in left_out}


def _schedule(data: Mapping[str, Any]) -> Schedule:
    """The schedule by its name; one that the solver found has its orders in the file."""
    named = schedule_named(str(data["schedule"]))
    if named.limit is None and "orders" not in data:
        return named
    return with_orders(named, read_slot_lines(list(map(str, as_list(data["orders"])))), whole(data["micro_batches"]))


def pipeline_from_json(data: Mapping[str, Any]) -> PipelinePlan:
    """Read what `to_json` gave of a pipeline. Raises PartitaError that says what is wrong and where."""
    if data.get("format") != FORMAT:
        raise PartitaError(f"pipelined plan of format {data.get('format')!r}; this version reads format {FORMAT}")
    with _errors_at("the plan"):
        graph, machine = graph_from_json(data["graph"]), Machine.from_json(data["machine"])
        row, bounds = (tuple(map(whole, as_list(data[key]))) for key in ("row", "bounds"))
        stages = as_list(data["stages"])
        if len(bounds) != len(stages) + 1:
            raise ValueError(f"{len(bounds)} bounds for {len(stages)} stages")
        if not all(0 <= a < b < len(boundaries(graph)) for a, b in pairwise(bounds)):
            raise ValueError(f"bounds {bounds} are no rising numbers of boundaries")
        shared = {key: data[key] for key in ("dtype", "optimizer", "micro_batches")}
        shared |= {"format": FORMAT, "model": {}, "machine": stage_machine(machine, row).to_json()}
        plans = []
        for number, (own, ends) in enumerate(zip(stages, pairwise(bounds), strict=True)):
            with _errors_at(f"stage {number}", prefix=True):
                if not isinstance(own, Mapping):
                    raise ValueError("it is no object")
                part = None if "graph" in own else stage(graph, *ends).graph
                plans.append(stage_from_json({"graph": None, **own, **shared}, part))
        if not isinstance(data["model"], Mapping) or not isinstance(data["report"], Mapping):
            raise ValueError("model and report are not objects")
        return PipelinePlan(
            graph=graph,
            machine=machine,
            row=row,
            bounds=bounds,
            stages=tuple(plans),
            schedule=_schedule(data),
            chunks=whole(data["chunks"]),
            model=dict(data["model"]),
            report=_report(data["report"]),
        )
