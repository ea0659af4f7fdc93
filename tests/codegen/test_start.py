"""`--start`: partial plans are completed; what they decide stays, and what the planner cannot express is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import partita
from partita import (
    evenly,
    in_order,
    micro_batches,
    one_f_one_b,
    op_assign,
    op_trans,
    place,
    recompute,
    replicate,
    split,
)
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.partial_plan import Openness
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.start import started
from partita.formulation.search_space import SearchSpace, Start
from partita.formulation.spacetime.graph import Graph
from partita.formulation.strategies.strategy import row_names, rows, rows_taken
from partita.model.errors import PartitaError
from partita.model.graph.layout import is_split
from partita.model.graph.segments import segments
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo import zoo
from partita.solvers.budget import Budget

from ..conftest import Run
from ..levels import exhaustive, some
from .pipelines import captured

TRAINING = Training(8, optimizer="adamw", dropout="counters")
SERIAL = Budget(workers=1)
COLUMNS, ROWS = ("layers.*.up.weight", 0), ("layers.*.down.weight", 1)


def planned(model: str = "gpt3-1.3b", hierarchy: tuple[int, ...] = (4,), **space: Any) -> Plan:
    return plan_graph(captured(model, 8), Machine.adhoc(hierarchy), TRAINING, SearchSpace(**space), SERIAL)


def completed(
    start: object, *loosen: str, model: str = "gpt3-1.3b", hierarchy: tuple[int, ...] = (4,), **more: Any
) -> Plan:
    return planned(model, hierarchy, start=Start(start, loosen), **more)


def by_name(plan: Plan) -> dict[str, tuple[Choice, ...]]:
    found: dict[str, tuple[Choice, ...]] = {}
    for part in plan.stages:
        for node, choice in zip(part.graph.nodes, part.choices, strict=True):
            found[node.name] = (*found.get(node.name, ()), choice)
    return found


def names_of_rows(plan: Plan, operator: str) -> tuple[str, ...]:
    part = next(p for p in plan.stages if any(n.name == operator for n in p.graph.nodes))
    index = next(i for i, n in enumerate(part.graph.nodes) if n.name == operator)
    names = dict(zip(rows(part.graph, index), row_names(part.graph, index), strict=True))
    choice = part.choices[index]
    return tuple(names[row] for row in rows_taken(part.graph, index, choice.inputs, choice.output) if row is not None)


# Round trips

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("data parallel", {"mesh": (4,), "stages": 1, "micro_batches": 2}),
    ("two axes, recomputed", {"mesh": (2, 2), "stages": 1, "micro_batches": 1, "recompute": "full"}),
    (
        "tensor parallel",
        {"mesh": (4,), "stages": 1, "micro_batches": 1, "fix": (("*.up", "column"), ("*.down", "row"))},
    ),
    ("1F1B", {"mesh": (2,), "stages": 2, "micro_batches": 4, "schedule": "1f1b"}),
    ("GPipe, recomputed", {"mesh": (1,), "stages": 4, "micro_batches": 4, "schedule": "gpipe", "recompute": "full"}),
    ("interleaved", {"mesh": (2,), "stages": 2, "chunks": 2, "micro_batches": 4, "schedule": "interleaved"}),
    ("zero-bubble", {"mesh": (2,), "stages": 2, "micro_batches": 4, "schedule": "zero-bubble", "recompute": "none"}),
    ("selective", {"mesh": (4,), "stages": 1, "micro_batches": 1, "recompute": "selective"}),
]


@cache
def original(model: str, number: int) -> Plan | str:
    try:
        return planned(model, **OPTIONS[number][1])
    except PartitaError as error:  # the model cannot be planned so: too few layers, no such operators
        return str(error)


def check_round_trip(model: str, number: int, *, converted: bool) -> None:
    """A plan with one layer loosened is no worse than before, and the same outside of the layer."""
    plan = original(model, number)
    if isinstance(plan, str):
        pytest.skip(plan[:80])
    try:
        start = plan.space_time_graph() if converted else plan
    except PartitaError as error:
        pytest.skip(str(error)[:80])
    layers = [segment.name for segment in segments(plan.graph)]
    layer = layers[len(layers) // 2] if layers else plan.graph.nodes[plan.graph.of("parameter")[0]].name
    made = completed(start, layer, model=model)
    before, after = by_name(plan), by_name(made)
    assert made.report["objective_ns"] <= plan.report["objective_ns"]
    assert made.report["bound_ns"] <= made.report["objective_ns"]
    assert (made.bounds, made.schedule, made.placement, made.micro_batches) == (
        plan.bounds, plan.schedule, plan.placement, plan.micro_batches,
    )  # fmt: skip
    loosened = {name for name in before if name == layer or name.startswith(f"{layer}.")}
    loosened |= {n.name for n in plan.graph.nodes if any(plan.graph.nodes[i].name in loosened for i in n.inputs)}
    assert loosened
    for name in before.keys() - loosened:
        for one, other in zip(before[name], after[name], strict=True):
            if not (name.endswith((" received", " sent")) or one == other):
                assert converted
                assert [*map(is_split, one.output)] == [*map(is_split, other.output)], name
                assert one.sharded_states == other.sharded_states, name
    for segment, mode in {**plan.recompute, **made.recompute}.items():
        if segment != layer:
            assert plan.recompute.get(segment) == made.recompute.get(segment) == mode


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("number", some(range(len(OPTIONS)), every=3))
def test_a_loosened_layer_is_planned_again(number: int, converted: bool) -> None:
    check_round_trip("gpt3-1.3b", number, converted=converted)


@exhaustive
@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("model", sorted(zoo()))
def test_a_loosened_part_of_any_twin(model: str, number: int) -> None:
    for converted in (False, True):
        check_round_trip(model, number, converted=converted)


# Hand-written plans


def graph() -> Graph:
    return partita.graph(captured("gpt3-1.3b", 8), batch=8)


def assigned(made: Graph, how: Any, devices: range = range(4)) -> Graph:
    for op in made.forward:
        for part, device in zip(op_trans(op, how), devices, strict=True):
            op_assign(part, device)
    return made


def test_operators_that_are_cut_are_fixed_and_the_rest_is_planned() -> None:
    made = graph()
    for op in made.find("layers.*.up"):
        for samples in op_trans(op, split("batch", 2, "data")):
            op_trans(samples, split(COLUMNS, 2, "tensor"))
    for op in made.find("layers.*.down"):
        op_trans(op, split(ROWS, 2, "tensor"))  # the other axis is open
    plan = completed(made, stages=1)
    assert plan.placement.sizes == (2, 2)
    assert names_of_rows(plan, "layers.2.up") == ("b.1", "o")
    assert names_of_rows(plan, "layers.2.down")[1] == "i"
    assert plan.report["space"]["fixed"] == ["mesh 2x2", "the strategies of 8 nodes"]
    assert plan.report["bound_ns"] <= plan.report["objective_ns"]


def test_where_operators_are_says_where_the_mesh_lies() -> None:
    made = assigned(graph(), split("batch", 4))
    other = graph()
    for op in other.forward:
        for part, device in zip(op_trans(op, split("batch", 4)), (0, 2, 1, 3), strict=True):
            op_assign(part, device)
    with pytest.raises(
        PartitaError, match=r"test_start.py:\d+: op_trans.*--start: 'token_embedding' is on devices 0 2 1 3"
    ):
        completed(other)
    space = started(SearchSpace(start=Start(made)), captured("gpt3-1.3b", 8), Machine.adhoc((2, 2)), TRAINING)
    assert space.decided.placement is not None
    assert space.decided.placement.matrix == ((2, 2),)
    assert {mode for _, mode in space.decided.layers} == {"none"}
    assert not any(stored.sharded or stored.offloaded for stored in space.decided.stored.values())


def test_states_in_shards_and_stored_shards_are_kept() -> None:
    zero1, zero3 = (assigned(graph(), split("batch", 4)) for _ in range(2))
    zero2 = graph()
    for op in zero2.forward:
        for micro in op_trans(op, micro_batches(2)):
            for part, device in zip(op_trans(micro, split("batch", 4)), range(4), strict=True):
                op_assign(part, device)
    for op in (*zero1.optimizer, *zero2.optimizer):
        for part, device in zip(op_trans(op, evenly(op, 4)), range(4), strict=True):
            op_assign(part, device)
    for each in (zero1, zero2):  # for a single micro-batch it makes no difference
        partita.shard_gradients(each.optimizer)
    for op in zero3.optimizer:
        place(zero3, op.of.name, evenly(op, 4), range(4))
    first, second, third = (by_name(completed(each)) for each in (zero1, zero2, zero3))
    weights = [n.name for n in zero1.pcg.nodes if n.op == "parameter"]
    assert all(choice.sharded_states for name in weights for choice in (*first[name], *second[name]))
    assert all(choice.sharded_gradients for name in weights if name.endswith("up.weight") for choice in second[name])
    assert all(is_split(choice.output[0]) for name in weights for choice in third[name])


def test_states_on_the_host_stay_there() -> None:
    """Of weights that are large enough for the planner; an option that keeps them from there is refused."""
    made = assigned(graph(), split("batch", 4))
    partita.swap(op for op in made.optimizer if op.of.name != "layers.1.up.weight")
    found = by_name(completed(made))
    assert [found[f"layers.{layer}.up.weight"][0].offloaded for layer in range(2)] == [True, False]
    with pytest.raises(PartitaError, match="--no-offload, but the --start plan has the states of 'token_embedding"):
        completed(made, offload=False)


def test_an_optimizer_without_states_has_none_on_the_host() -> None:
    partita.swap((made := assigned(graph(), split("batch", 4))).optimizer)
    training = replace(TRAINING, optimizer="sgd")
    found = plan_graph(made.pcg, Machine.adhoc((4,)), training, SearchSpace(start=Start(made)), SERIAL)
    assert not any(choice.offloaded for choice in found.choices)


def test_a_stage_begins_between_operators_that_are_assigned() -> None:
    made = graph()
    for op in made.forward:
        op_trans(op, micro_batches(4))
    for name, device in (("layers.0.*", 0), ("layers.3.*", 1)):
        op_assign(made.find(name)[:1], device)
    space = started(SearchSpace(start=Start(made)), captured("gpt3-1.3b", 8), Machine.adhoc((2,)), TRAINING)
    assert (space.stages, space.micro_batches, space.decided.cuts) == (2, 4, ((2, 4),))
    plan = completed(made, hierarchy=(2,))
    assert 2 <= plan.bounds[1] <= 4


def test_the_order_of_stages_is_a_schedule() -> None:
    for orders, name in ((one_f_one_b(4, 4), "1f1b"), (partita.gpipe(4, 4), "gpipe")):
        made = graph()
        for op in made.forward:
            op_trans(op, split("batch", 4, "micro"))
        parts = [[op for op in made.forward if op.of.name.startswith(f"layers.{stage}.")] for stage in range(4)]
        for device, ops in enumerate(parts):
            op_assign(ops, device)
        in_order(orders, parts)
        space = started(SearchSpace(start=Start(made)), captured("gpt3-1.3b", 8), Machine.adhoc((4,)), TRAINING)
        assert space.schedule == name


# What the planner cannot express


def fewer_devices(made: Graph) -> None:
    for op in made.forward:
        count = 2 if op.of.name == "norm" else 4
        for part, device in zip(op_trans(op, split("batch", count)), range(count), strict=True):
            op_assign(part, device)


def no_mesh(made: Graph) -> None:
    op_trans(made.find("layers.0.up")[0], split(COLUMNS, 2))


def no_axes(made: Graph) -> None:
    op_trans(made.find("layers.0.up")[0], split(COLUMNS, 4))
    op_trans(made.find("layers.0.down")[0], split(ROWS, 2, "other"))


def several_parts(made: Graph) -> None:
    for op in assigned(made, split("batch", 4)).find("layers.0.up"):
        for part in op_trans(op, split(COLUMNS, 2, "shard")):
            op_assign(part, op.device or 0)


def half_a_layer(made: Graph) -> None:
    recompute(assigned(made, split("batch", 4)).find("layers.0.up"))


def swapped(made: Graph) -> None:
    partita.swap(assigned(made, split("batch", 4)).find("layers.0.up"))


def some_states(made: Graph) -> None:
    (update,) = (op for op in assigned(made, split("batch", 4)).optimizer if op.of.name == "norm.weight")
    for device, part in enumerate(op_trans(update, replicate(4))):
        op_assign(part, device)
        partita.swap(part if device else None)


def states_of_open_operators(made: Graph) -> None:
    partita.swap(made.optimizer)


def odd_order(made: Graph) -> None:
    assigned(made, split("batch", 4))
    partita.op_order(made.find("layers.1.up")[0].backward, made.find("layers.2.up")[0].backward)


def other_states(made: Graph) -> None:
    for op in assigned(made, split("batch", 4)).optimizer:
        for part, device in zip(op_trans(op, evenly(op, 4)), (3, 2, 1, 0), strict=True):
            op_assign(part, device)


def unassigned_parts(made: Graph) -> None:
    op_assign(op_trans(made.find("norm")[0], replicate(4))[0], 0)


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        (fewer_devices, "'norm' is on 2 devices, 'token_embedding' on 4"),
        (no_mesh, "'layers.0.up' is cut into 2, of 4 devices"),
        (no_axes, "the label 'other' of 2 names no axis of the mesh 4"),
        (several_parts, "device 0 has several parts of 'layers.0.up'"),
        (half_a_layer, "of layer 'layers.0' operators are recomputed, and 'layers.0.attention_norm' is not"),
        (swapped, "'layers.0.up' is swapped, as no layer of the planner's is"),
        (some_states, "the states of some parts of 'norm.weight' are on the host"),
        (states_of_open_operators, "has states on the host, and not all that reads it has a device"),
        (odd_order, "the order of the operators is no schedule of the planner's with 1 stage"),
        (other_states, "is updated on device 3, where the planner has another part"),
        (unassigned_parts, "has no device, and other parts of 'norm' have"),
    ],
)
def test_what_the_planner_cannot_express_is_refused(refuse: Callable[[Graph], None], words: str) -> None:
    made = graph()
    refuse(made)
    with pytest.raises(PartitaError) as error:
        completed(made)
    assert words in str(error.value)
    assert str(error.value).startswith("test_start.py:")


@pytest.mark.parametrize(("whole", "words"), [(True, "its updates are whole"), (False, "in shards, and not all that")])
def test_gradients_in_shards_that_the_planner_would_not_keep_are_refused(whole: bool, words: str) -> None:
    made = graph()
    for op in made.forward if whole else ():
        for micro in op_trans(op, micro_batches(2)):
            for part, device in zip(op_trans(micro, split("batch", 4)), range(4), strict=True):
                op_assign(part, device)
    partita.shard_gradients(made.optimizer)
    with pytest.raises(PartitaError, match=f"--start: .*'token_embedding.weight' .*{words}"):
        completed(made)


def test_what_is_loosened_is_not_read() -> None:
    for refused in (several_parts, half_a_layer, swapped, no_mesh):
        refused(made := graph())
        space = SearchSpace(start=Start(made, ("layers.0",)))
        found = started(space, captured("gpt3-1.3b", 8), Machine.adhoc((4,)), TRAINING)
        assert "layers.0.up" not in found.fixed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": (2, 2)}, "--mesh 2x2, but the --start plan decides mesh 4"),
        ({"micro_batches": 2}, "--micro-batches 2, but the --start plan decides 1 micro-batch: leave"),
        ({"stages": 2, "mesh": (2,)}, "the --start plan decides"),
        ({"fix": (("norm", "R"),)}, "--fix norm=R, but the --start plan decides"),
        ({"fix": (("layers.*.up", "column"),)}, "--fix layers.0.up=.*, but the --start plan decides"),
        ({"recompute": "full"}, "--recompute full, but the --start plan decides recomputation none for layers.0"),
    ],
)
def test_an_option_that_says_otherwise_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        completed(assigned(graph(), split("batch", 4)), **options)


def test_an_axis_that_an_option_leaves_open_is_decided_by_the_plan() -> None:
    made = assigned(graph(), split("batch", 4))
    assert by_name(completed(made, fix=(("layers.1.up", "*"),))) == by_name(completed(made))


def test_a_loosened_operator_opens_its_recomputed_layer() -> None:
    made = assigned(graph(), split("batch", 4))
    for part in range(4):
        recompute([made.parts(node)[part] for node in Openness(made.pcg).layers(made.pcg)["layers.0"]])
    find = partial(started, graph=captured("gpt3-1.3b", 8), machine=Machine.adhoc((4,)), training=TRAINING)
    assert find(SearchSpace(start=Start(made))).decided.recomputed["layers.0"] == "full"
    opened = find(SearchSpace(start=Start(made, "layers.0.up")))
    assert "layers.0" not in opened.decided.recomputed


@pytest.mark.parametrize(
    ("model", "hierarchy", "words"),
    [
        ("bert-large", (1,), "the plan has '.*', which the model does not"),
        ("gpt3-1.3b", (2, 2), "the plan is for a machine of levels 1, this one has 2x2"),
    ],
)
def test_a_plan_of_another_model_or_machine_is_refused(model: str, hierarchy: tuple[int, ...], words: str) -> None:
    made = planned("gpt3-1.3b", (1,))
    with pytest.raises(PartitaError, match=words):
        planned(model, hierarchy, start=Start(made))


def test_names_to_loosen_are_text() -> None:
    assert Start(None, "layers.1,norm").loosen == ("layers.1", "norm")
    with pytest.raises(PartitaError, match="--loosen 1: names"):
        Start(None, [1])  # type: ignore[list-item]


# Files


def test_a_file_is_completed(tmp_path: Path, partita: Run) -> None:
    """The command keeps what a hand-written file decides; from a saved plan, all but what is loosened."""
    file, saved = tmp_path / "partial.py", tmp_path / "plan"
    file.write_text(
        "from partita import op_trans, split\n\n\ndef plan(graph, devices):\n"
        "    for op in graph.find('layers.*.up'):\n"
        "        op_trans(op, split(('layers.*.up.weight', 0), len(devices)))\n"
    )
    common = ["gpt3-1.3b", "--small", "--hierarchy", "2", "--batch", "4", "--cache", "none", "--workers", "1"]
    code, out, err = partita("plan", *common, "--pp", "1", "--start", file, "-o", saved)
    assert code == 0, err
    assert "among plans with mesh 2 and the strategies of 4 nodes" in " ".join(out.split())
    code, out, err = partita("plan", *common, "--start", saved, "--loosen", "layers.1,layers.2.up")
    assert code == 0, err
    assert "the storage of" in out
    assert Plan.load(saved).verify()["ok"]
    code, out, err = partita("plan", *common, "--start", saved, "--loosen", "layer.1")
    assert code == 2
    assert "--loosen layer.1: no operator or module has this name" in err
