"""The functions of devices: devices that differ only in a few numbers share one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from .device_statements import Device
from .rolled_lines import Number, Piece, with_numbers, written
from .rolled_lines import numbers as numbers_of
from .rolled_lines import shape as shape_of

MOST_PARAMETERS = 4
"""Most numbers in which devices that share a function may differ."""


def device_functions(devices: Sequence[Device], bodies: Sequence[Sequence[Piece]]) -> tuple[list[str], list[str]]:
    """The functions of the devices, and the table of which rank runs which."""
    alike: dict[object, list[int]] = {}
    for number, body in enumerate(bodies):
        alike.setdefault(tuple(map(shape_of, body)), []).append(number)
    texts: list[str] = []
    entries: dict[int, str] = {}
    for members in alike.values():
        columns = list(zip(*([n.constant for p in bodies[d] for _, n in numbers_of(p)] for d in members), strict=True))
        differing = list(dict.fromkeys(c for c in columns if len(set(c)) > 1))
        groups = [members] if len(differing) <= MOST_PARAMETERS else [[d] for d in members]
        for group in groups:
            text, called = _device(devices, bodies, group, differing if len(groups) == 1 else [], columns)
            texts.append(text)
            entries |= called
    table = ["# By rank.", "DEVICES = [", *(f"    {entries[d]}," for d in range(len(devices))), "]"]
    return texts, table


_PARAMETERS = {"i": "first", "m": "part"}


def _device(
    devices: Sequence[Device],
    bodies: Sequence[Sequence[Piece]],
    group: Sequence[int],
    differing: Sequence[tuple[int, ...]],
    columns: Sequence[tuple[int, ...]],
) -> tuple[str, dict[int, str]]:
    """The function that some devices share, and each one's call of it."""
    body = bodies[group[0]]
    roles = [role for piece in body for role, _ in numbers_of(piece)]
    names: dict[tuple[int, ...], str] = {}
    for role, column in zip(roles, columns, strict=True):
        if column in differing and column not in names:
            wish = _PARAMETERS.get(role, role)
            count = sum(re.sub(r"\d+$", "", name) == wish for name in names.values())
            names[column] = f"{wish}{count + 1}" if count else wish
    if names:
        constants = iter(columns)
        moved: list[Piece] = []
        for piece in body:
            own = [n for _, n in numbers_of(piece)]
            new = [Number(0, ((names[c], 1), *n.terms)) if (c := next(constants)) in names else n for n in own]
            moved.append(with_numbers(piece, iter(new)))
        body = moved
    name = (
        f"device_{group[0]}" if len(group) == 1 else "device" if len(group) == len(devices) else f"devices_{group[0]}"
    )
    lines = written(body)
    stores = [s for s in "vgwu" if any(re.search(rf"(?<![\w.\"]){s}[.\[]|\b{s},", line) for line in lines)]
    head = f"def {name}({', '.join(['run', *names.values()])}):"
    about = f'    """{_about(devices, group)}"""'
    taken = [f"    {', '.join(stores)} = {', '.join(f'run.{s}' for s in stores)}"] if stores else []
    calls = {
        d: f"partial({name}, {', '.join(f'{k}={c[place]}' for c, k in names.items())})" if names else name
        for place, d in enumerate(group)
    }
    return "\n".join([head, about, *taken, *lines]), calls


def _about(devices: Sequence[Device], group: Sequence[int]) -> str:
    """Which ranks run the function, and which modules of the model."""
    ranks = f"Rank {group[0]}" if len(group) == 1 else f"Ranks {', '.join(map(str, group))}"
    paths = list(
        dict.fromkeys(
            ".".join(op.of.path.split(".")[:2])
            for segment in devices[group[0]].arranged.segments
            for op in segment.ops
            if op.of.path
        )
    )
    what = ", ".join(paths) if len(paths) <= 3 else f"{paths[0]} to {paths[-1]}"
    return textwrap.shorten(f"{ranks}: {what or 'no part of the model'}.", 110)
