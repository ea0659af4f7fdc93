"""Precisions: the dtypes in which a training step computes, stores and updates."""

from dataclasses import dataclass

from ..errors import PartitaError
from ..graph.dtypes import FLOATS, ITEMSIZE


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of a training step.

    `compute`: activations and products. `parameters`: stored weights, cast where they are used if `compute` differs.
    `gradients`: accumulated over micro-batches and reduced over ranks. `master`: what the optimizer updates, with its
    states; a copy of the weights if `parameters` differs.
    """

    name: str
    compute: str
    parameters: str = "float32"
    gradients: str = "float32"
    master: str = "float32"

    @property
    def mixed(self) -> bool:
        """True if weights are cast where they are used."""
        return self.compute != self.parameters

    @property
    def copied(self) -> bool:
        """True if the optimizer keeps master copies of the weights."""
        return self.parameters != self.master

    @property
    def narrow(self) -> bool:
        """True if activations have 16 bits; losses and statistics are computed in float32 nevertheless."""
        return ITEMSIZE[self.compute] < ITEMSIZE["float32"]

    def update_traffic(self, states: int) -> int:
        """Bytes that an update reads and writes for an element; `states` are the optimizer's.

        Value and states are read and written. The gradient is read, and first cast if it is of another dtype; so is in
        the end the value, if the model stores it in another one.
        """
        stored, gradient, item = (ITEMSIZE[x] for x in (self.parameters, self.gradients, self.master))
        casts = (2 * item if self.gradients != self.master else 0) + (item + stored if self.copied else 0)
        return item * (2 + 2 * states) + gradient + casts

    def itemsize(self, dtype: str) -> int:
        """Bytes per element of an activation that the module declares as `dtype`."""
        return ITEMSIZE[self.compute if dtype in FLOATS else dtype]

    def buffer_itemsize(self, dtype: str) -> int:
        """Bytes per element of a stored buffer: positions and statistics need float32 at least."""
        return max(ITEMSIZE["float32"], ITEMSIZE[self.master]) if dtype in FLOATS else ITEMSIZE[dtype]


PRECISIONS = {
    p.name: p
    for p in (
        Precision("float32", "float32"),
        Precision("float64", "float64", "float64", "float64", "float64"),
        Precision("mixed-float16", "float16"),
        Precision("mixed-bfloat16", "bfloat16"),
        Precision("mixed-bfloat16-fp32grad", "bfloat16", "bfloat16"),
        Precision("mixed-bfloat16-bf16grad", "bfloat16", "bfloat16", "bfloat16"),
        Precision("pure-bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16"),
    )
}
"""The first four store weights in 32 bits or more, as autocast does; the others in 16, with or without master copy."""


def precision(name: str) -> Precision:
    """A precision by name; PartitaError lists the known names."""
    if name not in PRECISIONS:
        raise PartitaError(f"unknown dtype {name!r} (known: {', '.join(PRECISIONS)})")
    return PRECISIONS[name]
