"""Every strategy of every operator, forced: the program computes, forward and backward, what the operator says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.program.micro import divided
from partita.formulation.strategy import Row, rows
from partita.model.operator import operators
from partita.model.pcg import FLOATS, PCG, Builder, with_batch

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Any]
BATCH = 6


def leaf(b: Builder, *shape: int) -> int:
    """A tensor that depends on samples (dim 0) and through which a gradient flows."""
    x = b.input(b.name("x"), shape)
    return b.add("mul", x, b.parameter(b.name("scale"), shape[1:]), shape=shape)


def weight(b: Builder, *shape: int) -> int:
    return b.parameter(b.name("w"), shape)


def unary(op: str, positive: bool = False, **attributes: Any) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        x = leaf(b, BATCH, 5, 4)
        if positive:  # away from zero, where some functions are not defined
            x = b.add("shift", b.add("mul", x, x, shape=(BATCH, 5, 4)), shape=(BATCH, 5, 4), value=0.5)
        return b.add(op, x, shape=(BATCH, 5, 4), **attributes)

    return build


def binary(op: str, **attributes: Any) -> Callable[[Builder], int]:
    """The second operand lacks a dim, and has one that is broadcast."""

    def build(b: Builder) -> int:
        return b.add(op, leaf(b, BATCH, 5, 4), weight(b, 5, 1), shape=(BATCH, 5, 4), **attributes)

    return build


def both(op: str, **attributes: Any) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        a, c = leaf(b, BATCH, 5), leaf(b, BATCH, 5)
        if op in ("div", "power"):
            a, c = (b.add("shift", b.add("mul", x, x, shape=(BATCH, 5)), shape=(BATCH, 5), value=0.5) for x in (a, c))
        return b.add(op, a, c, shape=(BATCH, 5), **attributes)

    return build


def linear(bias: bool) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        operands = (leaf(b, BATCH, 5, 4), weight(b, 7, 4), *([weight(b, 7)] if bias else []))
        return b.add("linear", *operands, shape=(BATCH, 5, 7))

    return build


def norm(op: str, operands: tuple[str, ...]) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        given = [leaf(b, BATCH, 5, 4), *(weight(b, 4) for _ in operands[1:])]
        return b.add(op, *given, shape=(BATCH, 5, 4), normalized=1, eps=1e-5, operands=operands)

    return build


def attention(causal: bool, mask: bool = False) -> Callable[[Builder], int]:
    """Two heads of 5 positions; `mask` is learned, and added to the scores."""

    def build(b: Builder) -> int:
        shape = (BATCH, 2, 5, 4)
        given = [leaf(b, *shape) for _ in "qkv"] + ([weight(b, 5, 5)] if mask else [])
        return b.add("attention", *given, shape=shape, causal=causal, scale=None)

    return build


def matmul(a: tuple[int, ...], c: tuple[int, ...], y: tuple[int, ...]) -> Callable[[Builder], int]:
    return lambda b: b.add("matmul", leaf(b, *a), weight(b, *c), shape=y)


def einsum(equation: str, a: tuple[int, ...], c: tuple[int, ...], y: tuple[int, ...]) -> Callable[[Builder], int]:
    return lambda b: b.add("einsum", leaf(b, *a), weight(b, *c), shape=y, equation=equation)


def reduced(op: str, dims: tuple[int, ...], keepdim: bool) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        shape = (BATCH, 5, 4)
        kept = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
        counted: dict[str, Any] = {}
        if op == "mean":
            counted["count"] = 1
            for d in dims:
                counted["count"] *= shape[d]
        return b.add(op, leaf(b, *shape), shape=kept, dims=dims, keepdim=keepdim, **counted)

    return build


def view(before: tuple[int, ...], after: tuple[int, ...]) -> Callable[[Builder], int]:
    return lambda b: b.add("view", leaf(b, *before), shape=after)


def embedding(b: Builder) -> int:
    ids = b.add("input", name="ids", shape=(BATCH, 5), dtype="int64", batch_dim=0, high=9)
    return b.add("embedding", weight(b, 9, 4), ids, shape=(BATCH, 5, 4))


def cross_entropy(reduction: str, weighted: bool = False, deep: bool = False) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        rest = (3,) if deep else ()
        x = leaf(b, BATCH, 5, *rest)
        t = b.add("input", name="labels", shape=(BATCH, *rest), dtype="int64", batch_dim=0, high=5)
        extra = []
        if weighted:
            extra.append(b.parameter("class_weights", (5,), trainable=False))
        return b.add("cross_entropy", x, t, *extra, shape=(), reduction=reduction, ignore_index=-100)

    return build


def where(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    c = b.add("compare", x, shape=(BATCH, 5), dtype="bool", relation="gt", value=0.1)
    return b.add("where", c, x, weight(b, 5), shape=(BATCH, 5))


def condition(op: str) -> Callable[[Builder], int]:
    """Operators without gradient decide between two operands."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5)
        x = leaf(b, *shape)
        if op == "relate":
            return b.add("relate", x, leaf(b, *shape), shape=shape, dtype="bool", relation="lt")
        c = b.add("compare", x, shape=shape, dtype="bool", relation="le", value=0.0)
        return c if op == "compare" else b.add("logical_not", c, shape=shape)

    return build


def table(op: str, diagonal: int = 0) -> Callable[[Builder], int]:
    return lambda b: b.add(op, leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 4), diagonal=diagonal)


def created(op: str, shape: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Callable[[Builder], int]:
    return lambda b: b.add(op, shape=shape, dtype=dtype, **attributes)


def opaque(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    call = (("", ("@", 0)), ("", 1))
    return b.add("opaque", x, shape=(BATCH, 5), target="aten.logcumsumexp.default", arguments=call, output=None)


def detach(b: Builder) -> int:
    return b.add("detach", leaf(b, BATCH, 5), shape=(BATCH, 5), gradient=False)


CASES: dict[str, tuple[Callable[[Builder], int], ...]] = {
    **{op: (unary(op),) for op in ("relu", "silu", "tanh", "sigmoid", "softplus", "exp")},
    **{op: (unary(op),) for op in ("sin", "cos", "erf", "abs", "neg", "contiguous")},
    **{op: (unary(op, positive=True),) for op in ("log", "sqrt", "rsqrt", "reciprocal")},
    "gelu": (unary("gelu", approximate="none"), unary("gelu", approximate="tanh")),
    "leaky_relu": (unary("leaky_relu", slope=0.1),),
    "elu": (unary("elu", alpha=0.7),),
    "pow": (unary("pow", exponent=3), unary("pow", positive=True, exponent=-0.5)),
    "clamp": (unary("clamp", min=-0.3, max=0.4),),
    "shift": (unary("shift", value=0.3),),
    "scale": (unary("scale", value=0.25), unary("scale", value=-3)),
    "to": (unary("to", dtype="float64"),),
    "dropout": (unary("dropout", p=0.3, site=0),),
    "add": (binary("add"), both("add")),
    "sub": (binary("sub"), both("sub")),
    "mul": (binary("mul"), both("mul")),
    "div": (both("div"),),
    "maximum": (binary("maximum"), both("maximum")),
    "minimum": (binary("minimum"),),
    "power": (both("power"),),
    "where": (where,),
    "compare": (condition("compare"),),
    "relate": (condition("relate"),),
    "logical_not": (condition("logical_not"),),
    "linear": (linear(bias=True), linear(bias=False)),
    "matmul": (
        matmul((BATCH, 5, 4), (4, 7), (BATCH, 5, 7)),
        matmul((BATCH, 2, 5, 4), (2, 4, 3), (BATCH, 2, 5, 3)),
        matmul((BATCH, 5, 4), (4,), (BATCH, 5)),
    ),
    "einsum": (
        einsum("bik,kj->bji", (BATCH, 5, 4), (4, 7), (BATCH, 7, 5)),
        einsum("bhd,hde->be", (BATCH, 3, 4), (3, 4, 5), (BATCH, 5)),
        einsum("bi,j->bij", (BATCH, 5), (4,), (BATCH, 5, 4)),
    ),
    "attention": (attention(causal=False), attention(causal=True), attention(causal=False, mask=True)),
    "layer_norm": (
        norm("layer_norm", ("x", "w", "bias")),
        norm("layer_norm", ("x", "bias")),
        norm("layer_norm", ("x",)),
    ),
    "rms_norm": (norm("rms_norm", ("x", "w")), norm("rms_norm", ("x",))),
    "softmax": (unary("softmax", dim=1), unary("softmax", dim=2)),
    "log_softmax": (unary("log_softmax", dim=2),),
    "cumsum": (unary("cumsum", dim=1),),
    "sum": (reduced("sum", (1,), False), reduced("sum", (0, 2), True), reduced("sum", (0, 1, 2), False)),
    "mean": (reduced("mean", (2,), True), reduced("mean", (0, 1), False), reduced("mean", (1, 2), False)),
    "amax": (reduced("amax", (1,), False), reduced("amax", (2,), True)),
    "view": (
        view((BATCH, 5, 4), (BATCH, 20)),
        view((BATCH, 12), (BATCH, 3, 4)),
        view((BATCH, 4, 6), (BATCH * 4, 6)),
        view((BATCH, 6, 10), (BATCH, 4, 15)),
        view((BATCH, 1, 5), (BATCH, 5)),
    ),
    "permute": (
        lambda b: b.add("permute", leaf(b, BATCH, 5, 4), shape=(4, BATCH, 5), dims=(2, 0, 1)),
        lambda b: b.add("permute", leaf(b, BATCH, 5, 4), shape=(BATCH, 4, 5), dims=(0, 2, 1)),
    ),
    "expand": (
        lambda b: b.add("expand", leaf(b, BATCH, 1, 4), shape=(BATCH, 5, 4)),
        lambda b: b.add("expand", weight(b, 5, 1), shape=(3, 5, 4)),
    ),
    "slice": (
        lambda b: b.add("slice", leaf(b, BATCH, 7, 4), shape=(BATCH, 3, 4), dim=1, start=1, stop=7, step=2),
        lambda b: b.add("slice", leaf(b, BATCH, 7), shape=(3, 7), dim=0, start=3, stop=6, step=1),
    ),
    "cat": (
        lambda b: b.add("cat", leaf(b, BATCH, 5), leaf(b, BATCH, 4), leaf(b, BATCH, 3), shape=(BATCH, 12), dim=1),
        lambda b: b.add("cat", leaf(b, BATCH, 5), weight(b, 3, 5), shape=(BATCH + 3, 5), dim=0),
    ),
    "embedding": (embedding,),
    "tril": (table("tril"), table("tril", diagonal=-1)),
    "triu": (table("triu", diagonal=1),),
    "full": (created("full", (5, 4), value=0.5), created("full", (), value=2.5)),
    "arange": (
        created("arange", (5,), start=2, stop=12, step=2),
        created("arange", (4,), "int64", start=0, stop=4, step=1),
    ),
    "constant": (created("constant", (2, 2), values=(0.1, 0.2, 0.3, 0.5)),),
    "detach": (detach,),
    "opaque": (opaque,),
    "cross_entropy": (
        cross_entropy("mean"),
        cross_entropy("sum"),
        cross_entropy("mean", weighted=True),
        cross_entropy("mean", deep=True),
    ),
    "mse_loss": (
        lambda b: b.add("mse_loss", leaf(b, BATCH, 5), leaf(b, BATCH, 5), shape=(), reduction="mean"),
        lambda b: b.add("mse_loss", leaf(b, BATCH, 5), b.input("t", (BATCH, 5)), shape=(), reduction="sum"),
    ),
    "projection": (lambda b: b.add("projection", leaf(b, BATCH, 5, 4), shape=(), site=3),),
}


def around(build: Callable[[Builder], int]) -> tuple[PCG, int]:
    """A graph with this node in it, trained through it where it has a gradient, and the node."""
    b = Builder(BATCH)
    index = build(b)
    node = b.nodes[index]
    y, shape = index, node.shape
    if node.dtype == "bool":
        y = b.add("where", y, leaf(b, *shape), leaf(b, *shape), shape=shape)
    elif node.dtype not in FLOATS:
        y = b.add("to", y, shape=shape, dtype="float32")
    if node.shape or node.op not in ("cross_entropy", "mse_loss", "projection"):
        y = b.add("mul", y, b.parameter("after", shape), shape=shape)
        y = b.add("projection", y, shape=(), site=0)
    if not b.nodes[index].gradient:  # something else to train
        y = b.add("add", y, b.add("projection", leaf(b, BATCH, 3), shape=(), site=1), shape=())
    return b.build(y), index


def kinds(row: Row) -> tuple[str, str]:
    """How a row is called in the coverage: its letters, without the atoms."""
    return "".join("RBPS"[min(x, 3)] for x in row.inputs), "RBPS"[min(row.output, 3)]


def micro_batches(graph: PCG) -> tuple[int, ...]:
    """1, and 2 where the graph can be cut."""
    try:
        divided(graph, 2)
        with_batch(graph, 2 * graph.batch)
    except PartitaError:
        return (1,)
    return (1, 2)


def test_every_operator_has_a_case() -> None:
    assert set(CASES) == {entry.name for entry in operators()}


@pytest.mark.parametrize("op", sorted(CASES))
def test_every_row(op: str, judge: Judge, force: Force) -> None:
    """Each row alone on an axis of 2 and of 3 (where only the batch divides evenly), then rows mixed on two axes."""
    rng = random.Random(op)
    done = set()
    for build in CASES[op]:
        graph, index = around(build)
        counts = micro_batches(graph)
        found = rows(graph, index)
        for number in range(len(found)):
            for size in (2, 3):
                try:
                    optimizer = rng.choice(("sgd", "adamw"))
                    plan = force(graph, (size,), rng, {index: (number,)}, rng.choice(counts), optimizer)
                except ValueError as error:
                    assert "leave a rank empty" in str(error)
                    continue
                judge(plan)
                done.add((id(build), number))
        for sizes in ((2, 2), (2, 3), (3, 2)):
            judge(force(graph, sizes, rng, None, rng.choice(counts), "adam"))
        missing = [kinds(found[n]) for n in range(len(found)) if (id(build), n) not in done]
        assert not missing, f"{op}: rows {missing} were not run"
