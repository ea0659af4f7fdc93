"""Segments that can be computed in parts of their samples, one part after another on the same devices (co-shard).

Parts are one more axis, as micro-batches are: tensors with the batch atom are cut, all others whole. A segment can be
computed in parts if its operators have rows for that axis that add up nothing, so that parts of the results are those
of the parts of what it reads, and if the samples are the outermost of what it reads and gives.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import Atoms, atoms
from ...model.graph.boundaries import boundaries
from ...model.graph.constants import built_once
from ...model.graph.layout import B, Layout, R, S
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.graph.segments import Segment, segments
from ...model.operators.operator import is_random, operator
from .strategy import rows
from .tensor_classes import classes
from .transitions import Codes, Space


def parted_segments(pcg: PCG) -> frozenset[str]:
    """The names of the segments that can be computed in parts, if their samples divide."""
    return _parted(origin(pcg))  # the same at any batch


@lru_cache(maxsize=64)
def _parted(pcg: PCG) -> frozenset[str]:
    return frozenset(s.name for s in segments(pcg) if _has_parts(pcg, s))


def cut_values(pcg: PCG, segment: Segment) -> dict[int, bool]:
    """What a segment reads from outside, in order, and whether parts read their own samples of it or all of it."""
    inside, known = set(segment.nodes), atoms(pcg)
    read = dict.fromkeys(i for n in segment.nodes for i in pcg.nodes[n].inputs if i not in inside)
    return {i: bool(known[i].batch) for i in read}


def _has_parts(pcg: PCG, segment: Segment) -> bool:
    known, grouped, read = atoms(pcg), classes(pcg), cut_values(pcg, segment)
    results = [i for i in segment.nodes if not set(pcg.consumers[i]) <= set(segment.nodes)]
    crossing = {i for b in boundaries(pcg) for i in b.crossing}.intersection(segment.nodes)  # results if it is divided
    cut = [i for i, each in read.items() if each]
    if any(grouped.base[i] in grouped.handed for i in read) or any(
        pcg.nodes[grouped.base[i]].op == "input" for i in cut
    ):
        return False  # these have layouts of their own
    if not cut or not all(_outermost(known[i]) for i in (*cut, *crossing, *results)):
        return False
    letters = {i: _letter(known[i]) for i in read}
    for index in segment.nodes:
        letter = _given(pcg, index, letters)
        if letter is None:
            return False
        letters[index] = letter
    return True


def _given(pcg: PCG, index: int, letters: dict[int, int]) -> int | None:
    """The letter that a node gives if its operands have these; None: it needs all samples, or draws for them."""
    node, wanted = pcg.nodes[index], _letter(atoms(pcg)[index])
    if is_random(node):
        return None
    if operator(node.op).creates or index in built_once(pcg):
        return R if wanted == R else None
    have = [letters[i] for i in node.inputs]
    for row in rows(pcg, index):
        fits = all(h == w or (h == R and w == B) for h, w in zip(have, row.inputs, strict=True))
        if fits and not row.special and (R if row.output == B else row.output) == wanted:
            return wanted
    return None


def _letter(known: Atoms) -> int:
    return S(min(known.batch)) if known.batch else R


def _outermost(known: Atoms) -> bool:
    """True if the first dim holds the samples, outermost."""
    return len(known.batch) == 1 and known.dim_of(min(known.batch)) == (0, 0)


def samples_split(known: Atoms, layout: Layout) -> tuple[int, ...]:
    """The axes that split the samples of a tensor; none if it has none."""
    return tuple(a for a, x in enumerate(layout) if known.batch and x == S(min(known.batch)))


def samples_split_by(space: Space, known: Atoms, codes: Codes) -> npt.NDArray[np.bool_]:
    """[codes, axes]: the axes that split the samples of a tensor in these layouts."""
    found: npt.NDArray[np.bool_] = space.letters[codes] == (S(min(known.batch)) if known.batch else -1)
    return found
