"""Predictions of training runs by machine numbers that are fitted to other runs.

The runs of each model are held out in turn, and the numbers of `FITTED` fitted to the runs of all other models: by the
least squares of the logarithms of ratios, of which those far from the others count less. Plans stay those that the
machine's own numbers make. Each is priced once more for every number, a little changed: the streams of its windows
(`codegen.pricing.price_items.Overlap`) are linear in what the numbers cost, and the step follows from them. A pipeline
that is priced slot by slot is taken to differ by the same factor from its formula, whatever the numbers are.

A number's cost is a factor: at 1.1 a rate is divided by 1.1, and ns are multiplied by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..codegen.plan.plan import Plan
from ..codegen.pricing.on_machine import on_machine
from ..codegen.pricing.plan_price import plan_price
from ..codegen.pricing.price_items import StagePrice
from ..codegen.pricing.stage_price import stage_price
from ..formulation.pipeline.configuration import waited
from ..model.machine.machine import Machine
from ..model.machine.machine_numbers import improves, moved
from .cases import Row

Array = npt.NDArray[np.float64]

FITTED = {
    "p5-h100": (
        "device.matmul_efficiency", "device.host_ns", "device.step_ns", "levels.0.bandwidth", "levels.0.scatter_share",
        "levels.0.wait_ns", "levels.1.bandwidth",
    ),
    "dgx-a100": ("device.matmul_efficiency",),
}  # fmt: skip
"""The paths of a machine's numbers that are fitted to its published runs."""

CHANGE = 1.05
FAR = 0.05
"""Ratios farther than this from 1 count less than by their square."""
WIDEST = 3.0
"""A number is fitted within this factor of the machine's own."""


def changed(machine: Machine, path: str, cost: float) -> Machine:
    """The machine with one number whose cost is multiplied."""
    return moved(machine, path, cost if improves(path, 1 / cost) else 1 / cost)


@dataclass(frozen=True, slots=True)
class Stage:
    """ns of a stage in a step: `alone` [1 + numbers], and the longest stream of `windows` [windows, 3, 1 + numbers].

    The first place is the price on the machine itself, the others what it grows by when a number's cost doubles.
    """

    alone: Array
    windows: Array

    def ns(self, at: Array) -> float:
        """Busy time, `at` being 1 and the costs less 1."""
        return float(self.alone @ at + (self.windows @ at).max(axis=1, initial=0.0).sum())


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan as a function of what a machine's numbers cost.

    `slots`: the step as it is priced, by the formula's on the machine itself; 1 where the formula is the price.
    """

    stages: tuple[Stage, ...]
    devices: int
    rounds: int | None
    slots: float = 1.0

    def seconds(self, costs: Sequence[float] | Array) -> float:
        at = np.array([1.0, *np.asarray(costs) - 1])
        busy = [stage.ns(at) for stage in self.stages]
        loads = [sum(busy[device :: self.devices]) for device in range(self.devices)]
        return self.slots * waited(round(max(loads)), round(sum(loads)), self.rounds) / 1e9


def step_of(plan: Plan, machines: Sequence[Machine]) -> Step:
    """The step of a plan; `machines`: the plan's, and those on which one number after the other is changed."""
    known: dict[object, Stage] = {}
    found, on = [], [on_machine(plan, machine) for machine in machines]
    for number, part in enumerate(plan.parts):
        nodes = tuple((n.op, n.shape, n.inputs, n.get("stages")) for n in part.graph.nodes)
        key = nodes, part.choices, tuple(part.recompute.values()), tuple(part.together.values())
        if key not in known:
            known[key] = _stage([stage_price(each.parts[number]) for each in on])
        found.append(known[key])
    by_formula = Step(tuple(found), plan.size, plan.schedule.rounds(plan.chunks, plan.micro_batches))
    priced_s = plan_price(on[0]).objective_ns / 1e9
    return replace(by_formula, slots=priced_s / by_formula.seconds([1.0] * (len(machines) - 1)))


def _stage(prices: Sequence[StagePrice]) -> Stage:
    alone, windows = [], []
    for price in prices:
        overlaps = price.overlaps
        windows.append([(x.slowed_ns, x.traffic_ns, x.host_ns) for x in overlaps])
        alone.append(sum(x.total_ns for x in price.items) - sum(x.kernels_ns + x.traffic_ns for x in overlaps))
    streams = np.array(windows, dtype=np.float64).reshape(len(prices), -1, 3)
    return Stage(_growth(np.array(alone, dtype=np.float64)), _growth(np.moveaxis(streams, 0, -1)))


def _growth(prices: Array) -> Array:
    first = prices[..., :1]
    return np.concatenate((first, (prices[..., 1:] - first) / (CHANGE - 1)), axis=-1)


def fitted_costs(steps: Sequence[Step], measured: Sequence[float]) -> Array:
    """The costs of the numbers with which the steps take nearest to the seconds measured."""
    from scipy.optimize import least_squares

    def errors(logs: Array) -> Array:
        return np.log([step.seconds(np.exp(logs)) / s for step, s in zip(steps, measured, strict=True)])

    widest = float(np.log(WIDEST))
    numbers = steps[0].stages[0].alone.size - 1
    found = least_squares(errors, np.zeros(numbers), loss="soft_l1", f_scale=FAR, bounds=(-widest, widest))
    costs: Array = np.exp(found.x)
    return costs


def held_out(rows: Sequence[Row], steps: Sequence[Step | None]) -> list[float | None]:
    """For every run seconds predicted by numbers that are fitted to the runs of other models; None if there are none.

    Only runs with a step are fitted to, and predicted.
    """
    found: dict[int, float] = {}
    for model in {row["model"] for row in rows}:
        known = [(i, row, step) for i, (row, step) in enumerate(zip(rows, steps, strict=True)) if step is not None]
        others = [(row["measured_s"], step) for _, row, step in known if row["model"] != model]
        if others:
            costs = fitted_costs([step for _, step in others], [seconds for seconds, _ in others])
            found |= {i: step.seconds(costs) for i, row, step in known if row["model"] == model}
    return [found.get(i) for i in range(len(rows))]
