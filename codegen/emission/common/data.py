"""Batches of the emitted program: random ones, the next samples of a data set, and a rank's part of them."""

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

from ....model.capture.batch_guess import calculates, reads_several
from ....model.graph.atoms import atoms, batch_dims
from ....model.graph.dtypes import FLOATS
from ....model.graph.input_ranges import highs
from ....model.graph.pcg import PCG
from ...plan.plan import Plan
from .conversions import Local, Used
from .losses import counted
from .names import identifier
from .operator_calls import numbers_text
from .statements import reserved
from .text import enclosed, one_free, shape_text, wrap


def synthetic_lines(pcg: PCG, batch: int, used: Used) -> list[str]:
    """One entry for every input: random numbers in its range, for `batch` samples."""
    lines = []
    for index in pcg.of("input"):
        node = pcg.nodes[index]
        shape = [size * (batch if counts else 1) for size, counts in _sizes(pcg, index)]
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


def _sizes(pcg: PCG, index: int) -> list[tuple[int, bool]]:
    """The sizes of an input's dims, each of one sample, and whether it grows with the number of samples."""
    known = atoms(pcg)[index]
    counting = {known.dim_of(a)[0] for a in known.batch}
    return [(n // pcg.batch if d in counting else n, d in counting) for d, n in enumerate(pcg.nodes[index].shape)]


def shape_lines(pcg: PCG) -> list[str]:
    """One entry for every input: its shape as an expression of `count`, a number of samples."""
    lines = []
    for index in pcg.of("input"):
        dims = [("count" if n == 1 else f"{n} * count") if counts else n for n, counts in _sizes(pcg, index)]
        lines += _entry(pcg.nodes[index].name, shape_text(dims))
    return lines


def padding(pcg: PCG) -> dict[str, Any] | None:
    """How a batch may be filled up: the input of the labels, and the label that does not count.

    None where more samples would change the loss although their labels do not count: it is not the mean over labels, or
    something else than it combines samples, or the labels have another reader.
    """
    samples, loss = batch_dims(pcg), pcg.loss
    while pcg.nodes[loss].op in ("view", "to"):
        loss = pcg.nodes[loss].inputs[0]
    if loss not in counted(pcg) or any(_sizes(pcg, i)[:1] != [(1, True)] for i in pcg.of("input")):
        return None
    for index, node in enumerate(pcg.nodes):
        combines = any(samples[i] for i in node.inputs) and calculates(node)
        if combines and index != loss and (not samples[index] or reads_several(pcg, index, samples)):
            return None
    labels, reader = pcg.nodes[loss].inputs[1], loss
    while pcg.consumers[labels] == (reader,) and pcg.nodes[labels].op in ("view", "slice", "to"):
        labels, reader = pcg.nodes[labels].inputs[0], labels
    if pcg.consumers[labels] != (reader,) or pcg.nodes[labels].op != "input":
        return None
    return {"labels": pcg.nodes[labels].name, "ignored": pcg.nodes[loss].get("ignore_index", -100)}


def counted_by_step(pcg: PCG, batch: int) -> tuple[int, str]:
    """What a step counts, and how many: tokens where each has a label, else samples."""
    for loss in counted(pcg):
        source = pcg.nodes[loss].inputs[1]
        while pcg.nodes[source].op in ("view", "slice", "to"):
            source = pcg.nodes[source].inputs[0]
        sizes = _sizes(pcg, source) if pcg.nodes[source].op == "input" else []
        if len(sizes) == 2 and any(counts for _, counts in sizes):
            return prod(n for n, _ in sizes) * batch, "tokens"
    return batch, "samples"


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


def part_text(text: str, local: Local, micro_batches: int = 1, reading: Sequence[int] = ()) -> str:
    """Cut a whole tensor along all axes that split it, after taking the current micro-batch.

    The axes of `reading` are local variables of the program where they cut the batch, which may have been read in part.
    """
    known = local.known
    split = {
        a: [local.axes[i].removeprefix("mesh." * (a in known.batch and i in reading)) for i in local.splits(a)]
        for a in range(len(known.sizes))
    }
    if micro_batches > 1:
        for a in known.batch:
            split[a].insert(0, "mesh.micro")
    inner = any(axes and known.dim_of(a)[1] > 0 for a, axes in split.items())
    uneven = any(isinstance(local.atom(a), str) for a in split)
    factored = (inner or uneven) and any(len(dim) > 1 for dim in known.dims)
    if factored:
        scale = {a: micro_batches if a in known.batch else 1 for a in split}
        sizes = [-1 if reading and a in known.batch else known.sizes[a] * scale[a] for a in split]
        text += f".reshape{shape_text(sizes)}"
    for a, axes in split.items():
        for axis in axes:
            text = f"cut({text}, {a if factored else known.dim_of(a)[0]}, {axis})"
    return text + (f".reshape{shape_text(one_free(local.shape()))}" if factored else "")


def argument_name(plan: Plan, index: int) -> str:
    """The name of an input of the graph in the program."""
    name = identifier(plan.graph.nodes[index].name)
    return f"{name}_" if name in reserved() or name in plan.axes else name


def reading_axes(stages: Sequence[Plan]) -> tuple[int, ...]:
    """The axes over which ranks read different samples: those that split the batch of all inputs, outermost first.

    Numbers of a stage's axes. Further axes cut inputs that are read: other dims, or the samples of some inputs only.
    """
    splits = []
    for plan in stages:
        for index in plan.graph.of("input"):
            known = atoms(plan.graph)[index]
            if not known.batch:
                continue
            outer = len(known.batch) == 1 and known.dim_of(min(known.batch))[1] == 0
            local = Local(known, plan.choices[index].output, plan.placement.sizes, plan.axes)
            splits.append(local.splits(min(known.batch)) if outer else ())
    common = itertools.takewhile(lambda axes: len({*axes}) == 1, zip(*splits, strict=False))
    return tuple(axes[0] for axes in common)


def share_lines(plan: Plan, used: Used, reading: Sequence[int] = ()) -> list[str]:
    """One line per input: its micro-batch, then this rank's part of it; `reading` as for `part_text`."""
    lines = []
    for index in plan.graph.of("input"):
        node, choice = plan.graph.nodes[index], plan.choices[index]
        axes = tuple(f"mesh.{axis}" for axis in plan.axes)
        local = Local(atoms(plan.graph)[index], choice.output, plan.placement.sizes, axes)
        text = part_text(f'inputs["{node.name}"]', local, plan.micro_batches, reading)
        if "cut(" in text:
            used.primitives.add("cut")
        lines += _entry(argument_name(plan, index), f"{text}.to(mesh.device, non_blocking=True)")
    return lines
