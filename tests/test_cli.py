"""The command line around the library: arguments in, one JSON object out, exit codes. The library is played here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from partita import PartitaError
from partita.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def partita(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["partita", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capfd.readouterr())

    return run


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

    def __init__(self, status: str = "optimal") -> None:
        self.status = status

    def __str__(self) -> str:
        return "the plan"

    def summary(self) -> dict[str, Any]:
        print("loud Python")
        os.write(1, b"loud C\n")
        return {"model": "gpt2", "status": self.status, "program": None}

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "program.py").touch()


def test_plan_passes_every_option(partita: Run, play: Callable[..., None]) -> None:
    seen = []

    def plan(request: Any, progress: Any) -> Planned:
        seen.append(request)
        return Planned()

    play("partita.codegen.run", plan=plan)
    options = "--small --machine cpu --hierarchy 2x4 --mesh 4x2 --batch 8 --sequence 16 --dtype float64 --optimizer sgd"
    more = "--solver cpsat --time-limit 2.5 --fix a=b --fix c=d=e --allow-unknown --micro-batches 4"
    code, out, _ = partita("plan", "gpt2", *options.split(), *more.split(), "--save-network", "n.json")
    assert (code, out) == (0, "the plan\n")
    (request,) = seen
    assert {name: getattr(request, name) for name in request.__slots__} == {
        "model": "gpt2",
        "small": True,
        "machine": "cpu",
        "nodes": None,
        "hierarchy": (2, 4),
        "mesh": (4, 2),
        "batch": 8,
        "sequence": 16,
        "dtype": "float64",
        "optimizer": "sgd",
        "solver": "cpsat",
        "time_limit": 2.5,
        "fix": (("a", "b"), ("c", "d=e")),
        "allow_unknown": True,
        "micro_batches": 4,
        "save_network": "n.json",
    }


def test_plan_json_is_alone_on_standard_output(partita: Run, play: Callable[..., None], tmp_path: Path) -> None:
    play("partita.codegen.run", plan=lambda request, progress: Planned())
    code, out, err = partita("plan", "gpt2", "--machine", "cpu", "-o", tmp_path / "plan", "--json")
    assert code == 0
    assert json.loads(out) == {"model": "gpt2", "status": "optimal", "program": str(tmp_path / "plan" / "program.py")}
    assert "loud Python" in err and "loud C" in err
    assert (tmp_path / "plan" / "program.py").exists()


@pytest.mark.parametrize(("status", "expected"), [("optimal", 0), ("feasible", 0), ("infeasible", 1), ("unknown", 1)])
def test_plan_exit_code(partita: Run, play: Callable[..., None], tmp_path: Path, status: str, expected: int) -> None:
    play("partita.codegen.run", plan=lambda request, progress: Planned(status))
    code, out, _ = partita("plan", "gpt2", "--machine", "cpu", "-o", tmp_path / "plan", "--json")
    assert code == expected
    assert json.loads(out)["status"] == status
    assert (tmp_path / "plan").exists() == (expected == 0)


def raise_(error: BaseException) -> Any:
    raise error


def test_what_the_user_can_mend_is_one_line(partita: Run, play: Callable[..., None]) -> None:
    play("partita.codegen.run", plan=lambda request, progress: raise_(PartitaError("no machine\n  named 'x'")))
    assert partita("plan", "gpt2", "--machine", "x", "--json") == (2, "", "partita: no machine named 'x'\n")


def test_bugs_are_not_hidden(partita: Run, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    play("partita.codegen.run", plan=lambda request, progress: raise_(ValueError("a bug")))
    monkeypatch.setattr(sys, "argv", ["partita", "plan", "gpt2", "--machine", "cpu"])
    with pytest.raises(ValueError, match="a bug"):
        main()


def test_interrupted(partita: Run, play: Callable[..., None]) -> None:
    play("partita.codegen.run", plan=lambda request, progress: raise_(KeyboardInterrupt()))
    code, out, _ = partita("plan", "gpt2", "--machine", "cpu", "--json")
    assert (code, out) == (130, "")


def test_an_unwritable_output_is_refused_before_the_search(
    partita: Run, play: Callable[..., None], tmp_path: Path
) -> None:
    play("partita.codegen.run", plan=lambda request, progress: raise_(AssertionError("searched")))
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
    play("partita.codegen.show", show=lambda folder, html, trace: f"{folder} {html} {trace}")
    assert partita("show", "plan", "--html", "page.html") == (0, "plan page.html None\n", "")


@pytest.mark.parametrize(
    ("status", "assignment", "expected"), [("OPTIMAL", (0,), 0), ("INFEASIBLE", None, 1), ("UNKNOWN", None, 1)]
)
def test_solve(
    partita: Run,
    play: Callable[..., None],
    tmp_path: Path,
    status: str,
    assignment: tuple[int, ...] | None,
    expected: int,
) -> None:
    from partita.solvers import protocol

    class Played:
        def accepts(self, network: object) -> bool:
            return network == "the network"

        def solve(self, network: object, limits: protocol.Limits) -> protocol.Solution:
            assert limits.seconds == 2
            return protocol.Solution(protocol.Status[status], assignment, 7 if assignment else None, 7, 0.5, "played")

    play("partita.formulation.network", Network=SimpleNamespace(from_json=lambda data: data["network"]))
    play("partita.solvers.protocol", **vars(protocol) | {"solver": lambda name: Played()})
    (tmp_path / "n.json").write_text('{"network": "the network"}')
    code, out, _ = partita("solve", tmp_path / "n.json", "--time-limit", "2", "--json")
    answer = json.loads(out)
    assert (code, answer["status"]) == (expected, status.lower())
    assert answer["assignment"] == (None if assignment is None else list(assignment))
    assert answer["bound"] == (None if status == "INFEASIBLE" else 7)
    assert set(answer) == {"status", "objective", "bound", "gap", "seconds", "assignment"}


def test_solve_refuses_iopddl_by_name(partita: Run, tmp_path: Path) -> None:
    (tmp_path / "A.json").write_text('{"problem": {"nodes": {}, "edges": {}}}')
    code, _, err = partita("solve", tmp_path / "A.json")
    assert code == 2 and "IOPDDL" in err


def test_version(partita: Run) -> None:
    from partita import __version__

    assert partita("--version") == (0, f"partita {__version__}\n", "")
