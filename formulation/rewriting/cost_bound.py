"""Bounds what rules add to an e-graph by cost, as Unity's search does by its factor alpha (OSDI 2022, section 6.1).

The cost of a tensor is the kernels' time, forward and backward, of the cheapest way to compute it on one device with
its share of the batch. The excess of an e-node is what a graph that uses it costs more than one that uses the cheapest
e-nodes instead, all the way up to tensors of the captured graph.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

from ...model.graph.dtypes import FLOATS
from ...model.graph.pcg import PCG, SOURCES, Attribute, Node
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from ...model.machine.roofline import backward_factor, least_ratios, passes_ns
from ...model.operators.operator import operator
from ...model.operators.sharded import Shape
from .egraph import EClass, ENode

Key: TypeAlias = tuple[str, ENode]
"""An e-node and the name of its class."""

KernelCost: TypeAlias = Callable[[Node, tuple[Node, ...]], float]
"""The time of a node's kernels in ns, given the nodes that it reads."""


def kernel_cost(machine: Machine, dtype: str) -> KernelCost:
    """The roofline of one device with its share of the batch, forward and backward; views and sources are free."""
    device, formats = machine.device, precision(dtype)
    rate = device.flops(formats.compute) * machine.devices
    bandwidth = device.memory_bandwidth * machine.devices

    def cost(node: Node, sources: tuple[Node, ...]) -> float:
        entry = None if node.op in SOURCES else operator(node.op)
        if entry is None or not entry.passes:
            return 0.0
        moved = sum(n.numel * formats.itemsize(n.dtype) for n in (node, *sources)) * entry.moved(node)
        factor = backward_factor(node, sources, entry.matmul) if node.gradient else None
        least = least_ratios(node, machine, formats.compute)
        launch = device.launch_ns * entry.kernels(node, sources)
        work = entry.work(node, sources) * device.work_factor(node.op)
        return sum(passes_ns(work / rate, moved / bandwidth, factor, launch, least))

    return cost


@dataclass(frozen=True)
class CostBound:
    """What e-nodes may cost; `alpha` times the cost of the captured graph is the most that a graph may."""

    pcg: PCG
    cost: KernelCost
    alpha: float

    @property
    def slack(self) -> float:
        """The most excess of an e-node, in ns."""
        nodes = self.pcg.nodes
        total = sum(self.cost(node, tuple(nodes[i] for i in node.inputs)) for node in nodes)
        return (self.alpha - 1) * total

    def excess(
        self, found: Mapping[str, EClass], shapes: Mapping[str, Shape], leaves: frozenset[int]
    ) -> Mapping[Key, float]:
        """The excess of every e-node in ns, by (class, e-node); those that cannot be computed are not listed.

        `leaves`: the nodes of the graph that are computed in any case.
        """
        given = [name for name, one in found.items() if not leaves.isdisjoint(one.origins)]
        best, costs = _cheapest(self._own(found, shapes), shapes, given)
        above = {key: max(0.0, cost - best[key[0]]) for key, cost in costs.items()}
        paths = _paths(found, above)
        return {key: ns + paths.get(key[0], inf) for key, ns in above.items()}

    def _own(self, found: Mapping[str, EClass], shapes: Mapping[str, Shape]) -> dict[Key, float]:
        """The kernel time of every e-node whose operands have shapes."""
        kinds = {name: self.pcg.nodes[one.origins[0]] for name, one in found.items() if one.origins}
        waiting = [name for name in found if name not in kinds and name in shapes]
        while waiting:
            left = [name for name in waiting if not self._kind(name, found[name], shapes, kinds)]
            if len(left) == len(waiting):
                break
            waiting = left
        known: dict[tuple[Node, ...], float] = {}
        costs: dict[Key, float] = {}
        for name, one in found.items():
            for e_node in one.nodes if name in kinds else ():
                if not all(child in kinds for child in e_node.inputs):
                    continue
                sources = tuple(_bare(kinds[child]) for child in e_node.inputs)
                reads = tuple(range(len(sources)))
                node = replace(_bare(kinds[name]), op=e_node.op, attributes=_attributes(e_node), inputs=reads)
                if (node, *sources) not in known:
                    joined = _stored_joined(e_node, sources)
                    known[node, *sources] = 0.0 if joined else self.cost(node, sources)
                costs[name, e_node] = known[node, *sources]
        return costs

    def _kind(self, name: str, one: EClass, shapes: Mapping[str, Shape], kinds: dict[str, Node]) -> bool:
        """Add a node that says what is known of a class without nodes of the graph: shape, dtype, gradient."""
        for e_node in one.nodes:
            if all(child in kinds for child in e_node.inputs):
                sources = [kinds[child] for child in e_node.inputs]
                dtype = next((node.dtype for node in sources if node.dtype in FLOATS), sources[0].dtype)
                gradient = dtype in FLOATS and any(node.gradient for node in sources)
                op = "parameter" if _stored_joined(e_node, sources) else e_node.op
                attributes = () if op == "parameter" else _attributes(e_node)
                kinds[name] = Node(op, name, (), shapes[name], dtype, attributes, gradient=gradient)
                return True
        return False


def _attributes(e_node: ENode) -> tuple[tuple[str, Attribute], ...]:
    return () if e_node.op == "view" else e_node.attributes


def _bare(node: Node) -> Node:
    return replace(node, name="", path="", inputs=())


def _stored_joined(e_node: ENode, sources: Sequence[Node]) -> bool:
    """True for parameters side by side, which are stored as one."""
    return e_node.op == "cat" and dict(e_node.attributes)["dim"] == 0 and all(n.op == "parameter" for n in sources)


def _share(e_node: ENode, shapes: Mapping[str, Shape]) -> float:
    """The share of its operand's cost that a part pays: the other parts pay the rest."""
    given: Mapping[str, Any] = dict(e_node.attributes)
    if e_node.op == "part":
        return 1.0 / float(given["of"])
    if e_node.op == "slice":
        whole = shapes[e_node.inputs[0]][given["dim"]]
        return float(min(1.0, (given["stop"] - given["start"]) / whole))
    return 1.0


def _cheapest(
    own: Mapping[Key, float], shapes: Mapping[str, Shape], given: Sequence[str]
) -> tuple[dict[str, float], dict[Key, float]]:
    """The cost of the cheapest way to compute every class, and of every e-node with the cheapest operands.

    Classes that are `given` cost nothing.
    """
    readers: dict[str, list[Key]] = {}
    shares = {key: _share(key[1], shapes) for key in own}
    for key in own:
        for child in {*key[1].inputs}:
            readers.setdefault(child, []).append(key)
    best: dict[str, float] = {}
    costs: dict[Key, float] = {}
    waiting = [(0.0, name) for name in sorted(given)]
    while waiting:  # Dijkstra: an e-node is complete when its last operand is; a part may cost less than its whole
        cost, name = heapq.heappop(waiting)
        if cost >= best.get(name, inf):
            continue
        best[name] = cost
        for key in readers.get(name, ()):
            if all(child in best for child in key[1].inputs):
                costs[key] = own[key] + shares[key] * sum(best[child] for child in key[1].inputs)
                if costs[key] < best.get(key[0], inf):
                    heapq.heappush(waiting, (costs[key], key[0]))
    return best, costs


def _paths(found: Mapping[str, EClass], above: Mapping[Key, float]) -> dict[str, float]:
    """The least excess of the e-nodes between a tensor of the captured graph and each class."""
    of_class: dict[str, list[Key]] = {}
    for key in above:
        of_class.setdefault(key[0], []).append(key)
    least = {name: 0.0 for name, one in found.items() if one.origins}
    waiting = [(0.0, name) for name in sorted(least)]
    while waiting:
        path, name = heapq.heappop(waiting)
        if path > least[name]:
            continue
        for key in of_class.get(name, ()):
            for child in key[1].inputs:
                if path + above[key] < least.get(child, inf):
                    least[child] = path + above[key]
                    heapq.heappush(waiting, (least[child], child))
    return least
