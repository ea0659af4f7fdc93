"""`partita check`: a plan of one's own is validated, kept, verified and shown; what is wrong with it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]

PIPELINE = """
from partita import op_assign, op_order, op_trans, split, stages

MODEL, DEVICES, BATCH = "mlp", 2, 4


def plan(graph, devices):
    for op in graph.forward:
        op_trans(op, split("batch", 2, "micro"))
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
"""

WRONG = PIPELINE + "    op_order(parts[1], parts[0])\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PIPELINE)
    return path


def test_a_plan_is_kept_verified_and_shown(partita: Run, file: Path, tmp_path: Path) -> None:
    code, out, _ = partita("check", file, "--json", "-o", tmp_path / "kept")
    found = json.loads(out)
    assert (code, found["ok"], found["conflicts"], found["devices"]) == (0, True, [], 2)
    assert found["tasks"] > 20
    assert found["step_ns"] > 0 < found["memory_bytes"]
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "plan.json", "plan.py", "program.py", "trace.json"
    }  # fmt: skip
    code, out, _ = partita("verify", tmp_path / "kept", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    code, out, _ = partita("show", tmp_path / "kept", "--trace", tmp_path / "trace.json")
    assert code == 0
    assert "2 devices" in out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    code, _, err = partita("show", tmp_path / "kept", "--pcg")
    assert (code, "no PCG" in err) == (2, True)
    code, _, err = partita("show", tmp_path / "kept", "--html", tmp_path / "page.html")
    assert (code, "no page" in err) == (2, True)
    code, _, err = partita("verify", tmp_path / "kept", "--ranks", "3")
    assert (code, "is for 2 ranks, not 3" in err) == (2, True)


def test_a_device_that_there_is_not(partita: Run, file: Path) -> None:
    file.write_text(PIPELINE + "    op_assign(parts[1][0], 100)\n")
    code, out, err = partita("check", file)
    assert (code, err) == (1, "")
    assert out.splitlines()[1].endswith("(micro 1/2) is assigned to device 100, of devices 0 to 1")
    assert len(out.splitlines()) == 2


def test_errors_name_the_line_and_the_primitive(partita: Run, file: Path) -> None:
    four = PIPELINE.replace("import ", "import place, ").replace('"batch", 2', '"batch", 4')
    file.write_text(four + "    place(graph, 'layers.0.wieght', None, [0])\n")
    code, out, err = partita("check", file)
    assert (code, out) == (2, "")
    assert err.startswith(
        "partita: mine.py:13: place(graph, 'layers.0.wieght', None, [0]): no parameter 'layers.0.wieght'"
    )
    assert "; did you mean layers.0.weight" in err
    code, _, err = partita("check", file, "--batch", "5")
    said = "micro: layers.0 forward has 5 entries there, too few for 4 parts: of 2 each, the last would be empty"
    assert (code, err) == (2, f'partita: mine.py:9: op_trans(op, split("batch", 4, "micro")): {said}\n')


def test_a_line_in_a_file_that_the_plan_imports(partita: Run, file: Path) -> None:
    (file.parent / "cuts_of_mine.py").write_text(
        "from partita import op_trans, split\n\ndef cut(op):\n    op_trans(op, split('batch', 3))\n"
    )
    file.write_text("from cuts_of_mine import cut\n" + PIPELINE + "    cut(parts[0][0])\n")
    code, _, err = partita("check", file)
    assert (code, "cuts_of_mine.py:4: op_trans(op, split('batch', 3)): " in err) == (2, True), err


def test_many_conflicts_are_cut_and_counted(partita: Run, file: Path) -> None:
    file.write_text(PIPELINE.replace('split("batch", 2', 'split("batch", 4').replace("op_assign(ops, device)", "pass"))
    code, out, _ = partita("check", file)
    assert (code, len(out.splitlines())) == (1, 24)
    every = json.loads(partita("check", file, "--json")[1])["conflicts"]
    at = 'mine.py:9: op_trans(op, split("batch", 4, "micro")): '
    assert every[0] == f"{at}layers.0 forward (micro 1/4) is not assigned to a device"
    assert out.splitlines()[1:] == [*(f"  {line}" for line in every[:22]), f"  and {len(every) - 22} more"]


def test_options_take_the_place_of_constants(partita: Run, file: Path) -> None:
    code, out, _ = partita(
        "check", file, "--devices", "3", "--batch", "6", "--hierarchy", "2x2", "--optimizer", "sgd", "--json"
    )
    found = json.loads(out)
    assert (code, found["devices"], found["batch"], found["optimizer"]) == (0, 3, 6, "sgd")
    assert found["machine"] == "adhoc-2x2"


def test_a_factory_without_small_is_built_as_it_is(partita: Run, file: Path, tmp_path: Path) -> None:
    """The small twin of one that has it is the default; to ask for one that there is not is an error."""
    text = """
import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (torch.zeros(4, 8),)


def sized(small=False):
    width = 8 if small else 16
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8)), (torch.zeros(4, 8),)
"""
    (tmp_path / "net.py").write_text(text)
    plan = PIPELINE.replace('"mlp"', f'"{tmp_path / "net.py"}:net"')
    file.write_text(plan)
    code, out, err = partita("check", file, "--json", "--loss", "projection", "-o", tmp_path / "kept")
    assert (code, err, json.loads(out)["ok"]) == (0, "", True)
    assert json.loads((tmp_path / "kept" / "plan.json").read_text())["model"]["small"] is False
    for given, constant in (["--small"], ""), ([], "\nSMALL = True\n"):
        file.write_text(plan + constant)
        code, _, err = partita("check", file, *given)
        assert code == 2 and "net takes no 'small'; leave out --small, and SMALL in a plan's file" in err
    file.write_text(plan.replace(":net", ":sized"))
    code, out, _ = partita("check", file, "--json", "--loss", "projection", "-o", tmp_path / "sized")
    assert (code, json.loads((tmp_path / "sized" / "plan.json").read_text())["model"]["small"]) == (0, True)


def test_conflicts_are_an_answer(partita: Run, file: Path, tmp_path: Path) -> None:
    file.write_text(WRONG)
    code, out, _ = partita("check", file, "--json", "-o", tmp_path / "kept")
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    assert any("mine.py:13" in line for line in found["conflicts"])
    assert not (tmp_path / "kept").exists()
    code, out, _ = partita("check", file)
    assert code == 1
    assert "the plan cannot run; conflicts:" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", "SyntaxError"),
        ("x = 1", "has no function plan(graph, devices)"),
        ("def plan(graph, devices): pass", "defines no MODEL"),
        ('MODEL = "mlp"\ndef plan(graph, devices): pass', "defines no DEVICES"),
        ('MODEL, DEVICES = "mlp", 0\ndef plan(graph, devices): pass', "DEVICES = 0 is no positive number"),
        ('MODEL, DEVICES = "mlp", 2\ndef plan(graph, devices): return 1 / 0', "ZeroDivisionError at line 2"),
        ('MODEL, DEVICES = "mlp", 2\ndef plan(graph, devices): graph.foward', "'foward'; did you mean forward?"),
        ('MODEL, DEVICES = "mlp", 2\ndef plan(graph, devices): grap', "'grap' is not defined; did you mean graph?"),
        ("from partita import op_tran", "did you mean op_trans?"),
        ('MODEL, DEVICES = "mlpp", 2\ndef plan(graph, devices): pass', "no model 'mlpp'"),
        ('MODEL, DEVICES = "mlp", 2\ndef plan(graph, devices): raise SystemExit(3)', "SystemExit at line 2"),
    ],
)
def test_bad_input(partita: Run, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    code, out, err = partita("check", file)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_too_few_devices_or_no_file(partita: Run, file: Path, tmp_path: Path) -> None:
    code, _, err = partita("check", tmp_path / "none.py")
    assert (code, "no file" in err) == (2, True)
    code, _, err = partita("check", file, "--devices", "4", "--hierarchy", "2")
    assert (code, "is for 4 devices" in err) == (2, True)
    assert partita("check", file, "--batch", "3")[0] == 0  # of two samples and one
    for option, value, said in (
        ("--optimizer", "lion", "'lion'"),
        ("--dtype", "float8", "'float8'"),
        ("--nodes", "2", "give --machine NAME"),
        ("--output", file, "it is not a folder"),
    ):
        code, out, err = partita("check", file, option, value)
        assert (code, out, said in err) == (2, "", True), err


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format", 99, "format 99; this version reads format 1"),
        ("optimizer", "lion", "'lion'"),
        ("model", {"reference": 3}, "does not say how to build its module"),
        ("graph", [], "'graph' is missing or malformed"),
        ("summary", {}, "lacks the number of devices"),
    ],
)
def test_a_kept_plan_that_was_altered(
    partita: Run, file: Path, tmp_path: Path, key: str, value: object, said: str
) -> None:
    folder = tmp_path / "kept"
    assert partita("check", file, "-o", folder)[0] == 0
    kept = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(kept | {key: value}))
    code, out, err = partita("verify", folder)
    assert (code, out, said in err) == (2, "", True), err
