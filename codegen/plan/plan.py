"""A plan: a graph, where its mesh lies, and for every node the layouts that it asks and offers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...formulation.placement.placement import Placement
from ...model.errors import PartitaError
from ...model.files import make_folder, read_json, write_atomically, write_directory
from ...model.graph.atoms import atoms
from ...model.graph.graph_file import graph_from_json, graph_to_json
from ...model.graph.layout import Layout
from ...model.graph.pcg import PCG
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine, number, whole
from .checks import check
from .choice import Choice, as_list, choice_json, letter_text, read_choice
from .table_spread import places

if TYPE_CHECKING:
    from torch import nn

    from ..emission.spmd.axes import Group
    from ..emission.spmd.recomputing import Part
    from ..parallel_graph.graph import ParallelGraph
    from .pipeline_plan import PipelinePlan

FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """One choice per node of `graph` (shapes at one micro-batch, global over ranks), checked: it can be run as it is.

    `model` says how to build the module again: reference, small, sequence, batch. `report` holds what the search found:
    status, objective_ns, bound_ns, gap, seconds, memory_bytes, capacity_bytes, space, unsplit_flops. `module` is the
    module that was planned, with its example inputs, where the plan was made from one; it is not saved. `recompute`
    names the segments (`model.segments`) whose forward runs once more before their backward: `full` or `selective`.
    `names` are those of the axes, where more than this plan decides what they are called; not saved either. Of a stage
    of a pipeline, `in_flight` micro-batches are kept for backward at once, and `transfer` prices what is handed on.
    """

    graph: PCG
    machine: Machine
    placement: Placement
    micro_batches: int
    choices: tuple[Choice, ...]
    dtype: str = "float32"
    optimizer: str = "adamw"
    model: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    module: tuple[nn.Module, Any] | None = field(default=None, compare=False, repr=False)
    recompute: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    in_flight: int = 1
    transfer: CollectivePrice | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def ranks(self) -> int:
        return self.placement.devices

    @property
    def batch(self) -> int:
        """Samples in one step: over all ranks and micro-batches."""
        return self.graph.batch * self.micro_batches

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """A name for every mesh axis, by what it mostly splits: data, tensor, sequence."""
        from ..emission.common.names import axis_names

        return self.names or axis_names(self)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The axes, and those that sum gradients together, with the programs of their collectives."""
        from ..emission.spmd.axes import groups

        return groups(self)

    @cached_property
    def segments(self) -> tuple[Part, ...]:
        """All segments with their modes, where some are recomputed."""
        from ..emission.spmd.recomputing import parts

        return parts(self)

    def layout_text(self, node: int, layout: Layout) -> str:
        """A layout in words of this plan's axes: `data:S(0) tensor:P`, `@1` at coordinate 1; R is left out."""
        known, beside = atoms(self.graph)[node], self.choices[node].beside
        words = [letter_text(known, x) for x in layout]
        for axis, coordinate in beside:
            words[axis] = f"@{coordinate}"
        return " ".join(f"{a}:{word}" for a, word in zip(self.axes, words, strict=True) if word != "R") or "R"

    def summary(self) -> dict[str, Any]:
        """What `partita plan --json` prints; `program` is known where the plan is saved."""
        return summary(self, self.strategies())

    def strategies(self) -> list[dict[str, Any]]:
        """For every node how its tensors lie."""
        return [
            {
                "name": node.name,
                "operator": node.op,
                "layouts": [
                    *(self.layout_text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True)),
                    self.layout_text(index, choice.output),
                ],
                **({"tables": places(self, index)} if choice.at else {}),
            }
            for index, (node, choice) in enumerate(zip(self.graph.nodes, self.choices, strict=True))
        ]

    def __str__(self) -> str:
        from ..report.describe import describe

        return describe(self)

    def emit(self, path: Path | str | None = None) -> str:
        """The program as text; also written to `path` where one is given."""
        from ..emission.spmd.emit import emit

        text = emit(self)
        if path is not None:
            write_atomically(path, text)
        return text

    def parallel_graph(self) -> ParallelGraph:
        """The PCG with parallelization as operators of its own, priced to the same step."""
        from ..parallel_graph.build import parallel_graph

        return parallel_graph(self)

    def verify(self, ranks: int | None = None, level: str = "threads") -> dict[str, Any]:
        """Run the program on local ranks beside the unsharded module: the same loss, gradients and weights?

        The module is the one that was planned, or is built as `model` says. Raises PartitaError where neither is known.
        """
        from ..verification.verify import verify

        return verify(self, ranks=ranks, level=level)

    def save(self, path: Path | str) -> None:
        """Write the plan to a `.json` file, or plan.json and program.py into a folder."""
        write_plan(self, path)

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        """Read what `save` wrote: a file, or a folder with plan.json. Raises PartitaError that says what is wrong."""
        return read_plan(path, cls.from_json)

    def to_json(self) -> dict[str, Any]:
        known = atoms(self.graph)
        return {
            "format": FORMAT,
            "model": self.model,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "micro_batches": self.micro_batches,
            "machine": self.machine.to_json(),
            "placement": [list(row) for row in self.placement.matrix],
            "choices": {node.name: choice_json(self, index, known) for index, node in enumerate(self.graph.nodes)},
            **({"recompute": dict(self.recompute)} if self.recompute else {}),
            **self._pipelined(),
            "report": self.report,
            "graph": graph_to_json(self.graph),
        }

    def _pipelined(self) -> dict[str, Any]:
        """What a file says of a stage of a pipeline only."""
        line = self.transfer
        several = {"in_flight": self.in_flight} if self.in_flight > 1 else {}
        return several | ({} if line is None else {"transfer": [line.latency_ns, line.ns_per_byte]})

    @classmethod
    def from_json(cls, data: Any, graph: PCG | None = None) -> Plan:
        """Read what `to_json` gave; `graph` is the plan's where that is known.

        Raises PartitaError that says what is wrong and where.
        """
        if isinstance(data, Mapping) and isinstance(kind := data.get("kind"), str):
            raise PartitaError(f"a plan of kind {kind!r:.40}: `partita.load_plan` reads pipelined ones")
        if not isinstance(data, Mapping) or "choices" not in data or "graph" not in data:
            raise PartitaError("not a plan")
        if data.get("format") != FORMAT:
            raise PartitaError(f"plan format {data.get('format')!r}; this version reads format {FORMAT}")
        graph = graph_from_json(data["graph"]) if graph is None else graph
        where = "the plan"
        try:
            matrix = tuple(tuple(whole(x) for x in row) for row in as_list(data["placement"]))
            placement = Placement(tuple(math.prod(row) for row in matrix), matrix)
            machine = Machine.from_json(data["machine"])
            chosen = data["choices"]
            if not isinstance(chosen, Mapping):
                raise ValueError("choices are not an object")
            unknown = sorted(chosen.keys() - {n.name for n in graph.nodes})
            if unknown:
                raise ValueError(f"choices name {unknown[0]!r}, which is no node of the graph")
            choices = []
            for index, node in enumerate(graph.nodes):
                where = f"the choice of {node.name!r}"
                choices.append(read_choice(graph, index, chosen[node.name]))
            where = "the plan"
            model, report = data["model"], data["report"]
            recompute = data.get("recompute", {})
            if not all(isinstance(part, Mapping) for part in (model, report, recompute)):
                raise ValueError("model, report and recompute are not all objects")
            return cls(
                graph,
                machine,
                placement,
                whole(data["micro_batches"]),
                tuple(choices),
                str(data["dtype"]),
                str(data["optimizer"]),
                dict(model),
                read_report(report),
                recompute=dict(recompute),
                in_flight=whole(data.get("in_flight", 1)),
                transfer=_line(data["transfer"]) if "transfer" in data else None,
            )
        except PartitaError:
            raise
        except KeyError as error:
            raise PartitaError(f"{where}: {error} is missing") from error
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise PartitaError(f"{where}: {error}") from error


def summary(plan: Plan | PipelinePlan, strategies: list[dict[str, Any]]) -> dict[str, Any]:
    """What is told of plans with and without a pipeline."""
    report = plan.report
    return {
        "model": plan.model.get("reference"),
        "machine": plan.machine.name,
        "devices": plan.ranks,
        "batch": plan.batch,
        "sequence": plan.model.get("sequence"),
        "dtype": plan.dtype,
        "optimizer": plan.optimizer,
        "micro_batches": plan.micro_batches,
        **{k: report.get(k) for k in ("status", "objective_ns", "bound_ns", "gap", "seconds")},
        "memory_bytes": report.get("memory_bytes"),
        "capacity_bytes": report.get("capacity_bytes", plan.machine.device.capacity_bytes),
        "mesh": dict(zip(plan.axes, plan.placement.sizes, strict=True)),
        "placement": [list(row) for row in plan.placement.matrix],
        "recompute": dict(plan.recompute),
        "strategies": strategies,
        "unsplit_flops": report.get("unsplit_flops"),
        "space": report.get("space"),
        "bundles": report.get("bundles", []),
        "without_bundles": report.get("without_bundles"),
        "rewritten": report.get("rewritten", []),
        "program": None,
    }


# Files


class Saved(Protocol):
    """What can be kept: plans with and without a pipeline."""

    def to_json(self) -> dict[str, Any]: ...

    def emit(self) -> str: ...


T = TypeVar("T")


def write_plan(plan: Saved, path: Path | str) -> None:
    """Write a plan to a `.json` file, or plan.json and program.py into a folder."""
    text = json.dumps(plan.to_json(), indent=1, allow_nan=False) + "\n"
    if Path(path).suffix == ".json":
        make_folder(Path(path).parent)
        write_atomically(path, text)
    else:
        write_directory(path, {"plan.json": text, "program.py": plan.emit()})


def read_plan(path: Path | str, read: Callable[[Any], T]) -> T:
    """What `read` makes of the JSON in a file, or in the plan.json of a folder; errors name the file."""
    source = Path(path)
    if source.is_dir():
        source = source / "plan.json"
    try:
        return read(read_json(source))
    except PartitaError as error:
        message = str(error)
        raise PartitaError(message if str(source) in message else f"{source}: {message}") from error


_NUMBERS = ("objective_ns", "bound_ns", "memory_bytes", "capacity_bytes")


def _line(data: Any) -> CollectivePrice:
    latency_ns, ns_per_byte = map(number, as_list(data))
    return CollectivePrice(latency_ns, ns_per_byte)


def read_report(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a search found, its numbers checked: they are told in words."""
    for name in _NUMBERS:
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
