"""Saved plans: what is written is read again, and what is damaged is refused with a reason, at once."""

from __future__ import annotations

import ast
import copy
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.plan_file import FORMAT
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.training import Training

from ..levels import example_count, some

Force = Callable[..., Plan]
JUDGED_S = 5.0  # a file of this size takes milliseconds
PAYLOADS = (
    'x"); __import__("os").abort(); ("',
    'x"""; __import__("os").abort(); """',
    '"""\n__import__("os").abort()\n"""',
    "{__import__('os').abort()}",
    "x\\",
)


@cache
def example() -> Plan:
    """The small GPT-2 on 2 x 2 ranks, three micro-batches."""
    module, inputs = load_module("gpt2", small=True)
    graph = capture(module, inputs, batch=12)
    training, space = Training(12, "float32", "adamw"), SearchSpace(mesh=(2, 2), micro_batches=3, stages=1)
    model = {"reference": "gpt2", "small": True, "sequence": None, "batch": 12}
    return plan_graph(graph, Machine.adhoc((2, 2)), training, space, context=Context(model))


def talkative() -> PCG:
    """Operators with words among their attributes."""
    b = Builder(4)
    x = b.add("mul", b.input("x", (4, 6)), b.parameter("block.w", (6,)), shape=(4, 6), path="block")
    c = b.add("compare", x, shape=(4, 6), dtype="bool", relation="gt", value=0.0)
    x = b.add("where", c, x, b.add("gelu", x, shape=(4, 6), approximate="tanh"), shape=(4, 6))
    x = b.add("einsum", x, b.parameter("m", (6, 6)), shape=(4, 6), equation="bi,ij->bj")
    call = (("", ("@", 0)), ("", 1))
    x = b.add("opaque", x, shape=(4, 6), target="aten.logcumsumexp.default", arguments=call, output=None)
    x = b.add("to", x, shape=(4, 6), dtype="float64")
    t = b.add("input", name="t", shape=(4,), dtype="int64", batch_dim=0, high=6)
    return b.build(b.add("cross_entropy", x, t, shape=(), reduction="mean", ignore_index=-100))


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    plan = example()
    for path in (tmp_path / "plan.json", tmp_path / "folder"):
        plan.save(path)
        again = Plan.load(path)
        assert again == plan
        assert again.emit() == plan.emit()
    assert (tmp_path / "folder" / "program.py").read_text() == plan.emit()


def test_what_is_computed_again_is_read_again() -> None:
    """The file names segments only where there are some, and only those that the model has."""
    plan = replace(example(), recompute={"layers.0": "full", "layers.2": "selective"})
    assert Plan.from_json(plan.to_json()) == plan != example()
    assert "recompute" not in example().to_json()
    for wrong, words in (({"layers.3": "full"}, "layers.0, layers.1"), ({"layers.0": "none"}, "none of full")):
        with pytest.raises(PartitaError, match=words):
            Plan.from_json(plan.to_json() | {"recompute": wrong})


def test_a_plan_of_single_samples_is_read_again(tmp_path: Path) -> None:
    """A micro-batch of one: sizes no longer tell which dims count samples, the file does."""
    plan = example()
    training, space = Training(12, "float32", "adamw"), SearchSpace(mesh=(4,), micro_batches=12, stages=1)
    module, inputs = load_module("gpt2", small=True)
    single = plan_graph(
        capture(module, inputs, batch=12), Machine.adhoc((4,)), training, space, context=Context(plan.model)
    )
    assert single.graph.batch == 1
    single.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == single and again.emit() == single.emit()
    verdict = verify(again, steps=2)
    assert verdict["ok"], verdict


def test_forced_plans_are_read_again(tmp_path: Path, force: Force) -> None:
    """Splits of factors of dims, shared layouts, storage flags."""
    for number in range(20):
        plan = force(talkative() if number % 2 else example().graph, (2, 3), random.Random(number))
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan


# Damage


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON document."""
    yield path
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places(data[key], (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


ODD = (
    None, True, -1, 0, 1, 2, 3, 7, 10**6, 10**30, -(2**63), 1.5, float("nan"), float("inf"), 1e308, "", "R", "B", "P",
    "S(0)", "S(1)", "S(9)", "relu", "float16", "\u2028", "x" * 5000, [], [[]], [1], {}, {"format": 1}, [None] * 50,
)  # fmt: skip


def damaged(data: Any, rng: random.Random) -> Any:
    """A copy in which one to three values are gone, replaced, swapped, or there twice."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice([p for p in places(data) if p] or [()])
        if not path:
            return rng.choice(ODD)
        parent, key = at(data, path[:-1]), path[-1]
        value = parent[key]
        kind = rng.randrange(5)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(value, int | float) and not isinstance(value, bool):
            parent[key] = rng.choice((value + 1, value - 1, -value, value * 2, value * 10**9, str(value), float(value)))
        elif kind == 2:
            other = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
            parent[key], parent[other] = parent[other], parent[key]
        elif kind == 3 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(value))
        else:
            parent[key] = rng.choice(ODD)
    return data


def loaded(path: Path) -> Plan | None:
    """The plan, or None where it was refused; anything but a PartitaError, or a long time, fails the test."""
    start = time.process_time()
    try:
        plan = Plan.load(path)
        plan.emit()
    except PartitaError as error:
        assert str(error).strip()
        return None
    finally:
        assert time.process_time() - start < JUDGED_S
    return plan


def test_damaged_values_are_refused_or_harmless(tmp_path: Path, force: Force) -> None:
    """Each mutant is a plan in its own right (it survives being saved again), or a PartitaError."""
    documents = [json.loads(json.dumps(p.to_json())) for p in (example(), force(talkative(), (2,), random.Random(0)))]
    path, refused = tmp_path / "plan.json", 0
    count = example_count(500)
    for number in range(count):
        rng = random.Random(number)
        data = damaged(documents[number % 5 > 1], rng)
        path.write_text(json.dumps(data))
        plan = loaded(path)
        if plan is None:
            refused += 1
            continue
        plan.save(path)
        assert Plan.load(path) == plan, number
    assert refused > count / 2  # the rest changed a number that means nothing to the program


def test_damaged_text_is_refused(tmp_path: Path) -> None:
    text = json.dumps(example().to_json(), indent=1)
    path = tmp_path / "plan.json"
    for number in range(60):
        path.write_text(text[: random.Random(number).randrange(len(text) - 1)])
        assert loaded(path) is None
    for number in range(60):
        rng, raw = random.Random(number), bytearray(text.encode())
        for _ in range(20):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        path.write_bytes(raw)
        loaded(path)
    for content in (b"", b"\x00\xff" * 100, b"[" * 100_000, b"[]", b"null", b"9" * 10_000, b'{"format": 1}'):
        path.write_bytes(content)
        assert loaded(path) is None, content[:20]


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    data = example().to_json() | {"format": FORMAT + 1}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(PartitaError, match=re.escape(f"plan format {FORMAT + 1}")):
        Plan.load(tmp_path / "plan.json")


def test_layouts_of_another_node_are_refused(tmp_path: Path, force: Force) -> None:
    """A choice that no strategy allows is named."""
    data = json.loads(json.dumps(force(example().graph, (2, 2), random.Random(0)).to_json()))
    name = next(n for n, c in data["choices"].items() if c["inputs"] and "S" in c["output"][0])
    data["choices"][name]["output"][0] = "P" if data["choices"][name]["output"][0] != "P" else "R"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(PartitaError, match=f"{re.escape(name)}.*no strategy"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("number", some(range(len(PAYLOADS))))
def test_words_in_a_file_never_become_code(tmp_path: Path, force: Force, number: int) -> None:
    """A payload in place of every string: refused, or text within quotes of the program."""
    path, payload = tmp_path / "plan.json", PAYLOADS[number]
    reached = 0
    for plan in (force(talkative(), (2,), random.Random(1)), example()):
        document = json.loads(json.dumps(plan.to_json()))
        strings = [p for p in places(document) if p and isinstance(at(document, p), str)]
        keys = [p for p in places(document) if p and isinstance(p[-1], str)]
        picked = [*((p, False) for p in strings), *((p, True) for p in keys)]
        if len(picked) > 400:
            picked = random.Random(0).sample(picked, example_count(100))
        for place, of_key in picked:
            data = copy.deepcopy(document)
            parent = at(data, place[:-1])
            if of_key:
                parent[payload] = parent.pop(place[-1])
            else:
                old = parent[place[-1]]
                parent[place[-1]] = payload
                if len(place) == 4 and place[0] == "graph" and place[3] == "name" and old in data["choices"]:
                    data["choices"][payload] = data["choices"].pop(old)
            path.write_text(json.dumps(data))
            mutant = loaded(path)
            if mutant is None:
                continue
            reached += 1
            tree = ast.parse(mutant.emit())
            assert "__import__" not in {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}, place
    assert reached  # some strings are free, as the names of devices


# Wrong numbers of ranks


def test_verify_with_a_wrong_number_of_ranks() -> None:
    with pytest.raises(PartitaError, match="for 4 ranks, not 3"):
        verify(example(), ranks=3)


def test_a_program_in_a_wrong_world_ends_at_once(tmp_path: Path) -> None:
    """One rank, where four were planned: it says so and leaves."""
    program = tmp_path / "program.py"
    example().emit(program)
    script = (
        "import runpy, torch.distributed as dist\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
        "dist.init_process_group = lambda *_: None\n"
        f"runpy.run_path({str(program)!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "planned for 4 ranks, not 1" in done.stderr
    assert "Traceback" not in done.stderr
