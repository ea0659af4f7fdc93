"""Atoms: the factors of dims that the views of a graph reveal."""

from __future__ import annotations

from partita.model.graph.atoms import atoms, batch_dims
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG


def fused_heads() -> PCG:
    """x [4, 6, 8] times a fused weight, viewed as 3 x 2 heads x 4, its middle third taken."""
    b = Builder(4)
    x, w = b.input("x", (4, 6, 8)), b.parameter("w", (24, 8))
    y = b.add("linear", x, w, shape=(4, 6, 24))
    heads = b.add("view", y, shape=(4, 6, 3, 2, 4))
    b.add("slice", heads, shape=(4, 6, 1, 2, 4), dim=2, start=1, stop=2, step=1)
    return b.build(b.add("projection", y, shape=()))


def test_views_split_the_weight() -> None:
    graph = fused_heads()
    _, w, y, heads, part, loss = atoms(graph)
    assert w.dims == ((3, 2, 4), (8,))
    assert y.dims == ((4,), (6,), (3, 2, 4))
    assert heads.dims == ((4,), (6,), (3,), (2,), (4,))
    assert part.dims == ((4,), (6,), (), (2,), (4,))
    assert loss.dims == ()


def test_numbers() -> None:
    w = atoms(fused_heads())[1]
    assert w.sizes == (3, 2, 4, 8)
    assert [w.dim_of(a) for a in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert w.of_dim(1) == range(3, 4)


def test_batch_is_followed_through_views() -> None:
    b = Builder(4)
    x = b.input("x", (4, 6, 8))
    flat = b.add("view", x, shape=(24, 8))
    turned = b.add("permute", flat, shape=(8, 24), dims=(1, 0))
    graph = b.build(b.add("projection", turned, shape=()))
    assert batch_dims(graph) == ((0,), (0,), (1,), ())
    assert atoms(graph)[flat].dims == ((4, 6), (8,))
    assert atoms(graph)[turned].batch == {1}


def test_factors_that_do_not_match_stay_apart() -> None:
    b = Builder(1)
    x = b.input("x", (2, 3), batch_dim=None)
    y = b.add("view", x, shape=(3, 2))
    graph = b.build(b.add("projection", y, shape=()))
    assert [a.dims for a in atoms(graph)[:2]] == [((2,), (3,)), ((3,), (2,))]


def test_atoms_meet_from_both_sides() -> None:
    """12 seen as 4 x 3 and as 2 x 6 is 2 x 2 x 3."""
    b = Builder(1)
    x = b.input("x", (12,), batch_dim=None)
    left, right = b.add("view", x, shape=(4, 3)), b.add("view", x, shape=(2, 6))
    total = b.add("add", *(b.add("projection", y, shape=()) for y in (left, right)), shape=())
    found = atoms(b.build(total))
    assert found[x].dims == ((2, 2, 3),)
    assert (found[left].dims, found[right].dims) == (((2, 2), (3,)), ((2,), (2, 3)))


def test_broadcast_dims_have_no_atoms_of_the_other() -> None:
    b = Builder(4)
    x, scale = b.input("x", (4, 6)), b.parameter("scale", (1, 6))
    y = b.add("mul", x, scale, shape=(4, 6))
    graph = b.build(b.add("projection", y, shape=()))
    assert atoms(graph)[scale].dims == ((), (6,))
    assert batch_dims(graph) == ((0,), (), (0,), ())
