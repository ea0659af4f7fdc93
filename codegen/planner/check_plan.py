"""`partita check`: run a user's plan on its model and validate it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.order import PlanConflict
from ...formulation.spacetime.site import raised_at, told
from ...model.capture.load import failure, has_small_twin, import_file, load_model
from ...model.errors import DoesNotFitError, PartitaError
from ...model.training import parse_batch_dim
from ...model.wording import MOST_LINES, cut
from ..plan.spacetime_plan import SpaceTimePlan, Write, graph, space_time
from .check_request import CheckRequest
from .named_model import constructor_values


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: a plan, or the conflicts that prevent one."""

    plan: SpaceTimePlan | None
    tasks: int
    conflicts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The output of `partita check --json`."""
        summary = self.plan.summary() if self.plan is not None else {}
        return {"ok": self.plan is not None, "tasks": self.tasks, "conflicts": list(self.conflicts)} | summary

    def __str__(self) -> str:
        if self.plan is not None:
            return str(self.plan)
        return "\n  ".join(("the plan cannot run; conflicts:", *cut(self.conflicts, MOST_LINES - 1)))


def check(request: CheckRequest) -> Checked:
    """Run a plan file on its model, and validate the plan.

    PartitaError: the file is not a plan. DoesNotFitError: the machine that is named has too little memory for it.
    """
    module = import_file(request.file)
    write = _function(module, request.file)
    constants = {name: _constant(module, request.file, name, kind) for name, kind in _CONSTANTS.items()}
    reference = request.model or constants["MODEL"]
    if reference is None:
        raise PartitaError(f"{request.file} defines no MODEL: give one with --model")
    devices = request.devices or constants["DEVICES"] or (request.machine.devices if request.machine else None)
    if devices is None:
        raise PartitaError(f"{request.file} defines no DEVICES: give --devices N")
    given = next((x for x in (request.small, constants["SMALL"]) if x is not None), None)
    small = request.model is None and has_small_twin(reference) if given is None else given
    sequence = request.sequence or constants["SEQUENCE"]
    built = load_model(reference, small=small, sequence=sequence)
    loss = request.loss or built.loss
    operators = graph(
        built.module,
        built.inputs,
        request.batch or constants["BATCH"],
        loss=loss,
        batch_dim=parse_batch_dim(request.batch_dim),
        allow_unknown=request.allow_unknown,
        statistics=request.statistics,
    )
    before = len(operators.ops)
    try:
        _run(write, operators, devices, request.file)
        plan = space_time(
            operators,
            request.machine,
            devices=devices,
            dtype=request.dtype,
            optimizer=request.optimizer or constants["OPTIMIZER"] or "adamw",
            model={"reference": reference, "small": small, "sequence": sequence},
        )
    except PlanConflict as conflict:
        return Checked(None, max(before, len(operators.ops)), conflict.conflicts)
    initial = constructor_values(reference, plan.pcg, small=small, sequence=sequence)
    return Checked(plan.beginning_with(initial), len(plan.program.tasks.ops))


_CONSTANTS: Mapping[str, type] = {
    "MODEL": str,
    "SMALL": bool,
    "SEQUENCE": int,
    "BATCH": int,
    "DEVICES": int,
    "OPTIMIZER": str,
}


def _function(module: ModuleType, file: Path) -> Write:
    found = getattr(module, "plan", None)
    if not callable(found):
        raise PartitaError(f"{file} has no function plan(graph, devices)")
    write: Write = found
    return write


def _constant(module: ModuleType, file: Path, name: str, kind: type) -> Any:
    value = getattr(module, name, None)
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is None or (count if kind is int else isinstance(value, kind)):
        return value
    raise PartitaError(f"{file}: {name} = {value!r} is no {'positive number' if kind is int else kind.__name__}")


def write_plan(file: Path, operators: Graph, devices: int) -> None:
    """Run the function of a plan file on the operators of a graph."""
    _run(_function(import_file(file), file), operators, devices, file)


def _run(write: Write, operators: Graph, devices: int, file: Path) -> None:
    """Run the user's function; an error in it names its line, and the primitive there."""
    try:
        write(operators, list(range(devices)))
    except PlanConflict:
        raise
    except DoesNotFitError:
        raise
    except PartitaError as error:
        raise PartitaError(told(raised_at(error), str(error))) from error
    except (Exception, SystemExit) as error:
        raise PartitaError(failure(f"{file}: its plan failed", error, file)) from error
