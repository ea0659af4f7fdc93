"""Emitted programs beside PyTorch's own parallelization of the same model: DDP, fully_shard, parallelize_module.

Both train in the same four gloo processes, on this computer, in turn: the same batch, initial weights, AdamW
(PyTorch's in its fused form), clipping, float32, one thread a rank. Both return the mean loss over the whole batch, and
without dropout the losses of the first steps must agree. A row's `ratio` is that of the medians of eleven runs each,
short ones, since the speed of a shared computer drifts; `spread` says how far runs are apart, (longest - shortest) /
median, of the side where that is more. In compiled cases the layers of both are compiled, one by one, ours as
`--compile` does it. What cannot be run has no ratio, and `why` says what went wrong; `worst_ratio` is of all that
could.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..codegen.verification.launch import LaunchError, torchrun
from ..model.errors import PartitaError
from ..model.machine.machine import Machine
from . import rivals
from .cases import Row, Tell, measured
from .known_plans import DATA, GATHERED_AGAIN, GATHERED_ONCE, TENSOR, ZERO, planned
from .step_models import MODELS
from .step_times import Job, read_times, spread

RIVALS = {
    DATA: rivals.DDP,
    ZERO: rivals.ZERO,
    GATHERED_AGAIN: rivals.RESHARD,
    GATHERED_ONCE: rivals.KEEP,
    TENSOR: rivals.TENSOR,
}
"""Plan -> PyTorch's parallelization that does the same."""

ROUNDS, STEPS = 11, 2
"""Runs of each program, and the steps of a run."""

TOLERANCE = 1e-4
"""How far losses may differ, relatively."""

SECONDS = 400.0
"""The limit on a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and a plan of `known_plans`; `compiled`: layers are compiled, on both sides."""

    model: str
    plan: str
    compiled: bool = False
    ranks: int = 4
    samples: int = 16
    rounds: int = ROUNDS
    steps: int = STEPS

    @property
    def name(self) -> str:
        return f"{self.model}: {self.plan}{', compiled' if self.compiled else ''} / {RIVALS[self.plan]}"


GPT, DROPOUT, LLAMA = "gpt", "gpt, dropout 0.1", "llama"
CASES = (
    *(Case(model, plan) for model in (GPT, DROPOUT, LLAMA) for plan in RIVALS),
    *(Case(model, plan, compiled=True) for model in (DROPOUT, LLAMA) for plan in (DATA, GATHERED_AGAIN, TENSOR)),
)
SMALL = (Case("gpt, tiny", GATHERED_AGAIN, ranks=2, samples=4, rounds=2, steps=1),)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every case, in seconds of a step."""
    return measured(SMALL if small else CASES, only, tell, measure)


def measure(case: Case) -> Row:
    """The row of a case; without times where one of the programs fails."""
    row: Row = {"model": case.model, "plan": case.plan, "rival": RIVALS[case.plan], "compiled": case.compiled}
    found: Row = dict.fromkeys(("ratio", "seconds", "rival_seconds", "spread", "loss_error"))
    try:
        found |= _compared(case)
        why = _disagreement(case, found["loss_error"])
    except (PartitaError, LaunchError) as error:
        why = str(error)
    return row | found | {"why": why}


def _compared(case: Case) -> Row:
    with tempfile.TemporaryDirectory(prefix="partita-baselines-") as name:
        folder = Path(name)
        plan = planned(case.model, case.plan, Machine.load("cpu", nodes=case.ranks), case.samples)
        replace(plan, compile=case.compiled).emit(folder / "program.py")
        forms: list[dict[str, Any]] = [{"program": "program.py"}, {"rival": RIVALS[case.plan]}]
        forms = [form | {"compiled": case.compiled} for form in forms]
        job = Job(case.model, case.samples, forms, case.rounds, case.steps).write(folder)
        torchrun(f"module:{__package__}.step_times", case.ranks, [str(job)], timeout=SECONDS)
        ours, theirs = read_times(folder)
    return {
        "ratio": median(ours["seconds"]) / median(theirs["seconds"]),
        "seconds": median(ours["seconds"]),
        "rival_seconds": median(theirs["seconds"]),
        "spread": max(spread(each["seconds"]) for each in (ours, theirs)),
        "loss_error": max(abs(a / b - 1) for a, b in zip(ours["losses"], theirs["losses"], strict=True)),
    }


def _disagreement(case: Case, error: float) -> str:
    """What is wrong with the losses; nothing under dropout, where both draw numbers of their own."""
    if MODELS[case.model].dropout or error <= TOLERANCE:
        return ""
    return f"losses differ by {error:.1e}: the two do not train alike"


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How many cases there are, how many failed or disagree, and the largest ratio; None without any."""
    return {
        "cases": len(rows),
        "failed": sum(bool(row["why"]) for row in rows),
        "worst_ratio": max((row["ratio"] for row in rows if row["ratio"] is not None), default=None),
    }
