"""Training that stops, and goes on under another plan: the losses of the run without the stop."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import partita
from partita.codegen.emission.spacetime.emit import emit
from partita.codegen.plan.plan import PipelinePlan, Plan
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.graph_module import GraphModule
from partita.codegen.verification.reference import state_of
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import RankError, run_threads
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.layout import B, is_split
from partita.model.graph.pcg import PCG
from partita.model.graph.random_numbers import from_counters
from partita.model.initial_values import InitialValues
from partita.model.machine.machine import Machine
from partita.model.training import Training

from . import test_spacetime_emit as spacetime
from .beginnings import initial
from .conftest import Force
from .pipelines import at_random

STEPS, STOP, BATCH = 20, 10, 12
FROZEN = ("last.bias", "frozen", "scale")
AnyPlan = Plan | PipelinePlan | SpaceTimePlan
Start = tuple[Mapping[str, Tensor], Sequence[Mapping[str, Tensor]]]


class Net(nn.Module):
    """Dropout, a fused weight, a frozen one, sizes that do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 12)
        self.qkv = nn.Linear(12, 36)
        self.inner = nn.Sequential(nn.Linear(12, 14), nn.ReLU(), nn.Dropout(0.2), nn.Linear(14, 12))
        self.last = nn.Linear(12, 10)
        self.last.bias.requires_grad_(False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embedding(ids)).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        x = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return nn.functional.cross_entropy(self.last(x + self.inner(x)).flatten(0, 1), labels.flatten())


@cache
def graph() -> PCG:
    ids = torch.zeros(BATCH, 4, dtype=torch.long)
    return capture(Net(), (ids, ids), batch=BATCH, dropout="counters")


def data(ranks: int, optimizer: str, *, sharded_states: bool = False, **stored: bool) -> Plan:
    """Data parallel, its trained weights `stored` so."""
    space = SearchSpace(mesh=(ranks,), stages=1, micro_batches=1, bundles=False)
    plan = plan_graph(graph(), Machine.adhoc((ranks,)), Training(BATCH, "float64", optimizer), space)
    assert isinstance(plan, Plan)
    trained = [i for i in graph().of("parameter") if graph().nodes[i].gradient]
    assert ranks == 1 or all(plan.choices[i].output == (B,) for i in trained)
    choices = (
        replace(c, sharded_states=sharded_states, **stored) if i in trained else c for i, c in enumerate(plan.choices)
    )
    return replace(plan, choices=tuple(choices))


def tensor(force: Force, sizes: tuple[int, ...], optimizer: str) -> Plan:
    """Any plan that splits a fused weight, and shards some states."""
    for seed in range(100):
        plan = force(graph(), sizes, random.Random(seed), optimizer=optimizer)
        fused = next(c for node, c in zip(plan.graph.nodes, plan.choices, strict=True) if node.name == "qkv.weight")
        if is_split(fused.output[0]) and any(c.sharded_states for c in plan.choices):
            return plan
    raise AssertionError


@pytest.fixture(scope="module")
def plans(force: Force) -> dict[str, Callable[[str], AnyPlan]]:
    def stages(optimizer: str) -> AnyPlan:
        return at_random(graph(), 2, (2,), 2, random.Random(1), optimizer=optimizer)

    return {
        "data 2": lambda o: data(2, o),
        "zero 3": lambda o: data(3, o, sharded_states=True),
        "zero-2 on the host": lambda o: data(2, o, sharded_states=True, sharded_gradients=True, offloaded=True),
        "converted, on the host": lambda o: converted(data(2, o, sharded_states=True, offloaded=True)),
        "tensor 3": lambda o: tensor(force, (3,), o),
        "tensor 2 x 2": lambda o: tensor(force, (2, 2), o),
        "2 stages": stages,
        "zero 2": lambda o: data(2, o, sharded_states=True),
        "single": lambda o: data(1, o),
    }


def converted(plan: Plan) -> AnyPlan:
    return space_time(plan.space_time_graph(), plan.machine, optimizer=plan.optimizer)


@cache
def start() -> Start:
    """Initial weights and the batches of all steps."""
    return state_of(GraphModule(graph())), [synthetic(graph(), BATCH, step) for step in range(STEPS)]


def emitted(plan: AnyPlan, path: Path) -> ModuleType:
    plan.emit(path)
    return load_program(path)


def trained(
    program: ModuleType, begin: Start, last: int, source: Path | None, target: Path | None, **options: Any
) -> list[float]:
    """The losses of the steps up to `last`: from the checkpoint `source`, or the beginning, to `target`.

    With a checkpoint, weights that are trained are no numbers until it is read.
    """
    state, batches = begin
    nothing = {name: x if name in FROZEN else torch.full_like(x, torch.nan) for name, x in state.items()}

    def work(_: int) -> list[float]:
        mesh = program.Mesh()
        model = program.Model(mesh, dtype=torch.float64)
        program.load(model, nothing if source else state, mesh)
        optimizer = program.make_optimizer(model, mesh)
        first = program.resume(model, optimizer, source) if source else 0
        if hasattr(program, "train_steps"):
            losses = list(program.train_steps(model, optimizer, batches.__getitem__, mesh, last - first, first=first))
        else:
            losses = [program.train_step(model, optimizer, batches[step], mesh, step) for step in range(first, last)]
        if target:
            program.save_training(model, optimizer, target, last, **options)
        return list(map(float, losses))

    return run_threads(work, program.RANKS)[0]


def train(
    program: ModuleType, last: int, source: Path | None = None, target: Path | None = None, **options: Any
) -> list[float]:
    return trained(program, start(), last, source, target, **options)


@cache
def unstopped(optimizer: str, folder: Path) -> list[float]:
    return train(emitted(data(1, optimizer), folder / f"{optimizer}.py"), STEPS)


@pytest.mark.parametrize(
    ("optimizer", "path"),
    [
        ("adamw", ["data 2", "converted, on the host", "2 stages", "single"]),
        ("adamw", ["zero 3", "data 2", "zero-2 on the host", "tensor 2 x 2"]),
        ("sgd", ["2 stages", "tensor 3", "zero 3"]),
    ],
)
def test_the_losses_of_the_run_without_the_stop(
    plans: dict[str, Callable[[str], AnyPlan]], folder: Path, tmp_path: Path, optimizer: str, path: list[str]
) -> None:
    """Each plan goes on where the one before stopped."""
    source, losses = None, []
    for number, name in enumerate(path):
        program = emitted(plans[name](optimizer), tmp_path / f"{number}.py")
        target = tmp_path / f"checkpoints{number}"
        losses += train(program, STEPS * (number + 1) // len(path), source, target)
        source = target
    assert losses == pytest.approx(unstopped(optimizer, folder), abs=1e-12)


def test_a_replica_is_written_once(tmp_path: Path) -> None:
    program = emitted(data(3, "adamw"), tmp_path / "program.py")
    train(program, 1, target=tmp_path / "checkpoints")
    saved = dcp.FileSystemReader(tmp_path / "checkpoints" / "step-1").read_metadata()
    assert all(len(found.chunks) == 1 for found in saved.state_dict_metadata.values())
    written = [file.stat().st_size for file in (tmp_path / "checkpoints" / "step-1").glob("*.distcp")]
    assert len(written) == 3 and max(written) < sum(written) / 2  # ranks share the work


def test_torch_reads_a_checkpoint_into_the_module(force: Force, tmp_path: Path) -> None:
    program = emitted(tensor(force, (2, 2), "adamw"), tmp_path / "program.py")
    train(program, 1, target=tmp_path / "checkpoints")
    single = emitted(data(1, "adamw"), tmp_path / "single.py")
    module, truth = Net().double(), {}

    def work(_: int) -> None:
        mesh = single.Mesh()
        model = single.Model(mesh, dtype=torch.float64)
        single.resume(model, single.make_optimizer(model, mesh), tmp_path / "checkpoints")
        truth.update(single.whole_weights(model, mesh))
        dcp.load({"model": module.state_dict()}, checkpoint_id=tmp_path / "checkpoints" / "step-1")

    run_threads(work, 1)
    assert truth.keys() == module.state_dict().keys()
    assert all(torch.equal(x, truth[name]) for name, x in module.state_dict().items())


def test_frozen_weights_may_stay_out(plans: dict[str, Callable[[str], AnyPlan]], folder: Path, tmp_path: Path) -> None:
    first = train(emitted(plans["data 2"]("adamw"), tmp_path / "a.py"), STOP, None, tmp_path / "c", frozen=False)
    saved = dcp.FileSystemReader(tmp_path / "c" / f"step-{STOP}").read_metadata().state_dict_metadata
    assert "model.last.weight" in saved and "model.last.bias" not in saved
    rest = train(emitted(plans["tensor 3"]("adamw"), tmp_path / "b.py"), STEPS, tmp_path / "c")
    assert first + rest == pytest.approx(unstopped("adamw", folder), abs=1e-12)


def test_what_does_not_fit_is_refused(
    plans: dict[str, Callable[[str], AnyPlan]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(emitted(plans["data 2"]("sgd"), tmp_path / "sgd.py"), 1, target=tmp_path / "checkpoints")
    adam = emitted(plans["zero 3"]("adamw"), tmp_path / "adam.py")
    other = emitted(plans["single"]("sgd"), tmp_path / "other.py")
    other.SEED = 5
    for program, source, words in (
        (adam, tmp_path / "checkpoints", "has no optimizer.state."),
        (other, tmp_path / "checkpoints", "is of seed 0 and batches of 12: its steps have other samples"),
        (adam, tmp_path / "none", "has no complete checkpoint"),
    ):
        with pytest.raises(RankError):
            train(program, 2, source)
        assert words in capsys.readouterr().err


def test_weights_come_and_go_in_any_format(force: Force, tmp_path: Path) -> None:
    """safetensors in and out, in one file or several, and what torch.distributed.checkpoint wrote of a module."""
    program, state = emitted(tensor(force, (3,), "sgd"), tmp_path / "program.py"), start()[0]
    halves = [dict(list(state.items())[half::2]) for half in range(2)]
    (tmp_path / "halves").mkdir()

    def work(rank: int) -> list[dict[str, Tensor]]:
        mesh, found = program.Mesh(), []
        model = program.Model(mesh, dtype=torch.float64)
        dcp.save(dict(state), checkpoint_id=tmp_path / "torch")
        program.load(model, state, mesh)
        program.save(model, tmp_path / "whole.safetensors", mesh)
        if not rank:
            for number, half in enumerate(halves):
                program.write_safetensors(half, tmp_path / "halves" / f"{number}.safetensors")
        dist.barrier()
        for name in ("torch", "whole.safetensors", "halves"):
            for part in model.parameters():
                part.detach().fill_(torch.nan)
            program.load(model, tmp_path / name, mesh)
            found.append(program.whole_weights(model, mesh))
        return found

    for found in run_threads(work, 3)[0]:
        assert found.keys() == state.keys() and all(torch.equal(found[name], x) for name, x in state.items())
    data = (tmp_path / "whole.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["qkv.weight"] == {
        "dtype": "F64",
        "shape": [36, 12],
        "data_offsets": header["qkv.weight"]["data_offsets"],
    }


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 300)
        self.register_buffer("scale", torch.linspace(0, 1, 300), persistent=False)  # too long for a constant

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) * self.scale).square().mean()


def test_a_buffer_that_the_module_does_not_save_keeps_its_value_and_is_not_saved(tmp_path: Path) -> None:
    module = Scaled()
    partita.optimize(module, {"x": torch.zeros(4, 8)}, Machine.adhoc((2,))).save(tmp_path)
    program = load_program(tmp_path / "program.py")

    def work(_: int) -> dict[str, Tensor]:
        mesh = program.Mesh()
        model = program.Model(mesh, dtype=torch.float32)
        program.initialize(model)
        program.load(model, {name: x + 1 for name, x in module.state_dict().items()}, mesh)
        program.save(model, tmp_path / "saved.pt", mesh)
        return dict(program.whole_weights(model, mesh))

    found = run_threads(work, 2)[0]
    Scaled().load_state_dict(torch.load(tmp_path / "saved.pt"))
    assert torch.equal(found["scale"], torch.linspace(0, 1, 300))
    assert torch.equal(found["inner.weight"], module.inner.weight + 1)


def test_hand_written_plans(tmp_path: Path) -> None:
    """From weights that no rank keeps whole to a pipeline, and on under a plan that a solver found."""
    net = from_counters(spacetime.captured()[2])
    state, batches = state_of(GraphModule(net)), [synthetic(net, net.batch, step) for step in range(6)]
    planned = plan_graph(net, Machine.adhoc((2,)), Training(net.batch, "float64", "adamw"), SearchSpace(mesh=(2,)))
    planned.emit(tmp_path / "planned.py")
    for write in (spacetime.zero3, spacetime.pipeline):
        made = emit(spacetime.looped(write), dtype="float64")
        (tmp_path / f"{write.__name__}.py").write_text(made)

    def train(name: str, last: int, source: Path | None = None, target: Path | None = None) -> list[float]:
        return trained(load_program(tmp_path / f"{name}.py"), (state, batches), last, source, target)

    targets = [tmp_path / f"checkpoints{number}" for number in range(2)]
    losses = train("zero3", 2, None, targets[0]) + train("pipeline", 4, *targets) + train("planned", 6, targets[1])
    assert losses == pytest.approx(train("planned", 6), abs=1e-12)


def test_a_hand_written_plan_says_what_a_checkpoint_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As other programs do: a buffer keeps its initial value, if that is known."""
    net, path = spacetime.captured()[2], tmp_path / "program.py"
    state = state_of(GraphModule(net))

    def loaded(values: InitialValues | None, given: dict[str, Tensor]) -> dict[str, Tensor]:
        path.write_text(emit(spacetime.looped(spacetime.zero3), initial=values))
        program = load_program(path)

        def work(_: int) -> dict[str, Tensor]:
            mesh = program.Mesh()
            model = program.Model(mesh)
            program.load(model, given, mesh)
            return dict(program.whole_weights(model, mesh))

        return run_threads(work, program.RANKS)[0]

    lacking, small = {name: x for name, x in state.items() if name != "scale"}, state | {"frozen": torch.zeros(2)}
    found = loaded(initial(net), lacking)
    assert torch.equal(found["frozen"], state["frozen"].float()) and found["scale"].isfinite().all()
    for values, given, words in (
        (None, lacking, "the checkpoint has no scale"),
        (initial(net), small, "frozen is [2] in the checkpoint, not [16]"),
    ):
        with pytest.raises(RankError):
            loaded(values, given)
        assert words in capsys.readouterr().err


def test_steps_that_overlap(tmp_path: Path) -> None:
    """Weights of two versions are saved, so the next steps compute with those of the step before."""
    paths = [tmp_path / f"{number}.py" for number in range(2)]
    for seed, path in enumerate(paths):
        at_random(graph(), 2, (2,), 2, random.Random(seed), schedule="2bw").emit(path)

    first, second = map(load_program, paths)
    losses = train(first, 3, target=tmp_path / "checkpoints") + train(second, 6, tmp_path / "checkpoints")
    assert losses == pytest.approx(train(first, 6), abs=1e-12)


class Dying:
    """A module whose functions raise after `left` calls that change files; an rmtree is killed half-way."""

    def __init__(self, module: ModuleType, left: list[int]) -> None:
        self.module, self.left = module, left

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.module, name)

        def counted(path: Any, *arguments: Any, **options: Any) -> Any:
            self.left[0] -= 1
            if self.left[0] < 0:
                if name == "rmtree":
                    next(Path(path).glob("*")).unlink()
                raise KeyboardInterrupt
            return function(path, *arguments, **options)

        return counted if name in ("rmtree", "replace", "fsync") else function


def test_a_save_that_is_killed_anywhere_leaves_a_checkpoint(
    plans: dict[str, Callable[[str], AnyPlan]], tmp_path: Path
) -> None:
    """Also where the same step is saved again."""
    program = emitted(plans["single"]("sgd"), tmp_path / "program.py")
    folder = tmp_path / "checkpoints"
    state = start()[0]
    found = []

    def work(_: int) -> None:
        mesh = program.Mesh()
        model = program.Model(mesh, dtype=torch.float64)
        optimizer = program.make_optimizer(model, mesh)
        for moment in range(100):
            program.load(model, {name: torch.full_like(x, moment) for name, x in state.items()}, mesh)
            left = [moment]
            program.os, program.shutil = Dying(os, left), Dying(shutil, left)
            with suppress(KeyboardInterrupt):
                program.save_training(model, optimizer, folder, 3)
            program.os, program.shutil = os, shutil
            if moment:
                program.resume(model, optimizer, folder)
                found.append(float(program.whole_weights(model, mesh)["last.weight"].min()))
            else:  # the first one, complete
                program.save_training(model, optimizer, folder, 3)
            if left[0] >= 0:
                break

    run_threads(work, 1)
    last = len(found)
    assert last > 6 and found[-1] == last
    assert all(a in (b, i) for i, (a, b) in enumerate(zip(found, [0.0, *found], strict=False), 1))
    assert 1 < len(set(found)) < last  # some moments are before the new one counts
    assert [path.name for path in folder.glob("step-*")] == [(folder / "latest").read_text()]


def test_ranks_continue_from_one_checkpoint(
    plans: dict[str, Callable[[str], AnyPlan]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 says which; a rank whose folder is another one, as a disk of its own is, refuses."""
    program = emitted(plans["data 2"]("sgd"), tmp_path / "program.py")
    train(program, 1, target=tmp_path / "0")
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    train(program, 2, tmp_path / "0", target=tmp_path / "0")

    def work(rank: int) -> None:
        mesh = program.Mesh()
        model = program.Model(mesh, dtype=torch.float64)
        program.resume(model, program.make_optimizer(model, mesh), tmp_path / str(rank))

    with pytest.raises(RankError):
        run_threads(work, 2)
    assert "step-2 is not on rank 1 what it is on rank 0: all ranks must see one folder" in capsys.readouterr().err


def test_a_rank_that_dies_during_a_save_leaves_the_checkpoint_before(
    plans: dict[str, Callable[[str], AnyPlan]], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an exception here, in one thread of two."""
    target = tmp_path / "checkpoints"
    program = emitted(plans["zero 2"]("adamw"), tmp_path / "program.py")
    train(program, 4, target=target)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        write = dcp.FileSystemWriter.write_data
        patched.setattr(dcp.FileSystemWriter, "write_data", lambda *a: (dies if dist.get_rank() else write)(*a))
        with pytest.raises(RankError):
            train(program, 8, target, target)
    assert {path.name for path in target.iterdir()} == {"step-4", "step-8.unfinished", "latest"}
    other = emitted(plans["tensor 3"]("adamw"), tmp_path / "b.py")
    assert train(other, STEPS, target, target) == pytest.approx(unstopped("adamw", folder)[4:], abs=1e-12)
    assert {path.name for path in target.iterdir()} == {"step-4", "step-20", "latest"}
