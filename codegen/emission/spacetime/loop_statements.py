"""The statements of one device for all micro-batches, from those of a template.

A block of a micro-batch runs where its first operator does; what lies between two of its operators runs before it, or
after it if it depends on it. Transfers keep their order, so the program cannot deadlock (`segments`).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

import numpy as np

from ....formulation.spacetime.loop import Irregular, Loop
from ....formulation.spacetime.looped import Looped
from ....formulation.spacetime.repetition import Numbers
from ..common.rolled_lines import Line, Number, Piece, lines, over_names, restored, rolled
from .data_flow import TEMPLATE, Flow
from .device_statements import Written
from .segments import SegmentPhase
from .short_loops import Short, shortened

Item: TypeAlias = int
"""An instruction of a micro-batch: its place in the flow times the number of micro-batches, plus that of its own."""


def statements(looped: Looped, flow: Flow, written: Sequence[Written]) -> list[Piece]:
    """All statements of a device in order, repeated ones in loops."""
    if looped.loop is None:
        return rolled([piece for own in written for piece in own.pieces])
    device = _Device(looped, looped.loop, flow, written)
    for order in (device.shortened, device.whole):
        short = order()
        pieces = None if short is None else device.write(short)
        if pieces is not None:
            found = restored(rolled(pieces, names=False))
            if found is not None and sum(map(lines, found)) == device.size:
                return over_names(found)
    raise AssertionError("all micro-batches are written without leaving any out")


class _Block(NamedTuple):
    """A block of the template: its number, how many instructions it has, and their places."""

    number: int
    places: frozenset[int]


class _Device:
    def __init__(self, looped: Looped, loop: Loop, flow: Flow, written: Sequence[Written]) -> None:
        self.loop, self.flow, self.written = loop, flow, written
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
        self.looped = looped
        self.lines = [[(own, _moving(own)) for own in map(_line, statement.pieces)] for statement in written]
        self._check()

    def whole(self) -> Short:
        """The device's instructions with statements in the order of all micro-batches."""
        return Short(*self._order(self.looped), self.loop.count)

    def shortened(self) -> Short | None:
        """The same without most repetitions; None if these are not the whole program's."""
        between = [micro == 1 and (at in self.blocks or at in self.text) for at, micro in enumerate(self.micro)]
        short, repeat = self.looped.short, self.looped.order.repeat
        late = repeat.late if repeat else 0
        found = shortened(*self._order(short), self.loop.count - late, np.array(between, dtype=bool))
        if not late:
            return found
        return replace(found, late=found.late + late) if len(found.runs) == 1 else None

    def _order(self, looped: Looped) -> tuple[Numbers, Numbers]:
        """The device's instructions with statements, and their micro-batches."""
        at, place = looped.instructions(self.flow.device)
        own = np.argsort(self.flow.places)[place]  # places of the flow
        has = np.zeros(len(self.flow.places), dtype=bool)
        has[[*self.blocks, *self.text]] = True
        return self._constants_moved(own[has[own]], looped.micros[at][has[own]], looped.count)

    def _constants_moved(self, own: Numbers, micros: Numbers, count: int) -> tuple[Numbers, Numbers]:
        """The instructions with constants of each micro-batch where the flow has them."""
        ahead_of = np.full(len(self.flow.places), -1)
        for place, other in self.flow.ahead_of.items():
            if self.micro[place] == self.micro[other]:
                ahead_of[place] = other
        if not (ahead_of >= 0).any():
            return own, micros
        here = np.arange(len(own))
        at = np.full((len(ahead_of), count), -1)
        at[own, micros] = here
        to = np.where(ahead_of[own] < 0, -1, at[ahead_of[own], micros])
        order = np.argsort(np.where(to < 0, 2 * here, 2 * to - 1), kind="stable")
        return own[order], micros[order]

    @property
    def size(self) -> int:
        """How many statements there are for all micro-batches."""
        micros = map(self._micro, self.written)
        return sum(
            len(lines) * (1 if micro is None else len(self.loop.stands_for(micro)))
            for lines, micro in zip(self.lines, micros, strict=True)
        )

    def _needs(self) -> list[frozenset[int]]:
        """By place, what an instruction needs that has statements: of a sum that autograd forms, what is added."""
        found: list[frozenset[int]] = []
        for needs in self.flow.needs:
            parts = ({place} if place in self.blocks or place in self.text else found[place] for place in needs)
            found.append(frozenset().union(*parts))
        return found

    def _needed(self, place: int, needs: Iterable[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """What an instruction needs of its own micro-batch, whichever that is, and what of others in the template."""
        same, others = list[int](), list[tuple[int, int]]()
        for other in needs:
            own = self.micro[other]
            if own is not None and own == self.micro[place]:
                same.append(other)
            else:
                others.append((other, own or 0))
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

    def write(self, short: Short) -> list[Piece] | None:
        """The statements for these micro-batches; None if it is not proved that they are those for all."""
        self.count, self.late, self.since, self.shown = short.count, short.late, short.since, (0, 1, short.count - 1)
        self.queue: deque[Item] = deque((short.own * short.count + short.micros).tolist())
        self.other = [[other * self.count + self.shown[own] for other, own in more] for _, more in self.needed]
        self.pieces: list[Piece] = []
        self.put_off = 0  # items at the head of the queue that returned to it
        clean, size = list[int](), len(self.queue)
        while self.queue:
            if not self.put_off:
                clean.append(size - len(self.queue))
            place, micro = divmod(self._next(), self.count)
            if place in self.blocks:
                self._block(self.blocks[place], place, micro)
            else:
                self._single(place, micro)
        self._add(len(self.written) - 1, 0, (None, 0))
        return self.pieces if short.proved(clean) else None

    def _next(self) -> Item:
        self.put_off = max(0, self.put_off - 1)
        return self.queue.popleft()

    def _single(self, place: int, micro: int) -> None:
        number = self.blocks[place].number if place in self.blocks else self.text.get(place)
        if number is not None:
            self._add(number, micro, self._shown(place, micro))

    def _shown(self, place: int, micro: int) -> tuple[int | None, int]:
        """The micro-batch of the template that stands for that of an instruction, and how many were left out before."""
        return self.micro[place], self.late if micro >= self.since.get(place, self.count) else 0

    def _block(self, block: _Block, first: int, micro: int, outer: Collection[Item] = (), moving: bool = False) -> None:
        """Collect a block. What lies in its way runs before it or returns to the queue.

        `outer`: what waits for a block that runs after this one, and that block; `moving`: whether a transfer does.
        """
        flow, left = self.flow, len(block.places) - 1
        after = {first * self.count + micro, *outer}
        deferred: dict[Item, None] = {}
        while left:
            item = self._next()
            place, own = divmod(item, self.count)
            if place in block.places and own == micro:
                if self._needs_any(place, own, deferred) or self._needs_any(place, own, outer):
                    raise Irregular("a block needs what needs the block")
                left -= 1
                after.add(item)
            elif own == micro and self._runs_before(place, block) and not self._needs_any(place, own, after):
                self._block(self.blocks[place], place, own, after, moving)
            elif self._several(place) or self._needs_any(place, own, after) or (moving and flow.transfers(place)):
                deferred[item] = None
                after.add(item)
                moving |= flow.transfers(place)
            else:
                self._single(place, own)
        self._add(block.number, micro, self._shown(first, micro))
        self.queue.extendleft(reversed(deferred))
        self.put_off += len(deferred)

    def _runs_before(self, place: int, block: _Block) -> bool:
        """True for an instruction of a block that runs before another one in the template."""
        return self._several(place) and self.blocks[place].number < block.number

    def _several(self, place: int) -> bool:
        """True for an instruction of a block that has others."""
        return place in self.blocks and len(self.blocks[place].places) > 1

    def _needs_any(self, place: int, micro: int, items: Container[Item]) -> bool:
        """True if the instruction of a micro-batch needs one of some items."""
        for other in self.needed[place][0]:
            if other * self.count + micro in items:
                return True
        return any(other in items for other in self.other[place])

    def _add(self, number: int, micro: int, of: tuple[int | None, int]) -> None:
        """The statements of the template for a micro-batch; `of`: `_shown` of it."""
        shown, late = of

        def settled(found: Number) -> Number:
            if found.constant == shown:
                return found._replace(role="m", constant=micro, late=late)
            if found.constant == 1:
                raise Irregular("a statement is of two micro-batches")
            last = found.constant == 2
            return found._replace(role="m", constant=self.shown[found.constant], late=self.late if last else 0)

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
    """True for a statement that drops a tensor after its last use."""
    return isinstance(piece, Line) and piece.text[0].startswith(("v.take(", "w.take("))


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
