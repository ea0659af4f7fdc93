"""SuperScaler's Figures 13 and 14: what co-shard saves on one device, beside recomputation and offloading.

One V100, one sample, Swin of growing width and GPT-3 1.3B on growing sequences. `recompute` and `co-shard` are
hand-written plans, in which layers are recomputed whole, or heads and hidden units in four parts one after the other.
`offload` is the planner's, which recomputes layers whole and keeps states on the host where that is needed. What does
not fit has no step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..codegen.plan.spacetime_plan import graph as by_hand
from ..codegen.plan.spacetime_plan import space_time
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..formulation.spacetime.primitives import op_assign
from ..formulation.spacetime.remedies import Change, co_sharded, recomputed
from ..model.capture.capture import capture
from ..model.errors import DoesNotFitError
from ..model.graph.batch import with_batch
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.machine.machine_choice import MachineChoice
from ..model.training import Training
from ..model.zoo import build, entry
from ..solvers.budget import Budget
from ..solvers.cache.store import store_in
from .cases import GIB, Row
from .whole import GAP


@dataclass(frozen=True, slots=True)
class Alone:
    """A model of some sizes on one device; `figure` of the paper."""

    figure: int
    model: str
    sizes: Mapping[str, Any]
    small: bool = False

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items() if name != "heads")
        return f"figure {self.figure}: {self.model}, {sizes}"


ALONE = (
    *(Alone(13, "swin-1.8b", {"width": width, "heads": 16}) for width in (128, 256, 384, 448)),
    *(Alone(14, "gpt3-1.3b", {"sequence": length}) for length in (4096, 6144, 8192, 10240, 12288)),
)
SMALL_ALONE = (Alone(14, "gpt3-1.3b", {"sequence": 32}, small=True),)


def measure_alone(case: Alone) -> Row:
    """The rows of a model on one device, with one sample."""
    machine = MachineChoice(machine="v100-32gb", hierarchy=(1, 1)).load()
    known = entry(case.model)
    training = Training(1, known.dtype, known.optimizer)
    pcg = with_batch(capture(*build(case.model, small=case.small, sizes=case.sizes), batch=2), 1)
    parameters = sum(pcg.nodes[i].numel for i in pcg.of("parameter"))
    about = {"figure": case.figure, "model": case.name.partition(": ")[2], "parameters_b": parameters / 1e9}
    found = {
        "recompute": _by_hand(pcg, machine, training, partial(recomputed, devices=[0])),
        "co-shard": _by_hand(pcg, machine, training, partial(co_sharded, devices=[0])),
        "offload": _offloaded(pcg, machine, training),
    }
    return {"rows": [about | {"system": system} | row for system, row in found.items()]}


def _by_hand(pcg: PCG, machine: Machine, training: Training, change: Change) -> Row:
    graph = by_hand(pcg)
    for op in graph.forward:
        op_assign(op, 0)
    change(graph)
    plan = space_time(graph, machine.without_memory_limit(), dtype=training.dtype, optimizer=training.optimizer)
    return _row(plan.prediction.step_ns, plan.prediction.peak_bytes[0], machine)


def _offloaded(pcg: PCG, machine: Machine, training: Training) -> Row:
    space = SearchSpace(recompute="full", micro_batches=1, stages=1, offload=True)
    try:
        plan = plan_graph(pcg, machine, training, space, Budget(gap=GAP, store=store_in("none")), Context(emits=False))
    except DoesNotFitError:
        return {"step_s": None, "memory_gib": None, "fits": False}
    return _row(plan.report["objective_ns"], plan.report["memory_bytes"], machine)


def _row(step_ns: int, memory_bytes: int, machine: Machine) -> Row:
    fits = memory_bytes <= machine.device.capacity_bytes
    return {"step_s": step_ns / 1e9 if fits else None, "memory_gib": memory_bytes / GIB, "fits": fits}
