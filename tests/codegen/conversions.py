"""Planners' plans with any legal choices as space-time plans, and random changes to these.

python -m tests.codegen.conversions 0 300          # seeds 0 to 299, each converted and then changed
python -m tests.codegen.conversions 0 40 dlrm unet # of these models
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from partita.codegen.plan.plan import Plan
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.verification.graph_module import _truth
from partita.codegen.verification.verify import TOLERANCE, Trial, run
from partita.formulation.pipeline.orders import gpipe, one_f_one_b
from partita.formulation.placement.placement import Placement
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.loop import expanded, loop_of
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.primitives import op_assign, op_join, op_order, op_trans, recompute, swap
from partita.formulation.spacetime.stages import in_order
from partita.formulation.spacetime.transformation import Chosen, Transformation, replicate, split
from partita.formulation.strategies.strategy import rows
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
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


# Changes


def another_strategy(graph: Graph, rng: random.Random) -> None:
    """One operator, of all or one of the micro-batches, is cut by another row, on the same devices."""
    op = rng.choice(graph.forward)
    alike = [other for other in graph.parts(op.node) if other.cuts[:1] == op.cuts[:1]]
    devices = sorted({other.device for other in alike if other.device is not None})
    whole = op_join(alike)
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
        for part, device in zip(op_trans(op_join(parts), replicate(len(devices))), devices, strict=True):
            op_assign(part, device)


def cut_once_more(graph: Graph, rng: random.Random) -> None:
    """A part is cut into two on its device."""
    op = rng.choice(graph.forward)
    for other in (other for other in graph.parts(op.node) if other.cuts[:1] == op.cuts[:1]):
        for part in op_trans(other, split("batch", 2, "more")):
            op_assign(part, other.device if other.device is not None else 0)


def moved(graph: Graph, rng: random.Random) -> None:
    op = rng.choice(graph.forward)
    op_assign(op, rng.choice([other.device for other in graph.forward if other.device is not None]))


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
    device = rng.choice(graph.forward).device
    own = [op for op in graph.forward if op.device == device and op.group is None and op.swapped is None]
    start = rng.randrange(len(own) or 1)
    return own[start : start + rng.randint(1, 5)]


EDITS: tuple[Edit, ...] = (
    another_strategy, everywhere, cut_once_more, moved, other_order, backwards, recomputed, swapped,
)  # fmt: skip


# What becomes of them


def checked(graph: Graph, devices: int, optimizer: str = "sgd") -> SpaceTimePlan:
    machine = Machine.load("v100-32gb") if any(op.swapped for op in graph.ops) else Machine.adhoc((devices,))
    return space_time(graph, machine, devices=devices, optimizer=optimizer)


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


def _main(first: int, last: int, models: Sequence[str]) -> None:
    counts, reasons = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            plan = random_plan(random.Random(seed), models)
            graph = converted(plan)
            if isinstance(graph, str):
                counts["not converted"] += 1
                reasons[graph[:100]] += 1
                continue
            try:
                trained(checked(graph, plan.ranks, plan.optimizer), Path(folder))
                counts["converted"] += 1
                graph = one_by_one(graph, seed)
                refusal = changed(graph, seed)
                if not refusal:
                    trained(checked(graph, plan.ranks, plan.optimizer), Path(folder))
                    counts["changed"] += 1
            except PartitaError as error:
                refusal = str(error)
            except Exception as error:
                counts["WRONG"] += 1
                print(f"seed {seed}: {type(error).__name__} {error}", flush=True)
                continue
            if refusal:
                counts["refused"] += 1
                reasons[" / ".join(refusal.splitlines()[:2])[:160]] += 1
    print(dict(counts))
    for reason, count in reasons.most_common(60):
        print(f"{count:4} {reason}")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or MODELS)
