"""The names by which plans find layers and dimensions."""

import re
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, takewhile

from ...model.graph.atoms import atoms, dimensions
from ...model.graph.layout import atom_of, is_split
from ...model.graph.pcg import PCG
from ...model.graph.segments import segments
from ..strategies.strategy import rows

BATCH = "batch"


@dataclass(frozen=True, slots=True)
class SplitDim:
    """A dimension along which an operator may be split: its name for `split`, and its size in entries.

    `tensors`: the same as (tensor, dim, factor) of every operand and result that has it.
    """

    name: str
    size: int
    tensors: tuple[tuple[str, int, int], ...]


def batch_of(pcg: PCG) -> frozenset[int]:
    """The numbers of the graph's dimensions that count samples (`model.graph.atoms.dimensions`)."""
    known, numbers = atoms(pcg), dimensions(pcg)
    return frozenset(numbers[i][a] for i in pcg.of("input") for a in known[i].batch)


def dims_of(pcg: PCG, node: int, batch: Set[int]) -> dict[str, SplitDim]:
    """By name, the dimensions along which a node that is no source may be split; `batch` are those of samples."""
    known, numbers = atoms(pcg), dimensions(pcg)
    tensors = (*pcg.nodes[node].inputs, node)
    found: dict[str, SplitDim] = {}
    for row in rows(pcg, node):
        split = [(i, atom_of(x)) for i, x in zip(tensors, (*row.inputs, row.output), strict=True) if is_split(x)]
        if row.special or row.index is None or not split:
            continue
        index, position = row.index
        of_samples = any(numbers[i][atom] in batch for i, atom in split)
        name = BATCH if of_samples else index + (f":{position}" if position else "")
        places = dict.fromkeys((pcg.nodes[i].name, *known[i].dim_of(atom)) for i, atom in split)
        size = known[split[0][0]].sizes[split[0][1]]
        found.setdefault(name, SplitDim(name, size, tuple(places)))
    return found


def layer_of(path: str, depth: int = 1) -> str:
    """`encoder.3` for `encoder.3.attention`; with `depth` 2 the list element within it; empty outside of lists."""
    names = path.split(".")
    numbers = [at for at, name in enumerate(names) if name.isdigit()]
    return ".".join(names[: numbers[depth - 1] + 1]) if len(numbers) >= depth else ""


def layer_in(pcg: PCG, path: str) -> str:
    """The layer in which a path lies, `encoder.3` for `encoder.3.attention`; empty outside of lists.

    Of lists within lists it is the entry that the planner recomputes as one (`segments`), if there is one.
    """
    known = _segment_names(pcg)
    found = list(takewhile(bool, (layer_of(path, depth) for depth in count(1))))
    return next((name for name in reversed(found) if name in known), found[0] if found else "")


@lru_cache(maxsize=64)
def _segment_names(pcg: PCG) -> frozenset[str]:
    return frozenset(segment.name for segment in segments(pcg))


def pattern(name: str) -> str:
    """`layers.*.up` for `layers.3.up`: the name that equal layers share."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
