"""Levels of effort, the state of a configuration between calls, and the plan found."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf

from ...formulation.network.network import INFINITE
from ..protocol import Progress, Proof
from .part_bounds import LayoutSet, PartAnswer, PartBounds, Query


class Level(IntEnum):
    """How closely the parts of a configuration are solved."""

    RELAXED = 0  # bounds that ignore the memory limit
    BOUNDED = 1  # bounds that price memory
    PRICED = 2  # bounds and solutions that price memory
    CLOSED = 3  # solutions within the requested gap


BOUNDS = (Level.RELAXED, Level.BOUNDED)
"""Levels that seek bounds, not solutions."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How closely to solve: to a relative `gap`, below `cutoff` ns, within `seconds` and at most so many `networks`.

    `prices`: ns per byte found earlier for similar parts, a starting point. `rough`: the cheapest bound suffices, of
    whatever level.
    """

    level: Level
    gap: float = 0.0
    cutoff: int | None = None
    seconds: float = inf
    prices: tuple[float, ...] = ()
    progress: Callable[[Progress], None] | None = None
    rough: bool = False
    networks: float = inf


@dataclass(slots=True)
class Proved:
    """Everything proved of a configuration so far; it can be resumed in any process."""

    bound: int = 0
    known: PartBounds = field(default_factory=PartBounds)
    layout_sets: dict[Hashable, tuple[LayoutSet, ...]] = field(default_factory=dict)  # by group of boundaries
    shared: dict[int, tuple[LayoutSet, ...]] = field(default_factory=dict)  # by shared weight
    tried: dict[tuple[Hashable, Query, Level], int] = field(default_factory=dict)  # the cutoff used
    bounded: set[tuple[Hashable, Query]] = field(default_factory=set)  # parts with a rough bound as stages
    solved: int = 0  # networks
    kept: int = 0  # of these, answered by the cache
    options: int = 0  # of the largest network
    seconds: float = 0.0  # of work
    solving: float = 0.0  # of these, inside solvers
    assumed: int = INFINITE  # bounds hold only for plans whose step is below it
    missing: int | None = None  # lower bound on the bytes that some part lacks
    prices: tuple[float, ...] = ()  # ns per byte, where memory was scarce last
    refusal: str = ""  # why a part could not be encoded
    relaxed: int = 0  # single stage: the bound that ignores memory
    has_room: bool = False  # single stage: True if some assignment fits the memory
    lacks_room: bool = False  # single stage: True if the plan of a glance does not fit
    scarce: bool = False  # single stage: True if memory has a price
    prices_of: dict[bool, tuple[float, ...]] = field(default_factory=dict)  # single stage: by whether memory is ignored
    exhausted: int | None = None  # single stage: what a plan must cost less than before the solver is asked again
    proof: Proof | None = None  # single stage: of the network that was solved last, by its parts
    refused: int = 0  # networks for which the solver gave nothing, though it had time
    solver_words: str = ""  # of the last of those
    is_near: bool = False  # bounded by slots: True if its stages are solved so closely that the bound hardly rises
    interrupted: bool = False
    by_formula: Proved | None = None  # bounded by slots: of the same configuration whose step is the formula

    def copy(self) -> Proved:
        """An independent copy."""
        known = PartBounds(
            {k: [*v] for k, v in self.known.answers.items()},
            {k: {**v} for k, v in self.known.memory_needs.items()},
            *self.known.copied_times(),
        )
        return replace(
            self,
            known=known,
            layout_sets={**self.layout_sets},
            shared={**self.shared},
            tried={**self.tried},
            bounded={*self.bounded},
            prices_of={**self.prices_of},
            by_formula=None if self.by_formula is None else self.by_formula.copy(),
        )

    def uncounted(self) -> Proved:
        """An independent copy without the work that led to it, which counts once."""
        return replace(self.copy(), solved=0, kept=0, refused=0, seconds=0.0, solving=0.0)


@dataclass(frozen=True, slots=True)
class Stages:
    """A plan: its step in ns, its cuts, each stage's solution; of one stage the solver's `source` and `proof`.

    `formula_step`: the least step by the formula, where that is sought too; INFINITE: none found, 0: not sought.
    """

    objective: int
    bounds: tuple[int, ...]
    answers: tuple[PartAnswer, ...]
    source: str = ""
    proof: Proof | None = None
    formula_step: int = 0
