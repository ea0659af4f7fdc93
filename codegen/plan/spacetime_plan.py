"""Space-time plans: user-written plans, validated, materialized, predicted and emitted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.looped import Looped
from ...formulation.spacetime.materialized import Materialized
from ...formulation.spacetime.predict import Prediction, predict
from ...formulation.spacetime.tasks import ranks
from ...model.errors import PartitaError
from ...model.graph.batch import with_batch
from ...model.graph.pcg import PCG
from ...model.graph.sparse_tables import check_optimizer
from ...model.initial_values import InitialValues
from ...model.machine.machine import Machine
from ...model.training import dtype_name
from .delegation import call
from .over_memory import does_not_fit
from .spacetime_file import text_of
from .spacetime_program import Programs, emitted, one_by_one

if TYPE_CHECKING:
    from torch import nn

    from ...model.capture.objective import Loss, TrainedModule

Write: TypeAlias = Callable[[Graph, Sequence[int]], Any]
"""A user's plan function: transforms, assigns and orders the operators of a graph on devices."""


def graph(
    model: nn.Module | PCG,
    inputs: Any = None,
    batch: int | None = None,
    *,
    loss: Loss = None,
    **options: Any,
) -> Graph:
    """The operators of a module or captured graph, for a plan to transform, assign and order.

    `inputs`, `loss` and `options` (`batch_dim` and more) are those of `capture`; `batch`: samples of a whole step.
    User-defined transformations are proved before they are applied. Raises PartitaError if the module cannot be
    captured or is not supported.
    """
    from ...solvers.spacetime.prove import prover

    if isinstance(model, PCG):
        return Graph(model if batch is None else with_batch(model, batch), prover)
    from ...model.capture.capture import capture
    from ...model.capture.objective import TrainedModule

    captured = capture(model, inputs, loss=loss, **{"dropout": "counters", **options})
    made = Graph(captured if batch is None else with_batch(captured, batch), prover)
    made.module = TrainedModule(model, inputs, loss)
    return made


@dataclass(frozen=True)
class SpaceTimePlan:
    """A validated plan on a machine: its ordered tasks with their communication.

    `model`: how to rebuild the module (reference, small, sequence). `module`: the module with its example inputs and
    loss, if the plan was made from one; not saved. `expanded`: makes the program of a loop's micro-batches one by one.
    """

    looped: Looped
    machine: Machine
    dtype: str = "float32"
    optimizer: str = "adamw"
    model: Mapping[str, Any] = field(default_factory=dict)
    module: TrainedModule | None = field(default=None, compare=False, repr=False)
    initial: InitialValues | None = None
    expanded: Callable[[], Looped] | None = field(default=None, compare=False, repr=False)

    @property
    def program(self) -> Materialized:
        """Its program; of a plan with a loop, that of the template."""
        return self.looped.program

    @property
    def pcg(self) -> PCG:
        return self.looped.pcg

    @property
    def batch(self) -> int:
        return self.pcg.batch

    @property
    def ranks(self) -> int:
        return len(self.program.devices)

    @cached_property
    def prediction(self) -> Prediction:
        """Predicted times of tasks and transfers, and memory."""
        return predict(self.looped, self.machine, self.dtype, self.optimizer)

    def beginning_with(self, initial: InitialValues | None) -> SpaceTimePlan:
        """The plan with these initial values of weights."""
        made = replace(self, initial=initial)
        made.__dict__["prediction"] = self.prediction  # it does not depend on them
        return made

    def summary(self) -> dict[str, Any]:
        """Summary for JSON: times in ns, memory in bytes."""
        found = self.prediction
        return {
            "model": self.model.get("reference"),
            "machine": self.machine.name,
            "devices": self.ranks,
            "batch": self.batch,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "tasks": self.looped.tasks,
            "step_ns": found.step_ns,
            "memory_bytes": max(found.peak_bytes),
            "capacity_bytes": self.machine.device.capacity_bytes if self.machine.limited else None,
            "bubble": found.bubble,
        }

    def __str__(self) -> str:
        found = self.summary()
        model, capacity = found["model"] or "a module", found["capacity_bytes"]
        dtype = "" if self.dtype == "float32" else f", in {self.dtype}"
        room = f", of {capacity / 2**20:,.1f} MiB" if capacity else "; no machine was named that limits it"
        return "\n".join(
            (
                f"{model}, batch {found['batch']}{dtype}, on {self.ranks} devices of {self.machine.name}",
                f"tasks         {found['tasks']}",
                f"step          {found['step_ns'] / 1e6:.3f} ms predicted, devices idle {found['bubble']:.1%} of it",
                f"memory        {found['memory_bytes'] / 2**20:.1f} MiB on the fullest device{room}",
                *([one_by_one(self.looped.irregular)] if self.looped.irregular else []),
            )
        )

    def source(self) -> str:
        """The program's source text, deterministic."""
        options = {"dtype": self.dtype, "optimizer": self.optimizer, "initial": self.initial}
        return emitted(self.looped, self.expanded, str(self).splitlines(), options)

    def emit(self, path: Path | str) -> None:
        """Write the program, which needs only torch."""
        call("write", path, self.source())

    def trace(self, path: Path | str) -> None:
        """Write the predicted step as a timeline for Perfetto."""
        call("write", path, self._timeline())

    def _timeline(self) -> str:
        return json.dumps(call("space_time_timeline", self.prediction), allow_nan=False) + "\n"

    def save(self, folder: Path | str, written: str = "") -> None:
        """Save the program, the user's plan file (`written`) and the timeline in a folder."""
        files: dict[str, Any] = {
            "program.py": self.source(),
            "plan.json": text_of(
                {"model": dict(self.model), "summary": self.summary(), "optimizer": self.optimizer, "words": str(self)},
                self.pcg, self.initial,
            ),
            "trace.json": self._timeline(),
        }  # fmt: skip
        files |= self.initial.files() if self.initial else {}
        call("write_folder", folder, files | ({"plan.py": written} if written else {}))

    def verify(self, level: str = "threads", steps: int = 3, *, timeout: float = 600.0) -> dict[str, Any]:
        """Train the program and the module and compare them, as `partita verify` does. Needs `module`."""
        result: dict[str, Any] = call("verify", self, level=level, steps=steps, timeout=timeout)
        return result


def space_time(
    graph: Graph,
    machine: Machine | None = None,
    *,
    devices: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adamw",
    communication: str = "rvd",
    model: Mapping[str, Any] | None = None,
    module: TrainedModule | tuple[nn.Module, Any] | None = None,
) -> SpaceTimePlan:
    """Validate, order and materialize the plan that the operators of `graph` form; `dtype` as for `partita.optimize`.

    `module`: what `verify` trains beside the program, with example inputs; None: what the graph was captured from.
    Raises PartitaError for an optimizer that cannot apply sparse gradients, PlanConflict, a PartitaError, with the
    smallest conflicting set of orders and dependencies, and DoesNotFitError if a device of `machine` has too little
    memory. Without a machine, the devices are A100s with all the memory that the plan needs;
    `machine.without_memory_limit()` is a machine that refuses nothing.
    """
    from ...model.capture.initial import values_of
    from ...model.capture.objective import TrainedModule

    count = ranks(graph) if devices is None else devices
    if machine is None:
        machine = Machine.adhoc((count,)).without_memory_limit()
    dtype = dtype_name(dtype)  # reject unknown names first
    check_optimizer(graph.pcg, optimizer)
    if count > machine.devices:
        raise PartitaError(f"the plan is for {count} devices, {machine.name} has {machine.devices}")

    programs = Programs(machine, count, communication, dtype)
    program = programs.of(graph)
    expanded = programs.later(graph) if program.loop else None  # the caller may change the graph
    known = graph.module if module is None else TrainedModule(*module)
    initial = values_of(known[0], graph.pcg.originals) if known else None
    made = SpaceTimePlan(
        program,
        machine,
        dtype,
        optimizer,
        model or {},
        module=known,
        initial=initial,
        expanded=expanded,
    )
    if machine.limited and made.prediction.too_full:

        def predicted(changed: Graph) -> Prediction:
            return predict(programs.of(changed), machine, dtype, optimizer)

        raise does_not_fit(made.prediction, predicted, graph)
    return made
