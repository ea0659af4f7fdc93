"""Peak memory and step time of plans that save memory, on one device: predicted and measured.

Plain training; layers recomputed (Chen et al., 2016), kept on the host meanwhile (swap), or in four parts one after the
other, each recomputed (co-shard, SuperScaler, Figure 3): heads and hidden units. A GPT on long sequences and a Swin
Transformer on large maps, so small that a core trains them, with sizes for which activations dominate. And as in the
paper's Figure 14: the longest sequence that is predicted to fit into the memory that plain training of a GPT takes.
And plans of networks, on several ranks (`peaks`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch
from torch import nn

from ..codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from ..formulation.spacetime.graph import Graph
from ..formulation.spacetime.op import Op, Phase
from ..formulation.spacetime.primitives import op_assign, op_order, op_trans, recompute, swap
from ..formulation.spacetime.transformation import split
from ..model.capture.capture import capture
from ..model.capture.objective import TrainedModule
from ..model.graph.batch import with_batch
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.zoo.gpt import GPT
from ..model.zoo.swin import Swin
from . import peaks
from .cases import Row, Tell, chosen
from .measure import Measured, measure

MIB = 2**20
SHARDS = 4

Dim = tuple[str, int] | tuple[str, int, int]
Sharded = tuple[Dim, ...]
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
        reloads = [graph.derived(op, Phase.RELOAD) for op in layer]
        op_order([reload for reload in reloads if reload], _backwards(layer))


def co_sharded(graph: Graph, sharded: Sharded) -> None:
    """Heads and hidden units of every layer in parts, one after the other, with what only they read, as its norm.

    All is recomputed, a part just before its backward: what goes into the norms is kept, and one part of the rest.
    """
    for layer in _layers(graph):
        for dim in sharded:
            parts = _sharded(layer, dim)
            nodes = {op.node for ops in parts for op in ops}
            alone = _only_read_by(graph, nodes, [op for op in layer if op.node not in nodes])
            recompute([*alone, *(op for ops in parts for op in ops)])
            _one_by_one(parts)
    op_assign(graph.forward, 0)


def nested(graph: Graph, sharded: Sharded) -> None:
    """As co-shard, but a layer keeps only what goes into it: while its hidden units go back, all heads are there."""
    for layer in _layers(graph):
        found = [_sharded(layer, dim) for dim in sharded]
        nodes = {op.node for parts in found for ops in parts for op in ops}
        alone = [op for op in layer[:-1] if op.node not in nodes]  # what leaves the layer is not needed again
        recompute([*alone, *(op for parts in found for ops in parts for op in ops)])
        _one_by_one(found[-1])
    op_assign(graph.forward, 0)


def _sharded(layer: Sequence[Op], dim: Dim) -> list[tuple[Op, ...]]:
    """The operators of every part along a dim."""
    return list(zip(*(op_trans(op, split(dim, SHARDS, "shard")) for op in layer if op.has(dim)), strict=True))


def _one_by_one(parts: Sequence[Sequence[Op]]) -> None:
    for before, after in pairwise(parts):
        op_order(before, after)
        op_order(_backwards(after), [op.recomputed for op in before if op.recomputed])


def _backwards(ops: Sequence[Op]) -> list[Op]:
    return [op.backward for op in ops if op.backward]


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
    "nested": nested,
}


# Models


@dataclass(frozen=True, slots=True)
class Model:
    """A model, what its co-shard splits, and the batch of a step; `longer` is it at another sequence."""

    name: str
    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    sharded: Sharded
    batch: int
    longer: Callable[[int], Model] | None = None


@cache
def _graph(model: Model) -> PCG:
    return with_batch(capture(model.module(), model.inputs()), model.batch)


@cache
def _gpt(sequence: int, layers: int, width: int, batch: int) -> Model:
    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.zeros(2, sequence, dtype=torch.int64), torch.zeros(2, sequence, dtype=torch.int64)

    return Model(
        f"gpt {layers} x {width}, sequence {sequence}",
        lambda: GPT(vocabulary=96, sequence=sequence, layers=layers, width=width, heads=8, dropout=0.0),
        inputs,
        (("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0)),
        batch,
        lambda other: _gpt(other, layers, width, batch),
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
SMALL = (replace(_gpt(128, 2, 64, 2), longer=None),)


# Rows


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every model and plan; `of_plain` are shares of the plain plan's."""
    cases: list[tuple[Model, str] | peaks.Case] = [(m, name) for m in (SMALL if small else MODELS) for name in PLANS]
    kept = chosen([*cases, *peaks.cases(small)], only, _name)
    rows = _timed([case for case in kept if len(case) == 2], tell)
    rows += peaks.rows([case for case in kept if len(case) == 3], tell)
    return [{key: row.get(key) for key in dict.fromkeys(key for row in rows for key in row)} for row in rows]


def _name(case: tuple[Model, str] | peaks.Case) -> str:
    return f"{case[0].name}: {case[1]}" if len(case) == 2 else peaks.name_of(case)


def _timed(kept: Sequence[tuple[Model, str]], tell: Tell) -> list[Row]:
    """Rows of space-time plans."""
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
    graph = Graph(_graph(model))
    PLANS[name](graph, model.sharded)
    module = TrainedModule(model.module(), model.inputs())
    return space_time(graph, Machine.load("cpu", nodes=1), module=module)


def _row(model: Model, name: str, found: Mapping[str, tuple[SpaceTimePlan, Measured]]) -> Row:
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
        "longest_sequence": None if model.longer is None else longest(model.longer, name, plain_peak),
    }


def longest(longer: Callable[[int], Model], name: str, room_bytes: int, step: int = 64) -> int:
    """The longest sequence, a multiple of `step`, with which a plan is predicted to fit; 0 where none does."""

    def fits(steps: int) -> bool:
        return planned(longer(steps * step), name).prediction.peak_bytes[0] <= room_bytes

    most = 1
    while fits(most):
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least * step
