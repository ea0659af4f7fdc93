"""Run an emitted program on local ranks, and compare losses, gradients and weights with the unsharded module."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ...model.capture.load import model_of
from ...model.capture.objective import GIVEN, Loss, TrainedModule, mode_of
from ...model.errors import PartitaError
from ...model.graph.buffer_updates import updated
from ...model.graph.layout import P, is_split
from ...model.graph.pcg import PCG
from ..plan.plan import Plan
from ..plan.plan_file import load_any
from ..plan.spacetime_file import SavedSpaceTimePlan
from ..plan.spacetime_plan import SpaceTimePlan
from . import reference, worker
from .launch import LaunchError, torchrun
from .native import Draws, counted, is_native_plan, masks_failure
from .reference import PLAIN, Semantics
from .statistics import pieces, pieces_of_graph
from .synthetic import synthetic
from .threads import Deadlock, RankError, run_threads
from .worker import Outcome, load_program, read_result, write_job

AnyPlan: TypeAlias = Plan | SpaceTimePlan

LEVELS = ("threads", "pool", "torchrun")
TOLERANCE = 1e-9
TOLERANCE_NARROW = 1e-5
"""The tolerance if the module itself computes in less than float32."""
ROUNDING_FACTOR = 10
MOST_ROUNDING = 1e-5
"""An error after an update is accepted up to this multiple of what rounding does to the module, and up to this error:
Adam scales up gradients that are nothing but rounding, as those of a bias before a batch norm."""


def verify(
    target: AnyPlan | Path | str,
    ranks: int | None = None,
    level: str = "threads",
    steps: int = 3,
    *,
    module: nn.Module | None = None,
    inputs: Any = None,
    loss: Loss = None,
    timeout: float = 600.0,
) -> dict[str, Any]:
    """Train a plan's program and the module, and compare; of a folder (or its plan.json) the program.py there is run.

    Everything is in float64, from the same random weights, on the same random data: the loss of every step, the
    gradients of the first step, the weights at the end, whole and as every rank holds its parts. An error is
    max|a - b| / (1 + max|b|) over the elements of a tensor, then the largest over tensors. `ok`: all errors are at
    most `tolerance`, and nothing is missing; otherwise `failure` gives the reason. If a weight, or a loss after the
    first step, exceeds the tolerance, the module is trained once more from weights that differ in their last place:
    `rounding` is the largest error of those numbers between the two trainings, otherwise None. An error of at most
    10 times that of the same weight (of the losses after the first step), and of at most 1e-5, is accepted, and `note`
    says so. The first step's loss and gradients have no such excuse. `compiled`: by which backend blocks were compiled;
    None: not, as in threads, which would share what is compiled for one rank. Where torch's own generators draw the
    masks of dropout, the program compared is the plan's with masks from counters, equal for all plans; of the program
    itself one step with p = 0 is compared, and that ranks draw the same masks exactly where they have the same part:
    `dropout` has `native_error` and `native_masks`, the number of masks. `program` is the file that was checked, None
    for a program emitted only for this. `level`: ranks are threads of this process, or processes that torchrun starts.
    `module` and `inputs` are needed if the plan neither has its module nor says how to build it, and then `loss` if one
    was given for the plan. `objective` says which output of the module was trained.
    Raises PartitaError for a folder without program, a wrong number of ranks, inputs or a loss without their module,
    and a plan too large for this machine's memory.
    """
    if module is None and not (inputs is None and loss is None):
        raise PartitaError("inputs and loss are those of a module: give verify that module, too")
    with tempfile.TemporaryDirectory(prefix="partita-verify-") as folder:
        given = None if module is None else TrainedModule(module, inputs, loss)
        trial = _trial(target, Path(folder), ranks, steps, given)
        return run([trial], level, timeout=timeout)[0]


@dataclass(frozen=True)
class Trial:
    """A program (its file is `path`) and what it must compute: `truth`, by the module from `state` on `batches`."""

    path: Path
    graph: PCG
    ranks: int
    state: Mapping[str, Tensor] = field(repr=False)
    batches: Sequence[Mapping[str, Tensor]] = field(repr=False)
    truth: Outcome = field(repr=False)
    tolerance: float
    objective: str = "the graph's loss"  # what is trained, in words
    emitted: bool = False  # for this trial only: the file is temporary
    shown: Path | None = None  # the program that is checked, if it is another file
    initial: Mapping[str, Tensor] | None = field(default=None, repr=False)  # what it begins with, if that is known
    nudged: Callable[[], Outcome] | None = field(default=None, repr=False)  # `truth` from weights of other last places
    native: "Native | None" = None  # the program with torch's own masks, where this one has those of counters
    compiles: bool = False  # the program compiles its blocks


@dataclass(frozen=True)
class Native:
    """A program that draws masks by torch's own generators: `trial` is one step without dropout."""

    plan: Plan
    trial: Trial


def _trial(
    target: AnyPlan | Path | str,
    folder: Path,
    ranks: int | None,
    steps: int,
    given: TrainedModule | None,
) -> Trial:
    """What `verify` runs: the program in the folder of a saved plan, or one that a plan emits into `folder`."""
    plan = load_any(target) if isinstance(target, Path | str) else target
    if isinstance(plan, SavedSpaceTimePlan | SpaceTimePlan):
        graph, command, again = plan.pcg, "check", f"check it again with --devices {ranks}"
    else:
        graph, command, again = plan.graph, "plan", "plan again for that many devices"
    if ranks is not None and ranks != plan.ranks:
        raise PartitaError(f"this plan is for {plan.ranks} ranks, not {ranks}: {again}")
    check_memory(plan)
    if given and given.loss is None and plan.model.get("loss") == GIVEN:
        raise PartitaError(
            "the plan trains a function of the module's output, which is not saved: give verify its loss"
        )
    if isinstance(target, Path | str):
        own = _program_beside(Path(target), command)
    else:
        own = folder / "program.py"
        target.emit(own)
    path, native = own, isinstance(plan, Plan) and is_native_plan(plan)
    if isinstance(plan, Plan) and native:
        path = folder / "counters.py"
        counted(plan).emit(path)
    model = given or plan.module or _seeded(plan.model, load_program(path).SEED)
    mode = plan.model.get("mode")
    if mode is not None and mode_of(model.module) != mode:
        raise PartitaError(
            f"the plan was made of the module in mode {mode!r}, and it is in mode {mode_of(model.module)!r} now: call "
            "its train() or eval() first, or plan again"
        )
    initial = None
    if plan.initial is not None:
        known = reference.state_of(model.module)
        if path.parent == folder:
            for name, write in plan.initial.completed(known).files().items():
                write(folder / name)
        if plan.initial.names >= graph.originals.keys() and not given and not any(x.is_meta for x in known.values()):
            initial = known
    made = trial(
        path, graph, model, plan.ranks, plan.batch,
        optimizer=plan.optimizer, steps=steps, semantics=semantics(plan),
    )  # fmt: skip
    compiles = isinstance(plan, Plan) and plan.compile
    made = replace(made, emitted=not isinstance(target, Path | str), initial=initial, compiles=compiles)
    if isinstance(plan, Plan) and native:
        undropped = trial(
            own, graph, model, plan.ranks, plan.batch,
            optimizer=plan.optimizer, steps=1, semantics=replace(semantics(plan), dropout=False),
        )  # fmt: skip
        made = replace(made, native=Native(plan, undropped), shown=own)
    return made


def _seeded(model: Mapping[str, Any], seed: int) -> TrainedModule:
    """The model that a plan names, as its constructor makes it after torch.manual_seed(seed)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_of(model)


def stages_of(plan: AnyPlan | SavedSpaceTimePlan) -> tuple[Plan, ...]:
    """The stages of a plan; a space-time plan has none."""
    return () if isinstance(plan, SavedSpaceTimePlan | SpaceTimePlan) else plan.stages


def semantics(plan: AnyPlan | SavedSpaceTimePlan) -> Semantics:
    """How training by a plan differs from training its module."""
    if isinstance(plan, SavedSpaceTimePlan | SpaceTimePlan):
        return Semantics(pieces_of_graph(plan.pcg))
    return Semantics(tuple(found for part in plan.stages for found in pieces(part)), plan.schedule.double_buffered)


def _program_beside(saved: Path, command: str) -> Path:
    """The program in the folder of a saved plan; a missing one is not emitted."""
    folder = saved if saved.is_dir() else saved.parent
    if not (folder / "program.py").is_file():
        raise PartitaError(f"there is no program.py in {folder}: `partita {command} -o DIR` writes one beside its plan")
    return folder / "program.py"


def trial(
    path: Path,
    graph: PCG,
    model: TrainedModule,
    ranks: int,
    samples: int,
    optimizer: str,
    steps: int = 3,
    semantics: Semantics = PLAIN,
) -> Trial:
    """Train a module, called as with its example inputs, to know what the program at `path` must compute.

    `samples`: the batch of one step, over all ranks and micro-batches.
    """
    if steps < 1:
        raise PartitaError(f"{steps} steps: at least one is needed")
    program = load_program(path)
    if ranks != program.RANKS:
        raise PartitaError(f"{path} is a program for {program.RANKS} ranks, its plan for {ranks}")
    whole = model._replace(module=reference.materialize(model.module))
    state = reference.state_of(whole.module)
    batches = [synthetic(graph, samples, step) for step in range(steps)]

    def truth(whole: TrainedModule) -> reference.Truth:
        return reference.train_module(whole, graph, batches, optimizer, program.SEED, semantics=semantics)

    def nudged() -> Outcome:
        again = model._replace(module=reference.materialize(model.module))
        reference.nudge(again.module)
        return truth(again).outcome

    found = truth(whole)
    tolerance = TOLERANCE_NARROW if found.narrow else TOLERANCE
    return Trial(
        path, graph, ranks, state, batches, found.outcome,
        tolerance=tolerance, objective=found.objective, nudged=nudged,
    )  # fmt: skip


# Running and judging


def run(
    trials: Sequence[Trial], level: str = "threads", *, timeout: float = 600.0, shuffled: bool = False
) -> list[dict[str, Any]]:
    """A verdict for every trial; `timeout` in seconds is for each start of processes or threads.

    `shuffled`: ranks that are threads take turns in a random order.
    """
    if level not in LEVELS:
        raise PartitaError(f"level {level!r}: choose from {', '.join(LEVELS)}")
    found: dict[int, Outcome | Exception] = {}
    if level == "threads":
        for number, each in enumerate(trials):
            found[number] = _in_threads(each, timeout, shuffled=shuffled)
    waiting = [n for n in range(len(trials)) if n not in found]
    while waiting:
        # A failure ends the processes: the trials after it need new ones.
        ranks = trials[waiting[0]].ranks
        together = [n for n in waiting if trials[n].ranks == ranks] if level == "pool" else waiting[:1]
        outcomes = _in_processes([trials[n] for n in together], timeout)
        found |= dict(zip(together, outcomes, strict=False))
        waiting = [n for n in waiting if n not in found]
    return [_with_native(_verdict(each, found[number], level), each, timeout) for number, each in enumerate(trials)]


def _with_native(verdict: dict[str, Any], each: Trial, timeout: float) -> dict[str, Any]:
    """The verdict of a trial, and that of the program with torch's own masks."""
    if each.native is None:
        return verdict
    draws = Draws()
    found = _verdict(each.native.trial, _in_threads(each.native.trial, timeout, draws.listen), "threads")
    errors = [found[f"{kind}_error"] for kind in ("loss", "gradient", "weight")]
    verdict["dropout"] = {
        "compared": "counters",
        "native_error": None if None in errors else max(errors),
        "native_masks": len({draw.seed for draw in draws.found}),
    }
    program, nodes = load_program(each.native.trial.path), each.native.trial.graph.nodes
    failure = found.get("failure") or draws.failure(each.native.plan) or masks_failure(program, nodes)
    if failure and verdict["ok"]:
        verdict |= {"ok": False, "failure": f"with torch's own dropout: {failure}"}
    return verdict


def _in_threads(
    each: Trial, timeout: float, change: Callable[[ModuleType], None] | None = None, shuffled: bool = False
) -> Outcome | Exception:
    """Run the ranks as threads; `change` is given the program before."""
    program = load_program(each.path)
    if change is not None:
        change(program)
    try:
        with reference.default_dtype(torch.get_default_dtype()):  # training sets it; a failure leaves it so
            ranks = run_threads(
                lambda _: worker.train(
                    program, each.state, each.batches, each.truth.weights, torch.float64, each.initial
                ),
                each.ranks,
                timeout=timeout,
                shuffled=shuffled,
            )
    except (RankError, Deadlock) as failure:
        return failure
    return worker.together(ranks)


def _in_processes(trials: Sequence[Trial], timeout: float) -> list[Outcome | Exception]:
    """The outcomes of trials with equally many ranks, up to the first failure."""
    with tempfile.TemporaryDirectory(prefix="partita-jobs-") as folder:
        jobs = [Path(folder) / str(number) for number in range(len(trials))]
        for job, each in zip(jobs, trials, strict=True):
            write_job(job, each.path, each.state, each.batches, each.truth.weights, each.initial)
        failure: Exception | None = None
        try:
            torchrun(f"module:{worker.__name__}", trials[0].ranks, [str(job) for job in jobs], timeout=timeout)
        except LaunchError as error:
            failure = error
        outcomes: list[Outcome | Exception] = []
        for job in jobs:
            outcome = read_result(job)
            if outcome is None:
                return [*outcomes, failure or MissingTensorsError("rank 0 left no result")]
            outcomes.append(outcome)
        return outcomes


class MissingTensorsError(RuntimeError):
    """The program returns fewer tensors than the module has, or other ones."""


def _verdict(each: Trial, outcome: Outcome | Exception, level: str) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "ok": False,
        "program": None if each.emitted else str(each.shown or each.path),
        "ranks": each.ranks,
        "level": level,
        "dtype": "float64",
        "objective": each.objective,
        "tolerance": each.tolerance,
        "loss_error": None,
        "gradient_error": None,
        "weight_error": None,
        "initial_error": None,
        "rounding": None,
        "dropout": None,
        "compiled": worker.COMPILER if each.compiles and level != "threads" else None,
        "checked": 0,
    }
    if isinstance(outcome, Exception):
        return verdict | {"failure": str(outcome)}
    try:
        errors = _errors(outcome, each.truth, each.graph)
    except MissingTensorsError as failure:
        return verdict | {"failure": str(failure)}
    verdict["checked"] = sum(map(len, errors.values()))
    errors["weight"] |= _part_errors(outcome.parts, each.graph)
    if outcome.initial:
        errors["initial"] = _part_errors(outcome.initial)
    flat = {(kind, name): error for kind, found in errors.items() for name, error in found.items()}
    for kind, found in errors.items():
        largest = max(found.values(), default=0.0)
        verdict[f"{kind}_error"] = largest if math.isfinite(largest) else None
    rounding = _rounding(each, flat)
    excess = {key: e for key, e in flat.items() if e > each.tolerance}
    accepted = {key for key, e in excess.items() if e <= min(ROUNDING_FACTOR * rounding.get(key, 0.0), MOST_ROUNDING)}
    verdict["ok"] = excess.keys() == accepted
    if rounding:
        verdict["rounding"] = max(rounding.values())
    if accepted:
        verdict["note"] = (
            f"{len(accepted)} errors above the tolerance are accepted: rounding alone changes these weights, or losses "
            "after the first step, of the module by as much"
        )
    if not verdict["ok"]:
        worst = max((key for key in excess if key not in accepted), key=lambda key: excess[key])
        verdict["failure"] = f"the largest error is {excess[worst]:.2g}, of {' '.join(worst)}"
    return verdict


def _rounding(each: Trial, errors: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """How much rounding changes what the module computes after an update, for the errors above the tolerance.

    Empty if an error can be no rounding: one of the first step, or a large one.
    """
    excess = [key for key, error in errors.items() if error > each.tolerance]
    later = all(kind == "weight" or (kind == "loss" and name != "of step 0") for kind, name in excess)
    if each.nudged is None or not excess or not later or max(map(errors.__getitem__, excess)) > MOST_ROUNDING:
        return {}
    again, truth = each.nudged(), each.truth
    of_losses = _error(*(torch.tensor(x.losses[1:], dtype=torch.float64) for x in (again, truth)))
    of_weights = {name: _error(x, truth.weights[name]) for name, x in again.weights.items()}
    return {
        (kind, name): of_losses if kind == "loss" else of_weights.get(name.partition(" on rank ")[0], 0.0)
        for kind, name in excess
    }


def _errors(outcome: Outcome, truth: Outcome, graph: PCG) -> dict[str, dict[str, float]]:
    """The error of every loss, gradient and weight by name. Raises MissingTensorsError where the names do not agree."""
    if len(outcome.losses) != len(truth.losses):
        raise MissingTensorsError(f"the program gives {len(outcome.losses)} losses for {len(truth.losses)} steps")
    aliases = dict(graph.aliases)
    trained = {name for i in (*graph.of("parameter"), *updated(graph)) for name in graph.nodes[i].originals}
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
        wanted = {name: t for name, t in theirs.items() if aliases.get(name, name) in trained}
        if kind == "gradient":  # autograd gives zeros for what is rounded, the program nothing
            wanted = {
                name: t
                for name, t in wanted.items()
                if {name, aliases.get(name)} & ours.keys() or bool(t.count_nonzero())
            }
        missing = [name for name in wanted if name not in ours and aliases.get(name) not in ours]
        if missing:
            raise MissingTensorsError(f"the program gives no {kind} of {', '.join(missing[:5])}")
        extra = [name for name in ours if name not in theirs and bool(ours[name].count_nonzero())]
        if extra and kind == "gradient":
            raise MissingTensorsError(f"the program gives a gradient of {', '.join(extra[:5])}, the module none")
        errors[kind] = {name: _error(ours[name if name in ours else aliases[name]], t) for name, t in wanted.items()}
    return errors


def _part_errors(ranks: Sequence[Mapping[str, float]], graph: PCG | None = None) -> dict[str, float]:
    """The error of the part of every weight on every rank.

    But not of statistics that in training by `graph` each rank has of its own samples.
    """
    nodes = graph.nodes if graph else ()
    own = {i for node in nodes if node.op == "local_batch_norm" for i in node.inputs}
    own &= updated(graph).keys() if graph else set()
    names = {name for i in own for name in (nodes[i].name, *nodes[i].originals)}
    return {
        f"{name} on rank {rank}": error
        for rank, parts in enumerate(ranks)
        for name, error in parts.items()
        if name not in names
    }


def _error(a: Tensor, b: Tensor) -> float:
    """max|a - b| / (1 + max|b|); infinite where shapes differ or a number is not finite."""
    if a.shape != b.shape:
        return math.inf
    if not b.numel():
        return 0.0
    error = ((a.double() - b.double()).abs().max() / (1 + b.double().abs().max())).item()
    return error if math.isfinite(error) else math.inf


# Memory


def memory_bytes(plan: AnyPlan | SavedSpaceTimePlan) -> int:
    """Upper estimate of the memory of program and module in float64: weights with states, and all activations."""
    return int(8 * sum(map(_elements, stages_of(plan))))


def _elements(plan: Plan) -> Fraction:
    """The count of numbers that the ranks of a stage and the module keep."""
    count = Fraction(0)
    for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
        parts = math.prod(
            size
            for letter, size in zip(choice.output, plan.placement.sizes, strict=True)
            if is_split(letter) or (choice.at and letter == P)
        )
        held = Fraction(plan.ranks, parts)  # copies on all ranks together
        if node.op == "parameter":
            count += node.numel * (8 + 6 * held)
        else:
            count += node.numel * (2 * plan.micro_batches + 2 * plan.in_flight * held)
    return count


def available_bytes() -> int:
    """Free memory of this machine; practically unlimited if unknown."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 1 << 62)


def check_memory(plan: AnyPlan | SavedSpaceTimePlan) -> None:
    """Raise PartitaError if the plan is too large to run here."""
    needed, free = memory_bytes(plan), available_bytes()
    if needed > 0.8 * free:
        raise PartitaError(
            f"running this plan's {plan.ranks} ranks here takes about {needed / 2**30:.0f} GiB and "
            f"{free / 2**30:.0f} GiB are free: verify the plan of the model's small twin (--small) instead"
        )
