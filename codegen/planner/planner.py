"""From a model to a plan: what `partita plan` and `partita.optimize` run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...formulation.rewriting.rules import rules_for
from ...formulation.rewriting.saturation_limits import SaturationLimits
from ...formulation.search_space import SearchSpace, Start, parse_stages
from ...formulation.substitution.rule import Rule
from ...model.errors import PartitaError
from ...model.garbage_collection import seldom_collected
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.machine.machine_choice import MachineChoice
from ...model.training import BatchDim, Training, dtype_names
from ...solvers.budget import Budget
from ...solvers.cache.store import Store, store_in
from ..plan.plan import Plan
from .context import Context, Tell, print_progress
from .named_model import captured, captured_module, constructor_values
from .problem import check_early
from .worst_case import check_comparable, plan_for_all

if TYPE_CHECKING:
    from torch import nn

    from ...model.capture.objective import Loss


@seldom_collected()
def plan(
    reference: str,
    choice: MachineChoice,
    given: Mapping[str, Any],
    space: SearchSpace,
    budget: Budget,
    *,
    small: bool = False,
    save_network: Path | None = None,
    progress: Tell | None = None,
) -> Plan:
    """Plan a model by its name or `file.py:factory`; `given` are the fields of `Training` that are not the model's own.

    Of several machines, for the worst. PartitaError: unknown names, or a model that fits no placement. NoPlanError:
    none was found in time.
    """
    machines = choice.load_all()
    check_comparable(machines)
    graph, training, context = prepared(reference, machines[0], given, space, budget, small=small, progress=progress)
    return plan_for_all(graph, machines, training, space, budget, replace(context, save_network=save_network))


def prepared(
    reference: str,
    machine: Machine,
    given: Mapping[str, Any],
    space: SearchSpace,
    budget: Budget,
    *,
    small: bool = False,
    progress: Tell | None = None,
) -> tuple[PCG, Training, Context]:
    """Capture a named model: its graph, its training, and what plans say of it; see `plan`."""
    from ...model.capture.objective import GIVEN, mode_of
    from ...model.zoo import entry, zoo

    start = time.monotonic()
    if not reference.strip():
        raise PartitaError("the model's name is empty")
    known = entry(reference) if reference in zoo() else None
    own: dict[str, Any] = {"batch": 16}
    if known is not None:
        batch = known.default_batch(small, machine.devices)
        own = {"batch": batch, "dtype": known.dtype, "optimizer": known.optimizer}
    training = Training(**(own | dict(given)))
    check_early(machine, training, space)
    budget.backend()
    context = Context({}, None, progress, start=start)
    context.tell(f"capturing {reference}")
    graph, built = captured(reference, training, small=small)
    sequence = training.sequence
    if sequence is None and known is not None:
        sequence = known.small_sequence if small else known.sequence
    model = {"reference": reference, "small": small, "sequence": sequence, "batch": training.batch}
    model["mode"] = mode_of(built.module)
    model |= {"loss": GIVEN} if callable(built.loss) and not training.loss else {}
    context.tell("recording how its weights begin")
    initial = constructor_values(reference, graph, small=small, sequence=training.sequence)
    return graph, training, replace(context, model=model, initial=initial)


def optimize(
    module: nn.Module,
    inputs: Any,
    machine: Machine | str | Sequence[Machine | str],
    *,
    batch: int | None = None,
    dtype: str | Sequence[str] = "float32",
    optimizer: str = "adamw",
    mesh: Sequence[int] | None = None,
    mapping: str | None = None,
    micro_batches: int | None = None,
    solver: str = "auto",
    time_limit: float | None = None,
    gap: float = 0.0,
    fix: Mapping[str, str] | None = None,
    allow_unknown: bool = True,
    statistics: str = "batch",
    dropout: str = "torch",
    loss: Loss = None,
    batch_dim: BatchDim = None,
    rewrite: bool | str | Sequence[Rule] = False,
    saturation: SaturationLimits | None = None,
    cache: Store | Path | str | None = None,
    stages: int | str = "auto",
    unequal_stages: bool = False,
    schedule: str | Sequence[str] = "auto",
    chunks: int = 1,
    executor: Executor | None = None,
    workers: int | None = None,
    overlap: bool = True,
    compile: bool = False,
    recompute: str = "auto",
    offload: bool | None = None,
    joint: Sequence[str] = (),
    progress: Tell | bool | None = None,
    start: object = None,
    loosen: str | Sequence[str] = (),
) -> Plan:
    """Plan the training of a module.

    `inputs` are example inputs (a tuple, or a dict of keywords) whose dim 0 counts samples, or `batch_dim` (an int, or
    a dict by the names of inputs, None for those without samples); `batch` is the global batch of a step (default: the
    example's). Of several machines, the plan is the best for the worst. `loss` says what of the module's output is
    trained where it is not the only scalar, nor named `loss`: a function of the output, or "projection", to check a
    module without loss. The other keywords are the fields of `Training`, `SearchSpace` and `Budget`, as the command
    line takes them: `dtype` and `schedule` may name several, of which the fastest is chosen; `stages` is a number or
    "auto". `rewrite`: choose among all rewritings of the graph too, by the planner's rules (True), by these and the
    generated ones ("all"), or by those given if they are proved. `cache`: the folder where solved networks are kept,
    "none", or None for the usual one (`PARTITA_CACHE`). `start`: a partial plan to complete, as a value or a file, but
    for what is `loosen`ed (names or patterns). `progress`: True prints to standard error, or a function that
    takes words and `Progress`. Raises PartitaError for what cannot be captured or fits no placement, NoPlanError where
    the time or an interrupt ended the search before any plan was found.
    """
    from ...model.capture.objective import GIVEN, TrainedModule, mode_of

    began = time.monotonic()
    tell = print_progress if progress is True else progress or None
    given = [machine] if isinstance(machine, Machine | str) else machine
    machines = [one if isinstance(one, Machine) else Machine.load(one) for one in given]
    if not machines:
        raise PartitaError("no machine is given")
    check_comparable(machines)
    samples = None if batch is None else max(batch, 2)
    graph, initial = captured_module(
        module,
        inputs,
        batch=samples,
        allow_unknown=allow_unknown,
        statistics=statistics,
        dropout=dropout,
        loss=loss,
        batch_dim=batch_dim,
    )
    training = Training(
        batch or graph.batch,
        dtype_names(dtype),
        optimizer,
        statistics=statistics,
        dropout=dropout,
        loss=loss if isinstance(loss, str) else None,
        allow_unknown=allow_unknown,
    )
    space = SearchSpace(
        mesh=None if mesh is None else tuple(mesh),
        mapping=mapping,
        offload=offload,
        fix=tuple((fix or {}).items()),
        micro_batches=micro_batches,
        stages=parse_stages(stages),
        unequal_stages=unequal_stages,
        schedule=schedule if isinstance(schedule, str) else ",".join(schedule),
        chunks=chunks,
        overlap=overlap,
        compile=compile,
        recompute=recompute,
        joint=tuple(joint),
        rules=rules_for(rewrite),
        saturation=saturation or SaturationLimits(),
        start=None if start is None and not loosen else Start(start, loosen),
    )
    budget = Budget(
        solver=solver, time_limit=time_limit, gap=gap, workers=workers, executor=executor, store=store_in(cache)
    )
    model = {"reference": None, "batch": training.batch, "mode": mode_of(module)}
    model |= {"loss": GIVEN} if callable(loss) else {}
    built = TrainedModule(module, inputs, loss)
    context = Context(model, built, tell, start=began, initial=initial)
    return plan_for_all(graph, machines, training, space, budget, context)
