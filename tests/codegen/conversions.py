"""Planners' plans with any legal choices as space-time plans, and random changes to these.

python -m tests.codegen.conversions 0 300          # seeds 0 to 299, each converted and then changed
python -m tests.codegen.conversions 0 40 dlrm unet # of these models
python -m tests.codegen.conversions planned 0 300  # what the planner finds in random spaces
"""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.bench.conversions import MODELS as ZOO
from partita.bench.conversions import Case, Way, planned
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.verification.graph_module import _truth
from partita.codegen.verification.verify import TOLERANCE, Trial, run
from partita.formulation.parallelism import Parallelism
from partita.formulation.pipeline.orders import gpipe, one_f_one_b
from partita.formulation.placement.placement import Placement
from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.loop import expanded, loop_of
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.primitives import (
    op_assign,
    op_join,
    op_order,
    op_trans,
    place,
    recompute,
    shard_gradients,
    swap,
)
from partita.formulation.spacetime.stages import in_order
from partita.formulation.spacetime.transformation import Chosen, Transformation, replicate, split
from partita.formulation.strategies.strategy import rows
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.sparse_tables import sparse_tables
from partita.model.machine.machine import Machine

from ..formulation.audit import check
from .conftest import drawn, machine_of
from .pipelines import at_random, captured

MODELS = ("mlp", "mlp", "candle-uno", "bert-large", "gpt2", "llama-7b")
SCHEDULES = ("1f1b", "gpipe", "eager-1f1b", "interleaved", "zero-bubble")
Edit = Callable[[Graph, random.Random], None]


def random_plan(rng: random.Random, models: Sequence[str] = MODELS) -> Plan:
    """A plan whose choices the primitives can express, as far as drawing alone can see to it."""
    name, micros = rng.choice(models), rng.choice((1, 2, 4))
    graph, optimizer = captured(name, 8), rng.choice(("sgd", "adamw"))
    optimizer = "sgd" if sparse_tables(graph) else optimizer
    if rng.random() < 0.5:
        sizes = rng.choice(((2,), (4,), (2, 2)))
        small = with_batch(graph, graph.batch // micros)
        choices = drawn(small, sizes, rng, {}, optimizer)
        place = Placement(sizes, tuple((size,) for size in sizes))
        return Plan(small, machine_of(sizes), place, micros, choices, "float64", optimizer)
    schedule = rng.choice(SCHEDULES)
    more: dict[str, Any] = {"chunks": 2} if schedule == "interleaved" else {}
    return at_random(
        graph, 2, (2,), max(micros, 2), rng, schedule=schedule, optimizer=optimizer,
        recompute=schedule != "zero-bubble" and rng.random() < 0.3, **more,
    )  # fmt: skip


def planners_plan(rng: random.Random, models: Sequence[str] = ()) -> Plan | str:
    """What the planner finds in a random space, or why it finds nothing."""
    name, way = rng.choice(models or (*ZOO, "unet", "mlp", "gpt2", "llama-7b")), random_way(rng)
    try:
        return planned(Case(name, way), seconds=15)
    except PartitaError as error:
        return str(error)


def random_way(rng: random.Random) -> Way:
    """Devices, dtype and optimizer, and some options of the search."""
    devices, micros = rng.choice((1, 2, 2, 4, 4)), rng.choice((1, 2, 4))
    space: dict[str, Any] = {"micro_batches": micros, "bundles": rng.random() < 0.3}
    space["recompute"] = rng.choice(("none", "none", "full", "selective", "all", "parts"))
    space["rules"] = planner_rules() if rng.random() < 0.25 else ()
    inner = devices
    if devices > 1 and rng.random() < 0.6:
        space["schedule"] = rng.choice((*SCHEDULES, "interlaced", "chimera", "3f1b"))
        space["chunks"] = 2 if space["schedule"] == "interleaved" else 1
        if space["schedule"] not in SCHEDULES:  # which have no more
            space |= {"recompute": "none", "rules": (), "bundles": False}
        space["stages"], inner = 2, devices // 2
        space["micro_batches"] = max(micros, 2)
    if rng.random() < 0.7:
        dp = rng.choice([n for n in (1, 2, 4) if inner % n == 0])
        space["parallelism"] = Parallelism(dp=dp, tp=inner // dp, zero=rng.randrange(4) if dp > 1 else None)
    return Way(
        "random", devices, space, rng.choice(("float32", "float32", "mixed-bfloat16", "mixed-float16", "bfloat16")),
        hosted=rng.random() < 0.2, optimizer=rng.choice(("sgd", "adamw")),
        statistics=rng.choice(("batch", "micro-batch")),
    )  # fmt: skip


# Changes


def another_strategy(graph: Graph, rng: random.Random) -> None:
    """One operator, of all or one of the micro-batches, is cut by another row, on the same devices."""
    op = rng.choice(graph.forward)
    alike = [other for other in graph.parts(op.node) if other.coordinate("micro") == op.coordinate("micro")]
    devices = sorted({other.device for other in alike if other.device is not None})
    whole = _whole(alike)
    ways: list[Transformation] = [Chosen(row, len(devices), "other") for row in rows(graph.pcg, op.node)]
    try:
        parts = op_trans(whole, rng.choice(ways))
    except PartitaError:  # sizes that do not divide
        parts = op_trans(whole, replicate(len(devices)))
    for part, device in zip(parts, devices, strict=True):
        op_assign(part, device)


def everywhere(graph: Graph, rng: random.Random) -> None:
    """The first operator is computed by all devices."""
    op, devices = graph.forward[0], sorted({op.device for op in graph.forward if op.device is not None})
    for micro in {other.coordinate("micro"): other for other in graph.parts(op.node)}:
        parts = [other for other in graph.parts(op.node) if other.coordinate("micro") == micro]
        for part, device in zip(op_trans(_whole(parts), replicate(len(devices))), devices, strict=True):
            op_assign(part, device)


def cut_once_more(graph: Graph, rng: random.Random) -> None:
    """A part is cut into two on its device."""
    op = rng.choice(graph.forward)
    for other in (other for other in graph.parts(op.node) if other.cuts[:1] == op.cuts[:1]):
        for part in op_trans(other, split("batch", 2, "more")):
            op_assign(part, other.device if other.device is not None else 0)


def moved(graph: Graph, rng: random.Random) -> None:
    op = rng.choice(graph.forward)
    op_assign(op, rng.choice(_devices(graph)))


def embedding(graph: Graph, rng: random.Random) -> None:
    """A table is looked up on other devices."""
    tables = [i for i, node in enumerate(graph.pcg.nodes) if node.op in ("embedding", "embedding_bag")]
    parts, devices = graph.parts(rng.choice(tables or [graph.forward[0].node])), _devices(graph)
    shift = rng.randrange(1, len(devices) + 1)
    for op in parts:
        op_assign(op, devices[(devices.index(op.device) + shift) % len(devices)])


def layer(graph: Graph, rng: random.Random) -> None:
    """All operators of a layer are cut by samples, or computed by all of its devices."""
    names = sorted({op.layer for op in graph.forward if op.layer})
    name = rng.choice(names) if names else rng.choice(graph.forward).of.name
    nodes = sorted({op.node for op in graph.forward if op.layer == name or op.of.name == name})
    how = rng.choice((lambda count: split("batch", count, "layer"), replicate))
    for node in nodes:
        for micro in {op.coordinate("micro"): op for op in graph.parts(node)}:
            parts = [op for op in graph.parts(node) if op.coordinate("micro") == micro]
            devices = sorted({op.device for op in parts if op.device is not None})
            for part, device in zip(op_trans(_whole(parts), how(len(devices))), devices, strict=True):
                op_assign(part, device)


def zero(graph: Graph, rng: random.Random) -> None:
    """A weight is updated in parts by all devices, or also kept so; its gradients are summed early."""
    update = rng.choice(graph.optimizer)
    update = _whole(graph.parts(update.node))
    name, devices = update.of.name, _devices(graph)
    cut = split((name, 0), len(devices))
    if rng.random() < 0.5:
        place(graph, name, cut, devices, shared=rng.random() < 0.5, retained=rng.random() < 0.5)
    if rng.random() < 0.5:
        shard_gradients(update)
    for part, device in zip(op_trans(update, cut), devices, strict=True):
        op_assign(part, device)


def _whole(parts: Sequence[Op]) -> Op:
    """The operator of which these are all parts, which still has its micro-batches."""
    return parts[0] if len(parts) == 1 else op_join(parts)


def _devices(graph: Graph) -> list[int]:
    return sorted({op.device for op in graph.forward if op.device is not None})


def other_order(graph: Graph, rng: random.Random) -> None:
    """Micro-batches of each device by another schedule; a random order of some operators if there are none."""
    graph.clear_orders()
    loop = loop_of(graph)
    micros = loop.count if loop else 1 + max(op.coordinate("micro") for op in graph.forward)
    order = rng.choice((gpipe, one_f_one_b))(1, micros)
    for device in {op.device for op in graph.forward}:
        own = [op for op in graph.forward if op.device == device and any(c.label == "micro" for c in op.cuts)]
        if own and (loop or {op.coordinate("micro") for op in own} == {*range(micros)}):
            in_order(order, [own])


def backwards(graph: Graph, rng: random.Random) -> None:
    op_order(rng.choice(graph.forward), rng.choice(graph.forward))


def recomputed(graph: Graph, rng: random.Random) -> None:
    recompute(_some(graph, rng))


def swapped(graph: Graph, rng: random.Random) -> None:
    swap(_some(graph, rng))
    swap(rng.choice(graph.optimizer))


def _some(graph: Graph, rng: random.Random) -> list[Op]:
    device, micro = (first := rng.choice(graph.forward)).device, first.coordinate("micro")
    free = [op for op in graph.forward if op.group is None and op.swapped is None]
    own = [op for op in free if (op.device, op.coordinate("micro")) == (device, micro)]
    start = rng.randrange(len(own) or 1)
    return own[start : start + rng.randint(1, 5)]


EDITS: tuple[Edit, ...] = (
    another_strategy, everywhere, cut_once_more, moved, embedding, layer, other_order, backwards, recomputed, swapped,
    zero,
)  # fmt: skip


# What becomes of them


def checked(graph: Graph, devices: int, optimizer: str = "sgd", dtype: str = "float32") -> SpaceTimePlan:
    hosts = any(op.swapped for op in graph.ops)
    machine = Machine.load("dgx-a100", nodes=1) if hosts else Machine.adhoc((devices,))
    return space_time(graph, machine, devices=devices, optimizer=optimizer, dtype=dtype)


def trained(plan: SpaceTimePlan, folder: Path) -> None:
    """The program does what its instructions say, and computes what its graph says."""
    assert check(plan.program) == ()
    assert plan.prediction.step_ns > 0
    path = folder / "program.py"
    path.write_text(plan.source())
    state, batches, truth = _truth(plan.pcg, plan.optimizer, 2)
    verdict = run([Trial(path, plan.pcg, plan.ranks, state, batches, truth, TOLERANCE)], timeout=60)[0]
    assert verdict["ok"], verdict["failure"]


def converted(plan: Plan) -> Graph | str:
    """The graph of a plan, or why there is none."""
    try:
        return plan.space_time_graph()
    except PartitaError as error:
        return str(error)


def one_by_one(graph: Graph, seed: int) -> Graph:
    """The graph, of every other seed with an operator for every micro-batch."""
    loop = loop_of(graph)
    return graph if loop is None or seed % 2 else expanded(graph, loop)


def changed(graph: Graph, seed: int) -> str:
    """Make one to three random changes; the refusal of one that cannot be made, or empty."""
    rng = random.Random(seed)
    try:
        for edit in rng.sample(EDITS, rng.randint(1, 3)):
            edit(graph, rng)
    except PartitaError as error:
        return str(error)
    return ""


CHANGED = 3
"""How often each plan of the command line is changed, each time from the converted one."""


@dataclass(frozen=True)
class Found:
    """How many plans of a kind became what."""

    counts: Counter[str] = field(default_factory=Counter)

    def tried(self, kind: str, seed: int, run: Callable[[int], None]) -> bool:
        """True if a plan trains as its model does."""
        try:
            run(seed)
        except PartitaError as error:
            self.counts[f"{kind}: refused"] += 1
            print(f"{kind} {seed}: {' / '.join(str(error).splitlines()[:3])}", flush=True)
            return False
        except Exception:
            self.counts[f"{kind}: WRONG"] += 1
            print(f"WRONG: {kind} {seed}", flush=True)
            traceback.print_exc()
            return False
        self.counts[kind] += 1
        return True


def _trained_as(plan: Plan, graph: Graph, folder: str) -> None:
    trained(checked(graph, plan.ranks, plan.optimizer, plan.dtype), Path(folder))


def _changed(plan: Plan, seed: int, folder: str) -> None:
    graph = one_by_one(plan.space_time_graph(), seed)
    refusal = changed(graph, seed)
    if refusal:
        raise PartitaError(refusal)
    _trained_as(plan, graph, folder)


def _main(draw: Callable[[random.Random], Plan | str], seeds: range) -> None:
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            plan = draw(random.Random(seed))
            if isinstance(plan, str):
                found.counts["no plan"] += 1
                continue
            if not found.tried(
                "converted", seed, lambda _, plan=plan: _trained_as(plan, plan.space_time_graph(), folder)
            ):
                continue
            for number in range(CHANGED):
                found.tried("changed", CHANGED * seed + number, lambda n, plan=plan: _changed(plan, n, folder))
            print(f"to {seed}: {dict(found.counts)}", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    searched = given[0] == "planned"
    lowest, highest, *names = given[searched:]
    draw = planners_plan if searched else random_plan
    _main(lambda rng: draw(rng, *([names] if names else [])), range(int(lowest), int(highest)))
