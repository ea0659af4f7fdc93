"""Programs as modules of a user's own loop: every rank's samples, evaluation, and batches of another size."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import DataLoader

from partita import Machine, PartitaError, load_plan, optimize
from partita.codegen.emission.common.data import reading_axes
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.reference import CountedNumbers, materialize, state_of
from partita.codegen.verification.threads import RankError, run_threads
from partita.codegen.verification.worker import load_program
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.graph.pcg import PCG
from partita.model.training import Training

from .pipelines import at_random

Force = Callable[..., Plan]
SAMPLES = 12
pytestmark = pytest.mark.filterwarnings("ignore:the plan shards")


class Classifier(nn.Module):
    """What differs in evaluation, and labels of which some do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.scores = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.scores(self.drop(self.norm(self.first(x)).relu())), labels)


class Words(nn.Module):
    """Tied weights, and two dims of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scores = nn.Linear(8, 9, bias=False)
        self.scores.weight = self.embedding.weight

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Any]:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x).relu(), 0.2, self.training)
        scores = self.scores(self.norm(x))
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}


def data(name: str, count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    if name == "classifier":
        x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        batch = {"x": x, "labels": torch.randint(4, (count,), generator=generator)}
    else:
        ids, labels = torch.randint(9, (2, count, 5), generator=generator)
        batch = {"ids": ids, "labels": labels}
    batch["labels"].view(count, -1)[::3, 0] = -100
    return batch


MODULES: dict[str, Callable[[], nn.Module]] = {"classifier": Classifier, "words": Words}


def graph_of(name: str, batch: int = SAMPLES) -> PCG:
    module = MODULES[name]()
    return capture(module, data(name, 2), batch=batch, dropout="counters")


def plan_of(name: str, kind: int, force: Force) -> Plan:
    """Random plans: of one stage, of several micro-batches, of a pipeline; from 8 on ranks that share the samples."""
    rng = random.Random(f"{name} {kind}")
    if kind >= 8:
        space = SearchSpace(mesh=(3,), stages=1, micro_batches=kind - 7)
        plan = plan_graph(graph_of(name), Machine.adhoc((3,)), Training(SAMPLES, "float64", "adamw"), space)
        assert reading_axes(plan.stages) == (0,)
        return plan
    if kind < 6:
        return force(graph_of(name), ((2,), (4,), (2, 2), (3,), (5,), (2, 3))[kind], rng)
    if name == "words" and kind == 6:
        return force(graph_of(name, SAMPLES // 3), (2,), rng, micro_batches=3)
    return at_random(graph_of("words"), 2, (2,), 3, rng, schedule="zero-bubble" if kind == 7 else "1f1b")


def program_of(plan: Plan, folder: Path) -> ModuleType:
    plan.emit(folder / "program.py")
    return load_program(folder / "program.py")


CASES = [("classifier", 3), ("words", 9), ("words", 7)]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_samples_of_a_rank_and_evaluation(name: str, kind: int, force: Force, tmp_path: Path) -> None:
    """Ranks that read their own samples train as with whole batches, and `evaluate` is the module in evaluation."""
    plan = plan_of(name, kind, force)
    program, module = program_of(plan, tmp_path), materialize(MODULES[name]())
    state, whole, count = state_of(module), data(name, 3 * SAMPLES), 3 * SAMPLES
    rows = [{key: x[i] for key, x in whole.items()} for i in range(count)]

    def train(rank: int) -> tuple[list[float], list[float], float, list[int]]:
        mesh, model, optimizer = program.build(state)
        order = program.Samples(mesh, count)
        numbers = [*order, *order][:4]
        assert len(order) == 3 and [*program.Samples(mesh, count, 2)] == numbers[2:3]
        first, loader = [], DataLoader(rows, batch_sampler=program.Samples(mesh, count))  # type: ignore[arg-type]
        for step, batch in zip(range(4), itertools.chain(loader, loader), strict=False):
            assert all(torch.equal(batch[key], x[numbers[step]]) for key, x in whole.items())
            first.append(program.train_step(model, optimizer, batch, mesh, step, local=True))
        last = program.evaluate(model, {key: x[:SAMPLES] for key, x in whole.items()}, mesh)
        trained = program.whole_weights(model, mesh)
        if rank == 0:
            module.load_state_dict(trained, strict=False)
        mesh, model, optimizer = program.build(state)
        second = []
        for step in range(4):
            order = torch.randperm(count, generator=torch.Generator().manual_seed(program.SEED + step // 3))
            own = order[step % 3 * SAMPLES :][:SAMPLES]
            assert {*numbers[step]} <= {*own.tolist()}
            inputs = {key: x[own] for key, x in whole.items()}
            second.append(program.train_step(model, optimizer, inputs, mesh, step))
        return first, second, last, numbers[0]

    results = run_threads(train, plan.ranks, timeout=60)
    first, second, last, _ = results[0]
    assert first == second
    expected = module.eval()(**{key: x[:SAMPLES] for key, x in whole.items()})
    expected = expected["loss"] if isinstance(expected, Mapping) else expected
    assert abs(last - expected.item()) < 1e-9
    assert {number for *_, numbers in results for number in numbers} == {
        *torch.randperm(count, generator=torch.Generator().manual_seed(program.SEED))[:SAMPLES].tolist()
    }


def test_batches_of_another_size(force: Force, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Refused, or filled up with samples that do not count where that changes nothing."""
    plan = plan_of("words", 8, force)
    program, batch, module = program_of(plan, tmp_path), data("words", SAMPLES), materialize(Words())
    wrong = {
        "ids is [12, 4], but [12, 5] is planned": {"ids": batch["ids"][:, :4], "labels": batch["labels"]},
        "the inputs lack labels": {"ids": batch["ids"]},
        "ids is [0, 5], but": {key: x[:0] for key, x in batch.items()},
        "ids is [15, 5], but": {key: torch.cat((x, x[:3])) for key, x in batch.items()},
    }
    for words, inputs in wrong.items():
        with pytest.raises(RankError):
            run_threads(lambda _, inputs=inputs: _step(program, inputs), plan.ranks, timeout=60)  # type: ignore[misc]
        assert words in capfd.readouterr().err
    few = {key: x[:5] for key, x in batch.items()}
    state = state_of(module)

    def evaluated(rank: int) -> tuple[float, float, int]:
        mesh, model, _ = program.build(state)
        mine = [number for number in program.own_samples(mesh).tolist() if number < 5]
        local = program.evaluate(model, {key: x[mine] for key, x in few.items()}, mesh, local=True)
        whole = program.evaluate(model, few, mesh)
        try:
            program.evaluate(model, wrong["ids is [15, 5], but"], mesh)
        except SystemExit:
            assert model.training and mesh.training
        return local, whole, len(mine)

    results = run_threads(evaluated, plan.ranks, timeout=60)
    expected = module.eval()(**few)["loss"].item()
    assert [result[:2] for result in results] == [pytest.approx((expected, expected), abs=1e-9)] * plan.ranks
    assert [count for *_, count in results] == [4, 1, 0]  # a rank without samples takes part
    assert "-100" not in force(graph_of("classifier"), (2,), random.Random(1)).emit().partition("def fitted")[2][:600]


def test_evaluation_with_other_random_numbers_is_refused(
    force: Force, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Noisy(Classifier):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x), labels)

    batch = data("classifier", SAMPLES)
    program = program_of(force(capture(Noisy(), batch, batch=SAMPLES), (2,), random.Random(3)), tmp_path)
    state = state_of(materialize(Noisy()))
    with pytest.raises(RankError):
        run_threads(lambda _: program.build(state)[1].eval(), 2, timeout=60)
    assert "random numbers besides dropout" in capfd.readouterr().err


def test_files_are_checked_before_training(
    force: Force, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(plan_of("words", 0, force), tmp_path)
    torch.save({"ids": torch.zeros(12, 5)}, tmp_path / "data.pt")
    for words, arguments in {
        "there is no none.pt": ["none.pt"],
        "there is no none": ["", "none"],
        "cannot write none/x.pt": ["", "", "none/x.pt"],
        f"cannot write {tmp_path}": ["", "", str(tmp_path)],
        "cannot write checkpoints": ["--checkpoints", str(tmp_path / "data.pt")],
    }.items():
        monkeypatch.setattr("sys.argv", ["program.py", *arguments])
        with pytest.raises(SystemExit):
            program.main()
        assert words in capfd.readouterr().err
    for call, words in (
        (lambda: program.samples(torch.load(tmp_path / "data.pt"), 0), "the data lacks labels"),
        (program.build, "call torch.distributed.init_process_group first"),
    ):
        with pytest.raises(SystemExit):
            call()
        assert words in capfd.readouterr().err


def _step(program: ModuleType, inputs: Mapping[str, Tensor]) -> float:
    mesh, model, optimizer = program.build(state_of(materialize(Words())))
    loss: float = program.train_step(model, optimizer, inputs, mesh, 0)
    return loss


def reference(name: str, whole: Mapping[str, Tensor], steps: int) -> tuple[list[float], nn.Module]:
    """A user's loop on one process: losses, then the module."""
    module = materialize(MODULES[name]())
    optimizer, losses = torch.optim.AdamW(module.parameters(), 0.01), []
    for step in range(steps):
        with CountedNumbers(0, step):
            loss = module(**{key: x[step * SAMPLES :][:SAMPLES] for key, x in whole.items()})
        loss = loss["loss"] if isinstance(loss, Mapping) else loss
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, module


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_live_module_in_the_user_s_loop(name: str, kind: int, force: Force) -> None:
    """Losses, weights, and the loss in evaluation of the unsharded module."""
    plan, whole = plan_of(name, kind, force), data(name, 3 * SAMPLES)
    losses, trained = reference(name, whole, 3)
    first = {key: x[:SAMPLES] for key, x in whole.items()}
    expected = trained.eval()(**first)

    def loop(rank: int) -> tuple[list[float], float, dict[str, Tensor], list[str]]:
        module = materialize(MODULES[name]())
        parallel = plan.parallelize(module)
        optimizer, found = torch.optim.AdamW(module.parameters(), 0.01), []
        for step in range(3):
            loss = module(**{key: x[step * SAMPLES :][:SAMPLES] for key, x in whole.items()})
            loss = loss["loss"] if isinstance(loss, Mapping) else loss
            loss.backward()
            try:  # where it knows whole gradients it is right, else refused
                nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            except PartitaError as error:
                assert "call clip_grad_norm_ of what parallelize returned" in str(error)
                parallel.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        module.eval()
        with torch.no_grad():
            loss = module(**first)
        names = [name for name, _ in module.named_parameters()]
        return found, float(loss["loss"] if isinstance(loss, Mapping) else loss), parallel.whole_state(), names

    results = run_threads(loop, plan.ranks, timeout=60)
    found, last, state, _ = results[0]
    assert torch.allclose(torch.tensor(found), torch.tensor(losses), rtol=0, atol=1e-9)
    loss = expected["loss"] if isinstance(expected, Mapping) else expected
    assert abs(last - loss.item()) < 1e-9
    for key, x in trained.state_dict().items():
        if x.is_floating_point():
            assert torch.allclose(state[key], x, rtol=0, atol=1e-9), key
    assert {name for *_, names in results for name in names} == {name for name, _ in trained.named_parameters()}


def test_the_loop_trains_as_the_emitted_file(force: Force, tmp_path: Path) -> None:
    """With a DataLoader of every rank's samples, the program's hyperparameters, and a plan from its file."""
    plan, whole = plan_of("words", 1, force), data("words", 3 * SAMPLES)
    plan.save(tmp_path)
    program, loaded = load_program(tmp_path / "program.py"), load_plan(tmp_path)
    rows = [{key: x[i] for key, x in whole.items()} for i in range(3 * SAMPLES)]
    state = state_of(materialize(Words()))

    def emitted(rank: int) -> tuple[list[float], dict[str, Tensor]]:
        mesh, model, optimizer = program.build(state)
        loader = DataLoader(rows, batch_sampler=program.Samples(mesh, len(rows)))  # type: ignore[arg-type]
        found = [
            float(program.train_step(model, optimizer, batch, mesh, step, local=True))
            for step, batch in zip(range(4), itertools.chain(loader, loader), strict=False)
        ]
        return found, program.whole_weights(model, mesh)

    def live(rank: int) -> tuple[list[float], dict[str, Tensor]]:
        module = materialize(Words())
        parallel = loaded.parallelize(module, local=True)
        loader = DataLoader(rows, batch_sampler=parallel.samples(len(rows)))  # type: ignore[arg-type]
        matrices = [p for p in module.parameters() if p.dim() > 1]
        vectors = [p for p in module.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, 0.001, betas=(0.9, 0.95))
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: program.learning_rate(step, 10, 1000))
        found = []
        for _, batch in zip(range(4), itertools.chain(loader, loader), strict=False):
            loss = module(**batch)["loss"]
            loss.backward()
            parallel.clip_grad_norm_(1.0)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found, parallel.whole_state()

    (losses, weights), (found, state_) = (run_threads(loop, plan.ranks, timeout=60)[0] for loop in (emitted, live))
    assert torch.allclose(torch.tensor(found), torch.tensor(losses), rtol=0, atol=1e-12)
    for key, x in weights.items():
        assert torch.allclose(state_[key], x, rtol=0, atol=1e-12), key


def test_what_a_live_module_refuses(force: Force) -> None:
    plan, batch = plan_of("words", 0, force), data("words", SAMPLES)

    def said(call: Callable[[nn.Module], object]) -> str:
        def body(rank: int) -> None:
            module = materialize(Words())
            plan.parallelize(module)
            call(module)

        with pytest.raises(RankError) as error:
            run_threads(body, plan.ranks, timeout=60)
        return str(error.value.__cause__)

    def in_training(module: nn.Module) -> None:
        with torch.no_grad():
            module(**batch)

    def twice(module: nn.Module) -> None:
        loss = module(**batch)["loss"]
        loss.backward(retain_graph=True)
        loss.backward()

    assert "ids is [0, 5], but [12, 5] is planned" in said(lambda m: m(**{k: x[:0] for k, x in batch.items()}))
    assert "has no labels" in said(lambda m: m(batch["ids"], None))
    assert "do not fit Words.forward" in said(lambda m: m(batch["ids"]))
    assert "module.eval()" in said(in_training)
    assert "used up" in said(twice)
    with pytest.raises(PartitaError, match="init_process_group"):
        plan.parallelize(Words())
    for dtype, words in (("mixed-float16", "scales its loss"), ("mixed-bfloat16-fp32grad", "master copies")):
        plan = replace(plan, dtype=dtype)
        assert words in said(lambda m: None)


def test_a_changed_live_module_trains_its_own_weights_or_refuses(force: Force) -> None:
    """Never the weights of before."""
    plan, batch = plan_of("words", 2, force), data("words", SAMPLES)
    first, other = materialize(Words()), materialize(Words())
    with torch.no_grad():
        other.layers[0].weight.mul_(2)
    losses = [module.eval()(**batch)["loss"].item() for module in (first, other)]

    def said(call: Callable[[], object]) -> str:
        try:
            call()
        except PartitaError as error:
            return str(error)
        return ""

    def body(rank: int) -> tuple[list[float], list[str]]:
        module = materialize(Words())
        parallel = plan.parallelize(module)
        weight = module.layers[0].weight

        def loss() -> float:
            with torch.no_grad():
                found: Tensor = module.eval()(**batch)["loss"]
            return found.item()

        found = [loss()]
        weight.data = 2 * weight.data
        found.append(loss())
        parallel.load_whole_state(first.state_dict())  # reaches the new memory too
        found.append(loss())
        with torch.no_grad():
            weight.mul_(2)
        found.append(loss())
        state = module.state_dict()
        refused = [
            said(lambda: copy.deepcopy(module)),
            said(lambda: pickle.dumps(module)),
            said(lambda: plan.parallelize(module)),
            said(lambda: module.layers[0](batch["ids"])),
        ]
        weight.data = torch.zeros(1)
        refused.append(said(loss))
        weight.data = state["layers.0.weight"]
        hook = module.layers[1].register_forward_hook(lambda *_: None)
        refused.append(said(loss))
        hook.remove()
        module.adapter = nn.Linear(2, 2)
        refused.append(said(loss))
        del module.adapter
        found.append(loss())
        module.load_state_dict({name: x.clone() for name, x in state.items()}, assign=True)
        return found, [*refused, said(loss), said(parallel.whole_state)]

    for found, refused in run_threads(body, plan.ranks, timeout=60):
        assert found == pytest.approx([losses[i] for i in (0, 1, 0, 1, 1)], abs=1e-12)
        words = ["copied or pickled"] * 2 + ["parallelized already", "cannot run alone", "is now [1], but", "a hook of"]
        words += ["added or removed", *["'embedding.weight' was replaced"] * 2]
        for text, expected in zip(refused, words, strict=True):
            assert expected in text


def test_what_was_made_before_parallelize_goes_on_working(force: Force) -> None:
    """Optimizers and hooks hold the parameters themselves; a hook of the module sees its call."""
    plan, batch = plan_of("words", 2, force), data("words", SAMPLES)
    _, trained = reference("words", batch, 1)

    def body(rank: int) -> tuple[dict[str, Tensor], int]:
        module, calls = materialize(Words()), [0]

        def count(*_: object) -> None:
            calls[0] += 1

        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        module.layers[0].weight.register_post_accumulate_grad_hook(count)
        module.register_forward_pre_hook(count)
        parallel = plan.parallelize(module)
        module(**batch)["loss"].backward()
        parallel.clip_grad_norm_(0.5)
        optimizer.step()
        return parallel.whole_state(), calls[0]

    results = run_threads(body, plan.ranks, timeout=60)
    assert [calls for _, calls in results] == [2] * plan.ranks
    for key, x in trained.state_dict().items():
        assert torch.allclose(results[0][0][key], x, rtol=0, atol=1e-9), key


def test_a_second_optimizer_takes_over(force: Force, tmp_path: Path) -> None:
    """As with other hyperparameters; gradients of micro-batches go to it alone."""
    plan, batch = plan_of("words", 9, force), data("words", SAMPLES)
    nodes = zip(plan.graph.nodes, plan.choices, strict=True)
    copied = [(c, n.op == "parameter" and "B" in c.output) for n, c in nodes]
    cut = (replace(c, sharded_states=here, sharded_gradients=here) for c, here in copied)
    program, state = program_of(replace(plan, choices=tuple(cut)), tmp_path), state_of(materialize(Words()))

    def body(rank: int) -> tuple[list[float], list[float]]:
        norms, losses = [], []
        for again in range(2):
            mesh, model, optimizer = program.build(state)
            optimizer = program.make_optimizer(model, mesh) if again else optimizer
            losses += [program.train_step(model, optimizer, batch, mesh, step) for step in range(2)]
            norms.append(optimizer.gradient_norm)
        return losses, norms

    losses, norms = run_threads(body, plan.ranks, timeout=60)[0]
    assert losses[:2] == losses[2:] and norms[0] == norms[1] > 0


class Counting(torch.optim.AdamW):
    """With a number among its states."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p]["calls"] = self.state[p].get("calls", 0) + 1


@pytest.mark.parametrize("kind", [2, 9])
def test_a_loop_goes_on_under_another_plan(kind: int, force: Force, tmp_path: Path) -> None:
    """With the state of its own optimizer, in the loop or in the emitted file; a number among the states too."""
    whole = data("words", 3 * SAMPLES)
    losses, trained = reference("words", whole, 3)
    batches = [{key: x[i * SAMPLES :][:SAMPLES] for key, x in whole.items()} for i in range(3)]

    def loop(plan: Plan, first: int, last: int) -> tuple[list[float], dict[str, Tensor]]:
        def body(rank: int) -> tuple[list[float], dict[str, Tensor]]:
            module = materialize(Words())
            parallel = plan.parallelize(module)
            optimizer, found = Counting(module.parameters(), 0.01), []
            if first:
                with torch.no_grad():
                    for p in module.parameters():
                        p.fill_(torch.nan)
                assert parallel.resume(tmp_path, optimizer) == parallel.step == first
            for batch in batches[first:last]:
                loss = module(**batch)["loss"]
                loss.backward()
                parallel.clip_grad_norm_(0.5)
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            parallel.save_training(tmp_path, optimizer)
            assert all(state["calls"] == last for p, state in optimizer.state.items() if p.numel())
            return found, parallel.whole_state()

        return run_threads(body, plan.ranks, timeout=60)[0]

    found, _ = loop(plan_of("words", kind, force), 0, 2)
    more, state = loop(plan_of("words", 7, force), 2, 3)
    assert [*found, *more] == pytest.approx(losses, abs=1e-9)
    for key, x in trained.state_dict().items():
        assert torch.allclose(state[key], x, rtol=0, atol=1e-9), key
    program = program_of(plan_of("words", 0, force), tmp_path)

    def file(rank: int) -> tuple[int, dict[str, Tensor]]:
        mesh, model, optimizer = program.build(state_of(materialize(Words())))
        return program.resume(model, optimizer, tmp_path), program.whole_weights(model, mesh)

    step, weights = run_threads(file, program.RANKS, timeout=60)[0]
    assert step == 3 and all(torch.equal(weights[key], x) for key, x in state.items())


class Halves(nn.Module):
    """Weights in the first stage of a pipeline alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.register_buffer("table", torch.randn(8, 4, generator=torch.Generator().manual_seed(3)))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.first(x).relu() @ self.table, labels)


@pytest.mark.parametrize("optimizer", ["adamw", "offloaded"])
def test_a_stage_without_weights(optimizer: str, tmp_path: Path) -> None:
    """Its ranks make an optimizer, clip and step all the same, in the loop and in the file."""
    batch = data("classifier", SAMPLES)
    plan = at_random(capture(Halves(), batch, batch=SAMPLES), 2, (2,), 2, random.Random(0), bounds=(0, 1, 2))
    assert not plan.stages[1].graph.of("parameter")
    if optimizer == "offloaded":
        nodes = plan.stages[0].graph.nodes
        choices = tuple(
            replace(c, offloaded=n.op == "parameter") for n, c in zip(nodes, plan.stages[0].choices, strict=True)
        )
        plan = replace(plan, stages=(replace(plan.stages[0], choices=choices), plan.stages[1]))
    program, module = program_of(plan, tmp_path), materialize(Halves())
    state, expected = state_of(module), module(**batch)
    expected.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.1)

    def body(rank: int) -> tuple[float, float, int]:
        live = materialize(Halves())
        parallel = plan.parallelize(live)
        mine = torch.optim.AdamW(live.parameters(), 0.01)
        live(**batch).backward()
        found = parallel.clip_grad_norm_(0.1).item()
        mine.step()
        mesh, model, optimizer = program.build(state)
        program.train_step(model, optimizer, batch, mesh, 0)
        program.save_training(model, optimizer, tmp_path / "checkpoints", 1)
        return found, optimizer.gradient_norm, program.resume(model, optimizer, tmp_path / "checkpoints")

    for result in run_threads(body, plan.ranks, timeout=60):
        assert result == pytest.approx((norm.item(), norm.item(), 1), abs=1e-12)


def test_other_outputs_are_none(force: Force) -> None:
    """A tuple, a named one, or a dataclass keeps its form."""

    @dataclass
    class Output:
        scores: Tensor | None
        loss: Tensor

    class Tagged(Classifier):
        def forward(self, x: Tensor, labels: Tensor, tag: str = "a") -> Output:  # type: ignore[override]
            return Output(x, super().forward(x, labels))

    batch = data("classifier", SAMPLES)
    plan = force(capture(Tagged(), batch, batch=SAMPLES), (2,), random.Random(2))

    def call(rank: int) -> tuple[Output, list[str]]:
        module = materialize(Tagged())
        plan.parallelize(module)
        refused = []
        try:
            module(**batch, tag="b")
        except PartitaError as error:
            refused.append(str(error))
        return module(batch["x"], labels=batch["labels"], tag="a"), refused

    for output, refused in run_threads(call, 2, timeout=60):
        assert output.scores is None
        assert output.loss.shape == ()
        assert refused == ["Tagged is planned without tag: plan it with these arguments"]


def test_a_loss_computed_from_the_output(tmp_path: Path) -> None:
    """Is what the module returns; a plan from a file needs it again."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return y

    torch.manual_seed(0)
    module, x = Scores(), torch.randn(8, 4)
    plan = optimize(module, x, Machine.adhoc((2,)), loss=lambda y: y.square().mean(), mesh=(2,))
    expected = module(x).square().mean().item()
    plan.save(tmp_path)

    def call(rank: int) -> tuple[float, str]:
        mine, refused = copy.deepcopy(module), ""
        try:
            load_plan(tmp_path).parallelize(mine)
        except PartitaError as error:
            refused = str(error)
        plan.parallelize(mine)
        return mine(x).item(), refused

    for value, refused in run_threads(call, 2, timeout=60):
        assert abs(value - expected) < 1e-6
        assert "give it again" in refused


class Scaled(nn.Module):
    """Buffers of which a checkpoint has one, and an attribute that is none but too large to be written as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(6, 4)
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.register_buffer("offset", torch.ones(300), persistent=False)  # too long for a constant
        self.register_buffer("rates", torch.tensor([0.1, 0.2, 0.4, 0.7]), persistent=False)
        self.table = torch.linspace(-1, 1, 300).view(50, 6).cos()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.scores(x + self.table.to(x.dtype).mean(0)) * self.scale * self.rates + self.offset[:4]
        return nn.functional.cross_entropy(scores, labels)


def test_a_live_module_with_buffers_needs_no_file_of_initial_values() -> None:
    batch = data("classifier", SAMPLES)
    planned = optimize(Scaled(), batch, Machine.adhoc((2,)), mesh=(2,), dtype="float64", cache="none")
    assert planned.verify()["ok"]
    state = Scaled().double().state_dict()

    def train(_: int) -> float:
        module = Scaled().double()
        module.rates.mul_(2)
        with pytest.raises(PartitaError, match="'rates' has other values than planned"):
            planned.parallelize(module)
        module.rates.div_(2)
        parallel = planned.parallelize(module)
        module.offset = module.offset.clone()
        parallel.load_whole_state(state)
        assert parallel.whole_state().keys() == (set() if dist.get_rank() else state.keys())
        assert module.offset.eq(1).all()
        module.offset.zero_()
        module.offset = module.offset + 1  # another tensor, as after .to()
        loss: Tensor = module(**batch)
        return loss.item()

    whole = Scaled().double()
    whole.load_state_dict(state)
    assert run_threads(train, 2, timeout=60) == pytest.approx([whole(**batch).item()] * 2, abs=1e-9)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return nn.functional.mse_loss(x, y)


def test_a_loop_takes_gradients_without_a_copy_and_frees_them() -> None:
    batch = {"x": torch.ones(4096, 8), "y": torch.ones(4096, 8)}
    planned = optimize(Stack(), batch, Machine.adhoc((2,)), mesh=(2,), recompute="none", cache="none")
    assert "class Reductions" in planned.emit()

    def train(_: int) -> None:
        module = Stack()
        planned.parallelize(module)
        for _ in range(2):
            loss: Tensor = module(**batch)
            loss.backward()
            grads = [part.grad for part in module.parameters() if part.grad is not None]
            assert grads and all(grad.untyped_storage().nbytes() > grad.nbytes for grad in grads)  # parts of a bucket
            message = StorageWeakRef(grads[0].untyped_storage())
            grads.clear()
            module.zero_grad()
            assert message.expired()

    run_threads(train, 2, timeout=60)
