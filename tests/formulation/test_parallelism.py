"""Sizes of parallelism: which rows and which storage they leave, and that what they fix is what is planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.named_model import captured
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.parallelism import Parallelism, Role
from partita.formulation.placement.placement import innermost_last
from partita.formulation.search_space import SearchSpace
from partita.model.errors import PartitaError
from partita.model.graph.layout import B, is_split
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.cache.store import store_in

ALONE = Budget(workers=1, store=store_in("none"))
MACHINE = Machine.load("dgx-h100", nodes=2)


def planned(model: str = "llama-7b", machine: Machine = MACHINE, **given: object) -> Plan:
    names = {"stages", "stages_at", "recompute", "chunks"}
    space = {key: value for key, value in given.items() if key in names}
    sizes = Parallelism(**{key: value for key, value in given.items() if key not in names})  # type: ignore[arg-type]
    training = Training(batch=32, dtype="mixed-bfloat16", optimizer="adamw")
    graph, _ = captured(model, training, small=True)
    options = SearchSpace(offload=False, parallelism=sizes, **space)  # type: ignore[arg-type]
    return plan_graph(graph, machine, training, options, ALONE, Context(emits=False))


def test_axes_lie_with_tensor_ranks_innermost() -> None:
    sizes = Parallelism(dp=4, tp=4)
    assert sizes.axes(16) == ((Role.DATA, 4), (Role.TENSOR, 4))
    assert innermost_last((2, 8), (4, 4)).matrix == ((2, 2), (1, 4))
    assert Parallelism(tp=2).axes(16) == ((Role.FREE, 8), (Role.TENSOR, 2))
    assert Parallelism(dp=8, dp_shard=4, tp=2).axes(16) == ((Role.DATA, 2), (Role.SHARD, 4), (Role.TENSOR, 2))
    assert Parallelism(dp=1, tp=1).sizes(1) == (1,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dp": 3, "tp": 2}, "does not fit the 16 devices"),
        ({"dp": 16, "zero": 4}, "--zero 4"),
        ({"dp": 16, "dp_shard": 3}, "does not divide --dp 16"),
        ({"tp": 2, "zero": 1}, "--zero needs --dp"),
        ({"dp": 16, "sequence_parallel": True}, "--sequence-parallel needs --tp"),
        ({"dp": 16, "micro_batch": 3}, "does not divide into micro-batches"),
        ({"dp": 16, "dp_shard": 4, "zero": 1}, "which are whole with --zero 1"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        planned(**given)


def test_data_ranks_share_samples_and_tensor_ranks_matrices() -> None:
    plan = planned(dp=8, tp=2, zero=1, sequence_parallel=True)
    assert plan.placement.sizes == (8, 2)
    for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
        if node.op == "linear":
            samples, weight = choice.inputs[0], choice.inputs[1]
            assert is_split(samples[0]) and weight[0] == B and is_split(weight[1])
        if node.op == "rms_norm":  # between matrices: by positions
            assert is_split(choice.output[1]) and choice.inputs[1] == (B, B)
        if node.op == "parameter":
            assert choice.output[0] == B and choice.sharded_states


def test_without_sequence_parallelism_what_lies_between_matrices_is_whole() -> None:
    plan = planned(dp=8, tp=2, sequence_parallel=False)
    norms = [c for n, c in zip(plan.graph.nodes, plan.choices, strict=True) if n.op == "rms_norm"]
    assert norms and not any(is_split(choice.output[1]) for choice in norms)


def test_tensor_ranks_store_a_matrix_as_its_own_reader_reads_it() -> None:
    """Not as that of another matrix of this shape does."""
    plan = planned("mlp", Machine.adhoc((4,)), dp=1, tp=4)
    read = {plan.graph.nodes[n.inputs[1]].name: c.inputs[1] for n, c in zip(plan.graph.nodes, plan.choices, strict=True)
            if n.op == "linear"}  # fmt: skip
    stored = {n.name: c.output for n, c in zip(plan.graph.nodes, plan.choices, strict=True) if n.name in read}
    assert stored == read and len({*stored.values()}) > 2


def test_tensor_ranks_hand_a_part_each_to_the_next_stage() -> None:
    node, gpu = MACHINE.levels
    slow = replace(MACHINE, levels=(replace(node, bandwidth=1e9), gpu))
    plan = planned(machine=slow, dp=4, tp=2, stages=2, stages_at=("layers.1",), sequence_parallel=False)
    for part, op in zip(plan.parts, ("send", "receive"), strict=True):
        handed = [c for n, c in zip(part.graph.nodes, part.choices, strict=True) if n.op == op]
        assert handed and all(is_split(choice.output[1]) for choice in handed)
        assert not any(
            is_split(c.output[1]) for n, c in zip(part.graph.nodes, part.choices, strict=True) if n.op == "rms_norm"
        )


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_stages_of_zero(zero: int) -> None:
    plan = planned(dp=16, zero=zero)
    stored = [c for n, c in zip(plan.graph.nodes, plan.choices, strict=True) if n.op == "parameter" and n.numel > 2000]
    assert stored
    for choice in stored:
        assert is_split(choice.output[0]) == (zero == 3)
        assert choice.sharded_states == (zero in (1, 2))


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_layers_gather_weights_of_zero_3_again(mode: str) -> None:
    plan = planned(dp=16, zero=3, recompute=mode)  # whose memory both pricers agree on
    assert plan.recompute and set(plan.recompute.values()) == {mode}
    weights = [plan.graph.nodes[k.node].op == "parameter" for k in stage_price(plan).kept if k.part == "recomputed"]
    assert any(weights)


def test_memory_falls_with_each_stage_of_zero() -> None:
    need = [planned(dp=16, zero=zero).report["memory_bytes"] for zero in (0, 1, 3)]
    assert need == sorted(need, reverse=True) and need[0] > need[-1]


def test_hybrid_shards_have_copies() -> None:
    plan = planned(dp=16, dp_shard=8, zero=3)
    assert plan.placement.sizes == (2, 8)
    stored = [c for n, c in zip(plan.graph.nodes, plan.choices, strict=True) if n.op == "parameter" and n.numel > 2000]
    assert all(choice.output[0] == B and is_split(choice.output[1]) for choice in stored)


def test_a_fixed_configuration_is_never_faster_than_the_free_plan() -> None:
    free = planned()
    for given in ({"dp": 16, "zero": 1}, {"dp": 4, "tp": 4}, {"tp": 2}):
        assert planned(**given).report["objective_ns"] >= free.report["bound_ns"]


def test_stages_begin_where_they_are_told() -> None:
    plan = planned(dp=4, tp=2, stages=2, stages_at=("layers.1",))
    assert plan.size == 2 and plan.parts[0].placement.sizes == (4, 2)
    first = {node.name for node in plan.parts[0].graph.nodes}
    assert any(name.startswith("layers.0.") for name in first)
    assert not any(name.startswith("layers.1.") and "weight" in name for name in first)
    with pytest.raises(PartitaError, match=r"no stage can begin at .layers\.7."):
        planned(dp=4, tp=2, stages=2, stages_at=("layers.7",))
    with pytest.raises(PartitaError, match="needs --stages N"):
        planned(dp=4, tp=2, stages=4, stages_at=("layers.1",))


def test_the_program_of_a_configuration_computes_the_model() -> None:
    machine = Machine.adhoc((4,))
    training = Training(batch=4, dtype="float32", optimizer="adamw")
    graph, built = captured("llama-7b", training, small=True)
    sizes = Parallelism(dp=2, tp=2, zero=1, sequence_parallel=True)
    context = Context({"reference": "llama-7b", "small": True, "batch": 4}, built)
    plan = plan_graph(graph, machine, training, SearchSpace(offload=False, parallelism=sizes), ALONE, context)
    assert plan.verify()["ok"]
