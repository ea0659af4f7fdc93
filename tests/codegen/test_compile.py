"""Compiled blocks of emitted programs: one graph each, without breaks, and none anew for every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .beginnings import begun
from .test_emit import layers, megatron

RUN = """
import sys
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, sys.argv[1])
import program

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=program.RANKS)  # what is sent does not matter
mesh, model, optimizer = program.build()
torch._dynamo.config.allow_unspec_int_on_nn_module = True
for layer in model.layers:
    layer.compile(backend="aot_eager", fullgraph=True)
for step in range(5):
    torch._dynamo.config.error_on_recompile = step > 2  # by then numbers are known to vary
    program.train_step(model, optimizer, program.synthetic(step), mesh, step)
print(counters["stats"]["unique_graphs"], len(counters["graph_break"]))
"""


def test_blocks_compile_without_breaks(tmp_path: Path) -> None:
    begun(megatron(layers(), micro=1)).emit(tmp_path / "program.py")
    done = subprocess.run([sys.executable, "-c", RUN, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    graphs, breaks = map(int, done.stdout.split())
    assert graphs <= 4 and not breaks
