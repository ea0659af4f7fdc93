"""Paths between RVD states: sequences of steps that a program can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .state import Box, State


class Message(NamedTuple):
    """`receiver` adds the sender's `box` (global indices) to its new piece, which starts as zeros.

    Nothing is sent if both are the same device.
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
    all-gather      D to R  is joined member j contributes part j
    all-reduce      V to R            all get the sum
    reduce-scatter  V to D  is cut    member j gets part j of the sum
    all-to-all      D to D  is cut    member j gets part j of it, and contributes part j of the dim `joined`
    move            to as many        sender, receiver
    RD-scatter      to more is cut    sender, its receivers
    broadcast       to more           sender, its receivers
    RD-gather       to fewer is joined, or None if one replica is sent    senders, then their receiver
    send-recv       to any            sender, receiver

    The last five use `messages` between devices; a device sends to itself what it keeps.
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
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Path:
    """Steps from one state to another and their total cost."""

    steps: tuple[Step, ...]
    cost_ns: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(step.kind for step in self.steps)
