"""Weights that backward gathers again, in operators of which autograd would keep a copy on ranks with some sizes.

All weights are filled with one number, which tells whether what autograd keeps is a weight.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import capture, evenly, op_assign, op_trans, place, split
from partita.codegen.emission.common.regathered_weights import VIEWS, copied
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.plan.spacetime_plan import space_time
from partita.codegen.verification.synthetic import synthetic
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import run, trial
from partita.codegen.verification.worker import load_program
from partita.formulation.placement.placement import Placement
from partita.formulation.spacetime.graph import Graph
from partita.formulation.strategies.strategy import rows
from partita.model.capture.objective import TrainedModule
from partita.model.graph.atoms import atoms
from partita.model.graph.builder import Builder
from partita.model.graph.layout import B, R, S
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine

from .cases.build import leaf

BATCH = 3
MARK = 0.4375  # what weights are filled with

Judge = Callable[..., dict[str, Any]]
Build = Callable[[Builder], int]


def product(op: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], **attributes: Any) -> Build:
    return lambda b: b.add(op, leaf(b, *x), b.parameter("w", w), shape=y, **attributes)


def merged(b: Builder) -> int:
    """Two dims as one: what lies between them in memory is the reason for a copy, unless the first is one wide."""
    w = b.add("permute", b.parameter("w", (3, 4, 5)), shape=(4, 3, 5), dims=(1, 0, 2))
    return b.add("linear", leaf(b, BATCH, 15), b.add("view", w, shape=(4, 15)), shape=(BATCH, 4))


def contiguous(b: Builder) -> int:
    w = b.add("permute", b.parameter("w", (3, 4)), shape=(4, 3), dims=(1, 0))
    return b.add("linear", leaf(b, BATCH, 3), b.add("contiguous", w, shape=(4, 3)), shape=(BATCH, 4))


def turned(b: Builder) -> int:
    """Only a view of the gathered weight is read: the weight itself has no name."""
    w = b.add("permute", b.parameter("w", (3, 4)), shape=(4, 3), dims=(1, 0))
    return b.add("linear", leaf(b, BATCH, 3), w, shape=(BATCH, 4))


def frozen(b: Builder) -> int:
    """A matrix without gradient, which is expanded over the batch as rows of `x` do not lie one after another."""
    x = b.add("permute", leaf(b, BATCH, 3, 4), shape=(BATCH, 4, 3), dims=(0, 2, 1))
    return b.add("linear", x, b.parameter("w", (5, 3), trainable=False), shape=(BATCH, 4, 5))


CASES: dict[str, tuple[Build, int | None, int | None, int]] = {
    # the operator; the dims that are split of its first operand and of the weight; the dim by which that is stored
    "einsum": (product("einsum", (3, 3, 4), (3, 4, 5), (3, 5), equation="bhd,hde->be"), 1, 0, 1),
    "einsum, summed": (product("einsum", (3, 4), (4, 3, 2), (3, 3), equation="bi,ijk->bj"), None, 1, 0),
    "einsum, diagonal": (product("einsum", (3, 3), (3, 3, 4), (3, 4), equation="bi,iij->bj"), None, 2, 0),
    "matrices": (product("matmul", (3, 2, 5, 4), (2, 4, 3), (3, 2, 5, 3)), 0, None, 1),
    "one for many": (product("matmul", (3, 2, 5, 4), (1, 4, 3), (3, 2, 5, 3)), 0, None, 1),
    "folded": (product("matmul", (3, 4), (3, 4, 5), (3, 3, 5)), None, 0, 1),
    "merged": (merged, 1, 0, 1),
    "contiguous": (contiguous, 1, 0, 1),
    "turned": (turned, 0, None, 1),
    "frozen": (frozen, 0, None, 1),
}


def planned(name: str) -> Plan:
    """On two ranks with parts of unequal size; whole, where the case does not say otherwise."""
    build, of_x, of_w, stored = CASES[name]
    b = Builder(BATCH)
    y = build(b)
    graph = b.build(b.add("projection", y, shape=(), site=0))
    letters: dict[int, int] = {}  # in which what the operator reads is given
    choices = []
    for index, node in enumerate(graph.nodes):
        if node.op in ("input", "parameter"):
            choices.append(Choice((), (B if node.gradient else R,)))
            if node.name == "w":
                letters[index] = split_along(graph, index, of_w)
                choices[-1] = Choice((), (split_along(graph, index, stored),), regather=True)
            continue
        shows_weight = node.inputs[0] in letters and node.op in VIEWS
        asked = [letters.get(i, B if graph.nodes[i].gradient else R) for i in node.inputs]
        if index == y:
            asked[0] = split_along(graph, node.inputs[0], of_x)
        given = B if node.gradient else R
        legal = [row for row in rows(graph, index) if list(row.inputs[: len(asked)]) == asked and not row.special]
        row = next((row for row in legal if row.output == given and not shows_weight), legal[0])
        choices.append(Choice(tuple((letter,) for letter in row.inputs), (row.output,)))
        if shows_weight:
            letters[index] = row.output
    return Plan(graph, Machine.adhoc((2,)), Placement((2,), ((2,),)), 1, tuple(choices), "float64", "sgd")


def split_along(graph: PCG, index: int, dim: int | None) -> int:
    if dim is None:
        return B if graph.nodes[index].gradient else R
    return S(atoms(graph)[index].of_dim(dim)[0])


@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_on_what_is_gathered_again(name: str, judge: Judge) -> None:
    judge(planned(name))


@pytest.mark.parametrize("name", CASES)
def test_no_weight_is_kept(name: str, tmp_path: Path) -> None:
    """Between forward and backward the gathered weight is nowhere; every rank gathers it once more."""
    plan = planned(name)
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    batch = {name: x.double() for name, x in synthetic(plan.graph, BATCH, 0).items()}

    def step(_: int) -> tuple[int, int]:
        mesh = program.Mesh()
        mesh.step = 0
        model = program.Model(mesh, dtype=torch.float64)
        kept: list[Tensor] = []
        again: list[Any] = []

        def forget(x: Tensor) -> Any:
            found = program.forget(x)
            if found is x:
                kept.append(x)
            return found

        def remember(found: Any) -> Tensor:
            if not isinstance(found, Tensor):
                again.append(found)
            return program.remember(found)  # type: ignore[no-any-return]

        with torch.no_grad():
            for part in model.parameters():
                part.fill_(MARK if part.original == "w" else 1.5)
        with torch.autograd.graph.saved_tensors_hooks(forget, remember):
            loss = model(**program.share(batch, mesh))
        marked = sum(bool((x == MARK).any()) for x in kept)
        loss.backward()
        return marked, len(again)

    assert run_threads(step, 2) == [(0, 1)] * 2


def test_products_that_copy_an_operand() -> None:
    """A product of matrices joins letters: where they lie apart in memory, it needs a copy."""
    assert copied("becd,edf->becf") and copied("xaby,ab->xy")
    assert not any(map(copied, ("bhd,hde->bhe", "bi,ij->bj", "bcd,df->bcf", "bij->bi")))


def test_formatted_and_without_lint(tmp_path: Path) -> None:
    for number, name in enumerate(CASES):
        planned(name).emit(tmp_path / f"program{number}.py")
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,B,I"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", tmp_path]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


class Heads(nn.Module):
    """A matrix a head, between two uses of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 4, 4))
        self.mixed = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.mixed(torch.einsum("bhd,hde->bhe", self.mixed(x), self.w))).sum()


def test_space_time_plans_keep_no_weight_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO-3: a device keeps half of the weight, and fetches the rest for forward and again for backward."""
    module, inputs, devices = Heads(), (torch.zeros(4, 3, 4),), [0, 1]
    graph = Graph(capture(module, inputs))
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", 2)), devices, strict=True):
            op_assign(part, device)
    for op in graph.optimizer:
        place(graph, op.of.name, evenly(op, 2), devices)
    plan = space_time(graph, optimizer="sgd")
    path = tmp_path / "program.py"
    plan.emit(path)
    verdict = run([trial(path, plan.pcg, TrainedModule(module, inputs), 2, 4, "sgd")])[0]
    assert verdict["ok"], verdict

    program, marked, names = load_program(path), list[bool](), list[str]()

    class Hooks(torch.autograd.graph.saved_tensors_hooks):
        """What hooks keep instead of a tensor, looked at."""

        def __init__(self, keep: Callable[[Tensor], Any], back: Callable[[Any], Tensor]) -> None:
            def seen(x: Tensor) -> Any:
                kept = keep(x)
                if isinstance(kept, tuple):
                    names.append(kept[0])
                else:
                    marked.append(bool((kept == MARK).any()))
                return kept

            super().__init__(seen, back)

    monkeypatch.setattr(torch.autograd.graph, "saved_tensors_hooks", Hooks)

    def step(_: int) -> None:
        mesh = program.Mesh()
        model = program.Model(mesh)
        state = {name: x.detach() + 1 for name, x in module.named_parameters()}
        program.load(model, {**state, "w": torch.full((3, 4, 4), MARK)}, mesh)
        program.train_step(model, program.make_optimizer(model, mesh), program.synthetic(0), mesh, 0)

    run_threads(step, 2)
    assert names.count("w") == 2 and marked and not any(marked)
