"""How far a configuration is taken, what is known of it so far, and what is found."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

from ..protocol import Progress
from .part_bounds import Answer, PartBounds, Query, Side


class Level(IntEnum):
    """How closely parts are solved."""

    RELAXED = 0  # bounds, without a limit of memory
    BOUNDED = 1  # bounds by prices of memory
    PRICED = 2  # bounds and solutions by prices of memory
    CLOSED = 3  # within the gap that is asked for


BOUNDS = (Level.RELAXED, Level.BOUNDED)
"""The levels that seek bounds, not solutions."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a part is solved: a time of `cutoff` or more is not wanted, nor one closer to the optimum than `gap`.

    `prices`: those of a byte that were found before, for parts much like these.
    """

    level: Level
    gap: float = 0.0
    cutoff: int | None = None
    seconds: float = inf
    prices: tuple[float, ...] = ()
    progress: Callable[[Progress], None] | None = None


@dataclass(slots=True)
class State:
    """What is known of a configuration; it can be put aside, and taken up again elsewhere."""

    bound: int = 0
    known: PartBounds = field(default_factory=PartBounds)
    sides: dict[Hashable, tuple[Side, ...]] = field(default_factory=dict)  # of groups of boundaries
    shared: dict[int, tuple[Side, ...]] = field(default_factory=dict)  # of weights that several stages have
    tried: dict[tuple[Hashable, Query, Level], int] = field(default_factory=dict)  # under which cutoff
    solved: int = 0
    kept: int = 0  # of the solved, those that were solved before
    options: int = 0  # of the largest network
    seconds: float = 0.0  # in all
    solving: float = 0.0  # of these, in solvers
    missing: int | None = None  # bytes that some part misses at the least
    prices: tuple[float, ...] = ()  # of a byte, ns, where memory was scarce last
    refusal: str = ""  # why a part has no network
    relaxed: int = 0  # of one stage, the bound without a limit of memory
    has_room: bool = False  # of one stage, True if something is known to fit the memory
    interrupted: bool = False

    def copy(self) -> State:
        """Another state with what is known here."""
        known = PartBounds(
            {k: [*v] for k, v in self.known.answers.items()}, {k: {**v} for k, v in self.known.needs.items()}
        )
        return replace(self, known=known, sides={**self.sides}, shared={**self.shared}, tried={**self.tried})


@dataclass(frozen=True, slots=True)
class Stages:
    """A plan: the boundaries where the model is cut, and the solution of every stage; `source` found that of one."""

    objective: int
    bounds: tuple[int, ...]
    answers: tuple[Answer, ...]
    source: str = ""
