"""Planning with hidden traffic beside planning without: time, gap, and what hiding is worth.

Every transformer of the zoo on 64 GPUs, on meshes of two and three axes, with memory that does not bind and with a
share of what the best additive plan takes. Both searches end within the gap `GAP`, one after the other in this process,
and their seconds are those of formulating and solving. `additive_ns` is the additive plan's step with what hides taken
off, where it has room for the copies of prefetching: a plan of the search's space, so that no bound is above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.plan.plan import Plan
from ..codegen.pricing.plan_price import plan_price
from ..formulation.encoding.overlap import weights_together
from ..formulation.search_space import SearchSpace
from ..formulation.strategies.tensor_classes import classes
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.machine.precision import precision
from ..model.training import Training
from ..solvers.budget import Budget
from .cases import GIB, Row, Tell, captured, measured, plan_of_one_stage
from .plan import AMPLE, with_available

GAP, SECONDS = 0.01, 600.0
SHARES = (0.6, 0.4)
"""Of the memory of the best additive plan; less than any plan needs is not measured."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a mesh, with so many micro-batches."""

    model: str
    mesh: tuple[int, ...]
    nodes: int = 8
    micro_batches: int = 4
    small: bool = False
    shares: tuple[float, ...] = SHARES

    @property
    def name(self) -> str:
        return f"{self.model} {'x'.join(map(str, self.mesh))}"


MODELS = (
    *("bert-large", "gpt2", "gpt3-1.3b", "gpt3-15b", "llama-7b", "llama-70b", "llama-405b", "mixtral-8x7b"),
    *("mbart-4.7b", "mbart-32b", "swin-1.8b", "swin-30b", "alphafold2-87m", "gpt-1008b"),
)
CASES = tuple(Case(model, mesh) for model in MODELS for mesh in ((8, 8), (4, 4, 4)))
SMALL = (Case("gpt2", (2, 4), nodes=1, micro_batches=2, small=True, shares=(0.6,)),)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """The rows of every case: free memory, and shares of what that takes."""
    measure(SMALL[0])  # loads what both searches need
    return [row for rows in measured(SMALL if small else CASES, only, tell, measure) for row in rows["rows"]]


def measure(case: Case) -> Row:
    """The rows of one case."""
    machine = Machine.load("dgx-h100", nodes=case.nodes)
    graph, training = captured(case.model, machine, small=case.small)
    free = _compared(case, graph, with_available(machine, AMPLE), training)
    found = [{"memory": "free"} | free]
    for share in case.shares if free["memory_gib"] is not None else ():
        bytes_ = int(share * free["memory_gib"] * GIB)
        found.append({"memory": f"{share:.0%}"} | _compared(case, graph, with_available(machine, bytes_), training))
    return {"rows": [{"case": case.name} | row for row in found]}


def _compared(case: Case, graph: PCG, machine: Machine, training: Training) -> Row:
    row: Row = dict.fromkeys(("additive_s", "seconds", "ratio", "gap", "step_ns", "additive_ns", "memory_gib"))
    space = SearchSpace(mesh=case.mesh, micro_batches=case.micro_batches, stages=1)
    limits = Budget(time_limit=SECONDS, gap=GAP)
    try:
        additive = plan_of_one_stage(graph, machine, training, replace(space, overlap=False), limits)
        row |= {"additive_s": _seconds(additive), "memory_gib": additive.report["memory_bytes"] / GIB}
        made = plan_of_one_stage(graph, machine, training, space, limits)
    except PartitaError as error:
        return row | {"why": str(error)}
    report = made.report
    row |= {"seconds": _seconds(made), "ratio": _seconds(made) / row["additive_s"], "gap": report["gap"]}
    return row | {"step_ns": report["objective_ns"], "additive_ns": _hidden(additive, machine), "why": ""}


def _seconds(plan: Plan) -> float:
    return float(plan.report["seconds"]["formulate"] + plan.report["seconds"]["solve"])


def _hidden(plan: Plan, machine: Machine) -> int | None:
    """The step (ns) of an additive plan if its layers hide traffic; None if it has no room for that."""
    itemsize = precision(plan.dtype).itemsize("float32")
    together = weights_together(plan.graph, classes(plan.graph), SearchSpace(), itemsize)
    price = plan_price(replace(plan, overlap=True, together=together))
    return price.objective_ns if price.memory_bytes <= machine.device.capacity_bytes else None


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows with a plan, those within the gap, the largest gap and ratio of seconds, and additive plans below a step."""
    planned = [row for row in rows if row["gap"] is not None]
    return {
        "cases": len(planned),
        "within_gap": sum(row["gap"] <= GAP for row in planned),
        "largest_gap": max((row["gap"] for row in planned), default=None),
        "largest_ratio": max((row["ratio"] for row in planned), default=None),
        "below": sum(
            row["additive_ns"] is not None and row["additive_ns"] < row["step_ns"] * (1 - row["gap"]) for row in planned
        ),
    }
