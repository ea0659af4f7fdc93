"""What an emitted program looks like: one class for equal layers, a loop, nothing that is not used, formatted."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.codegen.emission.spmd import block_classes
from partita.codegen.emission.templates.counters import dropped, mix, random_bits
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.verification.launch import torchrun
from partita.codegen.verification.threads import RankError, run_threads
from partita.codegen.verification.worker import load_program
from partita.formulation.placement.placement import of_rows
from partita.formulation.strategies.strategy import rows
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, P, R, S
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine

from .beginnings import begun

Judge = Callable[..., dict[str, Any]]
Force = Callable[..., Plan]
# What an operator of a block asks of its first input, and offers, on the second axis.
OVER_TENSOR = {"up": (B, S(1)), "gelu": (S(1), S(1)), "down": (S(1), P)}
GOLDEN = Path(__file__).parent / "golden"


def layers(count: int = 3, p: float = 0.1) -> PCG:
    """Residual feed-forward blocks: x + dropout(down(gelu(up(norm(x)))))."""
    b = Builder(4)
    x, target = b.input("x", (4, 6)), b.input("target", (4, 6))
    x = b.add("mul", x, b.parameter("scale", (6,)), shape=(4, 6), name="scaled")
    for i in range(count):
        path = f"layers.{i}"

        def named(op: str, *inputs: int, shape: tuple[int, ...], name: str, path: str = path, **attributes: Any) -> int:
            return b.add(op, *inputs, shape=shape, name=f"{path}.{name}", path=path, **attributes)

        def linear(x: int, name: str, columns: int, rows: int, path: str = path) -> int:
            w, bias = (
                b.parameter(f"{path}.{name}.weight", (columns, rows)),
                b.parameter(f"{path}.{name}.bias", (columns,)),
            )
            return b.add("linear", x, w, bias, shape=(4, columns), name=f"{path}.{name}", path=f"{path}.{name}")

        scale = b.parameter(f"{path}.norm.weight", (6,))
        h = named("rms_norm", x, scale, shape=(4, 6), name="norm", normalized=1, eps=1e-5)
        h = named("gelu", linear(h, "up", 8, 6), shape=(4, 8), name="gelu", approximate="none")
        h = linear(h, "down", 6, 8)
        if p:
            h = named("dropout", h, shape=(4, 6), name="dropout", p=p, site=i)
        x = named("add", x, h, shape=(4, 6), name="add")
    return b.build(b.add("mse_loss", x, target, shape=(), reduction="mean", name="loss"))


def megatron(graph: PCG, stored: Mapping[str, str] | None = None, **options: Any) -> Plan:
    """Samples over the first axis; over the second the columns of `up` and the rows of `down`, the rest whole."""
    tensor: dict[int, tuple[tuple[int, ...], int]] = {}
    data: dict[int, tuple[tuple[int, ...], int]] = {}
    for index, node in enumerate(graph.nodes):
        found = rows(graph, index)
        if node.op == "parameter":
            continue
        if node.op == "input":
            data[index], tensor[index] = ((), S(0)), ((), R)
            continue
        row = next(r for r in found if r.inputs[0] == S(0))
        data[index] = row.inputs, row.output
        name = node.name.rpartition(".")[2]
        asked, offered = OVER_TENSOR.get(name, (None, B))
        row = next(r for r in found if asked in (None, r.inputs[0]) and r.output == offered)
        tensor[index] = row.inputs, row.output
    choices = []
    for index, node in enumerate(graph.nodes):
        if node.op == "parameter":
            reader = graph.consumers[index][0]
            place = graph.nodes[reader].inputs.index(index)
            letters = [axis[reader][0][place] for axis in (data, tensor)]
            choices.append(Choice((), tuple(B if x == P else x for x in letters), sharded_states=bool(stored)))
            continue
        inputs = tuple(zip(data[index][0], tensor[index][0], strict=True))
        choices.append(Choice(inputs, (data[index][1], tensor[index][1])))
    options = {"dtype": "float32", "model": {"reference": "blocks"}, **options}
    return Plan(
        graph, Machine.adhoc((2, 2)), of_rows([(2, 1), (1, 2)]), options.pop("micro", 1), tuple(choices), **options
    )


def classes(text: str) -> list[str]:
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def test_golden(judge: Judge) -> None:
    plan = begun(megatron(layers()))
    judge(plan)
    assert plan.emit() == (GOLDEN / "blocks.txt").read_text(), "if the change is meant, write the file again"


def test_emission_is_deterministic() -> None:
    assert megatron(layers()).emit() == megatron(layers()).emit()


def test_equal_layers_share_a_class_and_a_loop() -> None:
    text = megatron(layers(5)).emit()
    assert classes(text).count("Layer") == 1
    assert "for layer in self.layers:" in text
    assert "nn.ModuleList(Layer(mesh, dtype, i) for i in range(5))" in text
    assert len(text.splitlines()) == len(megatron(layers(9)).emit().splitlines())


def test_what_is_not_used_is_not_emitted() -> None:
    text = megatron(layers(p=0)).emit()
    for word in ("dropout", "exchange", "embed_rows", "regathered", "loss_scale", "micro"):
        assert word not in text.replace("MICRO_BATCHES", ""), word


@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16", "mixed-float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_precisions_and_optimizers(judge: Judge, dtype: str, optimizer: str) -> None:
    plan = megatron(layers(2), {"states": "sharded"}, dtype=dtype, optimizer=optimizer, micro=2)
    assert "self.part = nn.Parameter" in plan.emit()
    assert judge(plan)["ok"]


@pytest.mark.parametrize("seed", range(6))
def test_formatted_and_without_lint(force: Force, tmp_path: Path, seed: int) -> None:
    plan = megatron(layers(), micro=2) if seed == 0 else force(layers(2), (2, 3), random.Random(seed))
    path = tmp_path / "program.py"
    begun(plan).emit(path)
    ruff = [sys.executable, "-m", "ruff"]
    form = subprocess.run(
        [*ruff, "format", "--diff", "--isolated", "--line-length", "120", path], capture_output=True, text=True
    )
    assert form.returncode == 0, form.stdout
    lint = [*ruff, "check", "--isolated", "--line-length", "120", "--select", "E,F,W,B,I", path]
    done = subprocess.run(lint, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_depth_of_a_graph_is_not_depth_of_recursion(force: Force) -> None:
    b = Builder(4)
    x = b.add("mul", b.input("x", (4, 6)), b.parameter("scale", (6,)), shape=(4, 6), name="scaled")
    for op in ("sin", "cos", "tanh") * 150:
        x = b.add(op, x, shape=(4, 6), name=op)
    graph = b.build(b.add("sum", x, shape=(), dims=(0, 1), keepdim=False, name="loss"))
    plan = force(graph, (2,), random.Random(0))
    assert plan.emit().count("torch.sin(") == 150


def test_training_on_a_data_set_is_saved(force: Force, tmp_path: Path) -> None:
    path, data, out = tmp_path / "program.py", tmp_path / "data.pt", tmp_path / "out.pt"
    plan = replace(force(layers(2), (2,), random.Random(0)), dtype="float32")
    begun(plan).emit(path)
    generator = torch.Generator().manual_seed(1)
    whole = {name: torch.randn(plan.batch * 3 + 1, 6, generator=generator) for name in ("x", "target")}
    torch.save(whole, data)
    program = load_program(path)
    for step, start in enumerate((0, 4, 8, 0)):
        batch = program.samples(whole, step)
        assert all(torch.equal(batch[name], whole[name][start : start + 4]) for name in whole)
    with pytest.raises(SystemExit):
        program.samples({name: x[:3] for name, x in whole.items()}, 0)
    assert "step 9: loss" in torchrun(path, 2, ["", str(data), str(out)], timeout=120)
    parameters = {plan.graph.nodes[i].name: plan.graph.nodes[i].shape for i in plan.graph.of("parameter")}
    assert {name: tuple(x.shape) for name, x in torch.load(out).items()} == parameters


@pytest.mark.parametrize("text", [pytest.param(path.read_text(), id=path.stem) for path in GOLDEN.glob("*.txt")])
def test_no_local_name_shadows_a_function_or_class(text: str) -> None:
    tree = ast.parse(text)
    top = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    inside = [n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)]
    local = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    local |= {n.arg for n in inside if isinstance(n, ast.arg)}
    assert sorted(local & top) == []


def test_random_bits_are_those_of_murmur() -> None:
    index = torch.tensor([0, 1, 77, 2**31, 2**32 - 1, 2**32, 5 * 2**40 + 3])
    key = 0
    for k in (3, 1, 4):
        key = mix(key ^ mix(k + 0x9E3779B9))
    plain = [mix(mix((i & 0xFFFFFFFF) ^ key) ^ (i >> 32) ^ key) for i in index.tolist()]
    assert [b & 0xFFFFFFFF for b in random_bits(index, 3, 1, 4).tolist()] == plain
    share = dropped(torch.arange(100_000), 0.3, 0, 1, 2).double().mean()
    assert abs(share - 0.3) < 0.01


def test_a_wrong_number_of_ranks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    megatron(layers(2)).emit(path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(RankError, match="SystemExit: 2"):
        run_threads(lambda _: load_program(path).main(), 1)
    assert "planned for 4 ranks, not 1" in capsys.readouterr().err


def test_no_block_has_the_name_of_another_class() -> None:
    templates = Path(block_classes.__file__).parents[1] / "templates"
    written = re.findall(r"^class (\w+)", "\n".join(path.read_text() for path in templates.rglob("*.jinja")), re.M)
    assert {*written} <= {*block_classes.TAKEN}
