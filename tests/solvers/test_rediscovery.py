"""The optimum of small questions is what practitioners do by hand."""

from dataclasses import replace

import pytest

from partita.codegen.plan.choice import Choice
from partita.codegen.planner.decode import choices, report
from partita.formulation.placement.placement import divisors, placements
from partita.formulation.search_space import SearchSpace
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, S, is_split
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.backends.elimination import Elimination
from partita.solvers.protocol import Status
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.result import SearchResult
from partita.solvers.search.search import search

NODE = Machine.load("dgx-h100")


def perceptron(batch: int, width: int, inner: int) -> PCG:
    """x -> norm -> up -> relu -> down -> mean squared error, x trainable so that gradients flow through all of it."""
    b = Builder(batch)
    x = b.add("mul", b.input("x", (batch, width)), b.parameter("scale", (width,)), shape=(batch, width))
    h = b.add("linear", x, b.parameter("up.weight", (inner, width)), shape=(batch, inner), name="up")
    h = b.add("relu", h, shape=(batch, inner))
    y = b.add("linear", h, b.parameter("down.weight", (width, inner)), shape=(batch, width), name="down")
    return b.build(b.add("mse_loss", y, b.input("t", (batch, width)), shape=(), reduction="mean"))


def solve(pcg: PCG, machine: Machine, mesh: tuple[int, ...] | None = None, optimizer: str = "adam") -> SearchResult:
    problem = PlanningProblem(
        pcg,
        machine,
        Training(pcg.batch, "float32", optimizer),
        placements(machine.hierarchy, mesh=mesh),
        tuple(sorted(divisors(pcg.batch))),
        SearchSpace(recompute="none"),
    )
    found = search(problem, Elimination())
    assert found.status is Status.OPTIMAL and found.objective == found.bound
    return found


def chosen(found: SearchResult) -> dict[str, Choice]:
    assert found.encoding and found.assignment
    made = choices(found.encoding, found.assignment)
    return {node.name: choice for node, choice in zip(found.encoding.pcg.nodes, made, strict=True)}


def test_a_wide_perceptron_becomes_columns_then_rows() -> None:
    """Weights far larger than activations: nothing of them is sent, one sum forward and one backward of activations."""
    found = solve(perceptron(64, 8192, 65536), NODE, mesh=(8,))
    made = chosen(found)
    assert made["up.weight"].output == (S(0),) and made["up"].output == (S(1),)
    assert made["relu"].output == (S(1),)
    assert made["down.weight"].output == (S(1),) and made["down"].output == (P,)
    assert made["up"].inputs[0] == (B,)  # one sum of the gradient's addends backward, in the gradient of the scale
    assert found.encoding
    # Of activations only what leaves `down` is converted: once forward, and back.
    (conversion,) = report(found.encoding, found.assignment or ())["conversions"]
    assert conversion["from"] == "down"


def test_a_small_model_with_a_large_batch_is_data_parallel() -> None:
    made = chosen(solve(perceptron(8192, 256, 1024), NODE, mesh=(8,)))
    assert made["up"].output == made["relu"].output == made["down"].output == (S(0),)
    assert made["up.weight"].output in ((B,), (S(0),), (S(1),))
    assert made["up"].inputs[1] == (B,)


def attention(batch: int, length: int, width: int, heads: int) -> PCG:
    b = Builder(batch)
    shape, split = (batch, length, width), (batch, length, heads, width // heads)
    headed = (batch, heads, length, width // heads)
    x = b.add("mul", b.input("x", shape), b.parameter("scale", (width,)), shape=shape)
    parts = []
    for name in ("query", "key", "value"):
        y = b.add("linear", x, b.parameter(f"{name}.weight", (width, width)), shape=shape, name=name)
        parts.append(b.add("permute", b.add("view", y, shape=split), shape=headed, dims=(0, 2, 1, 3)))
    a = b.add("attention", *parts, shape=headed, causal=True, scale=None, name="attention")
    a = b.add("view", b.add("permute", a, shape=split, dims=(0, 2, 1, 3)), shape=shape)
    y = b.add("linear", a, b.parameter("output.weight", (width, width)), shape=shape, name="output")
    return b.build(b.add("mse_loss", y, b.input("t", shape), shape=(), reduction="mean"))


def test_attention_splits_heads() -> None:
    """A batch of 2 on 8 devices: the heads are what splits without anything being sent between the four products."""
    made = chosen(solve(attention(2, 512, 8192, 64), NODE, mesh=(8,)))
    assert made["attention"].output == (S(1),)
    for name in ("query", "key", "value"):
        assert made[f"{name}.weight"].output == (S(0),)
    assert is_split(made["output.weight"].output[0])  # by rows, or by columns after one gather: equally dear here


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
def test_states_that_exceed_a_device_are_sharded(mesh: tuple[int, ...]) -> None:
    pcg = perceptron(1024, 8192, 65536)
    whole = sum(n.numel for n in pcg.nodes if n.op == "parameter") * 16
    small = replace(NODE, device=replace(NODE.device, memory_bytes=NODE.device.reserved_bytes + whole // 2))
    found = solve(pcg, small, mesh=mesh)
    made = chosen(found)
    for name in ("up.weight", "down.weight"):
        stored = made[name]
        assert any(is_split(x) for x in stored.output) or stored.sharded_states
    assert found.encoding and found.assignment
    assert report(found.encoding, found.assignment)["memory_bytes"] <= small.device.capacity_bytes


def test_a_model_that_does_not_fit_is_infeasible() -> None:
    tiny = replace(NODE, device=replace(NODE.device, memory_bytes=NODE.device.reserved_bytes + 10_000_000))
    problem = PlanningProblem(
        perceptron(64, 8192, 8192),
        tiny,
        Training(64, "float32", "adam"),
        placements(NODE.hierarchy),
        (1, 2, 4, 8, 16, 32, 64),
        SearchSpace(recompute="none"),
    )
    found = search(problem, Elimination())
    assert found.status is Status.INFEASIBLE and found.encoding is None


def test_micro_batches_are_cut_where_memory_demands() -> None:
    pcg = perceptron(4096, 1024, 8192)
    free = solve(pcg, NODE, mesh=(8,))
    assert free.encoding and free.encoding.micro_batches == 1
    assert free.assignment
    needed = report(free.encoding, free.assignment)["memory_bytes"]
    tight = replace(NODE, device=replace(NODE.device, memory_bytes=NODE.device.reserved_bytes + needed * 2 // 3))
    cut = solve(pcg, tight, mesh=(8,))
    assert cut.objective and free.objective and cut.objective >= free.objective
    assert cut.encoding and cut.encoding.micro_batches > 1


def test_the_search_equals_solving_every_network() -> None:
    """Best first with bounds discards nothing that is better."""
    machine = Machine.adhoc((2, 4))
    pcg = perceptron(48, 512, 3072)
    memory = 16 * sum(n.numel for n in pcg.nodes if n.op == "parameter") // 2
    machine = replace(machine, device=replace(machine.device, memory_bytes=machine.device.reserved_bytes + memory))
    problem = PlanningProblem(
        pcg,
        machine,
        Training(48, "float32", "adam"),
        placements((2, 4)),
        (1, 2, 3, 4, 6, 8, 12, 16, 24, 48),
        SearchSpace(recompute="none"),
    )
    found = search(problem, Elimination())
    every = []
    for placement in problem.placements:
        for k in problem.micro_batches:
            answer = Elimination().solve(problem.encoding(placement, k).network)
            assert answer.status in (Status.OPTIMAL, Status.INFEASIBLE)
            every.append(answer.objective)
    assert found.objective == min(x for x in every if x is not None)


def test_no_plan_is_faster_than_the_floor() -> None:
    """Also where much arithmetic is on constants, which every rank does whole."""
    b = Builder(8)
    x = b.input("x", (8, 64))
    table = b.add("full", shape=(64, 64), value=0.1, gradient=False)
    for _ in range(6):
        table = b.add("matmul", table, table, shape=(64, 64))
    h = b.add("linear", b.add("matmul", x, table, shape=(8, 64)), b.parameter("w", (64, 64)), shape=(8, 64))
    pcg = b.build(b.add("mse_loss", h, b.input("t", (8, 64)), shape=(), reduction="mean"))
    machine = Machine.adhoc((2, 4))
    slow = replace(machine, device=replace(machine.device, peak={k: v / 1e6 for k, v in machine.device.peak.items()}))
    problem = PlanningProblem(
        pcg,
        slow,
        Training(8, "float32", "adam"),
        placements((2, 4)),
        (1, 2, 4, 8),
        SearchSpace(recompute="none"),
    )
    found = search(problem, Elimination())
    assert found.status is Status.OPTIMAL and found.objective
    assert problem.floor_ns() <= found.objective
    every = [
        Elimination().solve(problem.encoding(p, k).network).objective
        for p in problem.placements
        for k in problem.micro_batches
    ]
    assert found.objective == min(x for x in every if x is not None)


def test_a_tiny_model_with_a_small_batch_is_not_split_by_weights() -> None:
    """Where messages cost more than the work, nothing but gradients is sent: data parallel, or not parallel at all."""
    found = solve(perceptron(16, 32, 64), NODE, mesh=(8,))
    made = chosen(found)
    for name in ("up", "relu", "down"):
        assert made[name].output[0] in (S(0), B, 0)
    assert found.encoding and found.assignment
    assert not report(found.encoding, found.assignment)["conversions"]
