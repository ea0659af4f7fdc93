"""Dependencies as communication: which instructions a plan becomes, and that every task reads what it should."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

import partita
from partita.formulation.rvd.search import search
from partita.formulation.rvd.state import RVD, Path, State
from partita.formulation.spacetime.aligned import GroupPattern, match
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.mask import VALUE, PTensor
from partita.formulation.spacetime.materialize import materialize, synchronized
from partita.formulation.spacetime.materialized import (
    Accumulate,
    Collective,
    Instruction,
    Join,
    Materialized,
    Pad,
    Receive,
    Run,
    Send,
    reads,
    writes,
)
from partita.formulation.spacetime.op import Op, Phase
from partita.formulation.spacetime.order import PlanConflict
from partita.formulation.spacetime.predict import predict
from partita.formulation.spacetime.primitives import op_assign, op_trans, place, recompute, split_backward, swap
from partita.formulation.spacetime.regular import Region
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import Transformation, replicate, split, split_value
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.layout import is_split
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.solvers.spacetime.validate import validate

from .audit import check

BATCH, WIDTH = 8, 16
WHOLE = (0, WIDTH)


@cache
def net(blocks: int = 2) -> PCG:
    """Blocks x + down(relu(up(x))) after a linear, whose weight the head has too; 8 samples."""
    b = Builder(BATCH)
    x, tied = b.input("x", (BATCH, WIDTH)), b.parameter("tied", (WIDTH, WIDTH))
    h = b.add("linear", x, tied, shape=(BATCH, WIDTH), name="first")
    for i in range(blocks):
        up, down = b.parameter(f"up{i}.weight", (2 * WIDTH, WIDTH)), b.parameter(f"down{i}.weight", (WIDTH, 2 * WIDTH))
        y = b.add("linear", h, up, shape=(BATCH, 2 * WIDTH), name=f"up{i}")
        y = b.add("relu", y, shape=(BATCH, 2 * WIDTH), name=f"relu{i}")
        y = b.add("linear", y, down, shape=(BATCH, WIDTH), name=f"down{i}")
        h = b.add("add", h, y, shape=(BATCH, WIDTH), name=f"add{i}")
    y = b.add("linear", h, tied, shape=(BATCH, WIDTH), name="head")
    return b.build(b.add("mse_loss", y, b.input("t", (BATCH, WIDTH)), shape=(), name="loss", reduction="mean"))


@cache
def chain() -> PCG:
    """loss = Σ second(first(x)), 8 samples of width 16."""
    b = Builder(BATCH)
    h = b.input("x", (BATCH, WIDTH))
    for name in ("first", "second"):
        w = b.parameter(f"{name}.weight", (WIDTH, WIDTH))
        h = b.add("linear", h, w, shape=(BATCH, WIDTH), name=name)
    return b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss"))


@cache
def gpt() -> PCG:
    return with_batch(partita.capture(*load_module("gpt3-1.3b", small=True)), 8)


def built(graph: Graph, machine: Machine | None = None, communication: str = "rvd") -> Materialized:
    """The program of what has been done to a graph, checked."""
    program = materialize(validate(tasks(graph)), machine, communication=communication)
    assert check(program) == ()
    return program


def kinds(program: Materialized, device: int) -> dict[str, int]:
    """How many instructions of each kind, without tasks."""
    found = Counter(i.kind if isinstance(i, Collective) else type(i).__name__ for i in program.devices[device])
    del found["Run"]
    return dict(found)


def of(program: Materialized, device: int, kind: type[Instruction]) -> list[Instruction]:
    return [i for i in program.devices[device] if isinstance(i, kind)]


def collectives(program: Materialized, device: int) -> list[Collective]:
    return [i for i in program.devices[device] if isinstance(i, Collective)]


def spread(ops: Sequence[Op], transformation: Transformation, devices: Sequence[int]) -> None:
    """Transform operators alike, and put their parts on devices."""
    for op in ops:
        for part, device in zip(op_trans(op, transformation), devices, strict=True):
            op_assign(part, device)


def node(graph: Graph, name: str) -> Op:
    return next(op for op in graph.ops if op.of.name == name)


# Plans that many know


@pytest.mark.parametrize("devices", [2, 4])
def test_data_parallel_has_one_all_reduce_for_each_parameter(devices: int) -> None:
    graph = Graph(net())
    spread(graph.forward, split("batch", devices), range(devices))
    spread(graph.optimizer, replicate(devices), range(devices))
    program = built(graph)
    for device in range(devices):
        assert kinds(program, device) == {"all_reduce": 5, "Accumulate": 2, "Add": 2}  # tied: two readers; residuals


def test_micro_batches_are_accumulated_before_they_are_reduced() -> None:
    graph = Graph(chain())
    for op in graph.forward:
        spread(op_trans(op, split("batch", 2, "micro")), split("batch", 2), (0, 1))
    program = built(graph)
    assert kinds(program, 0) == {"Accumulate": 4, "all_reduce": 2}
    for number, instruction in enumerate(program.devices[0]):
        if isinstance(instruction, Accumulate):  # as soon as its backward has run
            before = program.devices[0][number - 1]
            assert isinstance(before, Run) and before.op.phase is Phase.BACKWARD
    firsts = [i.first for i in of(program, 0, Accumulate) if isinstance(i, Accumulate)]
    assert Counter(firsts) == {True: 2, False: 2}


def test_tensor_parallel_layers_have_two_all_reduces_forward_and_two_backward() -> None:
    graph = Graph(gpt())
    layers = {op.of.path.split(".")[1] for op in graph.forward if op.of.path.startswith("layers.")}
    for op in graph.forward:
        number = op.of.path.split(".")[1] if op.of.path.startswith("layers.") else None
        dims = (f"layers.{number}.attention.qkv.weight", 0, 1), (f"layers.{number}.up.weight", 0)
        ways = [split(dim, 2) for dim in dims if number is not None]
        rows = [way.row(graph, op.node) for way in ways]
        cut = [way for way, row in zip(ways, rows, strict=True) if any(map(is_split, (*row.inputs, row.output)))]
        spread([op], cut[0] if cut else replicate(2), (0, 1))
    program = built(graph)
    sums = collectives(program, 0)
    assert {i.kind for i in sums} == {"all_reduce"}
    assert Counter(i.target.tensor.kind for i in sums) == {"value": 2 * len(layers), "gradient": 2 * len(layers)}
    assert not of(program, 0, Send) and not of(program, 0, Join)


def test_data_and_tensor_parallel_groups_are_rows_and_columns() -> None:
    graph = Graph(net(1))
    for op in graph.forward:
        for part, pair in zip(op_trans(op, split("batch", 2)), ((0, 1), (2, 3)), strict=True):
            inside = op.of.name in ("up0", "relu0", "down0")
            spread([part], split(("up0.weight", 0), 2) if inside else replicate(2), pair)
    program = built(graph)
    groups = Counter((i.target.tensor.kind, i.group) for i in collectives(program, 0))
    assert groups == {("value", (0, 1)): 1, ("gradient", (0, 1)): 1, ("gradient", (0, 2)): 3}


def zero(stage: int, devices: int = 2) -> Graph:
    """Samples are split; updates, and from stage 3 on parameters, too."""
    graph = Graph(net())
    spread(graph.forward, split("batch", devices), range(devices))
    if stage < 3:
        spread(graph.optimizer, split(0, devices), range(devices))
    else:
        for op in graph.optimizer:
            place(graph, op.of.name, split(0, devices), range(devices))
    return graph


def test_a_split_update_scatters_gradients_and_gathers_parameters() -> None:
    program = built(zero(1))
    for device in range(2):
        assert kinds(program, device) == {
            "reduce_scatter": 5, "all_gather": 5, "Slice": 5, "Accumulate": 2, "Add": 2
        }  # fmt: skip
    assert {i.target.tensor.kind for i in collectives(program, 0)} == {"gradient", "updated"}


def test_a_split_parameter_is_gathered_for_each_use_and_given_back() -> None:
    program = built(zero(3))
    # 6 linears, of which the first needs no weight on the way back: its input has no gradient
    assert kinds(program, 0) == {"all_gather": 6 + 5, "reduce_scatter": 6, "Accumulate": 2, "Add": 2}
    instructions = program.devices[0]
    for number, instruction in enumerate(instructions):
        if isinstance(instruction, Collective) and instruction.kind == "all_gather":
            tasks_after = [i for i in instructions[number:] if isinstance(i, Run)]
            assert [i for i in tasks_after if instruction.target in i.reads] == tasks_after[
                :1
            ]  # right before its one use


def test_every_micro_batch_fetches_a_parameter_again_and_gives_its_gradient_back() -> None:
    graph = Graph(chain())
    place(graph, "second.weight", split(0, 2), [0, 1])
    for op in graph.forward:
        spread(op_trans(op, split("batch", 2, "micro")), split("batch", 2), (0, 1))
    found = kinds(built(graph), 0)
    assert (found["all_gather"], found["reduce_scatter"], found["all_reduce"]) == (4, 2, 1)


def test_readers_of_a_shared_parameter_fetch_it_once() -> None:
    """The table of a GPT is the matrix of its scores too."""

    def found(shared: bool) -> tuple[int, int]:
        graph = Graph(gpt())
        place(graph, "token_embedding.weight", split(1, 2), [0, 1], shared=shared)
        for op in graph.forward:
            spread([op], split("batch", 2), (0, 1))
        made = kinds(built(graph), 0)
        return made["all_gather"], made["reduce_scatter"]

    assert found(False) == (3, 2) and found(True) == (2, 1)  # once forward, and the scores' again for backward


def pipeline(graph: Graph, micro: int = 4) -> None:
    for op in graph.forward:
        op_assign(op_trans(op, split("batch", micro, "micro")), int(op.of.name not in ("first",)))


def test_stages_send_activations_and_gradients_once_for_each_micro_batch() -> None:
    graph = Graph(chain())
    pipeline(graph)
    program = built(graph)
    for device in (0, 1):
        assert kinds(program, device) == {"Send": 4, "Receive": 4, "Accumulate": 4}
    for device, other in ((0, 1), (1, 0)):
        for at, instruction in enumerate(program.devices[device]):
            if isinstance(instruction, Send):
                before = program.devices[device][at - 1]
                assert isinstance(before, (Run, Accumulate)) and instruction.to == other  # right after what it sends


def test_devices_advance_together() -> None:
    """In a plan without pipeline, parts of one operator are next to each other, forward and backward."""
    completed = validate(tasks(zero(3, 4)))
    order, _ = synchronized(completed)
    for device in range(4):
        assert [op for op in order if op.device == device] == [op for op in completed.order if op.device == device]
    computing = [op for op in order if op.phase in (Phase.FORWARD, Phase.BACKWARD)]
    for at in range(0, len(computing), 4):
        assert len({(op.node, op.phase) for op in computing[at : at + 4]}) == 1


# Parts and shares of tensors


def test_arbitrary_masks_are_split_sent_and_joined() -> None:
    """Figure 8: A1 and A2 write the left and the right half, B1 and B2 read the upper and the lower one."""
    graph = Graph(chain())
    spread([node(graph, "first")], split(("first.weight", 0), 2), (0, 1))
    spread([node(graph, "second"), node(graph, "loss")], split("batch", 2), (2, 3))
    program = built(graph)
    tensor = PTensor(VALUE, node(graph, "first").node)
    found = [
        [i for i in instructions if tensor in {r.tensor for r in (*reads(i), *writes(i))}]
        for instructions in program.devices
    ]
    assert [[type(i).__name__ for i in instructions] for instructions in found] == [
        ["Run", "Slice", "Send", "Slice", "Send"],
        ["Run", "Slice", "Send", "Slice", "Send"],
        ["Receive", "Receive", "Join", "Run"],
        ["Receive", "Receive", "Join", "Run"],
    ]
    joined = found[2][2]
    assert isinstance(joined, Join)
    assert [str(r.mask) for r in joined.sources] == ["[0:4, 0:8]", "[0:4, 8:16]"]
    assert str(joined.target.mask) == "[0:4, 0:16]" and program.shapes[joined.target] == (4, WIDTH)


def test_what_is_split_along_another_dim_is_exchanged() -> None:
    graph = Graph(chain())
    spread([node(graph, "first")], split("batch", 4), range(4))
    spread([node(graph, "second")], split(("second.weight", 1), 4), range(4))
    op_assign(node(graph, "loss"), 0)
    exchanged = [i for i in collectives(built(graph), 0) if i.kind == "all_to_all"]
    assert [(i.target.tensor.kind, i.group, i.atoms) for i in exchanged] == [
        ("value", (0, 1, 2, 3), (0, 1)),
        ("gradient", (0, 1, 2, 3), (1, 0)),
    ]


def test_one_value_for_many_is_broadcast_and_addends_for_one_are_reduced() -> None:
    graph = Graph(chain())
    op_assign(node(graph, "first"), 0)
    spread([node(graph, "second"), node(graph, "loss")], split(("second.weight", 0), 3 - 1), (1, 2))
    program = built(graph)
    assert kinds(program, 1) == {"broadcast": 1, "reduce": 1}
    assert kinds(program, 0) == {"broadcast": 1, "Zeros": 1, "reduce": 1}


def test_a_share_without_addends_is_zeros() -> None:
    """Of a whole value the first reader takes all: R to P."""
    graph = Graph(chain())
    spread([node(graph, "first")], replicate(2), (0, 1))
    spread([node(graph, "second")], split_value("x", 2), (0, 1))
    spread([node(graph, "loss")], replicate(2), (0, 1))
    program = built(graph)
    assert kinds(program, 0) == {"all_reduce": 2} and kinds(program, 1) == {"all_reduce": 2, "Zeros": 1}
    assert [i.target.tensor.kind for i in collectives(program, 0)] == ["value", "gradient"]


def test_parts_that_addends_are_read_of_are_padded_where_they_lie() -> None:
    """S to P; the gradient of a share is whole, and its part sliced (R to S)."""
    graph = Graph(chain())
    spread([node(graph, "first")], split(("first.weight", 0), 2), (0, 1))
    spread([node(graph, "second")], split_value("x", 2), (0, 1))
    spread([node(graph, "loss")], replicate(2), (0, 1))
    program = built(graph)
    assert check(program) == ()
    assert kinds(program, 0) == kinds(program, 1) == {"Pad": 1, "all_reduce": 2, "Slice": 1}
    assert [str(r.mask) for i in of(program, 1, Pad) for r in reads(i)] == ["[0:8, 8:16]"]


def test_replicas_nearest_by_the_machine_are_taken() -> None:
    """Four replicas of a value on two nodes, read on the last device of each, where one has its own."""
    graph = Graph(chain())
    spread([node(graph, "first")], replicate(2), (0, 4))
    spread([node(graph, "second"), node(graph, "loss")], replicate(3), (4, 3, 7))
    program = built(graph, Machine.adhoc((2, 4)), "p2p")
    sent = [
        i for i in program.devices[0] + program.devices[4] if isinstance(i, Send) and i.source.tensor.kind == "value"
    ]
    assert [(i.source.device, i.to) for i in sent] == [(0, 3), (4, 7)]


def test_a_value_that_two_tasks_of_a_device_read_is_sent_once() -> None:
    b = Builder(BATCH)
    x, w = b.input("x", (BATCH, WIDTH)), [b.parameter(f"w{i}", (WIDTH, WIDTH)) for i in range(3)]
    h = b.add("linear", x, w[0], shape=(BATCH, WIDTH), name="h")
    y, z = (b.add("linear", h, v, shape=(BATCH, WIDTH), name=f"y{i}") for i, v in enumerate(w[1:]))
    s = b.add("add", y, z, shape=(BATCH, WIDTH), name="s")
    graph = Graph(b.build(b.add("sum", s, shape=(), dims=(0, 1), keepdim=False, name="loss")))
    op_assign(graph.forward[0], 0)
    op_assign(graph.forward[1:], 1)
    op_trans(graph.forward[1], split(("w1", 1), 2))  # reads halves of what the other reads whole
    op_assign(graph.forward[1:], 1)
    program = built(graph)
    assert kinds(program, 0)["Send"] == 1 and kinds(program, 1)["Receive"] == 1
    assert kinds(program, 1)["Send"] == 1  # the gradient's halves of the one and the whole of the other, added up there


# Collectives and paths

A, B, C, D = (((0, 4), WHOLE), ((4, 8), WHOLE), ((0, 8), (0, 8)), ((0, 8), (8, 16)))
ALL, UNEQUAL = ((0, 8), WHOLE), ((0, 6), WHOLE)


@pytest.mark.parametrize(
    ("sources", "targets", "pattern"),
    [
        ({0: ALL, 1: ALL}, {0: ALL, 1: ALL}, GroupPattern("all_reduce", (0, 1))),
        ({0: ALL, 1: ALL}, {0: A, 1: B}, GroupPattern("reduce_scatter", (0, 1), (0,))),
        ({0: ALL, 1: ALL}, {0: D, 1: C}, GroupPattern("reduce_scatter", (1, 0), (1,))),
        ({0: B, 1: A}, {0: ALL, 1: ALL}, GroupPattern("all_gather", (1, 0), (0,))),
        ({0: A, 1: B}, {0: C, 1: D}, GroupPattern("all_to_all", (0, 1), (0, 1))),
        ({0: A, 1: B}, {0: D, 1: C}, None),  # members in another order
        ({3: ALL}, {0: ALL, 1: ALL, 3: ALL}, GroupPattern("broadcast", (3, 0, 1))),
        ({3: ALL}, {0: ALL}, None),  # a send
        ({0: ALL, 1: ALL, 3: ALL}, {1: ALL}, GroupPattern("reduce", (1, 0, 3))),
        ({0: ALL, 1: ALL, 3: ALL}, {2: ALL}, GroupPattern("reduce", (2, 0, 1, 3))),
        ({0: ALL, 1: ALL}, {1: ALL}, None),  # a send and a sum
        ({0: A, 1: B, 2: B}, {1: ALL}, None),
        ({0: ALL, 1: ALL}, {0: ALL, 2: ALL}, None),  # other devices
        ({0: A, 1: B}, {0: ALL, 1: A}, None),
        ({0: A, 1: ((4, 6), WHOLE)}, {0: UNEQUAL, 1: UNEQUAL}, GroupPattern("all_gather", (0, 1), (0,))),
        ({0: UNEQUAL, 1: UNEQUAL}, {0: A, 1: ((4, 6), WHOLE)}, GroupPattern("reduce_scatter", (0, 1), (0,))),
        ({0: A, 1: ((5, 6), WHOLE)}, {0: UNEQUAL, 1: UNEQUAL}, None),  # a gap
        ({0: ((0, 1), WHOLE), 1: ((1, 100), WHOLE)}, {0: ((0, 100), WHOLE), 1: ((0, 100), WHOLE)}, None),  # too uneven
        ({0: A, 1: D}, {0: ALL, 1: ALL}, None),  # cut along two atoms
    ],
)
def test_patterns(sources: dict[int, object], targets: dict[int, object], pattern: GroupPattern | None) -> None:
    assert match(sources, targets) == pattern  # type: ignore[arg-type]


def stages(first: int, second: int, width: int) -> Graph:
    """A linear on some devices of one node, computed alike, and one on some of another, each part its rows."""
    b = Builder(BATCH)
    h = b.input("x", (BATCH, width))
    for name in ("first", "second"):
        w = b.parameter(f"{name}.weight", (width, width))
        h = b.add("linear", h, w, shape=(BATCH, width), name=name)
    graph = Graph(b.build(b.add("sum", h, shape=(), dims=(0, 1), keepdim=False, name="loss")))
    spread([node(graph, "first")], replicate(first), range(first))
    spread(graph.forward[first:], split(("second.weight", 0), second), range(4, 4 + second))
    return graph


@pytest.mark.parametrize("devices", [(2, 4), (4, 2), (4, 4)])
@pytest.mark.parametrize("communication", ["p2p", "intra", "rvd"])
def test_transfers_between_groups_of_other_sizes(devices: tuple[int, int], communication: str) -> None:
    """The gradient is as many addends as the second group has devices, and the first group wants its sum."""
    program = built(stages(*devices, width=8192), Machine.adhoc((2, 4)), communication)
    everything = [i for instructions in program.devices for i in instructions]
    sent = [i for i in everything if isinstance(i, Send) and i.source.tensor.kind == "gradient"]
    moved = sum(i.source.mask.numel for i in sent if i.source.device // 4 != i.to // 4)
    reduced = {i.kind for i in everything if isinstance(i, Collective) and i.target.tensor.kind == "gradient"}
    if communication != "rvd":
        assert moved == devices[0] * devices[1] * BATCH * 8192 and not reduced
    else:  # summed in its node first
        assert moved <= 2 * BATCH * 8192 and reduced & {"all_reduce", "reduce_scatter"}
    if (devices, communication) == ((4, 4), "rvd"):  # Figure 18 (b)
        assert moved == BATCH * 8192 and reduced == {"reduce_scatter", "all_gather"}


@pytest.mark.parametrize(("many", "zeros"), [(range(4), 0), (range(4, 8), 1), (range(1, 5), 1)])
def test_from_one_device_to_many_and_back(many: range, zeros: int) -> None:
    """The value is broadcast, the addends of its gradient are reduced; a root that has none adds zeros."""
    graph = Graph(chain())
    op_assign(node(graph, "first"), 0)
    spread([node(graph, "second"), node(graph, "loss")], split(("second.weight", 0), 4), many)
    machine = Machine.adhoc((2, 4))
    program, apart = built(graph, machine), built(graph, machine, "p2p")
    group = (0, *(device for device in many if device))
    for device in group:
        found = collectives(program, device)
        assert [(i.kind, i.group, i.target.tensor.kind) for i in found] == [
            ("broadcast", group, "value"),
            ("reduce", group, "gradient"),
        ]
        assert (found[0].source == found[0].target) == (device == 0) == (found[1].source != found[1].target)
    assert kinds(program, 0).get("Zeros", 0) == zeros and not any("Send" in kinds(program, device) for device in group)
    assert predict(program, machine).step_ns <= predict(apart, machine).step_ns


@pytest.mark.parametrize(
    ("dtype", "of_values", "of_weights"),
    [("float64", 8, 8), ("mixed-bfloat16", 2, 4)],
)
def test_paths_are_priced_by_the_dtype_of_the_plan(
    dtype: str, of_values: int, of_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and their gradients have the dtype of the computation, gradients of weights that of the weights."""
    sizes: list[int] = []

    def spy(source: State, target: State, shape: tuple[int, ...], itemsize: int, machine: Machine) -> Path:
        sizes.append(itemsize)
        return search(source, target, shape, itemsize, machine)

    def priced(graph: Graph, dtype: str) -> list[int]:
        sizes.clear()
        materialize(validate(tasks(graph)), Machine.adhoc((2, 4)), dtype=dtype)
        return [*sizes]

    monkeypatch.setattr("partita.formulation.spacetime.transfers.search", spy)
    data = Graph(chain())
    spread(data.forward, split("batch", 4), range(4))
    for graph, item in ((stages(2, 2, width=64), of_values), (data, of_weights)):
        single = priced(graph, "float32")
        assert single and priced(graph, dtype) == [size // 4 * item for size in single]


def test_boxes_of_unequal_sizes_are_no_state() -> None:
    """As many boxes as parts, of which one would be another part: it was an error."""
    region = Region(((0, 2), (0, 3)), (0, 1))
    assert region.state({0: ((1, 2), (0, 2)), 1: ((0, 1), (2, 3))}, {0: 0, 1: 0}) is None
    halves = {0: ((0, 1), (0, 3)), 1: ((1, 2), (0, 3))}
    assert region.state(halves, {0: 0, 1: 0}) == State.natural(RVD(1, 1, (2, 1)), (0, 1))


def test_send_and_receive_alone() -> None:
    program = built(zero(1, 4), communication="p2p")
    found = kinds(program, 0)
    assert found.pop("Send") == found.pop("Receive") == 5 * 3 + 5 * 3
    assert set(found) == {"Slice", "Add", "Accumulate", "Join"}


def test_another_word_is_refused() -> None:
    completed = validate(tasks(zero(1)))
    with pytest.raises(PartitaError, match="'fast' is none of p2p, intra, rvd"):
        materialize(completed, communication="fast")


def test_thousands_of_tasks_take_a_couple_of_seconds() -> None:
    graph = Graph(gpt())
    spread(graph.forward, split("batch", 8), range(8))
    completed = validate(tasks(graph))
    assert len(completed.order) > 2500
    begin = time.process_time()
    program = materialize(completed, Machine.adhoc((2, 4)))
    assert time.process_time() - begin < 5
    assert check(program) == ()


# The check itself


def changed(program: Materialized, kind: type[Instruction], change: Callable[[Instruction], Instruction | None]) -> str:
    """What the check says where the last instruction of a kind on device 0 is another, or none."""
    instructions, steps = list(program.devices[0]), list(program.steps[0])
    at = max(at for at, i in enumerate(instructions) if isinstance(i, kind))
    new = change(instructions[at])
    instructions[at : at + 1] = [new] if new is not None else []
    steps[at : at + 1] = steps[at : at + 1] if new is not None else []
    devices, places = (tuple(instructions), *program.devices[1:]), (tuple(steps), *program.steps[1:])
    (said,) = check(replace(program, devices=devices, steps=places))
    return said


def test_the_check_finds_what_is_wrong() -> None:
    graph = Graph(chain())
    pipeline(graph)
    staged, sharded = built(graph), built(zero(1))
    first = next(i for i in staged.devices[0] if isinstance(i, Accumulate))
    assert "deadlocks" in changed(staged, Send, lambda i: None)
    assert "does not have" in changed(staged, Receive, lambda i: None)
    assert "the addends" in changed(staged, Accumulate, lambda i: None)
    assert "the addends" in changed(staged, Accumulate, lambda i: replace(i, source=first.source))
    assert "not every task runs once" in changed(staged, Run, lambda i: None)
    assert "the members" in changed(sharded, Collective, lambda i: replace(i, group=i.group[::-1]))
    assert "the members" in changed(sharded, Collective, lambda i: replace(i, kind="all_reduce"))
    assert "stands at step" in changed(sharded, Collective, lambda i: replace(i, key=0))


# Any plan


def whatever(pcg: PCG, rng: random.Random) -> Graph:
    """A graph whose operators are split at random, on random devices; half the time alike for all parts of one."""
    graph = Graph(pcg)
    devices, wild = rng.randint(1, 4), rng.random() < 0.5
    names = [pcg.nodes[i].name for i in pcg.of("parameter")]

    def way() -> Transformation:
        dim = (rng.choice(names), rng.randrange(2))
        ways = [split("batch", 2), split(dim, 2), split_value("x", 2), replicate(2), replicate(2, addends=True)]
        return rng.choice(ways)

    def parts(ops: Sequence[Op], chosen: Transformation | None) -> list[Op]:
        found: list[Op] = []
        for op in ops:
            try:
                found += op_trans(op, chosen or way())
            except PartitaError:
                found.append(op)
        return found

    for op in graph.forward:
        ops = [op]
        for _ in range(rng.randrange(3)):
            ops = parts(ops, None if wild else way())
        first = rng.randrange(devices)
        for number, part in enumerate(ops):
            op_assign(part, rng.randrange(devices) if wild else (first + number) % devices)
        if rng.random() < 0.2:
            split_backward(ops)
        if rng.random() < 0.3:
            rng.choice([recompute, swap])(ops)
    updated = []
    for op in graph.optimizer:
        if rng.random() < 0.5:
            chosen = rng.choice([split(0, 2), split(1, 2), replicate(2), split(0, 4)])
            where = [rng.randrange(devices) for _ in range(chosen.parts)]
            for part, device in zip(op_trans(op, chosen), where, strict=True):
                op_assign(part, device)
            place(graph, op.of.name, chosen, where)  # for it is updated where it is kept
            updated.append(op.of.name)
    for name in names:
        if name not in updated and rng.random() < 0.3:
            count = rng.choice([1, 2, 4])
            where = [rng.randrange(devices) for _ in range(count)]
            place(graph, name, split(rng.randrange(2), count) if count > 1 else None, where)
    return graph


MACHINES = (None, Machine.adhoc((4,)), Machine.adhoc((2, 2)))


def test_any_plan_reads_what_it_should() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        graph = whatever(net(1), rng)
        try:
            completed = validate(tasks(graph))
        except PlanConflict:  # replicas of which one was split by value: addends that overlap
            seen["refused"] += 1
            continue
        machine, communication = rng.choice(MACHINES), rng.choice(["p2p", "intra", "rvd", "rvd"])
        program = materialize(completed, machine, communication=communication)
        assert check(program) == (), seed
        for device in range(len(program.devices)):
            seen.update(kinds(program, device))
    assert seen["refused"] < 20
    common = {"Send", "Receive", "Slice", "Join", "Add", "Accumulate", "Zeros"}
    assert common | {"all_reduce", "all_gather", "reduce_scatter", "broadcast"} <= set(seen)


def test_a_plan_has_one_program() -> None:
    completed = validate(tasks(whatever(net(1), random.Random(7))))
    one, other = (materialize(completed, MACHINES[2]) for _ in range(2))
    assert repr((one.devices, one.steps)) == repr((other.devices, other.steps))
