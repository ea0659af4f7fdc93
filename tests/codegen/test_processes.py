"""Programs of all kinds on processes: gloo sends what threads hand over. One launch runs them all."""

from __future__ import annotations

import random
from pathlib import Path

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.graph_module import trial_of
from partita.codegen.verification.verify import run
from partita.formulation.search_space import SearchSpace
from partita.formulation.special import special_strategy
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.model.zoo import entry

from . import test_beside as beside
from . import test_recompute as recomputation
from . import test_ring as rings
from . import test_spread as spread
from .pipelines import at_random, captured


def planned(name: str) -> Plan:
    known = entry(name)
    batch = known.default_batch(True, 2)
    graph = capture(*load_module(name, small=True), batch=batch)
    training, space = Training(batch, "float32", known.optimizer), SearchSpace(mesh=(2,), stages=1)
    context = Context({"reference": name, "small": True, "batch": batch})
    return plan_graph(graph, Machine.adhoc((2,)), training, space, context=context)


def test_one_launch_runs_all_and_outlives_a_program_that_fails(tmp_path: Path) -> None:
    """A ring, and a pipeline: sends and receives that really wait for each other; and recomputed segments."""
    branches = beside.planned(beside.Branchy(), (2,), 8, micro_batches=2)
    assert branches.bundles
    graph, index = rings.around(special_strategy("ring").examples[0])
    plans = {
        "branches": branches,
        "faulty": branches,
        "ring": rings.fixed(graph, index, "ring", 2),
        "spread": spread.planned("dlrm", (2,)),
        "xdl": planned("xdl"),
        "recomputed": recomputation.copies(recomputation.stack(3), ["full", "selective", "none"]),
    }
    trials = {name: trial_of(plan, tmp_path / f"{name}.py") for name, plan in plans.items()}
    whole = captured("gpt2", 4)
    pipeline = at_random(whole, 2, (1,), 4, random.Random(0))
    trials["pipeline"] = trial_of(pipeline, tmp_path / "pipeline.py", 1, whole)
    program = trials["faulty"].path
    program.write_text(
        program.read_text().replace("def train_step(", "def train_step(*_):\n    1 / 0\n\n\ndef unused(")
    )
    verdicts = dict(zip(trials, run(list(trials.values()), "pool", timeout=100), strict=True))
    failed = verdicts.pop("faulty")
    assert not failed["ok"] and "ZeroDivisionError" in failed["failure"]
    for name, verdict in verdicts.items():
        assert verdict["ok"], (name, verdict["failure"])
        assert (verdict["level"], verdict["ranks"]) == ("pool", 2)
