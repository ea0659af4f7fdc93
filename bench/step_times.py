"""One rank of `bench baselines` and `bench overlap`: runs of steps, of several forms in turn; rank 0 writes the times.

Before that, ranks may time a program for one rank, all of them at once and each for itself, and all-reduces.

A form is an emitted program or one of PyTorch's own parallelizations (`rivals`), of one model on one batch. Each round
has one run of every form, in an order that alternates; between runs all ranks wait for each other.
"""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.profiler import ProfilerActivity, profile

from ..codegen.profile.cases import ROUNDS
from ..codegen.profile.fit import beside
from ..codegen.profile.rank import beside as times_beside
from ..codegen.profile.rank import record_of
from ..codegen.verification.reference import state_of
from ..codegen.verification.worker import compile_blocks, load_program
from ..solvers.cache.store import Record
from .rivals import Step, rival_step
from .step_models import MODELS, StepModel

JOB, RESULT, ALONE, REDUCTION, BESIDE = "job.json", "times.json", "alone.{}.json", "reduction.json", "beside.json"
CHECKED = 3
"""Steps of every form whose losses are compared; they warm up too."""

TRACED = 4
"""Steps under the profiler."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")

REDUCTIONS = 8
"""Timed all-reduces of every size, after two to warm up."""

BESIDE_BYTES = 1 << 20
"""Of the all-reduce that is timed beside products."""


@dataclass(frozen=True, slots=True)
class Job:
    """What ranks run: `forms` are {program: file in the folder} or {rival: name}, each perhaps `compiled`.

    A program is `compiled` if its plan is. `alone`: a program for one rank on its share of the samples, which every
    rank times first, as many steps as of a form; all together then time an all-reduce of every weight, and one beside
    products. `device`: cpu or cuda; on a GPU steps of every form are traced in the end.
    """

    model: str
    samples: int
    forms: list[dict[str, Any]]
    rounds: int
    steps: int
    alone: str = ""
    device: str = "cpu"

    def write(self, folder: Path) -> Path:
        """The file that `main` reads."""
        (folder / JOB).write_text(json.dumps(asdict(self)))
        return folder / JOB


def read_times(folder: Path) -> list[dict[str, Any]]:
    """For every form `losses` of its first steps, and `seconds` of a step in every round; on a GPU `trace` and `peak`.

    `peak`: bytes that it holds at most; `trace`: see `trace_of`.
    """
    found: list[dict[str, Any]] = json.loads((folder / RESULT).read_text())
    return found


def read_alone(folder: Path) -> float:
    """Seconds of a step of the program for one rank: the mean over the ranks that ran it at once."""
    return mean(float(file.read_text()) for file in folder.glob(ALONE.format("*")))


def read_reduction(folder: Path) -> float:
    """Seconds of an all-reduce of a weight over all ranks, the mean over the weights of the model."""
    return float((folder / REDUCTION).read_text())


def read_hidden_share(folder: Path) -> float:
    """The share of an all-reduce that products beside it hide."""
    share, _ = beside(json.loads((folder / BESIDE).read_text()))
    return share


def spread(seconds: Sequence[float]) -> float:
    """How far runs are apart: (longest - shortest) / median."""
    return (max(seconds) - min(seconds)) / median(seconds)


def main(path: Path) -> None:
    """Do a job."""
    torch.set_num_threads(1)
    job = Job(**json.loads(path.read_text()))
    if job.alone:
        _time_alone(path.parent, job)
    if job.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if job.device == "cuda" else "gloo")
    if job.alone:
        _time_reductions(path.parent, MODELS[job.model])
    model = MODELS[job.model]
    steps: list[Step] = []
    kept: list[int] = []
    found: list[dict[str, Any]] = []
    for form in job.forms:
        before = _held(job.device)
        steps.append(_step(path.parent, model, job, form))
        losses = [float(steps[-1](number)) for number in range(CHECKED)]
        found.append({"losses": losses, "seconds": []})
        kept.append(_held(job.device) - before)
    number = CHECKED
    for turn in range(job.rounds):
        order = list(zip(steps, found, strict=True))
        for step, times in reversed(order) if turn % 2 else order:  # none is always first
            times["seconds"].append(_timed(step, number, job.steps))
        number += job.steps
    if job.device == "cuda":
        for step, own, form in zip(steps, kept, found, strict=True):
            form["trace"], form["peak"] = _traced(step, number, own)
            number += TRACED
    if dist.get_rank() == 0:
        (path.parent / RESULT).write_text(json.dumps(found))
    dist.barrier()  # no rank ends while a thread of its backend still holds a tensor
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads, of groups of several programs, may abort an interpreter that ends on its own


def _time_alone(folder: Path, job: Job) -> None:
    """Time the program for one rank while the other ranks do the same."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    step = _step(folder, MODELS[job.model], replace(job, samples=job.samples // ranks), {"program": job.alone})
    for number in range(CHECKED):
        step(number)
    (folder / f"ready.{rank}").touch()
    while len(list(folder.glob("ready.*"))) < ranks:
        time.sleep(0.001)
    seconds = _timed(step, CHECKED, job.rounds * job.steps)
    (folder / ALONE.format(rank)).write_text(str(seconds))
    dist.destroy_process_group()


def _time_reductions(folder: Path, model: StepModel) -> None:
    """Time an all-reduce of every weight, and one beside products."""
    sizes = [weight.numel() for weight in model.module().parameters()]

    def seconds(size: int) -> float:
        flat = torch.zeros(size)
        for _ in range(2):
            dist.all_reduce(flat)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(REDUCTIONS):
            dist.all_reduce(flat)
        return (time.perf_counter() - start) / REDUCTIONS

    found = {size: seconds(size) for size in dict.fromkeys(sizes)}
    if dist.get_rank() == 0:
        (folder / REDUCTION).write_text(str(mean(found[size] for size in sizes)))
    together: Record | None = None
    for turn in range(ROUNDS):
        together = record_of({}, times_beside(BESIDE_BYTES, "cpu"), turn + 1, together)
    if dist.get_rank() == 0:
        (folder / BESIDE).write_text(json.dumps(together))


def _step(folder: Path, model: StepModel, job: Job, form: Mapping[str, Any]) -> Step:
    compiled = form.get("compiled", False)
    if "rival" in form:
        return rival_step(form["rival"], model, job.samples, compiled)
    program: Any = load_program(folder / form["program"])
    device = torch.device(job.device)
    mesh = program.Mesh(device)
    with device:
        own = program.Model(mesh)
    program.load(own, state_of(model.module()), mesh)
    if compiled:
        compile_blocks(program, own)
    optimizer, batch = program.make_optimizer(own, mesh), model.batch(job.samples)
    if job.device == "cuda":
        batch = {name: x.pin_memory() for name, x in batch.items()}  # as a DataLoader does, so that no copy waits
    return lambda number: program.train_step(own, optimizer, batch, mesh, number)


def _timed(step: Step, first: int, steps: int) -> float:
    """Seconds of a step, the mean over a run."""
    gc.collect()
    dist.barrier()
    _wait()
    start = time.perf_counter()
    for number in range(first, first + steps):
        step(number)
    _wait()
    dist.barrier()
    return (time.perf_counter() - start) / steps


# On a GPU


def _wait() -> None:
    """Until a GPU is done, where there is one for the job."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _held(device: str) -> int:
    """Bytes that tensors hold."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def _traced(step: Step, first: int, kept: int) -> tuple[dict[str, float], int]:
    """A trace of steps, and the bytes that the form holds at most; `kept`: between steps."""
    _wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:  # others would slow the host
        for number in range(first, first + TRACED):
            step(number)
        _wait()
    peak = kept + torch.cuda.max_memory_allocated() - before
    with tempfile.TemporaryDirectory(prefix="partita-trace-") as scratch:
        file = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return trace_of(json.loads(file.read_text())["traceEvents"]), peak


def trace_of(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a trace of steps says: `busy`, the share of the time in which kernels run; `waits` of the host, a step.

    `kernels` a step; `us`: microseconds of a step on the GPU, from the first kernel to the last.
    """
    calls = [(e["ts"], e["name"]) for e in events if e.get("cat") == "cuda_runtime"]
    launches = sorted(ts for ts, name in calls if "Launch" in name)
    waits = sum(name in WAITS and launches[0] < ts < launches[-1] for ts, name in calls)
    kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in ON_DEVICE)
    busy, until = 0.0, kernels[0][0]
    for start, stop in kernels:
        busy += max(stop - max(start, until), 0.0)
        until = max(until, stop)
    took = until - kernels[0][0]
    return {"busy": busy / took, "waits": waits / TRACED, "kernels": len(kernels) / TRACED, "us": took / TRACED}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
