"""Masks that torch's own generators draw: programs are compared without them, and what ranks draw is checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...model.graph.atoms import atoms
from ...model.graph.layout import atom_of, is_split
from ...model.graph.pcg import Node
from ...model.graph.random_numbers import draws_natively, from_counters
from ...model.operators.operator import is_native
from ..plan.plan import Plan

SAMPLE = 1 << 16
"""Elements of a mask whose share of zeros is counted."""
DEVIATIONS = 6
"""Standard deviations by which that share may differ from p."""


def is_native_plan(plan: Plan) -> bool:
    """True if the plan's program draws masks of dropout by torch's own generators; space-time programs do not."""
    return not plan.schedule.by_operators and any(draws_natively(part.graph) for part in plan.stages)


def counted(plan: Plan) -> Plan:
    """The plan whose program draws all masks from counters."""
    if not is_native_plan(plan):
        return plan
    if plan.size > 1:
        stages = tuple(map(counted, plan.stages))
        return replace(plan, graph=from_counters(plan.graph), stages=stages)  # type: ignore[call-arg]
    return replace(plan, graph=from_counters(plan.graph))


@dataclass(frozen=True, slots=True)
class Draw:
    """One call that would draw a mask: torch's seed there, the mask's shape, and this rank's place on every axis."""

    site: int
    seed: int
    shape: tuple[int, ...]
    places: tuple[tuple[str, int], ...]


@dataclass
class Draws:
    """What the ranks of a program, threads of this process, would draw in one step; nothing is dropped meanwhile."""

    found: list[Draw] = field(default_factory=list)
    _here: threading.local = field(default_factory=threading.local)  # the shape of the mask of the current call
    _lock: Any = field(default_factory=threading.Lock)  # torch's random state is that of the process

    def listen(self, program: ModuleType) -> None:
        """Replace the functions of a program that draw masks: they note the seed, and p = 0."""
        drawing, functions = program.drawing, {name: getattr(program, name, None) for name in ("dropout", "attend")}

        def dropout(x: Tensor, p: float, *rest: Any) -> Any:
            self._here.shape = tuple(x.shape)
            return functions["dropout"](x, 0.0, *rest)  # type: ignore[misc]

        def attend(q: Tensor, k: Tensor, v: Tensor, p: float, *rest: Any, **options: Any) -> Any:
            self._here.shape = (*q.shape[:-1], k.shape[-2])
            return functions["attend"](q, k, v, 0.0, *rest, **options)  # type: ignore[misc]

        @contextmanager
        def noting(device: torch.device, mesh: Any, site: int, axes: Sequence[Any]) -> Iterator[None]:
            places = tuple((name, axis.index) for name, axis in vars(mesh).items() if hasattr(axis, "index"))
            with self._lock, drawing(device, mesh, site, axes):
                self.found.append(Draw(site, torch.initial_seed(), self._here.shape, places))
            yield

        program.__dict__.update(drawing=noting, dropout=dropout, attend=attend)

    def failure(self, plan: Plan) -> str | None:
        """What is wrong with the masks of a step; None: ranks draw the same exactly where they have the same part."""
        seeds: dict[int, tuple[int, object]] = {}
        for part in plan.parts:
            for index, node in enumerate(part.graph.nodes):
                if not is_native(node):
                    continue
                axes, masks = _splitting(part, index), dict[object, tuple[int, tuple[int, ...]]]()
                draws = [draw for draw in self.found if draw.site == node["site"]]
                if not draws and not part.graph.alternatives:
                    return f"no rank draws a mask for {node.name}"
                for draw in draws:
                    held = tuple((name, place) for name, place in draw.places if name in axes)
                    if masks.setdefault(held, (draw.seed, draw.shape)) != (draw.seed, draw.shape):
                        return f"ranks with the same part of {node.name} draw different masks"
                    if seeds.setdefault(draw.seed, (draw.site, held)) != (draw.site, held):
                        return f"two parts of {node.name}, or it and another call, have the same mask"
        return None


def _splitting(plan: Plan, index: int) -> set[str]:
    """The names of the axes on which ranks have different masks; `micro` where micro-batches have."""
    node, known, layout = plan.graph.nodes[index], atoms(plan.graph)[index], plan.choices[index].output
    dims = len(node.shape) - (node.op == "attention")  # all queries of a head drop keys alike, whatever of their values
    masked = {atom for dim in range(dims) for atom in known.of_dim(dim)}
    axes = zip(plan.axes, plan.placement.sizes, layout, strict=True)
    names = {name for name, size, letter in axes if size > 1 and is_split(letter) and atom_of(letter) in masked}
    return names | ({"micro"} if plan.micro_batches > 1 and masked & known.batch else set())


def masks_failure(program: ModuleType, nodes: Sequence[Node]) -> str | None:
    """What is wrong with the masks that a program draws on this device; None: nothing.

    For each probability: the share of zeros, the same mask at the same place, another one elsewhere, in the next step
    and at another call, and torch's random state afterwards.
    """

    def mask(p: float, step: int, site: int, place: int) -> Tensor:
        mesh, axis = SimpleNamespace(step=step, training=True), SimpleNamespace(index=place)
        with program.drawing(torch.device("cpu"), mesh, site, (axis,)):
            return F.dropout(torch.ones(SAMPLE), p) == 0

    before = torch.random.get_rng_state()
    for p in {node["p"] for node in nodes if is_native(node)}:
        first = mask(p, 0, 0, 0)
        share, deviation = first.double().mean().item(), (p * (1 - p) / SAMPLE) ** 0.5
        if abs(share - p) > DEVIATIONS * deviation:
            return f"dropout with p = {p} drops a share of {share:.4f}"
        if not torch.equal(first, mask(p, 0, 0, 0)):
            return "the same part is dropped differently when it is computed again"
        if any(torch.equal(first, mask(p, *other)) for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1))):
            return "another step, call or part has the same mask"
    if not torch.equal(before, torch.random.get_rng_state()):
        return "dropout changes torch's random state"
    return None
