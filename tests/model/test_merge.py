"""Look-ups in many tables become one where that computes the same; tables are joined under their own names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita import PartitaError
from partita.model.capture.capture import capture
from partita.model.capture.merged_lookups import merge_lookups
from partita.model.graph.batch import with_batch
from partita.model.graph.graph_file import graph_from_json, graph_to_json

ROWS = (5, 3, 7, 4)
IDS = torch.zeros(4, 4, dtype=torch.int64)


class Tables(nn.Module):
    """A table for every column of the ids; `join` makes one tensor of what is looked up."""

    def __init__(
        self, join: Callable[[list[Tensor]], Tensor], bags: bool = False, columns: Sequence[int] = (0, 1, 2, 3)
    ) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bags else nn.Embedding
        options = {"mode": "sum"} if bags else {}
        self.tables = nn.ModuleList(kind(rows, 6, sparse=True, **options) for rows in ROWS)
        self.join, self.columns = join, columns

    def forward(self, ids: Tensor) -> Tensor:
        return self.join([self.tables[i](ids[:, i]) for i in self.columns]).sin()


JOINS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "stacked": lambda found: torch.stack(found, 1),
    "stacked first": lambda found: torch.stack(found, 0),
    "stacked last": lambda found: torch.stack(found, -1),
    "side by side": lambda found: torch.cat(found, -1),
    "one below the other": lambda found: torch.cat(found, 0),
    "with others": lambda found: torch.cat([found[0].new_ones(4, 6), *found, found[0].new_zeros(4, 1)], -1),
}


@pytest.mark.parametrize("join", JOINS)
def test_look_ups_become_one(join: str, agrees: Any) -> None:
    graph = agrees(Tables(JOINS[join]), (IDS,))
    (lookup,) = graph.of("embedding")
    table = graph.nodes[graph.nodes[lookup].inputs[0]]
    assert table.originals == {f"tables.{i}.weight": (rows, 6) for i, rows in enumerate(ROWS)}
    assert (table.name, table.shape, graph.nodes[lookup].name) == ("tables.weight", (sum(ROWS), 6), "tables")
    assert len(graph.of("cat")) == (join == "with others")
    assert not graph.of("slice")


@pytest.mark.parametrize("join", [name for name in JOINS if name != "with others"])
def test_of_sequences_and_of_bags(join: str, agrees: Any) -> None:
    ids = IDS.unsqueeze(2).expand(4, 4, 3)
    assert len(agrees(Tables(JOINS[join]), (ids,)).of("embedding")) == 1
    assert len(agrees(Tables(JOINS[join], bags=True), (ids,)).of("embedding_bag")) == 1


@pytest.mark.parametrize(
    ("columns", "left"), [((1, 2), 1), ((0, 1, 3), 2), ((0, 2), 2), ((2, 3, 0, 1), 2), ((3, 2, 1), 3)]
)
def test_only_ids_that_lie_side_by_side(columns: Sequence[int], left: int, agrees: Any) -> None:
    graph = agrees(Tables(JOINS["stacked"], columns=columns), (IDS,))
    assert len(graph.of("embedding")) == left


def test_integers_of_32_bits(agrees: Any) -> None:
    graph = agrees(Tables(JOINS["stacked"]), (IDS.int(),))
    assert graph.nodes[graph.nodes[graph.of("embedding")[0]].inputs[1]].dtype == "int64"


def test_every_column_has_its_range() -> None:
    graph = capture(Tables(JOINS["stacked"]), (IDS,), loss="projection")
    (ids,) = (graph.nodes[i] for i in graph.of("input"))
    assert (ids["high"], ids["high_dim"]) == (ROWS, 1)
    graph = capture(Tables(JOINS["stacked"], columns=(0, 2)), (IDS,), loss="projection")
    assert graph.nodes[graph.of("input")[0]]["high"] == (5, 2, 7, 2)


def test_the_batch_changes_as_before() -> None:
    for bags in (False, True):
        module, ids = Tables(JOINS["side by side"], bags), IDS.unsqueeze(2).expand(4, 4, 3) if bags else IDS
        graph = capture(module, (ids,), loss="projection")
        assert with_batch(graph, 12) == capture(module, (ids,), batch=12, loss="projection")
        assert merge_lookups(graph) is graph


class Odd(nn.Module):
    """Three tables of which something keeps the second from being joined; all but the last are alike."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why
        self.a = nn.Embedding(5, 6)
        self.b = nn.Embedding(
            3, 4 if why == "width" else 6, sparse=why == "sparse", padding_idx=1 if why == "padding" else None
        )
        self.b.weight.requires_grad = why != "frozen"
        self.c = nn.Embedding(7, 6)
        self.other = nn.Embedding(3, 6)
        if why == "tied":
            self.other.weight = self.b.weight

    def forward(self, ids: Tensor) -> Tensor:
        a, b, c = self.a(ids[:, 0]), self.b(ids[:, 1]), self.c(ids[:, 2])
        if self.why == "read twice":
            b = b + self.b(ids[:, 0].clamp(max=2))
        if self.why == "changed":
            b = b * 2
        rest = b.sum() if self.why == "read elsewhere" else self.other(ids[:, 3]).sum()
        return torch.cat((a, b, c), 1).sin().sum() + rest


@pytest.mark.parametrize(
    "why",
    ["width", "sparse", "padding", "frozen", "tied", "read twice", "changed", "read elsewhere"],
)
def test_what_is_not_alike_stays_as_it_is(why: str, agrees: Any) -> None:
    graph = agrees(Odd(why), (IDS,))
    assert not any(node.get("tables") for node in graph.nodes)


def test_all_three_are_joined_otherwise(agrees: Any) -> None:
    graph = agrees(Odd(""), (IDS,))
    assert [list(node.originals) for node in graph.nodes if node.get("tables")] == [
        ["a.weight", "b.weight", "c.weight"]
    ]


class Functional(nn.Module):
    """Parameters in a list, and a module of the name that the joined table would like."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ParameterList([torch.zeros(rows, 6) for rows in ROWS])

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([nn.functional.embedding(ids[:, i], w) for i, w in enumerate(self.tables)]).sin()


def test_tables_without_modules(agrees: Any) -> None:
    graph = agrees(Functional(), (IDS,))
    assert [list(n.originals) for n in graph.nodes if n.get("tables")] == [[f"tables.{i}" for i in range(4)]]


def test_a_graph_file_holds_the_tables() -> None:
    graph = capture(Tables(JOINS["stacked"]), (IDS,), loss="projection")
    text = json.dumps(graph_to_json(graph))
    assert graph_from_json(json.loads(text)) == graph
    for damage in (
        [["tables.0.weight", 5]],
        [["tables.0.weight", 12], ["tables.0.weight", 7]],
        [["tables.0.weight", 20], ["tables.1.weight", -1]],
        [["a{}", 12], ["b", 7]],
        [["a", 12.0], ["b", 7]],
        [],
        "tables",
    ):
        data = json.loads(text)
        data["nodes"][0]["attributes"]["tables"] = damage
        with pytest.raises(PartitaError, match="tables"):
            graph_from_json(data)
    for key, value in (("high", [5, 3]), ("high_dim", 0), ("high_dim", 2), ("high", [5, 3, 7, "4"])):
        data = json.loads(text)
        next(n for n in data["nodes"] if n["op"] == "input")["attributes"][key] = value
        with pytest.raises(PartitaError, match="high"):
            graph_from_json(data)
