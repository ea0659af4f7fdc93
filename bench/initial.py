"""Initial weights: what every rank begins with, beside the module's own after the same seed.

The small twins of the zoo, the architectures of `bench models`, some of timm and torchvision. The constructor is
recorded and the model planned for 2x4 ranks, with operators forced to split their weights, by rows or by columns at
random, where they can. The emitted `initialize` runs on eight threads. `equal` is equality of every element in float32.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..codegen.emission.common.defaults import SEED
from ..codegen.plan.plan import Plan
from ..codegen.verification.reference import state_of
from ..codegen.verification.threads import RankError, run_threads
from ..codegen.verification.worker import held, initial_errors, load_program
from ..model.capture.capture import capture
from ..model.capture.initial import constructed
from ..model.capture.load import load_module
from ..model.capture.references.scheme import SCHEMES
from ..model.errors import PartitaError
from ..model.zoo import zoo
from .architectures import NAMED, SMALL, make
from .cases import Row, Tell, measured
from .models import BATCH, apart, first_sentence, main
from .plain_models import PLAIN
from .split_weights import SECONDS, split_plan

REFERENCES = (
    "timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224", "timm:convnext_atto", "timm:mixer_s32_224",
    "timm:resnet10t", "timm:regnetx_002", "timm:efficientnet_lite0", "timm:deit3_small_patch16_224",
    "torchvision:vit_b_16", "torchvision:swin_t", "torchvision:convnext_tiny", "torchvision:vgg11",
    "torchvision:squeezenet1_1", "torchvision:regnet_x_400mf",
)  # fmt: skip
MEASURED = ("tensors", "parameters_m", "stored", "record_s", "file_kb", "held", "begin_s")
Build = Callable[[], tuple[nn.Module, Any]]


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """One row for each architecture; with `small` those that need nothing but PyTorch."""
    names = [f"zoo {name}" for name in zoo()] + ([*PLAIN] if small else [*NAMED, *REFERENCES])
    return measured(names, only, tell, alone, str, "model")


def alone(name: str) -> Row:
    """`measure` in a process of its own, within limits of memory and time."""
    row = apart(name, __name__)
    return {"model": name} | {key: row.get(key) for key in (*MEASURED, "result")}


def builder(name: str) -> Build:
    """What makes the module of an architecture on the CPU, and its inputs."""
    if name.startswith("zoo "):
        return partial(load_module, name.removeprefix("zoo "), small=True, device="cpu")
    scheme, _, model = name.partition(":")
    return partial(SCHEMES[scheme].load, model, SMALL) if model else partial(make, name)


def measure(name: str) -> Row:
    """Record, plan and begin one architecture; `result` is "equal", or the first sentence of a refusal.

    `stored`: tensors whose values are in the file beside the program, of `file_kb` KiB, instead of being drawn or
    filled. `held`: the largest share of the weights that a rank has. `record_s`, `begin_s`: seconds to record, and
    until all ranks on one core have begun.
    """
    row: Row = dict.fromkeys(MEASURED)
    build = builder(name)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            module, inputs = build()
        graph = capture(module, inputs, batch=BATCH)
        start = time.monotonic()
        initial = constructed(lambda: build()[0], graph.originals, SEED)
        recorded = time.monotonic() - start
        plan = split_plan(graph, initial)
    except PartitaError as refusal:
        return {"model": name} | row | {"result": first_sentence(str(refusal))}
    except Exception as error:
        return {"model": name} | row | {"result": f"crashed: {type(error).__name__}: {first_sentence(str(error))}"}
    row |= {
        "tensors": len(graph.originals),
        "parameters_m": sum(p.numel() for p in module.parameters()) / 1e6,
        "stored": len(initial.stored),
        "record_s": recorded,
    }
    return {"model": name} | row | begun(plan, state_of(module))


def begun(plan: Plan, expected: Mapping[str, Tensor]) -> Row:
    """Begin on threads; compare every rank's parts with the module's tensors."""
    with tempfile.TemporaryDirectory(prefix="partita-initial-") as folder:
        path = Path(folder) / "program.py"
        path.write_text(plan.emit())
        for name, write in plan.initial.files().items() if plan.initial else ():
            write(path.parent / name)
        size = sum(file.stat().st_size for file in path.parent.glob("*.pt"))
        program = load_program(path)

        def begin(_: int) -> tuple[dict[str, float], int]:
            mesh = program.Mesh()
            errors = initial_errors(program, mesh, expected, torch.float32)
            return errors, sum(part.nbytes for _, part in held(program.Model(mesh)))

        start = time.monotonic()
        try:
            ranks = run_threads(begin, plan.ranks, timeout=SECONDS * plan.ranks)
        except RankError as failure:
            return {"file_kb": size / 1024, "result": f"crashed: {first_sentence(str(failure))}"}
    wrong = [f"{name} on rank {rank}" for rank, (errors, _) in enumerate(ranks) for name, e in errors.items() if e]
    whole = sum(expected[name].nbytes for name in plan.graph.originals)
    return {
        "file_kb": size / 1024,
        "held": max(own for _, own in ranks) / whole,
        "begin_s": time.monotonic() - start,
        "result": f"WRONG: {wrong[0]} and {len(wrong) - 1} more" if wrong else "equal",
    }


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How many are equal; how many of these leave nothing to the file."""
    equal = [row for row in rows if row["result"] == "equal"]
    return {
        "models": len(rows),
        "equal": len(equal),
        "without_file": sum(not row["stored"] for row in equal),
        "wrong": sum(row["result"].startswith(("WRONG", "crashed")) for row in rows),
    }


if __name__ == "__main__":
    main(sys.argv[1], measure)
