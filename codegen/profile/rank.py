"""One rank of `partita profile`: times what a job lists, at the same time as all other ranks.

    python -m partita.codegen.profile.rank JOB

Rank 0 stores each result as it comes, so that a run that is stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ...model.errors import PartitaError
from ...model.graph.interpreter import computed
from ...model.graph.pcg import Node
from ...solvers.cache.store import Store
from .timing import Timing, timed

COPIES_BYTES = 1 << 25
"""Inputs rotate through copies of so many bytes together, as a step does not find all of them in the caches."""
MAX_COPIES = 8
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
SLOW_NS = 20e6

Measured = dict[str, Timing]
"""By phase, or by what is timed."""


def main(path: Path) -> None:
    """Do a job: {device, store, key, cases: [[part, case], ...]}."""
    job = json.loads(path.read_text())
    device = job["device"]
    if device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    store = Store(Path(job["store"])) if rank == 0 else None
    groups = {size: _groups(size) for size in _divisors(dist.get_world_size())}
    for number, (part, case) in enumerate(job["cases"]):
        failed = ""
        try:
            found = MEASURES[case["what"]](case, device, groups)
        except (RuntimeError, ValueError, TypeError, IndexError, PartitaError) as error:  # an operator that cannot
            found, failed = {}, f"{type(error).__name__}: {error}"[:500]  # ... be run by itself
        if store is not None:
            record = {"case": case, "times": {name: list(time) for name, time in found.items()}, "failed": failed}
            store.write(bytes.fromhex(job["key"]), part, record)
            print(f"{number + 1} of {len(job['cases'])} measured", flush=True)
    dist.barrier()
    if store is not None:
        store.close()
    sys.stdout.flush()
    os._exit(0)  # threads of the backend may abort an interpreter that ends on its own


def _divisors(ranks: int) -> list[int]:
    return [size for size in range(2, ranks + 1) if ranks % size == 0]


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


def _operator(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """Forward and backward of an operator, each by itself."""
    output = case["output"]
    node = Node(
        case["op"],
        "",
        tuple(range(len(case["inputs"]))),
        tuple(output["shape"]),
        output["dtype"],
        attributes=tuple((name, _tuples(value)) for name, value in case["attributes"]),
        gradient=output["gradient"],
    )
    dtype = getattr(torch, case["dtype"])
    size = sum(_numel(given) for given in case["inputs"]) * dtype.itemsize
    copies = [
        _inputs(case, dtype, device, seed) for seed in range(min(max(COPIES_BYTES // max(size, 1), 1), MAX_COPIES))
    ]
    turn = _Turn(copies)
    with torch.no_grad():
        found = {"forward": timed(lambda: _run(node, turn.next()), device)}
    if node.gradient and any(given["gradient"] for given in case["inputs"]):
        made = [(_run(node, given), [x for x in given if x.requires_grad]) for given in copies]
        ends = _Turn([(out, torch.ones_like(out), leaves) for out, leaves in made])

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


def _run(node: Node, given: Sequence[Tensor]) -> Tensor:
    if node.op == "dropout":
        return F.dropout(given[0], node["p"])
    return computed(node, given)


def _inputs(case: Mapping[str, Any], dtype: torch.dtype, device: str, seed: int) -> list[Tensor]:
    """Random operands; ids count among the rows of the table that is looked up, other integers are 0 or 1."""
    draw = torch.Generator().manual_seed(seed)
    looked_up = case["looked_up"]
    rows = 2 if looked_up is None else case["inputs"][looked_up]["shape"][0]
    made = []
    for given in case["inputs"]:
        kind = getattr(torch, given["dtype"])
        if kind == torch.bool:
            made.append(torch.ones(given["shape"], dtype=kind, device=device))
        elif not kind.is_floating_point:
            made.append(torch.randint(rows, given["shape"], generator=draw, dtype=kind).to(device))
        else:
            value = torch.randn(given["shape"], generator=draw).to(dtype).to(device)
            made.append(value.requires_grad_(bool(given["gradient"])))
    return made


def _numel(given: Mapping[str, Any]) -> int:
    count = 1
    for size in given["shape"]:
        count *= size
    return count


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
        one = torch.ones(size, size, dtype=getattr(torch, case["dtype"]), device=device)
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


def _host_copy(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """A copy from the host's memory to the device's; on a CPU within the same memory."""
    host = torch.zeros(case["bytes"], dtype=torch.uint8, pin_memory=device == "cuda")
    here = torch.zeros(case["bytes"], dtype=torch.uint8, device=device)
    return {"call": timed(lambda: here.copy_(host), device)}


def _resting(case: Mapping[str, Any], device: str, groups: Any) -> Measured:
    """Bytes (in place of ns) that a rank holds before it has a model."""
    dist.all_reduce(torch.zeros(1 << 20, device=device))
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return {"call": Timing(float(total - free), 0.0)}
    return {"call": Timing(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, 0.0)}


MEASURES: dict[str, Callable[[Mapping[str, Any], str, Any], Measured]] = {
    "operator": _operator,
    "collective": _collective,
    "product": _product,
    "update": _update,
    "launch": _launch,
    "host_copy": _host_copy,
    "resting": _resting,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
