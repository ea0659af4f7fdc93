"""A report as one self-contained page: inline style, inline drawings, nothing from the network."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...formulation.placement.placement import Placement, ranks
from ...model.machine.machine import Machine
from ..emission.templates import environment
from ..plan.plan import Plan
from ..pricing.pipeline_runs import SHARED, runs
from ..pricing.plan_price import PlanPrice
from ..pricing.price_items import PARTS, StagePrice
from .cost_tables import by_module, time_unit
from .facts import Facts
from .words import bytes_text, percent

MOST_SLOTS = 4000  # of a schedule, the first of them
MOST_UNITS, MOST_DEVICES = 16, 32  # drawn of a machine: units of its outermost level, devices in each


@dataclass(frozen=True, slots=True)
class BarPiece:
    """A piece of a bar: `start` and `length` in percent of the drawing, `color` the name of a style."""

    name: str
    color: str
    start: float
    length: float
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    segments: tuple[BarPiece, ...]
    words: str


@dataclass(frozen=True, slots=True)
class DeviceGrid:
    """Devices, a row a unit of the outermost level: (rank, coordinate on the axis, its strength 0 to 1)."""

    name: str
    rows: tuple[tuple[tuple[int, int, float], ...], ...]


@dataclass(frozen=True, slots=True)
class TimelineSlot:
    """A slot of the schedule: `start` and `length` in percent of the drawing, `color` the name of a style."""

    row: int
    start: float
    length: float
    color: str
    words: str


def page(facts: Facts) -> str:
    """The HTML of a report."""
    plan, placement, levels = facts.plan, facts.plan.placement, facts.plan.machine.levels
    width = placement.devices // levels[0].size if len(levels) > 1 else placement.devices  # of an outermost unit
    if plan.size > 1:
        name, own = "show_pipeline.html", _pipeline(plan, facts.price)
    else:
        name, own = "show.html", _single_stage(plan, facts.price.stages[0])
    return (
        environment(html=True)
        .get_template(name)
        .render(
            facts=facts,
            grids=_grids(plan.axes, placement, width),
            hidden=placement.devices - min(width, MOST_DEVICES) * min(placement.devices // width, MOST_UNITS),
            level=levels[0].name if len(levels) > 1 else "machine",
            **own,
        )
    )


def _single_stage(plan: Plan, price: StagePrice) -> dict[str, Any]:
    """The template variables of a plan without a pipeline."""
    shares = ", ".join(f"{part} {percent(price.ns[part], price.objective_ns)}" for part in PARTS)
    return {
        "parts": PARTS,
        "step": Bar("step", _times(price.ns, price.objective_ns, price), shares),
        "modules": _modules(plan, price),
        "memory": _memory("memory", price, plan.machine),
    }


def _pipeline(plan: Plan, price: PlanPrice) -> dict[str, Any]:
    """The template variables of a pipeline."""
    unit, size = time_unit(price)
    slots, names = _slots(plan, price), [f"stage {number}" for number in range(len(price.stages))]
    named = list(zip((*names, "all devices"), price.everything, strict=False))
    memory = [_memory(name, stage, plan.machine) for name, stage in named]
    return {
        "steps": [
            Bar(
                name,
                _times(stage.ns, price.objective_ns, stage),
                f"{stage.objective_ns / size:,.2f} {unit}",
            )
            for name, stage in named
        ],
        "slots": slots,
        "split": any(slot.color == _COLORS["weights"] for slot in slots),
        "summed": any(slot.color == _COLORS["gradients"] for slot in slots),
        "rows": plan.size,
        "memory": memory,
        "kinds": max(memory, key=lambda bar: len(bar.segments)).segments,
    }


def _segments(sizes: Iterable[tuple[str, str, float, str]], whole: float) -> tuple[BarPiece, ...]:
    """(name, color, size, words) laid end to end; `whole` is the full width."""
    found, start = [], 0.0
    for name, color, size, words in sizes:
        length = 100 * size / whole if whole else 0.0
        if length:
            found.append(BarPiece(name, color, start, length, words))
        start += length
    return tuple(found)


def _times(ns: dict[str, int], whole: int, price: StagePrice) -> tuple[BarPiece, ...]:
    """Times by part, in words as shares of a stage's work; `whole` is the full width."""
    unit, size = time_unit(price)
    words = {
        part: f"{part}: {ns[part] / size:,.2f} {unit}, {percent(ns[part], price.objective_ns)} of the step"
        for part in PARTS
    }
    return _segments(((part, part, ns[part], words[part]) for part in PARTS), whole)


def _modules(plan: Plan, price: StagePrice, most: int = 12) -> tuple[Bar, ...]:
    """The most expensive modules, on one scale."""
    unit, size = time_unit(price)
    spent = {name: (ns, sum(ns.values())) for name, (ns, _) in by_module(plan, price).items()}
    ordered = sorted(spent, key=lambda name: -spent[name][1])[:most]
    longest = max((total for _, total in spent.values()), default=0)
    return tuple(
        Bar(name, _times(ns, longest, price), f"{total / size:,.2f} {unit}")
        for name, (ns, total) in ((name, spent[name]) for name in ordered)
    )


def _memory(name: str, price: StagePrice, machine: Machine) -> Bar:
    """Kinds of memory against the capacity of a device, which is the full width unless the plan needs more."""
    used, capacity = price.memory, machine.device.capacity_bytes
    sizes = [
        (kind, kind, size, f"{kind}: {bytes_text(size)}, {percent(size, capacity)}") for kind, size in used.items()
    ]
    words = f"{bytes_text(sum(used.values()))} of {bytes_text(capacity)}"
    return Bar(name, _segments(sizes, max(capacity, sum(used.values()))), words)


_COLORS = {
    "forward": "compute",
    "backward": "weights",
    "weights": "states",
    "gradients": "conversions",
    "update": "gradients",
}


def _slots(plan: Plan, price: PlanPrice) -> list[TimelineSlot]:
    found = runs(plan, price.stages, price.shared)
    whole = max(run.end_ns for run in found)
    slots = []
    for run in sorted(found, key=lambda run: run.start_ns)[:MOST_SLOTS]:
        micro = f", micro-batch {run.micro_batch}" if run.micro_batch >= 0 else ""
        words = f"{run.kind} of {'all devices' if run.stage == SHARED else f'stage {run.stage}'}{micro}"
        start, length = 100 * run.start_ns / whole, 100 * run.length_ns / whole
        slots.append(TimelineSlot(run.device, start, length, _COLORS[run.kind], words))
    return slots


def _grids(axes: Sequence[str], placement: Placement, width: int) -> tuple[DeviceGrid, ...]:
    """One grid an axis: devices of equal coordinate hold the same part along it. A row has `width` devices."""
    numbers = ranks(placement)
    units = [range(start, start + width) for start in range(0, placement.devices, width)][:MOST_UNITS]
    grids = []
    for axis, (name, size) in enumerate(zip(axes, placement.sizes, strict=True)):
        coordinate = [0] * placement.devices
        for part in range(size):
            for rank in numbers.take(part, axis=axis).ravel().tolist():
                coordinate[rank] = part
        rows = tuple(
            tuple((r, coordinate[r], coordinate[r] / max(1, size - 1)) for r in unit[:MOST_DEVICES]) for unit in units
        )
        grids.append(DeviceGrid(f"{name}={size}", rows))
    return tuple(grids)
