"""Plans as files: plan.json, alone or in a folder beside program.py.

The file of a pipeline has the whole graph once, and for every stage the fields that are its own. A rival has only what
differs from the plan, and each choice once, with its nodes.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from ...formulation.pipeline.cut_graph import cut_graph
from ...formulation.pipeline.orders import read_slot_lines, slot_lines
from ...formulation.pipeline.schedule import Schedule, SlotTable, schedule_named, with_orders
from ...formulation.pipeline.shares import stage_machines
from ...formulation.placement.placement import Placement
from ...model.errors import PartitaError
from ...model.files import make_folder, read_json, write_atomically, write_directory
from ...model.graph.batch import with_batch
from ...model.graph.folded import passes
from ...model.graph.graph_file import graph_from_json, graph_to_json
from ...model.graph.interlaced import interlaced
from ...model.graph.pcg import PCG
from ...model.graph.stages import boundaries, stage
from ...model.initial_values import InitialValues
from ...model.json_values import number, title, whole
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine
from .choice import Choice, as_list, choice_json, read_choice
from .plan import PipelinePlan, Plan
from .spacetime_file import KIND as SPACE_TIME
from .spacetime_file import SavedSpaceTimePlan

FORMAT, PIPELINE = 1, "pipeline"
"""The version of the format, and the `kind` of pipelines."""

T = TypeVar("T")


def save(plan: Plan, path: Path | str) -> None:
    """Write a plan to a `.json` file, or plan.json and program.py into a folder."""
    text = json.dumps(plan.to_json(), indent=1, allow_nan=False) + "\n"
    if Path(path).suffix == ".json":
        make_folder(Path(path).parent)
        write_atomically(path, text)
    else:
        write_directory(
            path, {"plan.json": text, "program.py": plan.emit(), **(plan.initial.files() if plan.initial else {})}
        )


def load_plan(path: Path | str) -> Plan:
    """Read a plan: a file, or a folder with plan.json. Raises PartitaError that says what is wrong."""
    return _load(path, from_json)


def load_any(path: Path | str) -> Plan | SavedSpaceTimePlan:
    """As `load_plan`, space-time plans included."""
    return _load(path, lambda data: SavedSpaceTimePlan(data) if _kind(data) == SPACE_TIME else from_json(data))


def _load(path: Path | str, read: Callable[[Any], T]) -> T:
    """Apply `read` to the JSON in a file, or in the plan.json of a folder; errors name the file."""
    source = Path(path)
    if source.is_dir():
        source = source / "plan.json"
    try:
        return read(read_json(source))
    except PartitaError as error:
        message = str(error)
        raise PartitaError(message if str(source) in message else f"{source}: {message}") from error


def _kind(data: Any) -> Any:
    return data.get("kind") if isinstance(data, Mapping) else None


# Writing


def to_json(plan: Plan) -> dict[str, Any]:
    """Everything but the module and the names of axes."""
    return {
        **({"kind": PIPELINE} if plan.size > 1 else {}),
        "format": FORMAT,
        "model": plan.model,
        "dtype": plan.dtype,
        "optimizer": plan.optimizer,
        "micro_batches": plan.micro_batches,
        "machine": plan.machine.to_json(),
        **({} if plan.overlap else {"overlap": False}),
        **({"compile": True} if plan.compile else {}),
        **({"initial": plan.initial.to_json()} if plan.initial else {}),
        **(_pipeline_json(plan) if plan.size > 1 else _stage_json(plan)),
        "report": plan.report,
        "graph": graph_to_json(plan.graph),
        **({"rivals": [_rival_json(plan, rival) for rival in plan.rivals]} if plan.rivals else {}),
    }


def _rival_json(plan: Plan, rival: Plan) -> dict[str, Any]:
    """What a rival has for itself; its graph only if it is not the plan's."""
    own = _pipeline_json(rival) if rival.size > 1 else _stage_json(rival)
    for part, entry in zip(rival.stages, own.get("stages", [own]), strict=True):
        entry.pop("report", None)
        entry["choices"] = _grouped(part)
    rewritten = rival.graph != with_batch(plan.graph, rival.graph.batch)
    return {
        **({"kind": PIPELINE} if rival.size > 1 else {}),
        "dtype": rival.dtype,
        "micro_batches": rival.micro_batches,
        **own,
        **({"graph": graph_to_json(rival.graph)} if rewritten else {}),
    }


def _grouped(plan: Plan) -> list[dict[str, Any]]:
    """Every distinct choice with the numbers of its nodes."""
    groups: dict[str, list[int]] = {}
    for index, choice in enumerate(plan.choices):
        groups.setdefault(json.dumps(choice_json(plan.graph, index, choice)), []).append(index)
    return [{"choice": json.loads(text), "nodes": nodes} for text, nodes in groups.items()]


def _stage_json(plan: Plan) -> dict[str, Any]:
    """The fields that every stage has for itself, but for its report."""
    nodes = enumerate(zip(plan.graph.nodes, plan.choices, strict=True))
    price = plan.transfer
    return {
        "placement": [list(row) for row in plan.placement.matrix],
        "choices": {node.name: choice_json(plan.graph, index, choice) for index, (node, choice) in nodes},
        **({"recompute": dict(plan.recompute)} if plan.recompute else {}),
        **({"in_flight": plan.in_flight} if plan.in_flight > 1 else {}),
        **({"together": dict(plan.together)} if plan.together else {}),
        **({"transfer": [price.latency_ns, price.ns_per_byte]} if price else {}),
    }


def _pipeline_json(plan: Plan) -> dict[str, Any]:
    """The fields of a pipeline; a stage has a graph of its own only if it was rewritten."""
    stages = []
    for part, ends in zip(plan.stages, pairwise(plan.bounds), strict=True):
        rewritten = part.graph != stage(plan.cut, *ends).graph
        own = {"report": part.report} | ({"graph": graph_to_json(part.graph)} if rewritten else {})
        stages.append(_stage_json(part) | own)
    return {
        **({"shares": list(plan.shares)} if plan.shares else {"row": list(plan.placement.matrix[0])}),
        "bounds": list(plan.bounds),
        "schedule": plan.schedule.name,
        **({"orders": slot_lines(plan.orders)} if isinstance(plan.schedule.order, SlotTable) else {}),
        "chunks": plan.chunks,
        "stages": stages,
        **({"shared": _stage_json(plan.shared) | {"report": plan.shared.report}} if plan.shared else {}),
    }


# Reading


def from_json(data: Any) -> Plan:
    """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
    if (kind := _kind(data)) == SPACE_TIME:
        raise PartitaError("a space-time plan: `partita show` and `partita verify` read it")
    if kind not in (None, PIPELINE):
        raise PartitaError(f"unknown kind of plan {kind!r:.40}")
    if not isinstance(data, Mapping) or "graph" not in data or ("stages" if kind else "choices") not in data:
        raise PartitaError("not a plan")
    if data.get("format") != FORMAT:
        raise PartitaError(f"plan format {data.get('format')!r}; this version reads format {FORMAT}")
    with _errors_at("the plan"):
        graph, machine = graph_from_json(data["graph"]), Machine.from_json(data["machine"])
        model = _object("model", data["model"])
        initial = InitialValues.from_json(data["initial"]) if "initial" in data else None
        plan = _plan(data, graph, machine, model)
        rivals = [_rival(data, plan, number, given) for number, given in enumerate(as_list(data.get("rivals", [])))]
        return replace(plan, initial=initial, rivals=tuple(rivals))


def _plan(data: Mapping[str, Any], graph: PCG, machine: Machine, model: dict[str, Any]) -> Plan:
    """A plan of one stage or several, without how its weights begin and without rivals."""
    if _kind(data) is None:
        return _stage(data, graph, machine, model)
    unequal = "shares" in data
    sizes, bounds = (tuple(map(whole, as_list(data[key]))) for key in ("shares" if unequal else "row", "bounds"))
    row, shares = ((), sizes) if unequal else (sizes, ())
    schedule = _schedule(data, graph)
    machines = stage_machines(machine, schedule.stage_row(row), shares, len(as_list(data["stages"])))
    shared, cut = None, cut_graph(graph, schedule).graph
    if "shared" in data:
        with _errors_at("what all devices compute", prefix=True):
            own = _object("its entry", data["shared"])
            shared = _stage(own | _common(data), interlaced(graph).shared.graph, machine, {})
    return PipelinePlan(
        graph,
        machine,
        row,
        bounds,
        stages=_stages(data, cut, machines, bounds),
        schedule=schedule,
        shares=shares,
        chunks=whole(data["chunks"]),
        shared=shared,
        model=model,
        report=_report(data["report"]),
    )


def _rival(data: Mapping[str, Any], plan: Plan, number: int, given: Any) -> Plan:
    """A rival of a plan that was read from `data`."""
    with _errors_at(f"rival {number}", prefix=True):
        own = _object("its entry", given)
        count = whole(own["micro_batches"])
        if count < 1 or plan.batch % count:
            raise ValueError(f"{count} micro-batches do not divide {plan.batch} samples")
        batch = plan.batch // count
        graph = graph_from_json(own["graph"]) if "graph" in own else with_batch(plan.graph, batch)
        shared = {key: data[key] for key in ("optimizer", "overlap", "compile") if key in data}
        if "stages" not in own:
            own["choices"] = _spread(graph, own["choices"])
            return _plan(shared | own | {"report": {}}, graph, plan.machine, plan.model)
        stages = [_object("a stage", entry) for entry in as_list(own["stages"])]
        cut = cut_graph(graph, _schedule(own, graph)).graph
        for entry, ends in zip(stages, pairwise(map(whole, as_list(own["bounds"]))), strict=True):
            part = graph_from_json(entry["graph"]) if "graph" in entry else stage(cut, *ends).graph
            entry |= {"choices": _spread(part, entry["choices"]), "report": {}}
        return _plan(shared | own | {"stages": stages, "report": {}}, graph, plan.machine, plan.model)


def _spread(graph: PCG, groups: Any) -> dict[str, Any]:
    """The choice of every node by its name: the inverse of `_grouped`."""
    pairs = [(whole(node), group["choice"]) for group in as_list(groups) for node in as_list(group["nodes"])]
    if not all(0 <= node < len(graph.nodes) for node, _ in pairs):
        raise ValueError("a choice is of a node that the graph does not have")
    return {graph.nodes[node].name: choice for node, choice in pairs}


def _stages(
    data: Mapping[str, Any], graph: PCG, machines: Sequence[Machine], bounds: tuple[int, ...]
) -> tuple[Plan, ...]:
    """The stages of a pipeline on a machine each."""
    stages = as_list(data["stages"])
    if len(bounds) != len(stages) + 1 or len(machines) != len(stages):
        raise ValueError(f"{len(bounds)} bounds and {len(machines)} shares for {len(stages)} stages")
    if not all(0 <= a < b < len(boundaries(graph)) for a, b in pairwise(bounds)):
        raise ValueError(f"bounds {bounds} are not increasing numbers of boundaries")
    shared, plans = _common(data), []
    for place, (entry, machine, ends) in enumerate(zip(stages, machines, pairwise(bounds), strict=True)):
        with _errors_at(f"stage {place}", prefix=True):
            own = _object("its entry", entry)
            part = graph_from_json(own["graph"]) if "graph" in own else stage(graph, *ends).graph
            plans.append(_stage(own | shared, part, machine, {}))
    return tuple(plans)


def _common(data: Mapping[str, Any]) -> dict[str, Any]:
    """What all parts of a pipeline have in common."""
    return {key: data[key] for key in ("dtype", "optimizer", "micro_batches", "overlap", "compile") if key in data}


def _stage(data: Mapping[str, Any], graph: PCG, machine: Machine, model: dict[str, Any]) -> Plan:
    """A plan of one stage."""
    matrix = tuple(tuple(whole(x) for x in row) for row in as_list(data["placement"]))
    return Plan(
        graph,
        machine,
        Placement(tuple(math.prod(row) for row in matrix), matrix),
        whole(data["micro_batches"]),
        choices=_choices(graph, data["choices"]),
        dtype=str(data["dtype"]),
        optimizer=str(data["optimizer"]),
        model=model,
        report=_report(data["report"]),
        recompute=_object("recompute", data.get("recompute", {})),
        in_flight=whole(data.get("in_flight", 1)),
        transfer=_transfer(data["transfer"]) if "transfer" in data else None,
        overlap=_flag(data, "overlap", default=True),
        together={name: whole(count) for name, count in _object("together", data.get("together", {})).items()},
        compile=_flag(data, "compile", default=False),
    )


def _transfer(data: Any) -> CollectivePrice:
    latency_ns, ns_per_byte = map(number, as_list(data))
    return CollectivePrice(latency_ns, ns_per_byte)


def _choices(graph: PCG, data: Any) -> tuple[Choice, ...]:
    data = _object("choices", data)
    if unknown := sorted(data.keys() - {n.name for n in graph.nodes}):
        raise ValueError(f"choices name {unknown[0]!r}, which is no node of the graph")
    choices = []
    for index, node in enumerate(graph.nodes):
        with _errors_at(f"the choice of {node.name!r}"):
            choices.append(read_choice(graph, index, data[node.name]))
    return tuple(choices)


def _report(data: Any) -> dict[str, Any]:
    """The report of a search; the numbers that are shown in words are checked."""
    report = _object("report", data)
    for name in ("objective_ns", "bound_ns", "memory_bytes", "capacity_bytes"):
        if report.get(name) is not None:
            number(report[name])
    without = report.get("without_bundles")
    if without is not None and without["objective_ns"] is not None:
        number(without["objective_ns"])
    as_list(report.get("bundles", []))
    for machine in as_list(report.get("machines", [])):
        title(machine["name"]), number(machine["objective_ns"])
    if report.get("objective_ns") is not None and report.get("bound_ns") is None:
        raise ValueError("the report has an objective without a bound")
    if not isinstance(report.get("gap") or 0, int | float):
        raise ValueError(f"gap {report['gap']!r:.60} is not a number")
    return report


def _schedule(data: Mapping[str, Any], graph: PCG) -> Schedule:
    """The schedule of a graph by its name; one that the solver found has its orders in the file."""
    named = schedule_named(str(data["schedule"])).with_passes(passes(graph))
    if "shares" in data:
        return named.with_unequal_stages()
    if named.limit is None and "orders" not in data:
        return named
    return with_orders(named, read_slot_lines(list(map(str, as_list(data["orders"])))), whole(data["micro_batches"]))


def _flag(data: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.40}, not true or false")
    return value


def _object(name: str, data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{name} is not an object")
    return dict(data)


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
