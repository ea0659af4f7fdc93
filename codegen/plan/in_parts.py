"""Segments that a plan computes in parts of their samples: which nodes, and what a part is of the plan."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ...formulation.strategies.sample_parts import parted_segments, samples_split
from ...formulation.strategies.tensor_classes import classes
from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.batch import with_batch
from ...model.graph.layout import B, R, S, atom_of, is_split
from ...model.graph.segments import IN_PARTS, Segment, segments
from .memo import once_per_plan

if TYPE_CHECKING:
    from .plan import Plan


@once_per_plan
def parts_of_nodes(plan: Plan) -> dict[int, int]:
    """The nodes that are computed in parts, each with how many."""
    modes = {name: IN_PARTS[mode] for name, mode in plan.recompute.items() if mode in IN_PARTS}
    return {i: modes[s.name] for s in (segments(plan.graph) if modes else ()) if s.name in modes for i in s.nodes}


@once_per_plan
def plans_of_parts(plan: Plan) -> dict[int, Plan]:
    """The same choices for the samples of a part, by the number of parts; the micro-batches are those of the plan."""
    return {parts: _of_part(plan, parts) for parts in sorted({*parts_of_nodes(plan).values()})}


def _of_part(plan: Plan, parts: int) -> Plan:
    found = copy(plan)
    for name in [key for key in vars(plan) if "." in key]:
        vars(found).pop(name)
    vars(found).update(graph=with_batch(plan.graph, plan.graph.batch // parts))
    return found


def check_parts(plan: Plan) -> None:
    """PartitaError: a segment in parts that cannot be, or whose samples or weights move."""
    for segment in segments(plan.graph) if any(mode in IN_PARTS for mode in plan.recompute.values()) else ():
        mode = plan.recompute.get(segment.name, "")
        if mode in IN_PARTS:
            _check_segment(plan, segment, mode)


def _check_segment(plan: Plan, segment: Segment, mode: str) -> None:
    graph, parts, where = plan.graph, IN_PARTS[mode], f"segment {segment.name!r} in {mode}"
    if segment.name not in parted_segments(graph):
        raise PartitaError(
            f"{where}: it needs all samples at once, draws random numbers for them, or reads inputs of the graph; "
            "recompute it in mode full"
        )
    known, grouped, sizes = atoms(graph), classes(graph), plan.placement.sizes
    inside = set(segment.nodes)
    for index in segment.nodes:
        if grouped.base[index] != index or grouped.constant[index]:
            continue
        choice, node = plan.choices[index], graph.nodes[index]
        for i, layout in (*zip(node.inputs, choice.inputs, strict=True), (index, choice.output)):
            ranks = 1
            for axis in samples_split(known[i], layout):
                ranks *= sizes[axis]
            if known[i].batch and graph.batch % (ranks * parts):
                raise PartitaError(
                    f"{where}: the {graph.batch} samples of a micro-batch over {ranks} ranks do not divide into {parts}"
                )
    for base, uses in grouped.uses.items():
        weight, given = graph.nodes[base].op == "parameter", plan.choices[base].given
        if base in inside and samples_split(known[base], given) != samples_split(
            known[base], plan.choices[base].output
        ):
            raise PartitaError(f"{where}: {graph.nodes[base].name!r} moves its samples to other ranks")
        for use in uses:
            if use.node not in inside or grouped.constant[base]:
                continue
            layout = plan.choices[use.node].inputs[use.operand]
            read = tuple(S(use.atoms[atom_of(x)]) if is_split(x) else x for x in layout)
            if weight:
                stored = plan.choices[base].output
                moved = any(a != b and {a, b} != {R, B} for a, b in zip(stored, read, strict=True))
            else:
                moved = samples_split(known[base], given) != samples_split(known[base], read)
            if moved:
                what = "is gathered, once for each part" if weight else "moves its samples to other ranks"
                raise PartitaError(f"{where}: {graph.nodes[base].name!r} {what}")
