"""Hand-written plans in mixed precision: what their programs store, send and compute in which dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita import evenly, op_assign, op_trans, place, split, swap
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import Trial, run, trial
from partita.codegen.verification.worker import load_program, train
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.mask import STATES
from partita.formulation.spacetime.materialized import Collective
from partita.model.capture.objective import TrainedModule
from partita.model.machine.precision import PRECISIONS, precision

from ..levels import some
from . import test_spacetime_emit as plans

NARROW = [name for name, form in PRECISIONS.items() if form.narrow]
SCALE = 2.0**8  # of losses in float16: what is larger overflows in the first steps, which are then skipped

CASES = [
    ("zero bubble", "mixed-bfloat16"),
    ("tensor", "mixed-float16"),
    ("ZeRO-3", "mixed-bfloat16"),
    ("fan", "mixed-bfloat16-fp32grad"),
    ("swap", "mixed-bfloat16"),
    ("states on the host", "mixed-bfloat16-fp32grad"),
    ("ZeRO-1", "mixed-bfloat16-bf16grad"),
    ("recomputed pipeline", "pure-bfloat16"),
    ("ZeRO-3", "mixed-bfloat16-fp32grad"),
    ("vocabulary", "mixed-bfloat16"),
    ("zero bubble", "mixed-float16"),
]


class Tied(nn.Module):
    """A linear between tied embeddings, scaled by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.linear = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.linear(self.tokens(ids) * self.scale)
        return F.cross_entropy(F.linear(x, self.tokens.weight).flatten(0, 1), labels.flatten())


def planned(name: str, dtype: str) -> SpaceTimePlan:
    module, inputs, pcg = plans.captured()
    graph = Graph(pcg)
    plans.PLANS[name](graph)
    return space_time(graph, dtype=dtype, module=TrainedModule(module, inputs))


def sharded(dtype: str, *, weights: bool = False, swapped: bool = False) -> SpaceTimePlan:
    """ZeRO-1 on two ranks, or ZeRO-3; `swapped`: the states of the tied table are on the host, of the linear on one."""
    ids = torch.arange(16).reshape(4, 4)
    graph = partita.graph(Tied(), {"ids": ids, "labels": ids}, batch=4)
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split("batch", 2))):
            op_assign(part, device)
    for op in graph.optimizer:
        if weights:
            place(graph, op.of.name, evenly(op, 2), [0, 1])
        else:
            for device, part in enumerate(op_trans(op, evenly(op, 2))):
                op_assign(part, device)
                swap(part if swapped and (device or op.of.name == "tokens.weight") else None)
    return space_time(graph, dtype=dtype)


def trial_of(plan: SpaceTimePlan, path: Path) -> Trial:
    plan.emit(path)
    module = plan.module or plan.program.tasks.graph.module
    assert module is not None
    return trial(path, plan.pcg, module, plan.ranks, plan.batch, optimizer=plan.optimizer, steps=2)


def program_of(path: Path) -> Any:
    """The program; it begins with a scale of losses that does not overflow."""
    program: Any = load_program(path)
    make = program.make_optimizer

    def scaled(*arguments: Any) -> Any:
        optimizer = make(*arguments)
        if hasattr(optimizer, "loss_scale"):
            optimizer.loss_scale = SCALE
        return optimizer

    program.make_optimizer = scaled
    return program


def single(state: Any) -> dict[str, Tensor]:
    """Weights or inputs as a checkpoint or a data set has them."""
    return {name: x.float() if x.is_floating_point() else x for name, x in state.items()}


def on_ranks(program: Any, state: dict[str, Tensor], work: Callable[[Any, Any, Any], Any], ranks: int) -> list[Any]:
    """What `work` gives on every rank, from model, optimizer and mesh."""

    def rank(_: int) -> Any:
        mesh = program.Mesh()
        model = program.Model(mesh)
        program.load(model, state, mesh)
        return work(model, program.make_optimizer(model, mesh), mesh)

    return run_threads(rank, ranks)


@pytest.mark.parametrize(("name", "dtype"), some(CASES))
def test_equals_the_module(name: str, dtype: str, tmp_path: Path) -> None:
    """In float64 to the last places, in its own dtype up to what 16 bits round."""
    plan = planned(name, dtype)
    made = trial_of(plan, tmp_path / "program.py")
    verdict = run([made])[0]
    assert verdict["ok"] and verdict["tolerance"] == 1e-9, verdict
    program, state = program_of(made.path), single(made.state)
    found = run_threads(lambda _: train(program, state, made.batches, state, program.DTYPE), plan.ranks)[0]
    assert found is not None and found.losses == pytest.approx(made.truth.losses, rel=0.02)
    for weight, value in made.truth.gradients.items():
        assert (found.gradients[weight].double() - value).norm() <= 0.15 * value.norm(), weight
    trained = {x.dtype for weight, x in found.weights.items() if weight in made.truth.gradients}
    assert trained == {getattr(torch, precision(dtype).parameters)}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_kept_is_what_is_predicted(dtype: str, swapped: bool, tmp_path: Path) -> None:
    """Weights, and states with master copies, of shares that are updated on two ranks; some lie on the host."""
    plan, form = sharded(dtype, swapped=swapped), precision(dtype)
    made = trial_of(plan, tmp_path / "program.py")
    program = program_of(made.path)
    hosted, to_host = list[Tensor](), getattr(program, "to_host", None)
    program.to_host = lambda x: hosted.append(to_host(x)) or hosted[-1]

    def kept(model: Any, optimizer: Any, mesh: Any) -> tuple[int, int, int, set[torch.dtype]]:
        program.train_step(model, optimizer, made.batches[0], mesh, 0)
        states = [x for state in optimizer.inner.state.values() for name, x in state.items() if name != "step"]
        own = [x for name, x in model.parts.items() if name in model.boxes]
        masters = [] if optimizer.pieces is model.pieces else [*optimizer.pieces.values()]
        places = {x.data_ptr() for x in hosted}
        away = sum(x.nbytes for x in (*states, *masters) if x.data_ptr() in places)
        count = sum(x.nbytes for x in (*states, *masters)) - away
        return sum(x.nbytes for x in own), count, away, {x.dtype for x in (*states, *optimizer.pieces.values())}

    for rank, (weights, states, away, dtypes) in enumerate(on_ranks(program, single(made.state), kept, plan.ranks)):
        living = plan.prediction.living[rank]
        assert (weights, states) == (living.always["weights"], living.always["states"])
        assert away == sum(span.size_bytes for span in living.spans if span.tensor.kind == STATES)
        assert (away > 0, states > 0) == (swapped, not (swapped and rank))
        assert dtypes == {getattr(torch, form.master)}


@pytest.mark.parametrize("dtype", NARROW)
def test_messages_have_the_dtype_of_what_they_hold(dtype: str, tmp_path: Path) -> None:
    """Weights are fetched in 16 bits, gradients travel in theirs, updated weights as they are stored."""
    form, sent = precision(dtype), set[tuple[bool, str, torch.dtype]]()
    for weights in (False, True):
        plan = sharded(dtype, weights=weights)
        made = trial_of(plan, tmp_path / f"{weights}.py")
        program = program_of(made.path)
        for kind in ("all_gather", "reduce_scatter"):
            key, call = (weights, kind), getattr(program.Run, kind)

            def spy(run: Any, x: Tensor, *given: Any, key: Any = key, call: Any = call, **more: Any) -> Any:
                sent.add((*key, x.dtype))
                return call(run, x, *given, **more)

            setattr(program.Run, kind, spy)

        def step(model: Any, optimizer: Any, mesh: Any, program: Any = program, made: Trial = made) -> None:
            program.train_step(model, optimizer, made.batches[0], mesh, 0)

        on_ranks(program, single(made.state), step, 2)
    gathered = {False: form.parameters, True: form.compute}
    assert sent == {
        (weights, kind, getattr(torch, gathered[weights] if kind == "all_gather" else form.gradients))
        for weights in (False, True)
        for kind in ("all_gather", "reduce_scatter")
    }


def test_messages_are_priced_by_it() -> None:
    """Fetched weights take half the bytes of float32 ones, their gradients as many."""
    sizes = []
    for dtype in ("float32", "mixed-bfloat16"):
        found: Counter[str] = Counter()
        for timed in sharded(dtype, weights=True).prediction.devices[0]:
            if isinstance(timed.instruction, Collective):
                found[timed.instruction.kind] += timed.size_bytes
        sizes.append(found)
    assert 2 * sizes[1]["all_gather"] == sizes[0]["all_gather"] > 0
    assert sizes[1]["reduce_scatter"] == sizes[0]["reduce_scatter"] > 0


def test_a_loss_scale_that_is_too_large_skips_the_update(tmp_path: Path) -> None:
    made = trial_of(sharded("mixed-float16"), tmp_path / "program.py")
    program: Any = load_program(made.path)

    def work(model: Any, optimizer: Any, mesh: Any) -> tuple[list[bool], list[float]]:
        changed, scales = [], []
        optimizer.loss_scale = 2.0**60
        for step in range(2):
            before = {name: x.clone() for name, x in model.parts.items()}
            program.train_step(model, optimizer, made.batches[0], mesh, step)
            changed.append(any(not x.equal(before[name]) for name, x in model.parts.items()))
            scales.append(optimizer.loss_scale)
            optimizer.loss_scale = SCALE
        return changed, scales

    assert on_ranks(program, single(made.state), work, 2) == [([False, True], [2.0**59, SCALE])] * 2


class Rotary(nn.Module):
    """Angles of positions, from frequencies that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1]).float()[:, None] * 0.1 ** torch.arange(4).float()
        return (self.linear(x) * angles.sin()).square().mean()


def test_constants_are_rounded_at_the_end(tmp_path: Path) -> None:
    """Positions above 256 are no numbers of bfloat16. The loss is a mean of squares, of which half the device has."""
    module, x = Rotary(), torch.randn(2, 300, 4, generator=torch.Generator().manual_seed(0))
    graph = partita.graph(module, (x,), batch=2)
    for op in graph.forward:
        op_assign(op, 0)
    plan = space_time(graph, dtype="bfloat16")
    text = plan.source()
    assert plan.dtype == "mixed-bfloat16" and ".to(at.precision)" in text
    plan.emit(tmp_path / "program.py")
    program: Any = load_program(tmp_path / "program.py")
    state = {name: p.detach() for name, p in module.named_parameters()}

    def work(model: Any, optimizer: Any, mesh: Any) -> float:
        return float(program.train_step(model, optimizer, {"x": x}, mesh, 0))

    (loss,) = on_ranks(program, state, work, 1)
    assert loss == pytest.approx(module(x).item(), rel=0.01)


@pytest.mark.parametrize("dtype", ["mixed-bfloat16-fp32grad", "mixed-float16"])
def test_training_goes_on_from_a_checkpoint(dtype: str, tmp_path: Path) -> None:
    """With master copies, or the scale of the loss: as without the stop, to the last bit."""
    known = trial_of(sharded(dtype), tmp_path / "program.py")
    program, batches = program_of(known.path), [*known.batches, *known.batches]

    def trained(last: int, source: Path | None = None, target: Path | None = None) -> list[float]:
        def work(model: Any, optimizer: Any, mesh: Any) -> list[float]:
            first = program.resume(model, optimizer, source) if source else 0
            assert getattr(optimizer, "good_steps", first) == first
            losses = [program.train_step(model, optimizer, batches[k], mesh, k) for k in range(first, last)]
            if target:
                program.save_training(model, optimizer, target, last)
            return [*map(float, losses)]

        state = {name: torch.zeros_like(x) if source else x for name, x in single(known.state).items()}
        found: list[float] = on_ranks(program, state, work, 2)[0]
        return found

    assert trained(2, target=tmp_path / "saved") + trained(4, tmp_path / "saved") == trained(4)


class Rotated(nn.Module):
    """A linear times the cosines of positions by frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("frequency", 1 / torch.tensor([1.0, 3.0, 7.0, 9.0]))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.rotated(x), target)

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * self.frequency
        return self.linear(x) * angles.cos()


def test_constants_are_computed_from_buffers_as_they_are_stored(tmp_path: Path) -> None:
    """A frequency that is rounded to 16 bits turns by radians at position 2,000."""
    torch.manual_seed(0)
    module, x = Rotated(), torch.randn(2, 2048, 4)
    inputs = {"x": x, "target": module.rotated(x).detach()}
    graph = partita.graph(module, inputs, batch=2)
    op_assign(graph.forward, 0)
    space_time(graph, dtype="mixed-bfloat16").emit(tmp_path / "program.py")
    program: Any = load_program(tmp_path / "program.py")
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def work(model: Any, optimizer: Any, mesh: Any) -> float:
        return float(program.train_step(model, optimizer, inputs, mesh, 0))

    (loss,) = on_ranks(program, state, work, 1)
    module.frequency.copy_(module.frequency.bfloat16())
    assert loss < 1e-3 < 1e-2 < module(**inputs).item()
