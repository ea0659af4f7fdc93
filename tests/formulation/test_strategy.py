"""Rows follow from index notation: the tables of the papers come out, and every row is right numerically."""

import numpy as np
import pytest

from partita.formulation.strategies.row import Row
from partita.formulation.strategies.strategy import rows
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, R, S
from partita.model.graph.pcg import PCG


def linear(trainable: bool = True) -> PCG:
    b = Builder(4)
    x = b.parameter("x", (4, 8), trainable=trainable)
    y = b.add("linear", x, b.parameter("w", (6, 8)), b.parameter("bias", (6,)), shape=(4, 6))
    return b.build(b.add("projection", y, shape=()))


def pairs(pcg: PCG, op: str) -> set[tuple[tuple[int, ...], int]]:
    (index,) = pcg.of(op)
    return {(row.inputs, row.output) for row in rows(pcg, index) if not row.special}


def test_linear_has_the_rows_of_data_column_and_row_parallelism() -> None:
    batch, inner = S(0), S(1)
    assert pairs(linear(), "linear") == {
        ((R, R, R), R),
        ((B, B, B), B),
        ((P, B, P), P),  # linear in x
        ((B, P, P), P),  # linear in w
        ((batch, B, B), S(0)),  # data
        ((B, S(0), S(0)), S(1)),  # columns: the bias is split too
        ((inner, inner, P), P),  # rows: the bias joins as one addend
    }


def test_inputs_without_gradient_have_no_b() -> None:
    assert all(row.inputs[0] != B for row in rows(linear(trainable=False), linear(False).of("linear")[0]))


def test_softmax_is_whole_along_its_dim_and_takes_no_addends() -> None:
    b = Builder(4)
    x = b.parameter("x", (4, 8))
    g = b.build(b.add("projection", b.add("softmax", x, shape=(4, 8), dim=1), shape=()))
    assert pairs(g, "softmax") == {((R,), R), ((B,), B), ((S(0),), S(0))}


def test_embedding_split_by_rows_gives_addends() -> None:
    b = Builder(4)
    y = b.add("embedding", b.parameter("w", (10, 8)), b.input("ids", (4,), "int64"), shape=(4, 8))
    g = b.build(b.add("projection", y, shape=()))
    assert ((S(0), R), P) in pairs(g, "embedding")
    assert ((S(1), R), S(1)) in pairs(g, "embedding")
    assert ((B, S(0)), S(0)) in pairs(g, "embedding")


def test_a_sum_needs_all_addends() -> None:
    b = Builder(4)
    y = b.add("add", b.parameter("a", (4, 8)), b.parameter("b", (4, 8)), shape=(4, 8))
    g = b.build(b.add("projection", y, shape=()))
    found = pairs(g, "add")
    assert ((P, P), P) in found
    assert ((P, B), P) not in found and ((B, P), P) not in found


def test_a_product_takes_addends_in_one_factor() -> None:
    b = Builder(4)
    y = b.add("mul", b.parameter("a", (4, 8)), b.parameter("b", (4, 8)), shape=(4, 8))
    g = b.build(b.add("projection", y, shape=()))
    found = pairs(g, "mul")
    assert {((P, B), P), ((B, P), P)} <= found and ((P, P), P) not in found


def test_a_broadcast_operand_is_whole_where_it_has_no_dim() -> None:
    b = Builder(4)
    y = b.add("add", b.parameter("a", (4, 8)), b.parameter("b", (8,)), shape=(4, 8))
    g = b.build(b.add("projection", y, shape=()))
    assert ((S(0), B), S(0)) in pairs(g, "add")
    assert ((S(1), S(0)), S(1)) in pairs(g, "add")


def test_attention_splits_batch_heads_queries_and_value_width() -> None:
    b = Builder(4)
    q, k, v = (b.parameter(n, (4, 2, 6, 8)) for n in "qkv")
    g = b.build(
        b.add("projection", b.add("attention", q, k, v, shape=(4, 2, 6, 8), causal=False, scale=None), shape=())
    )
    found = pairs(g, "attention")
    assert ((S(1), S(1), S(1)), S(1)) in found  # heads
    assert ((S(2), B, B), S(2)) in found  # queries
    assert ((B, B, S(3)), S(3)) in found  # value width
    assert ((B, B, P), P) in found  # linear in v alone
    assert not any(row[0][1] == S(2) for row in found)  # keys stay whole: they pass a softmax


def test_views_carry_atoms() -> None:
    """A fused qkv of 3 x heads x width is split by heads in its weight, as a strided cut."""
    b = Builder(4)
    x, w = b.parameter("x", (4, 8)), b.parameter("w", (24, 8))
    y = b.add("view", b.add("linear", x, w, shape=(4, 24)), shape=(4, 3, 2, 4))
    q = b.add("slice", y, shape=(4, 1, 2, 4), dim=1, start=0, stop=1, step=1)
    g = b.build(b.add("projection", q, shape=()))
    assert ((B, S(1)), S(2)) in pairs(g, "linear")
    assert Row((S(2),), S(2), ("2", 0)) in rows(g, g.of("view")[0])
    assert not any(row[0] == (S(1),) for row in pairs(g, "slice"))  # the sliced dim stays whole


def test_a_view_that_does_not_match_is_not_split_there() -> None:
    b = Builder(6)
    x = b.parameter("x", (6, 10))
    first = b.add("view", b.add("relu", x, shape=(6, 10)), shape=(4, 15))
    g = b.build(b.add("projection", first, shape=()))
    assert pairs(g, "view") == {((R,), R), ((B,), B), ((P,), P)}


OPERATORS = {
    "linear": lambda x, w, bias: x @ w.T + bias,
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "relu": lambda x: np.maximum(x, 0),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
}
SHAPES = {
    "linear": ((4, 8), (6, 8), (6,)),
    "mul": ((4, 8), (4, 8)),
    "add": ((4, 8), (8,)),
    "relu": ((4, 8),),
    "softmax": ((4, 8),),
}


@pytest.mark.parametrize("op", OPERATORS)
def test_every_row_computes_the_value(op: str) -> None:
    """Cut the inputs as a row asks, compute on every rank, put together what it offers: the value."""
    generator = np.random.default_rng(0)
    values = [generator.normal(size=s) for s in SHAPES[op]]
    whole = OPERATORS[op](*values)
    b = Builder(4)
    inputs = [b.parameter(f"x{i}", s) for i, s in enumerate(SHAPES[op])]
    attributes = {"dim": 1} if op == "softmax" else {}
    g = b.build(b.add("projection", b.add(op, *inputs, shape=whole.shape, **attributes), shape=()))
    for row in (row for row in rows(g, g.of(op)[0]) if not row.special):
        parts = []
        for rank in range(2):
            mine = [cut(v, letter, rank, generator) for v, letter in zip(values, row.inputs, strict=True)]
            parts.append(OPERATORS[op](*mine))
        joined = {R: parts[0], B: parts[0], P: parts[0] + parts[1]}.get(row.output)
        if joined is None:
            joined = np.concatenate(parts, row.output - 3)
        np.testing.assert_allclose(joined, whole, atol=1e-12, err_msg=str(row))


def cut(value: np.ndarray, letter: int, rank: int, generator: np.random.Generator) -> np.ndarray:
    if letter == P:  # addends that are not simply zero
        share = np.full_like(value, 0.25)
        return value * (share if rank else 1 - share)
    return value if letter in (R, B) else np.split(value, 2, letter - 3)[rank]
