"""Checks of a pipeline: its stages fit each other, the machine and the schedule."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.pcg import PCG
from ...model.graph.sparse_tables import sparse_tables
from ...model.graph.stages import boundaries, stage
from ...model.machine.machine import stage_machine
from ...model.machine.precision import precision
from .choice import letter_text
from .plan import Plan

if TYPE_CHECKING:
    from .pipeline_plan import PipelinePlan


def check(plan: PipelinePlan) -> None:
    """Raise PartitaError unless the stages make up the graph, fit the machine, and agree at their boundaries."""
    size, count = math.prod(plan.row), len(plan.stages)
    if size < 2 or plan.chunks < 1:
        raise PartitaError(f"a pipeline over {size} parts of the devices with {plan.chunks} stages each")
    if count != size * plan.chunks:
        raise PartitaError(f"{count} stages for {size} parts of the devices with {plan.chunks} each")
    _check_bounds(plan)
    first, machine = plan.stages[0], stage_machine(plan.machine, plan.row)
    for number, part in enumerate(plan.stages):
        where = f"stage {number}"
        if part.machine != machine:
            raise PartitaError(f"{where} is planned for {part.machine.name}, not for its part of {plan.machine.name}")
        for name in ("placement", "micro_batches", "dtype", "optimizer"):
            here, there = getattr(part, name), getattr(first, name)
            if here != there:
                raise PartitaError(f"{where} has {name} {here}, stage 0 {there}: all stages share them")
        _check_graph(plan, number)
    schedule, micro_batches = plan.schedule, first.micro_batches
    schedule.orders(size, plan.chunks, micro_batches)  # are there any?
    if not schedule.runs(size, micro_batches):
        raise PartitaError(
            f"{schedule} with {size} stages needs {schedule.needs} {size} micro-batches, not {micro_batches}"
        )
    for number, part in enumerate(plan.stages):
        needed = schedule.in_flight(size, plan.chunks, micro_batches, number)
        if schedule.splits_backward and part.recompute:
            raise PartitaError(f"stage {number} computes segments again, which a backward in two parts would do twice")
        if part.in_flight < needed:
            raise PartitaError(f"stage {number} has room for {part.in_flight} micro-batches, {schedule} keeps {needed}")
    if schedule.double_buffered:
        for part in plan.stages:
            check_stale(part.graph, part.dtype, part.separate_states)
    for number, (before, after) in enumerate(pairwise(plan.stages)):
        _check_boundary(number, before, after)
    _check_tied(plan)


def check_stale(graph: PCG, dtype: str, elsewhere: bool) -> None:
    """Raise PartitaError unless two weight versions suffice, and every updated tensor can have them.

    `elsewhere`: some gradients or states are not beside their weights.
    """
    if dtype == "mixed-float16":
        raise PartitaError("2bw scales no losses: take mixed-bfloat16 instead of mixed-float16")
    if elsewhere or precision(dtype).copied:
        raise PartitaError(
            "2bw keeps gradients and states beside two versions of weights, none elsewhere or in another dtype"
        )
    for table in sparse_tables(graph):
        raise PartitaError(f"2bw keeps two versions of weights: {graph.nodes[table].name!r} is too sparse for it")


def _check_bounds(plan: PipelinePlan) -> None:
    last = len(boundaries(plan.graph)) - 1
    rising = all(a < b for a, b in pairwise(plan.bounds))
    if len(plan.bounds) != len(plan.stages) + 1 or not rising or (plan.bounds[0], plan.bounds[-1]) != (0, last):
        raise PartitaError(
            f"{len(plan.stages)} stages between boundaries {plan.bounds}: the graph has 0 to {last}: "
            "a pipeline takes the first, the last, and one between any two stages"
        )


def _check_graph(plan: PipelinePlan, number: int) -> None:
    """A stage's graph may be rewritten, but receives and sends what lies between its boundaries."""
    wanted, found = stage(plan.graph, *plan.bounds[number : number + 2]).graph, plan.stages[number].graph
    if found == wanted:
        return
    for op in ("receive", "send"):
        if _transferred(found, op) != _transferred(wanted, op):
            raise PartitaError(f"stage {number}: its graph is not what lies between its boundaries ({op})")
    names = [{name for i in graph.of("parameter") for name in graph.nodes[i].originals} for graph in (found, wanted)]
    if names[0] != names[1] or found.batch != wanted.batch:
        raise PartitaError(f"stage {number}: its graph is not what lies between its boundaries (weights, batch)")


def _transferred(graph: PCG, op: str) -> list[tuple[object, ...]]:
    nodes = (graph.nodes[i] for i in graph.of(op))
    return [(node.name, node.shape, node.dtype, node.gradient, node["atoms"]) for node in nodes]


def layout_words(plan: Plan, index: int) -> list[str]:
    """The layout of a node in letters that do not depend on its graph."""
    return [letter_text(atoms(plan.graph)[index], letter) for letter in plan.choices[index].output]


def _check_boundary(number: int, before: Plan, after: Plan) -> None:
    """A stage sends every tensor in the layout in which the next one receives it."""
    for sent, received in zip(before.graph.of("send"), after.graph.of("receive"), strict=True):
        source, target = layout_words(before, sent), layout_words(after, received)
        if source != target:
            name = before.graph.nodes[sent]["peer"]
            raise PartitaError(
                f"stage {number} hands on {name!r} as {' '.join(source)}, the next one takes it as {' '.join(target)}"
            )


def tied(plan: PipelinePlan) -> dict[str, tuple[int, ...]]:
    """The weights shared by several stages, by name, with those stages."""
    found: dict[str, tuple[int, ...]] = {}
    for number, part in enumerate(plan.stages):
        for index in part.graph.of("parameter"):
            for name in part.graph.nodes[index].originals:
                found[name] = (*found.get(name, ()), number)
    return {name: stages for name, stages in found.items() if len(stages) > 1}


def _check_tied(plan: PipelinePlan) -> None:
    """A weight shared by several stages is stored alike in all of them."""
    for name, stages in tied(plan).items():
        first, *others = (_stored(plan.stages[number], name) for number in stages)
        for number, other in zip(stages[1:], others, strict=True):
            if other != first:
                raise PartitaError(f"stages {stages[0]} and {number} store {name!r} differently")


def _stored(plan: Plan, name: str) -> tuple[object, ...]:
    """How a weight is stored, in words that do not depend on a stage."""
    index = next(i for i in plan.graph.of("parameter") if name in plan.graph.nodes[i].originals)
    choice = plan.choices[index]
    return plan.graph.nodes[index].name, layout_words(plan, index), choice.sharded_states, choice.beside, choice.at
