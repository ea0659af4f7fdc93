"""Methods of plans that other modules implement.

A plan is a value: what writes, emits, verifies or describes it imports it. Its methods find these functions by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from ...model.files import write_atomically

_FUNCTIONS = {
    "describe": "report.describe:describe",
    "emit": "emission.spmd.emit:emit",
    "emit_pipeline": "emission.pipeline.emit:emit",
    "emit_space_time": "emission.spacetime.emit:emit",
    "graph_from_json": "parallel_graph.file:from_json",
    "graph_text": "parallel_graph.text:text",
    "graph_to_json": "parallel_graph.file:to_json",
    "load": "plan.plan_file:load",
    "parallel_graph": "parallel_graph.build:parallel_graph",
    "pipeline_from_json": "plan.plan_file:pipeline_from_json",
    "plan_to_json": "plan.plan_file:to_json",
    "save": "plan.plan_file:save",
    "space_time_timeline": "report.spacetime_trace:timeline",
    "stage_from_json": "plan.plan_file:stage_from_json",
    "summary": "report.summary:summary",
    "verify": "verification.verify:verify",
}
"""By what a method calls: the module in `codegen`, and the function."""


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Import a function of the table, and call it."""
    module, _, function = _FUNCTIONS[name].partition(":")
    return getattr(import_module(f"...{module}", __name__), function)(*arguments, **options)


class PlanMethods(ABC):
    """Methods of plans with and without a pipeline."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many parts the devices are divided into: a pipeline has several."""

    def summary(self) -> dict[str, Any]:
        """What `partita plan --json` prints; `program` is known where the plan is saved."""
        result: dict[str, Any] = call("summary", self)
        return result

    def __str__(self) -> str:
        return str(call("describe", self))

    def emit(self, path: Path | str | None = None) -> str:
        """The program as text; also written to `path` if given."""
        text = str(call("emit_pipeline" if self.size > 1 else "emit", self))
        if path is not None:
            write_atomically(path, text)
        return text

    def verify(self, ranks: int | None = None, level: str = "threads") -> dict[str, Any]:
        """Train the program on local ranks and the unsharded module, and compare losses, gradients and weights.

        The module is the one that was planned, or is built as `model` says. Raises PartitaError where neither is known.
        """
        result: dict[str, Any] = call("verify", self, ranks=ranks, level=level)
        return result

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote: a file, or a folder with plan.json. Raises PartitaError that says what is wrong."""
        plan: Self = call("load", path, cls.from_json)
        return plan

    def to_json(self) -> dict[str, Any]:
        """Everything but the module and the names of axes."""
        result: dict[str, Any] = call("plan_to_json", self)
        return result

    @classmethod
    @abstractmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""

    def save(self, path: Path | str) -> None:
        """Write the plan to a `.json` file, or plan.json and program.py into a folder."""
        call("save", self, path)
