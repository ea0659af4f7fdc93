"""Every move between two layouts keeps value and gradient, in programs that make one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.formulation.placement.placement import Placement
from partita.formulation.strategies.strategy import rows
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, Layout, R, atom_of, is_split, layouts, splittable
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine

from ..levels import some

Judge = Callable[..., dict[str, Any]]
LENGTH = 36  # moves in one program


def chain(length: int, shape: tuple[int, ...]) -> PCG:
    """A trainable tensor, negated again and again; between two negations it is converted."""
    b = Builder(shape[0])
    x = b.add("mul", b.input("x", shape), b.parameter("scale", shape), shape=shape)
    for _ in range(length):
        x = b.add("neg", x, shape=shape)
    y = b.add("mul", x, b.parameter("after", shape), shape=shape)
    return b.build(b.add("projection", y, shape=(), site=0))


def walked(walk: Sequence[Layout], sizes: tuple[int, ...], shape: tuple[int, ...]) -> Plan:
    """The chain, in the layouts of `walk` one after another; everything else is whole."""
    graph, axes = chain(len(walk), shape), len(sizes)
    whole: Layout = (B,) * axes
    made, turn = [], iter(walk)
    for node in graph.nodes:
        if node.op == "input":
            made.append(Choice((), (R,) * axes))
        elif node.op == "parameter":
            made.append(Choice((), whole))
        elif node.op == "neg":
            layout = next(turn)
            made.append(Choice((layout,), layout))
        else:
            made.append(Choice(tuple(whole if graph.nodes[i].gradient else (R,) * axes for i in node.inputs), whole))
    machine = Machine.adhoc(sizes)
    placement = Placement(sizes, tuple(tuple(n if i == k else 1 for k in range(axes)) for i, n in enumerate(sizes)))
    return Plan(graph, machine, placement, 1, tuple(made), "float64", "sgd")


def every_pair(items: Sequence[Layout]) -> list[Layout]:
    """A closed walk through all ordered pairs of different items: 0 1 0 2 0 3 ... 1 2 1 3 ..."""
    walk = []
    for i, a in enumerate(items):
        for b in items[i + 1 :]:
            walk += [a, b]
    return [*walk, items[-1], items[0]]


def legal(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[Layout]:
    """The layouts that leave no rank empty."""

    def fits(layout: Layout) -> bool:
        split = {x for x in layout if is_split(x)}
        return all(
            splittable(shape[atom_of(x)], tuple(n for y, n in zip(layout, sizes, strict=True) if y == x)) for x in split
        )

    return [layout for layout in layouts(len(sizes), len(shape)) if fits(layout)]


@pytest.mark.parametrize(
    ("sizes", "shape"),
    some(
        [
            ((2,), (4, 6)),
            ((2,), (5, 3)),
            ((3,), (6, 3)),
            ((3,), (7, 5)),
            ((4,), (7, 10)),  # parts of 2, 2, 2, 1 and of 3, 3, 3, 1
            ((2, 2), (4, 8)),
            ((2, 2), (5, 7)),
            ((2, 3), (6, 12)),
            ((2, 3), (11, 8)),
            ((3, 2), (8, 10)),
        ]
    ),
    ids=str,
)
def test_every_pair_of_layouts(judge: Judge, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    walk = every_pair(legal(sizes, shape))
    found = legal(sizes, shape)
    assert set(pairwise(walk)) >= {(a, b) for a in found for b in found if a != b}
    for start in range(0, len(walk) - 1, LENGTH):
        judge(walked(walk[start : start + LENGTH + 1], sizes, shape), steps=1)


def test_three_axes_on_one_dim(judge: Judge) -> None:
    """Stacks of up to three splits, some of them uneven."""
    sizes, shape = (2, 2, 2), (12, 9)
    found = legal(sizes, shape)
    walk = [x for k, a in enumerate(found) for x in (a, found[(k * 37 + 11) % len(found)])]
    assert sum(len({x for x in layout if is_split(x)}) == 1 and all(map(is_split, layout)) for layout in found) == 2
    for start in range(0, len(walk) - 1, LENGTH):
        judge(walked(walk[start : start + LENGTH + 1], sizes, shape), steps=1)


def test_every_letter_is_a_row_of_the_negation() -> None:
    graph = chain(1, (4, 6))
    assert {row.inputs[0] for row in rows(graph, graph.of("neg")[0])} == {x for (x,) in layouts(1, 2)}
