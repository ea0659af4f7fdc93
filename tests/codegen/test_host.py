"""What runs at the same time has one price, the host included: the network's windows, and the plan node by node."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from partita.codegen.parallel_graph.build import parallel_graph
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.decode import choices, report
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.pricing.price_items import Overlap
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.facts import facts
from partita.codegen.report.text import text
from partita.codegen.report.trace import timeline
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import evaluate
from partita.formulation.placement.placement import Placement, of_rows
from partita.formulation.search_space import SearchSpace
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.segments import MODES
from partita.model.machine.machine import Machine
from partita.model.machine.merged_device import merged_device
from partita.model.training import Training
from partita.solvers.protocol import Status, solver

from ..levels import some
from .test_recompute_price import MACHINE, ONE, TWO, assignments, twin_of

SPACE = SearchSpace()


def hosted(host_ns: int, machine: Machine = MACHINE, **device: Any) -> Machine:
    return replace(machine, device=replace(machine.device, host_ns=host_ns, **device))


def encoded(
    model: str, host_ns: int, place: Placement = ONE, micro_batches: int = 1, dtype: str = "float32", **more: Any
) -> Encoding:
    graph = with_batch(twin_of(model), 8 // micro_batches)
    options = EncodingOptions(SPACE, more.pop("modes", ("none",)))
    machine = hosted(host_ns, **more)
    return encode(graph, machine, place, micro_batches=micro_batches, dtype=dtype, options=options)


def streams(found: Encoding) -> set[int]:
    return {window.streams for window in found.network.windows}


@pytest.mark.parametrize("host_ns", [0, 20_000, 10**6])
@pytest.mark.parametrize(
    ("model", "place", "micro_batches", "dtype", "modes"),
    some(
        [
            ("gpt2", TWO, 2, "mixed-bfloat16", MODES),
            ("gpt2", ONE, 1, "float32", ("none",)),
            ("llama-70b", TWO, 4, "mixed-float16", ("none", "full")),
            ("mbart-4.7b", ONE, 2, "float32", MODES),
            ("mixtral-8x7b", ONE, 1, "mixed-bfloat16", MODES),
        ]
    ),
)
def test_a_plan_costs_what_the_network_says(
    model: str, place: Placement, micro_batches: int, dtype: str, modes: tuple[str, ...], host_ns: int
) -> None:
    found = encoded(model, host_ns, place, micro_batches, dtype, modes=modes)
    check_network(found.network)
    reserved, tried = MACHINE.device.capacity_bytes - found.network.capacities[0], 0
    for assignment in assignments(found, 8, seed=host_ns):
        decided = choices(found, assignment), dtype, "adam"
        modes_of = found.recomputed(assignment)
        try:
            more = {"recompute": modes_of, "together": found.together}
            plan = Plan(found.pcg, found.machine, place, micro_batches, *decided, **more)
        except PartitaError:  # random layouts of views that no operator asks for
            continue
        cost, said, told = stage_price(plan), evaluate(found.network, assignment), report(found, assignment)
        assert (cost.objective_ns, cost.memory_bytes) == (said.cost, said.use[0] + reserved)
        assert (told["hidden_ns"], told["host_bound_ns"]) == (cost.hidden_ns, cost.host_bound_ns)
        phases = sum(cost.phase_ns(phase) for phase in ("forward", "recompute", "backward", "update"))
        assert phases == cost.objective_ns and parallel_graph(plan).objective_ns == cost.objective_ns
        assert (cost.host_bound_ns > 0) == any(o.longest == "host" for o in cost.overlaps)
        assert (cost.host_bound_ns > 0) >= (host_ns == 10**6)
        tried += 1
    assert tried


def test_without_a_host_nothing_changes() -> None:
    """No stream, and the price that a machine without `host_ns` has."""
    found, (one,) = encoded("gpt2", 0), assignments(encoded("gpt2", 0), 1)
    assert streams(found) == {2} and report(found, one)["host_bound_ns"] == 0
    assert "host_ns" not in hosted(0).to_json()["device"] and Machine.load("cpu").device.host_ns == 0


def test_a_host_that_is_never_the_longest_is_left_out() -> None:
    """Beside kernels that take long whatever is chosen there is no third stream, and no plan costs more."""
    slow = {"memory_bandwidth": 1e6, "launch_ns": 10**6}
    without, quick = (encoded("gpt2", host_ns, micro_batches=2, **slow) for host_ns in (0, 1))
    assert streams(without) == streams(quick) == {2}
    assert streams(encoded("gpt2", 10**6, micro_batches=2)) == {3}
    for assignment in assignments(quick, 5):
        costs = {evaluate(found.network, assignment).cost for found in (without, quick)}
        assert len(costs) == 1


def test_a_layer_takes_as_long_as_the_longest_of_three() -> None:
    assert (Overlap("a", "forward", 5, 3, host_ns=4).hidden_ns, Overlap("a", "forward", 5, 3).host_bound_ns) == (3, 0)
    waiting = Overlap("a", "forward", 5, 3, host_ns=9)
    assert (waiting.hidden_ns, waiting.host_bound_ns, waiting.longest) == (3, 4, "host")  # 5 + 3 - 3 + 4 = 9
    assert Overlap("a", "forward", 3, 5, host_ns=5).longest == "weights"


def test_calls_are_those_that_the_program_makes() -> None:
    """A kernel is a call; of a product there is one in backward for every input with a gradient."""
    plan = planned(1_000)
    nodes, items = plan.graph.nodes, [i for i in stage_price(plan).items if i.part == "compute"]
    calls = {(nodes[i.node].name, i.phase): i.calls for i in items}
    expected = {"layers.1.up": (1, 3), "layers.1.gelu": (1, 1), "scores": (1, 2)}  # the last one has no bias
    assert {name: (calls[name, "forward"], calls[name, "backward"]) for name in expected} == expected


def planned(host_ns: int, micro_batches: int = 1) -> Plan:
    space = SearchSpace(mesh=(2, 2), micro_batches=micro_batches, stages=1)
    return plan_graph(twin_of("gpt2"), hosted(host_ns), Training(16), space)


def test_plans_of_slow_hosts_are_optimal_for_the_longest() -> None:
    """What is optimal without a host is no better once it is counted; files keep the machine's number."""
    without, slow = planned(0), planned(500_000)
    assert slow.report["status"] == "optimal" and slow.report["host_bound_ns"] > 0 == without.report["host_bound_ns"]
    priced = stage_price(replace(without, machine=hosted(500_000)))
    assert without.report["objective_ns"] < slow.report["objective_ns"] <= priced.objective_ns
    assert Machine.from_json(slow.machine.to_json()) == slow.machine


@pytest.mark.parametrize("host_ns", [2_000, 8_000])
def test_solvers_agree_on_three_streams(host_ns: int) -> None:
    """On two devices: by prices and lists, and by CP-SAT with a row for every stream."""
    options = EncodingOptions(SPACE)
    network = encode(twin_of("gpt2"), hosted(host_ns, Machine.adhoc((2,))), of_rows(((2,),)), options=options).network
    assert 3 in {window.streams for window in network.windows}
    one, other = (solver(name).solve(network) for name in ("auto", "cpsat-plain"))
    assert one.status is other.status is Status.OPTIMAL and one.objective == other.objective == one.bound


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_show_says_where_the_host_is_the_bottleneck(micro_batches: int) -> None:
    plan = planned(50_000, micro_batches)
    said = facts(plan)
    overlap = next(table for table in said.tables if table.title == "Overlap by layer")
    assert overlap.head[-3:] == ("host", "exposed", "longest") and {row[-1] for row in overlap.rows} == {"host"}
    assert "for it to issue calls" in text(said) and "50.0 us for each call" in overlap.text
    events = timeline(said)["traceEvents"]
    host = next(e["tid"] for e in events if e["ph"] == "M" and e["args"]["name"] == "host")
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == host)
    assert spans and all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans))
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert round(last * 1e3) == plan.report["objective_ns"] == plan_price(plan).objective_ns


def test_pipelines_wait_for_the_host_in_every_stage() -> None:
    space = SearchSpace(stages=2, micro_batches=4)
    quick, slow = (plan_graph(twin_of("gpt2"), hosted(ns), Training(8), space) for ns in (0, 500_000))
    assert slow.report["objective_ns"] > quick.report["objective_ns"]
    assert any(stage.host_bound_ns for stage in plan_price(slow).stages)


def test_merged_devices_issue_calls_as_fast_as_one() -> None:
    assert merged_device(hosted(700), 4).device.host_ns == 700
    assert merged_device(hosted(700), 4, launches=False).device.host_ns == 0


def test_a_calls_time_is_measured_here(tmp_path: Path) -> None:
    from partita.codegen.profile.host import host_calls

    found = [host_calls(repeats=2) for _ in range(3)]  # of so few steps one may be slowed by other work
    assert max(each["host_ns"] for each in found) > 0 and min(found[0]["calls"]) > 0
