"""A plan: a graph, where its mesh lies, and for every node the layouts that it asks and offers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..formulation.domain import least_values
from ..formulation.placement import Placement
from ..formulation.row import Row
from ..formulation.special import lies_apart
from ..formulation.strategy import rows
from ..model.atoms import Atoms, atoms
from ..model.cost import precision
from ..model.errors import PartitaError
from ..model.files import make_folder, read_json, write_atomically, write_directory
from ..model.layout import B, Layout, P, R, S, atom_of, is_split, splittable
from ..model.machine import Machine, number, whole
from ..model.pcg import PCG, SOURCES
from ..model.sparse import check_optimizer, sparse_tables
from ..model.updates import updated

if TYPE_CHECKING:
    from torch import nn

    from .program.axes import Group

FORMAT = 1
OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan does with one node.

    `inputs` are the layouts that the operator asks of its inputs, `output` the one that it offers. A tensor with
    `shared` is converted once from `output` to `shared`, and from there to what each consumer asks. `regather`: the
    converted weight is not kept for backward but converted again there. `sharded_states`: gradient and optimizer
    states of a weight are split over the axes on which it is stored at B (ZeRO-1).
    """

    inputs: tuple[Layout, ...]
    output: Layout
    shared: Layout | None = None
    regather: bool = False
    sharded_states: bool = False

    @property
    def given(self) -> Layout:
        """The layout from which consumers convert."""
        return self.output if self.shared is None else self.shared


@dataclass(frozen=True)
class Plan:
    """One choice per node of `graph` (shapes at one micro-batch, global over ranks), checked: it can be run as it is.

    `model` says how to build the module again: reference, small, sequence, batch. `report` holds what the search found:
    status, objective_ns, bound_ns, gap, seconds, memory_bytes, capacity_bytes, space, unsplit_flops. `module` is the
    module that was planned, with its example inputs, where the plan was made from one; it is not saved.
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
        from .program.names import axis_names

        return axis_names(self)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The axes, and those that sum gradients together, with the programs of their collectives."""
        from .program.axes import groups

        return groups(self)

    def layout_text(self, node: int, layout: Layout) -> str:
        """A layout in words of this plan's axes: `data:S(0) tensor:P`; R is left out."""
        known = atoms(self.graph)[node]
        parts = [f"{a}:{letter_text(known, x)}" for a, x in zip(self.axes, layout, strict=True) if x != R]
        return " ".join(parts) or "R"

    def summary(self) -> dict[str, Any]:
        """What `partita plan --json` prints; `program` is known where the plan is saved."""
        report = self.report
        return {
            "model": self.model.get("reference"),
            "machine": self.machine.name,
            "devices": self.ranks,
            "batch": self.batch,
            "sequence": self.model.get("sequence"),
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "micro_batches": self.micro_batches,
            **{k: report.get(k) for k in ("status", "objective_ns", "bound_ns", "gap", "seconds")},
            "memory_bytes": report.get("memory_bytes"),
            "capacity_bytes": report.get("capacity_bytes", self.machine.device.capacity_bytes),
            "mesh": dict(zip(self.axes, self.placement.sizes, strict=True)),
            "placement": [list(row) for row in self.placement.matrix],
            "strategies": [
                {
                    "name": node.name,
                    "operator": node.op,
                    "layouts": [
                        *(self.layout_text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True)),
                        self.layout_text(index, choice.output),
                    ],
                }
                for index, (node, choice) in enumerate(zip(self.graph.nodes, self.choices, strict=True))
            ],
            "unsplit_flops": report.get("unsplit_flops"),
            "space": report.get("space"),
            "program": None,
        }

    def __str__(self) -> str:
        from .describe import describe

        return describe(self)

    def emit(self, path: Path | str | None = None) -> str:
        """The program as text; also written to `path` where one is given."""
        from .program.emit import emit

        text = emit(self)
        if path is not None:
            write_atomically(path, text)
        return text

    def verify(self, ranks: int | None = None, level: str = "threads") -> dict[str, Any]:
        """Run the program on local ranks beside the unsharded module: the same loss, gradients and weights?

        The module is the one that was planned, or is built as `model` says. Raises PartitaError where neither is known.
        """
        from .verification.verify import verify

        return verify(self, ranks=ranks, level=level)

    def save(self, path: Path | str) -> None:
        """Write the plan to a `.json` file, or plan.json and program.py into a folder."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        if Path(path).suffix == ".json":
            make_folder(Path(path).parent)
            write_atomically(path, text)
        else:
            write_directory(path, {"plan.json": text, "program.py": self.emit()})

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        """Read what `save` wrote: a file, or a folder with plan.json. Raises PartitaError that says what is wrong."""
        source = Path(path)
        if source.is_dir():
            source = source / "plan.json"
        try:
            return cls.from_json(read_json(source))
        except PartitaError as error:
            message = str(error)
            raise PartitaError(message if str(source) in message else f"{source}: {message}") from error

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
            "choices": {node.name: _choice_json(self, index, known) for index, node in enumerate(self.graph.nodes)},
            "report": self.report,
            "graph": self.graph.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
        if not isinstance(data, Mapping) or "choices" not in data or "graph" not in data:
            raise PartitaError("not a plan")
        if data.get("format") != FORMAT:
            raise PartitaError(f"plan format {data.get('format')!r}; this version reads format {FORMAT}")
        graph = PCG.from_json(data["graph"])
        where = "the plan"
        try:
            matrix = tuple(tuple(whole(x) for x in row) for row in _list(data["placement"]))
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
                choices.append(_choice(graph, index, chosen[node.name]))
            where = "the plan"
            model, report = data["model"], data["report"]
            if not isinstance(model, Mapping) or not isinstance(report, Mapping):
                raise ValueError("model and report are not objects")
            return cls(
                graph,
                machine,
                placement,
                whole(data["micro_batches"]),
                tuple(choices),
                str(data["dtype"]),
                str(data["optimizer"]),
                dict(model),
                _report(report),
            )
        except PartitaError:
            raise
        except KeyError as error:
            raise PartitaError(f"{where}: {error} is missing") from error
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise PartitaError(f"{where}: {error}") from error


# Checks


def check(plan: Plan) -> None:
    """Raise PartitaError unless the plan can be run: its machine has the ranks, choices are legal, no rank is empty."""
    precision(plan.dtype)  # known?
    if plan.optimizer not in OPTIMIZERS:
        raise PartitaError(f"optimizer {plan.optimizer!r} is none of {', '.join(OPTIMIZERS)}")
    if plan.micro_batches < 1:
        raise PartitaError(f"{plan.micro_batches} micro-batches")
    if plan.placement.hierarchy != plan.machine.hierarchy:
        raise PartitaError(f"placement {plan.placement.matrix} does not fit a machine of {plan.machine.hierarchy}")
    if len(plan.choices) != len(plan.graph.nodes):
        raise PartitaError(f"{len(plan.choices)} choices for {len(plan.graph.nodes)} nodes")
    known = atoms(plan.graph)
    sizes, changed = [found.sizes for found in known], updated(plan.graph)
    fitting: set[tuple[tuple[int, ...], Layout]] = set()  # equal layers ask the same again and again
    for index, (node, choice) in enumerate(zip(plan.graph.nodes, plan.choices, strict=True)):
        if len(choice.inputs) != (0 if node.op in SOURCES else len(node.inputs)):
            raise PartitaError(f"node {node.name!r}: {len(choice.inputs)} input layouts for {len(node.inputs)} inputs")
        for i, layout in zip((index, index, *node.inputs), (choice.output, choice.given, *choice.inputs), strict=True):
            if (sizes[i], layout) not in fitting:
                _check_layout(plan, node.name, sizes[i], layout)
                fitting.add((sizes[i], layout))
        legal = {(row.inputs, row.output): row for row in rows(plan.graph, index)}
        for axis, size in enumerate(plan.placement.sizes):
            row = tuple(x[axis] for x in choice.inputs), choice.output[axis]
            if size > 1 and row not in legal:
                letters = [letter_text(known[i], x) for i, x in zip(node.inputs, row[0], strict=True)]
                offered = letter_text(known[index], row[1])
                raise PartitaError(
                    f"node {node.name!r} ({node.op}): no strategy from ({', '.join(letters)}) to {offered}, axis {axis}"
                )
        taken = [
            legal.get((tuple(x[a] for x in choice.inputs), choice.output[a]), Row((), R))
            for a in range(len(plan.placement.sizes))
        ]
        if not lies_apart(taken, choice.inputs, choice.output, plan.placement.sizes):
            raise PartitaError(f"node {node.name!r} ({node.op}): its special strategies do not go together")
        alone = node.op == "local_batch_norm"
        if alone and least_values(known[node.inputs[0]], choice.inputs[0], plan.placement.sizes) < 2:
            raise PartitaError(f"node {node.name!r}: a rank has a single value of a channel to normalize")
        if index in changed and plan.choices[changed[index][0]].inputs[changed[index][1]] != choice.given:
            raise PartitaError(f"node {node.name!r} is updated in another layout than the one it is stored in")
        if node.op != "parameter" and (choice.regather or choice.sharded_states):
            raise PartitaError(f"node {node.name!r} is no parameter: regather and sharded_states do not apply")
    _check_sparse(plan)


def _check_sparse(plan: Plan) -> None:
    """Tables with sparse gradients are read as they are stored."""
    check_optimizer(plan.graph, plan.optimizer)
    for table in sparse_tables(plan.graph):
        choice = plan.choices[table]
        readers = (plan.choices[i].inputs[0] for i in plan.graph.consumers[table])
        if any(layout != choice.output for layout in (choice.given, *readers)) or choice.regather:
            name = plan.graph.nodes[table].name
            raise PartitaError(f"the gradient of {name!r} is sparse: it cannot be converted from how it is stored")


def _check_layout(plan: Plan, name: str, items: tuple[int, ...], layout: Layout) -> None:
    """`items`: how many of each atom the tensor has."""
    sizes = plan.placement.sizes
    if len(layout) != len(sizes):
        raise PartitaError(f"node {name!r}: a layout of {len(layout)} letters on a mesh of {len(sizes)} axes")
    splits: dict[int, tuple[int, ...]] = {}
    for letter, size in zip(layout, sizes, strict=True):
        if is_split(letter):
            a = atom_of(letter)
            if a >= len(items):
                raise PartitaError(f"node {name!r}: atom {a} of a tensor with {len(items)} atoms")
            splits[a] = (*splits.get(a, ()), size)
    for a, parts in splits.items():
        if not splittable(items[a], parts):
            raise PartitaError(f"node {name!r}: {items[a]} items split by {parts} leave a rank empty")


# JSON


def letter_text(known: Atoms, letter: int) -> str:
    """`R`, `B`, `P`, `S(1)`, or `S(1.0)` where dim 1 is a product of atoms and its outermost is split."""
    if not is_split(letter):
        return "RBP"[letter]
    dim, position = known.dim_of(atom_of(letter))
    return f"S({dim}.{position})" if len(known.dims[dim]) > 1 else f"S({dim})"


def _letter(known: Atoms, text: Any) -> int:
    if text in ("R", "B", "P"):
        return {"R": R, "B": B, "P": P}[text]
    for a in range(len(known.sizes)):
        if text == letter_text(known, S(a)):
            return S(a)
    raise ValueError(f"{text!r} is no letter of a tensor with dims {known.dims}")


def _choice_json(plan: Plan, index: int, known: tuple[Atoms, ...]) -> dict[str, Any]:
    node, choice = plan.graph.nodes[index], plan.choices[index]

    def text(i: int, layout: Layout) -> list[str]:
        return [letter_text(known[i], x) for x in layout]

    result: dict[str, Any] = {
        "inputs": [text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True)],
        "output": text(index, choice.output),
    }
    if choice.shared is not None:
        result["shared"] = text(index, choice.shared)
    for flag in ("regather", "sharded_states"):
        if getattr(choice, flag):
            result[flag] = True
    return result


def _choice(graph: PCG, index: int, data: Any) -> Choice:
    known = atoms(graph)
    node = graph.nodes[index]
    extra = sorted(data.keys() - {"inputs", "output", "shared", "regather", "sharded_states"})
    if extra:
        raise ValueError(f"{extra[0]!r} is not a field of a choice")
    asked = _list(data["inputs"])
    if len(asked) != len(node.inputs):
        raise ValueError(f"{len(asked)} input layouts for {len(node.inputs)} inputs")
    choice = Choice(
        tuple(tuple(_letter(known[i], x) for x in _list(layout)) for i, layout in zip(node.inputs, asked, strict=True)),
        tuple(_letter(known[index], x) for x in _list(data["output"])),
    )
    if "shared" in data:
        choice = replace(choice, shared=tuple(_letter(known[index], x) for x in _list(data["shared"])))
    flags = {flag: data.get(flag, False) for flag in ("regather", "sharded_states")}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise ValueError(f"{flags} are not all true or false")
    return replace(choice, **flags)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.60} is not a list")
    return value


_NUMBERS = ("objective_ns", "bound_ns", "memory_bytes", "capacity_bytes")


def _report(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a search found, its numbers checked: they are told in words."""
    for name in _NUMBERS:
        if data.get(name) is not None:
            number(data[name])
    if data.get("objective_ns") is not None and data.get("bound_ns") is None:
        raise ValueError("the report has an objective without a bound")
    if not isinstance(data.get("gap") or 0, int | float):
        raise ValueError(f"gap {data['gap']!r:.60} is not a number")
    return dict(data)
