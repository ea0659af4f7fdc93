"""Parallel branches: the step of the best plan with them and without, for the models that have branches.

Four nodes of Summit (24 GPUs), from the batch of Unity's evaluation down to one sample a GPU and less.
"""

from collections.abc import Sequence

from ..formulation.search_space import SearchSpace
from ..model.machine.machine import Machine
from ..model.zoo import entry
from ..solvers.budget import Budget
from ..solvers.gap import relative_gap
from .cases import Row, Tell, captured, each, plan_of_one_stage, seconds_of

CASES = tuple((name, batch) for name in ("inception-v3", "candle-uno") for batch in (1536, 96, 24, 12))
SMALL = (("inception-v3", 24), ("candle-uno", 24))
NODES = 4
SECONDS = 240.0


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every model and batch; `gain` is the share of the step saved, gaps are fractions."""
    cases = each(SMALL if small else CASES, only, tell, _name)
    return [measure(*case, small) for case in cases]


def _name(case: tuple[str, int]) -> str:
    return f"{case[0]}, batch {case[1]}"


def measure(name: str, batch: int, small: bool) -> Row:
    """Plan one model for one batch, and again without parallel branches where there are some."""
    machine = Machine.load(entry(name).machine, nodes=NODES)
    graph, training = captured(name, machine, small=small, batch=batch)
    report = plan_of_one_stage(graph, machine, training, SearchSpace(stages=1), Budget(time_limit=SECONDS)).report
    step, without = report["objective_ns"], report.get("without_bundles") or {}
    other = without.get("objective_ns") if "bundles" in report else step
    bound = without.get("bound_ns") if "bundles" in report else report["bound_ns"]
    return {
        "model": _name((name, batch)),
        "gpus": machine.devices,
        "bundles": len(report.get("bundles", ())),
        "step_ms": step / 1e6,
        "without_ms": other and other / 1e6,
        "gain": other and 1 - step / other,
        "gap": report["gap"],
        "gap_without": relative_gap(other, bound) if other and bound is not None else None,
        **seconds_of(report, "total"),
    }
