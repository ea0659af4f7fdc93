"""Options: how the command line offers the fields of frozen values, and the checks that several values share."""

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from .errors import PartitaError

MAX_DEVICES = 1 << 20
MAX_COUNT = 1 << 31
"""The most samples, tokens or micro-batches."""

KEY = "option"
"""Where a field's metadata holds its `Option`."""


@dataclass(frozen=True, slots=True)
class Option:
    """The command-line option of a field.

    `kind` is the type of the text typed, `flags` are its names (default: the field's), `parse` turns what was typed
    into the field's value. `default` is what the command line shows (...: the field's). None: the field's default
    holds, or another one that is not known yet, such as the model's own.
    """

    kind: Any
    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    minimum: int | None = None
    parse: Callable[[Any], Any] | None = None
    default: Any = ...


def option(kind: Any, help: str, *flags: str, **given: Any) -> dict[str, Any]:
    """Metadata of a dataclass field that is also an option of the command line; see `Option`."""
    return {KEY: Option(kind, help, flags, **given)}


def parse_sizes(option: str, text: str) -> tuple[int, ...]:
    """Sizes joined by `x` (or commas), outermost first.

    >>> parse_sizes("--mesh", "2x4")
    (2, 4)
    """
    if not re.fullmatch(r"[0-9]{1,9}([x,][0-9]{1,9})*", text, re.ASCII):
        raise PartitaError(f"{option} {text!r}: sizes joined by x are needed, such as 2x4")
    return tuple(int(size) for size in re.split("[x,]", text))


def parse_names(text: str) -> tuple[str, ...]:
    """Names joined by commas."""
    return tuple(name.strip() for name in text.split(","))


def parse_axes(option: str, text: str) -> tuple[int, ...]:
    """Axis numbers joined by commas; empty text names none.

    >>> parse_axes("--reduce", "0,2")
    (0, 2)
    """
    if not re.fullmatch(r"([0-9]{1,9}(,[0-9]{1,9})*)?", text, re.ASCII):
        raise PartitaError(f"{option} {text!r}: numbers of axes, from 0, joined by commas are needed, such as 0,2")
    return tuple(int(axis) for axis in text.split(",") if axis)


def check_count(option: str, count: int | None, limit: int = MAX_COUNT) -> None:
    """PartitaError unless `count` is None or a whole number from 1 to `limit`."""
    if count is not None and not (isinstance(count, Integral) and 1 <= count <= limit):
        raise PartitaError(f"{option} {count}: a whole number from 1 to {limit} is needed")


def check_sizes(option: str, sizes: tuple[int, ...], most: int) -> None:
    """PartitaError unless there are 1 to `most` sizes, each and all together of at most MAX_DEVICES devices."""
    if not 1 <= len(sizes) <= most:
        raise PartitaError(f"{option} {times(sizes)}: 1 to {most} sizes are needed, not {len(sizes)}")
    for size in (*sizes, math.prod(sizes)):
        check_count(f"{option} {times(sizes)}: size", size, MAX_DEVICES)


def check_choice(option: str, choice: str, choices: Collection[str], shown: Collection[str] = ()) -> None:
    """PartitaError unless `choice` is one of `choices`; `shown` are those that the error lists instead."""
    if choice not in choices:
        raise PartitaError(f"{option} {choice!r}: choose from {', '.join(shown or choices)}")


def times(sizes: Sequence[int]) -> str:
    """Sizes as they are typed: 2x4."""
    return "x".join(map(str, sizes))
