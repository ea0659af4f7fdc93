"""Plans: for every node of a graph its layouts on a mesh of a machine, in one stage or in several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...formulation.bundles.bundles import Bundle, find_bundles
from ...formulation.bundles.ranges import within
from ...formulation.pipeline.orders import Orders
from ...formulation.pipeline.schedule import ONE_F_ONE_B, Schedule, schedule_named
from ...formulation.placement.placement import Placement, of_rows
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.layout import Layout, is_split
from ...model.graph.pcg import PCG
from ...model.graph.stages import boundaries
from ...model.initial_values import InitialValues
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from .axis_names import axis_names
from .checks import check, check_pipeline
from .choice import Choice, joined_choice, letter_text
from .delegation import call
from .memo import varied

if TYPE_CHECKING:
    from torch import nn

    from ...model.capture.objective import Loss, TrainedModule
    from .delegation import Graph, Parallel, ParallelGraph, Stage


DIRECTION = "direction"
"""The axis of the two devices of every stage in a pipeline of two directions."""

Range: TypeAlias = tuple[int, int, int]
"""An axis, its first coordinate, and the one after the last."""


@dataclass(frozen=True)
class Plan:
    """One choice per node of `graph` (shapes at one micro-batch, global over ranks), checked: it can be run as it is.

    It is its own single stage (`stages`); a `PipelinePlan` has several, each of them a `Plan`. `model` says how to
    build the module again: reference, small, sequence, batch. `report` holds what the search found: status,
    objective_ns, bound_ns, gap, seconds, memory_bytes, capacity_bytes, space, unsplit_flops. `module` is the module
    that was planned, with its example inputs and loss, where the plan was made from one; it is not saved. `initial`
    says how weights begin. `recompute` names the segments (`model.graph.segments`) whose forward runs once more before
    their backward: `full`, `selective`, or `N parts`. `names` are those of the axes, where stages share them; not saved
    either. Of a stage of a pipeline, `in_flight` micro-batches are kept for backward at once, and `transfer` is the
    price of a message to the next stage. With `overlap` the program communicates while it computes; `together` names
    the layers whose weights travel in one message, each with the number of elements of its weights (of the whole layer
    where stages divide it; 0: each travels by itself), and the weights between layers, each with that of its message:
    all layers but the first hide that traffic. With `compile` the program compiles its blocks, and the kernels of
    layers are priced as fused. `rivals` are the next best plans that the search found, with other meshes, pipelines or
    numbers of micro-batches.
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
    module: TrainedModule | None = field(default=None, compare=False, repr=False)
    initial: InitialValues | None = None
    recompute: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    in_flight: int = 1
    transfer: CollectivePrice | None = None
    overlap: bool = True
    together: Mapping[str, int] = field(default_factory=dict)
    compile: bool = False
    rivals: tuple[Plan, ...] = field(default=(), compare=False, repr=False)

    schedule = ONE_F_ONE_B  # no fields here, since a single stage has nothing to order
    chunks = 1

    def __post_init__(self) -> None:
        check(self)

    @property
    def stages(self) -> tuple[Plan, ...]:
        """The plans of the stages: here itself."""
        return (self,)

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The stages, with common names of their axes."""
        return self.stages

    @property
    def everything(self) -> tuple[Plan, ...]:
        """The stages and, of an interlaced pipeline, what all devices compute together, with common names of axes."""
        return self.parts if self.shared is None else (*self.parts, replace(self.shared, names=self.axes))

    @property
    def shared(self) -> Plan | None:
        """The plan of what all devices of an interlaced pipeline compute together; None: this is none."""
        return None

    @property
    def lookup_stages(self) -> tuple[int, ...]:
        """The stages that read what all devices look up together."""
        return ()

    @property
    def shared_places(self) -> tuple[int, ...]:
        """Of an interlaced pipeline: where in the chain of stages those of all devices are.

        Look-ups come right before the stage that reads them, the scores and the loss at the end.
        """
        return ()

    @property
    def cut(self) -> PCG:
        """The graph that is cut into the stages: all of it, or what its schedule makes of it (`cut_graph`)."""
        return self.graph

    @property
    def cut_nodes(self) -> tuple[int, ...]:
        """The index in the whole graph of every node of that graph."""
        return tuple(range(len(self.graph.nodes)))

    @property
    def bounds(self) -> tuple[int, ...]:
        """The boundaries of the graph between which the stages lie."""
        return 0, len(boundaries(self.graph)) - 1

    @property
    def shares(self) -> tuple[int, ...]:
        """The devices of every stage, if stages have unequally many; else none."""
        return ()

    @property
    def size(self) -> int:
        """How many parts the devices are divided into: more than one in a pipeline."""
        return 1

    @property
    def hides_messages(self) -> bool:
        """True if messages between stages travel while the stages compute."""
        return self.overlap and self.machine.hides_messages

    @property
    def ranks(self) -> int:
        return self.placement.devices

    @property
    def batch(self) -> int:
        """Samples in one step: over all ranks and micro-batches."""
        return self.graph.batch * self.micro_batches

    @cached_property
    def orders(self) -> Orders:
        """For every coordinate of the pipeline its slots in order."""
        return self.schedule.orders(self.size, self.chunks, self.micro_batches)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """A name for every mesh axis, by what it mostly splits: data, tensor, sequence."""
        return self.names or axis_names(len(self.placement.sizes), ((self.graph, self.choices),))

    @property
    def bundles(self) -> dict[int, Bundle]:
        """The bundles whose branches run in parallel, by the node that joins them."""
        every = find_bundles(self.graph)
        return {b.join: b for b in every if len(self._choice(b.join).joins) == len(b.branches) + 1}

    @cached_property
    def joined(self) -> dict[int, int]:
        """The nodes that join parallel branches, each with the axis that these are on."""
        return {i: self._choice(join).joins[0] for join, bundle in self.bundles.items() for i in bundle.joining}

    def joining(self, node: int) -> Choice:
        """The choice of a node; of one that joins parallel branches as if it read these as it gives its result."""
        choice, axis = self.choices[node], self.joined.get(node)
        return choice if axis is None else joined_choice(self.graph, node, choice, axis)

    @cached_property
    def range_of(self) -> dict[int, Range]:
        """The nodes inside of branches that have several coordinates of an axis, with these."""
        found: dict[int, Range] = {}
        for join, bundle in self.bundles.items():
            (axis, *places), shares = self.choices[join].joins, self.choices[join].shares
            for branch, start, share in zip(bundle.branches, places, shares or (1,) * len(places), strict=True):
                if share > 1:
                    found |= dict.fromkeys((*branch.nodes, *branch.weights), (axis, start, start + share))
        return found

    @cached_property
    def ranges(self) -> dict[Range, Plan]:
        """The plans of what is on such a range of coordinates, on a mesh of which the axis has only these."""
        return {one: self._on(*one) for one in sorted({*self.range_of.values()})}

    def at(self, node: int) -> Plan:
        """The plan on whose mesh a node is computed: this one, or that of its range of coordinates."""
        return self.ranges[self.range_of[node]] if node in self.range_of else self

    def _on(self, axis: int, start: int, stop: int) -> Plan:
        part = within(self.machine, self.placement, axis, stop - start)
        if part is None:
            name = self.graph.nodes[next(i for i, one in self.range_of.items() if one == (axis, start, stop))].name
            raise PartitaError(f"node {name!r}: axis {axis} lies on several levels, or on no switch: it has no ranges")
        names = tuple(f"{name}_{start}_{stop}" if a == axis else name for a, name in enumerate(self.axes))
        bare = tuple(replace(choice, beside=(), joins=(), shares=()) for choice in self.choices)
        computed = ("axes", "range_of", "ranges", "joined")
        return varied(self, computed, machine=part[0], placement=part[1], choices=bare, names=names, recompute={})

    @property
    def separate_states(self) -> bool:
        """True if accumulated gradients or optimizer states lie elsewhere than the weights, or have another dtype."""
        choices = (choice for stage in self.stages for choice in stage.choices)
        return precision(self.dtype).copied or any(c.sharded_gradients or c.offloaded for c in choices)

    def layout_text(self, node: int, layout: Layout) -> str:
        """A layout in words of this plan's axes: `data:S(0) tensor:P`, `@1` at coordinate 1; R is left out."""
        words = [letter_text(atoms(self.graph)[node], letter) for letter in layout]
        for axis, coordinate in self._choice(node).beside:
            _, start, stop = self.range_of.get(node, (axis, coordinate, coordinate + 1))
            split = f" {words[axis]}" if is_split(layout[axis]) else ""
            words[axis] = f"@{start}" if stop == start + 1 else f"@{start}..{stop - 1}{split}"
        return " ".join(f"{a}:{word}" for a, word in zip(self.axes, words, strict=True) if word != "R") or "R"

    def _choice(self, node: int) -> Choice:
        if self.size > 1:
            raise PartitaError("the choices of a pipelined plan are those of its stages: ask one of `plan.stages`")
        return self.choices[node]

    def __str__(self) -> str:
        return str(call("describe", self))

    def summary(self) -> dict[str, Any]:
        """What `partita plan --json` prints; `program` is known where the plan is saved."""
        result: dict[str, Any] = call("summary", self)
        return result

    def emit(self, path: Path | str | None = None) -> str:
        """The program as text; also written to `path` if given."""
        how = "emit" if self.size == 1 else "emit_by_operators" if self.schedule.by_operators else "emit_pipeline"
        text = str(call(how, self))
        if path is not None:
            call("write", path, text)
        return text

    def verify(
        self,
        ranks: int | None = None,
        level: str = "threads",
        *,
        module: nn.Module | None = None,
        inputs: Any = None,
        loss: Loss = None,
    ) -> dict[str, Any]:
        """Train the program on local ranks and the unsharded module, and compare losses, gradients and weights.

        The module is the one that is given with its example inputs, the one that was planned, or the one that `model`
        says how to build. Raises PartitaError where none is known.
        """
        result: dict[str, Any] = call("verify", self, ranks=ranks, level=level, module=module, inputs=inputs, loss=loss)
        return result

    def parallelize(self, module: nn.Module, *, local: bool = False, loss: Loss = None) -> Parallel:
        """Let this rank of a running job train its part of a live module, which is changed in place.

        `module(...)` then returns the loss over the whole batch. With `local`, each rank gives the samples that it
        reads. Raises PartitaError where the module is not as planned, or where a loop of its own cannot run the plan.
        """
        result: Parallel = call("parallelize", self, module, local=local, loss=loss)
        return result

    def parallel_graph(self) -> ParallelGraph:
        """The PCG with parallel operators, priced to the same step. PartitaError: the plan is a pipeline."""
        graph: ParallelGraph = call("parallel_graph", self)
        return graph

    def space_time_graph(self) -> Graph:
        """The plan as `op_trans`, `op_assign` and `in_order` would have written it, to change and check again.

        `partita.space_time(graph, machine)` checks it. PartitaError: a choice that these primitives cannot express.
        """
        graph: Graph = call("space_time_graph", self)
        return graph

    def save(self, path: Path | str) -> None:
        """Write the plan to a `.json` file, or plan.json and program.py into a folder."""
        call("save", self, path)

    @staticmethod
    def load(path: Path | str) -> Plan:
        """Read what `save` wrote: a file, or a folder with plan.json. Raises PartitaError that says what is wrong."""
        plan: Plan = call("load", path)
        return plan

    def to_json(self) -> dict[str, Any]:
        """Everything but the module and the names of axes."""
        result: dict[str, Any] = call("plan_to_json", self)
        return result

    @staticmethod
    def from_json(data: Any) -> Plan:
        """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
        plan: Plan = call("plan_from_json", data)
        return plan


@dataclass(frozen=True)
class PipelinePlan(Plan):
    """A plan of several stages, checked: they fit each other and the machine, and can be run as they are.

    `graph` is the whole (shapes at one micro-batch); stage i is what lies between boundaries `bounds[i]` and
    `bounds[i + 1]` (`model.graph.stages`), counted in the order of the model. `row` is the pipeline's factor on every
    level of the machine: with p = prod(row), stage i runs on the devices of coordinate i % p, planned as a machine of
    their own (`stage_machine`). `schedule` is the order of their work (a name is looked up), `chunks` the number
    of stages a device has. `placement` is the mesh of all ranks, the pipeline's axis outermost; it and the other fields
    without an argument follow from the stages, which have the `choices`. Of an interlaced pipeline, `shared` is the
    plan on all devices of what they compute together. The stages are cut from what the schedule makes of the graph
    (`formulation.pipeline.cut_graph`): the layers of an interlaced pipeline, or the folded passes of a repeated one. In
    a pipeline of two directions a stage has two devices, on the first axis of its mesh, which no other stage has there:
    stage i those of coordinates i and p - 1 - i (`Schedule.devices_of`). `shares`: the devices of every stage, side by
    side, where stages have unequally many, each with a mesh of its own; `row` is then empty, and the mesh of all ranks
    one axis.
    """

    row: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()
    stages: tuple[Plan, ...] = ()
    schedule: Schedule = ONE_F_ONE_B
    chunks: int = 1
    shared: Plan | None = None
    shares: tuple[int, ...] = ()
    placement: Placement = field(init=False)
    micro_batches: int = field(init=False)
    choices: tuple[Choice, ...] = field(init=False, default=())
    dtype: str = field(init=False)
    optimizer: str = field(init=False)
    recompute: Mapping[str, str] = field(init=False)
    _: KW_ONLY  # else these would precede `row`
    model: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    module: TrainedModule | None = field(default=None, compare=False, repr=False)
    initial: InitialValues | None = None
    names: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    in_flight: int = 1
    transfer: CollectivePrice | None = None
    overlap: bool = field(init=False)
    together: Mapping[str, int] = field(default_factory=dict)
    compile: bool = field(init=False)
    rivals: tuple[Plan, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", schedule_named(self.schedule))
        call("check_by_operators", self)
        check_pipeline(self)
        first = self.stages[0]
        shared = {name: getattr(first, name) for name in ("micro_batches", "dtype", "optimizer", "overlap", "compile")}
        recompute = {name: mode for stage in self.stages for name, mode in stage.recompute.items()}
        inner = first.placement.matrix[self.schedule.directions - 1 :]
        mesh = of_rows((self.machine.hierarchy,) if self.shares else (self.row, *inner))
        for name, value in (shared | {"recompute": recompute, "placement": mesh}).items():
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        return len(self.shares) or math.prod(self.row)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        if self.shares:
            return ("device",)
        stages = [(stage.graph, stage.choices) for stage in self.stages]
        names = axis_names(len(self.stages[0].placement.sizes), stages)
        return ("pipeline", *names[self.schedule.directions - 1 :])

    @property
    def cut(self) -> PCG:
        return self._cut.graph

    @property
    def cut_nodes(self) -> tuple[int, ...]:
        return self._cut.nodes

    @cached_property
    def _cut(self) -> Stage:
        made: Stage = call("cut", self)
        return made

    @property
    def lookup_stages(self) -> tuple[int, ...]:
        return tuple(number for number, stage in enumerate(self.stages) if stage.graph.of("from_all"))

    @property
    def shared_places(self) -> tuple[int, ...]:
        last = len(self.stages) + len(self.lookup_stages)
        return (*(stage + before for before, stage in enumerate(self.lookup_stages)), last)

    @cached_property
    def parts(self) -> tuple[Plan, ...]:
        if self.shares:
            return self.stages
        both = (DIRECTION,) * (self.schedule.directions - 1)
        return tuple(replace(plan, names=(*both, *self.axes[1:])) for plan in self.stages)
