"""Pictures of predicted beside measured seconds: training runs, their errors, and the reductions of P².

Files are the same for the same rows: no dates, no random names, and text stays text.
"""

import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..model.files import make_folder, write_directory
from .cases import Row
from .profiles import MISSING
from .training_runs import best_rate

Points = Mapping[str, Sequence[tuple[float, float]]]
"""By series: (measured, predicted)."""

BAND = 0.15
"""Predictions within this share of what was measured are in the band."""
MOST = 0.6
"""The largest error that the curves show."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
"""Told apart with most kinds of colour blindness (Okabe and Ito)."""
MARKERS = "os^Dv<"
STYLE: Any = {"svg.hashsalt": "partita", "svg.fonttype": "none", "font.size": 9, "path.simplify": True}


def runs_of(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Training runs that succeeded, by tier."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "run" in row and row["measured_s"] is not None:
            tier = str(row["tier"])
            found.setdefault(f"tier {tier}" if len(tier) == 1 else tier, []).append(row)
    return dict(sorted(found.items()))


def steps(rows: Iterable[Row]) -> Points:
    """Seconds of a step by tier."""
    return {tier: [(row["measured_s"], row["predicted_s"]) for row in own] for tier, own in runs_of(rows).items()}


def reductions(rows: Iterable[Row]) -> Points:
    """Seconds of P²'s reductions, by kind of GPU, algorithm and program."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for prefix, program in (("", "all-reduce"), ("best_", "cheapest program")):
            if "algorithm" in row and row[f"{prefix}measured_s"] is not None:
                name = f"{str(row['system']).split()[-1]} {row['algorithm']}, {program}"
                found.setdefault(name, []).append((row[f"{prefix}measured_s"], row[f"{prefix}predicted_s"]))
    return dict(sorted(found.items()))


def errors(rows: Iterable[Row]) -> dict[str, list[float]]:
    """By source of runs: errors of the predictions, and those of constant MFU with the scale of least median error."""
    sources: dict[str, list[Row]] = {}
    for tier, own in runs_of(rows).items():
        sources.setdefault("sweep" if tier.startswith("tier ") else tier, []).extend(own)
    found: dict[str, list[float]] = {}
    for source, own in sorted(sources.items()):
        found[f"{source}, predicted"] = sorted(abs(row["predicted_s"] / row["measured_s"] - 1) for row in own)
        _, rate = best_rate(own)
        found[f"{source}, constant MFU"] = sorted(abs(row["flops"] / row["measured_s"] / rate - 1) for row in own)
    return found


def pictures(rows: Sequence[Row]) -> dict[str, bytes]:
    """The pictures that the rows fill, as SVG files. ImportError without matplotlib."""
    from matplotlib import rc_context

    drawn: dict[str, tuple[Any, Callable[[Any, Any], None]]] = {
        "training-steps": (steps(rows), lambda axis, of: _scatter(axis, of, "a step")),
        "training-errors": (errors(rows), _cumulated),
        "reductions": (reductions(rows), lambda axis, of: _scatter(axis, of, "a reduction")),
    }
    with rc_context(STYLE):
        return {f"{name}.svg": _file(values, draw) for name, (values, draw) in drawn.items() if values}


def _file(values: Any, draw: Callable[[Any, Any], None]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axis = figure.subplots()
    draw(axis, values)
    axis.grid(alpha=0.25, which="major")
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _scatter(axis: Any, points: Points, what: str) -> None:
    """Predicted over measured, both logarithmic, with the line of equality and a band beside it."""
    every = [x for own in points.values() for point in own for x in point]
    ends = np.array([min(every) / 1.25, max(every) * 1.25])
    axis.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#999999", alpha=0.25, linewidth=0)
    axis.plot(ends, ends, color="#555555", linewidth=0.8)
    for (name, own), colour, marker in zip(points.items(), itertools.cycle(COLOURS), itertools.cycle(MARKERS)):
        close = sum(abs(predicted / measured - 1) <= BAND for measured, predicted in own)
        axis.plot(
            *zip(*own, strict=True),
            linestyle="none",
            marker=marker,
            markersize=4,
            markeredgewidth=0,
            alpha=0.75,
            color=colour,
            label=f"{name}: {close} of {len(own)} within {BAND:.0%}",
            gid=f"points of {name}",
        )
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(lambda x, _: f"{x:g}")
    axis.legend(loc="upper left")
    axis.set_xlabel(f"measured seconds of {what}")
    axis.set_ylabel(f"predicted seconds of {what}")


def _cumulated(axis: Any, found: Mapping[str, Sequence[float]]) -> None:
    """For every error the share of runs with no larger one."""
    colours = dict(zip(dict.fromkeys(name.split(",")[0] for name in found), COLOURS, strict=False))
    for name, own in found.items():
        plain, share = "constant" in name, np.arange(len(own) + 1) / len(own)
        axis.plot(
            [0.0, *own, max(MOST, own[-1])],
            [*share, 1.0],
            drawstyle="steps-post",
            linestyle="--" if plain else "-",
            color=colours[name.split(",")[0]],
            label=f"{name} ({len(own)} runs, median {np.median(own):.1%})",
        )
    axis.set(xlim=(0, MOST), ylim=(0, 1.02))
    axis.set_xlabel("error of the seconds of a step")
    axis.set_ylabel("share of runs with this error or less")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axis.legend(loc="lower right")


def write(rows: Sequence[Row], folder: Path) -> list[str]:
    """Write the pictures into a folder; notes about them."""
    try:
        files = pictures(rows)
    except ImportError:
        return [MISSING]
    make_folder(folder)
    write_directory(folder, files)
    return [f"wrote {', '.join(sorted(files))} into {folder}"]
