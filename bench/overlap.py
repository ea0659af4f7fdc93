"""Programs that communicate while they compute beside those that wait: measured and predicted steps and gains.

Both forms of one plan run in the same gloo ranks in turn, every rank a node of its own on an emulated network, where
the links are the limit, and on this computer's loopback. Predictions are the plans' own prices on a machine whose links
have the emulated rate. Three numbers of that machine are measured by the same ranks beforehand: its device is the
preset cpu's, slowed by one factor, that of the step of the same model on one rank's samples without communication,
while as many ranks do the same on the same cores; its latency is what an all-reduce of a weight takes beyond its bytes,
the mean over the weights of the model, divided by the messages that gloo sends one after the other; its hidden share is
that of an all-reduce beside products that take as long, since the cores carry the emulated links, too.

`gain` is what overlapping saves, in seconds of a step; `share`, the measured gain by the predicted one; `ratio` and
`waiting_ratio`, predicted by measured steps. Times are medians of three runs of two steps, on loopback of 21 steps.
What cannot be run has no times, and `why` says what went wrong, or that both forms are the same program.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..codegen.plan.plan import Plan
from ..codegen.pricing.plan_price import plan_price
from ..codegen.verification.launch import LaunchError, torchrun
from ..model.errors import PartitaError
from ..model.graph.dtypes import ITEMSIZE
from ..model.machine.machine import Machine
from .cases import Row, Tell, measured
from .emulated import Emulation, emulated, run_ranks
from .known_plans import DATA, GATHERED_AGAIN, planned
from .network import described
from .step_times import Job, read_alone, read_hidden_share, read_reduction, read_times, spread

WITHIN = 0.15
NOTICEABLE = 0.02
"""A predicted gain of less than this share of the step is not compared with the measured one."""

SECONDS = 500.0
"""The limit on a case."""

MTU = 9000
"""With packets of 1500 bytes the emulated links take as much of the cores' time as the computation that hides them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a plan and a number of ranks; `rate`: bit/s of every link, None: loopback."""

    model: str
    plan: str
    ranks: int
    rate: float | None
    rounds: int
    steps: int
    samples: int = 64

    @property
    def network(self) -> str:
        return "loopback" if self.rate is None else f"{self.rate / 1e6:.0f} Mbit/s"

    @property
    def name(self) -> str:
        return f"{self.model}: {self.plan}, {self.ranks} ranks, {self.network}"


RATE = 200e6
"""bit/s of all links together: the two cores of a small computer carry no more beside the ranks."""

CASES = tuple(
    Case(model, plan, ranks, RATE / ranks if limited else None, *((3, 2) if limited else (21, 1)))
    for limited in (True, False)
    for ranks in (4, 8)
    for model in ("gpt, narrow", "llama, narrow")
    for plan in (DATA, GATHERED_AGAIN)
)
SMALL = (Case("gpt, tiny", GATHERED_AGAIN, 2, None, rounds=1, steps=1, samples=4),)
TIMES = ("waiting", "overlapped", "spread", "predicted_waiting", "predicted_overlapped")
COMPARED = ("gain", "predicted_gain", "share", "ratio", "waiting_ratio")


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every case, in seconds of a step."""
    return measured(SMALL if small else CASES, only, tell, measure)


def measure(case: Case) -> Row:
    """The row of a case; without times where it cannot be run."""
    row: Row = {"model": case.model, "plan": case.plan, "ranks": case.ranks, "network": case.network}
    row |= dict.fromkeys((*TIMES, *COMPARED))
    try:
        return row | _times(case)
    except (PartitaError, LaunchError, RuntimeError) as error:
        return row | {"why": str(error)}


def _times(case: Case) -> Row:
    emulation = None if case.rate is None else Emulation((case.ranks, 1), (case.rate,), MTU)
    cpu = Machine.load("cpu", nodes=case.ranks)
    machine = cpu if emulation is None else described(emulation)
    alone = planned(case.model, DATA, cpu.with_nodes(1), case.samples // case.ranks)
    with tempfile.TemporaryDirectory(prefix="partita-overlap-") as name:
        folder = Path(name)
        alone.emit(folder / "alone.py")
        plans = [planned(case.model, case.plan, machine, case.samples, overlap) for overlap in (False, True)]
        texts = [plan.emit(_file(folder, plan.overlap)) for plan in plans]
        forms = [{"program": _file(folder, overlap).name} for overlap in (False, True)]
        job = Job(case.model, case.samples, forms, case.rounds, case.steps, "" if emulation is None else "alone.py")
        _run(emulation, case.ranks, job.write(folder))
        waiting, overlapped = (each["seconds"] for each in read_times(folder))
        before = None
        if emulation is not None:
            before = read_alone(folder) * 1e9, read_reduction(folder) * 1e9, read_hidden_share(folder)
    row: Row = {
        "waiting": median(waiting),
        "overlapped": median(overlapped),
        "spread": max(spread(waiting), spread(overlapped)),
    }
    if before is not None:
        step_ns, reduction_ns, hidden = before
        latency_ns = latency_of(machine, reduction_ns, _mean_bytes(alone))
        machine = with_latency(slowed(machine, step_ns / plan_price(alone).objective_ns), latency_ns)
        machine = replace(machine, hidden_share=hidden)
        row |= _predicted(case, plans, machine)
        row |= compared(row)
    return row | {"why": "both forms are the same program" if _same(*texts) else ""}


def _file(folder: Path, overlap: bool) -> Path:
    return folder / ("overlapped.py" if overlap else "waiting.py")


def _same(one: str, other: str) -> bool:
    """True if two programs have the same lines after their docstrings, which name the predicted step."""
    return one.split('"""', 2)[-1] == other.split('"""', 2)[-1]


def _run(emulation: Emulation | None, ranks: int, job: Path) -> None:
    """PartitaError: no network can be emulated here. LaunchError, RuntimeError: a rank failed."""
    worker = f"{__package__}.step_times"
    if emulation is None:
        torchrun(f"module:{worker}", ranks, [str(job)], timeout=SECONDS)
    else:
        with emulated(emulation) as nodes:
            run_ranks(emulation, nodes, ["-m", worker, str(job)], SECONDS)


def slowed(machine: Machine, factor: float) -> Machine:
    """The machine with a device that takes `factor` times as long for everything."""
    device = machine.device
    slow = replace(
        device,
        memory_bandwidth=device.memory_bandwidth / factor,
        peak={dtype: rate / factor for dtype, rate in device.peak.items()},
        launch_ns=device.launch_ns * factor,
    )
    return replace(machine, device=slow)


def hops(ranks: int) -> int:
    """Messages one after the other in gloo's all-reduce, once round a ring to add up and once to hand out."""
    return 2 * (ranks - 1)


def latency_of(machine: Machine, reduction_ns: float, size_bytes: float) -> float:
    """What each of these messages takes, in ns, beyond its part of the bytes of an all-reduce over all nodes."""
    nodes = machine.levels[0].size
    return max(reduction_ns / hops(nodes) - 1e9 * size_bytes / nodes / machine.levels[0].bandwidth, 0.0)


def _mean_bytes(plan: Plan) -> float:
    weights = [plan.graph.nodes[i] for i in plan.graph.of("parameter")]
    return mean(node.numel * ITEMSIZE[node.dtype] for node in weights)


def with_latency(machine: Machine, latency_ns: float) -> Machine:
    """The machine with this latency of all links."""
    return replace(machine, levels=tuple(replace(level, latency_ns=latency_ns) for level in machine.levels))


def _predicted(case: Case, plans: Sequence[Plan], machine: Machine) -> Row:
    """Seconds of the step of both forms; PartitaError if other plans are made for the machine than those that ran."""
    again = [planned(case.model, case.plan, machine, case.samples, plan.overlap) for plan in plans]
    if any(one.choices != other.choices for one, other in zip(again, plans, strict=True)):
        raise PartitaError("another plan is made for the machine as measured")
    waiting, overlapped = (plan_price(plan).objective_ns / 1e9 for plan in again)
    return {"predicted_waiting": waiting, "predicted_overlapped": overlapped}


def compared(row: Row) -> Row:
    """Gains and ratios of a row with measured and predicted times."""
    gain = row["waiting"] - row["overlapped"]
    predicted = row["predicted_waiting"] - row["predicted_overlapped"]
    return {
        "gain": gain,
        "predicted_gain": predicted,
        "share": gain / predicted if predicted > NOTICEABLE * row["predicted_waiting"] else None,
        "ratio": row["predicted_overlapped"] / row["overlapped"],
        "waiting_ratio": row["predicted_waiting"] / row["waiting"],
    }


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Cases, those with both steps predicted within 15 %, the least share of a gain, the worst ratio on loopback."""
    predicted = [row for row in rows if row["ratio"] is not None]
    near = [row for row in predicted if all(abs(row[key] - 1) <= WITHIN for key in ("ratio", "waiting_ratio"))]
    alone = [r["overlapped"] / r["waiting"] for r in rows if r["network"] == "loopback" and r["overlapped"] is not None]
    return {
        "cases": len(rows),
        "not_run": sum(row["overlapped"] is None for row in rows),
        "predicted": len(predicted),
        "within_15": len(near),
        "least_share_of_gain": min((row["share"] for row in rows if row["share"] is not None), default=None),
        "worst_on_loopback": max(alone, default=None),
    }
