"""What `partita profile` is asked to measure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...model.options import check_count, option

MOST_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to measure: the machine with `ranks` processes, and the operators of a `model` as so many ranks split it.

    Results are kept in the cache's folder, and not measured again unless `again`. PartitaError: a value out of range.
    """

    ranks: int | None = field(
        default=None, metadata=option(int, "Processes that run at once; by default one per core, or GPU.")
    )
    device: str | None = field(default=None, metadata=option(str, "cpu or cuda; by default cuda where there is a GPU."))
    again: bool = field(default=False, metadata=option(bool, "Measure again what was measured before."))
    model: str | None = None
    small: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("--ranks", self.ranks, MOST_RANKS)
