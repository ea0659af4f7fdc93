"""The graph at which the structure of its micro-batches is analysed, and how shapes scale with the batch.

Micro-batches of a graph have its nodes, with the dims that count samples scaled. What can be split, what views do and
which nodes repeat others does not depend on the number of samples: it is analysed once, on the graph's `origin`. A
graph of a single sample read from a file has none; it is scaled to many samples first, where sizes tell the batch dims.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..errors import PartitaError
from ..operators.operator import operator
from .notation import WHOLE, Call, names_of
from .pcg import PCG, SOURCES, Node
from .verification import verify

Samples = tuple[tuple[int, ...], ...]
"""For every node the dims that count samples."""

MANY = 1009
"""Samples at which a single-sample graph is analysed: a prime, so that no other dim shares a factor with it."""

_FIXED = ("arange", "constant", "parameter", "buffer")  # their shapes follow from more than the batch


def origin(pcg: PCG) -> PCG:
    """The graph at the batch at which its structure is analysed: itself, unless it was made from another one."""
    if pcg.origin is not None:
        return pcg.origin
    return _of_many_samples(pcg) if pcg.samples else pcg


@lru_cache(maxsize=64)
def _of_many_samples(pcg: PCG) -> PCG:
    return scaled(pcg, MANY, pcg.samples, None)


def scaled(pcg: PCG, batch: int, samples: Samples, made_from: PCG | None) -> PCG:
    """The graph at another batch: every dim in `samples` is scaled; `made_from` is the new graph's origin.

    Raises PartitaError where a node's shape depends on the batch in another way.
    """
    bound = _first_bound(pcg, samples)
    if bound is not None:
        raise PartitaError(f"{bound.op} {bound.name!r} is tied to a batch of {pcg.batch}; capture it at {batch}")
    nodes: list[Node] = []
    for node, dims in zip(pcg.nodes, samples, strict=True):
        if dims:
            shape = list(node.shape)
            for d in dims:
                shape[d] = shape[d] // pcg.batch * batch
            node = replace(node, shape=tuple(shape))
        if node.op == "mean":
            count = nodes[node.inputs[0]].numel // node.numel
            node = replace(node, attributes=tuple((k, count if k == "count" else v) for k, v in node.attributes))
        nodes.append(node)
    kept = samples if batch == 1 else ()
    graph = replace(pcg, nodes=tuple(nodes), batch=batch, samples=kept, origin=made_from, part=None)
    verify(graph)
    return graph


@lru_cache(maxsize=64)
def _first_bound(pcg: PCG, samples: Samples) -> Node | None:
    """The first node whose shape or meaning follows from more than the number of samples."""
    for index, (node, dims) in enumerate(zip(pcg.nodes, samples, strict=True)):
        if _bound(pcg, index, samples) or any(node.shape[d] % pcg.batch or node.op in _FIXED for d in dims):
            return node
    return None


def _bound(pcg: PCG, index: int, samples: Sequence[Sequence[int]]) -> bool:
    """True if a node needs all samples at once, or picks some of them by number."""
    node = pcg.nodes[index]
    if node.op in SOURCES or operator(node.op).creates or operator(node.op).view:
        return False
    notation = operator(node.op).semantics(node, tuple(pcg.nodes[i] for i in node.inputs))
    numbers = dict(zip(operator(node.op).named(node), node.inputs, strict=True))
    for factor in (f for term in notation.terms for f in term.factors):
        made = names_of(factor.indices) if isinstance(factor, Call) else ()
        own = {d for d, names in enumerate(notation.output) if set(names.split()) & set(made)} - set(samples[index])
        for access in factor.arguments if isinstance(factor, Call) else (factor,):
            read = [access.indices[d] for d in samples[numbers[access.operand]]]
            if node.op in ("opaque", "function") and WHOLE in read:  # its arguments may be sizes
                return True
            if any(name.startswith("@") or (WHOLE in name.split() and (own or " " in name)) for name in read):
                return True
    return False
