"""Peak memory and step time of plans that save memory, on one device: predicted beside measured.

Plain training; layers recomputed (Chen et al., 2016), kept on the host meanwhile (swap), or in four parts one after the
other, each recomputed (co-shard, SuperScaler, Figure 3): heads and hidden units. A GPT on long sequences and a Swin
Transformer on large maps, so small that a core trains them, with sizes for which activations dominate. And as in the
paper's Figure 14: the longest sequence of a GPT that fits into a device, predicted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ..codegen.spacetime.measure import Measured, measure
from ..codegen.spacetime.plan import SpaceTimePlan, space_time
from ..formulation.spacetime.graph import Graph
from ..formulation.spacetime.op import Op, Phase
from ..formulation.spacetime.primitives import op_assign, op_order, op_trans, recompute, swap
from ..formulation.spacetime.transformation import split
from ..model.batch import with_batch
from ..model.capture import capture
from ..model.machine import Machine
from ..model.pcg import PCG
from ..model.zoo.gpt import GPT
from ..model.zoo.swin import Swin
from .cases import chosen

MIB = 2**20
SHARDS = 4

Sharded = tuple[tuple[str, int] | tuple[str, int, int], ...]
"""The dims that co-shard splits."""


# Plans


def plain(graph: Graph, sharded: Sharded) -> None:
    op_assign(graph.forward, 0)


def recomputed(graph: Graph, sharded: Sharded) -> None:
    """Every layer keeps what goes into it."""
    plain(graph, sharded)
    for layer in _layers(graph):
        recompute(layer)


def swapped(graph: Graph, sharded: Sharded) -> None:
    """Every layer's activations wait on the host, and are back before its backward begins."""
    plain(graph, sharded)
    for layer in _layers(graph):
        swap(layer)
        op_order([graph.derived(op, Phase.RELOAD) for op in layer], [op.backward for op in layer])


def co_sharded(graph: Graph, sharded: Sharded) -> None:
    """Heads and hidden units of every layer in parts, one after the other, with what only they read, as its norm.

    All is recomputed, a part just before its backward: what goes into the norms is kept, and one part of the rest.
    """
    for layer in _layers(graph):
        for dim in sharded:
            split_up = {op.node for op in layer if op.has(dim)}
            alone = _only_read_by(graph, split_up, [op for op in layer if op.node not in split_up])
            op_assign(alone, 0)
            parts = []
            for op in (op for op in layer if op.node in split_up):
                parts.append(op_trans(op, split(dim, SHARDS, "shard")))
                op_assign(parts[-1], 0)
            recompute([*alone, *(op for ops in parts for op in ops)])
            for before, after in pairwise(zip(*parts, strict=True)):
                op_order(before, after)
                op_order([op.backward for op in after], [op.recomputed for op in before])
    op_assign([op for op in graph.forward if op.device is None], 0)


def _only_read_by(graph: Graph, nodes: Set[int], others: Sequence[Op]) -> list[Op]:
    """Operators whose results go nowhere but into some nodes, in their order."""
    known, found = set(nodes), list[Op]()
    for op in reversed(others):
        if set(graph.pcg.consumers[op.node]) <= known:
            known.add(op.node)
            found.append(op)
    return found[::-1]


def _layers(graph: Graph) -> list[list[Op]]:
    found: dict[str, list[Op]] = defaultdict(list)
    for op in graph.forward:
        found[_layer(op)].append(op)
    return [ops for layer, ops in found.items() if layer]


def _layer(op: Op) -> str:
    """The innermost module of a list that it is in: `stages.0.blocks.1`."""
    match = re.match(r".*\.\d+(?=\.|$)", op.of.path)
    return match[0] if match else ""


PLANS: Mapping[str, Callable[[Graph, Sharded], None]] = {
    "plain": plain,
    "recompute": recomputed,
    "swap": swapped,
    "co-shard": co_sharded,
}


# Models


@dataclass(frozen=True, slots=True)
class Model:
    """A model, what its co-shard splits, and the batch of a step."""

    name: str
    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    sharded: Sharded
    batch: int

    def graph(self) -> PCG:
        return with_batch(capture(self.module(), self.inputs()), self.batch)


def _gpt(sequence: int, layers: int, width: int, batch: int) -> Model:
    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.zeros(2, sequence, dtype=torch.int64), torch.zeros(2, sequence, dtype=torch.int64)

    return Model(
        f"gpt {layers} x {width}, sequence {sequence}",
        lambda: GPT(vocabulary=96, sequence=sequence, layers=layers, width=width, heads=8, dropout=0.0),
        inputs,
        (("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0)),
        batch,
    )


def _swin(side: int, width: int, depths: tuple[int, ...], batch: int) -> Model:
    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.zeros(2, 3, side, side), torch.zeros(2, dtype=torch.int64)

    return Model(
        f"swin {'+'.join(map(str, depths))} x {width}, image {side}",
        lambda: Swin(width, 4, depths, resolution=side, patch=4, window=8, classes=16),
        inputs,
        (("stages.*.attention.qkv.weight", 0, 1), ("stages.*.up.weight", 0)),
        batch,
    )


MODELS = (_gpt(512, 4, 128, 4), _swin(128, 32, (2, 2), 4))
SMALL = (_gpt(128, 2, 64, 2),)


# Rows


def run(small: bool, only: Sequence[str], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every model and plan; `of_plain` are shares of the plain plan's."""
    cases = [(model, name) for model in (SMALL if small else MODELS) for name in PLANS]
    kept = chosen(cases, only, lambda case: f"{case[0].name}: {case[1]}")
    wanted = {model: [name for other, name in kept if other is model] for model, _ in kept}
    rows = []
    for model, names in wanted.items():
        found: dict[str, tuple[SpaceTimePlan, Measured]] = {}
        for name in dict.fromkeys(("plain", *names)):
            tell(f"{model.name}: {name}")
            plan = planned(model, name)
            found[name] = plan, measure(plan)[0]
        rows += [_row(model, name, found) for name in names]
    return rows


@cache
def planned(model: Model, name: str) -> SpaceTimePlan:
    """One plan on one device: a core of this computer, roughly."""
    graph = Graph(model.graph())
    PLANS[name](graph, model.sharded)
    module = model.module(), model.inputs()
    return space_time(graph, Machine.load("cpu", nodes=1), module=module)


def _row(model: Model, name: str, found: Mapping[str, tuple[SpaceTimePlan, Measured]]) -> dict[str, Any]:
    (plan, took), (plain_plan, plain_took) = found[name], found["plain"]
    peak, plain_peak = plan.prediction.peak_bytes[0], plain_plan.prediction.peak_bytes[0]
    step, plain_step = plan.prediction.step_ns, plain_plan.prediction.step_ns
    return {
        "model": model.name,
        "plan": name,
        "predicted_mib": peak / MIB,
        "measured_mib": took.peak_bytes / MIB,
        "predicted_of_plain": peak / plain_peak,
        "measured_of_plain": took.peak_bytes / plain_took.peak_bytes,
        "predicted_ms": step / 1e6,
        "measured_ms": took.step_ns / 1e6,
        "predicted_time_of_plain": step / plain_step,
        "measured_time_of_plain": took.step_ns / plain_took.step_ns,
    }
