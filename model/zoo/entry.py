"""What the zoo says about one model."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of a model: the shape of a sample, in numbers or names of sizes, and whether it holds integers.

    A name stands for that size of the entry (its length, if it is a tuple), or for what `make` takes it to be.
    """

    shape: tuple[int | str, ...] = ()
    integer: bool = False


TOKENS = Input(("sequence",), integer=True)
CLASS = Input((), integer=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: `make` builds it from sizes, at its full size or as a small twin, `inputs` describes its arguments.

    `make` is given those of the sizes that it takes; the others, such as the resolution of images, are of the inputs
    alone. `sequence` and `small_sequence` are a size too, None for models without one. `batch` counts samples in a
    step: of every device if `per_device`, else of all.
    """

    make: Callable[..., nn.Module]
    full: dict[str, Any]
    small: dict[str, Any]
    inputs: dict[str, Input]
    batch: int
    per_device: bool
    dtype: str
    optimizer: str
    machine: str
    nodes: int
    sequence: int | None = None
    small_sequence: int | None = None
    small_batch: int = 12

    def sizes(self, small: bool, sequence: int | None = None) -> dict[str, Any]:
        """All sizes by name: those given here, then the defaults of `make`; `sequence` replaces the one given."""
        parameters = inspect.signature(self.make).parameters.values()
        given = self.small if small else self.full
        length = sequence or (self.small_sequence if small else self.sequence)
        return {p.name: p.default for p in parameters} | given | ({"sequence": length} if length else {})

    def default_batch(self, small: bool, devices: int) -> int:
        """Samples in a step on `devices` devices, where nothing else is said."""
        if small:
            return self.small_batch
        return self.batch * devices if self.per_device else self.batch
