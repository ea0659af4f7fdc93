"""Small helpers for program text: sizes, expressions, and lines as a formatter would break them."""

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

WIDTH = 120

Size: TypeAlias = "int | str"
"""A number, or an expression where ranks differ."""


def one_free(sizes: Sequence[Size]) -> list[Size]:
    """Sizes with -1 for one that is not a number; others stay expressions."""
    free = next((i for i, s in enumerate(sizes) if isinstance(s, str)), None)
    return [-1 if i == free else s for i, s in enumerate(sizes)]


def product(factors: Iterable[Size]) -> Size:
    """The product as a number where all factors are numbers, else as an expression."""
    number, rest = 1, []
    for factor in factors:
        if isinstance(factor, int):
            number *= factor
        else:
            rest.append(factor)
    if not rest:
        return number
    return " * ".join([str(number), *rest] if number != 1 else rest)


@lru_cache(maxsize=65536)
def compound(text: str) -> bool:
    """True if an expression needs parentheses before anything is appended to it."""
    node = ast.parse(text, mode="eval").body
    return not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant | ast.Tuple)


def enclosed(text: str) -> str:
    return f"({text})" if compound(text) else text


@lru_cache(maxsize=65536)
def tidy(text: str) -> str:
    """The same expression without redundant parentheses."""
    result = ast.unparse(ast.parse(text, mode="eval").body)
    result = _BACK.sub("", _ONE.sub(_index, _EQUAL.sub(r".chunk(\2, \1)", result)))
    return result if '"' in result else result.replace("'", '"')


_EQUAL = re.compile(r"\.unflatten\((\d+), \((\d+), [^(),]+\)\)\.unbind\(\1\)")
_BACK = re.compile(r"\.unsqueeze\((\d+)\)\.squeeze\(\1\)")
_ONE = re.compile(r"\[((?::, )*)(\d*):(\d*)\]\.squeeze\((\d+)\)")


def _index(match: re.Match[str]) -> str:
    """`x[:, 2:3].squeeze(1)` is `x[:, 2]`."""
    before, start, stop, dim = match.groups()
    if int(stop or int(start) + 1) == int(start or 0) + 1 and before.count(":") == int(dim):
        return f"[{before}{start or 0}]"
    return match[0]


def shape_text(shape: Iterable[Size]) -> str:
    """A tuple of sizes."""
    return tuple_text([str(size) for size in shape])


def tuple_text(parts: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def wrap(line: str, indent: int, comment: str = "") -> list[str]:
    """A statement as lines of at most `WIDTH` columns, broken inside its last brackets.

    A comment that does not fit behind the statement goes above it.
    """
    pad = " " * indent
    if comment and len(pad + line) + len(comment) + 4 <= WIDTH:
        return [f"{pad}{line}  # {comment}"]
    head = [f"{pad}# {comment}"] if comment else []
    if len(pad + line) <= WIDTH:
        return [*head, pad + line]
    opening, closing = _brackets(line, WIDTH - indent)
    inside = line[opening + 1 : closing]
    lines = [*head, pad + line[: opening + 1]]
    if len(pad) + 4 + len(inside) <= WIDTH and not inside.startswith("lambda"):
        lines += [f"{pad}    {inside}"]
    else:
        for part in filter(str.strip, _splits(inside, ",") or [inside]):  # a comma may be the last
            lines += wrap(f"{part.strip()},", indent + 4)
    return [*lines, pad + line[closing:]]


def _brackets(line: str, width: int) -> tuple[int, int]:
    """Places of the last outermost brackets, not empty, up to which the line fits."""
    depth, opening, found = 0, 0, (0, 0)
    for place, sign in enumerate(line):
        if sign in "([{":
            if depth == 0:
                opening = place
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth == 0 and place > opening + 1 and (opening < width or found == (0, 0)):
                found = (opening, place)
    assert found != (0, 0), line
    return found


def _splits(text: str, sign: str) -> list[str]:
    """The parts of `text` between the signs outside of brackets; [] if there is none."""
    depth, start, parts = 0, 0, []
    for place, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == sign and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]] if parts else []
