"""The samples that each batch norm of a plan normalizes together, and a mode that makes a module do the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...model.graph.atoms import atoms
from ...model.graph.batch import statistics_parts, with_batch, with_statistics_parts
from ...model.graph.layout import Layout, S, chunk
from ...model.graph.pcg import PCG
from ..plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces along `dim` that a batch norm normalizes separately; `site` counts the calls of a forward.

    `parts[m]` are those of micro-batch m, each the positions that a rank, or all ranks, normalize together. The first
    one is that of rank 0, which the running statistics follow.
    """

    site: int
    dim: int
    parts: tuple[tuple[tuple[int, ...], ...], ...]


def pieces(plan: Plan) -> tuple[Pieces, ...]:
    """The pieces of all batch norms that do not normalize the whole batch at once."""
    found = [
        _pieces(plan.graph, i, plan.micro_batches, plan.choices[i].inputs[0] if local else (), plan.placement.sizes)
        for local, op in enumerate(("moments", "local_batch_norm"))
        for i in plan.graph.of(op)
    ]
    return tuple(each for each in found if sum(map(len, each.parts)) > 1)


def pieces_of_graph(graph: PCG) -> tuple[Pieces, ...]:
    """The pieces of batch norms that normalize parts of a graph's batch."""
    parts = statistics_parts(graph)
    if parts == 1:
        return ()
    micro_batch = with_statistics_parts(with_batch(graph, graph.batch // parts), 1)
    return tuple(_pieces(micro_batch, i, parts) for i in graph.of("moments"))


def _pieces(graph: PCG, index: int, micro_batches: int, layout: Layout = (), axis_sizes: Sequence[int] = ()) -> Pieces:
    """`layout`: in which ranks have the samples that each normalizes by itself; none: all together."""
    node, source = graph.nodes[index], graph.nodes[index].inputs[0]
    known = atoms(graph)[source]
    dim = next((known.dim_of(a)[0] for a in known.batch), 0)
    numbers = known.of_dim(dim)
    batch = [a in known.batch for a in numbers]
    axes = [[n for x, n in zip(layout, axis_sizes, strict=False) if x == S(a)] for a in numbers]
    sizes = [known.sizes[a] for a in numbers]
    whole = [size * micro_batches if of_batch else size for size, of_batch in zip(sizes, batch, strict=True)]
    parts: list[dict[object, list[int]]] = [{} for _ in range(micro_batches)]
    for place in range(prod(whole)):
        coordinates = [int(c) for c in torch.unravel_index(torch.tensor(place), whole)] if whole else []
        micro = next((c // s for c, s, of_batch in zip(coordinates, sizes, batch, strict=True) if of_batch), None)
        rank = tuple(_part(c % s, s, n) for c, s, n in zip(coordinates, sizes, axes, strict=True))
        # Each micro-batch normalizes what all of them read.
        for m in range(micro_batches) if micro is None else [micro]:
            parts[m].setdefault(rank, []).append(place)
    return Pieces(node["site"], dim, tuple(tuple(map(tuple, of_micro.values())) for of_micro in parts))


def _part(place: int, size: int, axes: Sequence[int]) -> tuple[int, ...]:
    """The part of every axis that has the item at `place` among `size` items."""
    found = []
    for parts in axes:
        step = chunk(size, parts, 0)[1]
        found.append(place // step)
        start, stop = chunk(size, parts, place // step)
        place, size = place - start, stop - start
    return tuple(found)


class InPieces(TorchFunctionMode):
    """Makes batch norms in training normalize piece by piece, as the ranks and micro-batches of a plan do."""

    def __init__(self, found: Sequence[Pieces]) -> None:
        super().__init__()
        self.pieces = {each.site: each for each in found}
        self.site = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        call = dict(kwargs or {})
        if func is torch.batch_norm:
            names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
            call |= dict(zip(names, args, strict=False))
        elif func is F.batch_norm:
            names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
            call |= dict(zip(names, args, strict=False))
        if func not in (torch.batch_norm, F.batch_norm) or not call.get("training", False):
            return func(*args, **(kwargs or {}))
        found = self.pieces.get(self.site)
        self.site += 1
        call.pop("cudnn_enabled", None)
        return F.batch_norm(**call) if found is None else _in_pieces(found, call)


def _in_pieces(cut: Pieces, call: dict[str, Any]) -> Tensor:
    """The joined results; the running statistics follow the first part of every micro-batch."""
    x = call["input"]
    result = torch.zeros_like(x)
    for parts in cut.parts:
        for number, part in enumerate(parts):
            places = torch.tensor(part)
            running = {} if number == 0 else {"running_mean": None, "running_var": None}
            own = F.batch_norm(**(call | {"input": x.index_select(cut.dim, places)} | running))
            result = result.index_copy(cut.dim, places, own)
    return result
