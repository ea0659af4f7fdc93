"""Which weights and gradients travel in one message: those of a layer, and buckets of gradients or updated weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

from ...model.machine.precision import Precision
from ..weights.buckets import BUCKET_BYTES
from .dtypes import dtype_of, item_bytes
from .looped import Looped
from .mask import GRADIENT, UPDATED, VALUE, within
from .materialized import Collective, Materialized, Register, reads, writes
from .op import Phase
from .tasks import stored_boxes


class Message(Enum):
    """With what a weight or its gradient travels: by itself, with others of its layer, or in a bucket.

    The gradient of a tied weight travels by itself, too.
    """

    ALONE, TIED, LAYER, GRADIENTS, UPDATED = "alone", "tied", "layer", "gradients", "updated"

    @property
    def is_joined(self) -> bool:
        """True if others travel with it."""
        return self not in (Message.ALONE, Message.TIED)


class Messages:
    """The messages of a program."""

    def __init__(self, program: Materialized) -> None:
        self.pcg = program.tasks.graph.pcg
        self.stored = stored_boxes(op for op in program.tasks.ops if op.phase is Phase.STORE)
        readers: dict[int, set[object]] = defaultdict(set)
        for own in (x for device in program.devices for x in device if isinstance(x, Collective) and x.source):
            readers[own.key].add(own.source.via if own.source else None)
        self._tied = {key for key, vias in readers.items() if len(vias) > 1}

    def of(self, collective: Collective, device: int) -> Message:
        """With what the tensor of a collective travels.

        What is fetched for each use travels with its layer, each way; other gradients, and updated weights, in buckets,
        but for a weight that is tied: its readers are on different devices, as in different stages.
        """
        tensor, kind = collective.target.tensor, collective.kind
        if self.pcg.nodes[tensor.node].op != "parameter":
            return Message.ALONE
        if kind == "all_reduce" and collective.key in self._tied:
            return Message.TIED
        if kind == "all_gather" and tensor.kind in (VALUE, UPDATED):
            return Message.LAYER if tensor.kind == VALUE else Message.UPDATED
        if kind == "reduce_scatter" and tensor.kind == GRADIENT and collective.source is not None:
            box = collective.source.mask.box
            whole = any(within(box, kept) for kept in self.stored[tensor.node, device])
            return Message.GRADIENTS if whole else Message.LAYER
        summed = kind in ("all_reduce", "all_gather") and tensor.kind == GRADIENT  # a sum may be a path of two steps
        return Message.GRADIENTS if summed else Message.ALONE


class _Going(NamedTuple):
    """The messages of a group that others may still join are told apart by these: at most one of each is going."""

    message: Message
    kind: str
    group: tuple[int, ...]


class _Open(NamedTuple):
    """A message that others may still join: what they must have in common, their steps, and the bytes so far."""

    alike: Hashable
    steps: tuple[int, ...] = ()
    size_bytes: int = 0


def joined(looped: Looped, precision: Precision) -> dict[int, tuple[Message, int]]:
    """By step of the template the message of what travels with others, and the step of the last of them, which sends.

    A message is sent before anything reads what is in it. All devices have the events in one order, so that all ranks
    of a group send the same.
    """
    program, messages = looped.program, Messages(looped.program)
    found: dict[int, tuple[Message, int]] = {}
    going: dict[_Going, _Open] = {}
    inside: dict[Register, _Going] = {}

    def send(key: _Going) -> None:
        steps = going.pop(key).steps
        if len(steps) > 1:
            found.update(dict.fromkeys(steps, (key.message, steps[-1])))

    for step, members in enumerate(looped.events):
        instructions = [program.devices[device][place] for device, place in members]
        for register in (r for instruction in instructions for r in reads(instruction)):
            if register in inside and inside[register] in going:
                send(inside[register])
        first = instructions[0]
        if not isinstance(first, Collective) or not (message := messages.of(first, members[0][0])).is_joined:
            continue
        key, tensor = _Going(message, first.kind, first.group), first.target.tensor
        alike = dtype_of(messages.pcg, tensor, precision), looped.of[step] if looped.of else None
        if key in going and going[key].alike != alike:
            send(key)
        before = going.get(key, _Open(alike))
        elements = max(register.mask.numel for register in (first.source, first.target) if register is not None)
        size = before.size_bytes + elements * item_bytes(messages.pcg, tensor, precision)
        going[key] = _Open(alike, (*before.steps, step), size)
        inside.update({register: key for instruction in instructions for register in writes(instruction)})
        if message is not Message.LAYER and size >= BUCKET_BYTES:
            send(key)
    for key in list(going):
        send(key)
    return found
