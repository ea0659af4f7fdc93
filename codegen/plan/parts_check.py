"""Which segments of a plan may be computed in parts of their samples."""

from collections.abc import Mapping, Sequence

from ...formulation.strategies.sample_parts import parted_segments, samples_split
from ...formulation.strategies.tensor_classes import classes
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.layout import B, R, S, atom_of, is_split
from ...model.graph.pcg import PCG
from ...model.graph.segments import IN_PARTS, Segment, segments
from .choice import Choice


def check_parts(graph: PCG, choices: Sequence[Choice], recompute: Mapping[str, str], sizes: Sequence[int]) -> None:
    """Check the segments that a plan computes in parts; `sizes` are those of the mesh axes.

    PartitaError: a segment cannot be computed in parts, or its samples or weights move.
    """
    for segment in segments(graph) if any(mode in IN_PARTS for mode in recompute.values()) else ():
        mode = recompute.get(segment.name, "")
        if mode in IN_PARTS:
            _check_segment(graph, choices, sizes, segment, mode)


def _check_segment(graph: PCG, choices: Sequence[Choice], sizes: Sequence[int], segment: Segment, mode: str) -> None:
    parts, where = IN_PARTS[mode], f"segment {segment.name!r} in {mode}"
    if segment.name not in parted_segments(graph):
        raise PartitaError(
            f"{where}: it needs all samples at once, draws random numbers for them, or reads inputs of the graph; "
            "recompute it in mode full"
        )
    known, grouped = atoms(graph), classes(graph)
    inside = set(segment.nodes)
    for index in segment.nodes:
        if grouped.base[index] != index or grouped.constant[index]:
            continue
        choice, node = choices[index], graph.nodes[index]
        for i, layout in (*zip(node.inputs, choice.inputs, strict=True), (index, choice.output)):
            ranks = 1
            for axis in samples_split(known[i], layout):
                ranks *= sizes[axis]
            if known[i].batch and graph.batch % (ranks * parts):
                raise PartitaError(
                    f"{where}: the {graph.batch} samples of a micro-batch over {ranks} ranks do not divide into {parts}"
                )
    for base, uses in grouped.uses.items():
        weight, given = graph.nodes[base].op == "parameter", choices[base].given
        if base in inside and samples_split(known[base], given) != samples_split(known[base], choices[base].output):
            raise PartitaError(f"{where}: {graph.nodes[base].name!r} moves its samples to other ranks")
        for use in uses:
            if use.node not in inside or grouped.constant[base]:
                continue
            layout = choices[use.node].inputs[use.operand]
            read = tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in layout)
            if weight:
                stored = choices[base].output
                moved = any(a != b and {a, b} != {R, B} for a, b in zip(stored, read, strict=True))
            else:
                moved = samples_split(known[base], given) != samples_split(known[base], read)
            if moved:
                what = "is gathered, once for each part" if weight else "moves its samples to other ranks"
                raise PartitaError(f"{where}: {graph.nodes[base].name!r} {what}")
