"""One model of the zoo: how it is built, its inputs and its default training options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of a model: the shape of a sample, in numbers or names of sizes, and whether it holds integers.

    A name stands for that size of the entry (its length if it is a tuple), or for the default of `make`.
    """

    shape: tuple[int | str, ...] = ()
    integer: bool = False


TOKENS = Input(("sequence",), integer=True)
CLASS = Input((), integer=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: `make` builds it from sizes, at full size or as a small twin; `inputs` describes its arguments.

    `make` gets the sizes that it takes; the others, such as the resolution of images, are for the inputs alone.
    `sequence` and `small_sequence` are a size too, None for models without one. `batch`: samples per step, of each
    device if `per_device`, else of all together.
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
        """All sizes by name, from this entry or the defaults of `make`; `sequence` replaces the default one."""
        parameters = inspect.signature(self.make).parameters.values()
        given = self.small if small else self.full
        length = sequence or (self.small_sequence if small else self.sequence)
        return {p.name: p.default for p in parameters} | given | ({"sequence": length} if length else {})

    def default_batch(self, small: bool, devices: int) -> int:
        """Default samples per step on `devices` devices."""
        if small:
            return self.small_batch
        return self.batch * devices if self.per_device else self.batch
