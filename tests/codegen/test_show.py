"""What `partita show` says: of plans that are fixed by hand, and of one that was found."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from partita import Machine, Plan
from partita.codegen.plan.choice import Choice
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.price_items import PARTS
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.facts import Facts, facts
from partita.codegen.report.show import show
from partita.codegen.report.strategy_tables import weights_table
from partita.codegen.report.tables import Table
from partita.codegen.report.words import label, module_of, pattern, ranges, roles, split_word
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.graph.atoms import atoms
from partita.model.graph.layout import B, S
from partita.model.graph.pcg import PCG
from partita.model.training import Training
from partita.model.zoo import build


def graph_of(model: str) -> PCG:
    module, inputs = build(model, small=True)
    return capture(module, inputs, batch=16)


def planned(
    model: str,
    mesh: tuple[int, ...],
    *,
    micro_batches: int = 1,
    fix: tuple[tuple[str, str], ...] = (),
    dtype: str = "float32",
    overlap: bool = True,
) -> Plan:
    hierarchy = (2, mesh[0] // 2) if len(mesh) == 1 else mesh
    training = Training(16, dtype, "adamw")
    space = SearchSpace(mesh=mesh, micro_batches=micro_batches, fix=fix, stages=1, overlap=overlap)
    return plan_graph(
        graph_of(model), Machine.adhoc(hierarchy), training, space, context=Context({"reference": model, "small": True})
    )


@pytest.fixture(scope="module")
def found() -> Plan:
    """LLaMA on 2 x 4 devices, its gated perceptrons split as Megatron splits them."""
    fix = [
        (f"layers.{i}.{name}", f"b.0,{row}")
        for i in (0, 1)
        for name, row in (("gate", "o"), ("up", "o"), ("down", "i"))
    ]
    return planned("llama-7b", (2, 4), micro_batches=4, fix=tuple(fix), dtype="mixed-bfloat16")


def table(report: Facts, title: str) -> Table:
    return next(t for t in report.tables if t.title == title)


def test_names_of_equal_layers() -> None:
    assert pattern("layers.11.mlp") == ("layers.*.mlp", 11) and pattern("norm") == ("norm", None)
    assert label("layers.*.mlp", [0, 1, 2]) == "layers.0-2.mlp" and label("norm", [None]) == "norm"
    assert ranges([3, 0, 1, 2, 7]) == "0-3,7" and ranges([0, 2, 4, 6]) == "0,2..6" and ranges([]) == ""


@pytest.mark.parametrize("model", ["gpt2", "llama-7b", "bert-large"])
def test_atoms_have_the_roles_that_a_reader_expects(model: str) -> None:
    graph = graph_of(model)
    counts = roles(graph)
    for index, node in enumerate(graph.nodes):
        if node.op == "input":
            assert counts[index] == ("batch", "positions")
        if node.op in ("attention", "softmax"):
            assert counts[index][:3] == ("batch", "heads", "positions"), (node.name, counts[index])
        if node.name.endswith(("up", "down")):
            assert counts[index] == ("batch", "positions", "features")
    loss = graph.nodes[graph.loss]
    scores = atoms(graph)[loss.inputs[0]].of_dim(1)
    assert [counts[loss.inputs[0]][a] for a in scores] == ["classes"]


def test_fixed_strategies_are_named(found: Plan) -> None:
    words = {node.name: split_word(found, i, 1) for i, node in enumerate(found.graph.nodes) if node.op == "linear"}
    assert (words["layers.0.gate"], words["layers.1.up"], words["layers.1.down"]) == ("columns", "columns", "rows")


def test_heads_are_named() -> None:
    plan = planned("gpt2", (4,), fix=(("layers.0.attention.qkv", "o:1"),))
    qkv = next(i for i, node in enumerate(plan.graph.nodes) if node.name == "layers.0.attention.qkv")
    assert split_word(plan, qkv, 0) == "columns by heads"


def test_sums_are_the_objective_and_the_memory(found: Plan) -> None:
    cost = stage_price(found)
    assert (cost.objective_ns, cost.memory_bytes) == (found.report["objective_ns"], found.report["memory_bytes"])
    assert cost.ns == found.report["parts_ns"]
    times = table(facts(found), "Time and memory by module")
    unit = times.head.index("us")
    assert float(times.rows[-1][unit].replace(",", "")) == pytest.approx(sum(cost.ns.values()) / 1e3, abs=0.01)
    assert cost.objective_ns == sum(cost.ns.values()) - cost.hidden_ns
    for column in range(1, 1 + len(PARTS)):
        *rows, total = (float(row[column].replace(",", "")) for row in times.rows)
        assert sum(rows) == pytest.approx(total, abs=0.01 * len(rows))


def test_equal_layers_are_said_once(found: Plan) -> None:
    rows = table(facts(found), "Operators").rows
    assert [row[0] for row in rows if row[0].endswith(("gate", "up", "down"))] == [
        "layers.0-1.gate",
        "layers.0-1.up",
        "layers.0-1.down",
    ]
    said = [(pattern(row[0])[0].replace("0-1", "*"), row[1:]) for row in rows]
    assert len(said) == len(set(said))


def test_what_moves_has_a_reason_and_a_place(found: Plan) -> None:
    moves = table(facts(found), "Collectives")
    sums = [row for row in moves.rows if row[0] == "layers.0-1.down" and row[2].startswith("adds partial results")]
    assert sums and all(row[4] == "4 gpus" for row in sums)
    assert {row[4] for row in moves.rows} >= {"2 nodes", "4 gpus"}
    assert int(sums[0][6]) == 2 * found.micro_batches  # layers, micro-batches


def test_storage_has_its_usual_names(found: Plan) -> None:
    graph, one = found.graph, (B, S(0))
    index = next(i for i, n in enumerate(graph.nodes) if n.name == "layers.0.gate.weight")
    storages = {
        ("copies", "split", "-"): Choice((), one),
        ("copies", "split", "ZeRO-1"): Choice((), one, sharded_states=True),
        ("FSDP", "split", "-"): Choice((), (S(1), S(0))),
        ("FSDP", "split", "gathered again in backward"): Choice((), (S(1), S(0)), regather=True),
        ("copies", "cut for use", "-"): Choice((), (B, B)),
    }
    for words, choice in storages.items():
        choices = (*found.choices[:index], choice, *found.choices[index + 1 :])
        shown = weights_table(changed := replace(found, choices=choices), stage_price(changed))
        (row,) = (row for row in shown.rows if row[0] in ("layers.0.gate.weight", "layers.0-1.gate.weight"))
        assert row[2:5] == words


def test_the_text_is_aligned_and_deterministic(found: Plan) -> None:
    from partita.codegen.report.text import text

    first = text(facts(found))
    assert first == text(facts(Plan.from_json(found.to_json())))
    proved = text(facts(planned("mlp", (4,))))
    assert "proven optimal" in proved and "gap 0.000 %" in proved
    assert all(line == line.rstrip() for line in first.splitlines())


def test_a_plan_whose_report_lies_is_said_to() -> None:
    plan = planned("mlp", (4,))
    lying = replace(plan, report=plan.report | {"objective_ns": 1})
    assert "which its layouts do not cost" in dict(facts(lying).summary)["step"]
    silent = replace(plan, report={})
    assert facts(silent).optimum == ("The plan is not the result of a search: nothing is known about better ones.",)


@pytest.mark.parametrize(
    "report", [{"objective_ns": "1"}, {"bound_ns": True}, {"status": "optimal", "bound_ns": 1, "space": 3}]
)
def test_a_malformed_report_is_refused(report: dict[str, object]) -> None:
    plan = planned("mlp", (4,))
    with pytest.raises(PartitaError, match="report"):
        facts(replace(plan, report=report))


class Page(HTMLParser):
    """Checks nesting; keeps tags and text."""

    VOID = ("meta", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_stands_alone_and_escapes_names(found: Plan, tmp_path: Path) -> None:
    hostile = replace(found, model=found.model | {"reference": "<script>alert(1)</script>"})
    hostile.save(tmp_path / "plan.json")
    show(tmp_path / "plan.json", html=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open and "script" not in page.tags and "<script>alert(1)</script>" in page.words
    assert page.tags.count("table") == len(facts(found).tables) and "http" not in text.replace("http-equiv", "")
    assert "layers.0-1.gate" in page.words and page.tags.count("text") == len(found.placement.sizes) * found.ranks


@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_the_timeline_adds_up_to_the_objective(micro_batches: int, tmp_path: Path) -> None:
    plan = planned("gpt2", (2, 2), micro_batches=micro_batches)
    plan.save(tmp_path / "plan")
    show(tmp_path / "plan", trace=tmp_path / "trace.json")
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert max(_ends(events)) == plan.report["objective_ns"]
    busy = [(e["tid"], round(e["ts"] * 1e3), end) for e, end in zip(events, _ends(events), strict=True)]
    assert all(end <= start for (one, _, end), (other, start, _) in pairwise(sorted(busy)) if one == other)
    hidden = sum(round(e["dur"] * 1e3) for e in events) - plan.report["objective_ns"]
    assert hidden >= plan.report["hidden_ns"] / micro_batches > 0  # blocks of micro-batches are as long as they take
    blocks = [e["name"] for e in events if e["cat"] == "micro-batches"]
    assert blocks == (["6 more micro-batches, like the first"] if micro_batches == 8 else [])


def test_a_strategy_that_sends_several_times_takes_so_long() -> None:
    """Attention in a ring over four ranks sends its keys on three times in every micro-batch."""
    from partita.codegen.report.trace import timeline

    plan = planned("llama-7b", (4,), micro_batches=2, fix=(("layers.1.attention", "ring"),))
    cost = stage_price(plan)
    assert any(item.count > 2 for item in cost.items)
    events = [e for e in timeline(facts(plan))["traceEvents"] if e["ph"] == "X"]
    assert max(_ends(events)) == cost.objective_ns


def _ends(events: list[dict[str, Any]]) -> list[int]:
    """When each event of a timeline ends, in ns."""
    return [round((e["ts"] + e["dur"]) * 1e3) for e in events]


def test_the_timeline_runs_backward_in_reverse(found: Plan) -> None:
    from partita.codegen.report.trace import timeline

    events = [e for e in timeline(facts(found))["traceEvents"] if e["ph"] == "X" and e["cat"] == "compute"]
    kernels = [e for e in events if e["args"]["when"].startswith("micro-batch 1,") and "linear" in e["name"]]
    forward = [e["name"] for e in kernels if e["args"]["when"].endswith("forward")]
    backward = [e["name"] for e in kernels if e["args"]["when"].endswith("backward")]
    assert len(forward) == len(found.graph.of("linear")) and backward == forward[::-1]


def test_nothing_is_shown_of_what_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(PartitaError):
        show(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(PartitaError, match="not a plan"):
        show(tmp_path)


def test_modules_of_nodes(found: Plan) -> None:
    modules = {node.name: module_of(found.graph, i) for i, node in enumerate(found.graph.nodes)}
    assert modules["layers.1.attention.query"] == ("layers.*.attention", 1)
    assert modules["cross_entropy"] == ("loss", None)
