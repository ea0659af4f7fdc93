"""Words of messages: the nearest known names, lists that are cut, numbers that follow each other."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MOST_LINES = 24
"""Most lines of a message or of a printed graph, the line that counts what is left out included."""


def nearest(name: object, known: Iterable[object], count: int = 1) -> list[str]:
    """The known names most like a name that is not one of them, at most `count`; case does not matter."""
    spelled: dict[str, str] = {}
    for each in map(str, known):
        spelled.setdefault(each.lower(), each)
    return [spelled[found] for found in get_close_matches(str(name).lower(), spelled, n=count, cutoff=0.5)]


def did_you_mean(name: object, known: Iterable[object], count: int = 1) -> str:
    """The end of a message about an unknown name: "; did you mean up?"; empty if no known name is like it."""
    near = nearest(name, known, count)
    return f"; did you mean {', '.join(near)}?" if near else ""


def cut(lines: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """Lines, of which at most `most` are kept, the last of them the count of those left out."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1:,} more"]


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of numbers that follow each other, in ascending order.

    >>> runs([3, 0, 1, 2, 7])
    [(0, 3), (7, 7)]
    """
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
