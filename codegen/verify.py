"""Run an emitted program on local ranks beside the unsharded module: the same losses, gradients and weights?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..model.capture import Inputs
from ..model.errors import PartitaError
from ..model.layout import is_split
from ..model.load import load_module
from ..model.pcg import FLOATS, PCG
from . import reference, worker
from .launch import LaunchError, torchrun
from .plan import Plan
from .reference import generator
from .threads import Deadlock, RankError, run_threads
from .worker import JOB, Outcome, load_program, read_result

LEVELS = ("threads", "pool", "torchrun")
TOLERANCE = 1e-9
TOLERANCE_NARROW = 1e-5
"""Where the module itself computes in less than float64."""


def verify(
    target: Plan | Path | str,
    ranks: int | None = None,
    level: str = "threads",
    steps: int = 3,
    *,
    module: nn.Module | None = None,
    inputs: Any = None,
    timeout: float = 600.0,
) -> dict[str, Any]:
    """Train the program of a plan (or of the folder or file where it was saved) and the module, and compare.

    Everything is in float64, from the same random weights, on the same random data: every step's loss, the first
    step's gradients, the weights at the end, each error max|a - b| / (1 + max|b|) over the elements of a tensor and
    then over tensors. `ok`: all are at most `tolerance`, and nothing is missing; `failure` says what went wrong where
    the program could not be run or compared. `level`: ranks are threads here, or processes that torchrun starts.
    `module` and `inputs` are needed where the plan does not say how to build its module. Raises PartitaError for what
    cannot be verified: a wrong number of ranks, a plan too large for this machine's memory.
    """
    if level not in LEVELS:
        raise PartitaError(f"level {level!r}: choose from {', '.join(LEVELS)}")
    if steps < 1:
        raise PartitaError(f"{steps} steps: at least one is needed")
    plan = target if isinstance(target, Plan) else Plan.load(target)
    if ranks is not None and ranks != plan.ranks:
        raise PartitaError(f"this plan is for {plan.ranks} ranks, not {ranks}: plan again for that many devices")
    check_memory(plan)
    if module is None:
        module, inputs = _module_of(plan)
    with tempfile.TemporaryDirectory(prefix="partita-verify-") as folder:
        path = Path(target) / "program.py" if not isinstance(target, Plan) else Path(folder) / "program.py"
        if not path.is_file():
            path = Path(folder) / "program.py"
            plan.emit(path)
        return compare(
            path,
            plan.graph,
            module,
            inputs,
            ranks=plan.ranks,
            samples=plan.batch,
            optimizer=plan.optimizer,
            level=level,
            steps=steps,
            timeout=timeout,
        )


def compare(
    path: Path,
    graph: PCG,
    module: nn.Module,
    inputs: Any,
    *,
    ranks: int,
    samples: int,
    optimizer: str,
    level: str = "threads",
    steps: int = 3,
    timeout: float = 600.0,
) -> dict[str, Any]:
    """`verify` for a program file: `inputs` are example inputs of `module`, `samples` the batch of one step."""
    program = load_program(path)
    if ranks != program.RANKS:
        raise PartitaError(f"{path} is a program for {program.RANKS} ranks, its plan for {ranks}")
    whole = reference.materialize(module)
    example = Inputs.of(whole, inputs)
    state = reference.state_of(whole)
    batches = [synthetic(graph, samples, step) for step in range(steps)]
    truth, narrow = reference.train(whole, example, graph, batches, optimizer, program.SEED)
    verdict: dict[str, Any] = {
        "ok": False,
        "ranks": ranks,
        "level": level,
        "dtype": "float64",
        "tolerance": TOLERANCE_NARROW if narrow else TOLERANCE,
        "loss_error": None,
        "gradient_error": None,
        "weight_error": None,
        "checked": 0,
    }
    try:
        outcome = _run(path, state, batches, ranks, level, timeout)
        errors = _errors(outcome, truth, graph)
    except (RankError, Deadlock, LaunchError, MissingTensorsError) as failure:
        return verdict | {"failure": str(failure)}
    worst = {f"{kind}_error": max(found.values(), default=0.0) for kind, found in errors.items()}
    verdict["ok"] = all(error <= verdict["tolerance"] for error in worst.values())
    verdict |= {name: error if math.isfinite(error) else None for name, error in worst.items()}
    verdict["checked"] = sum(map(len, errors.values()))
    if not verdict["ok"]:
        name, error = max(
            ((f"{kind} {name}", error) for kind, found in errors.items() for name, error in found.items()),
            key=lambda item: item[1],
        )
        verdict["failure"] = f"the largest error is {error:.2g}, of {name}"
    return verdict


class MissingTensorsError(RuntimeError):
    """The program gives back fewer tensors than the module has, or other ones."""


def _run(
    path: Path,
    state: Mapping[str, Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    ranks: int,
    level: str,
    timeout: float,
) -> Outcome:
    """The program's outcome, from threads of this process or from processes of their own."""
    if level == "threads":
        program = load_program(path)
        first = run_threads(lambda _: worker.train(program, state, batches, torch.float64), ranks, timeout=timeout)[0]
        assert first is not None
        return first
    with tempfile.TemporaryDirectory(prefix="partita-job-") as folder:
        torch.save({"state": dict(state), "batches": [dict(b) for b in batches]}, Path(folder) / JOB)
        torchrun(f"module:{worker.__name__}", ranks, [folder, str(path.resolve())], timeout=timeout)
        return read_result(Path(folder))


def _errors(outcome: Outcome, truth: Outcome, graph: PCG) -> dict[str, dict[str, float]]:
    """The error of every loss, gradient and weight by name. Raises MissingTensorsError where the names do not agree."""
    if len(outcome.losses) != len(truth.losses):
        raise MissingTensorsError(f"the program gives {len(outcome.losses)} losses for {len(truth.losses)} steps")
    aliases = dict(graph.aliases)
    parameters = {graph.nodes[i].name for i in graph.of("parameter")}
    errors = {
        "loss": {
            f"of step {k}": _error(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
            for k, (a, b) in enumerate(zip(outcome.losses, truth.losses, strict=True))
        }
    }
    for kind, ours, theirs in (
        ("gradient", outcome.gradients, truth.gradients),
        ("weight", outcome.weights, truth.weights),
    ):
        wanted = {name: t for name, t in theirs.items() if aliases.get(name, name) in parameters}
        missing = [name for name in wanted if name not in ours and aliases.get(name) not in ours]
        if missing:
            raise MissingTensorsError(f"the program gives no {kind} of {', '.join(missing[:5])}")
        extra = [name for name in ours if name not in theirs and bool(ours[name].count_nonzero())]
        if extra and kind == "gradient":
            raise MissingTensorsError(f"the program gives a gradient of {', '.join(extra[:5])}, the module none")
        errors[kind] = {name: _error(ours[name if name in ours else aliases[name]], t) for name, t in wanted.items()}
    return errors


def _error(a: Tensor, b: Tensor) -> float:
    """max|a - b| / (1 + max|b|); infinite where shapes differ or a number is not finite."""
    if a.shape != b.shape:
        return math.inf
    if not b.numel():
        return 0.0
    error = ((a.double() - b.double()).abs().max() / (1 + b.double().abs().max())).item()
    return error if math.isfinite(error) else math.inf


def _module_of(plan: Plan) -> tuple[nn.Module, Any]:
    model = plan.model
    if not model.get("reference"):
        raise PartitaError("the plan does not say how to build its module: give verify the module and its inputs")
    return load_module(model["reference"], small=bool(model.get("small")), sequence=model.get("sequence"), device="cpu")


# Data


def synthetic(graph: PCG, samples: int, step: int) -> dict[str, Tensor]:
    """Random inputs for one step of `samples`: integers below `high`, else normal; some labels are to be ignored."""
    ignored = _labels(graph)
    batch = {}
    for index in graph.of("input"):
        node = graph.nodes[index]
        shape = list(node.shape)
        if node.get("batch_dim") is not None:
            shape[node["batch_dim"]] = shape[node["batch_dim"]] // graph.batch * samples
        source = generator("input", node.name, step)
        dtype = getattr(torch, node.dtype)
        if node.dtype in FLOATS:
            batch[node.name] = torch.randn(shape, generator=source, dtype=torch.float64)
            continue
        values = torch.randint(node.get("high", 2), shape, generator=source)
        if index in ignored and values.dim():
            # More and more of them, so that ranks and micro-batches have different numbers of labels.
            share = torch.linspace(0, 0.9, values.shape[0], dtype=torch.float64).view(-1, *[1] * (values.dim() - 1))
            drawn = torch.rand(shape, generator=source, dtype=torch.float64)
            values = torch.where(drawn < share, ignored[index], values)
        batch[node.name] = values.to(dtype)
    return batch


def _labels(graph: PCG) -> dict[int, int]:
    """Inputs that are only class labels of cross entropies, with the label that is not counted."""
    found: dict[int, int] = {}
    for index in graph.of("input"):
        uses = _uses(graph, index)
        if uses and all(graph.nodes[c].op == "cross_entropy" and place == 1 for c, place in uses):
            labels = {graph.nodes[c].get("ignore_index", -100) for c, _ in uses}
            if len(labels) == 1:
                found[index] = labels.pop()
    return found


def _uses(graph: PCG, index: int) -> set[tuple[int, int]]:
    """Who reads a tensor, at which operand; through operators that only move elements about."""
    found: set[tuple[int, int]] = set()
    for consumer in graph.consumers[index]:
        node = graph.nodes[consumer]
        if node.op in ("view", "slice", "permute", "to"):
            found |= _uses(graph, consumer)
        else:
            found |= {(consumer, place) for place, source in enumerate(node.inputs) if source == index}
    return found


# Memory


def memory_bytes(plan: Plan) -> int:
    """An upper estimate of what both sides need here in float64: weights with states, and all activations kept."""
    weights = activations = Fraction(0)
    for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
        parts = math.prod(
            size for letter, size in zip(choice.output, plan.placement.sizes, strict=True) if is_split(letter)
        )
        held = Fraction(plan.ranks, parts)  # copies on all ranks together
        if node.op == "parameter":
            weights += node.numel * (8 + 5 * held)
        else:
            activations += node.numel * (2 * plan.micro_batches + 2 * held)
    return int(8 * (weights + activations))


def available_bytes() -> int:
    """Free memory of this machine, as far as it tells."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 1 << 62  # no such file here: let it try
    return 1 << 62


def check_memory(plan: Plan) -> None:
    """Raise PartitaError where the plan is too large to be run here."""
    needed, free = memory_bytes(plan), available_bytes()
    if needed > 0.8 * free:
        raise PartitaError(
            f"running this plan's {plan.ranks} ranks here takes about {needed / 2**30:.0f} GiB and "
            f"{free / 2**30:.0f} GiB are free: verify the plan of the model's small twin (--small) instead"
        )
