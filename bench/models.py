"""Architectures of the ecosystem, small, with random weights: captured, planned for 2x4 ranks, verified.

Each runs in a process of its own, with limits of memory and time. Devices and links are slow, so that plans are split;
`verify` compares the loss, every gradient and the weights after three steps with the module's own, in float64.
`unsplit` is the share of the work that no axis splits. `--small` runs those that need nothing but PyTorch,
`--sample N --seed S` N architectures at random of those that transformers has.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..codegen.planner.planner import optimize
from ..model.errors import PartitaError
from ..model.machine.machine import Level, Machine
from .architectures import NAMED, make, sampled
from .cases import GIB, Row, Tell, each
from .plain_models import PLAIN

MESH = (2, 4)
BATCH = 8
SEARCH_SECONDS = 60.0
GAP = 0.01
SECONDS = 400.0
"""Of one architecture, from import to verdict."""
MEMORY = 8 * GIB
EMPTY: Row = dict.fromkeys(("nodes", "unsplit", "capture_s", "plan_s", "verify_s"))


def slow_machine(mesh: Sequence[int] = MESH) -> Machine:
    """Devices so slow that it pays to split even small models; a level for every axis, the outer ones slower."""
    device = Machine.adhoc((1,)).device
    device = replace(
        device, peak=dict.fromkeys(device.peak, 1e11), memory_bandwidth=1e11, launch_ns=100, reserved_bytes=0
    )
    levels = []
    for k, size in enumerate(mesh):
        out = len(mesh) - 1 - k
        levels.append(Level(f"level{k}", size, 8e10 / 3**out * math.prod(mesh[k + 1 :]), 100 * 2**out))
    return Machine("slow", tuple(levels), device)


def run(small: bool, only: Sequence[str], tell: Tell, sample: int | None = None, seed: int = 0) -> list[Row]:
    """One row for each architecture, or for each of a `sample` of so many."""
    names = sampled(sample, seed) if sample else [*PLAIN] if small else [*NAMED]
    rows = []
    for name in each(names, only, tell, str, "model"):
        start = time.monotonic()
        row = {"model": name} | apart(name)
        rows.append(row | {"total_s": time.monotonic() - start})
        tell(f"{name}: {rows[-1]['result']}")
    return rows


def apart(name: str, module: str = __name__) -> Row:
    """What `module` measures of one architecture, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", module, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return EMPTY | {"result": f"no verdict in {SECONDS:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines and lines[-1].startswith("{"):
        row: Row = json.loads(lines[-1])
        return row
    last = next(iter(reversed(done.stderr.strip().splitlines())), f"exit code {done.returncode}")
    return EMPTY | {"result": f"crashed: {last}"}


def measured(name: str) -> Row:
    """Capture, plan and verify one architecture; `result` is "verified", or the first sentence of the refusal."""
    row = dict(EMPTY)
    clock = _Clock()
    try:
        module, inputs = make(name)
        clock.lap()
        plan = optimize(
            module, inputs, slow_machine(), batch=BATCH, mesh=MESH, stages=1, gap=GAP, time_limit=SEARCH_SECONDS,
            cache="none", workers=1,
        )  # fmt: skip
        seconds, capture = clock.lap(), plan.report["seconds"]["capture"]
        row |= {"nodes": len(plan.graph.nodes), "unsplit": plan.report["unsplit_flops"]}
        row |= {"capture_s": capture, "plan_s": seconds - capture}
        verdict = plan.verify()
    except PartitaError as refusal:
        return row | {"result": first_sentence(str(refusal))}
    row["verify_s"] = clock.lap()
    return row | {"result": "verified" if verdict["ok"] else f"WRONG: {verdict['failure']}"}


def first_sentence(words: str) -> str:
    """The first sentence of a refusal, without the advice after a semicolon."""
    return words.split("; ")[0].split("\n")[0]


class _Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        self.last, seconds = now, now - self.last
        return seconds


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How many verify, how many of these split at least nine tenths of their work."""
    verified = [row for row in rows if row["result"] == "verified"]
    return {
        "models": len(rows),
        "verified": len(verified),
        "split": sum(row["unsplit"] <= 0.1 for row in verified),
        "wrong": sum(row["result"].startswith(("WRONG", "crashed")) for row in rows),
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """The results by how often they occur."""
    counts = Counter(row["result"] for row in rows)
    return [{"result": words, "models": count} for words, count in counts.most_common()]


def main(name: str, measure: Callable[[str], Row] = measured) -> None:
    """Measure one architecture within the limits of a process, and print its row as JSON."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    torch.set_num_threads(1)
    print(json.dumps(measure(name)))


if __name__ == "__main__":
    main(sys.argv[1])
