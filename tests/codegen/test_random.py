"""Random graphs on random meshes, planned to the optimum: the program computes what the graph says, as predicted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita import PartitaError
from partita.codegen.emission.spmd.micro_batches import divided
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.placement.placement import divisors, placements
from partita.formulation.search_space import SearchSpace
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Level, Machine
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.search.memory_limits import least_use
from partita.solvers.search.planning_problem import PlanningProblem

from ..levels import example_count

Judge = Callable[..., dict[str, Any]]
MESHES = ((2,), (3,), (4,), (5,), (6,), (7,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2))
SIZES = (1, 2, 3, 4, 5, 6, 8)


@dataclass
class Maker:
    """Adds random operators to a graph. `values` are tensors with a gradient that may be read next."""

    rng: random.Random
    b: Builder
    path: str = ""
    sites: int = 0
    projections: int = 0
    values: list[int] = field(default_factory=list)
    vectors: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def shape(self, x: int) -> tuple[int, ...]:
        return self.b.nodes[x].shape

    def op(self, op: str, *inputs: int, shape: tuple[int, ...] | None = None, **attributes: Any) -> int:
        return self.b.add(
            op, *inputs, shape=self.shape(inputs[0]) if shape is None else shape, path=self.path, **attributes
        )

    def weight(self, *shape: int) -> int:
        """A new parameter, now and then a frozen one, or one that is used already."""
        known = self.vectors.setdefault(shape, [])
        if known and not self.path and self.rng.random() < 0.25:
            return self.rng.choice(known)
        name = f"{self.path}.weight" if self.path else "weight"
        known.append(self.b.parameter(name, shape, trainable=self.rng.random() < 0.85))
        return known[-1]

    def pick(self) -> int:
        """Mostly the newest value."""
        return self.values[-1] if self.rng.random() < 0.7 else self.rng.choice(self.values)

    # Operators

    def linear(self, x: int) -> int:
        *rest, width = self.shape(x)
        out = self.rng.choice(SIZES)
        bias = [self.weight(out)] if self.rng.random() < 0.5 else []
        return self.op("linear", x, self.weight(out, width), *bias, shape=(*rest, out))

    def activation(self, x: int) -> int:
        name, extra = self.rng.choice(
            [("relu", {}), ("gelu", {"approximate": "none"}), ("silu", {}), ("neg", {}), ("scale", {"value": 0.5})]
        )
        return self.op(name, x, **extra)

    def norm(self, x: int) -> int:
        name, operands = self.rng.choice(
            [("layer_norm", ("x", "w", "bias")), ("layer_norm", ("x",)), ("rms_norm", ("x", "w"))]
        )
        width = self.shape(x)[-1]
        return self.op(name, x, *(self.weight(width) for _ in operands[1:]), normalized=1, eps=1e-3, operands=operands)

    def softmax(self, x: int) -> int:
        return self.op("softmax", x, dim=self.rng.randrange(1, len(self.shape(x))))

    def residual(self, x: int) -> int:
        others = [v for v in self.values if self.shape(v) == self.shape(x)]
        return self.op(self.rng.choice(("add", "sub", "mul", "maximum")), x, self.rng.choice(others))

    def broadcast(self, x: int) -> int:
        """With a weight that lacks leading dims, or has some of size 1."""
        shape = self.shape(x)
        own = [n if self.rng.random() < 0.7 else 1 for n in shape[self.rng.randrange(1, len(shape)) :]]
        return self.op(self.rng.choice(("add", "mul")), x, self.weight(*own))

    def constant(self, x: int) -> int:
        """Plus a buffer, or a table made on the spot."""
        width = self.shape(x)[-1]
        if self.rng.random() < 0.5:
            y = self.b.add("buffer", shape=(width,), name="table")
        else:
            y = self.b.add("arange", shape=(width,), dtype="float32", start=0, stop=width, step=1)
        return self.op("add", x, y)

    def dropout(self, x: int) -> int:
        self.sites += 1
        return self.op("dropout", x, p=self.rng.choice((0.1, 0.5)), site=self.sites - 1)

    def reduction(self, x: int) -> int:
        """x / (1 + mean of squares), over some dim."""
        shape, dim = self.shape(x), self.rng.randrange(1, len(self.shape(x)))
        kept = tuple(1 if d == dim else n for d, n in enumerate(shape))
        name = self.rng.choice(("sum", "mean"))
        count = {"count": shape[dim]} if name == "mean" else {}
        y = self.op(name, self.op("mul", x, x), shape=kept, dims=(dim,), keepdim=True, **count)
        return self.op("div", x, self.op("shift", y, value=1.0))

    def views(self, x: int) -> int:
        shape = self.shape(x)
        if len(shape) == 3 and self.rng.random() < 0.5:
            return self.op("permute", x, shape=(shape[0], shape[2], shape[1]), dims=(0, 2, 1))
        if len(shape) == 3:
            return self.op("view", x, shape=(shape[0], shape[1] * shape[2]))
        factor = self.rng.choice(sorted(divisors(shape[-1])))
        return self.op("view", x, shape=(shape[0], factor, shape[-1] // factor))

    def piece(self, x: int) -> int:
        """Some of a dim, or twice as much of it."""
        shape = self.shape(x)
        dim = self.rng.randrange(1, len(shape))
        if self.rng.random() < 0.5:
            size = self.rng.randint(1, shape[dim])
            start = self.rng.randint(0, shape[dim] - size)
            part = tuple(size if d == dim else n for d, n in enumerate(shape))
            return self.op("slice", x, shape=part, dim=dim, start=start, stop=start + size, step=1)
        other = self.rng.choice([v for v in self.values if self.shape(v) == shape])
        return self.op("cat", x, other, shape=tuple(2 * n if d == dim else n for d, n in enumerate(shape)), dim=dim)

    def attention(self, x: int) -> int:
        """Self-attention with its projections, on [batch, sequence, heads * width]."""
        shape = self.shape(x)
        if len(shape) == 2:
            x = self.op("view", x, shape=(shape[0], 1, shape[1]))
        batch, length, width = self.shape(x)
        heads, inner = self.rng.choice((1, 2, 3)), self.rng.choice((1, 2, 4))
        parts = []
        for _ in "qkv":
            y = self.op("linear", x, self.weight(heads * inner, width), shape=(batch, length, heads * inner))
            y = self.op("view", y, shape=(batch, length, heads, inner))
            parts.append(self.op("permute", y, shape=(batch, heads, length, inner), dims=(0, 2, 1, 3)))
        y = self.op("attention", *parts, causal=self.rng.random() < 0.5, scale=None)
        y = self.op("permute", y, shape=(batch, length, heads, inner), dims=(0, 2, 1, 3))
        return self.op("view", y, shape=(batch, length, heads * inner))

    def product(self, x: int) -> int:
        """With itself: as attention's scores, written out."""
        shape = self.shape(x)
        if len(shape) == 2:
            return self.op("einsum", x, self.weight(shape[-1], 3), shape=(shape[0], 3), equation="bi,ij->bj")
        y = self.op("permute", x, shape=(shape[0], shape[2], shape[1]), dims=(0, 2, 1))
        return self.op("matmul", x, y, shape=(shape[0], shape[1], shape[1]))

    def choice(self, x: int) -> int:
        c = self.op("compare", x, dtype="bool", relation="gt", value=0.1)
        return self.op("where", c, x, self.op("scale", x, value=0.3))

    def detached(self, x: int) -> int:
        return self.op("mul", x, self.op("detach", x, gradient=False))

    def add(self) -> None:
        x = self.pick()
        y = self.rng.choice(OPERATORS)(self, x)
        if self.b.nodes[y].numel <= 2000:
            self.values.append(y)

    def blocks(self) -> None:
        """Equal blocks in a row, as `nn.ModuleList` has them: norm, some operators, back to the width, residual."""
        x, recipe = self.values[-1], self.rng.randrange(2**16)
        for number in range(self.rng.choice((2, 3))):
            one = Maker(random.Random(recipe), self.b, f"blocks.{number}", self.sites, values=[x])
            one.values.append(one.norm(x))
            for _ in range(one.rng.randint(1, 3)):
                one.add()
            self.sites, y, shape = one.sites, one.values[-1], self.shape(x)
            if self.shape(y)[:-1] == shape[:-1]:
                y = one.op("linear", y, one.weight(shape[-1], self.shape(y)[-1]), shape=shape)
                y = one.op("add", x, y)
            self.values.append(y)
            if self.shape(y) != shape:
                return
            x = y

    # Inputs and losses

    def start(self) -> None:
        """A trainable value: an input times a weight, a linear layer, or a look-up."""
        batch, kind = self.b.batch, self.rng.randrange(3)
        width, length = self.rng.choice(SIZES), self.rng.choice((1, 2, 3, 4))
        if kind == 0:
            ids = self.b.add("input", shape=(batch, length), name="ids", dtype="int64", batch_dim=0, high=7)
            self.values.append(self.op("embedding", self.trained(7, width), ids, shape=(batch, length, width)))
            return
        shape = (batch, length, width) if self.rng.random() < 0.6 else (batch, width)
        x = self.b.input("x", shape)
        if kind == 1:
            self.values.append(self.op("mul", x, self.trained(width)))
        else:
            out = self.rng.choice(SIZES)
            self.values.append(self.op("linear", x, self.trained(out, width), shape=(*shape[:-1], out)))

    def trained(self, *shape: int) -> int:
        return self.b.parameter("start", shape)

    def loss(self, x: int) -> int:
        shape, kind = self.shape(x), self.rng.randrange(4)
        reduction = self.rng.choice(("mean", "mean", "sum"))
        if kind == 0:
            return self.op("mse_loss", x, self.b.input("target", shape), shape=(), reduction=reduction)
        if kind == 1:
            labels = self.b.add("input", name="labels", shape=shape[:-1], dtype="int64", batch_dim=0, high=shape[-1])
            if len(shape) == 3:
                x = self.op("view", x, shape=(shape[0] * shape[1], shape[2]))
                labels = self.op("view", labels, shape=(shape[0] * shape[1],))
            return self.op("cross_entropy", x, labels, shape=(), reduction=reduction, ignore_index=-100)
        self.projections += 1
        return self.op("projection", x, shape=(), site=self.projections - 1)


OPERATORS: list[Callable[[Maker, int], int]] = [
    Maker.linear,
    Maker.linear,
    Maker.activation,
    Maker.norm,
    Maker.softmax,
    Maker.residual,
    Maker.broadcast,
    Maker.constant,
    Maker.dropout,
    Maker.reduction,
    Maker.views,
    Maker.piece,
    Maker.attention,
    Maker.product,
    Maker.choice,
    Maker.detached,
]


def made(rng: random.Random) -> PCG:
    """A graph whose every value reaches the loss."""
    maker = Maker(rng, Builder(rng.choice((2, 3, 4, 6))))
    maker.start()
    if rng.random() < 0.3:
        maker.start()
    for _ in range(rng.randint(0, 4)):
        maker.add()
    if rng.random() < 0.4:
        maker.blocks()
    for _ in range(rng.randint(0, 3)):
        maker.add()
    maker.path = ""
    read = {i for node in maker.b.nodes for i in node.inputs}
    ends = [i for i, node in enumerate(maker.b.nodes) if i not in read and node.gradient and node.op != "parameter"]
    losses = [maker.loss(x) for x in ends]
    total = losses[0]
    for loss in losses[1:]:
        total = maker.op("add", total, loss)
    return maker.b.build(total)


def slow(mesh: tuple[int, ...], rng: random.Random) -> Machine:
    """Devices so slow that splitting pays, on networks between free and dear."""
    device = Machine.adhoc((1,)).device
    device = replace(device, peak=dict.fromkeys(device.peak, 1e9), memory_bandwidth=1e9, launch_ns=10, reserved_bytes=0)
    levels = [
        Level(f"level{k}", size, 10 ** rng.uniform(8, 11), rng.choice((0, 50, 1000))) for k, size in enumerate(mesh)
    ]
    return Machine("slow", tuple(levels), device)


def micro_batches(graph: PCG) -> list[int]:
    """All numbers of micro-batches into which the graph may be cut."""
    found = [1]
    for k in sorted(divisors(graph.batch))[1:]:
        try:
            divided([with_batch(graph, graph.batch // k)], k)
        except PartitaError:
            continue
        found.append(k)
    return found


def check(rng: random.Random, judge: Judge) -> None:
    """Plan, compare prediction with price, run, compare with the graph."""
    graph, mesh = made(rng), rng.choice(MESHES)
    machine, counts = slow(mesh, rng), micro_batches(graph)
    wish = rng.choice((None, None, *counts))
    optimizer, backend = rng.choice(("sgd", "adam", "adamw")), rng.choice(("auto", "elimination"))
    training = Training(graph.batch, "float64", optimizer)
    space = SearchSpace(mesh=mesh, micro_batches=wish, stages=1)
    budget = Budget(solver=backend)
    plan = plan_graph(graph, machine, training, space, budget)
    if rng.random() < 0.5:  # once more, with less memory than that plan takes
        k = counts[-1] if wish is None else wish
        problem = PlanningProblem(
            graph,
            machine,
            Training(graph.batch, "float64", optimizer),
            placements(machine.hierarchy, mesh=mesh),
            (k,),
            SearchSpace(recompute="none"),
        )
        network = problem.encoding(plan.placement, k).network
        least = least_use(network) + machine.device.capacity_bytes - network.capacities[0]
        room = max(0, plan.report["memory_bytes"] - least)
        capacity = least + int(rng.choice((0, 0.2, 0.6)) * room)
        machine = replace(machine, device=replace(machine.device, memory_bytes=capacity))
        plan = plan_graph(graph, machine, training, space, budget)
    found = stage_price(plan)
    assert (found.objective_ns, found.memory_bytes) == (plan.report["objective_ns"], plan.report["memory_bytes"])
    assert plan.report["status"] == "optimal" and plan.report["bound_ns"] == plan.report["objective_ns"]
    assert plan.report["memory_bytes"] <= machine.device.capacity_bytes
    judge(plan, graph)


@settings(
    max_examples=example_count(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(rng=st.randoms(use_true_random=False))
def test_a_random_graph_trains_as_planned(judge: Judge, rng: random.Random) -> None:
    check(rng, judge)


@settings(max_examples=example_count(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_a_random_plan_of_a_random_graph(judge: Judge, force: Callable[..., Any], rng: random.Random) -> None:
    """No search: any strategy, storage and shared layout, micro-batches and precision."""
    graph, mesh = made(rng), rng.choice(MESHES)
    k = rng.choice(micro_batches(graph))
    plan = force(with_batch(graph, graph.batch // k), mesh, rng, None, k, rng.choice(("sgd", "adam", "adamw")))
    judge(replace(plan, dtype=rng.choice(("float64", "float32", "mixed-float16", "mixed-bfloat16"))), graph)
