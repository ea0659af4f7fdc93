"""All backends side by side: cases, processes of their own, verdicts, tables and profiles."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import math
import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from partita.bench import bench, profiles, text
from partita.bench import contained as processes
from partita.bench.contained import Request, contained
from partita.bench.instances import DATA, MODELS, SMALL_MODELS, cases, model_network, published
from partita.bench.plan import prepared
from partita.bench.solvers import contest_table, judged, planner_table, run, write
from partita.cli import app
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.formulation.network.contest import Contest
from partita.formulation.network.network_file import network_json
from partita.formulation.search_space import SearchSpace
from partita.model.errors import PartitaError
from partita.solvers import protocol

INSTANCE = {
    "problem": {
        "nodes": {
            "intervals": [[0, 2], [1, 3], [0, 0]],
            "costs": [[5, 1], [4, 3], [2]],
            "usages": [[0, 8], [0, 8], [9]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 9, 2, 0], [0, 1]]},
        "usage_limit": 8,
    }
}
BEST = 1 + 4 + 2 + 2  # choice 1 0 0: 8 of 8 while both are alive

MISBEHAVING = """
import ctypes, os, signal, time
from partita.solvers.protocol import Limits, Search, Solution, Status

class Base:
    def accepts(self, network): return True
    def solve(self, network, limits=Limits()):
        if len(network.variables) > 5:  # the small networks before
            return Search(network, limits, self.name).finish()
        return self.answer(network, limits)

class Crashes(Base):
    name = "crashes"
    def answer(self, network, limits): ctypes.string_at(0)

class Leaves(Base):
    name = "leaves"
    def answer(self, network, limits): os._exit(3)

class Raises(Base):
    name = "raises"
    def answer(self, network, limits): raise RuntimeError("out of luck")

class Grows(Base):
    name = "grows"
    def answer(self, network, limits): return bytearray(1 << 46)

class Hangs(Base):
    name = "hangs"
    def answer(self, network, limits):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True: time.sleep(1)

class Slow(Base):
    name = "slow"
    def answer(self, network, limits):
        search = Search(network, limits, self.name)
        search.offer((1, 0, 0))
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            return search.finish("interrupted")

class Lies(Base):
    name = "lies"
    def answer(self, network, limits): return Solution(Status.OPTIMAL, (1, 1, 0), 3, 3, 0.0, self.name)
"""
NAMES = ("Crashes", "Leaves", "Raises", "Grows", "Hangs", "Slow", "Lies")


@pytest.fixture
def instances(tmp_path: Path) -> Path:
    """A folder of one contest instance."""
    folder = tmp_path / "instances"
    folder.mkdir()
    (folder / "tiny.json.gz").write_bytes(gzip.compress(json.dumps(INSTANCE).encode()))
    (folder / "notes.txt").write_text("no instance")
    return folder


@pytest.fixture
def misbehaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers solvers, each with its own fault."""
    site = tmp_path / "site"
    info = site / "faulty-1.dist-info"
    info.mkdir(parents=True)
    (site / "faulty.py").write_text(MISBEHAVING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    lines = [f"{name.lower()} = faulty:{name}" for name in NAMES]
    (info / "entry_points.txt").write_text("\n".join(["[partita.solvers]", *lines]))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))


# The benchmark


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The result of an instance of the contest and a small case, and the folder that they were written to."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "in").mkdir()
    (folder / "in" / "tiny.json").write_text(json.dumps(INSTANCE))
    result = bench("solvers", True, ("tiny", "infeasible"), instances=folder / "in", output=folder / "out")
    return result, folder / "out"


def test_every_backend_answers_alike(small: tuple[dict[str, Any], Path]) -> None:
    rows = small[0]["rows"]
    names = [backend.name for backend in protocol.solvers()]
    chosen = list(dict.fromkeys(row["case"] for row in rows))
    assert [(row["case"], row["solver"]) for row in rows] == list(product(chosen, names))
    assert [case.partition(" ")[0] for case in chosen] == ["contest", "random"]
    for case in chosen:
        answers = {(row["status"], row["objective"]) for row in rows if row["case"] == case}
        assert len(answers - {("refused", None)}) == 1, answers
        assert answers & {("optimal", row["objective"]) for row in rows} or "infeasible" in case
    assert not any(row["verified"] is False for row in rows)
    assert {row["objective"] for row in rows if row["case"] == "contest tiny"} - {None} == {BEST}
    assert all(0 <= row["seconds"] < row["limit_s"] and row["memory_mib"] > 1 for row in rows)


def test_the_small_cases_are_of_every_group(instances: Path) -> None:
    assert [case.group for case in cases(True, instances)] == ["contest", "planner", "random", "random"]


def test_its_result_is_shown_and_kept(small: tuple[dict[str, Any], Path]) -> None:
    result, folder = small
    assert (
        result["command"].startswith("partita bench solvers --small --only tiny ") and "--output " in result["command"]
    )
    shown = text(result)
    assert "Solvers\n" in shown and shown.splitlines()[-1] == result["notes"][-1]
    kept = json.loads((folder / "solvers.json").read_text())
    assert kept["rows"] == result["rows"] and kept["hardware"] == result["hardware"]
    with (folder / "solvers.csv").open() as file:
        assert [row["case"] for row in csv.DictReader(file)] == [row["case"] for row in result["rows"]]


def test_pictures_need_matplotlib_and_the_rest_does_not(
    small: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write(small[0], tmp_path / "plain")[1:] == [profiles.MISSING]
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["solvers.csv", "solvers.json"]


def test_pictures_are_the_same_every_time(small: tuple[dict[str, Any], Path]) -> None:
    pytest.importorskip("matplotlib")
    drawn = profiles.pictures(small[0]["rows"])
    assert set(drawn) == {"time.png", "time.svg", "gap.png", "gap.svg"}
    assert drawn["time.png"].startswith(b"\x89PNG") and b"<svg" in drawn["gap.svg"]
    assert drawn == profiles.pictures(small[0]["rows"])


# A process of its own


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("crashes", "crashed", "SIGSEGV"),
        ("leaves", "crashed", "exit code 3"),
        ("raises", "error", "RuntimeError: out of luck"),
        ("grows", "memory", ""),
    ],
)
def test_a_solver_s_fault_ends_only_itself(
    name: str, status: str, words: str, instances: Path, tmp_path: Path, misbehaving: None
) -> None:
    found = contained(Request(str(instances / "tiny.json.gz"), name, 30.0, whole=True), tmp_path)
    assert (found["status"], found["assignment"]) == (status, None) and words in found["words"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_solver_that_does_not_stop_is_ended(whole: bool, instances: Path, tmp_path: Path, misbehaving: None) -> None:
    found = contained(Request(str(instances / "tiny.json.gz"), "hangs", 2.0 if whole else 0.5, whole), tmp_path)
    assert (found["status"], found["assignment"], found["words"]) == ("late", None, "did not stop by itself")


def test_a_late_answer_to_the_interrupt_is_kept_but_scores_nothing(
    instances: Path, tmp_path: Path, misbehaving: None
) -> None:
    file = instances / "tiny.json.gz"
    found = contained(Request(str(file), "slow", 0.5, whole=False), tmp_path)
    assert (found["status"], found["objective"], found["words"]) == ("feasible", BEST, "slow: interrupted")
    assert found["seconds"] > 0.5
    (case,) = [c for c in cases(True, instances) if c.group == "contest"]
    case = type(case)(case.group, case.family, case.name, 0.5, case.file, {"contest_best": BEST})
    (late,) = judged(case, file, 0.5, {"slow": found})
    (early,) = judged(case, file, 200.0, {"slow": found})
    assert (late["verified"], late["score"], early["score"]) == (True, 0.0, 1.0)


def test_what_is_not_so_is_not_believed(instances: Path, misbehaving: None) -> None:
    rows = run(True, ("contest",), lambda words: None, instances, 20.0, ("lies", "auto"))
    verdicts = {row["solver"]: (row["status"], row["verified"], row["above_pct"]) for row in rows}
    assert verdicts == {"auto": ("optimal", True, 0.0), "lies": ("optimal", False, None)}


@pytest.mark.parametrize(
    ("status", "objective", "bound", "verified"),
    [
        ("feasible", BEST, BEST - 5, True),
        ("optimal", BEST, BEST, True),
        ("optimal", BEST, BEST - 1, False),  # no proof
        ("feasible", BEST - 1, 0, False),  # costs more than that
        ("unknown", None, BEST + 1, False),  # there is a better one
        ("unknown", None, BEST, None),
        ("infeasible", None, None, False),
    ],
)
def test_answers_are_held_against_each_other(
    status: str, objective: int | None, bound: int | None, verified: bool | None, instances: Path
) -> None:
    (case,) = [c for c in cases(True, instances) if c.group == "contest"]
    rest = {"seconds": 1.0, "memory_mib": 1.0, "words": ""}
    good = {"status": "optimal", "objective": BEST, "bound": BEST, "assignment": [1, 0, 0], **rest}
    picks = None if objective is None else [1, 0, 0]
    other = {"status": status, "objective": objective, "bound": bound, "assignment": picks, **rest}
    rows = judged(case, instances / "tiny.json.gz", 10.0, {"good": good, "other": other})
    assert [row["verified"] for row in rows] == [True, verified]


def test_an_interrupt_keeps_what_there_is(instances: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = dict.fromkeys(("objective", "bound", "assignment", "memory_mib"))
    answers = iter([empty | {"status": "unknown", "words": "", "seconds": 1.0}])

    def answer(request: Request, folder: Path) -> dict[str, Any]:
        if (found := next(answers, None)) is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr("partita.bench.solvers.contained", answer)
    command = ["bench", "solvers", "--small", "--instances", str(instances), "--json"]
    done = CliRunner().invoke(app, command)
    result = json.loads(done.stdout)
    assert ([row["status"] for row in result["rows"]], done.exit_code) == (["unknown", "interrupted"], 130)
    assert [row["number"] for row in result["summary"]["Solvers"]] == [1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ("no such case",)}, "no case has no such case"),
        ({"solver": ("nobody",)}, "no solver is called 'nobody'"),
        ({"instances": Path("nowhere")}, "is no folder"),
        ({"instances": Path("nowhere"), "parts": True}, "--parts has cases of its own"),
        ({"parts": True, "solver": ("auto whole",)}, "no solver is called 'auto whole'"),
        ({"name": "plan", "time_limit": 1.0}, "--time-limit is for `bench solvers`"),
        ({"name": "plan", "output": Path("nowhere")}, "--output is for `bench solvers`"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        bench(**{"name": "solvers", "small": True} | options)


def test_a_folder_without_instances_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match="holds no instance"):
        cases(True, tmp_path)


# Cases


@pytest.mark.parametrize("letter", ["B", "G"])
def test_the_carried_instances_are_those_that_were_published(letter: str) -> None:
    instance, facts = Contest.read(DATA / f"iopddl_{letter}.json.gz"), published()[letter]
    assert (len(instance.intervals), len(instance.ends)) == (facts["nodes"], facts["edges"])
    found = {c.name: c for c in cases(False, None)}[f"contest {letter}"]
    assert (found.seconds, found.published) == (facts["limit_s"], facts)


def test_official_instances_are_known_by_their_letter(tmp_path: Path) -> None:
    for name in ("A.json.gz", "asplos-2025-iopddl-B.json", "GPT.json"):
        (tmp_path / name).write_text("{}")
    found = {c.name: c.published.get("contest_best") for c in cases(True, tmp_path) if c.group == "contest"}
    assert found == {"contest A": 6548641531, "contest B": 532843, "contest GPT": None}
    everything = [c.name for c in cases(False, tmp_path)]
    assert len(set(everything)) == len(everything) and "contest G" in everything


def test_a_model_s_network_is_the_one_that_planning_keeps(tmp_path: Path) -> None:
    (model,), kept = SMALL_MODELS, tmp_path / "network.json"
    graph, machine, training = prepared(model)
    space = SearchSpace(mesh=model.mesh, micro_batches=1, stages=1)
    plan_graph(graph, machine, training, space, context=Context({"reference": model.model}, save_network=kept))
    assert network_json(model_network(model)) == json.loads(kept.read_text())


def test_memory_binds_in_every_second_network() -> None:
    ample, binding = MODELS[::2], MODELS[1::2]
    assert [m.name.rpartition(" 1 TiB")[0] for m in ample] == [" ".join(m.name.split()[:-2]) for m in binding]
    networks = [model_network(m) for m in (ample[1], binding[1])]
    free, bound = (protocol.solver("auto").solve(network, protocol.Limits(60)) for network in networks)
    assert free.objective is not None and free.bound == free.objective < bound.bound


# Tables and profiles


def row(case: str, solver: str, status: str, seconds: float, gap: float | None = None, **more: Any) -> dict[str, Any]:
    verified = None if status in ("infeasible", "unknown", "refused") else True
    return {
        "case": case, "family": case.split()[0], "solver": solver, "status": status, "seconds": seconds,
        "limit_s": 60.0, "gap_pct": gap, "verified": verified, "objective": None, "score": None, "above_pct": None,
    } | more  # fmt: skip


ROWS = [
    row("planner p", "auto", "optimal", 0.5, 0.0),
    row("planner p", "cpsat-plain", "optimal", 10.0, 0.0),
    row("planner q", "auto", "infeasible", 2.0),
    row("planner q", "cpsat-plain", "unknown", 60.0),
    row("planner r", "auto", "optimal", 1.0, 0.0),
    row("planner r", "cpsat-plain", "refused", 0.0),
    row("random s", "auto", "feasible", 10.0, 5.0),
    row("random s", "cpsat-plain", "optimal", 3.0, 0.0),
]


def test_a_profile_counts_the_cases_within_a_factor_of_the_quickest() -> None:
    assert profiles.ratios(ROWS) == {"auto": [1.0, 1.0, 1.0, math.inf], "cpsat-plain": [20.0, math.inf, math.inf, 1.0]}
    assert profiles.profile(profiles.ratios(ROWS)["cpsat-plain"]) == [(1.0, 0.25), (20.0, 0.5)]
    assert profiles.amounts(ROWS)["auto"] == [profiles.LEAST_GAP_PCT] * 3 + [5.0]
    assert profiles.amounts(ROWS)["cpsat-plain"][1] == math.inf


def test_a_refuted_proof_counts_for_nothing() -> None:
    wrong = row("random s", "auto", "infeasible", 1.0, verified=False)
    assert profiles.seconds_to_proof(wrong) is None and profiles.gap_at_the_end(wrong) is None


def test_the_planner_s_table_says_how_many_times_faster_auto_is() -> None:
    open_case = [row("planner o", "auto", "feasible", 60.0, 0.1), row("planner o", "cpsat-plain", "optimal", 9.0, 0.0)]
    p, q, o, least_of, mean = planner_table([*ROWS, *open_case])
    assert (p["case"], p["times_faster"], p["meaning"]) == ("planner p", 20.0, "exactly")
    assert (q["case"], q["times_faster"], q["meaning"]) == ("planner q", 30.0, "at least")  # CP-SAT's limit
    assert (o["times_faster"], o["meaning"]) == (None, "no proof by auto")
    assert (least_of["times_faster"], least_of["meaning"]) == (20.0, "2 of 3 proved")
    assert np.isclose(mean["times_faster"], math.sqrt(600))


def test_scores_add_up_over_the_contest() -> None:
    facts = published()["R"]
    more = functools.partial(row, "contest R", status="feasible", gap=9.0)
    table = contest_table([
        more(solver="auto", seconds=1.0, score=1.04), more(solver="milp", seconds=1.0, score=0.0),
        row("contest K", "auto", "optimal", 1.0, score=1.01), row("contest K", "milp", "refused", 0.0, score=0.0),
        row("contest unheard of", "auto", "optimal", 1.0, 0.0),
    ])  # fmt: skip
    assert [(line["case"], line["score"]) for line in table] == [
        ("contest R", 1.04), ("contest R", 0.0), ("contest K", 1.01), ("contest K", 0.0),
        ("sum of 2", 2.05), ("sum of 2", 0.0),
    ]  # fmt: skip
    gap = 100 * (facts["best_known"] - facts["bound"]) / facts["best_known"]
    assert table[0]["published_gap_pct"] == gap


def test_the_alarm_is_known_to_end_what_is_late() -> None:
    assert processes._ended(-signal.SIGALRM, "")[0] == "late"
    assert processes._ended(-signal.SIGABRT, "terminate called after throwing std::bad_alloc")[0] == "memory"
