"""Operators and parts of a space-time plan: masks, the chain rule, what every task needs, what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from partita.formulation.pipeline.orders import one_f_one_b
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.mask import Mask, meet, takes, whole
from partita.formulation.spacetime.op import Op
from partita.formulation.spacetime.primitives import (
    op_assign,
    op_join,
    op_order,
    op_trans,
    place,
    recompute,
    split_backward,
    swap,
)
from partita.formulation.spacetime.stages import in_order, stages
from partita.formulation.spacetime.tasks import Tasks, tasks
from partita.formulation.spacetime.transformation import replicate, split, split_value, transformation
from partita.formulation.strategies.row import Row
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, R, S
from partita.model.graph.pcg import PCG


def mlp() -> PCG:
    """loss = Σ (x + down(relu(up(x)))), 8 samples: two linears without bias, and a residual."""
    b = Builder(8)
    x = b.input("x", (8, 4))
    up, down = b.parameter("up.weight", (6, 4)), b.parameter("down.weight", (4, 6))
    h = b.add("linear", x, up, shape=(8, 6), name="up")
    h = b.add("relu", h, shape=(8, 6), name="relu")
    y = b.add("linear", h, down, shape=(8, 4), name="down")
    z = b.add("add", y, x, shape=(8, 4), name="residual")
    return b.build(b.add("sum", z, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def biased() -> PCG:
    """loss = Σ softmax(l(x)) table: a linear with bias, a softmax over its columns, a matmul."""
    b = Builder(4)
    x, w, c = b.input("x", (4, 6)), b.parameter("l.weight", (8, 6)), b.parameter("l.bias", (8,))
    h = b.add("linear", x, w, c, shape=(4, 8), name="l")
    a = b.add("softmax", h, shape=(4, 8), dim=1, name="a")
    table = b.parameter("table", (8, 2))
    y = b.add("matmul", a, table, shape=(4, 2), name="y")
    return b.build(b.add("sum", y, shape=(), dims=(0, 1), keepdim=False, name="loss"))


def named(graph: Graph) -> dict[str, Op]:
    return {op.of.name: op for op in graph.forward}


def needs(found: Tasks) -> list[str]:
    """Needs in words, with their producers, without those of what is kept for backward."""
    assert not found.problems, found.problems
    return [
        f"{need}: {' | '.join(f'{op.name} on {op.device}' for op in need.producers)}"
        for need in found.needs
        if need.tensor.kind != "saved"
    ]


# Masks (Figures 5 to 7)


def test_a_mask_is_cut_along_atoms_and_addends() -> None:
    mask = whole((8, 6)).cut(S(0), 2, 1)
    assert mask == Mask(((4, 8), (0, 6)))
    assert mask.cut(S(0), 2, 0).cut(S(1), 3, 2) == Mask(((4, 6), (4, 6)))
    assert mask.cut(R, 7, 3) == mask == mask.cut(B, 7, 3)
    addend = mask.cut(P, 2, 1).cut(P, 2, 0)
    assert addend.addends == (Fraction(1, 2), Fraction(3, 4)) and addend.box == mask.box
    assert str(addend) == "[4:8, 0:6] addend 3/4" and str(mask) == "[4:8, 0:6]"
    with pytest.raises(ValueError, match="6"):
        mask.cut(S(1), 4, 0)


def test_boxes_meet_where_all_intervals_do() -> None:
    assert meet(((0, 4), (2, 6)), ((2, 8), (0, 3))) == ((2, 4), (2, 3))
    assert meet(((0, 4), (2, 6)), ((4, 8), (0, 6))) is None
    assert meet((), ()) == ()


def test_readers_that_share_out_addends_take_each_once() -> None:
    halves = [(Fraction(0), Fraction(1, 2)), (Fraction(1, 2), Fraction(1))]
    quarters = [(Fraction(k, 4), Fraction(k + 1, 4)) for k in range(4)]
    for readers in (halves, quarters):
        for writers in (halves, quarters, [(Fraction(0), Fraction(1))]):
            assert [sum(takes(r, w) for r in readers) for w in writers] == [1] * len(writers)


@pytest.mark.parametrize(
    ("name", "how", "inputs", "output"),
    [
        ("l", split("batch", 2), [((2, 4), (0, 6)), ((0, 8), (0, 6)), ((0, 8),)], ((2, 4), (0, 8))),
        ("l", split("o", 2), [((0, 4), (0, 6)), ((4, 8), (0, 6)), ((4, 8),)], ((0, 4), (4, 8))),
        ("l", split(1, 4), [((0, 4), (0, 6)), ((2, 4), (0, 6)), ((2, 4),)], ((0, 4), (2, 4))),
        ("l", split("i", 2), [((0, 4), (3, 6)), ((0, 8), (3, 6)), ((0, 8),)], "addend 2/2"),
        ("l", split(("l.weight", 0), 2), [((0, 4), (0, 6)), ((4, 8), (0, 6)), ((4, 8),)], ((0, 4), (4, 8))),
        ("a", split(("l.weight", 0), 2), [((0, 4), (0, 8))], ((0, 4), (0, 8))),
        ("a", split("batch", 4), [((1, 2), (0, 8))], ((1, 2), (0, 8))),
        ("y", split(("table", 0), 2), [((0, 4), (4, 8)), ((4, 8), (0, 2))], "addend 2/2"),
        ("y", split(("table", 1), 2), [((0, 4), (0, 8)), ((0, 8), (1, 2))], ((0, 4), (1, 2))),
        ("y", replicate(2), [((0, 4), (0, 8)), ((0, 8), (0, 2))], ((0, 4), (0, 2))),
        ("loss", split("batch", 2), [((2, 4), (0, 2))], "addend 2/2"),
    ],
)
def test_the_second_part_reads_and_writes(name: str, how: object, inputs: list[object], output: object) -> None:
    graph = Graph(biased())
    part = op_trans(named(graph)[name], how)[1]  # type: ignore[arg-type]
    assert [part.mask(p).box for p in range(len(inputs))] == inputs
    written = part.mask(None)
    assert str(written).endswith(output) if isinstance(output, str) else written == Mask(output), str(written)


def test_parts_are_cut_again() -> None:
    graph = Graph(mlp())
    half = op_trans(named(graph)["up"], split("batch", 2, "micro"))[1]
    quarter = op_trans(half, split("o", 3, "columns"))[2]
    assert quarter.mask(None) == Mask(((4, 8), (4, 6))) and quarter.mask(1) == Mask(((4, 6), (0, 4)))
    assert quarter.name == "up forward (micro 2/2, columns 3/3)"
    assert (quarter.coordinate("micro"), quarter.coordinate("columns"), quarter.coordinate("other")) == (1, 2, 0)
    assert [op.name for op in graph.parts(quarter.node)][:2] == [
        "up forward (micro 1/2)",
        "up forward (micro 2/2, columns 1/3)",
    ]


# The chain rule (section 5)


def test_the_gradient_of_what_all_parts_read_is_shared_out_between_them() -> None:
    graph = Graph(biased())
    by_samples = op_trans(named(graph)["l"], split("batch", 2))[0].backward
    assert by_samples is not None
    read, (weight, bias) = by_samples.reads, by_samples.writes
    assert [str(v.mask) for v in read] == ["[0:2, 0:8]"]
    assert (str(weight.mask), str(bias.mask)) == ("[0:8, 0:6] addend 1/2", "[0:8] addend 1/2")
    assert weight.via == (by_samples.node, 1)
    columns = op_trans(named(graph)["y"], split(("table", 1), 2))[1].backward
    assert columns is not None
    assert [str(v.mask) for v in columns.writes] == ["[0:4, 0:8] addend 2/2", "[0:8, 1:2]"]


def test_the_gradient_of_addends_is_whole() -> None:
    graph = Graph(biased())
    rows = op_trans(named(graph)["y"], split(("table", 0), 2))[1].backward
    assert rows is not None
    assert [str(v.mask) for v in rows.reads] == ["[0:4, 0:2]"]
    assert [str(v.mask) for v in rows.writes] == ["[0:4, 4:8]", "[4:8, 0:2]"]


def test_all_replicas_have_the_whole_gradient_or_an_addend_each() -> None:
    graph = Graph(biased())
    whole_one = op_trans(named(graph)["y"], replicate(2))[1].backward
    addend = op_trans(named(graph)["l"], replicate(2, addends=True))[1].backward
    assert whole_one is not None and addend is not None
    assert [str(v.mask) for v in whole_one.writes] == ["[0:4, 0:8]", "[0:8, 0:2]"]
    assert [str(v.mask) for v in addend.reads] == ["[0:4, 0:8] addend 2/2"]


def test_a_tensor_with_two_readers_gets_an_addend_of_its_gradient_from_each() -> None:
    b = Builder(2)
    x, w = b.input("x", (2, 4)), b.parameter("w", (4, 4))
    h = b.add("linear", x, w, shape=(2, 4), name="h")
    left = b.add("relu", h, shape=(2, 4), name="left")
    both = b.add("add", left, h, shape=(2, 4), name="both")
    graph = Graph(b.build(b.add("sum", both, shape=(), dims=(0, 1), keepdim=False, name="loss")))
    op_assign(graph.forward, 0)
    gradient = [n for n in tasks(graph).needs if n.task.name == "h backward" and n.tensor.kind == "gradient"]
    assert [(n.producers[0].name, n.via) for n in gradient] == [("left backward", (3, 0)), ("both backward", (4, 1))]


def test_what_has_no_gradient_has_no_backward() -> None:
    b = Builder(2)
    x, w = b.input("x", (2, 4)), b.parameter("w", (4, 4))
    mask = b.add("relu", x, shape=(2, 4), name="mask")
    y = b.add("linear", mask, w, shape=(2, 4), name="y")
    graph = Graph(b.build(b.add("sum", y, shape=(), dims=(0, 1), keepdim=False, name="loss")))
    ops = named(graph)
    assert ops["mask"].backward is None and ops["y"].backward is not None
    assert ops["y"].backward is ops["y"].backward, "one object, to which orders refer"
    assert ops["y"].weight is None and ops["y"].recomputed is None


# Needs


def test_needs_of_columns_then_rows() -> None:
    """The two linears of a perceptron on two devices, as Megatron splits them; the rest by both devices."""
    graph = Graph(mlp())
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split(("up.weight", 0), 2, "columns"))):
            op_assign(part, device)
    assert [need for need in needs(tasks(graph)) if "1/2)" in need.split(" needs ")[0]] == [
        "up forward (columns 1/2) needs up.weight[0:3, 0:4]: up.weight store on 0",
        "relu forward (columns 1/2) needs up[0:8, 0:3]: up forward (columns 1/2) on 0",
        "down forward (columns 1/2) needs relu[0:8, 0:3]: relu forward (columns 1/2) on 0",
        "down forward (columns 1/2) needs down.weight[0:4, 0:3]: down.weight store on 0",
        "residual forward (columns 1/2) needs down[0:8, 0:4] addend 1/2: down forward (columns 1/2) on 0",
        "residual forward (columns 1/2) needs down[0:8, 0:4] addend 2/2: down forward (columns 2/2) on 1",
        "loss forward (columns 1/2) needs residual[0:8, 0:4]: "
        "residual forward (columns 1/2) on 0 | residual forward (columns 2/2) on 1",
        "up backward (columns 1/2) needs the gradient of up[0:8, 0:3]: relu backward (columns 1/2) on 0",
        "relu backward (columns 1/2) needs the gradient of relu[0:8, 0:3]: down backward (columns 1/2) on 0",
        "down backward (columns 1/2) needs the gradient of down[0:8, 0:4]: "
        "residual backward (columns 1/2) on 0 | residual backward (columns 2/2) on 1",
        "residual backward (columns 1/2) needs the gradient of residual[0:8, 0:4]: "
        "loss backward (columns 1/2) on 0 | loss backward (columns 2/2) on 1",
    ]


def test_needs_of_micro_batches_on_two_stages() -> None:
    graph = Graph(mlp())
    for op in graph.forward:
        for part in op_trans(op, split("batch", 2, "micro")):
            op_assign(part, int(op.of.name not in ("up", "relu")))
    found = needs(tasks(graph))
    assert "down forward (micro 2/2) needs relu[4:8, 0:6]: relu forward (micro 2/2) on 0" in found
    assert "relu backward (micro 1/2) needs the gradient of relu[0:4, 0:6]: down backward (micro 1/2) on 1" in found
    assert [need for need in found if need.startswith("up.weight")] == [
        "up.weight update needs the gradient of up.weight[0:6, 0:4] addend 1/2: up backward (micro 1/2) on 0",
        "up.weight update needs the gradient of up.weight[0:6, 0:4] addend 2/2: up backward (micro 2/2) on 0",
        "up.weight update needs up.weight[0:6, 0:4]: up.weight store on 0",
        "up.weight keep needs the updated up.weight[0:6, 0:4]: up.weight update on 0",
    ]


def test_a_read_is_put_together_from_parts_that_were_cut_otherwise() -> None:
    """The first linear by columns, the second by samples: a quarter of what is between them from each to each."""
    graph = Graph(mlp())
    for name, op in named(graph).items():
        parts = op_trans(op, split("o", 2, "columns") if name == "up" else split("batch", 2))
        for device, part in enumerate(parts):
            op_assign(part, device)
    found = [need for need in needs(tasks(graph)) if need.startswith("relu forward (batch 2/2)")]
    assert found == [
        "relu forward (batch 2/2) needs up[4:8, 0:3]: up forward (columns 1/2) on 0",
        "relu forward (batch 2/2) needs up[4:8, 3:6]: up forward (columns 2/2) on 1",
    ]


def test_addends_of_parts_that_were_cut_differently_are_put_together() -> None:
    """Of two addends one is computed whole, the other in two halves: every half takes a half of the first."""
    graph = Graph(mlp())
    first, second = op_trans(named(graph)["down"], split("i", 2, "rows"))
    op_trans(second, split("batch", 2))
    op_assign(graph.forward, 0)
    found = [need for need in needs(tasks(graph)) if need.startswith("residual forward")]
    assert found == [
        "residual forward needs down[0:4, 0:4] addend 1/2: down forward (rows 1/2) on 0",
        "residual forward needs down[0:4, 0:4] addend 2/2: down forward (rows 2/2, batch 1/2) on 0",
        "residual forward needs down[4:8, 0:4] addend 1/2: down forward (rows 1/2) on 0",
        "residual forward needs down[4:8, 0:4] addend 2/2: down forward (rows 2/2, batch 2/2) on 0",
    ]
    assert first.mask(None).partial


def test_backward_reads_a_parameter_again_that_its_device_does_not_keep() -> None:
    graph = Graph(mlp())
    op_assign(graph.forward, 0)
    place(graph, "down.weight", split(0, 2, "shard"), [0, 1])
    found = needs(tasks(graph))
    for phase in ("forward", "backward"):
        assert [need for need in found if need.startswith(f"down {phase} needs down.weight")] == [
            f"down {phase} needs down.weight[0:2, 0:6]: down.weight store (shard 1/2) on 0",
            f"down {phase} needs down.weight[2:4, 0:6]: down.weight store (shard 2/2) on 1",
        ]
    assert not any(need.startswith("up backward needs up.weight") for need in found)


def test_recomputation_reads_what_is_recomputed_with_it() -> None:
    graph = Graph(mlp())
    op_assign(graph.forward, 0)
    ops = named(graph)
    recompute([ops["relu"], ops["down"]])
    found = needs(tasks(graph))
    assert "relu recompute needs up[0:8, 0:6]: up forward on 0" in found
    assert "down recompute needs the recomputed relu[0:8, 0:6]: relu recompute on 0" in found
    assert "down forward needs relu[0:8, 0:6]: relu forward on 0" in found


def test_what_follows_from_a_forward_operator_comes_after_it() -> None:
    graph = Graph(mlp())
    op_assign(graph.forward, 0)
    ops = named(graph)
    split_backward(ops["up"])
    swap(ops["relu"])
    recompute(ops["down"])
    saved = {n.task.name: n.producers[0].name for n in tasks(graph).needs if n.tensor.kind == "saved"}
    assert saved == {
        "up backward": "up forward",
        "up weight gradient": "up backward",
        "relu offload": "relu forward",
        "relu reload": "relu offload",
        "relu backward": "relu reload",
        "down backward": "down recompute",
        "residual backward": "residual forward",
        "loss backward": "loss forward",
    }


def test_a_split_backward_writes_the_gradients_of_parameters_apart() -> None:
    graph = Graph(mlp())
    down = named(graph)["down"]
    split_backward(down)
    assert down.backward is not None and down.weight is not None
    pcg = graph.pcg
    assert [pcg.nodes[v.tensor.node].name for v in down.backward.writes] == ["relu"]
    assert [pcg.nodes[v.tensor.node].name for v in down.weight.writes] == ["down.weight"]


def test_parameters_are_kept_and_updated_with_their_readers_or_where_the_plan_places_them() -> None:
    graph = Graph(mlp())
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split("batch", 2))):
            op_assign(part, device)
    place(graph, "up.weight", split(0, 2), [1, 0])
    found = [
        (op.of.name, op.phase.value, op.device, str(op.mask(None)))
        for op in tasks(graph).ops
        if op.phase.value in ("store", "update", "keep")
    ]
    assert [f for f in found if f[1] == "store"] == [
        ("up.weight", "store", 1, "[0:3, 0:4]"),
        ("up.weight", "store", 0, "[3:6, 0:4]"),
        ("down.weight", "store", 0, "[0:4, 0:6]"),
        ("down.weight", "store", 1, "[0:4, 0:6]"),
    ]
    for phase in ("update", "keep"):
        assert sorted((n, d, m) for n, p, d, m in found if p == phase) == sorted(
            (n, d, m) for n, p, d, m in found if p == "store"
        )


# What is refused


def test_problems_are_told_in_the_users_names() -> None:
    graph = Graph(mlp())
    up, _, *rest = graph.forward
    op_assign([up, *rest], 0)
    assert tasks(graph).problems == ("relu forward is not assigned to a device",)


def test_overlapping_addends() -> None:
    graph = Graph(mlp())
    first, _ = op_trans(named(graph)["down"], replicate(2, label="copy"))
    op_trans(first, split_value("x", 2))
    op_assign(graph.forward, 0)
    said = (
        ': op_trans(first, split_value("x", 2)): residual forward needs down[0:8, 0:4], of which down forward (copy '
        "1/2, addends of x 1/2) and down forward (copy 2/2) write the same addends: cut replicas alike"
    )
    assert any(problem.endswith(said) for problem in tasks(graph).problems)


def test_replicas_that_share_out_addends_in_other_ways() -> None:
    """Half of the samples' gradient is not half of every sample's, though both are called the first of two addends."""
    graph = Graph(mlp())
    first, second = op_trans(named(graph)["down"], replicate(2, label="copy"))
    op_trans(first, split("batch", 2))
    op_trans(second, replicate(2, addends=True))
    op_assign(graph.forward, 0)
    (problem,) = (text for text in tasks(graph).problems if ": down.weight" in text)
    assert problem.endswith(
        "of which down backward (copy 1/2, batch 1/2) and down backward (copy 2/2, replica 1/2) have different "
        "addends: cut replicas alike"
    )


def test_updated_where_it_is_not_kept() -> None:
    graph = Graph(mlp())
    op_assign(graph.forward, 0)
    op_assign(graph.optimizer, 1)
    problem = tasks(graph).problems[0]
    assert problem.endswith(
        ": op_assign(graph.optimizer, 1): up.weight update is on device 1, which does not keep its [0:6, 0:4]: place "
        "it there (partita.place)"
    )


def test_a_tensor_of_which_a_part_is_not_made() -> None:
    graph = Graph(mlp())
    ops = named(graph)
    halves = op_trans(ops["relu"], split("batch", 2))
    op_assign(graph.forward, 0)
    recompute([halves[0], ops["down"]])
    (problem,) = tasks(graph).problems
    assert problem.endswith(
        ': recompute([halves[0], ops["down"]]): down recompute needs the recomputed relu[4:8, 0:6], which no operator '
        "writes: recompute every part of relu that it reads, or no part of it in the group of down"
    )


def test_orders_hold_for_the_parts_of_an_operator() -> None:
    graph = Graph(mlp())
    ops = named(graph)
    op_assign(graph.forward, 0)
    backward = ops["up"].backward
    op_order(ops["loss"].backward, backward)
    parts = op_trans(ops["up"], replicate(2))
    op_assign(parts, 0)
    (order,) = tasks(graph).orders
    assert order.first == (ops["loss"].backward,)
    assert order.second == tuple(part.backward for part in parts)
    (copied,) = tasks(graph.copy()).orders
    assert [op.name for op in copied.second] == [op.name for op in order.second]
    with pytest.raises(PartitaError, match="up backward was transformed: order its parts"):
        op_order(ops["loss"], backward)


def test_parts_are_joined_and_cut_in_another_way() -> None:
    graph = Graph(mlp())
    ops = named(graph)
    micros = op_trans(ops["up"], split("batch", 2, "micro"))
    columns = [part for micro in micros for part in op_trans(micro, split("o", 2))]
    split_backward(columns)
    op_order(columns[:2], columns[2:])
    joined = op_join(columns[2:])
    assert joined.name == "up forward (micro 2/2)" and joined.device is None and joined.split
    assert graph.find("up") == (*columns[:2], joined)
    samples = op_trans(joined, split("batch", 4))
    assert graph.find("up") == (*columns[:2], *samples)
    op_assign(graph.forward, 0)
    (order,) = tasks(graph).orders
    assert order.first == tuple(columns[:2]) and order.second == tuple(samples)
    whole = op_join(graph.find("up"))
    assert whole.name == "up forward" and graph.find("up") == (whole,)


def test_updates_are_joined_too() -> None:
    graph = Graph(mlp())
    (update, _) = graph.optimizer
    joined = op_join(op_trans(update, replicate(2)))
    assert graph.optimizer[0] is joined and joined.name == update.name


def test_a_recomputed_operator_is_joined() -> None:
    graph = Graph(mlp())
    ops = named(graph)
    halves = op_trans(ops["up"], split("batch", 2))
    recompute([*halves, ops["relu"]])
    assert op_join(halves).group == ops["relu"].group == 1
    others = op_trans(ops["down"], split("batch", 2))
    for half in others:
        recompute(half)
    joined = op_join(others)
    assert joined.group == len(graph.groups) and [op for op in graph.forward if op.group == joined.group] == [joined]


def test_a_selective_group_stays_so() -> None:
    graph = Graph(mlp())
    halves = op_trans(named(graph)["up"], split("batch", 2))
    recompute(halves, selective=True)
    assert all(op.is_kept for op in halves) and op_join(halves).is_kept
    quarters = op_trans(named(graph)["up"], split("batch", 4))
    assert all(op.is_kept for op in quarters)
    for number, quarter in enumerate(quarters):
        recompute(quarter, selective=number > 0)
    with pytest.raises(PartitaError, match="only some parts of up are recomputed selectively"):
        op_join(quarters)


def test_parts_that_are_recomputed_in_part_are_not_joined() -> None:
    graph = Graph(mlp())
    halves = op_trans(named(graph)["up"], split("batch", 2))
    with pytest.raises(PartitaError, match=r"one part: give op_join all parts"):
        op_join(halves[:1])
    recompute(halves[0])
    with pytest.raises(PartitaError, match=r"recompute\(\) was called for some parts of up only"):
        op_join(halves)


def test_orders_are_forgotten() -> None:
    graph = Graph(mlp())
    op_order(graph.forward[0], graph.forward[1])
    graph.clear_orders()
    assert not graph.orders and not graph.schedules


def test_what_cannot_be_joined() -> None:
    graph = Graph(mlp())
    ops = named(graph)
    up, down = op_trans(ops["up"], split("batch", 2)), op_trans(ops["down"], split("batch", 4))
    with pytest.raises(PartitaError, match="there are none"):
        op_join([])
    with pytest.raises(PartitaError, match=r"batch 1/2\) and down forward \(batch 1/4\) are not parts of one operator"):
        op_join([up[0], down[0]])
    with pytest.raises(PartitaError, match=r"of the same operator: down forward \(batch 3/4\) is missing"):
        op_join(down[:2])
    backward = up[0].backward
    assert backward is not None
    with pytest.raises(PartitaError, match="follows from its forward operator"):
        op_join([backward])
    op_join(up)
    with pytest.raises(PartitaError, match=r"up forward \(batch 1/2\) was replaced before"):
        op_join(up)


def test_sizes_that_do_not_divide() -> None:
    """Parts have ⌈n/p⌉ entries but the last, in operands, results and their gradients; parts of parts as well."""
    graph = Graph(mlp())
    ops = named(graph)
    parts = op_trans(ops["up"], split("batch", 3))
    assert [part.mask(None).box for part in parts] == [((0, 3), (0, 6)), ((3, 6), (0, 6)), ((6, 8), (0, 6))]
    assert all(part.mask(0).box[0] == part.mask(None, gradient=True).box[0] for part in parts)
    first, second = op_trans(parts[0], split("batch", 2))
    assert (first.mask(0).box[0], second.mask(0).box[0]) == ((0, 2), (2, 3))
    assert not first.even and all(part.even for part in op_trans(ops["relu"], split("batch", 4)))
    assert not any(part.even for part in op_trans(ops["down"], split("batch", 3)))


def test_sizes_that_do_not_divide_alike() -> None:
    class Unlike:
        """Splits 8 samples of the operand and 6 columns of the result."""

        parts, label = 3, "unlike"

        def row(self, graph: Graph, node: int) -> Row:
            return Row((S(0), R), S(1))

    graph = Graph(mlp())
    with pytest.raises(PartitaError, match="up forward has 6 and 8 entries there, which 3 parts do not divide alike"):
        op_trans(named(graph)["up"], Unlike())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (split("batch", 5), "batch: up forward has 8 entries there, too few for 5 parts: of 2 each, the last would be"),
        (split("o", 4), "o: up forward has 6 entries there, too few for 4 parts: of 2 each, the last would be empty"),
        (split("q", 2), "linear 'up' has no dimension 'q': it has batch, o, i"),
        (split(2, 2), "linear 'up' has no dimension 2: it has batch, o, i"),
        (split(("nothing", 0), 2), "no tensor 'nothing' in the graph"),
        (split(("up.weight", 2), 2), r"'up.weight' of shape \(6, 4\) has no dim 2 to split"),
        (split(("up.weight", 0, 1), 2), "dim 0 of 'up.weight' has the factors"),
        (split_value("y", 2), "linear 'up' has no operand 'y'; it has x, w"),
        (transformation(["whole"], 0, 2), "linear 'up' has 2 operands, not 1"),
        (transformation([2, "whole"], 0, 2), r"2 is no cut of 'x', of shape \(8, 4\)"),
        (transformation([1, 0], "addends", 2), "own of linear 'up' is not accepted: no prover is available"),
    ],
)
def test_transformations_that_do_not_fit(how: object, said: str) -> None:
    graph = Graph(mlp())
    up = named(graph)["up"]
    with pytest.raises(PartitaError, match=said):
        op_trans(up, how)  # type: ignore[arg-type]
    assert graph.parts(up.node) == (up,), "an operator that is refused its parts stays"


def test_a_value_split_of_what_is_not_linear() -> None:
    with pytest.raises(PartitaError, match="relu 'relu' is not linear in 'x' alone"):
        op_trans(named(Graph(mlp()))["relu"], split_value("x", 2))


@pytest.mark.parametrize("parts", [0, -1, 2.0, True])
def test_a_number_of_parts_is_positive(parts: object) -> None:
    with pytest.raises(PartitaError, match="must be a positive integer"):
        split("batch", parts)  # type: ignore[arg-type]


def test_operators_that_are_no_more_are_not_named() -> None:
    graph = Graph(mlp())
    up = named(graph)["up"]
    part = op_trans(up, replicate(2))[0]
    for call in (lambda: op_trans(up, replicate(2)), lambda: op_assign(up, 0), lambda: recompute(up)):
        with pytest.raises(PartitaError, match="up forward was transformed"):
            call()
    assert part.backward is not None
    with pytest.raises(PartitaError, match="runs where its forward operator does"):
        op_assign(part.backward, 0)
    with pytest.raises(PartitaError, match="follows from its forward operator"):
        op_trans(part.backward, replicate(2))
    for device in (-1, 1.0, True):
        with pytest.raises(PartitaError, match="a device is a rank from 0 on"):
            op_assign(part, device)  # type: ignore[arg-type]


@pytest.mark.parametrize("ops", ["up", 1, ["up"], [0]])
def test_only_operators_are_ordered_and_assigned(ops: Any) -> None:
    up = named(Graph(mlp()))["up"]
    for call in (lambda: op_order(up, ops), lambda: op_assign(ops, 0), lambda: recompute(ops)):
        with pytest.raises(PartitaError, match="expected an operator of the graph, or several"):
            call()
    with pytest.raises(PartitaError, match="op_trans transforms one operator"):
        op_trans(ops, replicate(2))
    with pytest.raises(PartitaError, match="up forward is transformed by split"):
        op_trans(up, ops)


def test_what_an_operator_lacks_has_no_order_and_other_graphs_none_either() -> None:
    graph = Graph(mlp())
    up = named(graph)["up"]
    op_order(up.weight, up.backward)
    assert graph.orders == []
    with pytest.raises(PartitaError, match="belong to different graphs"):
        op_order(up, named(Graph(mlp()))["down"])


@pytest.mark.parametrize("dim", [None, [], 1.5, True, ("w",), ("w", "0"), (0, "w"), ("w", 0, 1, 2), "", "o:x"])
def test_what_names_no_dimension(dim: Any) -> None:
    with pytest.raises(PartitaError, match="is no dimension: it is 'batch'"):
        split(dim, 2)


def test_a_schedule_has_the_stages_and_micro_batches_of_the_plan() -> None:
    graph = Graph(mlp())
    for op in graph.forward:
        for part in op_trans(op, split("batch", 2, "micro")):
            op_assign(part, 0)
    parts = stages(graph, 2)
    for orders, label, said in (
        (one_f_one_b(3, 2), "micro", "has stages 0 to 2, the plan 2"),
        (one_f_one_b(2, 3), "micro", "has micro-batch 2 of stage 0, the plan does not"),
        (one_f_one_b(2, 2), "other", r"made the micro-batches \(now 'other'\)"),
        (one_f_one_b(2, 1), "micro", "lacks micro-batch 1 of stage 0"),
    ):
        with pytest.raises(PartitaError, match=said):
            in_order(orders, parts, label)
    assert graph.orders == []
    in_order(one_f_one_b(2, 2), parts)
    assert graph.orders


def test_what_is_computed_again_is_not_swapped() -> None:
    ops = named(Graph(mlp()))
    recompute(ops["up"])
    swap(ops["relu"])
    with pytest.raises(PartitaError, match="up forward is recomputed: it saves no tensors that could be swapped"):
        swap(ops["up"])
    with pytest.raises(PartitaError, match="relu forward is swapped: its saved tensors are on the host"):
        recompute(ops["relu"])


def test_states_are_swapped_of_updates_and_of_all_their_parts() -> None:
    graph = Graph(mlp())
    update, other = graph.optimizer[:2]
    swap(update)
    assert all(part.swapped == 1 for part in op_trans(update, replicate(2)))
    assert op_join(graph.parts(update.node)).swapped == 1 and other.swapped is None
    with pytest.raises(PartitaError, match="up backward cannot be swapped: only forward operators and updates are"):
        swap(named(graph)["up"].backward)
    with pytest.raises(PartitaError, match="weight update cannot be recomputed: only forward operators are"):
        recompute(other)


def test_places_that_do_not_fit() -> None:
    graph = Graph(mlp())
    with pytest.raises(PartitaError, match="no parameter 'up' in the graph"):
        place(graph, "up", None, [0])
    with pytest.raises(PartitaError, match="a device is a rank from 0 on, not -1"):
        place(graph, "up.weight", split(0, 2), [0, -1])
    with pytest.raises(PartitaError, match=r"'up\.weight' has 2 parts and 3 devices"):
        place(graph, "up.weight", split(0, 2), [0, 1, 2])


def test_a_weight_that_is_placed_twice_is_moved() -> None:
    graph = Graph(mlp())
    place(graph, "up.weight", split(0, 2), [0, 1], shared=True, retained=True)
    place(graph, "down.weight", None, [2], shared=True)
    place(graph, "up.weight", None, [3])
    assert [(store.of.name, store.device) for store in graph.stores] == [("down.weight", 2), ("up.weight", 3)]
    assert graph.shared == {graph.stores[0].node} and not graph.retained
