"""RVD states, which assign the pieces of a tensor to devices, and paths between them (SuperScaler, section 4).

R(r)V(v)D(k_1, ..) cuts a tensor into v addends and dim i into k_i equal parts, each piece replicated r times. A state
also assigns the pieces to devices. Replicas and addends are interchangeable; `canonical` numbers them by device, so
that equivalent states compare equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

from ...model.errors import PartitaError

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Start and stop in every dim."""


@dataclass(frozen=True, slots=True)
class RVD:
    """`r` replicas of `v` addends of the `d[i]` equal parts of each dim i. PartitaError: a count below 1."""

    r: int
    v: int
    d: tuple[int, ...]

    def __post_init__(self) -> None:
        if min((self.r, self.v, *self.d)) < 1:
            raise PartitaError(f"{self} has a count below 1")

    def __str__(self) -> str:
        return f"R({self.r})V({self.v})D({','.join(map(str, self.d))})"

    @property
    def devices(self) -> int:
        """Number of devices, one per piece."""
        return self.r * self.v * prod(self.d)

    def numel(self, shape: tuple[int, ...]) -> int:
        """Elements of a piece of a tensor of this shape."""
        return prod(shape) // prod(self.d)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True if every dim is divisible into its parts."""
        return len(shape) == len(self.d) and all(size % k == 0 for size, k in zip(shape, self.d, strict=True))


class Piece(NamedTuple):
    """Indices of a piece: replica, addend, and one part per dim."""

    copy: int
    value: int
    parts: tuple[int, ...]

    def box(self, rvd: RVD, shape: tuple[int, ...]) -> Box:
        """Its box in a tensor of this shape."""
        sizes = [size // k for size, k in zip(shape, rvd.d, strict=True)]
        return tuple((p * size, (p + 1) * size) for p, size in zip(self.parts, sizes, strict=True))


@dataclass(frozen=True, slots=True)
class State:
    """`devices[i]` holds `pieces[i]`. PartitaError unless every piece of the RVD lies on one device of its own."""

    rvd: RVD
    devices: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if len(self.devices) != self.rvd.devices or len(set(self.devices)) < len(self.devices):
            raise PartitaError(
                f"{self.rvd} takes {self.rvd.devices} different devices, not {list(self.devices)}; give each piece one"
            )
        if len(self.pieces) != len(self.devices) or set(self.pieces) != set(pieces_of(self.rvd)):
            raise PartitaError(
                f"the pieces of {self.rvd} are not {list(map(tuple, self.pieces))!s:.200}: give each once"
            )

    @classmethod
    def natural(cls, rvd: RVD, devices: Sequence[int]) -> State:
        """Pieces in row-major order of (copy, value, parts) on the devices in their order."""
        return cls(rvd, tuple(devices), pieces_of(rvd))

    def canonical(self) -> State:
        """The same state with devices ascending, and addends and replicas numbered in device order."""
        named: dict[int, Piece] = {}
        values: dict[tuple[int, ...], dict[int, int]] = {}
        copies: dict[tuple[tuple[int, ...], int], int] = {}
        for device, piece in sorted(zip(self.devices, self.pieces, strict=True)):
            names = values.setdefault(piece.parts, {})
            value = names.setdefault(piece.value, len(names))
            copy = copies[piece.parts, value] = copies.get((piece.parts, value), -1) + 1
            named[device] = Piece(copy, value, piece.parts)
        return State(self.rvd, tuple(named), tuple(named.values()))


def pieces_of(rvd: RVD) -> tuple[Piece, ...]:
    """All pieces in row-major order."""
    ranges = (range(rvd.r), range(rvd.v), *map(range, rvd.d))
    return tuple(Piece(copy, value, tuple(parts)) for copy, value, *parts in product(*ranges))


def check_shape(state: State, shape: tuple[int, ...]) -> None:
    """PartitaError unless the RVD cuts a tensor of this shape into equal parts."""
    if not state.rvd.fits(shape):
        raise PartitaError(f"{state.rvd} does not cut a tensor of shape {shape} into equal parts, one count per dim")


# Paths


class PieceMessage(NamedTuple):
    """`receiver` adds the sender's `box` (global indices) to its new piece, which starts as zeros.

    Nothing is sent if both are the same device.
    """

    sender: int
    receiver: int
    box: Box


@dataclass(frozen=True, slots=True)
class RvdStep:
    """One transition of all devices of a state.

    kind                    `dim`     `groups`, in order
    schunk          R to D  is cut    member j keeps part j of its piece
    vchunk          R to V            the first keeps its piece, the others have zeros
    pad             D to V  is joined member j holds part j, the rest is zeros
    all-gather      D to R  is joined member j contributes part j
    all-reduce      V to R            all get the sum
    reduce-scatter  V to D  is cut    member j gets part j of the sum
    all-to-all      D to D  is cut    member j gets part j of it, and contributes part j of the dim `joined`
    move            to as many        sender, receiver
    RD-scatter      to more is cut    sender, its receivers
    broadcast       to more           sender, its receivers: one collective
    reduce          to fewer          receiver, its senders: one collective, in which a receiver without an addend has 0
    RD-gather       to fewer is joined, or None if one replica is sent    senders, then their receiver
    send-recv       to any            sender, receiver

    The last six use `messages` between devices; a device sends to itself what it keeps.
    `size_bytes`: of a member's piece before the step (after it for all-gather, pad and chunks), or the largest message.
    """

    kind: str
    dim: int | None
    groups: tuple[tuple[int, ...], ...]
    before: State
    after: State
    size_bytes: int
    cost_ns: int
    joined: int | None = None
    messages: tuple[PieceMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Path:
    """Steps from one state to another and their total cost."""

    steps: tuple[RvdStep, ...]
    cost_ns: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(step.kind for step in self.steps)
