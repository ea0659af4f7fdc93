"""Bundles: which branches of a graph can be placed, and where each of them goes."""

from __future__ import annotations

import time
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import partita
from partita.formulation.bundles.bundles import assignments, find_bundles
from partita.model.graph.pcg import PCG


def graph_of(module: nn.Module) -> PCG:
    return partita.capture(module, (torch.zeros(4, 8),), batch=4)


class Two(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b, self.c = kind, nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(12, 8)
        self.number = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        a, b = torch.relu(self.a(x)), torch.relu(self.b(x))
        if self.kind == "tied":
            b = torch.relu(self.a(x + 1))
        if self.kind == "crossed":
            b = b + a
        if self.kind == "read twice":
            return self.c(torch.cat((a, b), 1)).square().mean() + a.mean()
        if self.kind == "a number":
            a = a * self.number
        if self.kind == "no weights":
            a, b = torch.relu(x[:, :6]), torch.tanh(x[:, 2:])
        return self.c(torch.cat((a, b), 1)).square().mean()


@pytest.mark.parametrize(
    ("kind", "count"),
    [("plain", 1), ("tied", 0), ("crossed", 0), ("read twice", 0), ("a number", 0), ("no weights", 0)],
)
def test_a_bundle_stands_for_itself(kind: str, count: int) -> None:
    """Branches share nothing but what they read, have weights, and are read by nothing but their `cat`."""
    found = find_bundles(graph_of(Two(kind)))
    assert len(found) == count


def test_the_fork_is_the_last_common_tensor() -> None:
    graph = graph_of(Two("plain"))
    (bundle,) = find_bundles(graph)
    assert graph.nodes[bundle.fork].op == "tanh"
    assert [[graph.nodes[i].op for i in branch.nodes] for branch in bundle.branches] == [["linear", "relu"]] * 2


class Sum(nn.Module):
    """Branches that are added up, in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layers = kind, nn.ModuleList(nn.Linear(8, 8) for _ in range(10))
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        a, b, c, *others = (torch.relu(layer(x)) for layer in self.layers)
        y = {
            "two": lambda: a + b,
            "tree": lambda: (a + b) + (c + others[0]),
            "residual": lambda: x + (a + b),
            "read inside": lambda: (a + b) * (a + b + c),
            "broadcast": lambda: (a + self.bias) + b,
            "twice": lambda: (a + a) + b,
            "ten": lambda: sum(others, a + b + c),
        }[self.kind]()
        return y.square().mean()


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("two", [2]),
        ("tree", [4]),
        ("residual", [3]),  # x is added at one coordinate
        ("read inside", []),
        ("broadcast", [2]),
        ("twice", [2]),
        ("ten", [8]),  # of ten, the first eight
    ],
)
def test_sums_that_are_bundles(kind: str, ends: list[int]) -> None:
    graph = graph_of(Sum(kind))
    found = find_bundles(graph)
    assert [len(bundle.ends) for bundle in found] == ends
    for bundle in found:
        assert len(bundle.adds) == len(bundle.ends) - 1 and bundle.adds[-1] == bundle.join
        assert all(graph.nodes[i].op == "add" for i in bundle.adds)
        assert len(bundle.outside) == (kind == "residual")


def test_all_results_at_a_coordinate_but_one_are_added_to_another() -> None:
    (bundle,) = find_bundles(graph_of(Sum("residual")))
    outside = bundle.ends.index(bundle.outside[0])
    for places in product(range(3), repeat=3):
        added = bundle.adding(places)
        assert len(added) == 3 - len({*places}) and outside not in added


def test_nested_bundles() -> None:
    from partita.model.capture.load import load_module

    module, inputs = load_module("inception-v3", small=True)
    graph = partita.capture(module, inputs, batch=4)
    found = find_bundles(graph)
    assert len(found) == len(graph.of("cat")) == 7
    inner = [b for b in found if any(b.join in other.nodes for other in found)]
    assert len(inner) == 2


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_no_assignment_beats_those_that_are_kept(loads: list[tuple[int, int, int]], coordinates: int) -> None:
    """Of all ways to place branches, for each one that is kept is as good in time, bytes and width."""
    amounts = tuple(zip(*loads, strict=True))
    kept = assignments(*amounts, coordinates)

    def of(places: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            max(sum(n for n, p in zip(amount, places, strict=True) if p == c) for c in range(coordinates))
            for amount in amounts
        )

    found = [(x.time, x.size, x.width) for x in kept]
    assert found == [of(x.places) for x in kept] == sorted(found)
    for places in product(range(coordinates), repeat=len(loads)):
        assert any(all(a <= b for a, b in zip(x, of(places), strict=True)) for x in found)
    for x in found:
        assert not any(y != x and all(a <= b for a, b in zip(y, x, strict=True)) for y in found)


def test_many_branches_are_placed_quickly() -> None:
    start = time.process_time()
    assignments(range(1, 9), range(8, 0, -1), [3] * 8, 8)
    assert time.process_time() - start < 5
