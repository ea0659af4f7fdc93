"""Benchmarks and the baselines that plans are compared with. `partita bench NAME` runs one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..model.errors import PartitaError

BENCHES = {
    "network": "Reduction programs on real ranks in an emulated network, predicted beside measured (root only).",
    "plan": "From model to proven plan: capture, formulate and solve, timed apart.",
    "reductions": "The search for the cheapest reduction program as devices and levels grow, beside enumeration.",
    "results": "The five results of P² (MLSys 2022) by name: what it measured and what is predicted here.",
    "truth": "Predicted beside measured: the tables of P² (MLSys 2022), with --p2 another file of its format.",
    "zoo": "Every model of the zoo on the machine of its paper, within two minutes.",
}
"""Every benchmark is a module of this package with `run(small, only, tell) -> rows`, and perhaps `summary(rows)`."""


def bench(
    name: str,
    small: bool = False,
    only: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
    p2: Path | None = None,
) -> dict[str, Any]:
    """Run a benchmark: its rows, and where they were measured; `only` keeps cases with one of its texts in their name.

    `p2`: the measurements that `truth` reads. PartitaError: an unknown name, or no case left.
    """
    if name not in BENCHES:
        raise PartitaError(f"no benchmark {name!r}; there are {', '.join(BENCHES)}")
    from .hardware import hardware

    if p2 is not None and name != "truth":
        raise PartitaError(f"--p2 is for `bench truth`; {name} reads no measurements")
    options = [*(["--small"] if small else []), *(f"--only {x}" for x in only), *([] if p2 is None else [f"--p2 {p2}"])]
    module = importlib.import_module(f".{name}", __name__)
    file = {} if p2 is None else {"p2": p2}
    rows = module.run(small, tuple(only), tell or (lambda words: None), **file)
    result = {"bench": name, "command": " ".join(["partita", "bench", name, *options]), "hardware": hardware()}
    totals = {"summary": module.summary(rows)} if hasattr(module, "summary") else {}
    return result | {"rows": rows} | totals


def text(result: dict[str, Any]) -> str:
    """A benchmark's result as a table, with the command and the machine above it and what it sums up to below."""
    machine = ", ".join(f"{k} {v}" for k, v in result["hardware"].items())
    tables = [line for rows in (result["rows"], result.get("summary")) if rows for line in ("", *_table(rows))]
    return "\n".join([f"$ {result['command']}", machine, *tables])


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    head = list(rows[0])
    cells = [head, *([_cell(row[key]) for key in head] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return [
        "  ".join(
            f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
