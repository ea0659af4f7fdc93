"""What a search answers: steps that a program can run one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .state import Box, State


class Message(NamedTuple):
    """`receiver` adds what `sender` holds in `box` (global indices) to its new piece, which starts as zeros.

    Where both are the same device nothing is sent.
    """

    sender: int
    receiver: int
    box: Box


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of all devices of a state.

    kind                    `dim`     `groups`, in order
    schunk          R to D  is cut    member j keeps part j of its piece
    vchunk          R to V            the first keeps its piece, the others have zeros
    pad             D to V  is joined member j holds part j, the rest is zeros
    all-gather      D to R  is joined member j brings part j
    all-reduce      V to R            all get the sum
    reduce-scatter  V to D  is cut    member j gets part j of the sum
    all-to-all      D to D  is cut    member j gets part j of it, and brings part j of the dim `joined`
    move            to as many        sender, receiver
    RD-scatter      to more is cut    sender, its receivers
    broadcast       to more           sender, its receivers
    RD-gather       to fewer is joined, or None where one copy is sent    senders, and last their receiver
    send-recv       to any            sender, receiver

    The last five send device by device: `messages` says what; what a device keeps it sends to itself.
    `size_bytes`: of a member's piece before the step (after it for all-gather, pad and chunks), of the largest message.
    """

    kind: str
    dim: int | None
    groups: tuple[tuple[int, ...], ...]
    before: State
    after: State
    size_bytes: int
    cost_ns: int
    joined: int | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Path:
    """Steps from a state to another, and what they cost together."""

    steps: tuple[Step, ...]
    cost_ns: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(step.kind for step in self.steps)
