"""What the host needs to issue a call of PyTorch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ...model.machine.machine import Machine
from ...model.zoo.gpt import GPT
from ..planner.planner import optimize
from ..pricing.stage_price import stage_price
from ..verification.reference import state_of
from ..verification.threads import run_threads
from ..verification.worker import load_program

DEPTHS = (1, 3)
"""Layers of the two models whose difference is timed."""


def host_calls(device: str = "cpu", repeats: int = 200) -> dict[str, Any]:
    """What the host needs for a call (`Item.calls`) in forward, in backward, and in both: ns, the median of `repeats`.

    What two more layers of an emitted GPT on tiny tensors take, by the calls that are counted for them: in mixed
    bfloat16 on a GPU, where kernels are queued, and in float32 on a CPU, where they run meanwhile.
    """
    took, calls = zip(*(_issued(layers, device, repeats) for layers in DEPTHS), strict=True)
    more, counted = ([b - a for a, b in zip(*of, strict=True)] for of in (took, calls))
    names, every = ("forward_ns", "backward_ns"), zip(more, counted, strict=True)
    each = {name: round(ns / n) for name, (ns, n) in zip(names, every, strict=True)}
    return {"device": device, "calls": counted, **each, "host_ns": max(round(sum(more) / sum(counted)), 0)}


def _issued(layers: int, device: str, repeats: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """ns of forward and of backward on the host, and the calls that a price counts for them."""
    model, ids = GPT(16, 4, layers, 8, 2, 0.0), torch.zeros(1, 4, dtype=torch.int64)
    dtype = "float32" if device == "cpu" else "mixed-bfloat16"
    plan = optimize(model, {"ids": ids, "labels": ids}, machine=Machine.load("cpu", nodes=1), dtype=dtype)
    wait: Callable[[], None] = torch.cuda.synchronize if device != "cpu" else lambda: None

    def run(_: int) -> tuple[int, int]:
        mesh = program.Mesh(device)
        with torch.device(device):
            own = program.Model(mesh)
        program.load(own, state_of(model), mesh)
        inputs = program.synthetic(0)
        times: list[tuple[int, int]] = []
        for _ in range(repeats):
            wait()
            start = time.perf_counter_ns()
            loss = program.loss_of(own, inputs, mesh, False)
            middle = time.perf_counter_ns()
            loss.backward()
            end = time.perf_counter_ns()
            times.append((middle - start, end - middle))
        forward, backward = (round(median(each)) for each in zip(*times, strict=True))
        return forward, backward

    with tempfile.TemporaryDirectory(prefix="partita-host-") as folder:
        plan.emit(Path(folder) / "program.py")
        program: Any = load_program(Path(folder) / "program.py")
        (took,) = run_threads(run, 1)
    items = stage_price(plan.parts[0]).items
    forward, backward = (sum(x.calls for x in items if x.phase == phase) for phase in ("forward", "backward"))
    return took, (forward, backward)
