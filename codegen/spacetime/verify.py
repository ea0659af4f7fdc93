"""Runs the program of a space-time plan on local ranks beside the unsharded module."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from ...formulation.spacetime.program import Program
from ...model.pcg import PCG
from ..verification.verify import run, trial
from ..verification.worker import load_program
from .emit import emit


def verify(
    program: Program | Path | str,
    graph: PCG,
    module: nn.Module,
    inputs: Any,
    *,
    ranks: int | None = None,
    optimizer: str = "adamw",
    level: str = "threads",
    steps: int = 2,
    timeout: float = 600.0,
) -> dict[str, Any]:
    """The verdict of `codegen.verification.verify`: same losses, gradients and weights as `module`, in float64.

    `program`: what materialization gave, or the file of a program that was emitted for `ranks` ranks. `graph` is at
    the batch of a whole step; `module` is called as with its example `inputs`.
    """
    with tempfile.TemporaryDirectory(prefix="partita-verify-") as folder:
        if isinstance(program, Program):
            path, ranks = Path(folder) / "program.py", len(program.devices)
            path.write_text(emit(program, optimizer=optimizer))
        else:
            path = Path(program)
        count = ranks if ranks is not None else load_program(path).RANKS
        made = trial(path, graph, module, inputs, count, graph.batch, optimizer, steps)
        return run([made], level, timeout=timeout)[0]
