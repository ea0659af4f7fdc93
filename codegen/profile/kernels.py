"""The kernels of plans: what each operator computes on a rank, and what the cost model counts for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...model.graph.layout import Layout
from ...model.graph.pcg import Node
from ...model.operators.operator import is_random, operator
from ..plan.plan import Plan
from ..pricing.stage_price import Pricing

Counted = tuple[float, float, float]
"""FLOPs, bytes and kernels that the cost model counts."""


@dataclass(frozen=True)
class Kernel:
    """An operator on a rank's parts of its tensors: `node` reads `sources`, all with local shapes, in `dtype`."""

    node: Node
    sources: tuple[Node, ...]
    dtype: str
    forward: Counted
    backward: Counted | None

    def case(self) -> dict[str, Any]:
        """What is run, as JSON."""
        return {
            "op": self.node.op,
            "attributes": [[name, value] for name, value in self.node.attributes if name != "site"],  # runs alike
            "output": _tensor(self.node),
            "inputs": [_tensor(source) for source in self.sources],
            "rows": self.rows,
            "dtype": self.dtype,
        }

    @property
    def rows(self) -> int:
        """The ids that may be looked up; 1 where nothing is."""
        looked_up = operator(self.node.op).looked_up(self.node, self.sources)
        return self.sources[looked_up[0]].shape[int(self.node.get("dim") or 0)] if looked_up else 1

    def counted(self) -> dict[str, Any]:
        """What the cost model counts for it, by phase."""
        return {"forward": self.forward, "backward": self.backward}


def kernels_of(plan: Plan) -> Iterator[Kernel]:
    """Every kernel of every stage that can be run by itself: not what special strategies exchange, nor what is random.

    Dropout alone of the random operators is timed as PyTorch's own.
    """
    for part in plan.parts:
        for mesh in (part, *part.ranges.values()):
            pricing = _Listing(mesh, part)
            pricing.run()
            yield from pricing.found


def distinct(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Those that differ in what they run."""
    return list({repr(kernel.case()): kernel for kernel in kernels}.values())


class _Listing(Pricing):
    """A price that keeps what it counts for kernels."""

    def __init__(self, plan: Plan, whole: Plan) -> None:
        super().__init__(plan, 0, 0, delays_messages=False, whole=whole)
        self.found: list[Kernel] = []
        self.counts: dict[str, Counted] = {}

    def kernels(self, index: int, output_bytes: int, at: int) -> None:
        """Price an operator, and keep it with what is counted for its kernels."""
        self.counts = {}
        super().kernels(index, output_bytes, at)
        node, choice = self.graph.nodes[index], self.choice(index)
        plain = not (is_random(node) and node.op != "dropout") and not self.exchanges(index) and not self.handed(index)
        if "forward" in self.counts and plain:
            sources = (self.local(i, layout) for i, layout in zip(node.inputs, choice.inputs, strict=True))
            own = replace(self.local(index, choice.output), inputs=tuple(range(len(node.inputs))))
            dtype = self.precision.compute
            self.found.append(Kernel(own, tuple(sources), dtype, self.counts["forward"], self.counts.get("backward")))

    def kernel(self, flops: float, traffic: float, kernels: int = 1, of: tuple[Node, str] | None = None) -> int:
        """Price a kernel, and keep what is counted for it."""
        if of is not None:
            self.counts[of[1]] = (float(flops), float(traffic), float(kernels))
        return super().kernel(flops, traffic, kernels, of)

    def local(self, index: int, layout: Layout) -> Node:
        """A node with the shape of the largest part of its tensor."""
        known, node = self.known[index], self.graph.nodes[index]
        parts = self.atom_parts(index, layout)
        shape = tuple(prod(parts[a] for a in known.of_dim(dim)) for dim in range(len(known.dims)))
        return replace(node, shape=shape, name="", path="", inputs=())


def _tensor(node: Node) -> dict[str, Any]:
    return {"shape": list(node.shape), "dtype": node.dtype, "gradient": node.gradient}
