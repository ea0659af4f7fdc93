"""Rolling repeated statements into loops over the numbers that advance in them.

While a device's program is being written, its numbers are marked, `<role|3>`, and names have double brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .text import WIDTH, wrap

_MARK = re.compile(r"⟦(\w+)\|(-?\d+(?:,-?\d+)*)⟧")
_QUOTED = re.compile(r"⟪([^⟫]*)⟫")
COMMA = "¸"
"""A comma at which lines are not broken."""

LONGEST_BLOCK = 160
"""Most statements in one turn of a loop."""


def mark(role: str, *numbers: int) -> str:
    """Mark a number that may advance; `role` names the variable of a loop over it.

    `numbers`: that of each rank for which the statement stands.
    """
    return f"⟦{role}|{','.join(map(str, numbers if len({*numbers}) > 1 else numbers[:1]))}⟧"


def quoted(name: str, count: int = 1, always: bool = False) -> str:
    """A name as a string whose numbers between dots may advance. `count` distinguishes equal names."""
    parts = [mark("i", int(part)) if part.isdigit() else part for part in name.split(".")]
    suffix = f" {mark('i', count)}" if always or count > 1 else ""
    return f"⟪{'.'.join(parts)}{suffix}⟫"


class Number(NamedTuple):
    """A constant and multiples of loop variables; `role` names the variable of a loop in which it advances.

    `more`: by rank for which the statement stands, how much larger it is there; empty if it is the same for all.
    `late`: how much larger it is since repetitions before it were left out.
    """

    role: str
    constant: int
    terms: tuple[tuple[str, int], ...] = ()
    more: tuple[int, ...] = ()
    late: int = 0

    def __str__(self) -> str:
        parts = [name if by == 1 else f"{by} * {name}" for name, by in self.terms]
        text = " + ".join(parts).replace("+ -", "- ")
        text = re.sub(r"^-1 \* ", "-", re.sub(r"- 1 \* ", "- ", text))
        if not text:
            return str(self.constant)
        return text if not self.constant else f"{text} {'-' if self.constant < 0 else '+'} {abs(self.constant)}"


class Line(NamedTuple):
    """A statement: its text around its numbers, and the numbers."""

    text: tuple[str, ...]
    numbers: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class RolledLoop:
    """`body` repeated `count` times, over `names` if there are any.

    A variable that is a number counts from 0 or from the first number that it advances. `left_out`: turns that were
    left out between two of the others; None if the turns are not equal then.
    """

    variable: str
    count: int
    body: tuple[Piece, ...]
    names: tuple[Line, ...] = ()
    left_out: int | None = 0


Piece: TypeAlias = "Line | RolledLoop"


def line(text: str) -> Line:
    """A statement from marked text."""
    found = _MARK.findall(text)
    return Line(tuple(_MARK.sub("\0", text).split("\0")), tuple(_number(role, given) for role, given in found))


def _number(role: str, given: str) -> Number:
    first, *others = map(int, given.split(","))
    return Number(role, first, more=(0, *(other - first for other in others)) if others else ())


def of_rank(piece: Piece, rank: int) -> Piece:
    """A piece for one of the ranks for which it stands, by number among them."""

    def own(number: Number) -> Number:
        return number._replace(constant=number.constant + number.more[rank], more=()) if number.more else number

    return mapped(piece, own)


# Structure and numbers of pieces


def shape(piece: Piece) -> object:
    """A piece without the constants of its numbers."""
    if isinstance(piece, Line):
        return piece.text, tuple([(role, terms, more) for role, _, terms, more, _ in piece.numbers])
    return piece.variable, piece.count, tuple(map(shape, (*piece.names, *piece.body)))


def numbers(piece: Piece) -> Sequence[Number]:
    if isinstance(piece, Line):
        return piece.numbers
    return [number for inner in (*piece.names, *piece.body) for number in numbers(inner)]


def mapped(piece: Piece, change: Callable[[Number], Number]) -> Piece:
    """A piece with changed numbers; `change` gets them in the order of `numbers`."""
    if isinstance(piece, Line):
        return Line(piece.text, tuple(map(change, piece.numbers)))
    names = tuple(Line(name.text, tuple(map(change, name.numbers))) for name in piece.names)
    return replace(piece, body=tuple(mapped(inner, change) for inner in piece.body), names=names)


def lines(piece: Piece) -> int:
    """How many statements run."""
    return 1 if isinstance(piece, Line) else piece.count * sum(map(lines, piece.body))


def restored(pieces: Sequence[Piece]) -> list[Piece] | None:
    """The pieces with the repetitions that were left out; None if they do not all lie in loops of equal turns."""
    found = []
    for piece in pieces:
        if isinstance(piece, RolledLoop):
            body = restored(piece.body)
            if body is None or piece.left_out is None:
                return None
            piece = replace(piece, count=piece.count + piece.left_out, body=tuple(body), left_out=0)
        elif any(number.late for number in piece.numbers):
            piece = mapped(piece, lambda number: number._replace(constant=number.constant + number.late, late=0))
        found.append(piece)
    return found


class _Look(NamedTuple):
    """A piece, the number of its shape, and its constants."""

    piece: Piece
    key: int
    constants: list[int]


def rolled(pieces: Sequence[Piece], names: bool = True) -> list[Piece]:
    """Roll up blocks that repeat with numbers advancing in equal steps, then lines that differ in a name."""
    ids: dict[object, int] = {}

    def looked_at(piece: Piece) -> _Look:
        constants = [number.constant for number in numbers(piece)]
        return _Look(piece, ids.setdefault(shape(piece), len(ids)), constants)

    current, grown = list(map(looked_at, pieces)), True
    while grown:
        grown = False
        keys = np.array([look.key for look in current])
        for length in range(1, min(LONGEST_BLOCK, len(current) // 2) + 1):
            made = _roll(current, keys, length, looked_at)
            if made is not None:
                current, grown = made, True
                break
    found = [look.piece for look in current]
    return over_names(found) if names else found


def _roll(
    looks: Sequence[_Look], keys: NDArray[np.int_], length: int, looked_at: Callable[[Piece], _Look]
) -> list[_Look] | None:
    """Loops over blocks of `length` pieces with equal `keys`; None if nothing repeats."""
    same = np.concatenate(([0], np.cumsum(keys[length:] == keys[:-length])))
    starts = np.flatnonzero(same[length:] - same[:-length] == length)  # a block that the next one is like
    result: list[_Look] = []
    at, changed = 0, False
    for start in starts.tolist():
        if start < at:
            continue
        count, steps = _repeats(looks, keys, start, length)
        if ((count - 1) * length >= 2 and any(steps)) or (count > 2 and not any(steps)):
            result += looks[at:start]
            turns = [looks[at : at + length] for at in range(start, start + count * length, length)]
            result.append(looked_at(_loop([[look.piece for look in turn] for turn in turns], steps)))
            at, changed = start + count * length, True
    return [*result, *looks[at:]] if changed else None


def _repeats(looks: Sequence[_Look], keys: NDArray[np.int_], at: int, length: int) -> tuple[int, list[int]]:
    """How often a block repeats with numbers advancing in equal steps, and these steps."""
    first = [n for look in looks[at : at + length] for n in look.constants]
    steps: list[int] = []
    count, before = 1, first
    while np.array_equal(keys[at + count * length : at + (count + 1) * length], keys[at : at + length]):
        block = [n for look in looks[at + count * length : at + (count + 1) * length] for n in look.constants]
        moved = [b - a for a, b in zip(before, block, strict=True)]
        if count > 1 and moved != steps:
            break
        steps, before, count = moved, block, count + 1
    return count, steps


def _loop(turns: Sequence[Sequence[Piece]], steps: Sequence[int]) -> RolledLoop:
    """A loop whose variable has the role of the first number that advances."""
    block, count = turns[0], len(turns)
    found = [number for piece in block for number in numbers(piece)]
    used = {name for number in found for name, _ in number.terms}
    role = next((number.role for number, step in zip(found, steps, strict=True) if step), "i")
    variable = next(name for name in (role, *"ijabcdef") if name not in used)
    advance = iter(steps)

    def advanced(number: Number) -> Number:
        step = next(advance)
        return number._replace(terms=(*number.terms, (variable, step))) if step else number

    body = tuple(mapped(piece, advanced) for piece in block)
    return RolledLoop(variable, count, body, left_out=_left_out(turns, steps))


def _left_out(turns: Sequence[Sequence[Piece]], steps: Sequence[int]) -> int | None:
    """How many turns are left out between equal ones; None if those left out are not equal to them."""
    first, last = ([number for piece in turn for number in numbers(piece)] for turn in (turns[0], turns[-1]))
    more = {(b.late - a.late, step) for a, b, step in zip(first, last, steps, strict=True)}
    inner = ([piece.left_out for piece in turn if isinstance(piece, RolledLoop)] for turn in turns)
    if len({*map(tuple, inner)}) > 1:
        return None
    if not any(late for late, _ in more):
        return 0
    moving = [(late, step) for late, step in more if (late, step) != (0, 0)]
    late, step = moving[0]
    return late // step if len(moving) == 1 and step > 0 and late % step == 0 else None


# Loops over names


def over_names(pieces: Sequence[Piece]) -> list[Piece]:
    """Turn runs of lines that differ in one name into loops over the names."""
    inner = [replace(p, body=tuple(over_names(p.body))) if isinstance(p, RolledLoop) else p for p in pieces]
    result: list[Piece] = []
    at = 0
    while at < len(inner):
        best, size = list[tuple[tuple[Line, ...], Line]](), 1
        for length in (1, 2, 3):
            blocks: list[tuple[tuple[Line, ...], Line]] = []
            for start in range(at, len(inner), length):
                block = _named(inner[start : start + length])
                if block is None or (blocks and block[0] != blocks[0][0]):
                    break
                blocks.append(block)
            if len(blocks) > 2 and len(blocks) * length > len(best) * size:
                best, size = blocks, length
        if best:
            result.append(RolledLoop("name", len(best), best[0][0], tuple(name for _, name in best)))
        else:
            result.append(inner[at])
        at += max(1, len(best)) * size
    return result


def _named(block: Sequence[Piece]) -> tuple[tuple[Line, ...], Line] | None:
    """Lines with exactly one name: the lines with a variable in its place, and the name. None for others."""
    names: set[Line] = set()
    body: list[Line] = []
    for piece in block:
        if not isinstance(piece, Line):
            return None
        text, own = "\0".join(piece.text), list(piece.numbers)
        for match in reversed(list(_QUOTED.finditer(text))):
            first, count = text[: match.start()].count("\0"), match[1].count("\0")
            names.add(Line(tuple(match[0].split("\0")), tuple(own[first : first + count])))
            del own[first : first + count]
        body.append(Line(tuple(_QUOTED.sub("name", text).split("\0")), tuple(own)))
    return (tuple(body), names.pop()) if len(names) == 1 else None


# Text


def shown(piece: Line) -> str:
    """The text with its numbers filled in; names are still marked."""
    parts = [piece.text[0]]
    for number, after in zip(piece.numbers, piece.text[1:], strict=True):
        moving = "{%s}" if number.terms and "".join(parts).count("⟪") > "".join(parts).count("⟫") else "%s"
        parts += [moving % str(number), after]
    return "".join(parts)


def plain(text: str) -> str:
    """Marked names as strings, f-strings if they contain variables."""
    return _QUOTED.sub(lambda m: f'f"{m[1]}"' if "{" in m[1] else f'"{m[1]}"', text)


def written(pieces: Sequence[Piece], indent: int = 4) -> list[str]:
    """The lines of a function's body."""
    lines: list[str] = []
    for piece in pieces:
        if isinstance(piece, Line):
            text = plain(shown(piece))
            inner = len(text) - len(text.lstrip())  # in a block that is one statement for loops
            lines += [one.replace(COMMA, ", ") for one in wrap(text.lstrip(), indent + inner)]
        else:
            lines += _over_names_text(piece, indent) if piece.names else _loop_text(piece, indent)
    return lines


def _loop_text(loop: RolledLoop, indent: int) -> list[str]:
    """The text of a loop; its variable starts at the constant of the first number that it alone advances."""
    found = [n for piece in loop.body for n in numbers(piece)]
    first = next((n for n in found if (loop.variable, 1) in n.terms), None)
    back = next((n for n in found if (loop.variable, -1) in n.terms), None)
    start, step = (first.constant, 1) if first is not None else (back.constant, -1) if back is not None else (0, 1)
    stop = start + step * loop.count
    body = [mapped(piece, lambda n: _from(n, loop.variable, start, step)) for piece in loop.body]
    bounds = f"{start}, {stop}, -1" if step < 0 else f"{start}, {stop}" if start else f"{stop}"
    used = any(loop.variable == name for n in found for name, _ in n.terms)
    head = f"{' ' * indent}for {loop.variable if used else '_'} in range({bounds}):"
    return [head, *written(body, indent + 4)]


def _from(number: Number, variable: str, start: int, step: int) -> Number:
    """The number after the substitution variable := start + step * variable."""
    by = dict(number.terms).get(variable, 0)
    terms = tuple((name, b if name != variable else b * step) for name, b in number.terms)
    return number._replace(constant=number.constant - by * step * start, terms=terms)


def _over_names_text(loop: RolledLoop, indent: int) -> list[str]:
    pad = " " * indent
    names = [plain(shown(name)) for name in loop.names]
    head = [f"{pad}for {loop.variable} in ({', '.join(names)}):"]
    if len(head[0]) > WIDTH:
        head = [f"{pad}for {loop.variable} in (", *(f"{pad}    {name}," for name in names), f"{pad}):"]
    return [*head, *written(loop.body, indent + 4)]
