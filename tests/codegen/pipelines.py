"""Pipelined plans for tests: every stage solved, or drawn, as the one before hands its tensors on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import partita
from partita.codegen.plan.plan import PipelinePlan, Plan
from partita.codegen.planner.decode import choices, report
from partita.codegen.pricing.on_machine import step_on
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding_options import EncodingOptions, StageContext
from partita.formulation.pipeline.schedule import schedule_named
from partita.formulation.pipeline.stage_transfers import transfer_price
from partita.formulation.placement.placement import Placement, placements
from partita.formulation.search_space import SearchSpace
from partita.formulation.spacetime.predict import Prediction
from partita.formulation.strategies.strategy import row_names, rows
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.batch import with_batch
from partita.model.graph.layout import Layout
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import MODES, segments
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine, stage_machine
from partita.solvers.protocol import solver

from .conftest import drawn


@cache
def captured(name: str, batch: int) -> PCG:
    module, inputs = load_module(name, small=True)
    # On a CPU attention with dropout keeps scores, which are not priced.
    return capture(module, inputs, batch=batch, dropout="counters")


def predicted(plan: PipelinePlan) -> Prediction:
    """What an independent pricer says of the emitted program, which has messages of its own."""
    return partita.space_time(plan.space_time_graph(), plan.machine, optimizer=plan.optimizer).prediction


def check_kept(plan: PipelinePlan, file: Path) -> None:
    """Save a plan; it is loaded as it was, at its step."""
    plan.save(file)
    loaded = partita.load_plan(file)
    assert loaded == plan
    assert step_on(loaded, plan.machine) == plan.report["objective_ns"]


def evenly(graph: PCG, stages: int) -> tuple[int, ...]:
    """Bounds with about as many boundaries in every stage."""
    last = len(boundaries(graph)) - 1
    return tuple(round(k * last / stages) for k in range(stages + 1))


def piped(
    graph: PCG,
    levels: tuple[int, ...],
    row: tuple[int, ...],
    micros: int,
    mesh: Sequence[int] | None = None,
    *,
    bounds: Sequence[int] | None = None,
    schedule: str = "1f1b",
    chunks: int = 1,
    dtype: str = "float32",
    optimizer: str = "adamw",
    fixed: dict[str, tuple[str, ...]] | None = None,
    stored: dict[str, Layout] | None = None,
    recompute: str = "none",
    model: dict[str, Any] | None = None,
) -> PipelinePlan:
    """A plan of `graph` (the whole batch) whose stages are the cheapest, one after the other.

    `fixed` rows of nodes, `stored` layouts of weights, and what `recompute` says of all segments.
    """
    machine = Machine.adhoc(levels)
    part, line = stage_machine(machine, row), transfer_price(machine, row)
    place = placements(part.hierarchy, mesh=mesh)[0]
    size = machine.devices // part.devices
    small = with_batch(graph, graph.batch // micros)
    cuts = tuple(bounds or evenly(small, size * chunks))
    plans: list[Plan] = []
    for number, (first, last) in enumerate(pairwise(cuts)):
        inner = stage(small, first, last).graph
        asked = {name: ",".join(names) for name, names in ((fixed or {}) | _received(plans[-1:], inner)).items()}
        flying = schedule_named(schedule).in_flight(size, chunks, micros, number)
        given = encode(
            inner, part, place, micro_batches=micros, dtype=dtype, optimizer=optimizer,
            options=EncodingOptions(SearchSpace(fix=tuple(asked.items()))),
            stage=StageContext(
                flying, line, _stored(plans, inner, stored or {}),
                delays_messages=schedule_named(schedule).delays_messages,
            ),
        )  # fmt: skip
        answer = solver("auto").solve(given.network)
        assert answer.assignment is not None
        chosen, told = choices(given, answer.assignment), report(given, answer.assignment)
        told |= {"objective_ns": answer.objective, "bound_ns": answer.bound, "status": answer.status.value}
        again = {s.name: recompute for s in segments(inner)} if recompute != "none" else {}
        plans.append(
            Plan(
                inner, part, place, micros, chosen, dtype, optimizer, report=told, recompute=again,
                in_flight=flying, transfer=line,
            )
        )  # fmt: skip
    return PipelinePlan(small, machine, row, cuts, tuple(plans), schedule_named(schedule), chunks, model=model or {})


def at_random(
    graph: PCG,
    size: int,
    sizes: tuple[int, ...],
    micros: int,
    rng: random.Random,
    *,
    bounds: Sequence[int] | None = None,
    schedule: str = "1f1b",
    chunks: int = 1,
    optimizer: str = "adamw",
    recompute: bool = False,
    special: bool = True,
) -> PipelinePlan:
    """A plan of `graph` (the whole batch) with any legal choices, on a mesh of `size` stages by `sizes`.

    `recompute`: some segments are computed again, drawn too. Without `special`, none but rows from index notation.
    """
    machine = Machine.adhoc((size * prod(sizes),))
    part, line = stage_machine(machine, (size,)), transfer_price(machine, (size,))
    place = Placement(sizes, tuple((n,) for n in sizes))
    small = with_batch(graph, graph.batch // micros)
    cuts = tuple(bounds or evenly(small, size * chunks))
    plans: list[Plan] = []
    for number, (first, last) in enumerate(pairwise(cuts)):
        inner = stage(small, first, last).graph
        asked = _handed(plans[-1:], inner) | {
            i: layout for i in inner.of("parameter") if (layout := _stored(plans, inner, {}).get(inner.nodes[i].name))
        }
        wishes = {i: [[row.output for row in rows(inner, i)].index(x) for x in layout] for i, layout in asked.items()}
        chosen = drawn(inner, sizes, rng, wishes if special else plain(inner, sizes, rng) | wishes, optimizer)
        if schedule_named(schedule).double_buffered:  # keeps gradients and states beside the weights
            chosen = tuple(replace(choice, sharded_gradients=False, offloaded=False) for choice in chosen)
        flying = schedule_named(schedule).in_flight(size, chunks, micros, number)
        again = {s.name: rng.choice(MODES) for s in segments(inner)} if recompute else {}
        plans.append(
            Plan(
                inner, part, place, micros, chosen, "float64", optimizer, in_flight=flying, transfer=line,
                recompute={name: mode for name, mode in again.items() if mode != "none"},
            )
        )  # fmt: skip
    return PipelinePlan(small, machine, (size,), cuts, tuple(plans), schedule_named(schedule), chunks)


def plain(graph: PCG, sizes: tuple[int, ...], rng: random.Random) -> dict[int, list[int]]:
    """For nodes with special strategies, the numbers of other rows."""
    found = {}
    for index in range(len(graph.nodes)):
        known = rows(graph, index)
        if any(row.special for row in known):
            numbers = [number for number, row in enumerate(known) if not row.special and row.index is None]
            found[index] = [rng.choice(numbers) for _ in sizes]
    return found


def _received(before: Sequence[Plan], graph: PCG) -> dict[str, tuple[str, ...]]:
    """The rows of what a stage receives, by the layouts in which the stage before sends it."""
    found: dict[str, tuple[str, ...]] = {}
    for index, layout in _handed(before, graph).items():
        letters = {row.output: name for row, name in zip(rows(graph, index), row_names(graph, index), strict=True)}
        found[graph.nodes[index].name] = tuple(letters[x] for x in layout)
    return found


def _handed(before: Sequence[Plan], graph: PCG) -> dict[int, Layout]:
    """The layouts in which the stage before sends what a stage receives."""
    pairs = [zip(graph.of("receive"), plan.graph.of("send"), strict=True) for plan in before]
    return {to: plan.choices[of].output for plan, found in zip(before, pairs, strict=True) for to, of in found}


def _stored(before: Sequence[Plan], graph: PCG, fixed: Mapping[str, Layout]) -> dict[str, Layout]:
    """How weights are stored that earlier stages have too, or that are fixed."""
    known = {**fixed} | {p.graph.nodes[i].name: p.choices[i].output for p in before for i in p.graph.of("parameter")}
    return {name: known[name] for i in graph.of("parameter") if (name := graph.nodes[i].name) in known}
