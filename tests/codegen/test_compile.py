"""Compiled blocks of emitted programs: one graph each, without breaks, and none anew for every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .beginnings import begun
from .test_emit import layers, megatron
from .test_gatherings import graph_of, sharded

RUN = """
import sys
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, sys.argv[1])
import sharded
import tensor

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)  # what is sent does not matter
torch._dynamo.config.allow_unspec_int_on_nn_module = True
for program in tensor, sharded:
    mesh, model, optimizer = program.build()
    for layer in model.layers:
        if hasattr(layer, "compute"):  # the layer without gathering its weights
            layer.compute = torch.compile(layer.compute, backend="aot_eager", fullgraph=True)
        else:
            layer.compile(backend="aot_eager", fullgraph=True)
    for step in range(5):
        torch._dynamo.config.error_on_recompile = step > 2  # by then numbers are known to vary
        program.train_step(model, optimizer, program.synthetic(step), mesh, step)
    print(counters["stats"]["unique_graphs"], len(counters["graph_break"]))
    torch._dynamo.reset()
    counters.clear()
"""


def test_blocks_compile_without_breaks(tmp_path: Path) -> None:
    begun(megatron(layers(), micro=1)).emit(tmp_path / "tensor.py")
    begun(sharded(graph_of(8), (2, 2), 1)).emit(tmp_path / "sharded.py")
    done = subprocess.run([sys.executable, "-c", RUN, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (graphs, breaks), of_sharded = ([int(x) for x in line.split()] for line in done.stdout.splitlines())
    assert graphs <= 4 and not breaks
    assert of_sharded == [1, 0]
