"""Memory of planned programs on ranks that are threads: predicted and measured.

Small twins that are large enough for tensors to outweigh what is not counted, on devices so slow, and with so little
memory, that they are split: by samples, by weights, fully sharded, into stages; each as planned, and with every segment
computed again. What a program takes at a time, whatever the model, is made as small as the twins are (`CONSTANTS`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor, nn

from ..codegen.plan.plan import PipelinePlan, Plan
from ..codegen.planner.plan_graph import plan_graph
from ..codegen.pricing.plan_price import plan_price
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.graph.layout import is_split
from ..model.graph.pcg import PCG
from ..model.graph.segments import MODES, segments
from ..model.machine.machine import Level, Machine
from ..model.training import Training
from ..model.zoo.registry import build
from ..solvers.budget import Budget
from .cases import Row, Tell
from .measure import Measured, measure

MIB = 2**20
CONSTANTS = {"BUCKET": 2**18, "PIECE": 2**14}
"""Bytes of a gradient message, and elements of a dropout's mask that are drawn at a time."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A model of the zoo in another size, and the samples of a step."""

    name: str
    sizes: tuple[tuple[str, int], ...]
    batch: int = 8


@dataclass(frozen=True, slots=True)
class PeakCase:
    """A problem for the planner; `tight`: with little memory, in tenths of what the fastest plan takes."""

    mesh: tuple[int, ...]
    micro_batches: int
    tight: bool = False
    stages: int = 1
    schedule: str = "1f1b"


def _twin(name: str, batch: int = 8, **sizes: int) -> Twin:
    return Twin(name, tuple(sizes.items()), batch)


TWINS = (
    _twin("gpt3-1.3b", sequence=256, layers=4, width=256, heads=8),
    _twin("bert-large", sequence=256, layers=4, width=256, heads=8, inner=1024),
    _twin("llama-7b", sequence=256, layers=4, width=256, heads=8, key_heads=8, inner=688),
    _twin("mbart-4.7b", 16, sequence=128, layers=4, width=192, heads=6),
    _twin("mixtral-8x7b", sequence=256, layers=3, width=192, heads=6, key_heads=3, inner=256, experts=4),
)
SPLITS = (
    PeakCase((1,), 1),
    PeakCase((1,), 4),
    PeakCase((2,), 2),
    PeakCase((2,), 2, tight=True),
    PeakCase((2, 2), 2, tight=True),
    PeakCase((2,), 4, stages=2),
    PeakCase((4,), 8, stages=4, schedule="zero-bubble"),
)
SMALL = (_twin("gpt3-1.3b", 4, sequence=128, layers=3, width=192, heads=6),)
SMALL_SPLITS = (PeakCase((2,), 2), PeakCase((2,), 2, tight=True), PeakCase((2,), 4, stages=2))


Case = tuple[Twin, PeakCase, str]


def cases(small: bool) -> list[Case]:
    """Every twin, with every split, in every mode of recomputation."""
    twins, splits = (SMALL, SMALL_SPLITS) if small else (TWINS, SPLITS)
    every = [(twin, split, mode) for twin in twins for split in splits for mode in MODES]
    return [case for case in every if case[2] == "none" or case[1].schedule == "1f1b"]  # nothing is split twice


def name_of(case: Case) -> str:
    """`llama-7b: 2x2, 2 micro-batches, tight, full`."""
    twin, split, mode = case
    mesh = "x".join(map(str, split.mesh))
    stages = f"{split.stages} stages" if split.schedule == "1f1b" else f"{split.stages} stages of {split.schedule}"
    words = [f"{mesh} in {stages}" if split.stages > 1 else mesh, f"{split.micro_batches} micro-batches"]
    words += ["tight"] if split.tight else []
    return f"{twin.name}: {', '.join([*words, mode])}"


def rows(cases: Sequence[Case], tell: Tell) -> list[Row]:
    """A row for each case; `of_plain` are shares of the same plan without recomputation."""
    took: dict[Case, list[Measured]] = {}

    def taken(case: Case) -> list[Measured]:
        if case not in took:
            tell(name_of(case))
            took[case] = measure(plan_of(case), module_of(case[0]), steps=0, constants=CONSTANTS)
        return took[case]

    result = []
    for case in cases:
        plain = (*case[:2], "none")
        result.append(_row(case, taken(case), plain, taken(plain)))
    return result


@cache
def module_of(twin: Twin) -> tuple[nn.Module, Mapping[str, Tensor]]:
    return build(twin.name, small=True, device="cpu", sizes=dict(twin.sizes))


@cache
def _graph(twin: Twin) -> PCG:
    return capture(*module_of(twin), batch=twin.batch, dropout="counters")  # on a CPU torch's own masks are floats


@cache
def planned(twin: Twin, split: PeakCase) -> Plan:
    """The plan without recomputation."""
    training = Training(twin.batch, "float32", "adamw")
    space = SearchSpace(
        mesh=split.mesh if split.stages == 1 else None,
        micro_batches=split.micro_batches,
        stages=split.stages,
        schedule=split.schedule,
        overlap=False,  # the memory of weights that travel ahead is not priced
    )
    budget = Budget(time_limit=60.0, gap=0.02)
    if not split.tight:
        return plan_graph(_graph(twin), slow(split.mesh), training, space, budget)
    fastest = planned(twin, replace(split, tight=False))
    for tenths in range(5, 10):
        try:
            return plan_graph(
                _graph(twin), slow(split.mesh, tenths * memory_bytes(fastest) / 10), training, space, budget
            )
        except PartitaError:
            continue
    return fastest


def slow(mesh: tuple[int, ...], memory: float | None = None) -> Machine:
    """Devices so slow that splitting pays."""
    device = Machine.adhoc((1,)).device
    device = replace(device, peak=dict.fromkeys(device.peak, 1e11), memory_bandwidth=1e11, launch_ns=0.0)
    if memory is not None:
        device = replace(device, memory_bytes=device.reserved_bytes + int(memory))
    return Machine("slow", tuple(Level(f"level{k}", n, 1e10, 0.0) for k, n in enumerate(mesh)), device)


def plan_of(case: Case) -> Plan:
    """The plan with every segment in the mode."""
    twin, split, mode = case
    plan = planned(twin, split)
    if isinstance(plan, PipelinePlan):
        return replace(plan, stages=tuple(_in_mode(stage, mode) for stage in plan.stages))
    return _in_mode(plan, mode)


def _in_mode(plan: Plan, mode: str) -> Plan:
    return replace(plan, recompute={} if mode == "none" else {s.name: mode for s in segments(plan.graph)})


def memory_bytes(plan: Plan) -> int:
    """What the fullest rank is predicted to take."""
    return max(stage.memory_bytes for stage in plan_price(plan).stages)


def _row(case: Case, took: Sequence[Measured], plain: Case, plain_took: Sequence[Measured]) -> Row:
    plan, most = plan_of(case), max(rank.peak_bytes for rank in took)
    memory = max((stage.memory for stage in plan_price(plan).stages), key=lambda found: sum(found.values()))
    kept = max(rank.kept_bytes for rank in took)
    return {
        "model": case[0].name,
        "plan": f"{name_of(case).partition(': ')[2]}; {_layout(plan)}",
        "predicted_mib": memory_bytes(plan) / MIB,
        "measured_mib": most / MIB,
        "predicted_kept_mib": (memory["activations"] + memory["weights"]) / MIB,
        "measured_kept_mib": kept / MIB if kept else None,
        "predicted_of_plain": memory_bytes(plan) / memory_bytes(plan_of(plain)),
        "measured_of_plain": most / max(rank.peak_bytes for rank in plain_took),
    }


def _layout(plan: Plan) -> str:
    """How weights are stored: `data=2, 100% of weights in parts`."""
    weights = [(p.graph.nodes[i].numel, p.choices[i]) for p in plan.parts for i in p.graph.of("parameter")]
    split = sum(n for n, choice in weights if any(map(is_split, choice.output)))
    axes = [f"{a}={n}" for a, n in zip(plan.parts[0].axes, plan.parts[0].placement.sizes, strict=True) if n > 1]
    return ", ".join([*axes, f"{split / sum(n for n, _ in weights):.0%} of weights in parts"])
