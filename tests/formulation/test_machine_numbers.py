"""Numbers of a machine beyond bandwidth and latency: what each adds to the price, in both pricers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.named_model import captured
from partita.codegen.planner.plan_graph import plan_graph
from partita.formulation.parallelism import Parallelism
from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import step_price
from partita.formulation.reduction.optimal import cheapest_programs, envelope, optimal
from partita.formulation.reduction.program import Collective, Reduction, Step
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.transitions import Transitions
from partita.model.graph.layout import Action
from partita.model.machine.machine import Level, Machine
from partita.model.training import Training
from partita.solvers.budget import Budget
from partita.solvers.cache.store import store_in

PLACE = of_rows([(2, 4)])
WHOLE = Reduction(PLACE, (0,))


def machine(collectives: str = "nccl-ring", **level: float) -> Machine:
    base = Machine.load("dgx-h100", nodes=2)
    gpu = replace(base.levels[1], size=4)
    return replace(base, levels=(replace(base.levels[0], **level), gpu), collectives=collectives)


def planned(on: Machine, **sizes: int) -> Plan:
    training = Training(batch=16, dtype="mixed-bfloat16", optimizer="adamw")
    graph, _ = captured("gpt2", training, small=True)
    space = SearchSpace(offload=False, stages=1, parallelism=Parallelism(**sizes))
    budget = Budget(workers=1, store=store_in("none"))
    return plan_graph(graph, on, training, space, budget, Context(emits=False))


@pytest.mark.parametrize("size_bytes", [1, 10**4, 10**6, 10**8, 10**10])
def test_nccl_takes_the_cheaper_of_ring_and_tree(size_bytes: int) -> None:
    each = [optimal(machine(), WHOLE, size_bytes, profile=name).ns for name in ("nccl-ring", "nccl-tree")]
    assert optimal(machine("nccl"), WHOLE, size_bytes).ns == min(each)
    assert envelope(machine("nccl"), WHOLE).at(size_bytes).ns(size_bytes) == min(each)


@pytest.mark.parametrize("size_bytes", [1, 10**4, 10**6, 10**8, 10**10])
def test_nccl_sharp_may_also_add_up_in_the_switch(size_bytes: int) -> None:
    names = ("nccl-ring", "nccl-tree", "nccl-nvls")
    each = [optimal(machine(), WHOLE, size_bytes, profile=name).ns for name in names]
    assert optimal(machine("nccl-sharp"), WHOLE, size_bytes).ns == min(each)
    assert envelope(machine("nccl-sharp"), WHOLE).at(size_bytes).ns(size_bytes) == min(each)


def test_a_flat_sum_has_both_algorithms() -> None:
    found = cheapest_programs(machine("nccl"), PLACE, (0,), "all_reduce", True)
    assert len(found.prices) == 2 and len({*found.programs}) == 1
    assert found.at(1).latency_ns < found.at(10**10).latency_ns


def test_only_gathers_and_scatters_reach_a_share_of_the_links() -> None:
    for kind, ratio in ((Collective.ALL_GATHER, 2.0), (Collective.REDUCE_SCATTER, 2.0), (Collective.ALL_REDUCE, 1.0)):
        step = Step(kind, 0, 0)
        plain, shared = (step_price(m, WHOLE, step, 1.0).ns_per_byte for m in (machine(), machine(scatter_share=0.5)))
        assert shared == pytest.approx(ratio * plain)


def test_waiting_grows_with_the_ranks_of_a_group_across_nodes() -> None:
    late = machine(wait_ns=1000.0)
    across, inside = Transitions(late, PLACE), Transitions(late, of_rows([(1, 4), (2, 1)]))
    plain = Transitions(machine(), PLACE)
    assert across.step_ns(0, Action.SUM, 4096) - plain.step_ns(0, Action.SUM, 4096) == 7000
    assert across.step_ns(0, Action.GATHER, 4096, share=1.0) == plain.step_ns(0, Action.GATHER, 4096, share=1.0)
    same = Transitions(machine(), of_rows([(1, 4), (2, 1)]))
    assert inside.step_ns(0, Action.SUM, 4096) == same.step_ns(0, Action.SUM, 4096)
    assert inside.step_ns(1, Action.SUM, 4096) == same.step_ns(1, Action.SUM, 4096) + 1000


def test_tensor_ranks_wait_and_data_ranks_do_not() -> None:
    late = machine(wait_ns=1e6)
    by_samples = [planned(on, dp=8, zero=0).report["objective_ns"] for on in (machine(), late)]
    by_matrices = [planned(on, tp=8).report["objective_ns"] for on in (machine(), late)]
    assert by_matrices[1] > by_matrices[0] + 4 * 7e6  # two layers of two sums each way at least
    assert by_samples[1] - by_samples[0] < 3 * 7e6  # the loss, and a weight outside of the layers


def test_a_fixed_time_counts_once_a_step() -> None:
    slow = machine()
    slow = replace(slow, device=replace(slow.device, step_ns=12345))
    times = [planned(on, dp=8, zero=1).report["objective_ns"] for on in (machine(), slow)]
    assert times[1] - times[0] == 12345


def test_attention_has_an_efficiency_of_its_own() -> None:
    slow = machine()
    slow = replace(slow, device=replace(slow.device, attention_efficiency=slow.device.matmul_efficiency / 1e6))
    times = [planned(on, dp=8, zero=0).report["objective_ns"] for on in (machine(), slow)]
    assert times[1] > 2 * times[0]


def test_machine_files_keep_the_numbers() -> None:
    level = Level("node", 2, 1e9, 1e3, scatter_share=0.5, wait_ns=7.0)
    device = replace(machine().device, step_ns=5, attention_efficiency=0.3, transaction_bytes=64)
    made = Machine("m", (level, machine().levels[1]), device, "nccl")
    assert Machine.from_json(made.to_json()) == made
    plain = machine().to_json()
    assert not {"scatter_share", "wait_ns"} & {*plain["levels"][0]} and "step_ns" not in plain["device"]
