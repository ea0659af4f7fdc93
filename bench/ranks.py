"""One rank of `bench network`: runs emitted reduction programs, rank 0 writes what they took."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..codegen.verification.worker import load_program


def main(job: Path) -> None:
    """Do every run of a job, `rounds` times one after another: emitted file, arguments of its `measure`.

    Then the programs that took at most `near` times what their run's fastest did, `again` times more.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with suppress(PermissionError):  # links are to be the limit, not what else runs on this computer
        os.nice(-20)
    todo = json.loads(job.read_text())
    modules = [load_program(job.parent / run["file"]) for run in todo["runs"]]

    def measured(only: list[Any]) -> list[dict[str, Any]]:
        runs = zip(modules, todo["runs"], only, strict=True)
        return [module.measure(run["bytes"], 1, only=names, ring=run["ring"]) for module, run, names in runs]

    rounds = [measured([None] * len(modules)) for _ in range(todo["rounds"])]
    leaders = [_leaders(of_run, todo["near"]) for of_run in zip(*rounds, strict=True)]
    dist.broadcast_object_list(leaders)  # ranks have measured each for itself
    rounds += [measured(leaders) for _ in range(todo["again"])]
    if dist.get_rank() == 0:
        (job.parent / "results.json").write_text(json.dumps(rounds))
    dist.barrier()  # no rank ends while a thread of its backend still holds a tensor
    dist.destroy_process_group()


def _leaders(rounds: Sequence[dict[str, Any]], near: float) -> list[str]:
    fastest = {name: min(found[name]["seconds"] for found in rounds) for name in rounds[0]}
    return [name for name, seconds in fastest.items() if seconds <= near * min(fastest.values())]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
