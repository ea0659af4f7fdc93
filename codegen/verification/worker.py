"""One rank of a verification: load an emitted program, train it for a few steps, return the outcome on rank 0.

The same function runs in a thread and, as `torchrun -m partita.codegen.verification.worker JOB...`, in a process of
its own.
"""

import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from ...model.errors import PartitaError

JOB, RESULT = "job.pt", "result.pt"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The loss of every step, the first step's gradients and the weights at the end, whole, under original names."""

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def load_program(path: Path) -> ModuleType:
    """Import an emitted program from its file. Raises PartitaError if that fails."""
    name = f"partita_program_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PartitaError(f"{path} is not a program file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PartitaError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def train(
    program: ModuleType, state: Path | Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]], dtype: torch.dtype
) -> Outcome | None:
    """Run one step per batch on this rank, from the weights `state`; None on all ranks but 0."""
    mesh = program.Mesh()
    model = program.Model(mesh, dtype=dtype)
    program.load(model, state, mesh)
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
    return Outcome(losses, gradients, weights) if dist.get_rank() == 0 else None


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, on rank 0 only, since a program may return its own tensors."""
    return {name: t.detach().clone() for name, t in tensors.items()} if dist.get_rank() == 0 else {}


def write_job(
    folder: Path, program: Path, state: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
) -> None:
    """Make `folder` for `main` to read."""
    folder.mkdir()
    job = {"program": str(program.resolve()), "state": dict(state), "batches": [dict(batch) for batch in batches]}
    torch.save(job, folder / JOB)


def read_result(folder: Path) -> Outcome | None:
    """The result that rank 0 wrote, if it did."""
    if not (folder / RESULT).is_file():
        return None
    data = torch.load(folder / RESULT, weights_only=True)
    return Outcome(data["losses"], data["gradients"], data["weights"])


def main(folders: Sequence[Path]) -> None:
    """Run the jobs on a rank that torchrun started; rank 0 writes the results into their folders."""
    dist.init_process_group("gloo")
    for folder in folders:
        job = torch.load(folder / JOB, mmap=True, weights_only=True)
        outcome = train(load_program(Path(job["program"])), job["state"], job["batches"], torch.float64)
        if outcome is not None:
            result = {"losses": outcome.losses, "gradients": outcome.gradients, "weights": outcome.weights}
            torch.save(result, folder / "unfinished.pt")
            (folder / "unfinished.pt").rename(folder / RESULT)
        dist.barrier()  # a result counts only if all ranks finish the job
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main([Path(argument) for argument in sys.argv[1:]])
