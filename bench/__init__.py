"""Benchmarks and the baselines that plans are compared with. `partita bench NAME` runs one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from ..model.errors import PartitaError

BENCHES = {
    "plan": "From model to proven plan: capture, formulate and solve, timed apart.",
    "zoo": "Every model of the zoo on the machine of its paper, within two minutes.",
}
"""Every benchmark is a module of this package with `run(small, only, tell) -> rows`."""


def bench(
    name: str, small: bool = False, only: Sequence[str] = (), tell: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Run a benchmark: its rows, and where they were measured; `only` keeps cases with one of its texts in their name.

    PartitaError: an unknown name, or no case left.
    """
    if name not in BENCHES:
        raise PartitaError(f"no benchmark {name!r}; there are {', '.join(BENCHES)}")
    from .hardware import hardware

    command = " ".join(["partita", "bench", name, *(["--small"] if small else []), *(f"--only {x}" for x in only)])
    rows = importlib.import_module(f".{name}", __name__).run(small, tuple(only), tell or (lambda words: None))
    return {"bench": name, "command": command, "hardware": hardware(), "rows": rows}


def text(result: dict[str, Any]) -> str:
    """A benchmark's result as a table, with the command and the machine above it."""
    rows = result["rows"]
    head = list(rows[0])
    cells = [head, *([_cell(row[key]) for key in head] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    machine = ", ".join(f"{k} {v}" for k, v in result["hardware"].items())
    return "\n".join([f"$ {result['command']}", machine, "", *lines])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
