"""`partita plan` with pipelines: what cannot be meant, what is killed or interrupted, who computes."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from partita import Machine, load_plan, optimize
from partita.formulation.pipeline.schedule import schedule_names
from partita.model.capture.load import load_module
from partita.solvers.cache.store import FILE

from .levels import exhaustive, some

Run = Callable[..., tuple[int, str, str]]
SMALL = ("plan", "gpt2", "--small", "--hierarchy", "2x2")
VIRTUAL = "2 pipeline stages of 4 chunks each are 8 virtual stages: the model can be cut into at most 5"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--stages 3", "3 stages: 2x2 devices can be divided for 2, 4 stages only"),
        ("--stages 2 --chunks 4", VIRTUAL),
        ("--chunks 4", VIRTUAL),
        ("--stages two", "--stages two: auto, or a whole number from 1 is needed"),
        ("--stages 0", "--stages 0: a whole number from 1 to 1048576 is needed"),
        ("--stages 1 --chunks 2", "--chunks needs a pipeline: add --stages N"),
        ("--mesh 4 --chunks 2", "--chunks needs a pipeline: add --stages N"),
        (
            "--schedule zigzag",
            f"--schedule 'zigzag': choose from auto, all, {', '.join(schedule_names())}",
        ),
        (
            "--schedule 1f1b,zero-bubble --chunks 2",
            "--schedule 1f1b,zero-bubble with --chunks 2: interleaved has 2 or more, the others have 1",
        ),
        (
            "--stages 2 --schedule zero-bubble --recompute full",
            "zero-bubble splits backwards, and would recompute segments twice: recompute 'full' needs another schedule",
        ),
        (
            "--schedule interleaved",
            "--schedule interleaved with --chunks 1: interleaved has 2 or more, the others have 1",
        ),
        ("--batch 8 --micro-batches 3", "--batch 8 does not divide into --micro-batches 3"),
        (
            "--stages 2 --chunks 2 --batch 9",
            "interleaved with 2 stages needs a multiple of 2 micro-batches, a batch of 9 has 1, 3, 9 in this model",
        ),
        (
            "--stages 4 --schedule 2bw --batch 2",
            "2bw with 4 stages needs at least 4 micro-batches, a batch of 2 has 1, 2 in this model",
        ),
        (
            "--schedule 2bw --dtype mixed-bfloat16-fp32grad",
            "2bw keeps two versions of the weights: it needs gradients and states next to them and in the same dtype",
        ),
        (
            "--schedule 2bw --dtype mixed-float16",
            "2bw does not scale losses: use mixed-bfloat16 instead of mixed-float16",
        ),
        (
            "--stages 2 --schedule 2bw --offload",
            "2bw keeps two versions of the weights: it needs gradients and states next to them and in the same dtype",
        ),
        ("--stages 2 --mesh 4", "--mesh 4 has 4 ranks in each of 2 stages, the machine has 4 devices"),
        ("--stages 2 --mapping unity-2d", "--mapping is for plans without a pipeline; leave out --stages 2"),
        ("--stages 2 --save-network net.json", "--save-network is for plans without a pipeline; leave out --stages 2"),
        ("--stages 2 --fix nobody=b", "--fix nobody: no operator has such a name"),
        ("--workers 0", "--workers 0: a whole number from 1 to 1024 is needed"),
        ("--workers -1", "--workers -1: a whole number from 1 to 1024 is needed"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: str, words: str, partita: Run, tmp_path: Path) -> None:
    code, out, err = partita(*SMALL, *arguments.split(), "-o", tmp_path / "plan", "--json")
    assert (code, out, err) == (2, "", f"partita: {words}\n")
    assert not list(tmp_path.iterdir())


def planned(partita: Run, *options: str | Path, code: int = 0) -> dict[str, Any]:
    """What a plan says but for its times, and the words beside it."""
    ended, out, words = partita(*SMALL, *options, "--json")
    assert ended == code, words
    found: dict[str, Any] = json.loads(out)
    assert found.pop("seconds") and "program" in found
    del found["program"]
    return found


@pytest.mark.parametrize(
    ("options", "pipeline"),
    some(
        [
            ("--chunks 2", False),  # which a plan without a pipeline lies beside
            ("--stages 2 --chunks 2 --micro-batches 2", True),
            ("--stages 2 --mesh 2 --fix scores=o --gap 0.05", True),
            ("--stages 2 --rewrite --micro-batches 1 --gap 0.05", True),
            ("--stages 2 --schedule gpipe --recompute selective --dtype float32,mixed-bfloat16 --gap 0.1", True),
            ("--stages 2 --schedule zero-bubble --offload --dtype mixed-bfloat16-bf16grad", True),
            ("--stages 2 --schedule all --gap 0.1", True),
            ("--schedule zero-bubble --no-overlap", False),
            ("--stages 2 --solver elimination --time-limit 60 --offload --micro-batches 2", True),
        ]
    ),
)
def test_what_can_be_asked_together(options: str, pipeline: bool, partita: Run) -> None:
    found = planned(partita, *options.split(), "--workers", "1")
    assert found["status"] in ("optimal", "feasible") and found["gap"] < 0.2
    assert ("pipeline" in found["mesh"]) == pipeline


@pytest.mark.parametrize(("model", "operators"), [("mlp", {"linear_relu"}), ("llama-7b", {"part"})])
def test_stages_are_rewritten_each_for_itself(model: str, operators: set[str], partita: Run, tmp_path: Path) -> None:
    options = (model, "--small", "--hierarchy", "2", "--stages", "2", "--micro-batches", "1", "--workers", "1")
    asked = ("--dtype", "float32", "-o", tmp_path, "--json")
    plain, rewritten = (partita("plan", *options, *more, *asked) for more in ((), ("--rewrite",)))
    assert plain[0] == rewritten[0] == 0, rewritten[2]
    slow, fast = json.loads(plain[1]), json.loads(rewritten[1])
    assert fast["objective_ns"] < slow["objective_ns"] and not slow["rewritten"]
    assert operators <= {told["operator"] for told in fast["rewritten"]}
    assert load_plan(tmp_path).verify()["ok"]


def test_steps_that_do_not_wait(partita: Run, tmp_path: Path) -> None:
    """PipeDream-2BW: no step waits, but two versions of weights are kept within memory."""
    options = ("--stages", "2", "--micro-batches", "4", "--workers", "1", "--dtype", "float32", "--json")
    plans = {}
    for name in ("1f1b", "2bw"):
        assert partita(*SMALL, *options, "--schedule", name, "-o", tmp_path / name)[0] == 0
        plans[name] = load_plan(tmp_path / name)
    told, plain = plans["2bw"].report, plans["1f1b"].report
    assert told["status"] == "optimal" and told["objective_ns"] < plain["objective_ns"]
    assert told["memory_bytes"] > plain["memory_bytes"]
    assert plans["2bw"].verify()["ok"]


def test_a_strategy_that_no_stage_can_have_is_told(partita: Run) -> None:
    code, out, err = partita(*SMALL, "--stages", "2", "--fix", "scores=d7")
    assert (code, out) == (2, "") and err.startswith("partita: 'scores' cannot be fixed to d7: give 1 of ")


@pytest.mark.parametrize("stages", ["2", "auto"])
def test_too_little_memory_for_any_plan(stages: str, partita: Run, tmp_path: Path) -> None:
    text = (resources.files("partita.model.machine.presets") / "cpu.yaml").read_text()
    small = tmp_path / "small.yaml"
    small.write_text(re.sub(r"memory_bytes: \{value: \w+", "memory_bytes: {value: 2e9", text, count=1))
    code, out, err = partita(
        "plan", "mlp", "--machine", small, "--nodes", "2", "--stages", stages, "-o", tmp_path / "p"
    )
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert re.fullmatch(r"partita: the model fits no placement on 2 x .* GiB are missing, .*\n", err)
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


# Killed, interrupted, elsewhere

LONG = ("--stages", "2", "--no-overlap")  # dozens of networks


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A search in a process of its own, which has kept some answers in a folder."""
    running = list[subprocess.Popen[str]]()

    def begin(answers: int, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "partita", *SMALL, *LONG, "--cache", str(tmp_path), "--json"]
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        running.append(process)
        until = time.monotonic() + 60
        while kept(tmp_path) < answers and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert process.poll() is None and kept(tmp_path) >= answers
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()


def kept(folder: Path) -> int:
    """How many answers a folder has."""
    if not (folder / FILE).exists():
        return 0
    with closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0])
        except sqlite3.OperationalError:  # it is just being made
            return 0


def gone(session: int, seconds: float = 5) -> bool:
    """Whether no process of a session is left, or soon is."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@exhaustive
def test_a_killed_search_goes_on_to_the_same_plan(
    partita: Run, begun: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """It has kept what it solved until then, written no plan, and left no process behind."""
    whole = planned(partita, *LONG, "--workers", "1", "-o", tmp_path / "whole")
    process = begun(6, "--workers", "1", "-o", "killed")
    process.kill()
    out, _ = process.communicate(timeout=30)
    assert (out, gone(process.pid), (tmp_path / "killed").exists()) == ("", True, False)
    resumed = planned(partita, *LONG, "--workers", "1", "--cache", tmp_path, "-o", tmp_path / "resumed")
    solved, found = (plan["space"].pop("networks_kept") for plan in (whole, resumed))
    assert solved == 0 < 6 <= found < resumed["space"]["networks_solved"]
    assert whole == resumed
    same_plan(tmp_path / "whole", tmp_path / "resumed")


def same_plan(one: Path, other: Path) -> None:
    assert (one / "program.py").read_bytes() == (other / "program.py").read_bytes()
    plans = [json.loads((folder / "plan.json").read_text()) for folder in (one, other)]
    for plan in plans:
        del plan["report"]["seconds"], plan["report"]["space"]["networks_kept"]
    assert plans[0] == plans[1]


def test_an_interrupted_search_tells_its_best_plan(begun: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = begun(20, "--workers", "2", "-o", "plan")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and gone(process.pid) and "Traceback" not in err
    if not out:  # when there was none yet
        assert err == "partita: interrupted before any plan was found\n" and not (tmp_path / "plan").exists()
        return
    found = json.loads(out)
    assert found["space"]["limits_hit"] == ["interrupt"]
    if found["status"] == "feasible":
        assert found["bound_ns"] <= found["objective_ns"] == load_plan(tmp_path / "plan").report["objective_ns"]


def dask() -> AbstractContextManager[Any]:
    from distributed import Client

    client: Any = Client
    return client(processes=True, n_workers=1, threads_per_worker=1, dashboard_address=None)  # type: ignore[no-any-return]


@exhaustive
def test_any_executor_makes_the_same_plan(tmp_path: Path) -> None:
    """In this process, in threads, in processes, on Dask: the same file but for times."""
    module, inputs = load_module("gpt2", small=True, sequence=None)

    def plan(name: str, **settings: Any) -> None:
        made = optimize(
            module, inputs, Machine.adhoc((2, 2)), batch=12, stages=2, overlap=False, cache="none", **settings
        )
        made.save(tmp_path / name)

    plan("alone", workers=1)
    plan("processes", workers=2)
    with ThreadPoolExecutor(3) as threads:
        plan("threads", executor=threads)
    with dask() as client:
        plan("dask", executor=client.get_executor())
    for name in ("processes", "threads", "dask"):
        same_plan(tmp_path / "alone", tmp_path / name)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("5", "5 pipeline stages of 2 chunks each are 10 virtual stages: the model can be cut into at most 5"),
        ("1", "--chunks 2 needs a pipeline, and one device has none"),
    ],
)
def test_the_least_pipeline_of_a_machine_is_named(devices: str, words: str, partita: Run) -> None:
    code, _, err = partita("plan", "gpt2", "--small", "--hierarchy", devices, "--batch", "10", "--chunks", "2")
    assert (code, err) == (2, f"partita: {words}\n")
