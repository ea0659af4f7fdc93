"""Planners' plans of the zoo's small twins as space-time plans: converted, priced and trained.

`step` and `memory`: what is predicted of the converted plan, divided by what the planner predicts. `offloaded` has the
states of all weights on the host, though memory is no reason for it. A plan that does not
convert has the refusal instead; `verifies` is whether the program of the converted plan trains as the model does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ..codegen.plan.plan import PipelinePlan, Plan
from ..codegen.plan.spacetime_plan import space_time
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..codegen.pricing.plan_price import plan_price
from ..formulation.parallelism import Parallelism
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.capture.load import load_module
from ..model.capture.objective import TrainedModule
from ..model.errors import PartitaError
from ..model.graph.sparse_tables import sparse_tables
from ..model.machine.machine import Machine, stage_machine
from ..model.training import Training
from ..solvers.budget import Budget
from .cases import Row, Tell, measured

MODELS = (
    "mlp", "candle-uno", "dlrm", "xdl", "resnext-50", "inception-v3", "bert-large", "gpt2", "llama-7b", "mixtral-8x7b",
    "swin-1.8b", "mbart-4.7b", "alphafold2-87m",
)  # fmt: skip
BATCH, STEPS = 16, 2


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is parallelized on so many GPUs of a DGX A100."""

    name: str
    devices: int
    space: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    hosted: bool = False  # states are on the host, though memory is no reason for it
    optimizer: str = "adamw"
    statistics: str = "batch"

    def searched(self) -> SearchSpace:
        one: dict[str, Any] = {"stages": 1, "bundles": False, "offload": False, "recompute": "none"}
        return SearchSpace(**one | self.space)


def _pipeline(schedule: str, **more: Any) -> dict[str, Any]:
    alone = Parallelism(dp=1, tp=1)
    return {"parallelism": alone, "stages": 2, "micro_batches": 4, "schedule": schedule, **more}


WAYS = (
    Way("one GPU", 1, {"micro_batches": 1}),
    Way("data", 4, {"parallelism": Parallelism(dp=4, zero=0), "micro_batches": 1}),
    Way("ZeRO-1", 4, {"parallelism": Parallelism(dp=4, zero=1), "micro_batches": 1}),
    Way("ZeRO-2", 4, {"parallelism": Parallelism(dp=4, zero=2), "micro_batches": 2}),
    Way("ZeRO-3", 4, {"parallelism": Parallelism(dp=4, zero=3), "micro_batches": 2}),
    Way("recomputed", 4, {"parallelism": Parallelism(dp=4, zero=3), "micro_batches": 2, "recompute": "full"}),
    Way("selective", 4, {"parallelism": Parallelism(dp=4, zero=3), "micro_batches": 2, "recompute": "selective"}),
    Way("tensor", 4, {"parallelism": Parallelism(tp=4), "micro_batches": 1}),
    Way("2x2", 4, {"parallelism": Parallelism(dp=2, tp=2, zero=0), "micro_batches": 1}, "mixed-bfloat16"),
    Way("free", 4, {"mesh": (2, 2), "micro_batches": 2, "recompute": "full"}),
    Way("bundles", 4, {"mesh": (2, 2), "micro_batches": 1, "bundles": True}),
    Way("offloaded", 4, {"parallelism": Parallelism(dp=4, zero=1), "micro_batches": 1}, hosted=True),
    Way("offloaded, whole", 2, {"micro_batches": 2, "mesh": (2,)}, "mixed-bfloat16", hosted=True),
    Way("1F1B", 2, _pipeline("1f1b")),
    Way("1F1B recomputed", 2, _pipeline("1f1b", recompute="full")),
    Way("eager 1F1B offloaded", 2, _pipeline("eager-1f1b"), hosted=True),
    Way("1F1B 2x2", 4, _pipeline("1f1b", parallelism=Parallelism(dp=2, tp=1, zero=3))),
    Way("GPipe", 2, _pipeline("gpipe")),
    Way("eager 1F1B", 2, _pipeline("eager-1f1b")),
    Way("eager 1F1B selective", 2, _pipeline("eager-1f1b", recompute="selective")),
    Way("2x2 selective", 4, {"mesh": (2, 2), "micro_batches": 2, "recompute": "selective"}),
    Way("interleaved", 2, _pipeline("interleaved", chunks=2)),
    Way("zero-bubble", 2, _pipeline("zero-bubble")),
    Way("interlaced", 2, _pipeline("interlaced")),
    Way("Chimera", 2, _pipeline("chimera")),
)


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    way: Way

    @property
    def name(self) -> str:
        return f"{self.model} {self.way.name}"


CASES = tuple(Case(model, way) for model, way in product(MODELS, WAYS))
SMALL = tuple(case for case in CASES if case.model == "mlp" and case.way.name in ("data", "1F1B"))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan, convert, price and train every case."""
    return measured(SMALL if small else CASES, only, tell, measure)


def measure(case: Case, verified: bool = True) -> Row:
    """The row of one case; `refused` says why the model has no such plan, or why it does not convert."""
    row: Row = {"case": case.name, "step": None, "memory": None, "verifies": None, "refused": ""}
    try:
        plan = planned(case)
    except PartitaError as error:
        return row | {"refused": f"no plan: {_words(error)}"}
    try:
        made = space_time(
            plan.space_time_graph(), plan.machine, dtype=plan.dtype, optimizer=plan.optimizer, module=plan.module
        )
    except PartitaError as error:
        return row | {"refused": _words(error)}
    cost = plan_price(plan)
    row["step"] = made.prediction.step_ns / cost.objective_ns
    row["memory"] = max(made.prediction.peak_bytes) / cost.memory_bytes
    if verified:
        verdict = made.verify(steps=STEPS)
        row |= {"verifies": verdict["ok"], "refused": "" if verdict["ok"] else str(verdict["failure"])}
    return row


def planned(case: Case, seconds: float = 60) -> Plan:
    """The planner's plan of a case, searched for so many seconds. PartitaError: there is none."""
    module, inputs = load_module(case.model, small=True, device="cpu")
    graph = capture(module, inputs, batch=BATCH, dropout="counters", statistics=case.way.statistics)
    machine = stage_machine(Machine.load("dgx-a100", nodes=1), (1, 8 // case.way.devices))
    training = Training(BATCH, dtype=case.way.dtype, optimizer=case.way.optimizer)
    budget = Budget(workers=1, time_limit=seconds)
    context = Context(module=TrainedModule(module, inputs, None), emits=False)
    plan = plan_graph(graph, machine, training, case.way.searched(), budget, context)
    return on_host(plan) if case.way.hosted else plan


def on_host(plan: Plan) -> Plan:
    """The plan with the states of all weights on the host."""
    if isinstance(plan, PipelinePlan):
        return replace(plan, stages=tuple(map(on_host, plan.stages)))
    trained = {i for i in plan.graph.of("parameter") if plan.graph.nodes[i].gradient} - {*sparse_tables(plan.graph)}
    return replace(plan, choices=tuple(replace(c, offloaded=i in trained) for i, c in enumerate(plan.choices)))


def _words(error: PartitaError) -> str:
    return str(error).splitlines()[0]


def totals(rows: Sequence[Row]) -> dict[str, int]:
    priced = [row for row in rows if row["step"] is not None]
    return {
        "converted": len(priced),
        "of": sum(not row["refused"].startswith("no plan") for row in rows),
        "priced equal": sum(row["step"] == 1 for row in priced),
        "verified": sum(row["verifies"] is True for row in priced),
    }
