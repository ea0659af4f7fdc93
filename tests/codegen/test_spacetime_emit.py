"""Programs of space-time plans: they compute what the module computes, and read as if written by hand.

`python -m tests.codegen.test_spacetime_emit` writes the golden file again, where a change is meant.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita.codegen.emission.spacetime.emit import emit
from partita.codegen.emission.spacetime.program_tables import families
from partita.codegen.emission.spacetime.segment_functions import Segments
from partita.codegen.plan.spacetime_plan import SpaceTimePlan
from partita.formulation.pipeline.orders import gpipe, one_f_one_b, zero_bubble
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.looped import Looped, once
from partita.formulation.spacetime.materialize import materialize
from partita.formulation.spacetime.materialized import Materialized
from partita.formulation.spacetime.primitives import op_assign, op_trans, place, recompute, split_backward, swap
from partita.formulation.spacetime.stages import evenly, in_order, stages
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import candidates, replicate, split, split_value
from partita.model.capture.initial import values_of
from partita.model.capture.objective import TrainedModule
from partita.model.errors import PartitaError
from partita.model.graph.pcg import PCG
from partita.solvers.spacetime.validate import validate

from ..levels import some

GOLDEN = Path(__file__).parent / "golden" / "spacetime-pipeline.txt"
Write = Callable[[Graph], None]


class Block(nn.Module):
    """A residual block with dropout, whose masks depend on where an element lies in the whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.relu(self.up(self.norm(x)))), 0.1, self.training)


class Net(nn.Module):
    """Four blocks between tied embeddings; some labels do not count, a buffer and a frozen weight scale the input."""

    def __init__(self, loss: str = "cross_entropy", width: int = 16) -> None:
        super().__init__()
        self.tokens, self.loss = nn.Embedding(32, width), loss
        self.register_buffer("scale", torch.full((width,), 0.5))
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.layers = nn.ModuleList(Block(width) for _ in range(4))
        self.scores = nn.Linear(width, 32, bias=False)
        self.scores.weight = self.tokens.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) * self.scale * self.frozen
        for layer in self.layers:
            x = layer(x)
        y = self.scores(x)
        if self.loss == "cross_entropy":
            return F.cross_entropy(y.flatten(0, 1), labels.flatten(), ignore_index=3)
        return y.square().mean() if self.loss == "mean" else y


@cache
def captured(loss: str = "cross_entropy") -> tuple[nn.Module, dict[str, Tensor], PCG]:
    module = Net(loss)
    inputs = {name: torch.arange(48).reshape(8, 6) % 32 for name in ("ids", "labels")}
    return module, inputs, partita.capture(module, inputs, loss="projection" if loss == "none" else None)


def program(write: Write, loss: str = "cross_entropy") -> Materialized:
    graph = Graph(captured(loss)[2])
    write(graph)
    return materialize(validate(tasks(graph)))


def looped(write: Write) -> Looped:
    return once(program(write))


def judged(write: Write, loss: str = "cross_entropy", optimizer: str = "adamw", steps: int = 2) -> dict[str, Any]:
    made = program(write, loss)
    machine, module = partita.Machine.adhoc((len(made.devices),)), TrainedModule(*captured(loss)[:2])
    verdict = SpaceTimePlan(once(made), machine, optimizer=optimizer, module=module).verify(steps=steps)
    assert verdict["ok"], verdict
    assert verdict["checked"] > 50
    return verdict


# Plans


def data(graph: Graph, devices: int = 4) -> None:
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split("batch", devices))):
            op_assign(part, device)


def zero1(graph: Graph) -> None:
    data(graph)
    for op in graph.optimizer:
        for device, part in enumerate(op_trans(op, evenly(op, 4))):
            op_assign(part, device)


def zero2(graph: Graph) -> None:
    """Two micro-batches, whose gradients are added up before they are scattered."""
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split("batch", 4))):
            for micro in op_trans(part, split("batch", 2, "micro")):
                op_assign(micro, device)
    for op in graph.optimizer:
        for device, part in enumerate(op_trans(op, evenly(op, 4))):
            op_assign(part, device)


def zero3(graph: Graph) -> None:
    data(graph, 8)
    for op in graph.optimizer:
        place(graph, op.of.name, evenly(op, 8), range(8))


def tensor(graph: Graph) -> None:
    """Columns, then rows of every block."""
    for op in graph.forward:
        up = (".".join([*op.of.path.split(".")[:2], "up.weight"]), 0)
        inside = op.of.path.startswith("layers.") and candidates(graph, op.node, up)
        for device, part in enumerate(op_trans(op, split(up, 4, "tensor") if inside else replicate(4))):
            op_assign(part, device)


def vocabulary(graph: Graph) -> None:
    """The table is shared out by rows, everything else by samples."""
    for op in graph.forward:
        rows = op.of.op == "embedding"
        for device, part in enumerate(op_trans(op, split(("tokens.weight", 0) if rows else "batch", 4))):
            op_assign(part, device)


def parts_of_what_is_fetched(graph: Graph, dim: int) -> None:
    """Lookups read the whole table, scores half of it: forward fetches all of it, backward the half alone."""
    for op in graph.forward:
        how = split(("tokens.weight", dim), 2) if op.of.name == "scores" else replicate(2)
        for device, part in enumerate(op_trans(op, how)):
            op_assign(part, device)
    place(graph, "tokens.weight", split(1 - dim, 2), range(2), shared=True)


def addends(graph: Graph) -> None:
    """One linear takes addends of its input."""
    for op in graph.forward:
        if op.of.name == "layers.1.down":
            for device, part in enumerate(op_trans(op, split_value("x", 2))):
                op_assign(part, device)
        else:
            op_assign(op, 0)


def fan(graph: Graph, many: Sequence[int] = range(4)) -> None:
    """The units of one block lie on many devices, everything else on one."""
    inside = [f"layers.1.{name}" for name in ("up", "relu", "down")]
    for op in graph.forward:
        if op.of.name in inside:
            for device, part in zip(many, op_trans(op, split(("layers.1.up.weight", 0), len(many))), strict=True):
                op_assign(part, device)
        else:
            op_assign(op, 0)


def uneven(graph: Graph) -> None:
    """Eight samples, the units of a block, the rows of the table and the other updates in three parts each."""
    for op in graph.forward:
        dims: Any = ("tokens.weight", 0) if op.of.op == "embedding" else [("layers.1.up.weight", 0), "batch"]
        for device, part in enumerate(op_trans(op, split(dims, 3))):
            op_assign(part, device)
    for op in graph.optimizer:
        for device, part in enumerate(op_trans(op, split(0, 3)) if op.layer != "layers.1" else []):
            op_assign(part, device)


def computed_twice(graph: Graph) -> None:
    """Two devices compute most of a block alike and give it back in halves; one of them gives its input's gradient."""
    for op in graph.forward:
        inside = op.of.path.startswith("layers.1") and op.of.op != "add"
        how = split("batch", 2) if op.of.op == "dropout" else replicate(2)
        for device, part in enumerate(op_trans(op, how), start=1) if inside else [(0, op)]:
            op_assign(part, device)


def pipeline(graph: Graph, order: Any = one_f_one_b, more: Any = None, count: int = 4) -> None:
    for op in graph.forward:
        op_trans(op, split("batch", 4, "micro"))
    parts = stages(graph, count)
    for device, ops in enumerate(parts):
        op_assign(ops, device)
    if more is not None:
        more(parts)
    in_order(order(count, 4), parts)


def recomputed(graph: Graph) -> None:
    def again(parts: Any) -> None:
        for ops in parts:
            for micro in range(4):
                recompute(op for op in ops if op.coordinate("micro") == micro)

    pipeline(graph, lambda count, micros: one_f_one_b(count, micros, True), again)


def layers_again(graph: Graph) -> None:
    data(graph, 2)
    for number in range(4):
        for device in range(2):
            path = f"layers.{number}"
            recompute(op for op in graph.forward if op.of.path.startswith(path) and op.device == device)


def states_on_host(graph: Graph) -> None:
    zero1(graph)
    swap(graph.optimizer[:-3])


PLANS: dict[str, Write] = {
    "data": data,
    "ZeRO-1": zero1,
    "ZeRO-2": zero2,
    "ZeRO-3": zero3,
    "tensor": tensor,
    "vocabulary": vocabulary,
    "addends": addends,
    "fan": fan,
    "1F1B": pipeline,
    "GPipe": lambda graph: pipeline(graph, gpipe),
    "zero bubble": lambda graph: pipeline(graph, zero_bubble, lambda parts: split_backward(graph.forward)),
    "recomputed pipeline": recomputed,
    "recomputed layers": layers_again,
    "states on the host": states_on_host,
    "swap": lambda graph: pipeline(graph, more=lambda parts: swap([*parts[0], *parts[1]])),
}


@pytest.mark.parametrize("name", some(PLANS))
def test_equals_the_module(name: str) -> None:
    verdict = judged(PLANS[name])
    assert max(verdict["loss_error"], verdict["gradient_error"], verdict["weight_error"]) <= 1e-9


def test_parts_of_unlike_sizes() -> None:
    """They travel in collectives, each filled up to the largest."""
    verdict = judged(uneven)
    assert max(verdict["loss_error"], verdict["gradient_error"], verdict["weight_error"]) <= 1e-9
    text = emit(looped(uneven))
    assert "min(step, size - self.index * step)" in text and "cuts=(3, 3, 2))" in text and "run.send(" not in text
    plain = emit(looped(tensor))
    assert "min(step" not in plain and "cuts=" not in plain


@pytest.mark.parametrize("dim", [0, 1])
def test_backward_finds_its_part_of_a_weight_wherever_it_lay_in_what_forward_fetched(dim: int) -> None:
    def write(graph: Graph) -> None:
        parts_of_what_is_fetched(graph, dim)

    assert f".narrow({dim}, " in emit(looped(write))
    judged(write)


class Table(nn.Module):
    """Tied embeddings in one module, whose weights are fetched at its beginning; `join` names its list."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(16, 8))
        self.join = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = F.embedding(ids, self.tokens)
        for layer in self.join:
            x = x + layer(x)
        return F.cross_entropy(F.linear(x, self.tokens).flatten(0, 1), labels.flatten())


def table_of_addends(graph: Graph) -> None:
    """The second device looks up zeros, and fetches the table for the scores."""
    place(graph, "tokens", split(("tokens", 0), 2), [0, 1])
    for op in graph.forward:
        for micro in op_trans(op, split("batch", 2, "micro")):
            inner = split(("join.0.weight", 0), 2, "part") if op.layer == "join.0" else split("batch", 2, "part")
            how = split_value("w", 2, "part") if op.of.op == "embedding" else inner
            for device, part in enumerate(op_trans(micro, how)):
                op_assign(part, device)


def test_a_weight_is_read_that_another_of_its_name_hides() -> None:
    ids = torch.zeros(8, 3, dtype=torch.long)
    graph = partita.graph(Table(), (ids, ids), batch=8)
    table_of_addends(graph)
    plan = partita.space_time(graph, dtype="float64")
    verdict = plan.verify(steps=1)
    assert verdict["ok"], verdict["failure"]
    assert "def join_layer(at" in plan.source()  # `join` is a function of programs


@pytest.mark.parametrize("write", [computed_twice, uneven, layers_again])
def test_the_function_that_segments_share_is_what_each_of_them_would_write(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = emit(looped(write))
    monkeypatch.setattr(Segments, "key", lambda segment: object())  # no two have the same
    assert emit(looped(write)) == shared


@pytest.mark.parametrize("level", ["threads", "pool"])
@pytest.mark.parametrize("many", [range(4), range(1, 5)])
def test_broadcasts_and_reduces(many: range, level: str) -> None:
    """From a device to those that it is one of, or to others: then it adds zeros to what they send back."""
    graph = Graph(captured()[2])
    fan(graph, many)
    plan = partita.space_time(graph, partita.Machine.adhoc((5,)), module=TrainedModule(*captured()[:2]))
    text = plan.source()
    assert " = run.broadcast(None, " in text and " = run.reduce(" in text and "run.send(" not in text
    verdict = plan.verify(level, steps=2)
    assert verdict["ok"], verdict
    assert max(verdict["loss_error"], verdict["gradient_error"], verdict["weight_error"]) <= 1e-9


@pytest.mark.parametrize("loss", ["mean", "none"])
@pytest.mark.parametrize("name", ["data", "1F1B"])
def test_losses(name: str, loss: str) -> None:
    judged(PLANS[name], loss)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_optimizers(optimizer: str) -> None:
    judged(zero1, optimizer=optimizer, steps=3)


# Text


def two_stages() -> str:
    made = program(lambda graph: pipeline(graph, count=2))
    initial = values_of(captured("cross_entropy")[0], made.tasks.graph.pcg.originals)
    return emit(once(made), summary=["Two stages."], initial=initial)


def test_golden() -> None:
    assert two_stages() == GOLDEN.read_text()


def test_deterministic() -> None:
    assert emit(looped(zero1)) == emit(looped(zero1))


@pytest.mark.parametrize("name", ["ZeRO-3", "zero bubble", "swap", "tensor", "states on the host"])
def test_formatted(name: str, tmp_path: Path) -> None:
    """A formatter leaves a program as it is, and a linter finds nothing unused in it."""
    path = tmp_path / "program.py"
    path.write_text(emit(looped(PLANS[name])))
    for arguments in (["format", "--check"], ["check", "--select", "F,E7,E9"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--line-length", "120", str(path)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout


def test_micro_batches_are_a_loop() -> None:
    text = emit(looped(lambda graph: pipeline(graph, gpipe, count=2)))
    assert text.count("def device_0") == 1
    own = text.partition("def device_0")[2].partition("def device_1")[0]
    assert own.count("run.forward(") == 1
    assert own.count("run.backward(") <= 2
    assert "for m in range(4):" in own


def test_layers_are_one_function() -> None:
    """ZeRO-3 fetches the weights of a layer, runs it, and lets them go; all ranks have one text."""
    text = emit(looped(zero3))
    assert text.count("\ndef layer(") == 1
    assert "\ndef layer_2(" not in text
    assert text.count("\ndef device") == 1


# What is refused


def test_unknown_dtype() -> None:
    with pytest.raises(PartitaError, match="dtype 'float8'"):
        emit(looped(data), dtype="float8")


def test_unknown_optimizer() -> None:
    with pytest.raises(PartitaError, match="unknown optimizer 'lion'"):
        partita.space_time(program(data).tasks.graph, optimizer="lion")


def test_updated_elsewhere() -> None:
    """The optimizer's state stays where the parameter is."""

    def write(graph: Graph) -> None:
        for op in graph.forward:
            op_assign(op, 0)
        for op in graph.optimizer:
            op_assign(op, 1)

    with pytest.raises(PartitaError, match="place it there"):
        emit(looped(write))


def test_tables_of_many_ranks_are_broken() -> None:
    pairs = [(rank, rank + 1) for rank in range(0, 64, 2)]
    names, lines = families(pairs, ranks=64)
    assert max(map(len, lines)) <= 120
    found: dict[str, dict[str, list[list[int]]]] = {}
    exec("\n".join(lines), {}, found)
    assert found["GROUPS"] == {"pairs": [[*pair] for pair in pairs]} and {*names.values()} == {"pairs"}


if __name__ == "__main__":
    GOLDEN.write_text(two_stages())
