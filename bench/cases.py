"""The cases of a benchmark, chosen by name; models of the zoo captured and planned for them."""

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import build, entry
from ..solvers.budget import UNLIMITED, Budget

GIB = 2**30

Row: TypeAlias = dict[str, Any]
Tell: TypeAlias = Callable[[str], None]
"""Prints what is measured next."""

T = TypeVar("T")
_NAME: Callable[[Any], str] = attrgetter("name")


def chosen(cases: Iterable[T], only: Sequence[str], name: Callable[[T], str] = _NAME, what: str = "case") -> list[T]:
    """The cases with one of the texts `only` in their name, all without any. PartitaError: none is left."""
    kept = [case for case in cases if not only or any(text in name(case) for text in only)]
    if not kept:
        raise PartitaError(f"no {what} has {' or '.join(only)} in its name")
    return kept


def each(
    cases: Iterable[T], only: Sequence[str], tell: Tell, name: Callable[[T], str] = _NAME, what: str = "case"
) -> Iterator[T]:
    """The chosen cases one by one, each announced when its turn comes."""
    kept = chosen(cases, only, name, what)

    def announced() -> Iterator[T]:
        for number, case in enumerate(kept, 1):
            tell(f"{number} of {len(kept)}: {name(case)}")
            yield case

    return announced()


def measured(
    cases: Iterable[T],
    only: Sequence[str],
    tell: Tell,
    measure: Callable[[T], Row],
    name: Callable[[T], str] = _NAME,
    what: str = "case",
) -> list[Row]:
    """A row for each of the chosen cases, reported as soon as it is measured; garbage is collected after each."""
    rows = []
    for case in each(cases, only, tell, name, what):
        rows.append(measure(case))
        tell(json.dumps(rows[-1]))
        gc.collect()
    return rows


def captured(
    model: str,
    machine: Machine,
    *,
    small: bool = False,
    batch: int | None = None,
    sequence: int | None = None,
    layers: int | None = None,
) -> tuple[PCG, Training]:
    """The graph of a model of the zoo, and its own training; None: the model's own batch, sequence or depth."""
    known = entry(model)
    batch = batch or known.default_batch(small, machine.devices)
    module, inputs = build(model, small=small, sequence=sequence, sizes={} if layers is None else {"layers": layers})
    return capture(module, inputs, batch=max(batch, 2)), Training(batch, known.dtype, known.optimizer)


def plan_of_one_stage(
    graph: PCG,
    machine: Machine,
    training: Training,
    space: SearchSpace,
    budget: Budget = UNLIMITED,
    start: float | None = None,
) -> Plan:
    """The plan of a space without pipelines; its seconds count from `start`, from now by default."""
    context = Context() if start is None else Context(start=start)
    made = plan_graph(graph, machine, training, space, budget, context)
    assert made.size == 1
    return made


def sizes_of(plan: Plan) -> str:
    """The sizes of a plan's parallelism, its micro-batches, and how many layers it recomputes."""
    axes = " ".join(f"{name}{size}" for name, size in zip(plan.axes, plan.placement.sizes, strict=True) if size > 1)
    modes = f", {len(plan.recompute)} recomputed" if plan.recompute else ""
    return f"{axes or 'one rank'}, k={plan.micro_batches}{modes}"


def seconds_of(report: Row, *parts: str) -> Row:
    """Columns of seconds from a report of the planner."""
    return {f"{part}_s": float(report["seconds"][part]) for part in parts}
