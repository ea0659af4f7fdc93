"""`partita placements` and `partita reductions`: the published counts, prices as of the library, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files

import pytest

from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.program import Collective, Reduction, Step, flat
from partita.formulation.reduction.ranking import DEFAULT_BYTES, ranking, words
from partita.model.machine.machine import Machine

Run = Callable[..., tuple[int, str, str]]

HEAVY = ("torch", "numpy", "scipy", "numba", "ortools", "z3", "yaml")
GROUPS = json.loads((files("partita.bench.data") / "p2_a100.json").read_text())["groups"]


def joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


# Placements


def test_placements_json(partita: Run) -> None:
    code, out, err = partita("placements", "--hierarchy", "4x16", "--axes", "16,2,2", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["count"] == 4
    assert [[1, 16], [2, 1], [2, 1]] in found["matrices"]


def test_placements_in_words(partita: Run) -> None:
    code, out, _ = partita("placements", "--hierarchy", "2x2", "--axes", "2x1x2")
    assert code == 0
    assert "[1 2] [1 1] [2 1]" in out and "[2 1] [1 1] [1 2]" in out and "2 placements" in out


# Reductions


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize(
    "group", GROUPS, ids=lambda g: f"{g['hierarchy'][0]}-{g['parallelism_axes']}-{g['reduce_axes']}"
)
def test_reductions_count_p2_s_programs(partita: Run, group: dict, algorithm: str) -> None:  # type: ignore[type-arg]
    nodes, axes, reduced = group["hierarchy"][0], group["parallelism_axes"], group["reduce_axes"]
    options = f"--machine gcp-a100 --nodes {nodes} --axes {joined(axes)} --reduce {joined(reduced)}"
    code, out, _ = partita("reductions", *options.split(), "--algorithm", algorithm, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["total"] == group["programs"][algorithm]["total"] == sum(m["programs"] for m in found["matrices"])
    assert sorted(m["matrix"] for m in found["matrices"]) == sorted(row["matrix"] for row in group["rows"])
    assert all(0 < m["optimal_s"] <= m["allreduce_s"] for m in found["matrices"])


def test_seconds_are_the_library_s(partita: Run) -> None:
    options = "--machine gcp-v100 --nodes 4 --axes 8,2,2 --reduce 2,0 --bytes 1000000 --algorithm tree --json"
    code, out, _ = partita("reductions", *options.split())
    found = json.loads(out)
    assert (code, found["total"], len(found["matrices"])) == (0, 188, 4)
    machine = Machine.load("gcp-v100", nodes=4)
    for row in found["matrices"]:
        reduction = Reduction(of_rows(map(tuple, row["matrix"])), (0, 2))
        price = program_price(machine, reduction, flat(reduction.sizes), "nccl-tree")
        assert row["allreduce_s"] == price.ns(1_000_000) / 1e9


def test_bytes_and_algorithm_have_defaults(partita: Run) -> None:
    options = ("reductions", "--hierarchy", "4x8", "--axes", "8,1,4", "--reduce", "0,1", "--json")
    given = partita(*options)[1]
    assert given == partita(*options, "--bytes", "21474836480", "--algorithm", "ring")[1]
    assert DEFAULT_BYTES == 21474836480 and Machine.adhoc((4, 8)).collectives == "nccl-ring"
    assert given != partita(*options, "--bytes", "1000")[1]


def test_the_limit_bounds_both_the_programs_and_the_optimum(partita: Run) -> None:
    options = ["reductions", "--machine", "gcp-a100", "--nodes", "2", "--axes", "32", "--reduce", "0", "--json"]
    (free,) = json.loads(partita(*options)[1])["matrices"]
    (one,) = json.loads(partita(*options, "--limit", "1")[1])["matrices"]
    assert free["programs"] == 47 and len(free["optimal"]) == 3
    assert one["programs"] == 1 and one["optimal"] == ["all-reduce over node x gpu"]
    assert free["optimal_s"] < one["optimal_s"] == one["allreduce_s"]


def test_members_numbered_by_axes(partita: Run) -> None:
    """P²'s H1, 1.03 times as fast by the best program measured, where level-major groups gain 1.79."""
    given = "--machine gcp-a100 --nodes 4 --axes 16,2,2 --reduce 0,2 --algorithm ring --json"
    options = ["reductions", *given.split()]
    levels, axes = (json.loads(partita(*options, *more)[1])["matrices"] for more in ([], ["--numbering", "axes"]))
    (one,) = (i for i, row in enumerate(axes) if row["matrix"] == [[1, 16], [2, 1], [2, 1]])
    assert axes[one]["allreduce_s"] == levels[one]["allreduce_s"] < 1.02 * axes[one]["optimal_s"]
    assert levels[one]["allreduce_s"] > 1.7 * levels[one]["optimal_s"]
    assert any("digit 1" in step for step in axes[one]["optimal"])


@pytest.mark.parametrize(("synthesis", "programs"), [("system", 0), ("columns", 26), ("axes", 47), ("levels", 3)])
def test_programs_over_the_levels_of_a_synthesis(partita: Run, synthesis: str, programs: int) -> None:
    options = ["reductions", "--machine", "gcp-v100", "--nodes", "1", "--axes", "2,2,2", "--reduce", "2,0"]
    found = json.loads(partita(*options, "--synthesis", synthesis, "--json")[1])
    (row,) = found["matrices"]
    assert (row["programs"], found["total"]) == (programs, programs)
    if synthesis == "system":
        assert row["optimal_s"] is None and row["optimal"] == []
        assert partita(*options, "--synthesis", synthesis)[0] == 0
    elif synthesis != "levels":
        assert row["optimal"] == [
            f"{words} of axis {axis}"
            for words, axis in (("reduce-scatter over gpu", 2), ("all-reduce over gpu", 0), ("all-gather over gpu", 2))
        ]


def test_reductions_in_words(partita: Run) -> None:
    code, out, _ = partita("reductions", "--machine", "gcp-a100", "--nodes", "2", "--axes", "32", "--reduce", "0")
    assert code == 0
    flattened = " ".join(out.replace("│", " ").split())
    assert "[2 16]" in out and "47 programs in all" in out
    assert "reduce-scatter over gpu; all-reduce over node; all-gather over gpu" in flattened


def test_machine_and_hierarchy_together_resize_the_machine(partita: Run) -> None:
    reduction = ["--axes", "16", "--reduce", "0", "--json"]
    assert partita("reductions", "--machine", "gcp-a100", "--hierarchy", "2x8", *reduction)[0] == 0


def test_programs_of_many_levels_are_not_counted() -> None:
    (found,) = ranking(Machine.adhoc((2,) * 5), (32,), (0,), 10**9)
    assert found.programs is None and found.best.ns <= found.allreduce_ns


def test_words_name_the_levels() -> None:
    machine = Machine.load("summit", nodes=4)
    reduction = Reduction(of_rows([(4, 1, 3), (1, 2, 1)]), (0,))  # levels: node, gpu
    program = (
        Step(Collective.REDUCE, 1, 1),
        Step(Collective.ALL_REDUCE, 0, 0, zero=(1,)),
        Step(Collective.BROADCAST, 1, 1),
        Step(Collective.REDUCE_SCATTER, 0, 1),
    )
    assert words(program, reduction, machine) == (
        "reduce over gpu",
        "all-reduce over node (first gpu)",
        "broadcast over gpu",
        "reduce-scatter over node x gpu",
    )


# Refusals


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--hierarchy 4x8 --axes 8,2 --reduce 0", "axes 8x2 multiply to 16, but hierarchy 4x8 has 32 devices"),
        ("--hierarchy 4x8 --axes 8,4 --reduce=", "the reduction is empty: name at least one axis"),
        ("--hierarchy 4x8 --axes 32,1 --reduce 1", "the reduction is empty: each axis it is over (1) has size 1"),
        ("--hierarchy 4x8 --axes 8,4 --reduce 2", "no axis 2 to reduce over: the axes are 0 to 1"),
        ("--hierarchy 4x8 --axes 8,4 --reduce 0,0", "axis 0 is to be reduced over twice"),
        ("--hierarchy 4x8 --axes 8,4 --reduce=-1", "numbers of axes, from 0"),
        ("--hierarchy 4x8 --axes 8,4 --reduce a", "numbers of axes, from 0"),
        ("--hierarchy 4x8.5 --axes 8,4 --reduce 0", "--hierarchy '4x8.5': sizes joined by x are needed"),
        ("--hierarchy 4x0 --axes 8,4 --reduce 0", "size 0: a whole number from 1"),
        ("--hierarchy 4x8 --axes 8,four --reduce 0", "--axes '8,four': sizes"),
        ("--hierarchy 4x8 --axes 8,4 --reduce 0 --algorithm star", "unknown algorithm 'star'; choose from ring, tree"),
        (
            "--hierarchy 4x8 --axes 8,4 --reduce 0 --numbering rows",
            "unknown numbering 'rows'; choose from levels, axes",
        ),
        ("--hierarchy 4x8 --axes 8,4 --reduce 0 --synthesis d", "unknown synthesis 'd'; choose from system, columns"),
        ("--hierarchy 4x8 --axes 8,4 --reduce 0 --synthesis rows --numbering axes", "is for --synthesis levels"),
        ("--hierarchy 2x2x2x2x2 --axes 32 --reduce 0 --synthesis columns", "a matrix with more than 4 factors"),
        ("--hierarchy 2x2x2x2x2 --axes 32 --reduce 0 --synthesis axes", "a reduction over more than 4 factors"),
        ("--hierarchy 4x8 --axes 8,4 --reduce 0 --limit 0", "a limit of 0 collectives admits no program"),
        ("--hierarchy 4x8 --axes 8,4 --reduce 0 --bytes=-1", "a reduction of -1 bytes"),
        (f"--hierarchy 4x8 --axes 8,4 --reduce 0 --bytes {10**400}", "a reduction of more than"),
        (f"--hierarchy 4 --axes 4{',1' * 1500} --reduce 0", "one or more axes (up to 64) are needed"),
        ("--machine gcp-x100 --axes 8,4 --reduce 0", "unknown machine 'gcp-x100'; did you mean gcp-v100"),
        ("--machine gcp-v100 --nodes 0 --axes 8,4 --reduce 0", "--nodes 0: a whole number"),
        ("--machine gcp-v100 --nodes 2 --hierarchy 2x8 --axes 16 --reduce 0", "give one of them"),
        ("--axes 8,4 --reduce 0", "give --machine NAME or --hierarchy"),
    ],
)
def test_reductions_that_cannot_be(partita: Run, options: str, complaint: str) -> None:
    code, out, err = partita("reductions", *options.split(), "--json")
    assert (code, out) == (2, "")
    assert complaint in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("hierarchy", "axes", "complaint"),
    [
        ("4x16", "16,2", "axes 16x2 multiply to 32, but hierarchy 4x16 has 64 devices"),
        ("4x1.6", "16,2", "--hierarchy '4x1.6': sizes joined by x are needed"),
        ("0x4", "4", "every level has a size of 1 or more"),
    ],
)
def test_placements_that_cannot_be(partita: Run, hierarchy: str, axes: str, complaint: str) -> None:
    code, out, err = partita("placements", "--hierarchy", hierarchy, "--axes", axes, "--json")
    assert (code, out) == (2, "")
    assert complaint in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["placements", "reductions"])
def test_help_imports_nothing_heavy(command: str) -> None:
    script = f"""
import sys
from partita.cli import main

sys.argv = ["partita", "{command}", "--help"]
try:
    main()
finally:
    print("heavy:", *[name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("heavy:")
