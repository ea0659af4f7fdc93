"""What `partita plan` accepts."""

from __future__ import annotations

from typing import Any

import pytest

from partita import PartitaError
from partita.codegen.planner.request import PlanRequest, parse_fix, parse_sizes


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
    "given",
    [
        {"machine": "cpu"},
        {"hierarchy": (1, 4)},
        {"machine": "summit", "nodes": 4, "mesh": (8, 3)},
        {"machine": "cpu", "hierarchy": (2, 4), "mesh": (4, 2)},
        {"hierarchy": (1,), "mesh": (1,)},
        {"machine": "cpu", "batch": 8, "micro_batches": 4, "sequence": 1, "time_limit": 0.5},
        {"machine": "cpu", "dtype": "bfloat16", "optimizer": "adamw"},
        {"machine": "cpu", "recompute": "selective"},
        {"machine": "cpu", "fix": (("a", "b"), ("a", "b"))},
    ],
)
def test_accepted(given: dict[str, Any]) -> None:
    request = PlanRequest(model="gpt2", **given)
    assert {name: getattr(request, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"machine": None}, "--machine NAME or --hierarchy"),
        ({"model": " "}, "name is empty"),
        ({"nodes": 2, "hierarchy": (2, 4)}, "one of them"),
        ({"nodes": 0}, "--nodes 0"),
        ({"batch": -1}, "--batch -1"),
        ({"batch": 10**30}, "--batch 1000"),
        ({"sequence": 0}, "--sequence 0"),
        ({"micro_batches": 0}, "--micro-batches 0"),
        ({"batch": 6, "micro_batches": 4}, "does not divide"),
        ({"hierarchy": ()}, "1 to 8 sizes"),
        ({"hierarchy": (2, 0)}, "size 0"),
        ({"hierarchy": (1024, 1024, 2)}, "size 2097152"),
        ({"hierarchy": (2,) * 9}, "not 9"),
        ({"mesh": (2, 2, 2, 2)}, "1 to 3 sizes"),
        ({"mesh": (8, 1)}, "splits nothing"),
        ({"mesh": (2, 2), "hierarchy": (2, 4)}, "4 ranks.*8 devices"),
        ({"dtype": "float8"}, "float64, float32"),
        ({"optimizer": "lion"}, "sgd, adam, adamw"),
        ({"recompute": "some"}, "auto, none, full, selective"),
        ({"statistics": "rank"}, "batch, micro-batch, local"),
        ({"time_limit": 0.0}, "--time-limit 0"),
        ({"gap": 1.0}, "--gap 1"),
        ({"time_limit": float("nan")}, "--time-limit nan"),
        ({"time_limit": float("inf")}, "--time-limit inf"),
        ({"fix": (("a", "b"), ("a", "c"))}, "'b' and 'c'"),
    ],
)
def test_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        PlanRequest(**({"model": "gpt2", "machine": "cpu"} | given))
