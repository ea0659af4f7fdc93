"""Programs in processes of their own: what they print, how they fail, and that none is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita import PartitaError
from partita.codegen.verification.launch import LaunchError, torchrun

PROGRAM = """
import os, sys, time
if sys.argv[1] == "hang":
    print("pid", os.getpid(), flush=True)
    time.sleep(600)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if sys.argv[1] == "raise" and rank == 1:
    raise ValueError("rank one gives up")
x = torch.tensor([float(rank + 1)])
dist.all_reduce(x)
if rank == 0:
    print("sum", x.item(), sys.argv[1:])
dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_runs(program: Path) -> None:
    assert "sum 3.0 ['a', 'b']" in torchrun(program, 2, ["a", "b"])


def test_a_rank_that_raises(program: Path) -> None:
    with pytest.raises(LaunchError, match=r"exit code 1(.|\n)*ValueError: rank one gives up"):
        torchrun(program, 2, ["raise"])


def test_nothing_is_left_after_the_time_limit(program: Path) -> None:
    with pytest.raises(LaunchError, match="did not finish in 10 s") as caught:
        torchrun(program, 1, ["hang"], timeout=10)
    words = caught.value.output.split()
    pid = words[words.index("pid") + 1]
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match="is not a program file"):
        torchrun(tmp_path / "none.py", 2)
