"""Performance profiles (Dolan & Moré 2002): pictures of how often a solver is within a factor of the best.

Time to a proof: of each case, a solver's seconds by the least seconds of any; the profile is the share of all cases
within a factor. A gap is 0 for the best, so that a factor says nothing: its profile is the share within a gap.
"""

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Measure = Callable[[Row], float | None]

MISSING = "no pictures: they need matplotlib; pip install 'partita[bench]'"
LEAST_S = 0.01
"""Times below this many seconds count as equal."""
LEAST_GAP_PCT = 1e-4
"""What stands for a gap of 0 on the axis, in percent."""
GROUPS = ("contest", "planner", "random", "parts")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))


def group(row: Row) -> str:
    """contest, planner, random or parts."""
    return str(row["case"]).partition(" ")[0]


def seconds_to_proof(row: Row) -> float | None:
    """None where nothing was proved, or another solver's answer contradicts it."""
    return row["seconds"] if row["status"] in ("optimal", "infeasible") and row["verified"] is not False else None


def gap_at_the_end(row: Row) -> float | None:
    """In percent; None without a verified answer."""
    if row["status"] == "infeasible" and row["verified"] is not False:
        return 0.0
    return row["gap_pct"] if row["verified"] else None


def ratios(rows: Sequence[Row], measure: Measure = seconds_to_proof, least: float = LEAST_S) -> dict[str, list[float]]:
    """By solver, for every case its measure by the best solver's: inf where it has none."""
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        found = measure(row)
        values.setdefault(row["case"], {})[row["solver"]] = math.inf if found is None else max(found, least)
    names = dict.fromkeys(row["solver"] for row in rows)
    best = {case: min(of.values()) for case, of in values.items()}
    return {
        name: [v / best[case] if (v := of.get(name, math.inf)) < math.inf else math.inf for case, of in values.items()]
        for name in names
    }


def amounts(
    rows: Sequence[Row], measure: Measure = gap_at_the_end, least: float = LEAST_GAP_PCT
) -> dict[str, list[float]]:
    """By solver, for every case its measure itself: inf where it has none."""
    found: dict[str, list[float]] = {}
    for row in rows:
        value = measure(row)
        found.setdefault(row["solver"], []).append(math.inf if value is None else max(value, least))
    return found


def profile(values: Sequence[float]) -> list[tuple[float, float]]:
    """The steps of a profile: for each finite value the share of all values up to it.

    >>> profile([1.0, 4.0, float("inf"), 1.0])
    [(1.0, 0.5), (4.0, 0.75)]
    """
    finite = sorted({v for v in values if v < math.inf})
    return [(x, sum(v <= x for v in values) / len(values)) for x in finite]


PICTURES: dict[str, tuple[Callable[[Sequence[Row]], dict[str, list[float]]], float, str]] = {
    "time": (ratios, 1.0, "seconds to a proof, by those of the quickest solver"),
    "gap": (amounts, LEAST_GAP_PCT, f"gap at the end in %, {LEAST_GAP_PCT:g} or less at the left"),
}
"""By file name: the numbers of every solver, their lower limit, and the label of the axis."""


def pictures(rows: Sequence[Row]) -> dict[str, bytes]:
    """The pictures as files: time and gap, each as PNG and SVG. ImportError without matplotlib."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "partita", "font.size": 9}):
        return {f"{name}.{kind}": _picture(rows, name, kind) for name in PICTURES for kind in ("png", "svg")}


def _picture(rows: Sequence[Row], name: str, kind: str) -> bytes:
    """A panel for all cases and one for each group, a line for each solver."""
    from matplotlib.figure import Figure

    values, left, words = PICTURES[name]
    groups = [g for g in GROUPS if any(group(row) == g for row in rows)]
    panels = ["all", *groups] if len(groups) > 1 else groups
    figure = Figure(figsize=(1 + 3.6 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, panel in zip(axes, panels, strict=True):
        part = [row for row in rows if panel in ("all", group(row))]
        shares = {solver: profile(v) for solver, v in values(part).items()}
        right = 2 * max((x for steps in shares.values() for x, _ in steps), default=left)
        for line, (solver, steps) in zip(itertools.cycle(LINES), shares.items(), strict=False):
            xs, ys = [x for x, _ in steps], [y for _, y in steps]
            line_ys = [0.0, *ys, ys[-1] if ys else 0.0]  # a step up at each value, and on to the right edge
            axis.plot([left, *xs, right], line_ys, drawstyle="steps-post", linestyle=line, label=solver)
        axis.set_xscale("log")
        axis.set_ylim(-0.02, 1.02)
        axis.set_title(f"{panel} ({len({row['case'] for row in part})})")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of cases")
    axes[0].legend(loc="best")
    figure.supxlabel(words)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()
