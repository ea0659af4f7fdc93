"""Every strategy of every operator, forced: the program computes, forward and backward, what the operator says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.emission.spmd.micro_batches import divided
from partita.formulation.strategies.row import Row
from partita.formulation.strategies.strategy import rows
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.dtypes import FLOATS
from partita.model.graph.pcg import PCG
from partita.model.operators.loss import LOSSES
from partita.model.operators.operator import operators

from ..levels import some
from .cases import CASES, FAMILIES
from .cases.build import BATCH, Build, leaf

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Any]


def around(build: Build) -> tuple[PCG, int]:
    """A graph with this node in it, trained through it where it has a gradient, and the node."""
    b = Builder(BATCH)
    index = build(b)
    node = b.nodes[index]
    y, shape = index, node.shape
    if node.dtype == "bool":
        y = b.add("where", y, leaf(b, *shape), leaf(b, *shape), shape=shape)
    elif node.dtype not in FLOATS:
        y = b.add("to", y, shape=shape, dtype="float32")
    if node.shape or node.op not in LOSSES:
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
        divided([graph], 2)
        with_batch(graph, 2 * graph.batch)
    except PartitaError:
        return (1,)
    return (1, 2)


def test_every_operator_has_a_case() -> None:
    assert set(CASES) == {entry.name for entry in operators() if not entry.transfer}
    assert len(CASES) == sum(map(len, FAMILIES))


@pytest.mark.parametrize("op", some(sorted(CASES), 4))
def test_every_row(op: str, judge: Judge, force: Force) -> None:
    """Each row alone on an axis of 2 or of 3 (where only the batch divides evenly), then rows mixed on two axes."""
    rng = random.Random(f"{op}, each row")
    done = set()
    for build in CASES[op]:
        graph, index = around(build)
        counts = micro_batches(graph)
        found = rows(graph, index)
        for number in range(len(found)):
            for size in (2, 3) if number % 2 else (3, 2):
                try:
                    optimizer = rng.choice(("sgd", "adamw"))
                    plan = force(graph, (size,), rng, {index: (number,)}, rng.choice(counts), optimizer)
                except ValueError as error:
                    assert "leave a rank empty" in str(error)
                    continue
                judge(plan)
                done.add((id(build), number))
                break
        for sizes in ((2, 2), (3, 2)):
            judge(force(graph, sizes, rng, None, rng.choice(counts), "adam"))
        missing = [kinds(found[n]) for n in range(len(found)) if (id(build), n) not in done]
        assert not missing, f"{op}: rows {missing} were not run"
