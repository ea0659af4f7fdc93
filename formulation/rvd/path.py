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

    kind         dim                        groups, in order
    schunk       cut: R to D                member j keeps part j of its piece
    vchunk       None: R to V               the first keeps its piece, the others zeros
    pad          joined: D to V             member j holds part j, the rest is zeros
    all-gather   joined: D to R             member j brings part j
    all-reduce   None: V to R               all get the sum
    reduce-scatter  cut: V to D             member j gets part j of the sum
    all-to-all   cut, while `joined` is joined   member j gets part j of `dim`, and brings part j of `joined`
    move         None: to as many devices   sender, receiver
    RD-scatter   cut: to k times as many    sender, its receivers
    broadcast    None: R, to k times as many  sender, its receivers
    RD-gather    joined, or None: one copy is sent; to fewer   senders, the last is the receiver
    send-recv    None: from any state to any  sender, receiver

    Where devices send to others in pairs, `messages` says what; a device that keeps something sends it to itself.
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
