"""Halo rows: where windows can be split along space, what ranks then send, and when such rows are offered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partita.formulation.placement.placement import placements
from partita.formulation.special import Part, special_strategy
from partita.formulation.special.halo import Exchange, Reach, exchange
from partita.formulation.strategies.operator_options import operator_options
from partita.formulation.strategies.strategy import row_names, rows
from partita.formulation.strategies.transitions import Transitions
from partita.model.capture.capture import capture
from partita.model.graph.layout import Action
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.machine.precision import precision
from partita.model.machine.roofline import Roofline


def graph_of(module: nn.Module, *shape: int) -> tuple[PCG, int]:
    graph = capture(nn.Sequential(nn.BatchNorm2d(shape[0]), module), (torch.zeros(2, *shape),), loss="projection")
    (index,) = (i for i, n in enumerate(graph.nodes) if n.op in special_strategy("halo").operators)
    return graph, index


def spatial(module: nn.Module, *shape: int) -> list[str]:
    graph, index = graph_of(module, *shape)
    return [name for name in row_names(graph, index) if name.startswith(("halo", "s"))]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Conv2d(4, 4, 3), ["halo:s0", "halo:s1"]),
        (nn.Conv2d(4, 4, 1), ["s0", "s1"]),  # a product at every place
        (nn.Conv2d(4, 4, 1, stride=2), ["halo:s0", "halo:s1"]),
        (nn.Conv2d(4, 4, (1, 7), padding=(0, 3)), ["s0", "halo"]),
        (nn.Conv2d(4, 4, (3, 2), padding="same"), []),  # padded on one side only: as no number can say
        (nn.ConvTranspose2d(4, 4, 3, 2, 1, 1), ["halo:s0", "halo:s1"]),
        (nn.ConvTranspose2d(4, 4, 2, 3), []),  # rows that nothing reaches
        (nn.MaxPool2d(2, ceil_mode=True), ["halo:s0", "halo:s1"]),
        (nn.AvgPool2d(3, 1, 1), ["halo:s0", "halo:s1"]),
        (nn.AvgPool2d(3, 1, 1, count_include_pad=False), []),  # divided by less at borders
        (nn.AvgPool2d(2, ceil_mode=True), ["halo"]),  # and at the end of 9 columns
        (nn.Upsample(scale_factor=2), ["halo:s0", "halo:s1"]),
        (nn.Upsample(scale_factor=3), []),  # rounded elsewhere in other parts
        (nn.Upsample(scale_factor=3, mode="bilinear"), ["halo:s0", "halo:s1"]),
        (nn.Upsample(scale_factor=1.5, mode="bilinear"), []),
        (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), []),
    ],
)
def test_rows(module: nn.Module, expected: list[str]) -> None:
    assert spatial(module, 4, 10, 9) == expected


@pytest.mark.parametrize(
    ("reach", "ranks", "expected"),
    [
        (Reach(16, 16, -1, 1), 4, Exchange(True, False, 6, 2)),  # a row to either side
        (Reach(16, 16, -3, 3), 4, Exchange(True, False, 10, 6)),
        (Reach(16, 16, -3, 3), 8, Exchange(True, False, 8, 6)),  # from the second next, too
        (Reach(16, 8, 0, 1, step=2, spare=2), 4, Exchange(False, False, 4, 0)),
        (Reach(15, 8, 0, 1, step=2, spare=2, value=float("-inf")), 2, Exchange(True, False, 8, 0)),  # a row of padding
        (Reach(8, 16, 0, 0, per=2, value=None), 4, Exchange(False, False, 2, 0)),
        (Reach(8, 16, 0, 1, per=2, shift=1, value=None), 4, Exchange(True, True, 3, 1)),
    ],
)
def test_exchange(reach: Reach, ranks: int, expected: Exchange) -> None:
    assert exchange(reach, ranks) == expected


def part(module: nn.Module, ranks: int, *shape: int) -> Part:
    graph, index = graph_of(module, *shape)
    node = graph.nodes[index]
    sources = tuple(graph.nodes[i] for i in node.inputs)
    (row,) = (r for r in rows(graph, index) if r.special and r.index == ("s0", 0))
    shapes = [(2, n.shape[1], -(-n.shape[2] // ranks), *n.shape[3:]) for n in (sources[0], node)]
    inputs = (shapes[0], *(s.shape for s in sources[1:]))
    return Part(node, sources, inputs, shapes[1], tuple(4 for _ in sources), 4, ranks, row)


def test_cost() -> None:
    """Two rows of 2 x 4 x 9 numbers, a copy of six; back the same two, into four that start as zeros."""
    entry, here, row = special_strategy("halo"), part(nn.Conv2d(4, 8, 3, padding=1), 4, 4, 16, 9), 2 * 4 * 9 * 4
    found = [(m.action, m.size_bytes // row, m.backward, m.times) for m in entry.messages(here)]
    assert found == [
        (Action.SEND, 2, False, 1),
        (Action.PAD, 6, False, 1),
        (Action.SEND, 2, True, 1),
        (Action.PAD, 4, True, 2),
    ]
    assert (entry.kept(here), entry.copied(here), entry.work(here)) == (6 * row, ("x",), 1.0)


def test_cost_of_aligned_windows() -> None:
    entry, here = special_strategy("halo"), part(nn.MaxPool2d(2), 4, 4, 16, 9)
    assert (list(entry.messages(here)), entry.kept(here), entry.copied(here)) == ([], 0, ())


def test_uneven_work() -> None:
    """Six of 20 rows, but three of the eight or nine after it."""
    assert special_strategy("halo").work(part(nn.Conv2d(4, 8, 3, 2), 3, 4, 19, 9)) == pytest.approx((3 / 9) / (7 / 19))


@pytest.mark.parametrize(("batch", "offered"), [(4, False), (6, True), (2, True)])
def test_offered_where_samples_do_not_divide(batch: int, offered: bool) -> None:
    machine = Machine.adhoc((4,))
    graph = capture(nn.Conv2d(4, 4, 3), (torch.zeros(2, 4, 16, 16),), batch=batch, loss="projection")
    (conv,) = graph.of("conv")
    moves = Transitions(machine, placements(machine.hierarchy, mesh=(4,))[0])
    args: Any = graph, conv, moves, Roofline(machine, "float32"), precision("float32")

    def special(**options: bool) -> bool:
        found = operator_options(*args, **options)
        return any(found.rows[i].special for i in found.choice[:, 0])

    assert special() == offered
    assert special(every=True)
