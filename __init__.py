"""Partita plans distributed training with solvers, proves the plan, and emits a readable program."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .moved import answer_old_names

if TYPE_CHECKING:
    from .codegen.plan.plan import PipelinePlan, Plan
    from .codegen.plan.plan_file import load_plan
    from .codegen.plan.spacetime_plan import SpaceTimePlan, graph, space_time
    from .codegen.planner.planner import optimize
    from .formulation.encoding.encode import strategy_network
    from .formulation.network.network import evaluate
    from .formulation.pipeline.orders import (
        Slot,
        chimera,
        gpipe,
        interlaced,
        interleaved,
        one_f_one_b,
        three_f_one_b,
        zero_bubble,
    )
    from .formulation.pipeline.schedule import Schedule, register_schedule
    from .formulation.spacetime.graph import Graph
    from .formulation.spacetime.primitives import (
        op_assign,
        op_join,
        op_order,
        op_trans,
        place,
        recompute,
        shard_gradients,
        split_backward,
        swap,
    )
    from .formulation.spacetime.stages import evenly, in_order, layers, passes, stages
    from .formulation.spacetime.transformation import (
        micro_batches,
        replicate,
        special,
        split,
        split_value,
        transformation,
    )
    from .model.capture.capture import capture
    from .model.errors import NoPlanError, PartitaError
    from .model.machine.machine import Machine
    from .solvers.protocol import Limits, solvers
    from .solvers.spacetime.schedule import schedule

__version__ = "0.1.0"
answer_old_names()

_NAMES = {
    ".codegen.plan.plan": "PipelinePlan Plan",
    ".codegen.plan.plan_file": "load_plan",
    ".codegen.plan.spacetime_plan": "graph space_time SpaceTimePlan",
    ".codegen.planner.planner": "optimize",
    ".formulation.encoding.encode": "strategy_network",
    ".formulation.network.network": "evaluate",
    ".formulation.pipeline.orders": "chimera gpipe interlaced interleaved one_f_one_b Slot three_f_one_b zero_bubble",
    ".formulation.pipeline.schedule": "register_schedule Schedule",
    ".formulation.spacetime.graph": "Graph",
    ".formulation.spacetime.primitives": (
        "op_assign op_join op_order op_trans place recompute shard_gradients split_backward swap"
    ),
    ".formulation.spacetime.stages": "evenly in_order layers passes stages",
    ".formulation.spacetime.transformation": "micro_batches replicate special split split_value transformation",
    ".model.capture.capture": "capture",
    ".model.errors": "NoPlanError PartitaError",
    ".model.machine.machine": "Machine",
    ".solvers.protocol": "Limits",
    ".solvers.spacetime.schedule": "schedule",
}
"""The public names by module; `solvers` is the package itself, which can be called (see there)."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Graph",
    "Limits",
    "Machine",
    "NoPlanError",
    "PartitaError",
    "PipelinePlan",
    "Plan",
    "Schedule",
    "Slot",
    "SpaceTimePlan",
    "__version__",
    "capture",
    "chimera",
    "evaluate",
    "evenly",
    "gpipe",
    "graph",
    "in_order",
    "interlaced",
    "interleaved",
    "layers",
    "load_plan",
    "micro_batches",
    "one_f_one_b",
    "op_assign",
    "op_join",
    "op_order",
    "op_trans",
    "optimize",
    "passes",
    "place",
    "recompute",
    "register_schedule",
    "replicate",
    "schedule",
    "shard_gradients",
    "solvers",
    "space_time",
    "special",
    "split",
    "split_backward",
    "split_value",
    "stages",
    "strategy_network",
    "swap",
    "three_f_one_b",
    "transformation",
    "zero_bubble",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import partita` stays quick."""
    if name == "solvers":
        return importlib.import_module(".solvers", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted(__all__)
