"""SuperScaler's Figures 12 to 15: the planner beside other systems, and what co-shard saves on one device.

Figure 12: Swin, GPT-3, mBART and AlphaFold2 at their four sizes, on 4 to 32 V100s, with the paper's batch (512;
AlphaFold2 128) and sequences (GPT-3 16,384 tokens). A system is a set of spaces (`SYSTEMS`), and its plan the fastest
of all of them, as the paper tunes every system: each search has the best step so far as its cutoff. So all are priced
alike, and so are their programs: none of them is slower for want of overlap or of fused kernels, as the real systems
may be.

    planner     the whole space without any option, with interlaced pipelines where tables crowd a stage, and 3F1B
    interlaced  interlaced pipelines alone, of stages with tensor parallelism in a node (mBART alone)
    3f1b        3F1B pipelines alone, of stages with data parallelism (AlphaFold2 alone)
    megatron    data, tensor and pipeline parallelism in every product of sizes; weights are whole
    alpa        stages of any inner mesh and layouts, as Alpa's two levels
    deepspeed   ZeRO-3 with tensor parallelism in a node; states on the host where nothing fits otherwise
    dap         DAP with data parallelism: positions are split, weights whole (AlphaFold2 alone)

The last four recompute no layer or every layer in full, whichever is faster.

`ratio` is a system's step by the shortest one of the first three, which the planner finds, and `gap` how far its own
may be above the optimum of its spaces. `compute`, `communicate` and `idle` are the parts of a step in which a device
computes, waits for messages, and has nothing to do, as means over all devices: of mBART the paper's Figure 15. Of the
paper's plans co-shard is not among them.

Figures 13 and 14 are `co_shard`'s.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from operator import itemgetter
from typing import Any

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_variants
from ..codegen.planner.variants import Variant, best_of, variants
from ..codegen.pricing.plan_price import plan_price
from ..formulation.parallelism import Parallelism
from ..formulation.pipeline.schedule import INTERLACED_PIPELINE, ONE_F_ONE_B, REPEATED
from ..formulation.placement.placement import divisors
from ..formulation.search_space import SearchSpace
from ..model.errors import DoesNotFitError, NoPlanError, PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.machine.machine_choice import MachineChoice
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.cache.store import store_in
from .cases import GIB, Row, Tell, captured, measured, sizes_of
from .co_shard import ALONE, SMALL_ALONE, measure_alone
from .whole import GAP, SUPERSCALER, V100S

SECONDS = 180.0
TOKENS = {"gpt3": 16384}
"""The paper's sequences where the zoo has others, by how the models' names begin."""
SHARES = ("compute", "communicate", "idle")
UNIFORM = ("none", "full")
"""How the other systems recompute: no layer, or every layer in full, whichever is faster."""


def megatron(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """Every product of sizes."""
    yield [
        SearchSpace(
            parallelism=Parallelism(dp=devices // (tp * stages), tp=tp, zero=0),
            stages=stages, recompute=recompute, offload=False, schedule=ONE_F_ONE_B.name,
        )
        for tp in sorted(divisors(devices))
        for stages in sorted(divisors(devices // tp))
        for recompute in UNIFORM
    ]  # fmt: skip


def alpa(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """The planner's stages and layouts, with uniform recomputation."""
    yield [SearchSpace(recompute=recompute, offload=False, schedule=ONE_F_ONE_B.name) for recompute in UNIFORM]


def deepspeed(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """Weights, gradients and states in shards over the ranks that share samples."""
    for offload in (False, True):
        yield [
            SearchSpace(
                parallelism=Parallelism(dp=devices // tp, tp=tp, zero=3),
                stages=1, recompute=recompute, offload=offload,
            )
            for tp in sorted(divisors(inner))
            for recompute in UNIFORM
        ]  # fmt: skip


def dap(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """Positions are split over some ranks, samples over the others."""
    yield [
        SearchSpace(
            parallelism=Parallelism(dp=devices // cp, tp=1, cp=cp, zero=0),
            stages=1, recompute=recompute, offload=False,
        )
        for cp in sorted(divisors(devices))
        for recompute in UNIFORM
    ]  # fmt: skip


def planner(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """Everything that a plan can have."""
    yield [SearchSpace()]


def interlaced(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """Tables on all devices, layers in stages, and in every stage tensor parallelism."""
    yield [
        SearchSpace(
            parallelism=Parallelism(dp=1, tp=tp, zero=0),
            stages=devices // tp, schedule=INTERLACED_PIPELINE.name,
        )
        for tp in sorted(divisors(inner), reverse=True)
        if tp < devices
    ]  # fmt: skip


def repeated(devices: int, inner: int) -> Iterator[Sequence[SearchSpace]]:
    """Micro-batches pass all stages several times; stages share samples, and layers are recomputed where that fits."""
    yield [
        SearchSpace(
            parallelism=Parallelism(dp=devices // stages, tp=1, zero=0),
            stages=stages, schedule=REPEATED.name,
        )
        for stages in sorted(divisors(devices))
        if stages > 1
    ]  # fmt: skip


Spaces = Callable[[int, int], Iterator[Sequence[SearchSpace]]]
SYSTEMS: Mapping[str, Spaces] = {
    "planner": planner,
    "interlaced": interlaced,
    "3f1b": repeated,
    "megatron": megatron,
    "alpa": alpa,
    "deepspeed": deepspeed,
    "dap": dap,
}
"""Groups of spaces, of all devices and of those in a node; one counts only where those before it have no plan."""
OURS = ("planner", "interlaced", "3f1b")
"""Those whose plans the planner finds."""
FAMILIES = {"interlaced": "mbart", "3f1b": "alphafold2", "dap": "alphafold2"}
"""The models of systems that are for some alone, by how their names begin."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a machine of so many nodes and GPUs in each, planned as a system does."""

    model: str
    hierarchy: tuple[int, ...]
    system: str
    small: bool = False
    batch: int | None = None
    sequence: int | None = None

    @property
    def setting(self) -> str:
        """The model and the machine."""
        return f"{self.model}{' small' if self.small else ''}, {prod(self.hierarchy)} V100"

    @property
    def name(self) -> str:
        return f"{self.setting}: {self.system}"


def _of_all_systems(model: str, hierarchy: tuple[int, ...], batch: int, small: bool = False) -> Iterator[Case]:
    for system in SYSTEMS:
        if model.startswith(FAMILIES.get(system, "")):
            tokens = None if small else TOKENS.get(model.partition("-")[0])
            yield Case(model, hierarchy, system, small, batch, tokens)


CASES = tuple(
    case
    for models in SUPERSCALER
    for model, hierarchy in zip(models, V100S, strict=True)
    for case in _of_all_systems(model, hierarchy, 128 if model.startswith("alphafold2") else 512)
)
SMALL = (*_of_all_systems("mlp", (1, 2), 8, small=True), Case("mbart-4.7b", (1, 2), "interlaced", True, 8))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every system of every case."""
    cases = (*SMALL, *SMALL_ALONE) if small else (*CASES, *ALONE)

    def rows_of(case: Any) -> Row:
        return {"rows": [measure(case)]} if isinstance(case, Case) else measure_alone(case)

    return with_ratios([row for found in measured(cases, only, tell, rows_of) for row in found["rows"]])


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """The rows, those of Figure 12 with their ratios to the planner's."""
    best = {case: row["step_s"] for case, row in _best_of_ours(rows).items()}
    return [row | {"ratio": _ratio(row["step_s"], best.get(row["case"]))} if "case" in row else row for row in rows]


def measure(case: Case) -> Row:
    """The row of one case, yet without its ratio."""
    found = _row(*_given(replace(case, system="")), SYSTEMS[case.system])
    return {"case": case.setting, "system": case.system, "ratio": None} | found


@lru_cache(maxsize=1)
def _given(case: Case) -> tuple[PCG, Machine, Training]:
    """What all systems plan."""
    machine = MachineChoice(machine="v100-32gb", hierarchy=case.hierarchy).load()
    graph, training = captured(case.model, machine, small=case.small, batch=case.batch, sequence=case.sequence)
    return graph, machine, training


def _best_of_ours(rows: Sequence[Row]) -> dict[str, Row]:
    """The row with the shortest step that the planner finds, by case."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.get("system") in OURS and row["step_s"] is not None:
            known = best.setdefault(row["case"], row)
            best[row["case"]] = min(known, row, key=itemgetter("step_s"))
    return best


def _ratio(step_s: float | None, best_s: float | None) -> float | None:
    return None if step_s is None or best_s is None else step_s / best_s


def _row(graph: PCG, machine: Machine, training: Training, spaces: Spaces) -> Row:
    row: Row = {"step_s": None, "gap": None, **dict.fromkeys(SHARES), "memory_gib": None, "plan": None, "why": ""}
    for group in spaces(machine.devices, machine.hierarchy[-1]):
        try:
            plan = _best_plan(graph, machine, training, group)
        except NoPlanError as error:
            return row | {"why": str(error)}
        except PartitaError as error:
            row["why"] = "does not fit" if isinstance(error, DoesNotFitError) else str(error)
            continue
        report = plan.report
        return row | {
            "step_s": report["objective_ns"] / 1e9,
            "gap": report["gap"],
            **shares(plan),
            "memory_gib": report["memory_bytes"] / GIB,
            "plan": sizes_of(plan),
            "why": "",
        }
    return row


def shares(plan: Plan) -> Row:
    """What a device computes, waits for messages, and idles: means over all devices, as shares of the step."""
    price = plan_price(plan)
    together = [] if price.shared is None else [price.shared] * plan.size
    everything, whole = [*price.stages, *together], plan.size * price.objective_ns
    busy = sum(stage.objective_ns for stage in everything) / whole
    computing = sum(stage.ns["compute"] for stage in everything) / whole
    return dict(zip(SHARES, (computing, busy - computing, 1 - busy), strict=True))


def _best_plan(graph: PCG, machine: Machine, training: Training, spaces: Sequence[SearchSpace]) -> Plan:
    """The fastest plan of these spaces. NoPlanError: none was found in time; PartitaError: there is none."""
    context, budget = Context(emits=False), Budget(gap=GAP, store=store_in("none"))

    def plan_some(
        together: Sequence[Variant], seconds: float | None, cutoff: int | None
    ) -> Sequence[Plan | PartitaError]:
        return plan_variants(graph, machine, together, replace(budget, time_limit=seconds), context, cutoff)

    every = [variant for space in spaces for variant in variants(graph, machine, training, space)]
    return best_of(every, SECONDS, GAP, plan_some)


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows of other systems with a plan, the least ratio, and those that beat the planner by more than its gap."""
    gaps = {case: row["gap"] for case, row in _best_of_ours(rows).items()}
    others = [row for row in rows if row.get("case") and row["system"] not in OURS and row["ratio"] is not None]
    return {
        "cases": len(gaps),
        "compared": len(others),
        "least_ratio": min((row["ratio"] for row in others), default=None),
        "faster": sum(row["ratio"] < 1 - (gaps[row["case"]] or 0) for row in others),
    }
