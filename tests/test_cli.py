"""The command line around the library: arguments in, one JSON object out, exit codes.

The library is played where only arguments and exit codes matter; what depends on a search is really searched.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from partita import PartitaError, Plan
from partita.cli import main
from partita.cli_options import chosen
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.network.network import Network, Variable
from partita.formulation.network.network_file import network_json, read_network
from partita.formulation.parallelism import Parallelism
from partita.formulation.rewriting.saturation_limits import SaturationLimits
from partita.formulation.search_space import SearchSpace, Start
from partita.model.machine.machine_choice import MachineChoice
from partita.model.training import DTYPES, Training
from partita.solvers.budget import Budget
from partita.solvers.search.planning_problem import PlanningProblem

Run = Callable[..., tuple[int, str, str]]


EARLY = "interrupted before any plan was found"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put functions in a module's place."""

    def put(module: str, **functions: Any) -> None:
        played = ModuleType(module)
        played.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, module, played)

    return put


class Planned:
    """A plan that talks too much."""

    def __str__(self) -> str:
        return "the plan"

    def summary(self) -> dict[str, Any]:
        print("loud Python")
        os.write(1, b"loud C\n")
        return {"model": "gpt2", "space": {"limits_hit": []}, "program": None}

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "program.py").touch()


def test_plan_passes_every_option(partita: Run, play: Callable[..., None]) -> None:
    seen = []

    def plan(*given: Any, **more: Any) -> Planned:
        seen.append((*given, more["small"], str(more["save_network"])))
        return Planned()

    play("partita.codegen.planner.planner", plan=plan)
    options = "--small --machine cpu --hierarchy 2x8 --mesh 4x2 --batch 8 --sequence 16 --dtype float64 --optimizer sgd"
    more = "--solver cpsat --time-limit 2.5 --gap 0.05 --fix a=b --fix c=d=e --allow-unknown --micro-batches 4"
    code, out, _ = partita(
        "plan",
        "gpt2",
        *options.split(),
        *more.split(),
        "--statistics",
        "local",
        "--save-network",
        "n.json",
        "--cache",
        "kept",
        *["--stages", "2", "--schedule", "interleaved", "--chunks", "3", "--workers", "5", "--recompute", "full"],
        "--offload",
    )
    assert (code, out) == (0, "the plan\n")
    assert seen == [
        (
            "gpt2",
            MachineChoice(machine="cpu", hierarchy=(2, 8)),
            {
                "batch": 8,
                "dtype": "float64",
                "optimizer": "sgd",
                "sequence": 16,
                "statistics": "local",
                "allow_unknown": True,
            },
            SearchSpace(
                mesh=(4, 2),
                offload=True,
                fix=(("a", "b"), ("c", "d=e")),
                micro_batches=4,
                stages=2,
                schedule="interleaved",
                chunks=3,
                recompute="full",
                rules=(),
                saturation=SaturationLimits(4, 20_000),
            ),
            Budget(solver="cpsat", time_limit=2.5, gap=0.05, workers=5, store=seen[0][4].store),
            True,
            "n.json",
        )
    ]
    assert seen[0][4].store.folder == Path("kept")


def test_every_option_of_a_plan_is_a_field_of_a_value() -> None:
    """All but the model's, the output's, and those of rules and cache, which are two options each."""
    values = (MachineChoice, Training, Parallelism, Start, SearchSpace, SaturationLimits, Budget)
    made = {name for value in values for name in chosen(value, _Everything())}
    own = {name for value in values for name in (field.name for field in fields(value))}
    bounds = {"bounded_rounds", "matches", "alternatives"}  # of generated rules
    parts = {"saturation", "parallelism", "start", "decided"}  # values of their own, of which `Start` makes `decided`
    assert own - made == bounds | parts | {"rules", "bundles", "seconds", "executor", "store"}


class _Everything(dict[str, Any]):
    """A command line on which every option is given, as text that every parser reads."""

    def get(self, name: str, default: Any = None) -> Any:
        return ["a=b"] if name == "fix" else "2"


def test_plan_json_is_alone_on_standard_output(partita: Run, play: Callable[..., None], tmp_path: Path) -> None:
    play("partita.codegen.planner.planner", plan=lambda *given, **more: Planned())
    code, out, err = partita("plan", "gpt2", "--machine", "cpu", "-o", tmp_path / "plan", "--json")
    assert code == 0
    program = str(tmp_path / "plan" / "program.py")
    assert json.loads(out) == {"model": "gpt2", "space": {"limits_hit": []}, "program": program}
    assert "loud Python" in err and "loud C" in err
    assert (tmp_path / "plan" / "program.py").exists()


SMALL = ("plan", "mlp", "--small", "--machine", "cpu")


def summary(partita: Run, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    found, out, err = partita(*arguments, "--json")
    assert found == code, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_a_plan_and_what_is_said_of_it(partita: Run, tmp_path: Path) -> None:
    plain = summary(partita, *SMALL)
    assert (plain["status"], plain["gap"], plain["program"], plain["sequence"]) == ("optimal", 0, None, None)
    assert set(plain["seconds"]) == {"capture", "formulate", "solve", "confirm", "emit", "total"}
    parts = sum(spent for part, spent in plain["seconds"].items() if part != "total")
    assert parts == pytest.approx(plain["seconds"]["total"], rel=0.1)
    assert plain["space"]["axis_order"] == "every order"
    kept = summary(partita, *SMALL, "-o", tmp_path / "plan")
    assert kept["program"] == str(tmp_path / "plan" / "program.py") and Path(kept["program"]).is_file()
    assert kept | {"seconds": 0, "program": 0} == plain | {"seconds": 0, "program": 0}


def test_a_plan_for_several_machines(partita: Run) -> None:
    found = summary(partita, "plan", "mlp", "--small", "--machine", "dgx-a100,dgx-h100")
    assert [each["name"] for each in found["machines"]] == ["dgx-a100", "dgx-h100"]
    assert found["objective_ns"] == max(each["objective_ns"] for each in found["machines"])
    assert found["bound_ns"] == max(each["bound_ns"] for each in found["machines"])
    parts = sum(spent for part, spent in found["seconds"].items() if part != "total")
    assert parts == pytest.approx(found["seconds"]["total"], rel=0.1)
    code, out, _ = partita("plan", "mlp", "--small", "--machine", "dgx-a100,dgx-h100")
    assert code == 0 and "planned for the worst of dgx-a100 and dgx-h100" in out.splitlines()[0]


def test_the_sequence_is_the_model_s_own_unless_given(partita: Run) -> None:
    arguments = ("plan", "llama-7b", "--small", "--hierarchy", "1")
    assert summary(partita, *arguments)["sequence"] == 8
    assert summary(partita, *arguments, "--sequence", "6")["sequence"] == 6


def test_no_plan_in_time_is_an_answer(partita: Run, tmp_path: Path) -> None:
    found = summary(partita, *SMALL, "--time-limit", "0.000001", "-o", tmp_path / "plan", code=1)
    assert (found["status"], found["objective_ns"], found["gap"], found["program"]) == ("unknown", None, None, None)
    assert found["bound_ns"] > 0 and found["space"]["limits_hit"] == ["time"]
    assert set(found) == set(summary(partita, *SMALL))
    assert not (tmp_path / "plan").exists()
    code, out, err = partita(*SMALL, "--time-limit", "0.000001")
    assert (code, out) == (1, "") and "no plan was found" in err


def test_a_model_that_fits_no_placement_is_refused_with_what_is_missing(partita: Run) -> None:
    code, out, err = partita("plan", "mlp", "--machine", "cpu", "--nodes", "1", "--json")
    assert (code, out) == (2, "") and "GiB are missing" in err


def test_what_does_not_fit_is_priced_as_if_it_did(partita: Run, tmp_path: Path) -> None:
    """Also the planner's own plan, on a machine on which none fits."""
    text = (resources.files("partita.model.machine.presets") / "dgx-a100.yaml").read_text()
    (tmp_path / "tiny.yaml").write_text(re.sub(r"memory_bytes: \{value: \w+", "memory_bytes: {value: 2000009000", text))
    command = "price", "mlp", "--small", "--machine", tmp_path / "tiny.yaml", "--hierarchy", "1x2"
    code, out, err = partita(*command)
    assert (code, err) == (1, "") and "It does not fit: a device has 8.79 KiB for a plan." in out
    assert "The planner's own plan does not fit.\n" in out
    code, out, _ = partita(*command, "--unequal-stages", "--schedule", "all", "--json")
    found = json.loads(out)
    assert (code, found["priced"]["fits"], found["planned"]["fits"]) == (1, False, False)
    assert found["priced"]["schedule"] in ("1f1b", "eager-1f1b", "gpipe") and found["priced"]["step_ns"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [("", "--pp 3"), ("--tp 2", "--tp 2 with 3 stages")],
)
def test_stages_to_price_divide_the_devices(partita: Run, options: str, words: str) -> None:
    code, out, err = partita("price", "mlp", "--small", "--hierarchy", "4", "--pp", "3", *options.split())
    assert (code, out, err) == (2, "", f"partita: {words} does not divide 4 devices\n")


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Interrupt the search when it asks for another network than the first ones."""
    whole, asked = PlanningProblem.encoding, 0

    def encoding(self: PlanningProblem, *arguments: Any, **named: Any) -> Encoding:
        nonlocal asked
        asked += 1
        if asked > after:
            raise KeyboardInterrupt
        return whole(self, *arguments, **named)

    monkeypatch.setattr(PlanningProblem, "encoding", encoding)


def test_interrupted_before_any_plan(partita: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, after=0)
    code, out, err = partita(*SMALL, "--json")
    assert code == 130 and "interrupted before any plan was found" in err
    found = json.loads(out)
    assert found["status"] == "unknown" and found["space"]["limits_hit"] == ["interrupt"]


def test_interrupted_with_a_plan(partita: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    interrupt(monkeypatch, after=1)
    found = summary(partita, *SMALL, "--mesh", "4", "-o", tmp_path / "plan", code=130)
    assert found["status"] == "feasible" and found["space"]["limits_hit"] == ["interrupt"]
    assert Plan.load(tmp_path / "plan").report["objective_ns"] == found["objective_ns"] >= found["bound_ns"]


def test_the_words_of_a_plan_are_few(partita: Run) -> None:
    code, out, _ = partita("plan", "llama-7b", "--small", "--machine", "cpu", "--no-overlap")
    assert code == 0 and "layers.0-1.up " in out and "layers.1." not in out
    assert len(out.splitlines()) < 70


@pytest.mark.parametrize("option", ["-o", "--save-network"])
def test_an_empty_path_is_refused(partita: Run, option: str) -> None:
    code, out, err = partita(*SMALL, option, "")
    assert (code, out) == (2, "") and "empty" in err


def test_replacing_a_plan_is_told(partita: Run, play: Callable[..., None], tmp_path: Path) -> None:
    play("partita.codegen.planner.planner", plan=lambda *given, **more: Planned())
    assert "replacing" not in partita(*SMALL, "-o", tmp_path / "plan")[2]
    (tmp_path / "plan" / "plan.json").touch()
    (tmp_path / "plan" / "program.py").unlink()
    assert f"replacing the plan in {tmp_path / 'plan'}" in partita(*SMALL, "-o", tmp_path / "plan")[2]


def test_a_saved_network_is_what_its_name_says(partita: Run, tmp_path: Path) -> None:
    for name, opened in (("n.json", open), ("n.json.gz", gzip.open)):
        summary(partita, *SMALL, "--mesh", "4", "--micro-batches", "1", "--save-network", tmp_path / name)
        with opened(tmp_path / name, "rt") as text:
            assert read_network(json.load(text)).variables
    assert partita("solve", tmp_path / "n.json.gz")[0] == 0


def test_help_names_every_dtype(partita: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    words = re.sub(r"-\n\s+", "-", partita("plan", "--help")[1]).split()
    assert {dtype for dtype in DTYPES if any(word.strip(".,;") == dtype for word in words)} == set(DTYPES)
    assert "ranks." in words


def raise_(error: BaseException) -> Any:
    raise error


def test_what_the_user_can_mend_is_one_line(partita: Run, play: Callable[..., None]) -> None:
    play(
        "partita.codegen.planner.planner",
        plan=lambda *given, **more: raise_(PartitaError("no machine\n  named 'x'")),
    )
    assert partita("plan", "gpt2", "--machine", "x", "--json") == (2, "", "partita: no machine named 'x'\n")


def test_bugs_are_not_hidden(partita: Run, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    play("partita.codegen.planner.planner", plan=lambda *given, **more: raise_(ValueError("a bug")))
    monkeypatch.setattr(sys, "argv", ["partita", "plan", "gpt2", "--machine", "cpu"])
    with pytest.raises(ValueError, match="a bug"):
        main()


def test_interrupted(partita: Run, play: Callable[..., None]) -> None:
    play("partita.codegen.planner.planner", plan=lambda *given, **more: raise_(KeyboardInterrupt()))
    code, out, err = partita("plan", "gpt2", "--machine", "cpu", "--json")
    assert (code, out, err) == (130, "", f"partita: {EARLY}\n")


def test_an_unwritable_output_is_refused_before_the_search(
    partita: Run, play: Callable[..., None], tmp_path: Path
) -> None:
    play("partita.codegen.planner.planner", plan=lambda *given, **more: raise_(AssertionError("searched")))
    (tmp_path / "plan").touch()
    code, out, err = partita("plan", "gpt2", "--machine", "cpu", "-o", tmp_path / "plan")
    assert (code, out) == (2, "") and "not a folder" in err


@pytest.mark.parametrize(
    "arguments",
    [
        "plan",
        "plan gpt2",
        "plan gpt2 --machine cpu --mesh 8by8",
        "plan gpt2 --machine cpu --mesh 0",
        "plan gpt2 --machine cpu --nodes x",
        "plan gpt2 --machine cpu --time-limit nan",
        "plan gpt2 --machine cpu --fix a",
        "plan gpt2 --machine cpu --no-such-option",
        "plan gpt2 --machine cpu --rewrite-alpha 2",
        "plan gpt2 --machine dgx-a100,gcp-a100",
        "plan gpt2 --machine dgx-a100,dgx-a100",
        "plan gpt2 --machine dgx-a100,",
        "price gpt2 --machine dgx-a100,dgx-h100 --dp 8",
        "plan --rewrite all",
        "verify",
        "verify plan --level clouds",
        "verify plan --ranks 0",
        "solve missing.json",
        "solve . --json",
        "no-such-command",
    ],
)
def test_bad_input(partita: Run, arguments: str) -> None:
    code, out, err = partita(*arguments.split())
    assert (code, out) == (2, "") and err and "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--chunks", "two", "'two': a whole number is needed"),
        ("--nodes", "1.5", "'1.5': a whole number is needed"),
        ("--time-limit", "3s", "'3s': a number is needed"),
        ("--rewrite-rounds", "0", "'0': a whole number from 1 is needed"),
    ],
)
def test_a_wrong_number_is_repeated(partita: Run, option: str, text: str, words: str) -> None:
    code, _, err = partita("plan", "gpt2", "--machine", "cpu", option, text)
    assert code == 2 and f"Invalid value for '{option}': {words}" in err


@pytest.mark.parametrize("ok", [True, False])
def test_verify(partita: Run, play: Callable[..., None], ok: bool) -> None:
    def verify(folder: Path, ranks: int | None, level: str) -> dict[str, Any]:
        return {"ok": ok, "ranks": ranks, "folder": str(folder), "level": level}

    play("partita.codegen.verification.verify", verify=verify)
    code, out, _ = partita("verify", "plan", "--ranks", "4", "--level", "pool", "--json")
    assert (code, json.loads(out)) == (1 - ok, {"ok": ok, "ranks": 4, "folder": "plan", "level": "pool"})
    code, out, _ = partita("verify", "plan")
    assert code == 1 - ok and out.splitlines()[0] == f"ok      {ok}" and "threads" in out


def test_show(partita: Run, play: Callable[..., None]) -> None:
    play("partita.codegen.report.show", show=lambda folder, html, trace: f"{folder} {html} {trace}")
    assert partita("show", "plan", "--html", "page.html") == (0, "plan page.html None\n", "")


def test_show_operators(partita: Run) -> None:
    code, out, err = partita("show", "mlp", "--operators", "--small", "--batch", "4")
    assert (code, err) == (0, "")
    assert "8 operators" in out.splitlines()
    assert "  layers.0  linear    4x48    batch 4, o 48, i 48" in out.splitlines()
    assert "  layers.1 to layers.3, each as layers.0" in out.splitlines()
    code, out, _ = partita("show", "mlp", "--operators", "--small", "--json")
    found = json.loads(out)
    assert (code, sorted(found)) == (0, ["batch", "inputs", "model", "operators", "parameters"])
    assert [entry["name"] for entry in found["parameters"]] == [
        f"layers.{i}.{x}" for i in range(4) for x in ("weight", "bias")
    ]
    assert found["operators"][0]["dims"][1] == {
        "name": "o", "size": 48, "tensors": [["layers.0.weight", 0, 0], ["layers.0.bias", 0, 0], ["layers.0", 1, 0]]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mlpp --operators", "did you mean mlp"),
        ("mlp --operators --pcg", "--html, --trace and --pcg are of a plan"),
        ("mlp --small", "--small is of a model: give --operators too"),
        ("mlp --batch-dim 0", "--batch-dim is of a model: give --operators too"),
        ("mlp --operators --sequence 8", "mlp has no sequence"),
        ("mlp --operators --batch 0", "--batch 0: a whole number from 1"),
        ("none.py:f --operators", "no file 'none.py'"),
    ],
)
def test_what_show_refuses(partita: Run, words: str, said: str) -> None:
    code, out, err = partita("show", *words.split())
    assert (code, out, said in err, "Traceback" in err) == (2, "", True, False), err


EXAMPLE = json.loads((Path(__file__).parent / "data/contest_example.json").read_text())["problem"]
KEYS = {"status", "objective", "bound", "gap", "seconds", "seconds_reading", "source", "words", "assignment", "proof"}


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (tmp_path / "example.json.gz").write_bytes(gzip.compress(json.dumps({"problem": EXAMPLE}).encode()))
    return tmp_path / "example.json.gz"


@pytest.fixture
def solved_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Put a solver in place that gives this answer, and keep the limits that it is given."""

    def put(status: str, assignment: tuple[int, ...] | None, objective: int | None, words: str = "") -> list[Any]:
        from partita.solvers.protocol import Solution, Status

        seen: list[Any] = []

        class Played:
            def accepts(self, network: object) -> bool:
                return True

            def solve(self, network: object, limits: Any) -> Solution:
                seen.append(limits)
                return Solution(Status[status], assignment, objective, 7, 0.5, "played", words)

        monkeypatch.setattr("partita.solvers.backends.instance.solver", lambda name: Played())
        return seen

    return put


def test_solve_writes_a_contest_s_choice(partita: Run, example: Path) -> None:
    out = example.with_name("choice")
    code, text, _ = partita("solve", example, "-o", out)
    assert code == 0 and out.read_text() == "[0, 0, 2, 1, 0]\n"
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line.strip())
    assert (lines["objective"], lines["evaluated"], lines["output"]) == ("445", "445", str(out))
    assert "assignment" not in lines and lines["source"]
    code, text, _ = partita("solve", example, "--json")
    answer = json.loads(text)
    assert set(answer) == KEYS | {"evaluated"} and answer["assignment"] == [0, 0, 2, 1, 0]


def test_solve_writes_a_network_s_choice(partita: Run, tmp_path: Path) -> None:
    network = Network((Variable("a", np.array([3, 2]), np.zeros((2, 0), np.int64)),))
    (tmp_path / "n.json").write_text(json.dumps(network_json(network)))
    code, out, _ = partita("solve", tmp_path / "n.json", "--json", "--output", tmp_path / "choice")
    assert code == 0 and set(json.loads(out)) == KEYS | {"output"}
    assert (tmp_path / "choice").read_text() == "[1]\n"


@pytest.mark.parametrize(
    ("status", "assignment", "expected"),
    [("OPTIMAL", (0, 0, 2, 1, 0), 0), ("INFEASIBLE", None, 1), ("UNKNOWN", None, 1)],
)
def test_solve_says_what_became_of_it(
    partita: Run,
    example: Path,
    solved_as: Callable[..., list[Any]],
    status: str,
    assignment: tuple[int, ...] | None,
    expected: int,
) -> None:
    seen = solved_as(status, assignment, None if assignment is None else 445)
    out = example.with_name("choice")
    out.write_text("old")
    code, text, _ = partita("solve", example, "--time-limit", "2", "--gap", "0.1", "--json", "-o", out)
    answer = json.loads(text)
    assert (code, answer["status"], answer["source"]) == (expected, status.lower(), "played")
    assert answer["assignment"] == (None if assignment is None else list(assignment))
    assert out.read_text() == ("old" if assignment is None else "[0, 0, 2, 1, 0]\n")
    assert 0 < seen[0].seconds < 2 and seen[0].gap == 0.1  # what reading took is gone
    assert answer["seconds"] >= answer["seconds_reading"] >= 2 - seen[0].seconds - 0.1


@pytest.mark.parametrize(("choice", "cost"), [((0, 0, 2, 1, 0), 444), ((0, 0, 1, 1, 0), 415)])
def test_solve_believes_no_solver(
    partita: Run,
    example: Path,
    solved_as: Callable[..., list[Any]],
    choice: tuple[int, ...],
    cost: int,
) -> None:
    """A wrong price, or a choice that does not fit, is said so, and nothing is kept of it."""
    solved_as("FEASIBLE", choice, cost)
    out = example.with_name("choice")
    code, _, err = partita("solve", example, "-o", out)
    assert (code, "the answer of auto does not hold" in err) == (2, True)
    assert not out.exists()


def test_an_interrupt_of_solve_keeps_the_best(
    partita: Run, example: Path, solved_as: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    solved_as("FEASIBLE", (0, 0, 2, 0, 0), 545, "interrupted")
    out = example.with_name("choice")
    assert partita("solve", example, "-o", out)[0] == 130
    assert out.read_text() == "[0, 0, 2, 0, 0]\n"

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.solvers.backends.instance.read_instance", interrupted)
    code, text, err = partita("solve", example)
    assert (code, text) == (130, "") and "before there was an answer" in err


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "not a cost network"),
        (json.dumps({"problem": EXAMPLE | {"usage_limit": -1}}).encode(), "problem.usage_limit is -1"),
        (json.dumps({"problem": {}}).encode(), "problem.nodes is missing"),
    ],
)
@pytest.mark.parametrize("cut", [0, 9, 40])
def test_solve_refuses_what_it_cannot_read(partita: Run, tmp_path: Path, raw: bytes, words: str, cut: int) -> None:
    packed = gzip.compress(raw + b" " * 100)
    (tmp_path / "a.json.gz").write_bytes(packed[: len(packed) - cut])
    code, out, err = partita("solve", tmp_path / "a.json.gz", "-o", tmp_path / "choice")
    assert (code, out) == (2, "") and (cut or words in err) and len(err.splitlines()) == 1
    assert not (tmp_path / "choice").exists()


def test_solve_says_early_where_it_could_not_write(
    partita: Run, example: Path, solved_as: Callable[..., list[Any]]
) -> None:
    seen = solved_as("OPTIMAL", (0, 0, 2, 1, 0), 445)
    for bad in (example.parent, example.parent / "no" / "choice", example / "choice"):
        code, out, err = partita("solve", example, "-o", bad)
        assert (code, out) == (2, "") and "cannot write" in err and not seen


def test_version(partita: Run) -> None:
    from partita import __version__

    assert partita("--version") == (0, f"partita {__version__}\n", "")
