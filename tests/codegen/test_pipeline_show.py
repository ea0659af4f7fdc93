"""What `show` says of a pipelined plan, its page, and its timeline; damaged files are refused in one line."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.plan.plan_file import load_plan
from partita.codegen.pricing.pipeline_runs import runs
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.describe import pipeline_sentence
from partita.codegen.report.facts import facts
from partita.model.errors import PartitaError

from ..conftest import Run
from .pipelines import captured, piped
from .test_plan_files import damaged
from .test_show import Page


@pytest.fixture(scope="module")
def plan() -> PipelinePlan:
    return piped(captured("mlp", 24), (2, 4), (2, 1), 4, (2, 2), model={"reference": "mlp", "small": True})


def test_the_step_is_that_of_its_stages(plan: PipelinePlan) -> None:
    """Slot by slot, with the messages between them."""
    first, second = (stage_price(stage, delays_messages=True).objective_ns for stage in plan.stages)
    assert (first, second) == plan_price(plan).busy_ns == tuple(stage.report["objective_ns"] for stage in plan.stages)
    assert (
        max(first, second)
        < plan_price(plan).objective_ns
        == max(run.end_ns for run in runs(plan, plan_price(plan).stages))
    )
    told = plan.summary()
    assert told["pipeline"]["busy_ns"] == [first, second] and told["mesh"]["pipeline"] == 2
    assert {row["stage"] for row in told["strategies"]} == {0, 1}


def test_no_stage_updates_before_all_gradients_are_complete(plan: PipelinePlan) -> None:
    """They are clipped by the norm of all; each device sums its own as soon as it has run its last slot."""
    found = runs(plan, plan_price(plan).stages)
    once = {kind: [run for run in found if run.kind == kind] for kind in ("gradients", "update")}
    others = [run for run in found if run.kind != "update"]
    assert {run.start_ns for run in once["update"]} == {max(run.end_ns for run in others)}
    for run in once["gradients"]:
        slots = [x.end_ns for x in others if x.device == run.device and x.kind != "gradients"]
        assert run.start_ns == max(slots)
    assert once["gradients"] and len({run.start_ns for run in once["gradients"]}) == len(once["gradients"])


def test_all_is_shown(plan: PipelinePlan, tmp_path: Path, partita: Run) -> None:
    plan.save(tmp_path / "plan")
    code, words, _ = partita(
        "show", tmp_path / "plan", "--html", tmp_path / "page.html", "--trace", tmp_path / "trace.json"
    )
    assert (
        code == 0 and "STAGES" in words and "TRANSFERS BETWEEN STAGES" in words and "1F1B over 4 micro-batches" in words
    )
    page = Page()
    page.feed((tmp_path / "page.html").read_text())
    assert not page.open and "stage 1" in page.words
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    for device, busy in enumerate(plan_price(plan).busy_ns):
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == device)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(own))
        received = sum(x.total_ns for x in plan_price(plan).stages[device].items if x.kind == "receive")
        assert sum(round(1e3 * (end - start)) for start, end in own) == busy - received
    assert max(e["ts"] + e["dur"] for e in events) * 1e3 <= plan_price(plan).objective_ns + 1
    assert {e["args"].get("micro_batch") for e in events} == {0, 1, 2, 3, None}
    searched = replace(plan, report={"status": "optimal", "bound_ns": 1})
    assert "Outside the space" not in " ".join(facts(searched).optimum)  # nothing is known of it
    told = {"fixed": ["2 stages"], "outside": ["rewriting", "offload"]}
    shown = facts(replace(searched, report=searched.report | {"space": told}))
    assert {"Fixed: 2 stages.", "Outside the space: rewriting, offload."} < set(shown.optimum)
    assert "among plans with 2 stages, without rewriting or offload" in dict(shown.summary)["step"]


def test_a_single_micro_batch_is_told_as_one() -> None:
    assert pipeline_sentence(piped(captured("mlp", 24), (2,), (2,), 1)) == "2 stages, 1F1B over 1 micro-batch"


def test_the_command_line_takes_either_kind(plan: PipelinePlan, tmp_path: Path, partita: Run) -> None:
    plan.save(tmp_path / "plan")
    code, _, words = partita("show", tmp_path / "plan", "--pcg")
    assert code == 2 and "pipelined plan" in words
    code, words, _ = partita("verify", tmp_path / "plan", "--json")
    assert code == 0 and json.loads(words)["ranks"] == 8
    code, _, words = partita("verify", tmp_path / "plan", "--ranks", "4")
    assert code == 2 and "for 8 ranks, not 4" in words


def test_damaged_files_are_refused_or_harmless(plan: PipelinePlan, tmp_path: Path) -> None:
    """Each mutant is a plan in its own right, or a PartitaError."""
    document, refused = json.loads(json.dumps(plan.to_json())), 0
    for number in range(150):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(damaged(document, random.Random(number))))
        try:
            mutant = load_plan(path)
            mutant.emit()
        except PartitaError as error:
            assert str(error).strip()
            refused += 1
            continue
        mutant.save(path)
        assert load_plan(path) == mutant, number
    assert refused > 75
