"""Batches as the emitted program makes and reads them: random ones, and the next samples of a data set."""

from __future__ import annotations

from math import prod
from typing import Any

from ....model.graph.atoms import atoms
from ....model.graph.dtypes import FLOATS
from ....model.graph.input_ranges import highs
from ....model.graph.pcg import PCG
from .conversions import Used
from .operator_calls import numbers_text
from .text import enclosed, shape_text, wrap


def synthetic_lines(pcg: PCG, batch: int, used: Used) -> list[str]:
    """One entry for every input: random numbers in its range, for `batch` samples."""
    lines = []
    for index in pcg.of("input"):
        node = pcg.nodes[index]
        shape = list(node.shape)
        for d in {atoms(pcg)[index].dim_of(a)[0] for a in atoms(pcg)[index].batch}:
            shape[d] = shape[d] // pcg.batch * batch
        if node.dtype in FLOATS:
            value = f"torch.randn({shape_text(shape)}, generator=generator)"
        elif node.dtype == "bool":
            value = f"torch.randint(2, {shape_text(shape)}, generator=generator).bool()"
        else:
            high = highs(node)
            value = f"torch.randint({int(high.max())}, {shape_text(shape)}, generator=generator)"
            if high.dim():
                of_each = "" if high.dim() == 1 else f".reshape{shape_text(high.shape)}"
                value += f" % torch.tensor({numbers_text(node.name, node['high'], used)}){of_each}"
            if node.dtype != "int64":
                value = f"{enclosed(value)}.to(torch.{node.dtype})"
        lines += wrap(f'"{node.name}": {value},', 8)
    return [line.removeprefix(" " * 8) for line in lines]


def sample_lines(pcg: PCG, batch: int) -> dict[str, Any] | None:
    """How `batch` samples are taken from a data set: by which input and dim it is counted, a line for every input."""
    known, first, lines = atoms(pcg), dict[str, Any](), []
    for index in pcg.of("input"):
        node = pcg.nodes[index]
        text = f'data["{node.name}"]'
        for a in sorted(known[index].batch)[:1]:
            dim, position = known[index].dim_of(a)
            numbers = known[index].dims[dim]
            outer, size = prod(numbers[:position]), prod(numbers[position:]) // pcg.batch * batch
            if position:  # samples are not the outermost of what the dim counts
                text += f".unflatten({dim}, ({outer}, -1)).narrow({dim + 1}, step * {size}, {size})"
                text += f".flatten({dim}, {dim + 1})"
            else:
                text += f".narrow({dim}, step * {size}, {size})"
            first = first or {"name": node.name, "dim": dim, "size": outer * size}
        lines += wrap(f'"{node.name}": {text},', 8)
    return first | {"lines": [line.removeprefix(" " * 8) for line in lines]} if first else None
