"""What the values that hold the options of `partita plan` accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.planner.planner import plan
from partita.formulation.rewriting.rules import rules_for
from partita.formulation.search_space import EVERYTHING, SearchSpace, parse_fix, parse_mesh, parse_stages
from partita.model.machine.machine_choice import MachineChoice
from partita.model.options import parse_sizes
from partita.model.training import Training, dtype_names
from partita.solvers.budget import UNLIMITED, Budget


@pytest.mark.parametrize(
    ("text", "sizes"), [("8", (8,)), ("2x4", (2, 4)), ("1x4", (1, 4)), ("4,16", (4, 16)), ("002x4", (2, 4))]
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes("--mesh", text) == sizes


@pytest.mark.parametrize(
    "text", ["", "x", "2x", "x2", "2xx4", "2 x 4", "-2x4", "2.0x4", "²", "٢", "0x10x", "9" * 20, "2X4", "2\n"]
)
def test_not_sizes(text: str) -> None:
    with pytest.raises(PartitaError, match="--mesh"):
        parse_sizes("--mesh", text)


def test_fix_splits_at_the_first_equals_sign() -> None:
    assert parse_fix(["a.b = x:S(b)=R ", "c=d"]) == (("a.b", "x:S(b)=R"), ("c", "d"))


@pytest.mark.parametrize("text", ["", "=", "a", "a=", "=b", " = "])
def test_not_a_fix(text: str) -> None:
    with pytest.raises(PartitaError, match="NAME=STRATEGY"):
        parse_fix([text])


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (MachineChoice, {"machine": "cpu"}),
        (MachineChoice, {"hierarchy": (1, 4)}),
        (MachineChoice, {"machine": "summit", "nodes": 4}),
        (MachineChoice, {"machine": "cpu", "hierarchy": (2, 4)}),
        (SearchSpace, {"mesh": (8, 3)}),
        (SearchSpace, {"mesh": (1,)}),
        (Training, {"batch": 8, "sequence": 1}),
        (SearchSpace, {"micro_batches": 4}),
        (Budget, {"time_limit": 0.5}),
        (Training, {"batch": 8, "dtype": "mixed-bfloat16", "optimizer": "adamw"}),
        (SearchSpace, {"recompute": "selective"}),
        (SearchSpace, {"fix": (("a", "b"), ("a", "b"))}),
    ],
)
def test_accepted(value: type, given: dict[str, Any]) -> None:
    made = value(**given)
    assert {name: getattr(made, name) for name in given} == given


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MachineChoice(), "--machine NAME or --hierarchy"),
        (lambda: MachineChoice("cpu", nodes=2, hierarchy=(2, 4)), "one of them"),
        (lambda: MachineChoice("cpu", nodes=0), "--nodes 0"),
        (lambda: MachineChoice(hierarchy=()), "1 to 8 sizes"),
        (lambda: MachineChoice(hierarchy=(2, 0)), "size 0"),
        (lambda: MachineChoice(hierarchy=(1024, 1024, 2)), "size 2097152"),
        (lambda: MachineChoice(hierarchy=(2,) * 9), "not 9"),
        (lambda: plan(" ", MachineChoice("cpu"), {}, EVERYTHING, UNLIMITED), "name is empty"),
        (lambda: plan("gpt2", MachineChoice("cpu"), {"batch": 0}, EVERYTHING, UNLIMITED), "--batch 0"),
        (lambda: plan("mlp", MachineChoice("cpu"), {}, SearchSpace(mesh=(3,)), UNLIMITED), "3 ranks.*4 devices"),
        (lambda: Training(-1), "--batch -1"),
        (lambda: Training(10**30), "--batch 1000"),
        (lambda: Training(8, sequence=0), "--sequence 0"),
        (lambda: Training(8, "float8"), "float64, float32"),
        (lambda: Training(8, "float32,float8"), "'float8'"),
        (lambda: Training(8, optimizer="lion"), "sgd, adam, adamw"),
        (lambda: Training(8, statistics="rank"), "batch, micro-batch, local"),
        (lambda: SearchSpace(micro_batches=0), "--micro-batches 0"),
        (lambda: SearchSpace(micro_batches="auto"), "--micro-batches auto: a whole number"),  # type: ignore[arg-type]
        (lambda: SearchSpace(micro_batches=4).counts(6), "does not divide"),
        (lambda: parse_mesh("2x2x2x2"), "1 to 3 sizes"),
        (lambda: SearchSpace(mesh=(8, 1)), "splits nothing"),
        (lambda: SearchSpace(mesh=(2, 2)).check_devices(8), "4 ranks.*8 devices"),
        (lambda: SearchSpace(mesh=(2, 2), stages=4).check_devices(8), "4 ranks in each of 4 stages.*8 devices"),
        (lambda: SearchSpace(recompute="some"), "auto, all, none, full, selective, parts"),
        (lambda: SearchSpace(fix=(("a", "b"), ("a", "c"))), "'b' and 'c'"),
        (lambda: SearchSpace(stages=parse_stages("0")), "--stages 0"),
        (lambda: SearchSpace(chunks=2, stages=1), "--chunks needs a pipeline"),
        (lambda: SearchSpace(compile=True, recompute="selective"), "--compile.*--recompute full, none or auto"),
        (lambda: SearchSpace(compile=True, schedule="1f1b,zero-bubble"), "--compile with --schedule zero-bubble"),
        (lambda: SearchSpace(compile=True, rules=rules_for(True)), "leave out --rewrite"),
        (lambda: Budget(time_limit=0.0), "--time-limit 0"),
        (lambda: Budget(time_limit=float("nan")), "--time-limit nan"),
        (lambda: Budget(time_limit=float("inf")), "--time-limit inf"),
        (lambda: Budget(gap=1.0), "--gap 1"),
        (lambda: Budget(workers=0), "--workers 0"),
    ],
)
def test_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        make()


def test_a_variant_for_every_dtype_and_schedule() -> None:
    assert [training.dtype for training in Training(8, dtype_names("float32, bfloat16,float32")).each_dtype()] == [
        "float32", "mixed-bfloat16"
    ]  # fmt: skip
    spaces = SearchSpace(schedule="all").each_schedule()
    assert [(space.schedule, space.chunks) for space in spaces] == [("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2)]
    (space,) = SearchSpace(chunks=3).each_schedule()
    assert (space.schedule, space.chunks) == ("interleaved", 3)
