"""Training that stops and goes on elsewhere: the losses of the run without the stop; ranks killed in saves; memory.

Chains: a module trains 20 steps in float64 under three random plans, each of which resumes where the one before
stopped: other meshes, pipelines, micro-batches, memory limits (so that weights are gathered and states sharded) and
storage of states. Ranks are threads, each reads its own samples of a shuffled data set of two and a half batches, so
epochs end. The weights go through a safetensors file of the last plan into the module and back into a program.
`error` is the largest difference to losses and weights of one rank that never stops.

Kills: two processes save again and again, each step twice, until SIGKILL ends one of them at a random moment; then
another plan, on three ranks, resumes. Memory: four processes share an embedding; what each needs besides its parts
while it saves, resumes, exports and imports.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..codegen.plan.plan import PipelinePlan, Plan
from ..codegen.planner.plan_graph import plan_graph
from ..codegen.verification.graph_module import GraphModule
from ..codegen.verification.launch import LaunchError, torchrun
from ..codegen.verification.reference import state_of
from ..codegen.verification.synthetic import synthetic
from ..codegen.verification.threads import run_threads
from ..codegen.verification.worker import load_program
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.graph.layout import B
from ..model.graph.pcg import PCG
from ..model.training import PROJECTION, Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial
from .cases import Row, Tell, each
from .models import slow_machine
from .random_modules import random_module, with_memory

STEPS, BATCH = 20, 12
TOLERANCE = 1e-9
COUNT, SMALL_COUNT = 40, 3
KILLS, SMALL_KILLS = 12, 1
MESHES = ((1,), (2,), (3,), (2, 2), (4,), (2, 3))
MIB = 2**20
ROWS, WIDTH = 400_000, 128
"""Of the embedding whose memory is measured: 195 MiB in float32."""


class Language(nn.Module):
    """A transformer with tied embeddings, dropout, frozen weights and a weight without dims."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(10, 12), nn.Parameter(torch.ones(4, 12), requires_grad=False)
        self.norm, self.qkv, self.out = nn.LayerNorm(12), nn.Linear(12, 36), nn.Linear(12, 12, bias=False)
        self.up, self.down, self.gain = nn.Linear(12, 14), nn.Linear(14, 12), nn.Parameter(torch.tensor(0.5))
        self.scores = nn.Linear(12, 10, bias=False)
        self.scores.weight = self.tokens.weight
        self.up.bias.requires_grad_(False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + nn.functional.dropout(self.out(mixed), 0.1, self.training)
        x = x + self.gain * nn.functional.dropout(self.down(torch.relu(self.up(x))), 0.2, self.training)
        return nn.functional.cross_entropy(self.scores(x).flatten(0, 1), labels.flatten())


class Vision(nn.Module):
    """Convolutions, one of them grouped, with batch norms, whose running statistics are buffers, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.first = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.narrow, self.second = nn.Conv2d(6, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4)
        self.scores = nn.Linear(4, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = torch.relu(self.second(self.narrow(torch.relu(self.first(self.wide(x))))))
        x = nn.functional.dropout(x.mean((2, 3)), 0.1, self.training)
        return nn.functional.cross_entropy(self.scores(x), labels)


@dataclass(frozen=True)
class Chain:
    """Three plans of one module, drawn by a seed."""

    seed: int

    @property
    def name(self) -> str:
        return f"chain {self.seed}"

    def measure(self) -> Row:
        """The row: what was planned, and the largest differences."""
        rng = Random(self.seed)
        what, module, graph = _drawn_module(rng)
        optimizer = rng.choice(("adamw", "adamw", "sgd"))
        stops = [*sorted(rng.sample(range(1, STEPS), 2)), STEPS]
        data = _data_set(graph)
        start = state_of(GraphModule(graph))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            single = _emitted(_planned(graph, (1,), 1, 1, optimizer), folder / "single.py")
            expected, weights = _on_ranks(single, data, start, STEPS)
            losses: list[float] = []
            plans, source, seconds = [], None, 0.0
            program = single
            for number, stop in enumerate(stops):
                plan, text = _drawn_plan(graph, rng, optimizer)
                plans.append(text)
                program = _emitted(plan, folder / f"program{number}.py")
                target = folder / f"checkpoints{number}"
                begun = time.monotonic()
                found, _ = _on_ranks(program, data, start, stop, source=source, target=target)
                seconds += time.monotonic() - begun
                losses += found
                source = target
            exported = run_threads(lambda _: _exported(program, source, folder / "whole.safetensors"), program.RANKS)[0]
            given = single.open_weights(folder / "whole.safetensors")
            if isinstance(module, Language | Vision):
                module.double().load_state_dict(given)  # strict: all names, tied ones too
            _, again = _on_ranks(single, data, given, 0)
        same = all(torch.equal(exported[name], x) for name, x in again.items()) and again.keys() == weights.keys()
        error = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
        apart = max(float((again[name].double() - x.double()).abs().max()) for name, x in weights.items() if x.numel())
        row: Row = {"case": self.name, "module": what, "plans": "; ".join(plans), "optimizer": optimizer}
        row |= {"stops": stops[:-1]}
        found_ok = same and error <= TOLERANCE and apart <= TOLERANCE
        return row | {"error": error, "weights_error": apart, "seconds": seconds, "ok": found_ok}


def _drawn_module(rng: Random) -> tuple[str, nn.Module, PCG]:
    torch.manual_seed(0)
    kind = rng.choice(("language", "vision", "random"))
    if kind == "language":
        ids = torch.zeros(BATCH, 4, dtype=torch.long)
        return kind, (language := Language()), capture(language, (ids, ids), batch=BATCH, dropout="counters")
    if kind == "vision":
        x, labels = torch.zeros(BATCH, 2, 4, 4), torch.zeros(BATCH, dtype=torch.long)
        return kind, (vision := Vision()), capture(vision, (x, labels), batch=BATCH, dropout="counters")
    net, x = random_module(rng)
    x = x[:1].expand(BATCH, *x.shape[1:]).contiguous()
    blocks = "; ".join(" ".join(map(str, block)) for block in net.blocks)
    return blocks, net, capture(net, (x,), batch=BATCH, loss=PROJECTION, dropout="counters")


def _planned(
    graph: PCG, mesh: tuple[int, ...], stages: int, micro_batches: int, optimizer: str, share: float = 1.0
) -> Plan:
    """The best plan of this form, with a share of the memory that it takes."""
    levels = mesh if stages == 1 else (stages, *mesh)
    machine, training = slow_machine(levels), Training(BATCH, "float64", optimizer)
    space = SearchSpace(mesh=mesh, stages=stages, micro_batches=micro_batches, bundles=False)
    plan = plan_graph(graph, machine, training, space, Budget(executor=Serial()))
    if share < 1:
        with suppress(PartitaError):  # it needs as much
            less = with_memory(machine, int(plan.report["memory_bytes"] * share))
            return plan_graph(graph, less, training, space, Budget(executor=Serial()))
    return plan


def _drawn_plan(graph: PCG, rng: Random, optimizer: str) -> tuple[Plan, str]:
    while True:
        mesh, stages, micro = rng.choice(MESHES), rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
        share, states = rng.choice((1.0, 0.8, 0.6)), rng.random() < 0.5
        with suppress(PartitaError):  # no such plan: a batch norm needs the whole batch, a model has one stage, ...
            plan = _planned(graph, mesh, stages, micro, optimizer, share)
            plan = _sharded(plan, rng) if states else plan
            plan.emit()
            text = "x".join(map(str, mesh)) + (f", {stages} stages" if stages > 1 else "")
            text += f", {micro} micro-batches" if micro > 1 else ""
            return plan, text + (f", memory {share:g}" if share < 1 else "") + (", states sharded" if states else "")


def _sharded(plan: Plan, rng: Random) -> Plan:
    """The plan with states, and some gradients, of weights with copies sharded over these, some kept on the host."""
    if isinstance(plan, PipelinePlan):
        return replace(plan, stages=tuple(_sharded(stage, rng) for stage in plan.stages))
    choices = list(plan.choices)
    for index in plan.graph.of("parameter"):
        node = plan.graph.nodes[index]
        if node.gradient and B in choices[index].output and node.get("stages", 1) == 1:
            gradients, away = rng.random() < 0.4, rng.random() < 0.3
            choices[index] = replace(choices[index], sharded_states=True, sharded_gradients=gradients, offloaded=away)
    return replace(plan, choices=tuple(choices))


def _emitted(plan: Plan, path: Path) -> ModuleType:
    plan.emit(path)
    return load_program(path)


def _data_set(graph: PCG) -> dict[str, Tensor]:
    """Two and a half batches."""
    batches = [synthetic(graph, BATCH, step) for step in range(3)]
    return {name: torch.cat([batch[name] for batch in batches])[: BATCH * 5 // 2] for name in batches[0]}


def trained(
    program: ModuleType,
    data: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    last: int,
    source: Path | None = None,
    target: Path | None = None,
    saved: Callable[[int], None] | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """On this rank: the losses of the steps up to `last`, and whole weights, from a checkpoint or else from `start`."""
    mesh = program.Mesh()
    model = program.Model(mesh, dtype=torch.float64)
    program.load(model, dict(start), mesh)
    optimizer = program.make_optimizer(model, mesh)
    first = program.resume(model, optimizer, source) if source else 0
    numbers = chain.from_iterable(repeat(program.Samples(mesh, len(next(iter(data.values()))), first)))  # all epochs
    losses = []
    for step in range(first, last):
        own = next(numbers)
        inputs = {name: x[own] for name, x in data.items()}
        losses.append(float(program.train_step(model, optimizer, inputs, mesh, step, local=True)))
        if saved is not None:
            saved(step)
            program.save_training(model, optimizer, target, step + 1)
            program.save_training(model, optimizer, target, step + 1)
    if target and saved is None:
        program.save_training(model, optimizer, target, last)
    whole = program.whole_weights(model, mesh)
    return losses, {name: x.clone() for name, x in whole.items()}


def _on_ranks(
    program: ModuleType, data: Mapping[str, Tensor], start: Mapping[str, Tensor], last: int, **options: Any
) -> tuple[list[float], dict[str, Tensor]]:
    """What `trained` gives on rank 0."""
    return run_threads(lambda _: trained(program, data, start, last, **options), program.RANKS)[0]


def _exported(program: ModuleType, source: Path | None, path: Path) -> dict[str, Tensor]:
    mesh = program.Mesh()
    model = program.Model(mesh, dtype=torch.float64)
    program.resume(model, program.make_optimizer(model, mesh), source)
    program.save(model, path, mesh)
    return dict(program.whole_weights(model, mesh))


@dataclass(frozen=True)
class Kill:
    """A rank that SIGKILL ends at a random moment of its saves."""

    seed: int

    @property
    def name(self) -> str:
        return f"kill {self.seed}"

    def measure(self) -> Row:
        """The row: who died when, and what was resumed."""
        rng = Random(self.seed)
        ids = torch.zeros(BATCH, 4, dtype=torch.long)
        graph = capture(Language(), (ids, ids), batch=BATCH, dropout="counters")
        data, start = _data_set(graph), state_of(GraphModule(graph))
        victim, delay = rng.randrange(2), rng.uniform(0.0, 0.6)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            _sharded(_planned(graph, (2,), 1, 1, "adamw"), rng).emit(folder / "program.py")
            torch.save({"data": data, "start": start}, folder / "start.pt")
            died = False
            try:
                torchrun(f"module:{__name__}", 2, ["kill", place, str(victim), str(delay)], timeout=120)
            except LaunchError:
                died = True
            left = sorted(path.name for path in (folder / "checkpoints").iterdir())
            latest = (folder / "checkpoints" / "latest").read_text()
            single = _emitted(_planned(graph, (1,), 1, 1, "adamw"), folder / "single.py")
            expected, _ = _on_ranks(single, data, start, STEPS)
            other = _emitted(_planned(graph, (3,), 1, 1, "adamw"), folder / "other.py")
            source = folder / "checkpoints"
            found, _ = _on_ranks(other, data, start, STEPS, source=source, target=source)
            cleaned = not any(path.name.endswith(".unfinished") for path in source.iterdir())
        rest = expected[STEPS - len(found) :]
        error = max((abs(a - b) for a, b in zip(rest, found, strict=True)), default=0.0)
        row = {"case": self.name, "victim": victim, "seconds": delay, "died": died, "left": left, "latest": latest}
        return row | {"error": error, "cleaned": cleaned, "ok": died and cleaned and error <= TOLERANCE}


class Table(nn.Module):
    """An embedding that is large beside everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found.square().mean()


@dataclass(frozen=True)
class Memory:
    """What four ranks need besides their parts of an embedding."""

    rows: int
    name: str = "memory"

    def measure(self) -> Row:
        """The row: MiB at most on any rank but 0 beside what it holds, those on rank 0, and seconds, of each action."""
        with torch.device("meta"):
            table = Table()
        table.table.weight = nn.Parameter(torch.empty(self.rows, WIDTH, device="meta"))
        graph = capture(table, (torch.zeros(8, 4, dtype=torch.long),), batch=8)
        training, space = Training(8, "float32", "adamw"), SearchSpace(mesh=(4,), stages=1, micro_batches=1)
        plan = plan_graph(graph, slow_machine((4,)), training, space, Budget(executor=Serial()))
        with tempfile.TemporaryDirectory() as place:
            plan.emit(Path(place) / "program.py")
            one = plan_graph(graph, slow_machine((1,)), training, replace(space, mesh=(1,)), Budget(executor=Serial()))
            one.emit(Path(place) / "one.py")
            torchrun(f"module:{__name__}", 4, ["memory", place], timeout=600)
            torchrun(f"module:{__name__}", 1, ["one", place], timeout=600)
            torchrun(f"module:{__name__}", 4, ["again", place], timeout=600)
            lines = [
                json.loads(line)
                for path in sorted(Path(place).glob("measured*"))
                for line in path.read_text().splitlines()
            ]
        whole = self.rows * WIDTH * 4 / MIB
        row: Row = {"case": self.name, "whole_mib": whole, "part_mib": max(each["part_mib"] for each in lines)}
        for action in dict.fromkeys(line["action"] for line in lines):
            same = [line for line in lines if line["action"] == action]
            row[f"{action}_mib"] = max(line["peak_mib"] for line in same if line["rank"])
            row[f"{action}_s"] = max(line["seconds"] for line in same)
            row[f"{action}_rank_0_mib"] = max(line["peak_mib"] for line in same if not line["rank"])
        moves = [value for key, value in row.items() if key in ("save_mib", "export_mib", "import_mib")]
        resumed = max(row["resume_mib"], row["resume_of_one_mib"])
        return row | {"ok": max(moves) < whole / 4 and resumed < max(whole / 2, 1.1 * row["step_mib"])}


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for each chain, each kill, and for memory."""
    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
    chains = [Chain(seed) for seed in range(SMALL_COUNT if small else COUNT)]
    kills = [Kill(seed) for seed in range(SMALL_KILLS if small else KILLS)]
    cases: list[Chain | Kill | Memory] = [*chains, *kills, *([] if small else [Memory(ROWS)])]
    rows = []
    for case in each(cases, only, tell):
        rows.append(case.measure())
        tell(f"{case.name}: {'ok' if rows[-1]['ok'] else rows[-1]}")
    columns = dict.fromkeys(key for row in rows for key in row)
    return [dict.fromkeys(columns) | row for row in rows]


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How many hold, and the largest difference to the run without a stop."""
    errors = [row["error"] for row in rows if row.get("error") is not None]
    return {"cases": len(rows), "ok": sum(row["ok"] for row in rows), "error": max(errors, default=0.0)}


def main(action: str, place: str, *options: str) -> None:
    """One rank of `Kill` or `Memory`, which torchrun started."""
    dist.init_process_group("gloo")
    folder = Path(place)
    if action == "kill":
        _killed(folder, int(options[0]), float(options[1]))
    else:
        _measured(folder, action)
    dist.barrier()
    dist.destroy_process_group()


def _killed(folder: Path, victim: int, delay: float) -> None:
    given = torch.load(folder / "start.pt")

    def dies(step: int) -> None:
        if step == 1 and dist.get_rank() == victim:
            timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()

    program = load_program(folder / "program.py")
    trained(program, given["data"], given["start"], STEPS - 1, target=folder / "checkpoints", saved=dies)
    time.sleep(2 * delay)


def _measured(folder: Path, action: str) -> None:
    program = load_program(folder / ("one.py" if action == "one" else "program.py"))
    mesh = program.Mesh()
    model = program.Model(mesh, dtype=torch.float32)
    optimizer = program.make_optimizer(model, mesh)
    for part in model.parameters():
        part.detach().fill_(dist.get_rank())
    inputs = {"ids": torch.arange(32).view(8, 4)}
    program.train_step(model, optimizer, inputs, mesh, 0)  # makes the optimizer's states
    checkpoints, whole = folder / "checkpoints", folder / "whole.safetensors"
    log = folder / f"measured{dist.get_rank()}"
    part = sum(p.nbytes for p in model.parameters()) / MIB

    def measured(name: str, call: Callable[[], object]) -> None:
        dist.barrier()
        with _peak() as peak:
            begun = time.monotonic()
            call()
            seconds = time.monotonic() - begun
        line = {"action": name, "rank": dist.get_rank(), "part_mib": part, "peak_mib": peak[0], "seconds": seconds}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def step() -> None:
        program.train_step(model, optimizer, inputs, mesh, 1)
        optimizer.zero_grad()

    optimizer.zero_grad()
    if action == "memory":
        measured("step", step)
        measured("save", lambda: program.save_training(model, optimizer, checkpoints, 1))
        measured("resume", lambda: program.resume(model, optimizer, checkpoints))
        measured("export", lambda: program.save(model, whole, mesh))
        measured("import", lambda: program.load(model, whole, mesh))
    elif action == "one":
        program.save_training(model, optimizer, checkpoints, 2)
    else:
        measured("resume_of_one", lambda: program.resume(model, optimizer, checkpoints))


@contextmanager
def _peak() -> Any:
    """The most MiB that this process had of its own beside what it had at first."""
    before, found, stop = _own_mib(), [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.002):
            found[0] = max(found[0], _own_mib() - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _own_mib() -> float:
    """MiB of memory that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise PartitaError("this machine does not tell how much memory a process has")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
