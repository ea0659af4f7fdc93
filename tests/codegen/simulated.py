"""A parallel graph run on all ranks at once, in one process, forward and backward, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from partita import Plan
from partita.codegen.parallel_graph.graph import PARALLEL, Node
from partita.model.graph.layout import chunk

from ..formulation.coordinates import coordinates


class Move(torch.autograd.Function):
    """A parallel operator on the tensors of a group of ranks; its backward is its partner."""

    @staticmethod
    def forward(context: Any, operator: str, first: bool, dim: int, shape: tuple[int, ...], *given: Tensor) -> Any:
        context.way = operator, first, dim, shape
        return _acted(operator, first, dim, shape, given)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        operator, first, dim, shape = context.way
        return None, None, None, None, *_acted(PARTNER[operator], first, dim, shape, gradients)


PARTNER = {"partition": "combine", "combine": "partition", "replicate": "reduce", "reduce": "replicate"}


def _acted(operator: str, first: bool, dim: int, shape: tuple[int, ...], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What the ranks of a group have after an operator; `dim` -1: elements in order, of a tensor of `shape`."""
    count, flat = len(given), dim < 0
    if operator == "combine":
        joined = torch.cat([x.flatten() if flat else x for x in given], max(dim, 0))
        return tuple(joined.reshape(shape) if flat else joined.clone() for _ in given)
    if operator == "partition":
        return tuple(part(x.flatten() if flat else x, max(dim, 0), count, i) for i, x in enumerate(given))
    if operator == "replicate":
        return tuple(torch.zeros_like(x) if first and i else x.clone() for i, x in enumerate(given))
    return tuple((given[0] if first else sum(given, torch.zeros(()))).clone() for _ in given)


def part(x: Tensor, dim: int, count: int, index: int) -> Tensor:
    start, stop = chunk(x.shape[dim], count, index)
    return x.narrow(dim, start, stop - start).clone()


COMPUTE: dict[str, Callable[..., Tensor]] = {
    "linear": lambda node, x, w, bias=None: torch.nn.functional.linear(x, w, bias),
    "matmul": lambda node, a, b: a @ b,
    "add": lambda node, a, b: a + b,
    "mul": lambda node, a, b: a * b,
    "relu": lambda node, x: x.relu(),
    "permute": lambda node, x: x.permute(node["dims"]),
    "sum": lambda node, x: x.sum(node["dims"]),
}


class Ranks:
    """Runs a parallel graph on all ranks at once, in one process."""

    def __init__(self, plan: Plan, whole: Mapping[str, Tensor]) -> None:
        self.plan, self.graph, self.whole = plan, plan.parallel_graph(), whole
        self.places = [coordinates(plan.placement, rank) for rank in range(plan.ranks)]
        self.sizes = dict(self.graph.axes)

    def local(self, x: Tensor, letters: Sequence[str], rank: int) -> Tensor:
        """What a rank has of a tensor: parts in the order of the axes; of a flat one a part of the elements."""
        flat = (1, 0)  # parts over all axes together, and which of them
        for letter, size, at in zip(letters, self.sizes.values(), self.places[rank], strict=True):
            if letter.startswith("S"):
                x = part(x, int(letter[2:-1]), size, at)
            elif letter == "flat":
                flat = flat[0] * size, flat[1] * size + at
        return part(x.flatten(), 0, *flat) if flat[0] > 1 else x

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """Ranks that differ on these axes only, in the order of their coordinates there."""
        over = [list(self.sizes).index(axis) for axis in axes]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(range(len(self.places)), key=lambda r: [self.places[r][a] for a in over]):
            rest = tuple(c for a, c in enumerate(self.places[rank]) if a not in over)
            found.setdefault(rest, []).append(rank)
        return list(found.values())

    def run(self) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
        """The loss on every rank, and the gradient of every parameter as it is stored."""
        weights = {
            node.name: [
                self.local(self.whole[node.name], node.tensor.letters, rank).clone().requires_grad_()
                for rank in range(len(self.places))
            ]
            for node in self.graph.nodes
            if node.operator == "parameter"
        }
        losses = []
        for micro in range(self.graph.micro_batches):
            known: list[list[Tensor]] = []
            for node in self.graph.nodes:
                known.append(self.step(node, known, weights, micro))
            losses.append(known[self.graph.output])
        total = [sum(each, torch.zeros(())) for each in zip(*losses, strict=True)]
        torch.autograd.backward(total, [torch.ones_like(x) for x in total])
        return total, {name: [x.grad for x in each if x.grad is not None] for name, each in weights.items()}

    def step(
        self, node: Node, known: list[list[Tensor]], weights: Mapping[str, list[Tensor]], micro: int
    ) -> list[Tensor]:
        if node.operator == "parameter":
            return weights[node.name]
        if node.operator == "input":
            return [self.whole[node.name] for _ in self.places]
        given = [known[i] for i in node.inputs]
        if node.operator == "pipeline":
            return [part(x, node["dim"], self.graph.micro_batches, micro) for x in given[0]]
        if node.operator == "batch":  # micro-batches are added up after the last
            return given[0]
        if node.operator not in PARALLEL:
            return [COMPUTE[node.operator](node, *(x[rank] for x in given)) for rank in range(len(self.places))]
        result = list(given[0])
        for group in self.groups(node["axes"]):
            dim = -1 if node.get("letter") == "flat" else node.get("dim", 0)
            shapes = (
                [self.local(self.whole[node.name], node.tensor.letters, r).shape for r in group] if dim < 0 else [()]
            )
            first = bool(node.get("first"))
            made = Move.apply(node.operator, first, dim, tuple(shapes[0]), *(given[0][r] for r in group))
            for rank, x in zip(group, made, strict=True):
                result[rank] = x
        return result
