"""Special strategies in hand-written plans: their parts run at once, cost what they do in the planner, and compute."""

from __future__ import annotations

from pathlib import Path

import pytest

import partita
from partita import micro_batches, op_assign, op_order, op_trans, place, recompute, replicate, special, split, swap
from partita.codegen.plan.spacetime_plan import SpaceTimePlan
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.special import _plan, around
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.materialized import Run
from partita.formulation.special import special_strategy
from partita.formulation.strategies.strategy import row_names, rows
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG

from ..levels import some
from .conversions import checked, trained

EXAMPLES = [
    (name, number)
    for name in ("vocabulary", "halo", "ring", "normalize", "softmax", "owners")
    for number, _ in enumerate(special_strategy(name).examples)
]


@pytest.mark.parametrize(("name", "number"), some(EXAMPLES, every=3))
def test_a_planners_special_strategy_is_converted_and_costs_the_same(name: str, number: int, tmp_path: Path) -> None:
    graph, index = around(special_strategy(name).examples[number])
    labels = [
        label for label, row in zip(row_names(graph, index), rows(graph, index), strict=True) if row.special == name
    ]
    plan = next(plan for label in labels for ranks in (3, 2) if (plan := _plan(graph, index, label, ranks)))
    found = plan.space_time_graph()
    made = partita.space_time(found, plan.machine, dtype="float64", optimizer="sgd")
    assert made.prediction.step_ns - stage_price(plan).objective_ns in (0, 1)  # shares of a bucket are rounded
    assert any(isinstance(x, Run) and x.meeting for x in made.program.devices[0])
    trained(checked(found, plan.ranks), tmp_path)


# By hand


def convolutions(samples: int = 2) -> PCG:
    """loss = Σ second(relu(first(x))), windows of 3 x 3 over 8 x 8."""
    b = Builder(samples)
    h = b.input("x", (samples, 2, 8, 8))
    given = {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    for name in ("first", "second"):
        weights = b.parameter(f"{name}.weight", (2, 2, 3, 3))
        h = b.add("conv", h, weights, shape=(samples, 2, 8, 8), name=name, **given)
        h = b.add("relu", h, shape=(samples, 2, 8, 8), name=f"{name}_relu")
    return b.build(b.add("sum", h, shape=(), dims=(0, 1, 2, 3), keepdim=False, name="loss"))


def by_rows(devices: tuple[int, ...] = (0, 1), samples: int = 2) -> Graph:
    """Rows of images on devices, with halos."""
    graph = partita.graph(convolutions(samples))
    for op in graph.forward:
        how = special("halo", len(devices), dim=2) if op.of.op == "conv" else split(("x", 2), len(devices))
        op_assign_each(op_trans(op, how), devices)
    return graph


def op_assign_each(parts: list[partita.formulation.spacetime.op.Op], devices: tuple[int, ...]) -> None:
    for part, device in zip(parts, devices, strict=True):
        op_assign(part, device)


def test_halos_by_hand(tmp_path: Path) -> None:
    trained(checked(by_rows(), 2), tmp_path)


def test_two_dims_on_two_axes_exchange_corners_too(tmp_path: Path) -> None:
    graph = partita.graph(convolutions())
    for op in graph.forward:
        for outer, part in enumerate(op_trans(op, _along(op.of.op, 2))):
            op_assign_each(op_trans(part, _along(op.of.op, 3)), (2 * outer, 2 * outer + 1))
    made = checked(graph, 4)
    trained(made, tmp_path)
    meeting = next(run.meeting for run in made.program.devices[0] if isinstance(run, Run) and run.meeting)
    assert meeting.groups(0) == [(0, 2), (1, 3)] and meeting.groups(1) == [(0, 1), (2, 3)]


def _along(op: str, dim: int) -> partita.formulation.spacetime.transformation.Transformation:
    return special("halo", 2, dim=dim) if op == "conv" else split(("x", dim), 2)


@pytest.mark.parametrize("change", [recompute, swap])
def test_layers_with_halos_are_recomputed_and_swapped(change: object, tmp_path: Path) -> None:
    graph = by_rows()
    for device in range(2):
        change([op for op in graph.forward if op.device == device and op.of.name.startswith("first")])  # type: ignore[operator]
    trained(checked(graph, 2), tmp_path)


def test_micro_batches_of_replicas_with_halos(tmp_path: Path) -> None:
    """Two replicas of two devices, two micro-batches; what the replicas exchange shares the links and is equal."""
    graph = partita.graph(convolutions(4))
    for op in graph.forward:
        for micro in op_trans(op, split("batch", 2, "micro")):
            for number, replica in enumerate(op_trans(micro, split("batch", 2, "replica"))):
                op_assign_each(op_trans(replica, _along(op.of.op, 2)), (2 * number, 2 * number + 1))
    made = checked(graph, 4)
    assert len({times.ends[-1] for times in made.prediction.times}) == 1
    trained(made, tmp_path)


def test_what_nobody_reads_of_a_gradient_is_exchanged_all_the_same(tmp_path: Path) -> None:
    """Both replicas compute the halos; the first convolution alone is on one of them, and takes gradients of one."""
    graph = partita.graph(convolutions())
    for op in graph.forward:
        if op.of.name in ("first", "first_relu"):
            op_assign_each(op_trans(op, replicate(2)), (0, 3))
            continue
        for number, replica in enumerate(op_trans(op, replicate(2))):
            op_assign_each(op_trans(replica, _along(op.of.op, 2)), (2 * number, 2 * number + 1))
    trained(checked(graph, 4), tmp_path)


def test_micro_batches_that_are_one_operator_get_operators_of_their_own(tmp_path: Path) -> None:
    graph = partita.graph(convolutions(8))
    for op in graph.forward:
        (micros,) = op_trans(op, micro_batches(4))
        op_assign_each(op_trans(micros, _along(op.of.op, 2)), (0, 1))
    made = checked(graph, 2)
    assert "exchanges data (halo) with" in made.looped.irregular
    trained(made, tmp_path)


# What cannot run


def refusal(graph: Graph) -> str:
    with pytest.raises(PartitaError) as found:
        checked(graph, 1 + max(op.device or 0 for op in graph.forward))
    return str(found.value)


def test_orders_that_keep_parts_from_running_at_once_conflict() -> None:
    graph = by_rows()
    first, second = graph.find("first"), graph.find("second")
    op_order(second[0].backward, first[1].backward)  # as they are
    checked(graph, 2)
    op_order(second[1], first[0])
    found = refusal(graph)
    assert "second forward (halo 2/2) before first forward (halo 1/2)" in found
    assert "exchanges data (halo) with" in found and "they run at once" in found


def test_parts_that_differ_are_refused() -> None:
    graph = by_rows()
    op_assign_each(op_trans(graph.find("second")[0], split("batch", 2)), (0, 0))
    assert "of which 1 are missing: transform, recompute and split all of them alike" in refusal(graph)
    graph = by_rows()
    recompute(graph.find("second")[0])
    assert "second recompute (halo 1/2) exchanges data (halo) with 1 other parts" in refusal(graph)


@pytest.mark.parametrize("devices", [(1, 0), (0, 0)])
def test_parts_need_devices_of_their_own_in_order(devices: tuple[int, int]) -> None:
    found = refusal(by_rows(devices))
    assert "on devices 1, 0" in found or "on devices 0, 0" in found
    assert "in rising order" in found


def test_what_a_special_strategy_splits_is_split_once() -> None:
    graph = partita.graph(convolutions())
    for op in graph.forward:
        for number, part in enumerate(op_trans(op, split(("x", 2), 2) if op.of.op != "conv" else special("halo", 2))):
            op_assign_each(op_trans(part, _along(op.of.op, 2)), (2 * number, 2 * number + 1))
    assert "is split by halo, and what that splits is split once more" in refusal(graph)


def test_unknown_strategies_are_refused_with_those_that_there_are() -> None:
    conv, relu = (partita.graph(convolutions()).find(name)[0] for name in ("first", "first_relu"))
    with pytest.raises(PartitaError, match="has no special strategy 'hallo': it has halo; did you mean halo"):
        op_trans(conv, special("hallo", 2))
    with pytest.raises(PartitaError, match="it has none"):
        op_trans(relu, special("halo", 2))
    with pytest.raises(PartitaError, match="halo does not split dim 1"):
        op_trans(conv, special("halo", 2, dim=1))


def test_programs_of_special_strategies_are_readable(tmp_path: Path) -> None:
    made: SpaceTimePlan = checked(by_rows(), 2)
    text = made.source()
    assert "class Halo(torch.autograd.Function)" in text
    assert 'halo=(part, 2, run.groups["all"])' in text


def test_backward_exchanges_though_one_device_s_gradient_is_unread(tmp_path: Path) -> None:
    """Rows of a table with their owners on two pairs of devices, of each of which one updates what it keeps of it."""
    b = Builder(4)
    table, ids = b.parameter("table", (6, 4)), b.input("ids", (4, 2), dtype="int64")
    h = b.add("embedding", table, ids, shape=(4, 2, 4), name="rows")
    graph = partita.graph(b.build(b.add("sum", h, shape=(), dims=(0, 1, 2), keepdim=False, name="loss")))
    place(graph, "table", split(0, 2), [0, 3])
    for op in graph.forward:
        how = special("owners", 2) if op.of.op == "embedding" else split("batch", 2)
        op_assign_each([part for copy in op_trans(op, replicate(2)) for part in op_trans(copy, how)], (0, 1, 2, 3))
    trained(checked(graph, 4), tmp_path)
