"""Which cases of a benchmark are run, and their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..solvers.budget import UNLIMITED, Budget

T = TypeVar("T")


class Named(Protocol):
    """A case."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def chosen(cases: Iterable[T], only: Sequence[str], name: Callable[[T], str], what: str = "case") -> list[T]:
    """The cases with one of the texts `only` in their name, all without any. PartitaError: none is left."""
    kept = [case for case in cases if not only or any(text in name(case) for text in only)]
    if not kept:
        raise PartitaError(f"no {what} has {' or '.join(only)} in its name")
    return kept


def each(cases: Sequence[N], tell: Callable[[str], None]) -> Iterator[N]:
    """The cases one by one, told when their turn comes."""
    for number, case in enumerate(cases, 1):
        tell(f"{number} of {len(cases)}: {case.name}")
        yield case


def plan_of_one_stage(
    graph: PCG,
    machine: Machine,
    training: Training,
    space: SearchSpace,
    budget: Budget = UNLIMITED,
    model: dict[str, Any] | None = None,
) -> Plan:
    """The plan of a space without pipelines."""
    made = plan_graph(graph, machine, training, space, budget, Context(model or {}))
    assert made.size == 1
    return made
