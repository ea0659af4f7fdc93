"""Patterns and named rows of `--fix`."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from partita.codegen.planner.plan_graph import plan_graph
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.named_rows import exact_fixes, named_row
from partita.formulation.strategies.strategy import rows
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.layout import B, P, R, S
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo import build


@cache
def twin(model: str) -> PCG:
    module, inputs = build(model, small=True)
    return capture(module, inputs, batch=8)


def node(graph: PCG, name: str) -> int:
    return next(i for i, n in enumerate(graph.nodes) if n.name == name)


@pytest.mark.parametrize(
    ("model", "name", "found"),
    [
        ("gpt2", "layers.0.up", {"batch": "b.1", "sequence": "b.0", "column": "o", "row": "i", "heads": None}),
        ("gpt2", "layers.0.attention", {"batch": "b.1", "sequence": "s", "heads": "b.0", "column": None, "row": None}),
        ("gpt2", "layers.0.gelu", {"batch": "i.2", "sequence": None, "column": None}),
        ("llama-7b", "token_embedding", {"batch": "b.1", "sequence": "b.0", "column": "e", "row": "ids"}),
        ("mixtral-8x7b", "layers.0.attention", {"heads": "g"}),
        ("dlrm", "bottom.0", {"batch": "b.0", "sequence": None, "column": "o", "row": "i"}),
    ],
)
def test_rows_by_what_they_split(model: str, name: str, found: dict[str, str | None]) -> None:
    graph = twin(model)
    assert {row: named_row(graph, node(graph, name), row) for row in found} == found


def test_a_linear_by_columns_and_by_rows_is_that_of_megatron() -> None:
    """Shoeybi et al. 2019, section 3: Y = X A by A's columns, then Z = Y B by B's rows, whose addends are summed."""
    graph = capture(nn.Linear(6, 4, bias=False), (torch.zeros(2, 6),), loss="projection")
    (linear,) = graph.of("linear")
    by_name = dict(zip(("column", "row"), (named_row(graph, linear, name) for name in ("column", "row")), strict=True))
    letters = {row.index[0]: (row.inputs, row.output) for row in rows(graph, linear) if row.index}
    inputs, output = letters[str(by_name["column"])]
    assert inputs[0] in (R, B) and inputs[1] == S(0) and output == S(1)
    inputs, output = letters[str(by_name["row"])]
    assert inputs == (S(1), S(1)) and output == P


def test_patterns() -> None:
    graph = twin("gpt2")
    ups = [n.name for n in graph.nodes if n.op == "linear" and n.name.endswith(".up")]
    assert len(ups) > 1
    assert dict(exact_fixes(graph, [("layers.*.up", "batch,column")])) == dict.fromkeys(ups, "b.1,o")
    fixes = dict(exact_fixes(graph, [("layers.0.up", "R"), ("*", "batch"), ("*.up", "column")]))
    assert fixes["layers.0.up"] == "R" and fixes["layers.1.up"] == "o" and fixes["layers.1.down"] == "b.1"
    assert not any(graph.nodes[node(graph, name)].op in ("parameter", "input") for name in fixes)


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        (("layers.0.up.weight", "o"), "'layers.0.up.weight' is a weight; fix what reads it: layers.0.up$"),
        (("*.up.weight", "o"), "is a weight; fix what reads it"),
        (("ids", "R"), "'ids' is an input; fix what reads it: "),
        (("layers.0.upp", "o"), "no operator has such a name; did you mean layers.0.up, "),
        (("*.up", "diagonal"), r"no operator that it matches has diagonal; they have R, B"),
        (("layers.0.gelu", "column"), "'column' names no row of it; it has R, "),
    ],
)
def test_what_fixes_nothing_is_refused(fix: tuple[str, str], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        exact_fixes(twin("gpt2"), [fix])


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x))).square().mean()  # type: ignore[no-any-return]


def test_a_plan_keeps_them() -> None:
    graph = capture(Two(), (torch.zeros(8, 8),), batch=8)
    space = SearchSpace(mesh=(2, 2), stages=1, fix=(("*", "batch,R"), ("up", "batch,column"), ("down", "batch,row")))
    plan = plan_graph(graph, Machine.load("cpu"), Training(8), space)
    assert plan.choices[node(graph, "up")].output == (S(0), S(1))
    assert plan.choices[node(graph, "down")].output == (S(0), P)
