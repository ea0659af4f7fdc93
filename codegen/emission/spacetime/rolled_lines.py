"""Rolling repeated statements into loops over the numbers that advance in them.

While a device's program is written, its numbers stand in marks, `<role|3>`, and names in double brackets around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..common.text import wrap

_MARK = re.compile(r"⟦(\w+)\|(-?\d+)⟧")
_QUOTED = re.compile(r"⟪([^⟫]*)⟫")
COMMA = "¸"
"""A comma at which lines are not broken."""

LONGEST_BLOCK = 160
"""Most statements in one turn of a loop."""


def mark(role: str, number: int) -> str:
    """Mark a number that may advance; `role` names the variable of a loop over it."""
    return f"⟦{role}|{number}⟧"


def quoted(name: str, count: int = 1, always: bool = False) -> str:
    """A name as a string whose numbers between dots may advance. `count` tells several of one name apart."""
    parts = [mark("i", int(part)) if part.isdigit() else part for part in name.split(".")]
    told = f" {mark('i', count)}" if always or count > 1 else ""
    return f"⟪{'.'.join(parts)}{told}⟫"


@dataclass(frozen=True, slots=True)
class Number:
    """A constant and multiples of loop variables."""

    constant: int
    terms: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        parts = [name if by == 1 else f"{by} * {name}" for name, by in self.terms]
        text = " + ".join(parts).replace("+ -", "- ")
        text = re.sub(r"^-1 \* ", "-", re.sub(r"- 1 \* ", "- ", text))
        if not text:
            return str(self.constant)
        return text if not self.constant else f"{text} {'-' if self.constant < 0 else '+'} {abs(self.constant)}"


@dataclass(frozen=True, slots=True)
class Line:
    """A statement: its text with `{}` for the numbers, their roles, and the numbers."""

    text: tuple[str, ...]
    roles: tuple[str, ...]
    numbers: tuple[Number, ...]
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` repeated `count` times; the variable counts from 0 or from the first of its numbers."""

    variable: str
    count: int
    body: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """`body` for each of some names, for which its lines have the variable."""

    variable: str
    names: tuple[Line, ...]
    body: tuple[Piece, ...]


Piece: TypeAlias = "Line | Loop | Names"


def line(text: str, comment: str = "") -> Line:
    """A statement from marked text."""
    found = _MARK.findall(text)
    parts = tuple(_MARK.sub("\0", text).split("\0"))
    return Line(parts, tuple(r for r, _ in found), tuple(Number(int(n)) for _, n in found), comment)


# Structure and numbers of pieces


def shape(piece: Piece) -> object:
    """A piece without the constants of its numbers."""
    match piece:
        case Line():
            return piece.text, piece.roles, tuple(n.terms for n in piece.numbers), piece.comment
        case Loop():
            return piece.count, piece.variable, tuple(map(shape, piece.body))
    return piece.variable, tuple(map(shape, (*piece.names, *piece.body)))


def numbers(piece: Piece) -> Iterator[tuple[str, Number]]:
    if isinstance(piece, Line):
        yield from zip(piece.roles, piece.numbers, strict=True)
    else:
        for inner in (*(piece.names if isinstance(piece, Names) else ()), *piece.body):
            yield from numbers(inner)


def with_numbers(piece: Piece, new: Iterator[Number]) -> Piece:
    """A piece with other numbers, in the order of `numbers`."""
    if isinstance(piece, Line):
        return replace(piece, numbers=tuple(next(new) for _ in piece.numbers))
    if isinstance(piece, Names):
        names = tuple(replace(n, numbers=tuple(next(new) for _ in n.numbers)) for n in piece.names)
        piece = replace(piece, names=names)
    return replace(piece, body=tuple(with_numbers(inner, new) for inner in piece.body))


def rolled(pieces: Sequence[Piece], names: bool = True) -> list[Piece]:
    """Roll up blocks that repeat with numbers advancing in equal steps, then lines that differ in a name."""
    current = list(pieces)
    grown = True
    while grown:
        grown = False
        ids: dict[object, int] = {}
        keys = np.array([ids.setdefault(shape(piece), len(ids)) for piece in current])
        flat = [[n.constant for _, n in numbers(piece)] for piece in current]
        for length in range(1, min(LONGEST_BLOCK, len(current) // 2) + 1):
            made = _roll(current, keys, flat, length)
            if made is not None:
                current, grown = made, True
                break
    return _over_names(current) if names else current


def _roll(
    pieces: Sequence[Piece], keys: NDArray[np.int_], flat: Sequence[list[int]], length: int
) -> list[Piece] | None:
    """Loops over blocks of `length` pieces with equal `keys`; None if nothing repeats."""
    same = np.concatenate(([0], np.cumsum(keys[length:] == keys[:-length])))
    starts = np.flatnonzero(same[length:] - same[:-length] == length)  # a block that the next one is like
    result: list[Piece] = []
    at, changed = 0, False
    for start in starts.tolist():
        if start < at:
            continue
        count, steps = _repeats(keys, flat, start, length)
        if ((count - 1) * length >= 2 and any(steps)) or (count > 2 and not any(steps)):
            result += pieces[at:start]
            result.append(_loop(pieces[start : start + length], count, steps))
            at, changed = start + count * length, True
    return [*result, *pieces[at:]] if changed else None


def _repeats(keys: NDArray[np.int_], flat: Sequence[list[int]], at: int, length: int) -> tuple[int, list[int]]:
    """How often a block repeats with numbers advancing in equal steps, and these steps."""
    first = [n for own in flat[at : at + length] for n in own]
    steps: list[int] = []
    count, before = 1, first
    while np.array_equal(keys[at + count * length : at + (count + 1) * length], keys[at : at + length]):
        block = [n for own in flat[at + count * length : at + (count + 1) * length] for n in own]
        moved = [b - a for a, b in zip(before, block, strict=True)]
        if count > 1 and moved != steps:
            break
        steps, before, count = moved, block, count + 1
    return count, steps


def _loop(block: Sequence[Piece], count: int, steps: Sequence[int]) -> Loop:
    """A loop whose variable has the role of the first number that advances."""
    found = [pair for piece in block for pair in numbers(piece)]
    moving = [(role, n, step) for (role, n), step in zip(found, steps, strict=True) if step]
    used = {name for _, n in found for name, _ in n.terms}
    role = next((role for role, _, _ in moving), "i")
    variable = next(name for name in (role, *"ijabcdef") if name not in used)
    new = iter(
        [
            replace(n, terms=(*n.terms, (variable, step))) if step else n
            for (_, n), step in zip(found, steps, strict=True)
        ]
    )
    return Loop(variable, count, tuple(with_numbers(piece, new) for piece in block))


# Loops over names


def _over_names(pieces: Sequence[Piece]) -> list[Piece]:
    """Turn runs of lines that differ in one name into loops over the names."""
    inner = [replace(p, body=tuple(_over_names(p.body))) if isinstance(p, Loop | Names) else p for p in pieces]
    result: list[Piece] = []
    at = 0
    while at < len(inner):
        best, size = 1, 1
        for length in (1, 2, 3):
            count = 1
            first = _named(inner[at : at + length])
            while first is not None and (again := _named(inner[at + count * length : at + (count + 1) * length])):
                if again[0] != first[0]:
                    break
                count += 1
            if count > 2 and count * length > best * size:
                best, size = count, length
        found = _named(inner[at : at + size]) if best > 1 else None
        if found is None:
            result.append(inner[at])
            at += 1
            continue
        blocks = [_named(inner[at + k * size : at + (k + 1) * size]) for k in range(best)]
        names = tuple(block[1] for block in blocks if block is not None)
        result.append(Names("name", names, tuple(found[2])))
        at += best * size
    return result


def _named(block: Sequence[Piece]) -> tuple[object, Line, list[Line]] | None:
    """For lines with exactly one name: a key without it, the name, and the lines with a variable in its place."""
    names: set[Line] = set()
    made: list[Line] = []
    for piece in block:
        if not isinstance(piece, Line):
            return None
        text = "\0".join(piece.text)
        roles, own = list(piece.roles), list(piece.numbers)
        for match in reversed(list(_QUOTED.finditer(text))):
            first, count = text[: match.start()].count("\0"), match[1].count("\0")
            names.add(
                Line(
                    tuple(match[0].split("\0")), tuple(roles[first : first + count]), tuple(own[first : first + count])
                )
            )
            del roles[first : first + count], own[first : first + count]
        made.append(Line(tuple(_QUOTED.sub("name", text).split("\0")), tuple(roles), tuple(own), piece.comment))
    return (tuple(made), names.pop(), made) if len(names) == 1 else None


# Text


def shown(piece: Line) -> str:
    """The text with its numbers filled in; names are still marked."""
    parts = [piece.text[0]]
    for number, after in zip(piece.numbers, piece.text[1:], strict=True):
        moving = "{%s}" if number.terms and "".join(parts).count("⟪") > "".join(parts).count("⟫") else "%s"
        parts += [moving % number, after]
    return "".join(parts)


def plain(text: str) -> str:
    """Marked names as strings, f-strings if they contain variables."""
    return _QUOTED.sub(lambda m: f'f"{m[1]}"' if "{" in m[1] else f'"{m[1]}"', text)


def written(pieces: Sequence[Piece], indent: int = 4) -> list[str]:
    """The lines of a function's body."""
    lines: list[str] = []
    for piece in pieces:
        match piece:
            case Line():
                text = plain(shown(piece))
                inner = len(text) - len(text.lstrip())  # in a block that is one statement for loops
                lines += [one.replace(COMMA, ", ") for one in wrap(text.lstrip(), indent + inner, piece.comment)]
            case Loop():
                lines += _loop_text(piece, indent)
            case Names():
                lines += _names_text(piece, indent)
    return lines


def _loop_text(loop: Loop, indent: int) -> list[str]:
    """The text of a loop; its variable starts at the constant of the first number that it alone advances."""
    found = [n for piece in loop.body for _, n in numbers(piece)]
    first = next((n for n in found if (loop.variable, 1) in n.terms), None)
    back = next((n for n in found if (loop.variable, -1) in n.terms), None)
    start, step = (first.constant, 1) if first is not None else (back.constant, -1) if back is not None else (0, 1)
    stop = start + step * loop.count
    moved = iter([_from(n, loop.variable, start, step) for n in found])
    body = [with_numbers(piece, moved) for piece in loop.body]
    bounds = f"{start}, {stop}, -1" if step < 0 else f"{start}, {stop}" if start else f"{stop}"
    used = any(loop.variable == name for n in found for name, _ in n.terms)
    head = f"{' ' * indent}for {loop.variable if used else '_'} in range({bounds}):"
    return [head, *written(body, indent + 4)]


def _from(number: Number, variable: str, start: int, step: int) -> Number:
    """The number after the substitution variable := start + step * variable."""
    by = dict(number.terms).get(variable, 0)
    if not by:
        return number
    terms = tuple((name, b if name != variable else by * step) for name, b in number.terms)
    return Number(number.constant - by * step * start, terms)


def _names_text(loop: Names, indent: int) -> list[str]:
    pad = " " * indent
    names = [plain(shown(name)) for name in loop.names]
    one = f"{pad}for {loop.variable} in ({', '.join(names)}):"
    head = (
        [one] if len(one) <= 120 else [f"{pad}for {loop.variable} in (", *(f"{pad}    {n}," for n in names), f"{pad}):"]
    )
    return [*head, *written(loop.body, indent + 4)]


@dataclass
class Lines:
    """Statements in the order in which they are written."""

    pieces: list[Piece] = field(default_factory=list)

    def add(self, text: str, comment: str = "") -> None:
        self.pieces.append(line(text, comment))
