"""The integers that an input may hold: rows of tables that it indexes, classes of the loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .dtypes import FLOATS
from .pcg import Attribute, Node

PASSING = frozenset(["view", "permute", "slice", "expand", "contiguous", "to", "cat", "detach", "roll", "flip", "pad"])
UNKNOWN = 2
"""Assumed bound of integers where nothing tells: truth values."""


def with_ranges(nodes: Sequence[Node], limits: Mapping[int, int]) -> list[Node]:
    """The nodes with an attribute `high` on every integer input: its exclusive upper bound.

    `limits` are known bounds of some nodes. Where the entries of a dim are sliced for tables of different sizes, `high`
    has a number for each entry of `high_dim`.
    """
    high: list[float] = [limits.get(index, math.inf) for index in range(len(nodes))]
    for index, node in reversed(list(enumerate(nodes))):
        if node.op in PASSING:
            for source in node.inputs:
                high[source] = min(high[source], high[index])
    result = list(nodes)
    for index, node in enumerate(nodes):
        if node.op == "input" and node.dtype not in FLOATS:
            own = _range(nodes, index, high, limits.get(index, math.inf))
            result[index] = replace(node, attributes=tuple(sorted({**dict(node.attributes), **own}.items())))
    return result


def _range(nodes: Sequence[Node], index: int, high: Sequence[float], own: float) -> dict[str, Attribute]:
    """The attributes `high` and, where bounds differ along a dim, `high_dim`."""
    node = nodes[index]
    readers = [(i, reader) for i, reader in enumerate(nodes) if index in reader.inputs]
    dims = {reader["dim"] for _, reader in readers if reader.op == "slice"}
    if len(dims) == 1 and dims != {node.get("batch_dim")}:
        (dim,) = dims
        bounds = [own] * node.shape[dim]
        for i, reader in readers:
            every = reader.op in PASSING and reader.op != "slice"
            where = slice(reader["start"], reader["stop"], reader["step"]) if reader.op == "slice" else slice(None)
            for entry in range(node.shape[dim])[where] if every or reader.op == "slice" else ():
                bounds[entry] = min(bounds[entry], high[i])
        if len(set(bounds)) > 1:
            return {"high": tuple(map(_bound, bounds)), "high_dim": dim}
    return {"high": _bound(high[index])}


def _bound(limit: float) -> int:
    return UNKNOWN if math.isinf(limit) else int(limit)


def highs(node: Node) -> Tensor:
    """Exclusive upper bounds of an integer input, as a tensor that broadcasts to its shape."""
    high = torch.tensor(node.get("high", UNKNOWN))
    return high.view(-1, *(1 for _ in node.shape[node["high_dim"] + 1 :])) if high.dim() else high
