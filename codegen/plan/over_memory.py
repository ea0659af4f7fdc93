"""Why a hand-written plan does not fit: what is alive at the peak, and what would mend it, as it is predicted then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.materialized import Run
from ...formulation.spacetime.op import Op
from ...formulation.spacetime.peak import alive, shown_lines
from ...formulation.spacetime.predict import Prediction
from ...formulation.spacetime.remedies import Change, Remedy, in_flight, remedies
from ...model.errors import DoesNotFitError, PartitaError
from ...model.sizes import bytes_text
from ...model.wording import runs

Predict: TypeAlias = Callable[[Graph], Prediction]
"""Validates the plan that a graph forms, and predicts it. PartitaError: it cannot run."""

_WORTH = 0.01
"""The share of the peak that a remedy must save, to be proposed."""


@dataclass(frozen=True, slots=True)
class Mended:
    """Changes to a plan in words, the fullest device's peak with them, and whether all devices then fit."""

    text: str
    peak_bytes: int
    fits: bool
    sort: str
    changes: tuple[Change, ...]


def does_not_fit(found: Prediction, predict: Predict, graph: Graph | None = None) -> DoesNotFitError:
    """The error for a plan with devices that are too full; `graph` as for `mended`."""
    device, *others = found.too_full
    peak, capacity = found.peak_bytes[device], found.machine.device.capacity_bytes
    lines = [
        f"the plan does not fit {found.machine.name}: device {device} needs {bytes_text(peak)} at its peak, of "
        f"{bytes_text(capacity)} that a plan may use"
        + (f"; {_listed(others)} {'need' if others[1:] else 'needs'} too much as well" if others else ""),
        f"alive at the peak of device {device}:",
        *(f"  {line}" for line in shown_lines(alive(found, device))),
    ]
    ways = mended(found, predict, graph)
    if not ways:
        lines.append("nothing that Partita knows to change in such a plan lowers it: use more devices or fewer samples")
    else:
        lines.append("what lowers it, each alone, as the plan with it is predicted:")
    lines += [
        f"  {number}. {bytes_text(peak - way.peak_bytes)} less, {bytes_text(way.peak_bytes)}, "
        f"{'fits' if way.fits else 'still too much'}: {way.text}"
        for number, way in enumerate(ways, 1)
    ]
    return DoesNotFitError("\n".join(lines))


def mended(found: Prediction, predict: Predict, graph: Graph | None = None) -> list[Mended]:
    """The remedies that apply, the best first: of each the mildest that is enough, else the strongest.

    If none is enough alone, and several are of different sorts, also these together. `graph`: the plan as it is
    written, if that of the prediction is its template.
    """
    graph = graph or found.program.tasks.graph
    tasks, peak = found.program.tasks, max(found.peak_bytes)
    flying = max(in_flight(tasks, _order(found, device), device) for device in found.too_full)
    ways: list[Mended] = []
    for remedy in remedies(tasks, found.too_full, flying):
        tried = _tried(remedy, found, predict, graph)
        best = next((way for way in tried if way.fits), min(tried, key=lambda way: way.peak_bytes, default=None))
        if best is not None and peak - best.peak_bytes >= _WORTH * peak:
            ways.append(best)
    strongest = [min((w for w in ways if w.sort == s), key=lambda w: w.peak_bytes) for s in {w.sort: 0 for w in ways}]
    ordered = sorted(ways, key=lambda way: (not way.fits, way.peak_bytes))
    if len(strongest) > 1 and not any(way.fits for way in ways):
        changes = tuple(change for way in strongest for change in way.changes)
        together = _made(changes, graph, predict, "all of it")
        if together is not None and together.peak_bytes < ordered[0].peak_bytes:
            names = " and ".join(str(ordered.index(way) + 1) for way in sorted(strongest, key=ordered.index))
            ordered.append(replace(together, text=f"numbers {names} together"))
    return ordered


def _tried(remedy: Remedy, found: Prediction, predict: Predict, graph: Graph) -> list[Mended]:
    """The remedy's changes in their order, until one is enough."""
    tried: list[Mended] = []
    freed = sum(found.peaks[found.too_full[0]][kind] for kind in remedy.frees)
    for change in remedy.changes if freed >= _WORTH * max(found.peak_bytes) else ():
        made = _made((change,), graph, predict, remedy.sort)
        if made is not None:
            tried.append(made)
            if made.fits:
                break
    return tried


def _made(changes: tuple[Change, ...], plan: Graph, predict: Predict, sort: str) -> Mended | None:
    """The plan with some changes; None if they change nothing or the plan could not run with them."""
    graph = plan.copy()
    try:
        texts = [change(graph) for change in changes]
        made = predict(graph) if all(texts) else None
    except PartitaError:  # the plan's orders or sizes forbid it, or the machine has no link to the host
        return None
    return None if made is None else Mended("; ".join(texts), max(made.peak_bytes), not made.too_full, sort, changes)


def _order(found: Prediction, device: int) -> list[Op]:
    return [x.op for x in found.program.devices[device] if isinstance(x, Run)]


def _listed(devices: Sequence[int]) -> str:
    """`devices 1 to 3`, `devices 1, 4`."""
    (first, last), *more = runs(devices)
    if last - first > 1 and not more:
        return f"devices {first} to {last}"
    return f"device{'s' * (len(devices) > 1)} {', '.join(map(str, sorted(devices)))}"
