"""What is said of a proof, and among which plans it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import partita
from partita.codegen.report.describe import _time
from partita.codegen.report.facts import facts
from partita.codegen.report.proof_text import proof_text
from partita.formulation.network.network import Network
from partita.formulation.search_space import SearchSpace
from partita.model.errors import NoPlanError, PartitaError
from partita.solvers.budget import Budget
from partita.solvers.executors import Serial
from partita.solvers.protocol import NO_LIMITS, Limits, Search, Solution, solver

SPACE = {"fixed": ["mesh 2x4", "2 micro-batches"], "outside": ["a", "b", "c"]}
AMONG = " among plans with mesh 2x4 and 2 micro-batches, without a, b or c"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"status": "optimal", "bound_ns": 100, "space": SPACE}, f"proven optimal (bound B){AMONG}"),
        ({"status": "optimal", "bound_ns": 100, "space": {"fixed": [], "outside": []}}, "proven optimal (bound B)"),
        (
            {"status": "optimal", "bound_ns": 100, "space": {"fixed": [], "outside": ["a"]}},
            "proven optimal (bound B) among plans without a",
        ),
        ({"status": "optimal", "bound_ns": 100}, "proven optimal (bound B) in the space of its search"),
        (
            {"status": "feasible", "bound_ns": 7, "space": SPACE},
            f"at most 1,328.58 % above the optimum (bound B){AMONG}",
        ),
        ({"status": "feasible", "bound_ns": 0, "space": SPACE}, "nothing is proved (bound B)"),
    ],
)
def test_proofs_in_words(report: dict[str, Any], words: str) -> None:
    assert proof_text(report, 100, "B") == words


@pytest.mark.parametrize("space", [3, {"outside": "all"}, {"outside": [1]}, {"outside": [], "fixed": 2}])
def test_a_malformed_space_is_refused(space: object) -> None:
    with pytest.raises(PartitaError, match=r"the plan's report: space"):
        proof_text({"status": "optimal", "bound_ns": 1, "space": space}, 1, "B")


@pytest.mark.parametrize(
    ("hierarchy", "options", "fixed", "outside"),
    [
        ((1,), {}, [], ["rewriting"]),
        ((2,), {"rewrite": True}, [], ["schedules other than 1f1b"]),
        ((2,), {"stages": 1, "recompute": "none"}, ["recomputation none"], ["pipelines", "rewriting"]),
        (
            (2, 2, 2, 2),
            {"stages": 2, "schedule": "1f1b,gpipe", "micro_batches": 1},
            ["2 stages", "1 micro-batch"],
            ["schedules other than 1f1b and gpipe", "rewriting"],
        ),
        ((4,), {"mesh": (4,), "fix": {"0": "R"}}, ["mesh 4", "the strategies of 1 node"], ["pipelines", "rewriting"]),
    ],
)
def test_what_a_search_was_given_and_left_out(
    hierarchy: tuple[int, ...], options: dict[str, Any], fixed: list[str], outside: list[str]
) -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    machine = partita.Machine.adhoc(hierarchy)
    asked: dict[str, Any] = {"cache": "none", "workers": 1} | options
    plan = partita.optimize(module, (torch.zeros(16, 16),), machine, loss="projection", **asked)
    space = plan.report["space"]
    assert space["fixed"] == fixed
    assert space["outside"] == outside
    assert space.get("offload", False) == (machine.device.host_bandwidth is not None)
    shown = " ".join(" ".join(facts(plan).optimum).split())
    assert f"Outside the space: {', '.join(space['outside'])}." in shown
    assert "among plans" in str(plan)


def test_meshes_of_more_axes_than_are_searched_are_named() -> None:
    machine = partita.Machine.adhoc((2, 2, 2, 2))
    for options, named in ({}, True), ({"mesh": (2, 8)}, False):
        space = partita.optimize(
            nn.Linear(16, 16), (torch.zeros(16, 16),), machine, loss="projection", stages=1, cache="none", **options
        ).report["space"]
        assert any("axes" in phrase for phrase in space["outside"]) == named


def test_defaults_fix_nothing() -> None:
    from partita.codegen.planner.left_out import fixed

    assert fixed(SearchSpace()) == [] and fixed(replace(SearchSpace(), stages=1)) == []


class Refusing:
    """A solver that refuses all networks, or all but the first."""

    name = "refusing"

    def __init__(self, some: bool) -> None:
        self.some, self.known = some, 0

    def accepts(self, network: Network) -> bool:
        return True

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        self.known += 1
        if self.some and self.known == 1:
            return solver("auto").solve(network, limits)
        return Search(network, limits, self.name).finish("too large for this test")


@pytest.mark.parametrize("stages", [1, 2])
def test_a_refusal_is_told_as_one(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    asked: dict[str, Any] = {
        "loss": "projection",
        "cache": "none",
        "stages": stages,
        "executor": Serial(),
        "time_limit": 60.0,
    }

    def planned(backend: Refusing) -> partita.Plan:
        monkeypatch.setattr(Budget, "backend", lambda self: backend)
        return partita.optimize(module, (torch.zeros(16, 16),), partita.Machine.adhoc((2, 2)), **asked)

    with pytest.raises(NoPlanError, match=r"refusing gave no answer for (\d+) of \1 networks: too large") as none:
        planned(Refusing(False))
    assert "more time" not in str(none.value) and none.value.summary["space"]["limits_hit"] == ["refused"]
    if stages == 1:
        plan = planned(Refusing(True))
        assert plan.report["status"] == "feasible" and plan.report["space"]["limits_hit"] == ["refused"]
        assert "networks: too large for this test." in facts(plan).optimum[-2] + facts(plan).optimum[-3]


@pytest.mark.parametrize(
    ("ns", "text"),
    [(7, "7 ns"), (999_499, "999 us"), (999_500, "1 ms"), (1_234_567, "1.23 ms"), (4 * 10**12, "4,000 s")],
)
def test_times_have_three_digits_and_no_exponent(ns: int, text: str) -> None:
    assert _time(ns) == text
