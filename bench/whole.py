"""The whole decision: pipeline, micro-batches, meshes, layouts and recomputation in one proven plan, with a time limit.

Unity's seven models on 6 to 192 GPUs of Summit, SuperScaler's sixteen configurations on 4 to 32 V100s, LLaMA 70B on 64
H100s and GPT-3 15B on long sequences, with a gap of 1 %. Each is a command line in a process of its own that
keeps no answers: what it takes is what a user waits for.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..model.zoo.registry import entry
from .cases import GIB, Row, Tell, each

GAP = 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """One row: `hierarchy` of the machine, outermost level first; `seconds` that it may take; `sequence` in tokens."""

    model: str
    machine: str
    hierarchy: tuple[int, ...]
    seconds: float = 180.0
    sequence: int | None = None
    small: bool = False

    @property
    def name(self) -> str:
        tokens = "" if self.sequence is None else f", {self.sequence:,} tokens"
        return f"{self.model}{' small' if self.small else ''}{tokens}, {prod(self.hierarchy)} {self.machine}"

    @property
    def words(self) -> list[str]:
        """What is typed after `partita`."""
        return [
            *("plan", self.model, *(["--small"] if self.small else ())),
            *("--machine", self.machine, "--hierarchy", "x".join(map(str, self.hierarchy))),
            *(() if self.sequence is None else ("--sequence", str(self.sequence))),
            *("--gap", str(GAP), "--time-limit", str(self.seconds), "--cache", "none", "--json"),
        ]


_UNITY = ("mlp", "resnext-50", "inception-v3", "bert-large", "dlrm", "xdl", "candle-uno")
SUPERSCALER = (
    ("swin-1.8b", "swin-6.6b", "swin-13b", "swin-30b"),
    ("gpt3-1.3b", "gpt3-2.6b", "gpt3-6.7b", "gpt3-15b"),
    ("mbart-4.7b", "mbart-9.5b", "mbart-20b", "mbart-32b"),
    ("alphafold2-87m", "alphafold2-930m", "alphafold2-2.4b", "alphafold2-3.2b"),
)
V100S = ((1, 4), (1, 8), (2, 8), (4, 8))
CASES = (
    *(Case(model, "summit", (nodes, 2, 3), 120.0) for model in _UNITY for nodes in (1, 4, 16, 32)),
    *(
        Case(model, "v100-32gb", hierarchy)
        for models in SUPERSCALER
        for model, hierarchy in zip(models, V100S, strict=True)
    ),
    Case("llama-70b", "dgx-h100", (8, 8)),
    Case("gpt3-15b", "v100-32gb", (4, 8), sequence=16384),
)
SMALL = (
    Case("mlp", "summit", (1, 2, 2), 60.0, small=True),
    Case("gpt3-1.3b", "v100-32gb", (1, 2), 60.0, small=True),
)

SECONDS = ("capture", "formulate", "solve")
SPACE = {
    "configurations": "configurations",
    "asked": "configurations_asked",
    "solved": "networks_solved",
    "left_out": "left_out",
}
"""Columns of a row, and what `plan --json` calls them under `space`."""


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every case; seconds are wall time, `gap` a fraction."""
    return [measure(case) for case in each(SMALL if small else CASES, only, tell)]


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many cases have a plan, and one that is proved close enough in the time that is given."""
    planned = [row for row in rows if row["gap"] is not None]
    reached = [row for row in planned if row["gap"] <= GAP and row["total_s"] <= row["limit_s"]]
    return {"cases": len(rows), "planned": len(planned), "reached": len(reached)}


def measure(case: Case) -> Row:
    """Plan one case in its own process. Without a plan `status` says why: `unknown`, or the error."""
    entry(case.model)  # PartitaError: there is no such model
    package = Path(__file__).parents[2]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "partita", *case.words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])},
    )
    seconds = time.monotonic() - start
    refusal = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    summary = json.loads(done.stdout) if done.stdout else {"status": refusal.removeprefix("partita: ")}
    return {"case": case.name, "total_s": seconds, "limit_s": case.seconds} | row(summary)


def row(summary: Mapping[str, Any]) -> Row:
    """The row of what `plan --json` printed; None where there is no plan."""
    space, seconds = summary.get("space", {}), summary.get("seconds", {})
    mesh = {**(summary.get("mesh") or {})}
    pipeline = summary.get("pipeline") or {}
    if pipeline:
        del mesh["pipeline"]
    planned = bool(mesh or pipeline)
    modes = Counter((summary.get("recompute") or {}).values())
    return {
        "objective_ms": _over(summary.get("objective_ns"), 10**6),
        "bound_ms": _over(summary.get("bound_ns"), 10**6),
        "gap": summary.get("gap"),
        "stages": pipeline.get("stages", 1) if planned else None,
        "mesh": ("x".join(map(str, mesh.values())) or "1") if planned else None,
        "k": summary.get("micro_batches"),
        "recompute": (", ".join(f"{n} {mode}" for mode, n in sorted(modes.items())) or "none") if planned else None,
        "memory_gib": _over(summary.get("memory_bytes"), GIB),
        "of_gib": _over(summary.get("capacity_bytes"), GIB),
        **{name: space.get(key) for name, key in SPACE.items()},
        **{f"{part}_s": seconds.get(part) for part in SECONDS},
        "status": summary["status"],
    }


def _over(number: int | None, unit: int) -> float | None:
    return None if number is None else number / unit
