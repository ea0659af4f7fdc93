"""The order of a plan's tasks where the plan says nothing, and the producers that needs wait for."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.order import Completed, complete, edges, precedences
from partita.formulation.spacetime.primitives import op_assign, op_order, op_trans, recompute, split_backward, swap
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import Transformation, replicate, split
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG


def chain(layers: int = 3, samples: int = 8) -> PCG:
    """loss = Σ l2(l1(l0(x)))."""
    b = Builder(samples)
    h = b.input("x", (samples, 4))
    weights = [b.parameter(f"l{i}.weight", (4, 4)) for i in range(layers)]
    for i, w in enumerate(weights):
        h = b.add("linear", h, w, shape=(samples, 4), name=f"l{i}")
    return b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def parts(graph: Graph, how: Transformation, devices: list[int]) -> None:
    for op in graph.forward:
        for part, device in zip(op_trans(op, how), devices, strict=True):
            op_assign(part, device)


def completed(graph: Graph) -> Completed:
    found = tasks(graph)
    assert not found.problems
    done = complete(precedences(found))
    assert isinstance(done, Completed)
    at = {op: place for place, op in enumerate(done.order)}
    assert len(done.order) == len(at) == len(found.ops) and all(at[a] < at[b] for a, b in edges(done))
    assert set(done.chosen) == set(found.needs) and all(done.chosen[n] in n.producers for n in found.needs)
    return done


LETTERS = {"forward": "F", "backward": "B", "recompute": "R", "weight gradient": "W", "reload": "L", "offload": "O"}


def short(done: Completed, device: int = 0, label: str = "micro") -> str:
    """`F0.1`: forward of micro-batch 0 of node l1; without what parameters need."""
    words = []
    for op in done.order:
        if op.device == device and op.phase.value in LETTERS:
            words.append(f"{LETTERS[op.phase.value]}{op.coordinate(label)}.{op.of.name.removeprefix('l')}")
    return " ".join(words)


def test_one_micro_batch_after_the_other_forward_and_backward() -> None:
    graph = Graph(chain(2))
    parts(graph, split("batch", 2, "micro"), [0, 0])
    assert short(completed(graph)) == ("F0.0 F0.1 F0.oss B0.oss B0.1 B0.0 F1.0 F1.1 F1.oss B1.oss B1.1 B1.0")


def test_parts_on_other_devices_are_no_parts_in_time() -> None:
    """Four parts of the batch on two devices: each device has two micro-batches."""
    graph = Graph(chain(1))
    parts(graph, split("batch", 4), [0, 0, 1, 1])
    assert short(completed(graph), 1, "batch") == "F2.0 F2.oss B2.oss B2.0 F3.0 F3.oss B3.oss B3.0"


def test_a_device_goes_forward_before_it_goes_back_for_others() -> None:
    """Device 1 begins what device 0 ends: it would wait for a gradient that is ready long after its own forward is."""
    graph = Graph(chain(2))
    for op in graph.forward:
        for number, part in enumerate(op_trans(op, split("batch", 2))):
            op_assign(part, 1 - number if op.of.name == "l0" else number)
    assert short(completed(graph), 1, "batch") == "F0.0 F1.1 F1.oss B1.oss B1.1 B0.0"


@pytest.mark.parametrize("micro_first", [True, False])
def test_micro_batches_come_before_other_parts_in_time(micro_first: bool) -> None:
    """Co-shard: each micro-batch in two parts of columns one after the other, whichever split was made first."""
    micro, columns = split("batch", 2, "micro"), split("o", 2, "columns")
    graph = Graph(chain(1))
    l0, loss = graph.forward
    op_trans(loss, micro)
    for part in op_trans(l0, micro if micro_first else columns):
        op_trans(part, columns if micro_first else micro)
    op_assign(graph.forward, 0)
    order = [op for op in completed(graph).order if op.phase.value == "forward"]
    assert [(op.of.name, op.coordinate("micro"), op.coordinate("columns")) for op in order] == [
        *(("l0", 0, 0), ("l0", 0, 1), ("loss", 0, 0)),
        *(("l0", 1, 0), ("l0", 1, 1), ("loss", 1, 0)),
    ]


def test_updates_come_last_and_parameters_are_there_first() -> None:
    graph = Graph(chain(2))
    parts(graph, split("batch", 2, "micro"), [0, 0])
    phases = [op.phase.value for op in completed(graph).order]
    assert phases[:2] == ["store"] * 2 and phases[-4:] == ["update"] * 2 + ["keep"] * 2


def test_an_update_may_be_ordered_before_the_backward_of_earlier_layers() -> None:
    graph = Graph(chain(2))
    op_assign(graph.forward, 0)
    l0, l1, _ = graph.forward
    update = next(op for op in graph.optimizer if op.of.name == "l1.weight")
    op_order([l1.backward], [update])
    op_order(update, [l0.backward])
    names = [op.name for op in completed(graph).order]
    assert names.index("l1 backward") < names.index("l1.weight update") < names.index("l0 backward")


def test_recomputation_is_put_off_until_its_backward() -> None:
    """Two groups, on the second of two stages, whose forward of micro-batch 1 is ordered before all backward."""
    graph = Graph(chain(3))
    parts(graph, split("batch", 2, "micro"), [0, 0])
    l0, l1, l2, loss = (graph.parts(node) for node in sorted({op.node for op in graph.forward}))
    for micro in range(2):
        recompute([l0[micro], l1[micro]])
        recompute(l2[micro])
    op_order(loss, [op.backward for op in loss])
    assert short(completed(graph)) == (
        "F0.0 F0.1 F0.2 F0.oss F1.0 F1.1 F1.2 F1.oss "
        "B0.oss R0.2 B0.2 R0.0 R0.1 B0.1 B0.0 B1.oss R1.2 B1.2 R1.0 R1.1 B1.1 B1.0"
    )


def test_recomputation_runs_earlier_where_it_is_ordered_so() -> None:
    graph = Graph(chain(2))
    op_assign(graph.forward, 0)
    l0, _, loss = graph.forward
    recompute(l0)
    op_order([l0.recomputed], [loss.backward])
    assert short(completed(graph)) == "F0.0 F0.1 F0.oss R0.0 B0.oss B0.1 B0.0"


def test_a_reload_is_put_off_and_an_offload_is_not() -> None:
    graph = Graph(chain(2))
    op_assign(graph.forward, 0)
    swap(graph.forward[:2])
    assert short(completed(graph)) == "F0.0 O0.0 F0.1 O0.1 F0.oss B0.oss L0.1 B0.1 L0.0 B0.0"


def test_gradients_of_parameters_follow_their_backward_unless_ordered() -> None:
    graph = Graph(chain(2))
    op_assign(graph.forward, 0)
    split_backward(graph.forward)
    assert short(completed(graph)) == "F0.0 F0.1 F0.oss B0.oss B0.1 W0.1 B0.0 W0.0"
    l0, l1, _ = graph.forward
    op_order([l0.backward], [l1.weight])
    assert short(completed(graph)) == "F0.0 F0.1 F0.oss B0.oss B0.1 B0.0 W0.1 W0.0"


def one_f_one_b() -> Graph:
    """Two stages, three micro-batches, ordered operator by operator group."""
    graph = Graph(chain(2, samples=6))
    for op in graph.forward:
        for part in op_trans(op, split("batch", 3, "micro")):
            op_assign(part, int(op.of.name != "l0"))

    def forward(stage: int, micro: int) -> list[Op]:
        return [op for op in graph.forward if (op.device, op.coordinate("micro")) == (stage, micro)]

    for stage, plan in enumerate(("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2")):
        groups = [
            [op if what[0] == "F" else op.backward for op in forward(stage, int(what[1]))] for what in plan.split()
        ]
        for earlier, later in pairwise(groups):
            op_order(earlier, later)  # type: ignore[arg-type]
    return graph


def test_orders_are_kept() -> None:
    done = completed(one_f_one_b())
    assert short(done) == "F0.0 F1.0 B0.0 F2.0 B1.0 B2.0"
    assert short(done, 1) == ("F0.1 F0.oss B0.oss B0.1 F1.1 F1.oss B1.oss B1.1 F2.1 F2.oss B2.oss B2.1")


def replicas(order_local_after_reader: bool) -> tuple[Graph, list[Op]]:
    """l0 by two devices alike, l1 on device 1; device 1's own l0 may be ordered after its reader."""
    graph = Graph(chain(2))
    l0, l1, loss = graph.forward
    copies = op_trans(l0, replicate(2))
    for device, copy in enumerate(copies):
        op_assign(copy, device)
    op_assign([l1, loss], 1)
    if order_local_after_reader:
        op_order(l1, copies[1])
    return graph, copies


@pytest.mark.parametrize("after", [False, True])
def test_a_need_waits_for_its_own_device_unless_that_would_be_for_ever(after: bool) -> None:
    graph, copies = replicas(after)
    done = completed(graph)
    assert (
        next(p for n, p in done.chosen.items() if n.task.name == "l1 forward" and len(n.producers) > 1)
        is copies[not after]
    )


def test_an_order_that_nothing_can_follow_is_told_as_the_events_that_never_happen() -> None:
    graph = Graph(chain(2))
    op_assign(graph.forward, 0)
    l0, l1, _ = graph.forward
    op_order(l1, l0)
    found = tasks(graph)
    given = precedences(found)
    stuck = complete(given)
    assert isinstance(stuck, frozenset)
    assert {op.name for op in found.ops} - {found.ops[e].name for e in stuck if e < len(found.ops)} == {
        "l0.weight store",
        "l1.weight store",
    }


def test_what_the_loss_does_not_need_has_no_part_in_an_order() -> None:
    b = Builder(2)
    x, w = b.input("x", (2, 4)), b.parameter("w", (4, 4))
    h = b.add("linear", x, w, shape=(2, 4), name="h")
    unused = b.add("relu", h, shape=(2, 4), name="unused")
    loss = b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss")
    graph = Graph(b.build(loss))
    op_assign(graph.forward, 0)
    ops = {op.node: op for op in graph.forward}
    assert ops[unused].backward is not None
    op_order(ops[unused].backward, ops[h])
    assert "unused backward" not in [op.name for op in completed(graph).order]


PROGRAM = """
import sys; sys.path.insert(0, {folder!r})
from test_spacetime_order import completed, one_f_one_b
print([(op.name, op.device) for op in completed(one_f_one_b()).order])
"""


def test_the_order_does_not_depend_on_hashes() -> None:
    folder = str(Path(__file__).parent)
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(folder=folder)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(said) == 1 and "l0 forward" in said.pop()
