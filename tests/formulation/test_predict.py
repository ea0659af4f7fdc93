"""Predicted steps: what tasks cost, when they run, what memory they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from torch import nn, zeros

from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.pipeline.orders import gpipe, one_f_one_b
from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import step_price
from partita.formulation.reduction.program import Collective as Kind
from partita.formulation.reduction.program import Reduction, Step
from partita.formulation.search_space import SearchSpace
from partita.formulation.spacetime import looped, timeline
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.lifetimes import lifetimes
from partita.formulation.spacetime.mask import PTensor
from partita.formulation.spacetime.materialize import materialize
from partita.formulation.spacetime.materialized import Collective, Materialized, Receive, Register, Run, Send
from partita.formulation.spacetime.op import Op, Phase
from partita.formulation.spacetime.predict import Prediction, predict
from partita.formulation.spacetime.price import Prices
from partita.formulation.spacetime.primitives import op_assign, op_order, op_trans, recompute, split_backward, swap
from partita.formulation.spacetime.stages import evenly, in_order, stages
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.timeline import COMPUTE, HOST, RECEIVES, SENDS, WEIGHTS
from partita.formulation.spacetime.transformation import split, transformation
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.spacetime.validate import validate

Write = Callable[[Graph], object]
BATCH = 8


@cache
def graph(name: str) -> PCG:
    """A captured model; "chain" is eight equal layers."""
    if name == "chain":
        module, inputs = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU()))), zeros(2, 64, 64)
    else:
        module, inputs = load_module(name, small=True)
    loss = "projection" if name == "chain" else None
    return with_batch(capture(module, (inputs,) if name == "chain" else inputs, loss=loss, dropout="counters"), BATCH)


def machine(devices: int, fast_links: bool = False) -> Machine:
    """A100s of which a small model is a load; with `fast_links` what moves takes next to no time."""
    made = Machine.adhoc((devices,))
    device = replace(made.device, peak={"float32": 1e10}, memory_bandwidth=1e10, launch_ns=0.0, host_bandwidth=1e9)
    levels = made.levels
    if fast_links:
        levels = tuple(replace(level, bandwidth=1e15, latency_ns=0.0) for level in levels)
    return replace(made, device=device, levels=levels)


def program(name: str, write: Write, devices: int = 1) -> Materialized:
    made = Graph(graph(name))
    write(made)
    return materialize(validate(tasks(made)), machine(devices))


def on_one(made: Graph) -> list[Op]:
    op_assign(made.forward, 0)
    return list(made.forward)


def step(name: str, write: Write, devices: int = 1) -> Prediction:
    return predict(program(name, write, devices), machine(devices))


def ns_of(found: Prediction, *phases: Phase) -> int:
    """Of all tasks of some phases."""
    runs = ((timed, timed.instruction) for own in found.devices for timed in own)
    return sum(timed.ns for timed, x in runs if isinstance(x, Run) and x.op.phase in phases)


# Time of tasks


@pytest.mark.parametrize("name", ["gpt3-1.3b", "bert-large", "swin-6.6b", "llama-7b"])
def test_tasks_cost_what_the_planner_prices(name: str) -> None:
    one = Machine.adhoc((1,))
    found = predict(program(name, on_one), one)
    plan = stage_price(
        plan_graph(graph(name), one, Training(BATCH, "float32", "adamw"), SearchSpace(micro_batches=1, stages=1))
    )
    assert ns_of(found, *Phase) == found.step_ns == plan.objective_ns


@pytest.mark.parametrize("dim", ["batch", ("0.weight", 0), ("0.weight", 1)])
def test_parts_share_the_work(dim: str | tuple[str, int]) -> None:
    """Each of four parts does a fourth of the arithmetic; an addend is as large as the whole."""
    made, priced_on = Graph(graph("chain")), Prices(Graph(graph("chain")), machine(1))
    first = made.forward[0]
    whole = priced_on.task_ns(first)
    part = op_trans(first, split(dim, 4))[2]
    assert priced_on.task_ns(part) == pytest.approx(whole / 4, rel=0.02)


def test_parts_of_unlike_sizes_cost_what_they_do() -> None:
    made, prices = Graph(graph("chain")), Prices(Graph(graph("chain")), machine(1))
    whole = prices.task_ns(made.forward[0])
    batch = made.pcg.batch
    parts = op_trans(made.forward[0], split("batch", 3))
    sizes = [part.mask(None).sizes[0] for part in parts]
    assert len({*sizes}) == 2 and sum(sizes) == batch
    for part, size in zip(parts, sizes, strict=True):
        assert prices.task_ns(part) == pytest.approx(whole * size / batch, rel=0.05)


def test_a_transformation_of_ones_own_is_priced_by_what_it_splits() -> None:
    made = Graph(graph("chain"), prover=lambda rule: "")
    prices = Prices(made, machine(1))
    columns, rows, own = (Graph(graph("chain"), prover=lambda rule: "") for _ in range(3))
    cuts = (split(("0.weight", 0), 4), split("batch", 4), transformation([0, "whole", "whole"], 0, 4))
    found = [op_trans(g.forward[0], cut)[1] for g, cut in zip((columns, rows, own), cuts, strict=True)]
    assert prices.task_ns(found[1]) == prices.task_ns(found[2]) != prices.task_ns(made.forward[0])


def test_a_split_backward_costs_as_much_as_a_whole_one() -> None:
    made = Graph(graph("chain"))
    prices = Prices(made, machine(1))
    first, second = (op for op in made.forward if op.of.name in ("0", "2"))
    assert first.backward is not None and second.backward is not None
    whole = [prices.task_ns(op.backward) for op in (first, second) if op.backward]
    split_backward([first, second])
    assert first.weight is not None and second.weight is not None
    halves = prices.task_ns(second.backward), prices.task_ns(second.weight)
    assert sum(halves) == whole[1] and halves[1] == whole[1] // 2
    # Nothing has a gradient before the first layer: all of its backward is its weight's.
    assert (prices.task_ns(first.backward), prices.task_ns(first.weight)) == (0, whole[0])


# When it runs


@pytest.mark.parametrize("micros", [4, 8])
def test_a_pipeline_of_equal_stages_has_the_bubble_of_the_textbook(micros: int) -> None:
    """(S - 1) / (S - 1 + M), where transfers and the update take next to no time."""
    found = pipeline(micros)
    assert found.bubble == pytest.approx(3 / (3 + micros), abs=0.03)
    assert all(busy <= found.step_ns for busy in found.busy_ns)


@cache
def pipeline(micros: int, order: Callable[[int, int], object] = one_f_one_b) -> Prediction:
    def write(made: Graph) -> None:
        for op in made.forward:
            op_trans(op, split("batch", micros, "micro"))
        parts = stages(made, 4)
        for ops, device in zip(parts, range(4), strict=True):
            op_assign(ops, device)
        in_order(order(4, micros), parts)

    return predict(program("chain", write, 4), machine(4, fast_links=True))


def test_1f1b_keeps_as_many_micro_batches_as_there_are_stages_after() -> None:
    alternating, flushed = pipeline(8), pipeline(8, gpipe)
    kept = [[usage.peak["activations"] for usage in found.memory] for found in (alternating, flushed)]
    assert [8 * a / b for a, b in zip(*kept, strict=True)][:3] == [4, 3, 2]
    assert alternating.step_ns == pytest.approx(flushed.step_ns, rel=0.02)


def test_streams_do_one_thing_at_a_time_and_data_comes_first() -> None:
    found = pipeline(4)
    ends: dict[Register, int] = {}
    for device, own in enumerate(found.devices):
        for stream in (COMPUTE, RECEIVES if device else SENDS):
            mine = [timed for timed in own if timed.stream == stream]
            assert mine and all(a.end_ns <= b.start_ns for a, b in pairwise(mine))
        for timed in own:
            match timed.instruction:
                case Run(_, reads, writes):
                    assert timed.start_ns >= max((ends[r] for r in reads), default=0)
                    ends |= {w: timed.end_ns for w in writes if w is not None}
                case Receive(_, target):
                    ends[target] = timed.end_ns
                case Send() | Collective():
                    pass
                case other:
                    ends |= {getattr(other, "target", None) or other.total: timed.end_ns}


@pytest.mark.parametrize("few", [0, 10**9])
def test_the_compiled_loop_does_what_the_plain_one_does(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "FEW", few)
    monkeypatch.setattr(looped, "FEW", few)
    found = step("gpt3-1.3b", data_parallel, devices=4)
    monkeypatch.undo()
    for own, other in zip(found.times, step("gpt3-1.3b", data_parallel, devices=4).times, strict=True):
        assert all(np.array_equal(getattr(own, name), getattr(other, name)) for name in ("reached", "starts", "ends"))


def data_parallel(made: Graph) -> None:
    for op in made.forward:
        for device, part in enumerate(op_trans(op, split("batch", 4))):
            op_assign(part, device)


def test_gradients_travel_beside_the_kernels_of_their_layer() -> None:
    """But those of the first layer and outside of layers, for which the device waits; each pays a share of latency."""
    found = step("gpt3-1.3b", data_parallel, 4)
    moves = [
        (graph("gpt3-1.3b").nodes[timed.instruction.target.tensor.node].name, timed.ns)
        for timed in found.devices[0]
        if timed.stream == WEIGHTS and isinstance(timed.instruction, Collective)
    ]
    hidden = sum(ns for name, ns in moves if name.startswith("layers.") and not name.startswith("layers.0."))
    assert 0 < hidden == found.busy_ns[0] + sum(ns for _, ns in moves) - found.step_ns
    bias = 4 * 64
    lone = Prices(Graph(graph("gpt3-1.3b")), machine(4)).collective_ns("all_reduce", [(0, 1, 2, 3)], bias)
    assert min(ns for _, ns in moves) < 0.1 * lone


def test_what_is_updated_elsewhere_is_gathered_where_it_is_kept() -> None:
    def sharded(made: Graph) -> None:
        data_parallel(made)
        for op in made.optimizer:
            for device, part in enumerate(op_trans(op, evenly(op, 4))):
                op_assign(part, device)

    whole, parts = step("chain", data_parallel, 4), step("chain", sharded, 4)
    assert ns_of(whole, Phase.KEEP) == 0 == ns_of(parts, Phase.KEEP)
    assert ns_of(parts, Phase.UPDATE) == pytest.approx(ns_of(whole, Phase.UPDATE) / 4, rel=0.01)


def test_groups_that_move_a_tensor_alike_share_the_links() -> None:
    """Two groups over two nodes at once, as the planner prices them; alone, one would have the card to itself."""
    found = Machine.adhoc((2, 2))
    prices = Prices(Graph(graph("chain")), found)
    across = Reduction(of_rows([(2, 1), (1, 2)]), (0,))
    expected = step_price(found, across, Step(Kind.ALL_REDUCE, 0, 0), 1.0).ns(10**6)
    assert prices.collective_ns("all_reduce", [(0, 2), (1, 3)], 10**6) == expected
    assert prices.collective_ns("all_reduce", [(0, 2)], 10**6) < 0.75 * expected
    own = [[] for _ in range(4)]
    for group, key in (((0, 2), 0), ((1, 3), 1)):
        for rank in group:
            made = Graph(graph("chain"))
            mask = made.forward[0].mask(None)
            tensor = PTensor("value", made.forward[0].node)
            target = Register(rank, rank, tensor, mask)
            own[rank] = [Collective(key, "all_reduce", group, None, target)]
    both = Materialized(tasks(Graph(graph("chain"))), tuple(map(tuple, own)), ((0,), (1,), (0,), (1,)), {})
    size = mask.numel * 4
    assert {t.ns for line in predict(both, found).devices for t in line} == {
        prices.collective_ns("all_reduce", [(0, 2), (1, 3)], size)
    }


# Memory


@pytest.mark.parametrize("name", ["gpt3-1.3b", "llama-7b"])
def test_what_is_alive_at_the_turn_is_what_the_planner_keeps(name: str) -> None:
    """But for the batch, which is on the device anyway."""
    found, one = program(name, on_one), Machine.adhoc((1,))
    living, pcg = lifetimes(found, 0, Prices(found.tasks.graph, one), found.tasks.graph.pcg), graph(name)
    turn = next(n for n, x in enumerate(found.devices[0]) if isinstance(x, Run) and x.op.node == pcg.loss)
    alive = sum(span.size_bytes for span in living.spans if span.touched[0] <= turn < span.touched[-1])
    plan = plan_graph(pcg, one, Training(BATCH, "float32", "adamw"), SearchSpace(micro_batches=1, stages=1))
    planned = stage_price(plan).memory
    assert 0 <= planned["activations"] - alive <= living.always["inputs"]
    weights = sum(pcg.nodes[i].numel for i in pcg.of("parameter")) * 4
    assert living.always["weights"] == weights and living.always["states"] == 2 * weights


def test_gradients_are_summed_over_devices_in_place() -> None:
    def by_samples(made: Graph) -> None:
        for op in made.forward:
            for device, part in enumerate(op_trans(op, split("batch", 2))):
                op_assign(part, device)

    found = step("gpt3-1.3b", by_samples, 2)
    for device, own in enumerate(found.living):
        summed = [
            x.source for x in found.program.devices[device]
            if isinstance(x, Collective) and x.kind == "all_reduce" and x.source is not None
        ]  # fmt: skip
        weights = [register.tensor for register in summed if register.tensor.kind == "gradient"]
        once = [tensor for tensor in weights if len(graph("gpt3-1.3b").consumers[tensor.node]) == 1]
        assert len(once) > 40
        for tensor in once:
            assert len([span for span in own.spans if span.tensor == tensor and span.kind == "gradients"]) == 1, tensor


def layers_of(ops: Sequence[Op]) -> list[list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in ops:
        if op.of.path.startswith("layers."):
            found.setdefault(".".join(op.of.path.split(".")[:2]), []).append(op)
    return list(found.values())


def recomputed(made: Graph) -> None:
    for layer in layers_of(on_one(made)):
        recompute(layer)


def swapped(made: Graph) -> None:
    swap(layers_of(on_one(made))[0])


def co_sharded(made: Graph) -> None:
    """Heads and hidden units in four parts, one after the other."""
    blocks: dict[object, list[list[Op]]] = {}
    for op in on_one(made):
        layer = ".".join(op.of.path.split(".")[:2])
        dims = [(f"{layer}.attention.qkv.weight", 0, 1), (f"{layer}.up.weight", 0)]
        dim = next((d for d in dims if layer.startswith("layers") and op.has(d)), None)
        if dim is not None:
            blocks.setdefault(dim, []).append(op_trans(op, split(dim, 4, "shard")))
            op_assign(blocks[dim][-1], 0)
    for block in blocks.values():
        parts = [[part[k] for part in block] for k in range(4)]
        for part in parts:
            recompute(part)
        for before, after in pairwise(parts):
            op_order(before, after)
            op_order([op.backward for op in after], [op.recomputed for op in before])


@cache
def on_a_gpt(write: Write) -> Prediction:
    return step("gpt3-1.3b", write)


def test_recomputation_keeps_less_and_takes_its_forward_again() -> None:
    plain, less = on_a_gpt(on_one), on_a_gpt(recomputed)
    assert less.memory[0].peak["activations"] < 0.5 * plain.memory[0].peak["activations"]
    assert less.step_ns == plain.step_ns + ns_of(less, Phase.RECOMPUTE)
    assert 0.3 * ns_of(plain, Phase.FORWARD) < ns_of(less, Phase.RECOMPUTE) < ns_of(plain, Phase.FORWARD)


def test_co_shard_has_a_part_of_a_layer_at_a_time() -> None:
    plain, less = on_a_gpt(on_one), on_a_gpt(co_sharded)
    assert less.peak_bytes[0] < plain.peak_bytes[0]
    assert less.memory[0].peak["weights"] == plain.memory[0].peak["weights"]
    assert less.step_ns > plain.step_ns


def test_what_is_swapped_is_on_the_host_meanwhile() -> None:
    plain, less = on_a_gpt(on_one), on_a_gpt(swapped)
    moves = [timed for timed in less.devices[0] if timed.stream == HOST and timed.size_bytes]
    out, back = ([t for t in moves if t.instruction.op.phase is phase] for phase in (Phase.OFFLOAD, Phase.RELOAD))
    moved = sum(timed.size_bytes for timed in out)
    assert moved == sum(timed.size_bytes for timed in back) > 0
    assert less.peak_bytes[0] < plain.peak_bytes[0]
    assert all(timed.ns == timed.size_bytes for timed in moves)  # at 1e9 bytes/s
    users = {
        t.instruction.op.forward: t
        for t in less.devices[0]
        if isinstance(t.instruction, Run) and t.instruction.op.phase is Phase.BACKWARD
    }
    assert all(users[t.instruction.op.forward].start_ns >= t.end_ns for t in back)


def test_bytes_over_time_come_back_to_what_is_always_there() -> None:
    for write in (on_one, recomputed, co_sharded, swapped):
        usage = on_a_gpt(write).memory[0]
        sizes = [size for _, size in usage.over_time]
        assert max(sizes) == usage.peak_bytes
        assert sizes[-1] == sum(usage.peak[kind] for kind in ("inputs", "weights", "states"))


# What is refused


def test_a_machine_without_a_host_link_refuses_to_swap() -> None:
    found = program("gpt3-1.3b", swapped)
    one = machine(1)
    with pytest.raises(PartitaError, match=r"\.py:\d+: swap\(.*\): the plan swaps, but machine adhoc-1 has no"):
        predict(found, replace(one, device=replace(one.device, host_bandwidth=None)))


def test_states_need_a_host_link_as_saved_tensors_do() -> None:
    one = machine(1)
    without = replace(one, device=replace(one.device, host_bandwidth=None))

    def hosted(made: Graph) -> None:
        on_one(made)
        swap(made.optimizer)

    found = program("chain", hosted)
    with pytest.raises(PartitaError, match=r"\.py:\d+: swap\(.*\): the plan swaps, but machine adhoc-1 has no"):
        predict(found, without, optimizer="adamw")


def test_a_machine_with_too_few_devices_is_refused() -> None:
    with pytest.raises(PartitaError, match=r"4 devices, adhoc-2 has 2"):
        predict(program("chain", data_parallel, 4), machine(2))


@pytest.mark.parametrize(("dtype", "optimizer", "words"), [("int4", "sgd", "dtype"), ("float32", "lion", "optimizer")])
def test_unknown_words_are_refused(dtype: str, optimizer: str, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        predict(program("chain", on_one), machine(1), dtype, optimizer)


def test_an_operator_that_nobody_knows_has_no_price() -> None:
    found = program("chain", on_one)
    pcg = found.tasks.graph.pcg
    nodes = tuple(replace(node, op="warp") if node.op == "gelu" else node for node in pcg.nodes)
    run = next(x for x in found.devices[0] if isinstance(x, Run) and x.op.of.op == "gelu")
    prices = Prices(found.tasks.graph, machine(1))
    run.op.graph.pcg = replace(pcg, nodes=nodes, origin=None)
    try:
        with pytest.raises(PartitaError, match="warp"):
            prices.task_ns(run.op)
    finally:
        run.op.graph.pcg = pcg
