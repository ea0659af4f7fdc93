"""Random inputs for a captured graph, the same for a program and for the unsharded module."""

import zlib

import torch
from torch import Tensor

from ...model.graph.dtypes import FLOATS
from ...model.graph.input_ranges import highs
from ...model.graph.pcg import PCG
from ...model.operators.loss import CLASSIFIED

_SHARES = ("kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits")
"""Losses whose targets are probabilities, which must not be negative."""


def generator(*key: object) -> torch.Generator:
    """A generator seeded by the key."""
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def synthetic(graph: PCG, samples: int, step: int) -> dict[str, Tensor]:
    """Random inputs for one step of `samples`: integers below `high`, else normal; some labels are ignored ones."""
    ignored = _labels(graph)
    batch = {}
    for index in graph.of("input"):
        node = graph.nodes[index]
        shape = list(node.shape)
        if node.get("batch_dim") is not None:
            shape[node["batch_dim"]] = shape[node["batch_dim"]] // graph.batch * samples
        source = generator("input", node.name, step)
        dtype = getattr(torch, node.dtype)
        if node.dtype in FLOATS:
            drawn = torch.randn(shape, generator=source, dtype=torch.float64)
            shares = any(graph.nodes[c].op in _SHARES and place == 1 for c, place in _uses(graph, index))
            batch[node.name] = drawn.sigmoid() if shares else drawn
            continue
        high = highs(node)
        values = torch.randint(int(high.max()), shape, generator=source) % high
        if index in ignored and values.dim():
            # Increasingly many, so that ranks and micro-batches have different numbers of labels.
            share = torch.linspace(0, 0.9, values.shape[0], dtype=torch.float64).view(-1, *[1] * (values.dim() - 1))
            ignores = torch.rand(shape, generator=source, dtype=torch.float64) < share
            values = torch.where(ignores, ignored[index], values)
            if values[0].eq(ignored[index]).any():  # the labels of the first sample count: the mean over none is NaN
                values[0] = (ignored[index] + 1) % high
        batch[node.name] = values.to(dtype)
    return batch


def _labels(graph: PCG) -> dict[int, int]:
    """Inputs that are only class labels of cross entropies, with the label that is not counted."""
    found: dict[int, int] = {}
    for index in graph.of("input"):
        uses = _uses(graph, index)
        if uses and all(graph.nodes[c].op in CLASSIFIED and place == 1 for c, place in uses):
            labels = {graph.nodes[c].get("ignore_index", -100) for c, _ in uses}
            if len(labels) == 1:
                found[index] = labels.pop()
    return found


def _uses(graph: PCG, index: int) -> set[tuple[int, int]]:
    """The readers of a tensor, with the operand, also through operators that only move elements."""
    found: set[tuple[int, int]] = set()
    for consumer in graph.consumers[index]:
        node = graph.nodes[consumer]
        if node.op in ("view", "slice", "permute", "to"):
            found |= _uses(graph, consumer)
        else:
            found |= {(consumer, place) for place, source in enumerate(node.inputs) if source == index}
    return found
