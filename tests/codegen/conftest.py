"""Plans forced at random, and the judge of all of them: the program on threads against the graph on whole tensors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.table_spread import at_of
from partita.codegen.verification.graph_module import trial_of
from partita.codegen.verification.verify import run
from partita.formulation.placement.placement import Placement
from partita.formulation.special import special_rows_fit
from partita.formulation.special.heuristic_spread import heuristic_spread
from partita.formulation.special.table_spread import row_columns
from partita.formulation.strategies.strategy import rows
from partita.model.graph.atoms import atoms
from partita.model.graph.buffer_updates import updated
from partita.model.graph.dtypes import FLOATS
from partita.model.graph.joined_tables import table_rows
from partita.model.graph.layout import B, Layout, P, R, S, atom_of, is_split, splittable
from partita.model.graph.pcg import PCG, SOURCES, Node
from partita.model.machine.machine import Machine
from partita.model.machine.precision import precision
from partita.model.optimizers import optimizer_states

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Plan]

PARALLEL = ("test_emit", "test_launch", "test_plan_files", "test_processes", "test_threads", "test_verify")
"""Modules about threads and processes themselves: these run on all cores."""


@pytest.fixture(autouse=True)
def one_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep ranks that are threads on one core: they take turns anyway, and on several they fight for the lock."""
    if request.node.path.stem in PARALLEL or not hasattr(os, "sched_setaffinity"):
        yield
        return
    known = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(known)[worker % len(known)]})  # of this thread and those that it starts
    yield
    os.sched_setaffinity(0, known)


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Emit a plan, train its program on threads beside the whole graph; the verdict is asserted and returned.

    The graph of the whole batch is needed where a micro-batch is one sample: a graph does not grow out of that.
    """
    folder = tmp_path_factory.mktemp("programs")
    count = 0

    def check(plan: Plan, graph: PCG | None = None, steps: int = 2) -> dict[str, Any]:
        nonlocal count
        count += 1
        path = folder / f"program{count}.py"
        trial = trial_of(plan, path, steps, graph)
        verdict = run([trial], timeout=60)[0]
        assert verdict["ok"], f"{verdict['failure']}\n{path}\n{plan}"
        path.unlink()
        return verdict

    return check


@dataclass(frozen=True)
class Forcing:
    """Draws legal choices: any row of every node on every axis, any storage, any shared layout."""

    graph: PCG
    sizes: tuple[int, ...]
    rng: random.Random
    keeps_states: bool = True

    def legal(self, node: int, layout: Layout) -> bool:
        """No rank is left empty."""
        known = atoms(self.graph)[node]
        parts: dict[int, tuple[int, ...]] = {}
        for letter, size in zip(layout, self.sizes, strict=True):
            if is_split(letter):
                parts[atom_of(letter)] = (*parts.get(atom_of(letter), ()), size)
        return all(splittable(known.sizes[a], p) for a, p in parts.items())

    def letters(self, node: int) -> list[int]:
        """What any conversion of the tensor may lead to: B and P only where there is a gradient."""
        this = self.graph.nodes[node]
        splits = [S(a) for a in range(len(atoms(self.graph)[node].sizes))]
        if this.dtype not in FLOATS:
            return [R, *splits]
        if table_rows(this):  # P says that tables are spread
            return [R, B, *splits] if this.gradient else [R, *splits]
        return [R, B, P, *splits] if this.gradient else [R, P, *splits]

    def layout(self, node: int, letters: Sequence[int]) -> Layout:
        while True:
            layout = tuple(self.rng.choice(letters) for _ in self.sizes)
            if self.legal(node, layout):
                return layout

    def choice(self, index: int, wish: Sequence[int] | None) -> Choice:
        """`wish`: numbers of the rows, one an axis."""
        node, found = self.graph.nodes[index], rows(self.graph, index)
        while True:
            picked = [found[i] for i in wish] if wish else [self.rng.choice(found) for _ in self.sizes]
            inputs = tuple(tuple(row.inputs[k] for row in picked) for k in range(len(picked[0].inputs)))
            output = tuple(row.output for row in picked)
            layouts = zip((*node.inputs, index), (*inputs, output), strict=True)
            if node.op in SOURCES:
                layouts = zip((index,), (output,), strict=True)
            summed = node.get("sparse") and {B, P} & set(inputs[0])  # as sparse gradients are not, nor their tables
            apart = special_rows_fit(picked, inputs, output, self.sizes)
            if all(self.legal(i, x) for i, x in layouts) and not summed and apart:
                break
            if wish:
                raise ValueError(f"rows {wish} of {node.name!r} leave a rank empty")
        choice = Choice(inputs, output)
        if node.op not in ("input", "buffer", "send") and index != self.graph.loss and self.rng.random() < 0.3:
            choice = replace(choice, shared=self.layout(index, self.letters(index)))
        if node.op == "parameter":
            choice = replace(choice, regather=self.rng.random() < 0.3)
            sharded = node.gradient and B in output and self.rng.random() < 0.5
            choice = replace(choice, sharded_states=sharded and node.get("stages", 1) == 1)
            if choice.sharded_states:
                summed, away = self.rng.random() < 0.4, self.rng.random() < 0.3
                choice = replace(choice, sharded_gradients=summed, offloaded=away and self.keeps_states)
        return choice

    def stored(self, table: Node, asked: Layout, choice: Choice) -> Choice:
        """Joined tables spread as they are asked; where they are not, `choice`, or whole."""
        at = next((axis for axis, letter in enumerate(asked) if letter == P), None)
        if at is None:
            return Choice((), asked) if P in choice.output else choice
        row = row_columns(machine_of(self.sizes).device, precision("float64"), sparse=False)
        spread = heuristic_spread(table_rows(table), table.shape[1], self.sizes[at], row)
        if spread is None:
            raise ValueError("the tables' columns leave a rank empty")
        return Choice((), asked, at=at_of(table, spread))


@cache
def machine_of(sizes: tuple[int, ...]) -> Machine:
    return Machine.adhoc((prod(sizes),))


@pytest.fixture(scope="session")
def force() -> Force:
    """A random legal plan of a graph on a mesh; `wishes` forces the rows of some nodes by number."""

    def forced(
        graph: PCG,
        sizes: tuple[int, ...],
        rng: random.Random,
        wishes: Mapping[int, Sequence[int]] | None = None,
        micro_batches: int = 1,
        optimizer: str = "adamw",
    ) -> Plan:
        placement = Placement(sizes, tuple((size,) for size in sizes))
        choices = drawn(graph, sizes, rng, wishes or {}, optimizer)
        return Plan(graph, machine_of(sizes), placement, micro_batches, choices, "float64", optimizer)

    return forced


def drawn(
    graph: PCG,
    sizes: tuple[int, ...],
    rng: random.Random,
    wishes: Mapping[int, Sequence[int]],
    optimizer: str = "adamw",
) -> tuple[Choice, ...]:
    """Random legal choices; `wishes` forces the rows of some nodes by number."""
    forcing = Forcing(graph, sizes, rng, optimizer_states(optimizer) > 0)
    choices = [forcing.choice(i, wishes.get(i)) for i in range(len(graph.nodes))]
    for buffer, (reader, place) in updated(graph).items():
        choices[buffer] = Choice((), choices[reader].inputs[place])
    for index, node in enumerate(graph.nodes):
        if node.get("sparse"):  # read as it is stored
            choices[node.inputs[0]] = Choice((), choices[index].inputs[0])
        table = graph.nodes[node.inputs[0]] if node.inputs else None
        if table is not None and table_rows(table):  # spread as it is asked, or not
            choices[node.inputs[0]] = forcing.stored(table, choices[index].inputs[0], choices[node.inputs[0]])
    return tuple(choices)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")
