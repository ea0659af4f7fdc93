"""What computing costs: a roofline per operator, and the bytes that a training state keeps.

The optimum that Partita proves is the optimum of this model together with `collectives`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .collectives import ROUNDING_NS
from .errors import PartitaError
from .machine import Machine
from .pcg import FLOATS, Node

ITEMSIZE = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

STATES = {"sgd": 0, "adam": 2, "adamw": 2}
"""Tensors that an optimizer keeps beside each parameter."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How numbers are kept: `compute` for activations and products, `master` for parameters, gradients and states.

    "float32" computes as it stores; "mixed-float16" and "mixed-bfloat16" cast float32 parameters where they are used.
    """

    name: str
    compute: str
    master: str = "float32"

    @property
    def mixed(self) -> bool:
        return self.compute != self.master

    def itemsize(self, dtype: str) -> int:
        """Bytes of an element of an activation that the module declares as `dtype`."""
        return ITEMSIZE[self.compute if dtype in FLOATS else dtype]


PRECISIONS = {
    p.name: p
    for p in (
        Precision("float32", "float32"),
        Precision("float64", "float64", "float64"),
        Precision("mixed-float16", "float16"),
        Precision("mixed-bfloat16", "bfloat16"),
    )
}


def precision(name: str) -> Precision:
    """A precision by name; PartitaError lists the known ones."""
    if name not in PRECISIONS:
        raise PartitaError(f"dtype {name!r} is not known; known are {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def optimizer_states(name: str) -> int:
    """Number of states an optimizer keeps a parameter; PartitaError lists the known optimizers."""
    if name not in STATES:
        raise PartitaError(f"optimizer {name!r} is not known; known are {', '.join(STATES)}")
    return STATES[name]


@dataclass(frozen=True, slots=True)
class Roofline:
    """A kernel takes the longer of its arithmetic and its memory traffic, and at least a launch."""

    machine: Machine
    dtype: str

    def ns(
        self, flops: npt.NDArray[np.float64], size_bytes: npt.NDArray[np.float64], kernels: float = 1.0
    ) -> npt.NDArray[np.int64]:
        device = self.machine.device
        busy = np.maximum(flops / device.flops(self.dtype), size_bytes / device.memory_bandwidth) * 1e9
        times: npt.NDArray[np.int64] = np.ceil(busy + kernels * device.launch_ns - ROUNDING_NS).astype(np.int64)
        return times

    def memory_ns(self, size_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Time of reading and writing `size_bytes` in a kernel shared with others (no launch of its own)."""
        times: npt.NDArray[np.int64] = np.ceil(size_bytes / self.machine.device.memory_bandwidth * 1e9).astype(np.int64)
        return times


def backward_factor(node: Node, inputs: tuple[Node, ...], matmul: bool) -> float:
    """Arithmetic of the backward relative to the forward: one product for every input with a gradient.

    Fused attention recomputes the scores: five products for the forward's two.
    """
    if not node.gradient:
        return 0.0
    if node.op == "attention":
        return 2.5
    return float(sum(i.gradient for i in inputs)) if matmul else 1.0
