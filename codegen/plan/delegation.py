"""Methods of plans that other modules implement.

A plan is a value: what writes, emits, verifies or describes it imports it. Its methods find these functions by name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what they return
    from ...formulation.spacetime.graph import Graph as Graph
    from ...model.graph.stages import Stage as Stage
    from ..live.parallel import Parallel as Parallel
    from ..parallel_graph.graph import ParallelGraph as ParallelGraph

_FUNCTIONS = {
    "check_by_operators": "plan.by_operators_check:check_by_operators",
    "cut": "plan.by_operators_check:cut",
    "describe": "report.describe:describe",
    "emit": "emission.spmd.emit:emit",
    "emit_pipeline": "emission.pipeline.emit:emit",
    "emit_by_operators": "plan.spacetime_graph:emit_by_operators",
    "emit_space_time": "emission.spacetime.emit:emit",
    "graph_from_json": "parallel_graph.file:from_json",
    "graph_text": "parallel_graph.text:text",
    "graph_to_json": "parallel_graph.file:to_json",
    "load": "plan.plan_file:load_plan",
    "parallelize": "live.parallelize:parallelize",
    "parallel_graph": "parallel_graph.build:parallel_graph",
    "plan_from_json": "plan.plan_file:from_json",
    "plan_to_json": "plan.plan_file:to_json",
    "save": "plan.plan_file:save",
    "space_time_graph": "plan.spacetime_graph:space_time_graph",
    "space_time_timeline": "report.spacetime_trace:timeline",
    "summary": "report.summary:summary",
    "verify": "verification.verify:verify",
    "write": "plan.plan_file:write_atomically",
    "write_folder": "plan.plan_file:write_directory",
}
"""By what a method calls: the module in `codegen`, and the function."""


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Import a function of the table, and call it."""
    module, _, function = _FUNCTIONS[name].partition(":")
    return getattr(import_module(f"...{module}", __name__), function)(*arguments, **options)
