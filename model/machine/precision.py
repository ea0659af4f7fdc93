"""In which dtypes a training step keeps its numbers, and how many bytes each takes."""

from dataclasses import dataclass

from ..errors import PartitaError
from ..graph.dtypes import FLOATS, ITEMSIZE


@dataclass(frozen=True, slots=True)
class Precision:
    """In which dtypes a step keeps its numbers.

    `compute`: activations and products. `parameters`: how the model stores weights, which are cast where they are used
    if that is another dtype. `gradients`: how they are accumulated over micro-batches and added up over ranks.
    `master`: what the optimizer updates, with its states; where parameters are in another dtype, a copy of them.
    """

    name: str
    compute: str
    parameters: str = "float32"
    gradients: str = "float32"
    master: str = "float32"

    @property
    def mixed(self) -> bool:
        """Whether weights are cast where they are used."""
        return self.compute != self.parameters

    @property
    def copied(self) -> bool:
        """Whether the optimizer keeps copies of the weights in a dtype of its own."""
        return self.parameters != self.master

    @property
    def narrow(self) -> bool:
        """Whether activations are of 16 bits: losses and statistics are computed in float32 all the same."""
        return ITEMSIZE[self.compute] < ITEMSIZE["float32"]

    def itemsize(self, dtype: str) -> int:
        """Bytes of an element of an activation that the module declares as `dtype`."""
        return ITEMSIZE[self.compute if dtype in FLOATS else dtype]

    def buffer_itemsize(self, dtype: str) -> int:
        """Bytes of an element of a buffer as it is stored: positions and statistics need float32 at least."""
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
"""The first four store weights in 32 bits or more, as autocast does; the others in 16, with or without copies."""


def precision(name: str) -> Precision:
    """A precision by name; PartitaError lists the known ones."""
    if name not in PRECISIONS:
        raise PartitaError(f"unknown dtype {name!r} (known: {', '.join(PRECISIONS)})")
    return PRECISIONS[name]
