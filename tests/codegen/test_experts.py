"""Mixtures of experts: who is dropped, experts split over ranks, and tokens that go to them and come back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import Machine, optimize
from partita.codegen.plan.plan import Plan
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.reference import materialize
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.verify import verify
from partita.formulation.strategies.strategy import row_names, rows
from partita.model.capture.capture import capture
from partita.model.graph.atoms import atoms
from partita.model.graph.layout import Action, S, atom_of, is_split, move
from partita.model.graph.pcg import PCG
from partita.model.zoo import build, entry
from partita.model.zoo.mixtral import MIXTRAL, Mixtral, Mixture, Routing, queues

from ..levels import some

NAME = "mixtral-8x7b"
SIZES = entry(NAME).sizes(small=True)


@pytest.fixture(scope="module")
def twin() -> tuple[nn.Module, dict[str, Tensor], PCG]:
    """The small twin with one layer, example inputs and the graph."""
    _, inputs = build(NAME, small=True)
    with torch.device("meta"):
        sizes = {name: size for name, size in SIZES.items() if name not in ("layers", "sequence")}
        module = Mixtral(layers=1, **sizes)
    return module, inputs, capture(module, inputs, batch=12)


def mixtures(module: nn.Module, batch: dict[str, Tensor]) -> list[tuple[Mixture, Tensor]]:
    """Every mixture of a module with what it is given."""
    found: list[tuple[Mixture, Tensor]] = []
    parts = [part for part in module.modules() if isinstance(part, Mixture)]
    hooks = [part.register_forward_pre_hook(lambda part, given: found.append((part, given[0]))) for part in parts]
    module(**batch)
    for hook in hooks:
        hook.remove()
    return found


def by_hand(mixture: Mixture, x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Token after token: its result, the loss of a balance, and how many choices were dropped."""
    batch, tokens, _ = x.shape
    capacity = ceil(mixture.capacity_factor * mixture.chosen * tokens / mixture.experts)
    y, balance, dropped = torch.zeros_like(x), x.new_zeros(()), 0
    for b in range(batch):
        taken = [0] * mixture.experts
        shares = mixture.router(x[b]).softmax(-1)
        for t in range(tokens):
            best = shares[t].argsort(descending=True)[: mixture.chosen].tolist()
            for e in best:
                taken[e] += 1
                if taken[e] > capacity:
                    dropped += 1
                    continue
                gate, up, down = (part.weight[e] for part in (mixture.gate, mixture.up, mixture.down))
                inner = F.silu(x[b, t] @ gate) * (x[b, t] @ up)
                y[b, t] += shares[t, e] / shares[t, best].sum() * (inner @ down)
        load = torch.tensor(taken, dtype=x.dtype) / (tokens * mixture.chosen)
        balance += mixture.experts * (load * shares.mean(0)).sum() / batch
    return y, balance, dropped


def test_the_twin_drops_tokens_as_said() -> None:
    module, inputs = build(NAME, small=True)
    graph = capture(module, inputs, batch=12)
    with torch.no_grad():
        found = mixtures(materialize(module), synthetic(graph, 12, 0))
        assert len(found) == 2
        for mixture, x in found:
            y, balance, dropped = by_hand(mixture, x)
            assert 0 < dropped < 12 * SIZES["sequence"] * MIXTRAL.chosen / 2
            torch.testing.assert_close(mixture(x), (y, balance), rtol=1e-12, atol=1e-12)


def test_parts_of_a_batch_are_routed_alone() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixture, x = Mixture(6, 4, 5, Routing(2, 1.0)).double(), torch.randn(4, 7, 6, dtype=torch.float64)
    whole, balance = mixture(x)
    parts = [mixture(part) for part in x.split((1, 3))]
    torch.testing.assert_close(whole, torch.cat([y for y, _ in parts]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(balance, parts[0][1] / 4 + parts[1][1] * 3 / 4, rtol=1e-12, atol=1e-12)


def test_a_queue_counts_those_before() -> None:
    choice = torch.tensor([[[0, 1], [1, 2], [1, 0]]])
    assert queues(choice, 4).tolist() == [[[1, 1, 2], [1, 2, 3], [0, 1, 1], [0, 0, 0]]]


def experts(graph: PCG) -> list[int]:
    """The products with the experts' matrices."""
    return [i for i in graph.of("einsum") if graph.nodes[i].path.rpartition(".")[2] in ("gate", "up", "down")]


def split_by_experts(graph: PCG, axes: int, axis: int, rng: random.Random) -> dict[int, tuple[int, ...]]:
    """Rows of these products: by experts on one axis, whatever on the others."""
    wishes = {}
    for index in experts(graph):
        names = row_names(graph, index)
        drawn = [rng.choice([names.index(name) for name in ("B", "b", "c", "f", "d")]) for _ in range(axes)]
        wishes[index] = tuple(names.index("e") if a == axis else number for a, number in enumerate(drawn))
    return wishes


def test_rows_split_experts_and_tokens(twin: Any) -> None:
    """By `e`, weights, tokens and results are split alike; between samples and experts lies one all-to-all."""
    _, _, graph = twin
    assert len(experts(graph)) == 3
    for index in experts(graph):
        row = rows(graph, index)[row_names(graph, index).index("e")]
        x, weight = (graph.nodes[i] for i in graph.nodes[index].inputs)
        letters = zip((*graph.nodes[index].inputs, index), (*row.inputs, row.output), strict=True)
        assert [atoms(graph)[i].dim_of(atom_of(letter))[0] for i, letter in letters] == [1, 0, 1]
        assert x.shape[:3] == (12, 8, 3) and weight.shape[0] == 8
        (batch,) = atoms(graph)[index].batch
        assert move(S(batch), row.inputs[0]).value is move(row.output, S(batch)).value is Action.EXCHANGE


@pytest.mark.parametrize("sizes", some([(2,), (3,), (4,), (8,), (2, 2), (3, 2), (2, 2, 2)]), ids=str)
def test_experts_split_over_an_axis(sizes: tuple[int, ...], twin: Any, force: Callable[..., Plan]) -> None:
    """Whatever the rest does, beside the module with the same routing. Of 8 experts 3 ranks have 3, 3 and 2."""
    module, inputs, graph = twin
    rng = random.Random(str(sizes))
    axis = rng.randrange(len(sizes))
    for _ in range(40):
        try:
            plan = force(graph, sizes, rng, split_by_experts(graph, len(sizes), axis, rng))
            break
        except ValueError as error:
            assert "leave a rank empty" in str(error)
    verdict = verify(plan, module=module, inputs=inputs)
    assert plan.ranks == prod(sizes) and verdict["ok"], f"{verdict['failure']}\n{plan}"


def slow(sizes: tuple[int, ...]) -> Machine:
    """Devices so slow that splitting pays for twins too."""
    machine = Machine.adhoc(sizes)
    device = replace(machine.device, peak=dict.fromkeys(machine.device.peak, 1e9), memory_bandwidth=1e9, launch_ns=100)
    return replace(machine, device=device)


@pytest.mark.parametrize("ranks", [3, 4])
def test_fixed_experts_are_reached_by_all_to_all(ranks: int, twin: Any) -> None:
    """Samples are split besides, so tokens go to their experts and come back, in two micro-batches."""
    module, inputs, graph = twin
    rows = dict.fromkeys((graph.nodes[i].name for i in experts(graph)), "e")
    options: dict[str, Any] = {"batch": 12, "micro_batches": 2 if ranks == 3 else 1, "dtype": "float64"}
    plan = optimize(module, inputs, slow((ranks,)), mesh=(ranks,), fix=rows | {"layers.0.norm": "b.1"}, **options)
    assert plan.report["gap"] == 0
    assert all(is_split(plan.choices[graph.nodes[i].inputs[1]].output[0]) for i in experts(graph))
    assert sum(item.kind == Action.EXCHANGE.value for item in stage_price(plan).items) >= 4  # there, back, and backward
    assert "exchange(" in plan.emit()
    assert verify(plan, module=module, inputs=inputs)["ok"]
