"""Prices of computing: a roofline per kernel, and the work of backward.

Plans are proved optimal under this model together with `collective_price`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..graph.pcg import Node
from .collective_price import ROUNDING_NS
from .machine import Machine


@dataclass(frozen=True, slots=True)
class Roofline:
    """A kernel takes the longer of its arithmetic and its memory traffic, plus its launch.

    `compiled`: kernels of layers are fused.
    """

    machine: Machine
    dtype: str
    compiled: bool = False

    def ns(
        self,
        flops: npt.NDArray[np.float64],
        size_bytes: npt.NDArray[np.float64],
        kernels: npt.NDArray[np.float64] | float = 1.0,
    ) -> npt.NDArray[np.int64]:
        device = self.machine.device
        busy = np.maximum(flops / device.flops(self.dtype), size_bytes / device.memory_bandwidth) * 1e9
        times: npt.NDArray[np.int64] = np.ceil(busy + kernels * device.launch_ns - ROUNDING_NS).astype(np.int64)
        return times

    def memory_ns(self, size_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Time of reading and writing `size_bytes` in a kernel fused with others (no launch of its own)."""
        times: npt.NDArray[np.int64] = np.ceil(size_bytes / self.machine.device.memory_bandwidth * 1e9).astype(np.int64)
        return times


def backward_factor(node: Node, inputs: tuple[Node, ...], matmul: bool) -> float:
    """Arithmetic of the backward relative to the forward: one product for every factor that has a gradient.

    A bias is no factor: its gradient is a sum. Fused attention recomputes the scores: five products against two in the
    forward. A recurrent layer has a product for the gradient of what a step reads, and one for that of the weights.
    """
    if not node.gradient:
        return 0.0
    if node.op == "attention":
        return 2.5
    if node.op in ("lstm", "gru", "rnn"):
        return 2.0
    factors = (i for place, i in enumerate(inputs) if place < 2 or len(i.shape) > 1)
    return float(sum(i.gradient for i in factors)) if matmul else 1.0


def passes_ns(work_s: float, traffic_s: float, factor: float | None, launch_ns: float) -> tuple[float, float]:
    """Times of a node's kernels forward and backward, before rounding.

    `work_s`, `traffic_s`: seconds of the forward's arithmetic and memory traffic alone. The backward has `factor` times
    the arithmetic and twice the traffic; None: there is no backward.
    """
    forward = max(work_s, traffic_s) * 1e9 + launch_ns
    return forward, 0.0 if factor is None else max(work_s * factor, 2 * traffic_s) * 1e9 + launch_ns
