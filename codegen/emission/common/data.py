"""Batches of the emitted program: random ones, the next samples of a data set, and a rank's part of them."""

from math import prod
from typing import Any

from ....model.graph.atoms import atoms
from ....model.graph.dtypes import FLOATS
from ....model.graph.input_ranges import highs
from ....model.graph.pcg import PCG
from ...plan.plan import Plan
from .conversions import Local, Used
from .names import identifier
from .operator_calls import numbers_text
from .statements import reserved
from .text import enclosed, one_free, shape_text, wrap


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
        lines += _entry(node.name, value)
    return lines


def sample_lines(pcg: PCG, batch: int) -> dict[str, Any] | None:
    """How to take `batch` samples from a data set: the input and dim that count them, and a line per input."""
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
        lines += _entry(node.name, text)
    return first | {"lines": lines} if first else None


def _entry(key: str, value: str) -> list[str]:
    """The lines of one entry of a dictionary, as wide as fits behind an indentation of 8."""
    return [line.removeprefix(" " * 8) for line in wrap(f'"{key}": {value},', 8)]


def part_text(text: str, local: Local, micro_batches: int = 1) -> str:
    """Cut a whole tensor along all axes that split it, after taking the current micro-batch."""
    known = local.known
    split = {a: [local.axes[i] for i in local.splits(a)] for a in range(len(known.sizes))}
    if micro_batches > 1:
        for a in known.batch:
            split[a].insert(0, "mesh.micro")
    inner = any(axes and known.dim_of(a)[1] > 0 for a, axes in split.items())
    uneven = any(isinstance(local.atom(a), str) for a in split)
    factored = (inner or uneven) and any(len(dim) > 1 for dim in known.dims)
    if factored:
        scale = {a: micro_batches if a in known.batch else 1 for a in split}
        text += f".reshape{shape_text(known.sizes[a] * scale[a] for a in split)}"
    for a, axes in split.items():
        for axis in axes:
            text = f"cut({text}, {a if factored else known.dim_of(a)[0]}, {axis})"
    return text + (f".reshape{shape_text(one_free(local.shape()))}" if factored else "")


def argument_name(plan: Plan, index: int) -> str:
    """The name of an input of the graph in the program."""
    name = identifier(plan.graph.nodes[index].name)
    return f"{name}_" if name in reserved() or name in plan.axes else name


def share_lines(plan: Plan, used: Used) -> list[str]:
    """One line per input: its micro-batch, then this rank's part of it."""
    lines = []
    for index in plan.graph.of("input"):
        node, choice = plan.graph.nodes[index], plan.choices[index]
        axes = tuple(f"mesh.{axis}" for axis in plan.axes)
        local = Local(atoms(plan.graph)[index], choice.output, plan.placement.sizes, axes)
        text = part_text(f'inputs["{node.name}"]', local, plan.micro_batches)
        if "cut(" in text:
            used.primitives.add("cut")
        lines += _entry(argument_name(plan, index), f"{text}.to(mesh.device)")
    return lines
