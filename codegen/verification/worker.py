"""One rank of a verification: load an emitted program, train it for a few steps, compare the parts that it holds.

The same function runs in a thread and, as `torchrun -m partita.codegen.verification.worker JOB...`, in a process of
its own.
"""

import importlib.util
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...model.errors import PartitaError
from .compiled import compiled

COMPILER = "aot_eager"
"""What compiles blocks: all of torch.compile but the kernels that Inductor writes, which takes minutes."""
JOB, RESULT = "job.pt", "result.pt"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The loss of every step, the first step's gradients and the weights at the end, whole, under original names.

    Gradients and weights are on rank 0 alone. `parts[rank]` has the error of every part that a rank holds at the end,
    by the name of its weight, `initial[rank]` of every part that it begins with, where these are compared.
    """

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    parts: list[dict[str, float]] = field(default_factory=list)
    initial: list[dict[str, float]] = field(default_factory=list)


def load_program(path: Path) -> ModuleType:
    """Import an emitted program from its file. Raises PartitaError if that fails."""
    name = f"partita_program_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PartitaError(f"{path} is not a program file")
    module = importlib.util.module_from_spec(spec)
    try:
        for code in compiled(path.read_text(encoding="utf-8"), str(path)):
            exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        raise PartitaError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def compile_blocks(program: ModuleType, model: Any, **options: Any) -> None:
    """Compile the blocks of a model of a loaded program, which `torch.compile` imports by its name."""
    sys.modules[program.__name__] = program
    program.compile_blocks(model, **options)


def train(
    program: ModuleType,
    state: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    expected: Mapping[str, Tensor],
    dtype: torch.dtype,
    initial: Mapping[str, Tensor] | None = None,
    *,
    compiles: bool = False,
) -> Outcome:
    """Run one step per batch on this rank, from the weights `state`; `expected` are the weights at the end.

    Meanwhile `dtype` is the default one.
    `initial`: those with which the program must begin by itself. `compiles`: it compiles its blocks, if it can.
    """
    mesh = program.Mesh()
    begun = [] if initial is None else [initial_errors(program, mesh, initial, dtype)]
    usual = torch.get_default_dtype()
    dist.barrier()  # initial values are drawn in the usual dtype
    torch.set_default_dtype(dtype)  # as in the reference: of an integer plus a fraction, for one
    model = program.Model(mesh, dtype=dtype)
    program.load(model, state, mesh)
    if compiles and hasattr(program, "compile_blocks"):
        compile_blocks(program, model, backend=COMPILER)
    optimizer = program.make_optimizer(model, mesh)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    if hasattr(program, "train_steps"):  # steps overlap
        steps = program.train_steps(model, optimizer, batches.__getitem__, mesh, len(batches))
    else:
        steps = (program.train_step(model, optimizer, inputs, mesh, step) for step, inputs in enumerate(batches))
    for step, loss in enumerate(steps):
        losses.append(float(loss))
        if step == 0:
            gradients = _copied(program.whole_gradients(model, optimizer, mesh))
    weights = _copied(program.whole_weights(model, mesh))
    parts = [_part_errors(program, model, mesh, expected, dtype)]
    dist.barrier()
    torch.set_default_dtype(usual)
    return Outcome(losses, gradients, weights, parts, begun)


def initial_errors(
    program: ModuleType, mesh: Any, expected: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, float]:
    """The error of every part that this rank begins with."""
    model = program.Model(mesh, dtype=dtype)
    for _, part in held(model):
        part.fill_(math.nan if part.is_floating_point() else 0)
    program.initialize(model)
    return _part_errors(program, model, mesh, expected, dtype)


def _part_errors(
    program: ModuleType, model: Any, mesh: Any, expected: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, float]:
    """The error of every part that this rank holds, by its weight's name, relative to the whole weight.

    The program's own `load` says which part of a weight that is. What it leaves out, such as padding, does not count.
    """
    loaded = program.Model(mesh, dtype=dtype)
    for _, part in held(loaded):
        part.fill_(math.nan if part.is_floating_point() else 0)
    program.load(loaded, expected, mesh)
    errors: dict[str, float] = {}
    for (name, ours), (_, theirs) in zip(held(model), held(loaded), strict=True):
        whole = expected[name][expected[name].isfinite()] if name in expected else theirs[:0]
        most = whole.double().abs().max() if whole.numel() else 0.0
        other = ~theirs.isnan() & (ours != theirs)  # minus infinity in masks is equal to itself
        difference = (ours[other].double() - theirs[other].double()).abs()  # masks are booleans
        error = float(difference.max() / (1 + most)) if difference.numel() else 0.0
        errors[name] = max(errors.get(name, 0.0), error if math.isfinite(error) else math.inf)
    return errors


def held(model: Any) -> list[tuple[str, Tensor]]:
    """The parts that this rank holds, each with its weight's original name; the newest of several versions."""
    if not isinstance(model, torch.nn.Module) and not hasattr(model, "versions"):  # of a space-time plan
        return [(model.boxes[name][0].name if name in model.boxes else name, x) for name, x in model.parts.items()]
    owner = model.versions[model.newest] if hasattr(model, "versions") else model
    return [(getattr(part, "original", name), part.detach()) for name, part in owner.named_parameters()]


def together(ranks: Sequence[Outcome]) -> Outcome:
    """The outcome of rank 0 with the parts of all ranks."""
    parts, initial = ([own for each in ranks for own in getattr(each, name)] for name in ("parts", "initial"))
    return replace(ranks[0], parts=parts, initial=initial)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, on rank 0 only, since a program may return its own tensors."""
    return {name: t.detach().clone() for name, t in tensors.items()} if dist.get_rank() == 0 else {}


def write_job(
    folder: Path,
    program: Path,
    state: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    expected: Mapping[str, Tensor],
    initial: Mapping[str, Tensor] | None = None,
) -> None:
    """Make `folder` for `main` to read."""
    folder.mkdir()
    job = {
        "program": str(program.resolve()),
        "state": dict(state),
        "batches": [dict(batch) for batch in batches],
        "expected": dict(expected),
        "initial": None if initial is None else dict(initial),
    }
    torch.save(job, folder / JOB)


def read_result(folder: Path) -> Outcome | None:
    """The result that rank 0 wrote, if it did."""
    if not (folder / RESULT).is_file():
        return None
    data = torch.load(folder / RESULT, weights_only=True)
    return Outcome(**data)


def main(folders: Sequence[Path]) -> None:
    """Run the jobs on a rank that torchrun started; rank 0 writes the results into their folders."""
    dist.init_process_group("gloo")
    for folder in folders:
        job = torch.load(folder / JOB, mmap=True, weights_only=True)
        program = load_program(Path(job["program"]))
        state, batches, expected = job["state"], job["batches"], job["expected"]
        outcome = train(program, state, batches, expected, torch.float64, job["initial"], compiles=True)
        ranks: list[Any] = [None] * dist.get_world_size()
        parts = replace(outcome, gradients={}, weights={})
        dist.all_gather_object(ranks, parts)
        if dist.get_rank() == 0:
            result = together([outcome, *ranks[1:]])
            torch.save({each.name: getattr(result, each.name) for each in fields(result)}, folder / "unfinished.pt")
            (folder / "unfinished.pt").rename(folder / RESULT)
        dist.barrier()  # a result counts only if all ranks finish the job
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main([Path(argument) for argument in sys.argv[1:]])
