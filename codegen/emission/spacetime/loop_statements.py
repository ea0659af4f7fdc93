"""The statements of one device for all micro-batches, from those of a template.

A block of a micro-batch runs where its first operator does; what lies between two of its operators runs before it, or
after it if it depends on it. Transfers keep their order, so the program cannot deadlock (`segments`).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from fractions import Fraction
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

import numpy as np

from ....formulation.spacetime.loop import Irregular, Loop
from ....formulation.spacetime.looped import Looped
from ..common.rolled_lines import Line, Number, Piece
from .data_flow import TEMPLATE, Flow
from .device_statements import Written
from .segments import SegmentPhase

Item: TypeAlias = int
"""An instruction of a micro-batch: its place in the flow times the number of micro-batches, plus that of its own."""


def statements(looped: Looped, flow: Flow, written: Sequence[Written]) -> list[Piece]:
    """All statements of a device, in order."""
    if looped.loop is None:
        return [piece for own in written for piece in own.pieces]
    return _Device(looped, looped.loop, flow, written).write()


class _Block(NamedTuple):
    """A block of the template: its number, how many instructions it has, and their places."""

    number: int
    places: frozenset[int]


class _Device:
    def __init__(self, looped: Looped, loop: Loop, flow: Flow, written: Sequence[Written]) -> None:
        self.loop, self.flow, self.written, self.count = loop, flow, written, loop.count
        steps = looped.program.steps[flow.device]
        self.micro = [looped.of[steps[place]] for place in flow.places]
        self.blocks: dict[int, _Block] = {}  # by place
        self.text: dict[int, int] = {}  # by place of a block's first instruction, or of a single one
        for number, own in enumerate(written):
            if isinstance(own.step, SegmentPhase):
                block = _Block(number, frozenset(own.step.places))
                self.blocks |= dict.fromkeys(own.step.places, block)
            elif own.step is not None and own.pieces:
                self.text[own.step] = number
        self.needed = [self._needed(place, needs) for place, needs in enumerate(self._needs())]
        self.queue = self._order(looped)
        self.lines = [[(own, _moving(own)) for own in map(_line, statement.pieces)] for statement in written]
        self.pieces: list[Piece] = []
        self.numbers = [Number("m", micro) for micro in range(loop.count)]
        self._check()

    def _order(self, looped: Looped) -> deque[Item]:
        """The device's instructions with statements in the order of all micro-batches."""
        at, place = looped.instructions(self.flow.device)
        own = np.argsort(self.flow.places)[place]  # places of the flow
        has = np.zeros(len(self.flow.places), dtype=bool)
        has[[*self.blocks, *self.text]] = True
        return deque((own * self.count + looped.micros[at])[has[own]].tolist())

    def _needs(self) -> list[frozenset[int]]:
        """By place, what an instruction needs that has statements: of a sum that autograd forms, what is added."""
        found: list[frozenset[int]] = []
        for needs in self.flow.needs:
            parts = ({place} if place in self.blocks or place in self.text else found[place] for place in needs)
            found.append(frozenset().union(*parts))
        return found

    def _needed(self, place: int, needs: Iterable[int]) -> tuple[list[int], list[Item]]:
        """What an instruction needs of its own micro-batch, whichever that is, and what of others."""
        same, others = list[int](), list[Item]()
        for other in needs:
            own = self.micro[other]
            if own is not None and own == self.micro[place]:
                same.append(other)
            else:
                others.append(other * self.count + (0 if own is None else self.loop.shown[own]))
        return same, others

    def _check(self) -> None:
        """Raise Irregular unless the statements of the last two micro-batches of the template are alike."""
        found: list[Counter[object]] = [Counter(), Counter(), Counter()]
        for own in self.written:
            micro = self._micro(own)
            if micro is not None:
                found[micro].update(_likeness(_line(piece), micro) for piece in own.pieces if not _dropped(piece))
        if found[1] != found[2]:
            raise Irregular("the statements of micro-batches differ in more than their number")

    def _micro(self, own: Written) -> int | None:
        if own.step is None:
            return None
        return self.micro[own.step.places[0] if isinstance(own.step, SegmentPhase) else own.step]

    def write(self) -> list[Piece]:
        while self.queue:
            place, micro = divmod(self.queue.popleft(), self.count)
            if place in self.blocks:
                self._block(self.blocks[place], place, micro)
            else:
                self._single(place, micro)
        self._add(len(self.written) - 1, 0, None)
        return self.pieces

    def _single(self, place: int, micro: int) -> None:
        if place in self.text:
            self._add(self.text[place], micro, self.micro[place])

    def _block(self, block: _Block, first: int, micro: int) -> None:
        """Collect a block. What lies in its way runs before it or returns to the queue."""
        flow, left = self.flow, len(block.places) - 1
        after = {first * self.count + micro}
        deferred: dict[Item, None] = {}
        moving = False  # whether a transfer is deferred
        while left:
            item = self.queue.popleft()
            place, own = divmod(item, self.count)
            if place in block.places and own == micro:
                if self._needs_any(place, own, deferred):
                    raise Irregular("a block needs what needs the block")
                left -= 1
                after.add(item)
            elif place in self.blocks or self._needs_any(place, own, after) or (moving and flow.transfers(place)):
                deferred[item] = None
                after.add(item)
                moving |= flow.transfers(place)
            else:
                self._single(place, own)
        self._add(block.number, micro, self.micro[first])
        self.queue.extendleft(reversed(deferred))

    def _needs_any(self, place: int, micro: int, items: Container[Item]) -> bool:
        """True if the instruction of a micro-batch needs one of some items."""
        same, others = self.needed[place]
        for other in same:
            if other * self.count + micro in items:
                return True
        return any(other in items for other in others)

    def _add(self, number: int, micro: int, shown: int | None) -> None:
        """The statements of the template for a micro-batch, of which `shown` stands for it there."""

        def settled(found: Number) -> Number:
            if found.constant != shown and found.constant == 1:
                raise Irregular("a statement is of two micro-batches")
            own = self.numbers[micro if found.constant == shown else self.loop.shown[found.constant]]
            return own._replace(terms=found.terms, more=found.more) if found.terms or found.more else own

        for own, moving in self.lines[number]:
            numbers = list(own.numbers)
            for place in moving:
                numbers[place] = settled(numbers[place])
            self.pieces.append(Line(own.text, tuple(numbers)) if moving else own)


def _line(piece: Piece) -> Line:
    assert isinstance(piece, Line), "nothing is rolled up so far"
    return piece


def _moving(own: Line) -> list[int]:
    """Which of a statement's numbers are micro-batches of the template."""
    return [place for place, number in enumerate(own.numbers) if number.role == TEMPLATE]


_FETCHED = re.compile(r", weights=\{[^}]*\}")


def _dropped(piece: Piece) -> bool:
    """True for a statement that drops a weight after its last use."""
    return isinstance(piece, Line) and piece.text[0].startswith("w.take(")


def _likeness(piece: Line, micro: int) -> object:
    """Equal for statements of two micro-batches that differ in their number, or in what is read last.

    The last reader of a weight that is no parameter of its own may find it under another name.
    """
    own = ("m" if n.role == TEMPLATE and n.constant == micro else f"{n.role} {n.constant}" for n in piece.numbers)
    text = "".join(part for pair in zip_longest(piece.text, own, fillvalue="") for part in pair)
    return _FETCHED.sub("", text).replace(".take(", "[").replace(")", "]")


def check_loss(looped: Looped) -> None:
    """Raise Irregular unless every micro-batch gives an addend of the loss, with a whole gradient."""
    graph = looped.program.tasks.graph
    for op in graph.parts(graph.pcg.loss) if looped.loop is not None else ():
        share = next(cut for cut in op.cuts if cut.of)
        start, stop = op.mask(None).addends
        if stop - start > Fraction(1, share.parts) or op.mask(None, gradient=True).partial:
            raise Irregular("micro-batches do not give addends of the loss")
