"""How far a plan's choice depends on the machine's numbers: each moves by its error, and the plans kept are priced."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from ...model.errors import PartitaError
from ...model.machine.machine_numbers import improves, moved, numbers, uncertain
from ...model.machine.precision import precision
from ..plan.plan import Plan
from ..pricing.on_machine import step_on
from ..pricing.plan_price import PlanPrice
from .cost_tables import time_unit
from .describe import mesh_sentence, pipeline_sentence
from .tables import Table
from .words import percent

LEAST = 0.001
"""Shares of a step below this are no gain and no change."""


@dataclass(frozen=True, slots=True)
class Move:
    """A number moved by its error: the step of the plan, and that of its fastest rival, by its number from 0.

    None: does not fit, or of rivals: none is faster.
    """

    path: str
    factor: float
    step_ns: int | None
    rival: int | None = None
    rival_ns: int | None = None

    @property
    def gain(self) -> float:
        """The share of the plan's step that the rival saves; infinite if the plan no longer fits."""
        if self.step_ns is None:
            return inf
        return 0.0 if self.rival_ns is None else 1 - self.rival_ns / self.step_ns


def moves(plan: Plan) -> tuple[Move, ...]:
    """Every number that the plan or a rival uses, moved down and up by its error; the largest gains first."""
    nominal = [step_on(rival, plan.machine) for rival in plan.rivals]
    factors = ((path, 1 + sign * error) for path, error in _used(plan).items() for sign in (-1, 1))
    found = [_move(plan, path, factor, nominal) for path, factor in factors]
    return tuple(sorted(found, key=lambda move: -move.gain))


def _move(plan: Plan, path: str, factor: float, nominal: Sequence[int | None]) -> Move:
    try:
        machine = moved(plan.machine, path, factor)
    except PartitaError:  # nothing is left of the memory
        return Move(path, factor, None)
    step = step_on(plan, machine)
    most = inf if step is None else (1 - LEAST) * step
    best: tuple[int, int] | None = None
    for number, (rival, before) in enumerate(zip(plan.rivals, nominal, strict=True)):
        # A step changes by no larger share than the number, and grows if the number gets worse.
        least = 0.0 if before is None else before * (min(factor, 1 / factor) if improves(path, factor) else 1.0)
        own = step_on(rival, machine) if least < most else None
        if own is not None and own < most:
            best, most = (number, own), own
    return Move(path, factor, step, *(best or ()))


def _used(plan: Plan) -> dict[str, float]:
    """The numbers that may be wrong, with their errors; peaks of other dtypes and an idle link to the host left out."""
    plans = (plan, *plan.rivals)
    peaks = {f"device.peak.{precision(one.dtype).compute}" for one in plans}
    offloads = any(choice.offloaded for one in plans for stage in one.stages for choice in stage.choices)
    return {
        path: error
        for path, error in uncertain(plan.machine).items()
        if (path in peaks or not path.startswith("device.peak.")) and (offloads or path != "device.host_bandwidth")
    }


# In words


def sensitivity(plan: Plan, price: PlanPrice) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    """A table of all moves that change the step if a rival wins for one of them, and a sentence in any case."""
    if plan.report.get("status") is None or "machines" in plan.report:  # not shown for several machines
        return (), ()
    if not plan.rivals:
        return (), ("No plan of another kind is kept: how far the choice hangs on the machine's numbers is unknown.",)
    found, count = moves(plan), len(plan.rivals)
    paths = {move.path: None for move in found if move.gain}
    if not paths:
        widest = _widest(plan, price, found)
        gain = f"makes {_kept(count)} faster by {100 * LEAST:g} % or more"
        return (), (f"Robust: no number of the machine, moved by its error, {gain}; {widest}.",)
    names = ", ".join(_label(plan, path) for path in paths)
    return (_table(plan, price, found),), (f"The choice hangs on {names}: see the table of sensitivity.",)


def _kept(count: int) -> str:
    return "the other plan kept" if count == 1 else f"any of the {count} other plans kept"


def _widest(plan: Plan, price: PlanPrice, found: Sequence[Move]) -> str:
    """The number that changes the step most, and how far."""
    steps: dict[str, list[int]] = {}
    for move in found:
        steps.setdefault(move.path, []).append(move.step_ns or 0)
    path, ns = max(steps.items(), key=lambda pair: max(pair[1]) - min(pair[1]))
    least, most = (100 * (step / price.objective_ns - 1) for step in (min(ns), max(ns)))
    return f"{_label(plan, path)} changes the step most, by {least:+.1f} to {most:+.1f} %"


def _table(plan: Plan, price: PlanPrice, found: Iterable[Move]) -> Table:
    unit, size = time_unit(price)

    def time(ns: int | None) -> str:
        return "does not fit" if ns is None else f"{ns / size:,.2f}"

    def row(move: Move) -> tuple[str, ...]:
        value = numbers(plan.machine)[move.path]
        own = "this" if move.step_ns is not None else "none"
        wins = own if move.rival is None else f"plan {move.rival + 1}"
        faster = ("", "") if move.rival is None else (time(move.rival_ns), "-" if move.gain == inf else _share(move))
        return (
            _label(plan, move.path),
            f"{value:.4g}",
            f"{100 * (move.factor - 1):+.0f} %",
            time(move.step_ns),
            wins,
            *faster,
        )

    changed = [m for m in found if m.step_ns is None or m.gain or abs(m.step_ns / price.objective_ns - 1) > LEAST]
    others = "; ".join(f"plan {i}: {_plan_text(rival, unit, size)}" for i, rival in enumerate(plan.rivals, 1))
    return Table(
        "Sensitivity",
        "Each number of the machine moved by its error, where that changes the step: which of the plans kept is then "
        f"the fastest, and what it saves. They are priced again; nothing is searched. Beside this plan, {others}.",
        ("number", "value", "moved by", unit, "fastest", f"its {unit}", "saves"),
        tuple(map(row, changed)),
    )


def _share(move: Move) -> str:
    assert move.step_ns is not None and move.rival_ns is not None
    return percent(move.step_ns - move.rival_ns, move.step_ns)


def _plan_text(rival: Plan, unit: str, size: int) -> str:
    step = step_on(rival, rival.machine)
    stages = f", {pipeline_sentence(rival)}" if rival.size > 1 else f", {rival.micro_batches} micro-batches"
    time = "does not fit" if step is None else f"{step / size:,.2f} {unit}"
    return f"{mesh_sentence(rival)}{stages if rival.micro_batches > 1 else ''}, {rival.dtype}, {time}"


def _label(plan: Plan, path: str) -> str:
    """`gpu bandwidth`, `matmul_efficiency`, `peak.bfloat16`."""
    kind, *rest = path.split(".")
    return ".".join(rest) if kind == "device" else f"{plan.machine.levels[int(rest[0])].name} {'.'.join(rest[1:])}"
