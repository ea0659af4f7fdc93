"""A report as one self-contained page: inline style, inline drawings, nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...formulation.placement.placement import ranks
from ..emission.templates import environment
from ..pricing.price_items import PARTS
from .facts import Facts, by_module, time_unit
from .words import bytes_text, percent

if TYPE_CHECKING:
    from .pipeline_facts import PipelineFacts

MOST_UNITS, MOST_DEVICES = 16, 32  # drawn of a machine: units of its outermost level, devices in each


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a bar: `start` and `length` in percent of the drawing, `color` the name of a style."""

    name: str
    color: str
    start: float
    length: float
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    segments: tuple[Segment, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Devices, a row a unit of the outermost level: (rank, coordinate on the axis, its strength 0 to 1)."""

    name: str
    rows: tuple[tuple[tuple[int, int, float], ...], ...]


def page(facts: Facts) -> str:
    """The HTML of a report."""
    return (
        environment(html=True)
        .get_template("show.html")
        .render(
            parts=PARTS,
            step=step(facts),
            modules=_modules(facts),
            memory=memory(facts),
            **common(facts),
        )
    )


def common(facts: Facts | PipelineFacts) -> dict[str, Any]:
    """What the pages of plans with and without a pipeline are told."""
    levels = facts.plan.machine.levels
    return {
        "facts": facts,
        "grids": _grids(facts),
        "hidden": _hidden(facts),
        "level": levels[0].name if len(levels) > 1 else "machine",
    }


def _segments(sizes: Iterable[tuple[str, str, float, str]], whole: float) -> tuple[Segment, ...]:
    """(name, color, size, words) laid end to end; `whole` is the full width."""
    found, start = [], 0.0
    for name, color, size, words in sizes:
        length = 100 * size / whole if whole else 0.0
        if length:
            found.append(Segment(name, color, start, length, words))
        start += length
    return tuple(found)


def _times(ns: dict[str, int], whole: int, facts: Facts) -> tuple[Segment, ...]:
    unit, size = time_unit(facts.priced)
    objective = facts.priced.objective_ns
    words = {
        part: f"{part}: {ns[part] / size:,.2f} {unit}, {percent(ns[part], objective)} of the step" for part in PARTS
    }
    return _segments(((part, part, ns[part], words[part]) for part in PARTS), whole)


def step(facts: Facts, whole_ns: int | None = None) -> Bar:
    """The parts of a step; `whole_ns` is the full width where that is more."""
    ns = facts.priced.ns
    shares = ", ".join(f"{part} {percent(ns[part], facts.priced.objective_ns)}" for part in PARTS)
    return Bar("step", _times(ns, whole_ns or facts.priced.objective_ns, facts), shares)


def _modules(facts: Facts, most: int = 12) -> tuple[Bar, ...]:
    """The dearest modules, on one scale."""
    unit, size = time_unit(facts.priced)
    spent = {name: (ns, sum(ns.values())) for name, (ns, _) in by_module(facts.plan, facts.priced).items()}
    ordered = sorted(spent, key=lambda name: -spent[name][1])[:most]
    longest = max((total for _, total in spent.values()), default=0)
    return tuple(
        Bar(name, _times(ns, longest, facts), f"{total / size:,.2f} {unit}")
        for name, (ns, total) in ((name, spent[name]) for name in ordered)
    )


def memory(facts: Facts) -> Bar:
    """Kinds of memory against the capacity of a device, which is the full width unless the plan needs more."""
    used, capacity = facts.priced.memory, facts.plan.machine.device.capacity_bytes
    sizes = [
        (kind, kind, size, f"{kind}: {bytes_text(size)}, {percent(size, capacity)}") for kind, size in used.items()
    ]
    words = f"{bytes_text(sum(used.values()))} of {bytes_text(capacity)}"
    return Bar("memory", _segments(sizes, max(capacity, sum(used.values()))), words)


def _grids(facts: Facts | PipelineFacts) -> tuple[Grid, ...]:
    """One grid an axis: devices of equal coordinate hold the same part along it."""
    placement, levels = facts.plan.placement, facts.plan.machine.levels
    numbers = ranks(placement)
    width = placement.devices // levels[0].size if len(levels) > 1 else placement.devices
    grids = []
    for axis, (name, size) in enumerate(zip(facts.plan.axes, placement.sizes, strict=True)):
        coordinate = [0] * placement.devices
        for part in range(size):
            for rank in numbers.take(part, axis=axis).ravel().tolist():
                coordinate[rank] = part
        rows = tuple(
            tuple((r, coordinate[r], coordinate[r] / max(1, size - 1)) for r in unit[:MOST_DEVICES])
            for unit in _units(placement.devices, width)
        )
        grids.append(Grid(f"{name}={size}", rows))
    return tuple(grids)


def _units(devices: int, width: int) -> Sequence[range]:
    return [range(start, start + width) for start in range(0, devices, width)][:MOST_UNITS]


def _hidden(facts: Facts | PipelineFacts) -> int:
    """Devices that the grids leave out."""
    devices, levels = facts.plan.placement.devices, facts.plan.machine.levels
    width = devices // levels[0].size if len(levels) > 1 else devices
    return devices - min(width, MOST_DEVICES) * min(devices // width, MOST_UNITS)
