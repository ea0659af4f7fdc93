"""One model of the zoo: how it is built, its inputs and its default training options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
NEXT_TOKEN = {"ids": TOKENS, "labels": TOKENS}
IMAGES = {"images": Input((3, "resolution", "resolution")), "labels": Input((), integer=True)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: `make` builds it from sizes, at full size or as a small twin; `inputs` describes its arguments.

    `make` gets the sizes that it takes; the others, such as the resolution of images, only shape the inputs.
    `sequence` and `small_sequence` are sizes too, None for models without one. `batch`: samples per step, per device
    if `per_device`, otherwise in total.
    """

    make: Callable[..., nn.Module]
    full: dict[str, Any]
    small: dict[str, Any]
    inputs: dict[str, Input]
    batch: int
    dtype: str
    optimizer: str
    machine: str
    nodes: int = 1
    per_device: bool = False
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


unity = partial(Entry, dtype="float32", optimizer="sgd", machine="summit", per_device=True)
"""An entry with the training of Unity's evaluation (OSDI'22)."""

superscaler = partial(Entry, batch=512, dtype="mixed-float16", optimizer="adam", machine="v100-32gb")
"""An entry with the training of SuperScaler's evaluation (its table 2)."""
