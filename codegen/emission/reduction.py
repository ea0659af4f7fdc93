"""Reduction programs as one file that runs and times them; it needs only torch."""

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

from ...formulation.reduction.program import Collective, Reduction, ReductionProgram, Step
from ...formulation.reduction.semantics import MOST_MEMBERS, repaired, transpose
from ...model.errors import PartitaError
from ...model.graph.builder import free_name
from ...model.machine.machine import ADHOC_NAMES, Machine
from .common.names import identifier
from .common.text import WIDTH, shape_text
from .templates import environment

_RING = "ring"  # an attribute of the emitted class Groups, so no group may have this name
_PRIMES = (2, 3, 5, 7)

Span: TypeAlias = tuple[int, int, tuple[int, ...]]
"""First and last level of a step, and the levels of which only unit 0 takes part."""


def emit(
    programs: Mapping[str, ReductionProgram],
    reduction: Reduction,
    machine: Machine | None = None,
    *,
    size_bytes: int = 4 * 2**20,
    repeats: int = 3,
) -> str:
    """A torch.distributed file with these programs by name, which `torchrun` runs and times.

    Levels have the machine's names. `size_bytes` is the buffer of a rank and `repeats` the number of timed runs; the
    file's command line overrides them. A program whose chunks end permuted gets a local transpose. Raises PartitaError
    if there is no program, the reduction is over one device, or a program is invalid.
    """
    if not programs or not reduction.sizes:
        raise PartitaError("nothing to emit: give at least one program, and a reduction over more than one device")
    steps = [step for program in programs.values() for step in program]
    collectives = {step.collective for step in steps}
    spans = dict.fromkeys((step.first, step.last, step.zero) for step in steps)
    names = _level_names(reduction, machine, spans)
    functions = _functions(programs)
    text = (
        environment()
        .get_template("reduction.jinja")
        .render(
            title=_title(reduction),
            file="reduction.py",
            ranks=reduction.placement.devices,
            levels=json.dumps(dict(zip(names, reduction.sizes, strict=True))),
            names=names,
            members=_members(reduction),
            chunks=prod(reduction.sizes),
            bytes=f"{size_bytes:_}",
            repeats=repeats,
            used=collectives,
            gathers=Collective.ALL_GATHER in collectives,
            scatters=Collective.REDUCE_SCATTER in collectives,
            group_lines=[_group_line(span, names) for span in spans],
            programs=[
                {
                    "key": json.dumps(key, ensure_ascii=False),
                    "name": functions[key],
                    "doc": sentence(program, names),
                    "lines": _lines(program, reduction.sizes, names),
                }
                for key, program in programs.items()
            ],
        )
    )
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


def sentence(program: ReductionProgram, names: Sequence[str]) -> str:
    """A program as a sentence: `Reduce-scatter in gpu, all-reduce in node, all-gather in gpu.`"""
    words = [
        f"{step.collective.words} in {' and '.join(names[i] for i in step.levels)}"
        + (f" of the first {' and '.join(names[i] for i in step.zero)}" if step.zero else "")
        for step in program
    ]
    return ", ".join(words).capitalize() + "."


def _level_names(reduction: Reduction, machine: Machine | None, spans: Iterable[Span]) -> list[str]:
    """Python names of the reduction's levels, outermost first; numbered if the machine's make two groups equal."""
    hierarchy = reduction.placement.hierarchy
    if machine is not None and machine.hierarchy != hierarchy:
        raise PartitaError(f"machine {machine.name} has levels {machine.hierarchy}, the placement {hierarchy}")
    numbered = tuple(f"level{i}" for i in range(len(hierarchy)))
    plain = ADHOC_NAMES.get(len(hierarchy), numbered)
    for every in (plain if machine is None else [identifier(level.name) for level in machine.levels], numbered):
        names = [every[level] for level in reduction.machine_levels]
        taken = [_RING, *(_group_name(*span, names) for span in spans)]
        if len(set(taken)) == len(taken) and len(set(names)) == len(names):
            break
    return names


def _title(reduction: Reduction) -> str:
    placement = reduction.placement
    axes = " and ".join(map(str, reduction.axes))
    rows = " ".join(str(list(row)) for row in placement.matrix)
    over = "axis" if len(reduction.axes) == 1 else "axes"
    return f"Sums over {over} {axes} of a mesh with the parallelism matrix {rows}."


def _members(reduction: Reduction) -> str:
    """The ranks of every reduction, a tensor expression: a dim per level and axis, those of the other axes first."""
    matrix, axes = reduction.placement.matrix, sorted(reduction.axes)
    depth = len(matrix[0])
    digits = [(level, a) for level in range(depth) for a in range(len(matrix)) if matrix[a][level] > 1]
    order = sorted(range(len(digits)), key=lambda i: (digits[i][1] in axes, i))
    shape = shape_text((-1, *reduction.sizes))
    if order == list(range(len(digits))):
        return f"torch.arange(RANKS).reshape{shape}"
    factors = shape_text(matrix[a][level] for level, a in digits)
    return f"torch.arange(RANKS).reshape{factors}.permute{shape_text(order)}.reshape{shape}"


def _group_name(first: int, last: int, zero: Sequence[int], names: Sequence[str]) -> str:
    """`node_gpu`: over both levels; `node_of_first_gpu`: over nodes, with only the first gpu of each."""
    return "_".join(names[first : last + 1]) + "".join(f"_of_first_{names[i]}" for i in zero)


def _group_line(span: Span, names: Sequence[str]) -> str:
    first, last, zero = span
    arguments = [json.dumps(name) for name in names[first : last + 1]]
    if zero:
        arguments.append(f"first={json.dumps([names[i] for i in zero])}")
    return f"self.{_group_name(first, last, zero, names)} = make_group({', '.join(arguments)})"


def _functions(programs: Mapping[str, ReductionProgram]) -> dict[str, str]:
    """A Python name for every program, distinct from all other names of the file."""
    found: dict[str, str] = {}
    for key in programs:
        found[key] = free_name(f"sum_{identifier(key).strip('_').lower()}", found.values())
    return found


def _lines(program: ReductionProgram, sizes: Sequence[int], names: Sequence[str]) -> list[str]:
    """The body of a program's function."""
    lines = [f"x = {_call(step, names)}" for step in program] + _sorted_chunks(program, sizes)
    return [*lines[:-1], lines[-1].replace("x = ", "return ", 1)]


def _call(step: Step, names: Sequence[str]) -> str:
    ring = ", on.ring" if step.collective is Collective.REDUCE_SCATTER else ""
    return f"{step.collective.value}(x, on.{_group_name(step.first, step.last, step.zero, names)}{ring})"


def _sorted_chunks(program: ReductionProgram, sizes: Sequence[int]) -> list[str]:
    """Check the program; the lines that reorder its chunks if they come out permuted."""
    large = prod(sizes) > MOST_MEMBERS
    # Validity does not depend on the sizes. Distinct primes do not divide each other, so a transpose that is right for
    # them is right for all sizes, and the size of each of its dims identifies the levels of the dim.
    model = _PRIMES[: len(sizes)] if large else tuple(sizes)
    take = repaired(program, model).after
    if list(take) == sorted(take):
        return []
    change = transpose(take)
    comment = "  # the chunks are permuted"
    if change is None and large:
        raise PartitaError(
            f"the chunks of {_words(program)} end in an order that no transpose corrects for {prod(sizes)} ranks; "
            "gather in the reverse order of scattering"
        )
    if change is None:
        numbers = textwrap.wrap(", ".join(map(str, take)), WIDTH - 8)
        listed = [f"order = [{comment}", *(f"    {line}" for line in numbers), "]  # fmt: skip"]
        return [*listed, f"x = x.view({len(take)}, -1)[order].flatten()"]
    dims = change.sizes
    if large:
        dims = tuple(prod(n for n, p in zip(sizes, model, strict=True) if size % p == 0) for size in dims)
    shape, order = (", ".join(map(str, numbers)) for numbers in ((*dims, -1), (*change.order, len(dims))))
    return [f"x = x.reshape({shape}).permute({order}).flatten(){comment}"]


def _words(program: ReductionProgram) -> str:
    return sentence(program, [f"level {i}" for i in range(1 + max(step.last for step in program))]).rstrip(".")
