"""The functions of a program: of its segments, and of its devices."""

import re
import textwrap
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ....model.machine.precision import Precision
from ..common.conversions import Used
from ..common.rolled_lines import Number, Piece, mapped, numbers, shape, written
from ..common.text import wrap
from .segment_functions import Code, Segments
from .segments import DeviceSegment

MOST_PARAMETERS = 4
"""Most numbers in which devices that share a function may differ."""


@dataclass
class Functions:
    """The functions of all segments of a program, by name. `bases`: the numbers with which each is called.

    `precision`: of the plan. `fetches`: whether devices take weights from others. `known`: a segment's code by key.
    """

    used: Used
    precision: Precision
    fetches: bool = False
    names: dict[object, str] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    bases: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    known: dict[Hashable, Code] = field(default_factory=dict)

    def code(self, segment: Segments) -> Code:
        """The code of a segment; of those with equal keys it is written once."""
        key = segment.key()
        if key in self.known:
            return segment.like(self.known[key])
        self.known[key] = segment.write()
        return self.known[key]

    def add(self, code: Code, title: str) -> None:
        """Name the function of a segment like an equal one, else by its title."""
        key = (code.body, code.arguments)
        if key not in self.names:
            count = sum(re.sub(r"_\d+$", "", name) == title for name in self.codes)
            self.names[key] = f"{title}_{count + 1}" if count else title
            self.codes[self.names[key]] = code
        code.name = self.names[key]
        bases = self.bases.setdefault(code.name, {})
        for base, number in code.bases:
            bases.setdefault(base, set()).add(number)

    def moving(self, name: str) -> tuple[str, ...]:
        """The numbers in which calls of a function differ."""
        return tuple(base for base, found in self.bases[name].items() if len(found) > 1)

    def text(self, name: str) -> str:
        """The definition of a function."""
        code, moving = self.codes[name], self.moving(name)
        fixed = {base: min(found) for base, found in self.bases[name].items() if base not in moving}

        def settled(number: Number) -> Number:
            constant = number.constant + sum(by * fixed.get(base, 0) for base, by in number.terms)
            return Number(number.role, constant, tuple(term for term in number.terms if term[0] not in fixed))

        body = [mapped(piece, settled) for piece in code.body]
        head = f"def {name}({', '.join(['at', *moving, *code.arguments])}):"
        return "\n".join([*wrap(head, 0), *written(body)])


def device_functions(
    segments: Sequence[Sequence[DeviceSegment]], bodies: Sequence[Sequence[Piece]]
) -> tuple[list[str], list[str]]:
    """The functions of the devices, and the table of which rank runs which.

    `segments` and `bodies`: by device. Devices that differ only in a few numbers share a function.
    """
    alike: dict[object, list[int]] = {}
    for number, body in enumerate(bodies):
        alike.setdefault(tuple(map(shape, body)), []).append(number)
    texts: list[str] = []
    entries: dict[int, str] = {}
    for members in alike.values():
        differing = {column for column in _columns(bodies, members) if len(set(column)) > 1}
        for group in [members] if len(differing) <= MOST_PARAMETERS else [[d] for d in members]:
            text, called = _device(segments, bodies, group)
            texts.append(text)
            entries |= called
    table = ["# By rank.", "DEVICES = [", *(f"    {entries[d]}," for d in range(len(bodies))), "]"]
    return texts, table


_PARAMETERS = {"i": "first", "m": "part"}


def _columns(bodies: Sequence[Sequence[Piece]], group: Sequence[int]) -> list[tuple[int, ...]]:
    """The constants of every number, by device of a group with bodies of one shape."""
    return list(zip(*([n.constant for p in bodies[d] for n in numbers(p)] for d in group), strict=True))


def _device(
    segments: Sequence[Sequence[DeviceSegment]], bodies: Sequence[Sequence[Piece]], group: Sequence[int]
) -> tuple[str, dict[int, str]]:
    """The function that some devices share, and each one's call of it."""
    columns, body = _columns(bodies, group), bodies[group[0]]
    names: dict[tuple[int, ...], str] = {}
    for number, column in zip((n for piece in body for n in numbers(piece)), columns, strict=True):
        if len(set(column)) > 1 and column not in names:
            wish = _PARAMETERS.get(number.role, number.role)
            count = sum(re.sub(r"\d+$", "", name) == wish for name in names.values())
            names[column] = f"{wish}{count + 1}" if count else wish
    constants = iter(columns)

    def parametrized(number: Number) -> Number:
        column = next(constants)
        return Number(number.role, 0, ((names[column], 1), *number.terms)) if column in names else number

    body = [mapped(piece, parametrized) for piece in body]
    name = "device" if len(group) > 1 else f"device_{group[0]}"
    if 1 < len(group) < len(bodies):
        name = f"devices_{group[0]}"
    lines = written(body)
    stores = [s for s in "vgwu" if any(re.search(rf"(?<![\w.\"]){s}[.\[]|\b{s},", line) for line in lines)]
    head = f"def {name}({', '.join(['run', *names.values()])}):"
    about = f'    """{_about(segments[group[0]], group)}"""'
    taken = [f"    {', '.join(stores)} = {', '.join(f'run.{s}' for s in stores)}"] if stores else []
    calls = {
        d: f"partial({name}, {', '.join(f'{k}={c[place]}' for c, k in names.items())})" if names else name
        for place, d in enumerate(group)
    }
    return "\n".join([head, about, *taken, *lines]), calls


def _about(segments: Sequence[DeviceSegment], group: Sequence[int]) -> str:
    """Which ranks run the function, and which modules of the model."""
    ranks = f"Rank {group[0]}" if len(group) == 1 else f"Ranks {', '.join(map(str, group))}"
    paths = list(
        dict.fromkeys(".".join(op.of.path.split(".")[:2]) for segment in segments for op in segment.ops if op.of.path)
    )
    what = ", ".join(paths) if len(paths) <= 3 else f"{paths[0]} to {paths[-1]}"
    return textwrap.shorten(f"{ranks}: {what or 'no part of the model'}.", 110)
