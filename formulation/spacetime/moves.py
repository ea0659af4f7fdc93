"""What devices send each other, and how long it takes: transfers, and exchanges of operators that meet.

What goes on in one tensor in the same way at the same time shares the links and is priced together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model.graph.layout import COLLECTIVES, Action
from ..special import Message as Exchanged
from .equal_ranks import numbered
from .looped import Looped
from .mask import VALUE, PTensor
from .materialized import Collective, Materialized, Run, Send
from .meetings import Meeting
from .messages import Message
from .op import Op
from .price import Prices
from .repetition import Numbers, Repeat
from .supplies import device as device_of
from .weight_traffic import WeightTraffic

SEND = "send"
_KINDS = {
    Action.GATHER: "all_gather",
    Action.SCATTER_SUM: "reduce_scatter",
    Action.SUM: "all_reduce",
    Action.EXCHANGE: "all_to_all",
    Action.SEND: SEND,
}


class Move(NamedTuple):
    """A transfer: its ordered ranks, the bytes per member, and with what it travels.

    `together`: how many tensors a message between stages has. Also what operators exchange that meet (`meeting`):
    `messages`, each with the number and the parts of its cut.
    """

    kind: str
    tensor: PTensor
    size_bytes: int
    message: Message
    group: tuple[int, ...]
    messages: tuple[tuple[int, int, Exchanged], ...] = ()
    meeting: Meeting | None = None
    together: int = 1


class Moves:
    """The times of all transfers in order: equal consecutive transfers of one tensor share the links."""

    def __init__(self, looped: Looped, prices: Prices, weights: WeightTraffic) -> None:
        self.looped, self.prices, self.weights = looped, prices, weights
        self.moves = dict(_moves(looped.program, prices, weights))
        self.known: dict[object, int] = {}
        self.runs: dict[tuple[int, ...], Sequence[int]] = {}  # by steps

    @cached_property
    def transfers(self) -> NDArray[np.bool_]:
        """By step of the program, whether it is a transfer."""
        found = np.zeros(len(self.looped.events), dtype=bool)
        found[list(self.moves)] = True
        return found

    def size_bytes(self, key: int) -> int:
        return self.moves[key].size_bytes

    @cached_property
    def ns(self) -> Numbers:
        """The time of every event that is a transfer, in the order of all; 0 for the others."""
        here = self.transfers[self.looped.steps]
        steps = self.looped.steps[here]
        found = np.zeros(len(here), dtype=np.int64)
        found[here] = [ns for run in self._similar(steps) for ns in self._times(run)]
        return found

    def repeats(self, repeat: Repeat) -> bool:
        """True if the same transfers are taken together in each repetition: no such group is as long as a whole one."""
        steps = self.looped.steps[repeat.start : repeat.stop]
        kinds = self._kinds[steps[self.transfers[steps]]]
        return not kinds.size or bool((kinds != kinds[0]).any())

    @cached_property
    def _kinds(self) -> Numbers:
        """By step of the program, which of the transfers go on in the same way."""
        kinds = np.zeros(len(self.looped.events), dtype=np.int64)
        kinds[list(self.moves)] = numbered(
            (m.kind, m.tensor, m.message, len(m.group), m.messages, m.together) for m in self.moves.values()
        )
        return kinds

    def _similar(self, steps: Numbers) -> Iterator[tuple[int, ...]]:
        """Consecutive transfers of one tensor that go on in the same way."""
        changes = 1 + np.flatnonzero(np.diff(self._kinds[steps]))
        own = steps.tolist()
        for start, stop in pairwise((0, *changes.tolist(), len(own)) if own else ()):
            yield tuple(own[start:stop])

    def _times(self, steps: tuple[int, ...]) -> Sequence[int]:
        """The times of similar transfers one after another."""
        if steps not in self.runs:
            runs = _disjoint(map(self.moves.__getitem__, steps))
            self.runs[steps] = [ns for run in runs for ns in [self._ns(run)] * len(run)]
        return self.runs[steps]

    def _ns(self, run: Sequence[Move]) -> int:
        move, groups, sizes = run[0], tuple(move.group for move in run), tuple(move.size_bytes for move in run)
        kind, size, message, prices = move.kind, max(sizes), move.message, self.prices
        share = self.weights.share(move.tensor, move.group[0]) if message is Message.LAYER else 1.0
        key = kind, sizes, message, share, groups, move.messages, move.together
        if key not in self.known:
            if move.meeting is not None:
                ns = self._exchange_ns([each.meeting for each in run if each.meeting is not None])
            elif kind == SEND:
                ns = prices.sends_ns([(group[0], group[1]) for group in groups], sizes, 1 / move.together)
            elif message is Message.TIED:
                ns = prices.ring_ns(groups, size)
            elif message in (Message.GRADIENTS, Message.UPDATED):
                ns = self.weights.bucketed_ns(
                    kind, groups, size // prices.item(move.tensor), message is Message.UPDATED
                )
            else:
                ns = prices.collective_ns(kind, groups, size, share)
            self.known[key] = ns
        return self.known[key]

    def _exchange_ns(self, meetings: Sequence[Meeting]) -> int:
        """The exchanges of operators of one node, all at once."""
        total, prices = 0, self.prices
        for cut, message in prices.special.messages(meetings[0].ops[0]):
            size = message.size_bytes
            if message.action in _KINDS:
                groups = [group for meeting in meetings for group in meeting.groups(cut)]
                total += message.times * prices.collective_ns(_KINDS[message.action], groups, size)
            else:
                total += message.times * prices.copy_ns((size,), size)
        return total


def _moves(program: Materialized, prices: Prices, weights: WeightTraffic) -> Iterator[tuple[int, Move]]:
    largest, rooted = dict[int, int](), dict[int, Move]()  # by key of a collective
    for device, own in enumerate(program.devices):
        going = defaultdict[int, list[tuple[int, Move]]](list)
        for x, step in zip(own, program.steps[device], strict=True):
            if isinstance(x, Send):
                size, message = prices.register_bytes(x.source), going[x.to]
                message.append((x.key, Move(SEND, x.source.tensor, size, Message.ALONE, (device, x.to))))
                if not x.more:
                    yield from ((key, move._replace(together=len(message))) for key, move in going.pop(x.to))
            elif isinstance(x, Collective):
                whole = x.target if x.kind == "all_gather" or x.source is None else x.source
                largest[x.key] = max(largest.get(x.key, 0), prices.register_bytes(whole))
                if device == x.group[0]:
                    rooted[x.key] = Move(x.kind, whole.tensor, 0, weights.messages.of(x, device), x.group)
            elif isinstance(x, Run) and x.meeting is not None and x.op is x.meeting.ops[0]:
                yield step, _exchange(x.op, x.meeting, prices)
    for key, move in rooted.items():
        yield key, move._replace(size_bytes=largest[key])


def _exchange(op: Op, meeting: Meeting, prices: Prices) -> Move:
    """What operators that meet exchange."""
    sent = prices.special.messages(op)
    messages = tuple((cut, meeting.cuts[cut].parts, message) for cut, message in sent)
    size = sum(message.size_bytes * message.times for _, message in sent if message.action in COLLECTIVES)
    devices = tuple(device_of(member) for member in meeting.ops)
    return Move(
        op.phase.value, PTensor(VALUE, op.node), size, Message.ALONE, devices, messages=messages, meeting=meeting
    )


def _disjoint(moves: Iterable[Move]) -> Iterator[list[Move]]:
    """Split moves into runs in which no device takes part twice."""
    run: list[Move] = []
    busy: set[int] = set()
    for move in moves:
        if not busy.isdisjoint(move.group):
            yield run
            run, busy = [], set()
        run.append(move)
        busy.update(move.group)
    yield run
