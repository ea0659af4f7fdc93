"""A graph as a module: the reference for a plan's program if there is no user module."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from ...model.graph import interpreter as interpret
from ...model.graph.batch import with_batch
from ...model.graph.dtypes import FLOATS
from ...model.graph.pcg import PCG, Node
from ...model.operators.elementwise import KINDS
from ..emission.common.defaults import SEED
from ..emission.templates.counters import dropout_mask, projection_weights
from ..plan.plan import Plan
from .native import counted
from .random_calls import counted_numbers
from .reference import PLAIN, Semantics, random_weight, state_of, train
from .synthetic import synthetic
from .verify import TOLERANCE, Trial, semantics
from .worker import Outcome


class GraphModule(nn.Module):
    """A graph as a module: every node on whole tensors, by the interpreter, with the program's masks and noise."""

    def __init__(self, graph: PCG) -> None:
        super().__init__()
        self.graph = graph
        sources = [graph.nodes[i] for op in ("parameter", "buffer") for i in graph.of(op)]
        for node, name, shape in ((n, *original) for n in sources for original in n.originals.items()):
            place: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            value = random_weight(name, shape)
            if node.dtype not in FLOATS:
                value = (3 * value).abs().to(getattr(torch, node.dtype))
            if node.op == "buffer":
                place.register_buffer(last, value)
            else:
                place.register_parameter(last, nn.Parameter(value, node.gradient))

    def forward(self, inputs: Mapping[str, Tensor], step: int) -> Tensor:
        """The loss of a batch in one step, on which masks depend."""

        def mask(site: int, shape: tuple[int, ...], p: float) -> Tensor:
            return dropout_mask(_numbers(shape), p, SEED, step, site)  # type: ignore[no-any-return, no-untyped-call]

        def draw(node: Node) -> Tensor:
            given = tuple(node[name] for name in KINDS[node["kind"]])
            return counted_numbers(node.shape, node["kind"], given, (SEED, step, node["site"]))

        def noise(site: int, shape: tuple[int, ...]) -> Tensor:
            return projection_weights(_numbers(shape), SEED, site)  # type: ignore[no-any-return, no-untyped-call]

        weights = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return interpret.run(self.graph, inputs, weights, mask=mask, draw=draw, noise=noise)[self.graph.loss]


def _numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(prod(shape)).view(shape)


@lru_cache(maxsize=8)
def _truth(
    graph: PCG, optimizer: str, steps: int, semantics: Semantics = PLAIN
) -> tuple[dict[str, Tensor], tuple[dict[str, Tensor], ...], Outcome]:
    """Initial weights, batches, and the outcome of training on whole tensors."""
    module = GraphModule(graph)
    state = state_of(module)
    batches = tuple(synthetic(graph, graph.batch, step) for step in range(steps))
    return state, batches, train(module, module, batches, optimizer, semantics)


def trial_of(plan: Plan, path: Path, steps: int = 2, graph: PCG | None = None) -> Trial:
    """A plan's program with masks from counters, written to `path`, and what its graph computes on whole tensors.

    `graph` is that of the whole batch, required if a micro-batch is one sample: such a graph cannot be enlarged.
    """
    whole = graph or with_batch(plan.graph, plan.batch)
    state, batches, outcome = _truth(whole, plan.optimizer, steps, semantics(plan))
    counted(plan).emit(path)
    return Trial(path, plan.graph, plan.ranks, state, batches, truth=outcome, tolerance=TOLERANCE)
