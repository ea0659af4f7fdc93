"""Attention over a split sequence: keys and values go round a ring or are gathered, or heads are split instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.special import around, verify_strategy
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.formulation.special import special_rows_fit, special_strategy
from partita.formulation.strategies import strategy
from partita.formulation.strategies.strategy import row_names, rows
from partita.model.capture.capture import capture
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo.gpt import GPT
from partita.solvers.budget import Budget

from .cases import CASES
from .test_memory import saved_bytes, slow_machine

Case = tuple[tuple[int, ...], int, int, int, int, int, int, bool]


@dataclass
class Axis:
    """What the emitted program knows of an axis."""

    size: int
    index: int
    group: Any = None

    def part(self, size: int) -> tuple[int, int]:
        step = -(-size // self.size)
        return self.index * step, min(step, size - self.index * step)


@pytest.fixture(scope="module")
def program() -> Callable[[int], dict[str, Any]]:
    """The strategy's functions; `most` scores at a time."""

    def make(most: int) -> dict[str, Any]:
        names: dict[str, Any] = {"math": math, "torch": torch, "dist": dist, "F": F}
        exec(special_strategy("ring").source.replace("most=2**24", f"most={most}"), names)
        return names

    return make


def attend(program: dict[str, Any], ranks: int, case: Case, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Results and gradients of a ring, and of PyTorch in float64; [.., heads, keys' share, queries, keys, widths]."""
    leading, heads, repeat, queries, keys, width, wide, causal = case
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*leading, *shape, generator=draw, dtype=torch.float64)

    q, k, v = normal(heads * repeat, queries, width), normal(heads, keys, width), normal(heads, keys, wide)
    change = normal(heads * repeat, queries, wide)
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    y = F.scaled_dot_product_attention(*whole, is_causal=causal, enable_gqa=True)
    y.backward(change)

    def body(rank: int) -> list[Tensor]:
        axis = Axis(ranks, rank, dist.new_group(list(range(ranks))))
        mine = [x.narrow(-2, *axis.part(x.shape[-2])).to(dtype).requires_grad_() for x in (q, k, v)]
        y = program["ring_attention"](*mine, axis, queries, keys, causal)
        y.backward(change.narrow(-2, *axis.part(queries)).to(dtype))
        return [y.detach(), *(x.grad for x in mine if x.grad is not None)]

    found = [torch.cat(list(parts), -2) for parts in zip(*run_threads(body, ranks), strict=True)]
    return found, [y.detach(), *(x.grad for x in whole if x.grad is not None)]


def test_its_examples() -> None:
    verdicts = verify_strategy("ring")
    assert len(verdicts) == 8 and all(v["ok"] for v in verdicts), verdicts


@pytest.mark.parametrize("most", [2**24, 50])
@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        (2, ((2,), 2, 1, 16, 16, 8, 8, True)),
        (3, ((2,), 2, 3, 23, 23, 8, 4, True)),
        (8, ((), 1, 2, 23, 22, 8, 8, False)),
        (4, ((2,), 2, 1, 30, 13, 4, 4, True)),  # some queries have seen all keys
        (4, ((2,), 1, 1, 13, 30, 4, 4, True)),  # and some keys are never seen
    ],
)
def test_it_is_attention(program: Callable[[int], dict[str, Any]], most: int, ranks: int, case: Case) -> None:
    for found, wanted in zip(*attend(program(most), ranks, case, torch.float64), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_narrow_dtypes(program: Callable[[int], dict[str, Any]], dtype: torch.dtype, error: float) -> None:
    """Sums over ranks are in float32, so errors are those of one rounding of scores, weights and results."""
    for found, wanted in zip(*attend(program(200), 8, ((2,), 2, 2, 64, 64, 16, 16, True), dtype), strict=True):
        assert found.dtype == dtype
        assert (found.double() - wanted).abs().max() <= error * wanted.abs().max()


def test_what_a_causal_mask_hides_is_not_computed(program: Callable[[int], dict[str, Any]]) -> None:
    """The last of p ranks does (2p - 1) / p^2 of all pairs but half, and the price says so."""
    ranks, size, width = 4, 64, 2
    q, k = torch.zeros(1, size // ranks, width), torch.zeros(1, size // ranks, width)
    pairs = []
    for rank in range(ranks):
        blocks = (program(1)["ring_scores"](q, k, b * 16, rank * 16, 1, True) for b in range(ranks))
        pairs.append(sum(scores.numel() for block in blocks for _, _, scores in block))
    assert sum(pairs) == size * (size + 1) // 2
    graph, index = around(lambda b: example(b, size))
    plan = fixed(graph, index, "ring", ranks)
    flops = plan.machine.device.flops("float64")
    kernel = next(i for i in stage_price(plan).items if i.kind == "attention" and i.phase == "forward")
    assert max(pairs) == pytest.approx(kernel.ns * 1e-9 * flops / (4 * 6 * width), rel=0.05)


def example(b: Builder, size: int) -> int:
    shape = (6, size, 2)
    given = [b.add("mul", b.input(x, shape), b.parameter(f"{x}.weight", (2,)), shape=shape) for x in "qkv"]
    return b.add("attention", *given, shape=shape, causal=True, scale=None)


def fixed(graph: PCG, index: int, row: str, ranks: int, machine: Machine | None = None) -> Plan:
    wish = ((graph.nodes[index].name, row),)
    training = Training(graph.batch, "float64", "sgd")
    space = SearchSpace(mesh=(ranks,), micro_batches=1, fix=wish, stages=1)
    return plan_graph(graph, machine or without_launches(ranks), training, space)


def without_launches(ranks: int) -> Machine:
    machine = Machine.adhoc((ranks,))
    slow = {dtype: rate / 1e6 for dtype, rate in machine.device.peak.items()}
    return replace(machine, device=replace(machine.device, peak=slow, launch_ns=0.0))


def test_what_it_sends(program: Callable[[int], dict[str, Any]]) -> None:
    """Keys and values to the next rank, in as many messages as there are others; backward their gradients too."""
    graph, index = around(lambda b: example(b, 64))
    sent = [i for i in stage_price(fixed(graph, index, "ring", 4)).items if i.kind == "send"]
    part = 2 * 6 * 16 * 2 * 8  # of keys and values
    assert [(i.phase, i.bytes, i.count) for i in sent] == [
        ("forward", part, 3),
        ("backward", part, 3),
        ("backward", part, 3),
    ]


def test_no_row_with_a_mask() -> None:
    for build in CASES["attention"]:
        graph, index = around(build)
        assert ("ring" in row_names(graph, index)) == (len(graph.nodes[index].inputs) == 3)


def test_positions_are_split_once() -> None:
    graph, index = around(lambda b: example(b, 64))
    names = row_names(graph, index)
    found = dict(zip(names, rows(graph, index), strict=True))

    def fits(*chosen: str) -> bool:
        taken = [found[name] for name in chosen]
        inputs = [tuple(row.inputs[i] for row in taken) for i in range(3)]
        return special_rows_fit(taken, inputs, tuple(row.output for row in taken), (2, 2))

    assert fits("ring", "b.0") and fits("B", "ring") and not fits("ring", "ring") and not fits("ring", "s")


def twin(sequence: int, heads: int = 4) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Of GPT: long sequences, small otherwise."""
    ids = torch.zeros(1, sequence, dtype=torch.int64)
    return GPT(vocabulary=32, sequence=sequence, layers=2, width=16, heads=heads, dropout=0.0), (ids, ids)


def attentions(plan: Plan) -> set[str]:
    """The rows of all attentions of a plan over one axis."""
    names = set()
    for index in plan.graph.of("attention"):
        choice, found = plan.choices[index], rows(plan.graph, index)
        row = next(r for r in found if r.inputs == tuple(x[0] for x in choice.inputs) and r.output == choice.output[0])
        names.add(row_names(plan.graph, index)[found.index(row)])
    return names


def test_memory_is_that_of_its_parts(tmp_path: Path) -> None:
    """Of 4 ranks: queries, keys, values and results of a quarter of the positions, and a number a query and head."""
    module, inputs = twin(128)
    graph = capture(module, inputs, batch=16)

    def both(row: str) -> tuple[int, int]:
        """Predicted and measured."""
        wishes = {"attention": row, "layer_norm": "b.0", "linear": "b.0"}
        fix = tuple((node.name, wishes[node.op]) for node in graph.nodes if node.op in wishes)
        training, space = Training(16, "float32", "adamw"), SearchSpace(mesh=(4,), micro_batches=1, fix=fix, stages=1)
        plan = plan_graph(graph, slow_machine((1, 4)), training, space)
        memory = stage_price(plan).memory
        return memory["activations"] + memory["weights"], saved_bytes(plan, module, tmp_path)

    (ring, ring_measured), (gathered, gathered_measured) = both("ring"), both("s")
    assert 0.98 * ring_measured <= ring <= 1.06 * ring_measured
    mask = 2 * 32 * 128 * 4
    assert gathered_measured - ring_measured >= gathered - ring >= mask


def planned(memory: int | None, specials: bool = True, ranks: int = 8) -> Plan:
    """Of one sample, whose heads are fewer than the ranks; with so much memory, if it is given."""
    module, inputs = twin(512)
    with pytest.MonkeyPatch.context() as patch:
        if not specials:
            patch.setattr(strategy, "special_rows", lambda _: ())
        strategy._all_rows.cache_clear()
        try:
            # Without copies of gathered weights, so that memory goes to activations; processes would know all rows.
            space = SearchSpace(mesh=(ranks,), micro_batches=1, stages=1, overlap=False)
            training, machine = Training(1, "float32", "sgd"), slow_machine((1, ranks), memory)
            return plan_graph(capture(module, inputs), machine, training, space, Budget(workers=1))
        finally:
            strategy._all_rows.cache_clear()


def test_the_planner_takes_it_where_memory_is_short() -> None:
    """With gathered keys and values every rank has all of them, and the mask of its queries, though for one layer."""
    ample = planned(None, specials=False)
    assert attentions(ample) == {"s"}
    memory = stage_price(ample).memory_bytes
    less = memory * 2 // 5
    tight = planned(less)
    assert attentions(tight) == {"ring"} and stage_price(tight).memory_bytes <= less
    with pytest.raises(PartitaError, match="it needs"):
        planned(less, specials=False)
    verdict = verify(tight, module=twin(512)[0], inputs=twin(512)[1])
    assert verdict["ok"], verdict


def test_heads_for_positions_and_back() -> None:
    """Ulysses: positions are split everywhere but in attention, where heads are; all-to-alls are all that is sent."""
    module, inputs = twin(16)
    graph = capture(module, inputs, batch=4)
    wishes = {"attention": "b.0", "linear": "b.0", "layer_norm": "b.0", "gelu": "i.1", "add": "i.1"}
    fix = tuple((node.name, wishes[node.op]) for node in graph.nodes if node.op in wishes)
    space = SearchSpace(mesh=(4,), micro_batches=1, fix=fix, stages=1, overlap=False)  # weights would travel too
    plan = plan_graph(graph, Machine.adhoc((4,)), Training(4, "float64", "sgd"), space)
    moved = [i for i in stage_price(plan).items if i.axes and i.phase != "update" and i.kind != "slice"]
    assert {i.kind for i in moved} == {"all-to-all"}
    # Queries, keys and values come from one matrix, and move at once.
    moving = [f"layers.{i}.attention{name}" for i in range(2) for name in (".qkv", "")]
    assert [graph.nodes[i.node].name for i in moved if i.phase == "forward"] == moving
    forward = plan.emit().partition("# The model.")[2].partition("# Weights,")[0]
    assert forward.count("split_to_split(") == 2 and "gather(" not in forward  # in a loop over the layers
    assert verify(plan, module=module, inputs=inputs)["ok"]
