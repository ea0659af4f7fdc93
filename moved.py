"""Import paths of earlier versions: an old module name still answers, with a warning that says where it lies now."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

MOVED = {
    "codegen.choice": "codegen.plan.choice",
    "codegen.decode": "codegen.planner.decode",
    "codegen.explicit": "codegen.parallel_graph",
    "codegen.explicit.graph": "codegen.parallel_graph.graph",
    "codegen.price": "codegen.pricing.plan_price",
    "codegen.reduction": "codegen.emission.reduction",
    "formulation.contest": "formulation.network.contest",
    "formulation.encode": "formulation.encoding.encode",
    "formulation.mappings": "formulation.placement.mappings",
    "formulation.reduction.schedule": "formulation.reduction.optimal",
    "formulation.row": "formulation.strategies.row",
    "formulation.strategy": "formulation.strategies.strategy",
    "model.layout": "model.graph.layout",
    "model.load": "model.capture.load",
    "model.operator": "model.operators.operator",
    "model.pcg": "model.graph.pcg",
    "solvers.cached": "solvers.cache.cached_solver",
    "solvers.placement": "solvers.reduction.joint_placement",
    "solvers.rvd": "solvers.reduction.rvd",
    "solvers.store": "solvers.cache.store",
}
"""The modules that earlier versions of the documents named, below the package."""

RENAMED = {
    "codegen.price": {"priced": ("codegen.pricing.plan_price", "plan_price")},
    "formulation.reduction.schedule": {
        "Schedule": ("formulation.reduction.optimal", "CheapestPrograms"),
        "schedule": ("formulation.reduction.optimal", "cheapest_programs"),
    },
    "model.pcg": {"Builder": ("model.graph.builder", "Builder")},
}
"""What such a module had under another name, or lies elsewhere: old names, where each is, and what it is called."""


class _Moved:
    """Finds the old names, and hands out the modules that they became.

    Without the base classes of `importlib.abc`, which take a tenth of the time in which `partita --help` starts.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != __package__ or name not in MOVED:
            return None
        return spec_from_loader(fullname, self)  # type: ignore[arg-type]  # which has what a loader needs

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        package, _, name = module.__name__.partition(".")
        now = f"{package}.{MOVED[name]}"
        warnings.warn(f"{module.__name__} moved to {now}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = found = importlib.import_module(now)
        for old, (place, new) in RENAMED.get(name, {}).items():
            setattr(found, old, getattr(importlib.import_module(f"{package}.{place}"), new))


def answer_old_names() -> None:
    """Let old names be imported; before other finders, since an old package's folder may hold other modules now."""
    sys.meta_path.insert(0, _Moved())
