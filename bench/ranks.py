"""One rank of `bench network`: runs emitted reduction programs, rank 0 writes what they took."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from ..codegen.verification.worker import load_program


def main(job: Path) -> None:
    """Do every run of a job, `rounds` times one after another: emitted file, arguments of its `measure`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with suppress(PermissionError):  # links are to be the limit, not what else runs on this computer
        os.nice(-20)
    todo = json.loads(job.read_text())
    modules = [load_program(job.parent / run["file"]) for run in todo["runs"]]
    rounds = [
        [module.measure(run["bytes"], 1, ring=run["ring"]) for module, run in zip(modules, todo["runs"], strict=True)]
        for _ in range(todo["rounds"])
    ]
    if dist.get_rank() == 0:
        (job.parent / "results.json").write_text(json.dumps(rounds))
    dist.barrier()  # no rank ends while a thread of its backend still holds a tensor
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
