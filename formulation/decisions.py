"""What a partial plan decides beyond what options say: where a mesh lies, weights, layers, cuts; see `SearchSpace`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .placement.placement import Placement, Row

Letters: TypeAlias = tuple[int | None, ...]
"""The letter of a stored weight on every axis; None: whole, R or B."""


@dataclass(frozen=True, slots=True)
class StoredAs:
    """How a weight is stored; None leaves open whether its states or gradient are in shards, and so on."""

    layout: Letters
    sharded: bool | None = None
    scattered: bool | None = None
    offloaded: bool | None = None
    regather: bool | None = None


@dataclass(frozen=True)
class Decisions:
    """Decisions of a partial plan; what is empty or None is open.

    `row`: the pipeline's factor on every level of the machine, `placement`: where the mesh of a stage lies on what the
    row leaves. `weights`: by name, how they are stored. `layers`: by name, the mode of their recomputation. `cuts`: for
    every stage after the first the first and the last boundary of the graph at which it may begin.
    """

    row: Row | None = None
    placement: Placement | None = None
    weights: tuple[tuple[str, StoredAs], ...] = ()
    layers: tuple[tuple[str, str], ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()

    @cached_property
    def stored(self) -> Mapping[str, StoredAs]:
        return dict(self.weights)

    @cached_property
    def recomputed(self) -> Mapping[str, str]:
        return dict(self.layers)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes of recomputation that layers have, each once."""
        return tuple(dict.fromkeys(mode for _, mode in self.layers))

    @property
    def phrases(self) -> dict[str, bool]:
        """What may be fixed, in words, and whether it is."""
        weights, layers = len(self.weights), len(self.layers)
        return {
            "the placement of the mesh": self.placement is not None,
            "where stages begin": bool(self.cuts),
            f"the storage of {weights} weight{'s' * (weights != 1)}": weights > 0,
            f"the recomputation of {layers} layer{'s' * (layers != 1)}": layers > 0,
        }


UNDECIDED = Decisions()
"""Nothing is decided."""
