"""Plans forced at random, and the judge of all of them: the program on threads against the graph on whole tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.codegen.defaults import SEED
from partita.codegen.plan import Choice, Plan
from partita.codegen.templates.counters import dropout_mask, projection_weights
from partita.codegen.verification.reference import Optimizer, random_weight, state_of
from partita.codegen.verification.statistics import InPieces, Pieces, pieces
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.verify import TOLERANCE, Trial, run
from partita.codegen.verification.worker import Outcome
from partita.formulation.placement import Placement
from partita.formulation.strategy import rows
from partita.model import interpret
from partita.model.atoms import atoms
from partita.model.batch import with_batch
from partita.model.layout import B, Layout, P, R, S, atom_of, is_split, splittable
from partita.model.machine import Machine
from partita.model.pcg import FLOATS, PCG, SOURCES
from partita.model.updates import updated

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Plan]


class Whole(nn.Module):
    """A graph as a module: every node on whole tensors, by `model.interpret`, with the program's masks and noise."""

    def __init__(self, graph: PCG) -> None:
        super().__init__()
        self.graph = graph
        sources = [graph.nodes[i] for op in ("parameter", "buffer") for i in graph.of(op)]
        for node, name, shape in ((n, *original) for n in sources for original in n.originals.items()):
            place: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            value = random_weight(name, shape)
            if node.op == "buffer":
                place.register_buffer(last, value)
            else:
                place.register_parameter(last, nn.Parameter(value, node.gradient))

    def forward(self, inputs: Mapping[str, Tensor], step: int) -> Tensor:
        def mask(site: int, shape: tuple[int, ...], p: float) -> Tensor:
            return dropout_mask(_numbers(shape), p, SEED, step, site)  # type: ignore[no-any-return, no-untyped-call]

        def noise(site: int, shape: tuple[int, ...]) -> Tensor:
            return projection_weights(_numbers(shape), SEED, site)  # type: ignore[no-any-return, no-untyped-call]

        weights = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return interpret.run(self.graph, inputs, weights, mask=mask, noise=noise)[self.graph.loss]


def _numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(prod(shape)).view(shape)


@cache
def truth(
    graph: PCG, optimizer: str, steps: int, normalized: tuple[Pieces, ...] = ()
) -> tuple[dict[str, Tensor], tuple[dict[str, Tensor], ...], Outcome]:
    """Initial weights, batches, and what training on whole tensors gives."""
    module = Whole(graph)
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    batches = tuple(synthetic(graph, graph.batch, step) for step in range(steps))
    update = Optimizer(optimizer, module)
    losses, gradients = [], dict[str, Tensor]()
    for step, batch in enumerate(batches):
        with InPieces(normalized):
            loss = module(batch, step)
        update.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        update.step()
    return state, batches, Outcome(losses, gradients, state_of(module))


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
        whole = graph or with_batch(plan.graph, plan.batch)
        state, batches, outcome = truth(whole, plan.optimizer, steps, pieces(plan))
        path = folder / f"program{count}.py"
        plan.emit(path)
        trial = Trial(path, plan.graph, plan.ranks, state, batches, outcome, TOLERANCE)
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
            if all(self.legal(i, x) for i, x in layouts) and not summed:
                break
            if wish:
                raise ValueError(f"rows {wish} of {node.name!r} leave a rank empty")
        choice = Choice(inputs, output)
        if node.op not in ("input", "buffer") and index != self.graph.loss and self.rng.random() < 0.3:
            choice = replace(choice, shared=self.layout(index, self.letters(index)))
        if node.op == "parameter":
            choice = replace(choice, regather=self.rng.random() < 0.3)
            choice = replace(choice, sharded_states=node.gradient and B in output and self.rng.random() < 0.5)
        return choice


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
        drawn = Forcing(graph, sizes, rng)
        choices = [drawn.choice(i, (wishes or {}).get(i)) for i in range(len(graph.nodes))]
        for buffer, (reader, place) in updated(graph).items():
            choices[buffer] = Choice((), choices[reader].inputs[place])
        for index, node in enumerate(graph.nodes):
            if node.get("sparse"):  # read as it is stored
                choices[node.inputs[0]] = Choice((), choices[index].inputs[0])
        placement = Placement(sizes, tuple((size,) for size in sizes))
        return Plan(graph, machine_of(sizes), placement, micro_batches, tuple(choices), "float64", optimizer)

    return forced


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")
