"""Random space-time plans: legal ones run and compute what their graph says, corrupted ones are refused or still do.

An operator is cut by any row that it has, and its parts again; they lie on any devices, in any order that their needs
allow, with recomputation, swaps, split backwards, and weights that are kept and updated anywhere.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.verification.graph_module import _truth
from partita.codegen.verification.verify import TOLERANCE, Trial, run
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.op import Op, Phase
from partita.formulation.spacetime.order import edges
from partita.formulation.spacetime.primitives import (
    op_assign,
    op_order,
    op_trans,
    place,
    recompute,
    split_backward,
    swap,
)
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import Transformation, replicate, split
from partita.formulation.strategies.row import Row
from partita.formulation.strategies.strategy import rows
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, R
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.solvers.spacetime.validate import validate

from ..formulation.audit import check

pytestmark = pytest.mark.timeout(120)
BATCH, LENGTH, WIDTH = 4, 2, 4
MACHINES = (Machine.adhoc((2, 2)), Machine.adhoc((4,)), Machine.load("v100-32gb"))
Orders = list[tuple[list[Op], list[Op]]]


def net(rng: random.Random) -> PCG:
    """A look-up, then linears, products with itself, norms, residuals and dropout; a loss, or the sum of two."""
    batch = rng.choice((BATCH, BATCH, 5))  # five samples in unequal parts
    b, shape = Builder(batch), (batch, LENGTH, WIDTH)
    ids = b.add("input", shape=shape[:2], name="ids", dtype="int64", batch_dim=0, high=5)
    found = [b.add("embedding", b.parameter("table", (5, WIDTH)), ids, shape=shape, name="embedding")]
    known: dict[str, int] = {}

    def weight(name: str, *shape: int) -> int:
        """A parameter, which several may read."""
        known[name] = known[name] if name in known else b.parameter(name, shape)
        return known[name]

    for number in range(rng.randint(2, 5)):
        x, name = rng.choice(found[-2:]), f"n{number}"
        kind = rng.choice(("linear", "product", "norm", "residual", "dropout", "softmax"))
        if kind == "linear":
            read = weight(rng.choice(("tied", f"weight{number}")), WIDTH, WIDTH)
            found.append(b.add("linear", x, read, shape=shape, name=name))
        elif kind == "product":
            other = x if rng.random() < 0.5 else weight("scale", WIDTH)
            found.append(b.add("mul", x, other, shape=shape, name=name))
        elif kind == "norm":
            extra = {"normalized": 1, "eps": 1e-3, "operands": ("x", "w")}
            found.append(b.add("rms_norm", x, weight("scale", WIDTH), shape=shape, name=name, **extra))
        elif kind == "residual":
            found.append(b.add("add", x, rng.choice(found), shape=shape, name=name))
        elif kind == "dropout":
            found.append(b.add("dropout", x, shape=shape, name=name, p=0.25, site=number))
        else:
            found.append(b.add("softmax", x, shape=shape, name=name, dim=2))
    target = b.input("target", shape)
    losses = [
        b.add("mse_loss", x, target, shape=(), name=f"loss{x}", reduction="mean") for x in found[-rng.choice((1, 2)) :]
    ]
    return b.build(losses[0] if len(losses) == 1 else b.add("add", *losses, shape=(), name="loss"))


# Plans


@dataclass(frozen=True)
class Drawn:
    """A transformation by one of the rows that an operator has."""

    drawn: Row
    parts: int
    label: str

    def row(self, graph: Graph, node: int) -> Row:
        return self.drawn


def write_alike(op: Op) -> bool:
    """Whether the parts of an operator's last cut write the same value or gradient.

    Then they have to be cut alike from there on: addends of one beside the whole of another would overlap.
    """
    row, pcg = op.cuts[-1].row, op.graph.pcg
    gradients = (letter for i, letter in zip(op.of.inputs, row.inputs, strict=True) if pcg.nodes[i].gradient)
    return row.output in (R, B) or any(letter in (R, P) for letter in gradients)


def cut(ops: Sequence[Op], depth: int, rng: random.Random) -> list[Op]:
    """Operators that are parts of one, all cut alike, and their parts again."""
    legal = [row for row in rows(ops[0].graph.pcg, ops[0].node) if not row.special]
    ways: list[Transformation] = [split("batch", 2, "micro"), replicate(2, addends=True)]
    how = rng.choice([*ways, *(Drawn(rng.choice(legal), rng.choice((2, 2, 3, 4)), "part") for _ in range(4))])
    try:
        parts = [part for op in ops for part in op_trans(op, how)] if depth else []
    except PartitaError:  # parts that would be empty
        parts = []
    if not parts:
        return list(ops)
    together = len(ops) > 1 or write_alike(parts[0])
    return [p for group in ([parts] if together else [[part] for part in parts]) for p in cut(group, depth - 1, rng)]


def planned(pcg: PCG, rng: random.Random, devices: int) -> Graph:
    """The graph with some operators in parts, all on devices."""
    graph, wild = Graph(pcg), rng.random() < 0.5
    for number, op in enumerate(graph.forward):
        for k, part in enumerate(cut([op], rng.choice((0, 1, 1, 2)), rng)):
            stage = number * devices // len(graph.parts(op.node)) % devices
            op_assign(part, rng.randrange(devices) if wild else (stage + k) % devices)
    nodes = [op.node for op in graph.forward]
    again = rng.sample(nodes, rng.choice((0, 0, len(nodes) // 2)))
    recompute(op for op in graph.forward if op.node in again)
    swap(op for op in graph.forward if op.node not in again and rng.random() < 0.1)
    split_backward(op for op in graph.forward if rng.random() < 0.3)
    for index in pcg.of("parameter"):  # kept elsewhere than it is read; it is updated where it is kept
        if rng.random() < 0.4:
            how = rng.choice((split(0, 2), replicate(2))) if pcg.nodes[index].shape[0] % 2 == 0 else replicate(2)
            place(graph, pcg.nodes[index].name, how, rng.sample(range(devices), 2))
    return graph


def orders_of(graph: Graph, rng: random.Random) -> Orders:
    """Orders between some operators, as they come in a random order of the tasks that their needs allow."""
    done = validate(tasks(graph))
    after: dict[Op, list[Op]] = {op: [] for op in done.order}
    left = Counter(b for a, b in edges(done) if after[a].append(b) is None)
    order, ready = list[Op](), [op for op in done.order if not left[op]]
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for b in after[order[-1]]:
            left[b] -= 1
            ready += [] if left[b] else [b]
    order = [op for op in order if op.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.WEIGHT)]
    places = [rng.randrange(1, len(order)) for _ in range(rng.randrange(5))]
    return [(rng.sample(order[:at], min(at, 2)), rng.sample(order[at:], 1)) for at in places]


def plan_of(graph: Graph, orders: Orders, devices: int, rng: random.Random) -> SpaceTimePlan:
    for first, second in orders:
        op_order(first, second)
    communication, machine = rng.choice(("p2p", "intra", "rvd", "rvd")), rng.choice(MACHINES)
    dtype = rng.choice(("float32", "float32", "mixed-float16"))
    return space_time(graph, machine, devices=devices, dtype=dtype, optimizer="sgd", communication=communication)


def holds(plan: SpaceTimePlan, folder: Path) -> str:
    """A plan runs and computes what its graph says, in time and memory that are numbers; its source."""
    assert check(plan.program) == ()
    assert plan.prediction.step_ns > 0
    weights = Counter[int]()
    for op in plan.program.tasks.ops:
        if op.phase is Phase.STORE and op.device is not None:
            weights[op.device] += 4 * op.mask(None).numel  # also if it computes in 16 bits
    assert all(peak >= weights[device] for device, peak in enumerate(plan.prediction.peak_bytes))
    source, path = plan.source(), folder / "program.py"
    path.write_text(source)
    state, batches, outcome = _truth(plan.pcg, plan.optimizer, 2)
    verdict = run([Trial(path, plan.pcg, plan.ranks, state, batches, outcome, TOLERANCE)], timeout=30)[0]
    assert verdict["ok"], verdict["failure"]
    return source


def drawn(seed: int) -> tuple[random.Random, int, Graph, Orders]:
    """A random graph with its plan, and orders that it can have."""
    rng = random.Random(seed)
    devices = rng.choice((2, 3, 4))
    graph = planned(net(rng), rng, devices)
    return rng, devices, graph, orders_of(graph, rng)


# What holds of them


def test_a_legal_plan_computes_what_its_graph_says(tmp_path: Path) -> None:
    for seed in range(16):
        rng, devices, graph, orders = drawn(seed)
        source = holds(plan_of(graph, orders, devices, rng), tmp_path)
        (tmp_path / f"{seed}.py").write_text(source)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F", str(tmp_path)]
    assert subprocess.run(ruff, check=False, capture_output=True, text=True).stdout == ""


def test_a_weight_that_is_cut_across_a_dim_is_kept_for_backward(tmp_path: Path) -> None:
    """The part is a copy of what its device keeps: backward does not get it from elsewhere."""
    b = Builder(BATCH)
    x = b.add("mul", b.input("x", (BATCH, WIDTH)), b.parameter("scale", (WIDTH,)), shape=(BATCH, WIDTH), name="scaled")
    linear = b.add("linear", x, b.parameter("weight", (8, WIDTH)), shape=(BATCH, 8), name="linear")
    heads = b.add("view", linear, shape=(BATCH, 2, 4), name="heads")
    loss = b.add("mse_loss", heads, b.input("target", (BATCH, 2, 4)), shape=(), name="loss", reduction="mean")
    graph = Graph(b.build(loss))
    for op in graph.forward:
        parts = op_trans(op, split("o:1", 2, "shard")) if op.node == linear else [op]
        for number, part in enumerate(parts):
            op_assign(part, number)
    place(graph, "weight", None, [0])
    source = holds(space_time(graph, MACHINES[0], devices=2, optimizer="sgd"), tmp_path)
    assert 'copied=["weight"]' in source


def test_a_weight_is_read_from_what_its_own_device_keeps(tmp_path: Path) -> None:
    """Device 1 keeps the part that device 0 has within a larger one: nothing of it is fetched."""
    b = Builder(BATCH)
    x = b.add("mul", b.input("x", (BATCH, WIDTH)), b.parameter("scale", (WIDTH,)), shape=(BATCH, WIDTH), name="scaled")
    linear = b.add("linear", x, b.parameter("weight", (8, WIDTH)), shape=(BATCH, 8), name="linear")
    loss = b.add("mse_loss", linear, b.input("target", (BATCH, 8)), shape=(), name="loss", reduction="mean")
    graph = Graph(b.build(loss))
    for op in graph.forward:
        op_assign(op, 0)
    _, second = op_trans(graph.parts(linear)[0], split("batch", 2, "micro"))
    _, last = op_trans(second, split("o", 2, "shard"))
    op_assign(op_trans(last, replicate(2))[1], 1)
    for op in graph.forward:
        if op.device is None:
            op_assign(op, 0)
    plan = space_time(graph, MACHINES[0], devices=2, optimizer="sgd")
    for need in plan.program.tasks.needs:
        if need.producers[0].phase is Phase.STORE:
            assert need.task.device in {op.device for op in need.producers}
    holds(plan, tmp_path)


def test_a_device_keeps_a_part_that_two_operators_share_once(tmp_path: Path) -> None:
    """One micro-batch reads a weight by halves of its rows, the other by halves of each of them: all is kept."""
    b = Builder(BATCH)
    x = b.add("mul", b.input("x", (BATCH, WIDTH)), b.parameter("scale", (WIDTH,)), shape=(BATCH, WIDTH), name="scaled")
    linear = b.add("linear", x, b.parameter("weight", (8, WIDTH)), shape=(BATCH, 8), name="linear")
    heads = b.add("view", linear, shape=(BATCH, 2, 4), name="heads")
    loss = b.add("mse_loss", heads, b.input("target", (BATCH, 2, 4)), shape=(), name="loss", reduction="mean")
    graph = Graph(b.build(loss))
    for op in graph.forward:
        for number, micro in enumerate(op_trans(op, split("batch", 2, "micro"))):
            dim = ("o", "o:1")[number] if op.node == linear else "batch"
            for device, part in enumerate(op_trans(micro, split(dim, 2))):
                op_assign(part, device)
    stores = [op for op in tasks(graph).ops if op.phase is Phase.STORE and op.of.name == "weight"]
    assert [(op.device, str(op.mask(None))) for op in stores] == [(0, "[0:2, 0:4, 0:4]"), (1, "[0:2, 0:4, 0:4]")]
    holds(space_time(graph, MACHINES[0], devices=2, optimizer="sgd"), tmp_path)


def corrupted(graph: Graph, orders: Orders, devices: int, rng: random.Random) -> None:
    """One thing wrong: an order, or an operator's device, or a part that is missing or there twice."""
    op = rng.choice(graph.forward)
    match rng.choice(("reversed", "backwards", "unassigned", "moved", "far", "dropped", "twice")):
        case "reversed" if orders:
            at = rng.randrange(len(orders))
            orders[at] = orders[at][::-1]
        case "backwards" | "reversed":
            orders.append(([graph.forward[-1]], [graph.forward[0]]))
        case "unassigned":
            op._device = None
        case "moved":
            op_assign(op, rng.randrange(devices))
        case "far":
            op_assign(op, devices + 3)
        case "dropped":
            graph._forward[op.node].remove(op)
        case "twice":
            graph._forward[op.node].append(Op(graph, op.node, op.phase, op.cuts))
            op_assign(graph._forward[op.node][-1], rng.randrange(devices))


def test_a_corrupted_plan_is_refused_or_still_right(tmp_path: Path) -> None:
    refused = 0
    for seed in range(100, 130):
        rng, devices, graph, orders = drawn(seed)
        corrupted(graph, orders, devices, rng)
        try:
            plan = plan_of(graph, orders, devices, rng)
        except PartitaError:
            refused += 1
            continue
        holds(plan, tmp_path)
    assert 8 < refused < 30


SEEDS = (3, 8, 11)


def digests() -> list[str]:
    """Of the sources of some plans."""
    found = []
    for seed in SEEDS:
        rng, devices, graph, orders = drawn(seed)
        found.append(hashlib.sha256(plan_of(graph, orders, devices, rng).source().encode()).hexdigest())
    return found


def test_a_plan_has_one_program_in_every_process() -> None:
    """Nothing depends on the order of a set."""
    script = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tests.codegen.plans', {str(Path(__file__))!r})\n"
        "plans = sys.modules['tests.codegen.plans'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(plans)\n"
        "print(*plans.digests())\n"
    )
    other = {**os.environ, "PYTHONHASHSEED": "1"}
    command, root = [sys.executable, "-c", script], Path(__file__).parents[2]
    ran = subprocess.run(command, env=other, cwd=root, check=True, capture_output=True, text=True)
    assert ran.stdout.split() == digests() == digests()
