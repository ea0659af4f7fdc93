"""States: every piece once, and names of copies and addends that say nothing."""

from __future__ import annotations

import pytest

from partita.formulation.rvd.state import RVD, Piece, State, check_shape, pieces_of
from partita.model.errors import PartitaError


def test_row_major() -> None:
    state = State.natural(RVD(1, 2, (1, 2)), (4, 5, 6, 7))
    assert state.pieces == tuple(Piece(0, v, (0, p)) for v in (0, 1) for p in (0, 1))
    assert str(state.rvd) == "R(1)V(2)D(1,2)" and state.rvd.devices == 4


def test_boxes() -> None:
    assert Piece(0, 0, (1, 0)).box(RVD(1, 1, (2, 1)), (8, 6)) == ((4, 8), (0, 6))


@pytest.mark.parametrize(
    ("rvd", "devices", "message"),
    [
        (RVD(2, 1, (2,)), (0, 1, 2), "takes 4 different devices, not"),
        (RVD(2, 1, (2,)), (0, 1, 2, 2), "takes 4 different devices, not"),
    ],
)
def test_a_device_for_every_piece(rvd: RVD, devices: tuple[int, ...], message: str) -> None:
    with pytest.raises(PartitaError, match=message):
        State.natural(rvd, devices)


def test_every_piece_once() -> None:
    twice = (Piece(0, 0, (0,)), Piece(0, 0, (0,)))
    with pytest.raises(PartitaError, match="give each once"):
        State(RVD(1, 1, (2,)), (0, 1), twice)
    with pytest.raises(PartitaError, match="count below 1"):
        RVD(0, 1, (2,))


def test_names_say_nothing() -> None:
    rvd = RVD(2, 2, (1,))
    one = State(rvd, (0, 1, 2, 3), pieces_of(rvd))  # addends 0 1 0 1
    renamed = State(rvd, (3, 2, 1, 0), pieces_of(rvd))  # addends 1 0 1 0 on 0 1 2 3
    other = State(rvd, (0, 2, 1, 3), pieces_of(rvd))  # addends 0 0 1 1
    assert one.canonical() == renamed.canonical() == one
    assert other.canonical() != one.canonical()


def test_equal_parts_only() -> None:
    with pytest.raises(PartitaError, match=r"R\(1\)V\(1\)D\(4\) does not cut a tensor of shape \(6,\)"):
        check_shape(State.natural(RVD(1, 1, (4,)), range(4)), (6,))
    with pytest.raises(PartitaError, match="one count per dim"):
        check_shape(State.natural(RVD(1, 1, (2,)), range(2)), (4, 4))
