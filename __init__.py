"""Partita plans distributed training with solvers, proves the plan, and emits a readable program."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codegen.plan import Plan
    from .codegen.run import optimize
    from .formulation.encode import strategy_network
    from .formulation.network import evaluate
    from .model.capture import capture
    from .model.errors import NoPlanError, PartitaError
    from .model.machine import Machine
    from .solvers.protocol import Limits, solvers

__version__ = "0.1.0"

# `solvers` is the package itself, which can be called (see there).
_HOME = {
    "Limits": ".solvers.protocol",
    "Machine": ".model.machine",
    "NoPlanError": ".model.errors",
    "PartitaError": ".model.errors",
    "Plan": ".codegen.plan",
    "capture": ".model.capture",
    "evaluate": ".formulation.network",
    "optimize": ".codegen.run",
    "strategy_network": ".formulation.encode",
}

__all__ = [
    "Limits",
    "Machine",
    "NoPlanError",
    "PartitaError",
    "Plan",
    "__version__",
    "capture",
    "evaluate",
    "optimize",
    "solvers",
    "strategy_network",
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
