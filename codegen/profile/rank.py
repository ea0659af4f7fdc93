"""One rank of `partita profile`: times what a job lists, at the same time as all other ranks.

    python -m partita.codegen.profile.rank JOB

Everything is measured in several rounds, and a result is the median over all of them, so that a few seconds of other
work on the machine do not spoil it. Rank 0 stores each result as it comes, so that a run that
is stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ...formulation.placement.placement import divisors
from ...model.graph.interpreter import computed
from ...model.graph.pcg import Node
from ...model.operators.operator import operator
from ...solvers.cache.store import Record, Store
from .cases import rounds_of
from .timing import Timing, timed

COPIES_BYTES = 1 << 25
"""Inputs rotate through copies of so many bytes together, as a step does not find all of them in the caches."""
MAX_COPIES = 8
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
SLOW_NS = 20e6
TURNS = 16
"""How often in a round each of several calls that are compared is timed, one after the other."""

Measured = dict[str, Timing]
"""By phase, or by what is timed."""


def main(path: Path) -> None:
    """Do a job: {device, store, key, rounds, cases: [[part, case, rounds done], ...]}."""
    job = json.loads(path.read_text())
    device = job["device"]
    if device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    store = Store(Path(job["store"])) if rank == 0 else None
    groups = {size: _groups(size) for size in divisors(dist.get_world_size()) if size > 1}
    key = bytes.fromhex(job["key"])
    known = store.read(key) if store is not None else {}
    failures: set[str] = set()
    for turn in range(job["rounds"]):
        for part, case, done in job["cases"]:
            if not done <= turn < rounds_of(case) or part in failures:
                continue
            failed = _failure(case, device) if case["what"] == "operator" and turn == done else ""
            found = {} if failed else MEASURES[case["what"]](case, device, groups)
            failures |= {part} if failed else set()
            if store is not None:
                known[part] = record_of(case, found, turn + 1, known[part] if turn else None, failed)
                store.write(key, part, known[part])
    dist.barrier()
    if store is not None:
        store.close()
    sys.stdout.flush()
    os._exit(0)  # threads of the backend may abort an interpreter that ends on its own


def record_of(
    case: Mapping[str, Any], found: Measured, rounds: int, before: Record | None = None, failed: str = ""
) -> Record:
    """The record of a case after so many rounds: the windows that the last `found`, after those `before`."""
    windows = {name: list(of) for name, of in before["windows"].items()} if before is not None else {}
    for name, time in found.items():
        windows.setdefault(name, []).extend(time.windows)
    times = {name: Timing(tuple(of)) for name, of in windows.items()}
    return {
        "case": dict(case),
        "times": {name: [time.ns, time.spread] for name, time in times.items()},
        "windows": windows,
        "rounds": rounds,
        "failed": failed,
    }


def _groups(size: int) -> Any:
    """The group of `size` neighbouring ranks to which this rank belongs; all ranks make all groups."""
    mine = None
    for start in range(0, dist.get_world_size(), size):
        group = dist.new_group(list(range(start, start + size)))
        if start <= dist.get_rank() < start + size:
            mine = group
    assert mine is not None
    return mine


# Operators


def _failure(case: Mapping[str, Any], device: str) -> str:
    """Why an operator cannot be run by itself on some rank: every rank tries it once, before any times it."""
    words = ""
    try:
        made = _Operation(case)
        inputs = made.inputs(device, 0)
        output = made.run(inputs)
        if made.leaves(inputs):
            torch.autograd.grad(output, made.leaves(inputs), torch.ones_like(output), allow_unused=True)
    except Exception as error:  # whatever it is, the other ranks have to know
        words = f"{type(error).__name__}: {error}"[:500]
    failed = torch.tensor(float(bool(words)), device=device)
    dist.all_reduce(failed)
    return (words or "it failed on another rank") if failed else ""


def _operator(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """Forward and backward of an operator, each by itself."""
    made = _Operation(case)
    tensors = [*case["inputs"], case["output"]]
    size = sum(prod(given["shape"]) for given in tensors) * made.dtype.itemsize
    copies = [made.inputs(device, seed) for seed in range(min(max(COPIES_BYTES // max(size, 1), 1), MAX_COPIES))]
    turn = _Turn(copies)
    with torch.no_grad():
        found = {"forward": timed(lambda: made.run(turn.next()), device)}
    if made.leaves(copies[0]):
        ran = [(made.run(given), made.leaves(given)) for given in copies]
        ends = _Turn([(out, torch.ones_like(out), leaves) for out, leaves in ran])

        def backward() -> None:
            out, gradient, leaves = ends.next()
            torch.autograd.grad(out, leaves, gradient, retain_graph=True, allow_unused=True)

        found["backward"] = timed(backward, device)
    return found


class _Turn:
    """Each of some values in turn."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values, self.at = values, -1

    def next(self) -> Any:
        self.at = (self.at + 1) % len(self.values)
        return self.values[self.at]


class _Operation:
    """An operator of a case, as the program computes it: the expression of its line, losses in 32 bits at least."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        output = case["output"]
        self.case, self.dtype = case, getattr(torch, case["dtype"])
        self.node = Node(
            case["op"],
            "",
            tuple(range(len(case["inputs"]))),
            tuple(output["shape"]),
            output["dtype"],
            attributes=tuple((name, _tuples(value)) for name, value in case["attributes"]),
            gradient=output["gradient"],
        )
        entry, self.code = operator(case["op"]), None
        if entry.emit:
            dtype = case["dtype"] if output["dtype"] == "float32" else output["dtype"]
            names = [f"x{place}" for place in self.node.inputs]
            self.code = compile(entry.expression(self.node, names, f"torch.{dtype}"), "<operator>", "eval")

    def run(self, given: Sequence[Tensor]) -> Tensor:
        """The output; dropout is torch's own."""
        if self.node.op == "dropout":
            return F.dropout(given[0], self.node["p"])
        if self.code is None:  # a loss, whose line depends on the plan
            whole = torch.promote_types(self.dtype, torch.float32)
            return computed(self.node, [x.to(whole) if x.is_floating_point() else x for x in given])
        operands = {f"x{place}": tensor for place, tensor in enumerate(given)}
        value: Tensor = eval(self.code, {"torch": torch, "F": F}, operands)
        return value

    def leaves(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The operands whose gradients backward computes."""
        return [x for x in given if x.requires_grad] if self.node.gradient else []

    def inputs(self, device: str, seed: int) -> list[Tensor]:
        """Random operands; ids count among the rows that are looked up, other integers are 0."""
        draw = torch.Generator().manual_seed(seed)
        made = []
        for given in self.case["inputs"]:
            kind = getattr(torch, given["dtype"])
            if kind == torch.bool:
                made.append(torch.ones(given["shape"], dtype=kind, device=device))
            elif not kind.is_floating_point:
                made.append(torch.randint(self.case["rows"], given["shape"], generator=draw, dtype=kind).to(device))
            else:
                value = torch.randn(given["shape"], generator=draw).to(self.dtype).to(device)
                made.append(value.requires_grad_(bool(given["gradient"])))
        return made


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# Collectives


def _collective(case: Mapping[str, Any], device: str, groups: Mapping[int, Any]) -> Measured:
    """A collective of float32 in all groups of a size at once; bytes are those of the larger side."""
    group, size, count = groups[case["group"]], case["group"], max(case["bytes"] // 4, case["group"])
    count -= count % size
    large, small = torch.zeros(count, device=device), torch.zeros(count // size, device=device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(large, group=group),
        "all_gather": lambda: gather(large, small, group=group),
        "reduce_scatter": lambda: scatter(small, large, group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(large), large, group=group),
        "send": lambda: _to_next(large, group),
    }
    return {"call": timed(calls[case["kind"]], device)}


def _beside(case: Mapping[str, Any], device: str, groups: Mapping[int, Any]) -> Measured:
    return beside(case["bytes"], device, groups[case["group"]])


def beside(size_bytes: int, device: str, group: Any = None) -> Measured:
    """An all-reduce and products that take about as long, each alone, side by side, and one after the other.

    They take turns, because their difference is what counts, and the computer's speed drifts by more than that.
    """
    large = torch.zeros(size_bytes // 4, device=device)
    size = 256 if device == "cpu" else 1024
    one = torch.randn(size, size, device=device)

    def reduced() -> None:
        dist.all_reduce(large, group=group)

    alone = timed(reduced, device)
    count = max(round(alone.ns / timed(lambda: one @ one, device).ns), 1)  # the same on all ranks, as times are

    def products() -> None:
        for _ in range(count):
            one @ one

    def both() -> None:
        work = dist.all_reduce(large, group=group, async_op=True)
        products()
        work.wait()

    def in_turn() -> None:
        products()
        reduced()

    calls = {"reduced": reduced, "products": products, "beside": both, "in turn": in_turn}
    windows: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            windows[name] += timed(call, device).windows
    return {name: Timing(tuple(of)) for name, of in windows.items()}


def _to_next(sent: Tensor, group: Any) -> None:
    """Send to the next member of the group, and receive from the one before."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    after, before = (dist.get_global_rank(group, (rank + step) % size) for step in (1, -1))
    received = torch.empty_like(sent)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, after, group), dist.P2POp(dist.irecv, received, before, group)]
    ):
        work.wait()


# The device


def _product(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """Products of square matrices, ever larger while they are quick; by their size."""
    found: Measured = {}
    for size in SIZES:
        one = torch.randn(size, size, device=device).to(getattr(torch, case["dtype"]))
        found[str(size)] = timed(lambda one=one: one @ one, device)  # type: ignore[misc]
        if found[str(size)].ns > SLOW_NS:
            break
    return found


def _update(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """An update of AdamW of so many float32 weights."""
    weight = torch.zeros(case["elements"], device=device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    return {"call": timed(optimizer.step, device)}


def _launch(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """A kernel that does next to nothing."""
    one = torch.zeros(1, device=device)
    return {"call": timed(lambda: one.add_(1), device)}


def _step(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """What a program's step does whatever the model: sums of labels, losses and norms over ranks, clipping, rates."""
    weight = torch.zeros(1, device=device, requires_grad=True)
    gradient = weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    labels, loss = torch.ones(1, device=device), torch.ones(1, device=device)

    def step() -> None:
        for scalar in (labels, loss):
            dist.all_reduce(scalar.zero_())
        norm = torch.stack(torch._foreach_norm([gradient])).double().square().sum()
        dist.all_reduce(norm)
        factor = (1.0 / (norm.sqrt() + 1e-6)).clamp(max=1.0).float()
        torch._foreach_mul_([gradient], factor)
        optimizer.step()
        schedule.step()

    return {"call": timed(step, device)}


def _host_copy(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """A copy from the host's memory to the device's; on a CPU within the same memory."""
    host = torch.zeros(case["bytes"], dtype=torch.uint8, pin_memory=device == "cuda")
    here = torch.zeros(case["bytes"], dtype=torch.uint8, device=device)
    return {"call": timed(lambda: here.copy_(host, non_blocking=True), device)}


def _resting(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """What a rank holds before it has a model: bytes, in the place of ns."""
    dist.all_reduce(torch.zeros(1 << 20, device=device))
    if device == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return {"call": Timing((float(total - free),))}
    return {"call": Timing((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,))}


MEASURES: dict[str, Callable[[Mapping[str, Any], str, Any], Measured]] = {
    "operator": _operator,
    "collective": _collective,
    "beside": _beside,
    "product": _product,
    "update": _update,
    "launch": _launch,
    "step": _step,
    "host_copy": _host_copy,
    "resting": _resting,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
