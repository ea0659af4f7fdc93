"""Prices of computing: a roofline per kernel, and the work of backward.

Plans are proved optimal under this model together with `collective_price`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..graph.pcg import PCG, Node
from ..operators.operator import operator
from .collective_price import ROUNDING_NS
from .kernel_times import PHASES
from .machine import Machine
from .measured_kernels import least_ratio, ratios_of, roofline_ns


@dataclass(frozen=True, slots=True)
class Roofline:
    """A kernel takes the longer of its arithmetic and its memory traffic, plus its launch, times the measured ratio.

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
        of: tuple[str, str] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Times; `of`: the operator and the phase whose kernels these are, see `counts_measured`."""
        device = self.machine.device
        exact = roofline_ns(device, self.dtype, flops, size_bytes, kernels)
        known = ratios_of(device, of[0], self.dtype, of[1]) if of is not None and device.kernels else None
        if known is not None:
            each = np.broadcast_arrays(flops, size_bytes)
            exact = exact * known.at(*(part.reshape(-1) for part in each)).reshape(exact.shape)
        times: npt.NDArray[np.int64] = np.ceil(exact - ROUNDING_NS).astype(np.int64)
        return times

    def measured(self, node: Node, phase: str) -> tuple[str, str] | None:
        """What `ns` takes for the kernels of a node; None: those that `compiled` layers fuse were not measured."""
        return (node.op, phase) if counts_measured(node, self.compiled) else None

    def memory_ns(self, size_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Time of reading and writing `size_bytes` in a kernel fused with others (no launch of its own)."""
        times: npt.NDArray[np.int64] = np.ceil(size_bytes / self.machine.device.memory_bandwidth * 1e9).astype(np.int64)
        return times


def counts_measured(node: Node, compiled: bool) -> bool:
    """True if measured times count for a node's kernels: in compiled layers for products alone, as others are fused."""
    return not compiled or node.op == "attention" or operator(node.op).matmul


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


def both_ways_flops(graph: PCG, index: int) -> float:
    """Arithmetic of a node, forward and backward."""
    node, sources = graph.nodes[index], tuple(graph.nodes[i] for i in graph.nodes[index].inputs)
    entry = operator(node.op)
    return entry.work(node, sources) * (1 + backward_factor(node, sources, entry.matmul))


def passes_ns(
    work_s: float,
    traffic_s: float,
    factor: float | None,
    launch_ns: float,
    ratios: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float]:
    """Times of a node's kernels forward and backward, before rounding.

    `work_s`, `traffic_s`: seconds of the forward's arithmetic and memory traffic alone. The backward has `factor` times
    the arithmetic and twice the traffic; None: there is no backward. `ratios`: see `least_ratios`.
    """
    forward = (max(work_s, traffic_s) * 1e9 + launch_ns) * ratios[0]
    if factor is None:
        return forward, 0.0
    return forward, (max(work_s * factor, 2 * traffic_s) * 1e9 + launch_ns) * ratios[1]


def least_ratios(node: Node, machine: Machine, dtype: str, compiled: bool = False) -> tuple[float, float]:
    """The least that measured times of a node's kernels are of the roofline's, forward and backward."""
    if not machine.device.kernels or not counts_measured(node, compiled):
        return 1.0, 1.0
    forward, backward = (least_ratio(machine.device, node.op, dtype, phase) for phase in PHASES)
    return forward, backward
