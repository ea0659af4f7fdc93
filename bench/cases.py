"""Which cases of a benchmark are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..model.errors import PartitaError

T = TypeVar("T")


def chosen(cases: Iterable[T], only: Sequence[str], name: Callable[[T], str], what: str = "case") -> list[T]:
    """The cases with one of the texts `only` in their name, all without any. PartitaError: none is left."""
    kept = [case for case in cases if not only or any(text in name(case) for text in only)]
    if not kept:
        raise PartitaError(f"no {what} has {' or '.join(only)} in its name")
    return kept
