"""Emitted reduction programs, executed on integers: every rank has the right sums, whatever the placement."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
import torch

from partita.codegen.emission.reduction import emit
from partita.codegen.verification.launch import torchrun
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.worker import load_program
from partita.formulation.placement.placement import arrangements, of_rows
from partita.formulation.reduction.enumeration import programs
from partita.formulation.reduction.optimal import envelope
from partita.formulation.reduction.program import Collective, Reduction, ReductionProgram, Step, flat
from partita.model.errors import PartitaError
from partita.model.machine.machine import PROFILES, Machine

from ..levels import some

AR, RS, AG = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
HIERARCHICAL = (Step(RS, 1, 1), Step(AR, 0, 0), Step(AG, 1, 1))
PERMUTED = (Step(RS, 0, 1), Step(AG, 0, 0), Step(AG, 1, 1))


@cache
def enumerated(levels: int) -> dict[str, ReductionProgram]:
    return {f"program {i}": program for i, program in enumerate(programs(levels))}


def optima(reduction: Reduction, machine: Machine | None = None) -> dict[str, ReductionProgram]:
    """The optimal programs of all payloads and profiles, on a given machine or one whose levels get slower outwards."""
    machine = machine or Machine.adhoc(reduction.placement.hierarchy)
    entries = [
        program for profile in PROFILES for program in envelope(machine, reduction, "all_reduce", profile).programs
    ]
    return {f"optimal {i}": program for i, program in enumerate(dict.fromkeys(entries))}


def loaded(folder: Path, chosen: Mapping[str, ReductionProgram], reduction: Reduction) -> ModuleType:
    path = folder / "reduction.py"
    path.write_text(emit(chosen, reduction))
    return load_program(path)


def check(folder: Path, chosen: Mapping[str, ReductionProgram], reduction: Reduction, ring: bool = False) -> None:
    """Every program sums other numbers of every rank, in a buffer that does not divide into chunks."""
    module = loaded(folder, chosen, reduction)
    addends = torch.randint(-999, 999, (reduction.placement.devices, 3, 11), generator=torch.Generator().manual_seed(1))
    sums = torch.empty_like(addends)
    for members in reduction.members():
        sums[members] = addends[members].sum(0)

    def wrong(rank: int) -> list[str]:
        on = module.Groups()
        on.ring = ring
        return [
            n for n, f in module.PROGRAMS.items() if not torch.equal(module.reduced(addends[rank], f, on), sums[rank])
        ]

    assert {name for names in run_threads(wrong, reduction.placement.devices) for name in names} == set()


def paper() -> list[Reduction]:
    """The reductions that the paper measured on A100s, and those alike on a V100 system, in all their placements.

    But for those that one axis alone spreads over four nodes: they are as those over two.
    """
    groups = json.loads((files("partita.bench.data") / "p2_a100.json").read_text())["groups"]
    asked = [(group["hierarchy"], group["parallelism_axes"], tuple(group["reduce_axes"])) for group in groups]
    asked.append(([2, 8], [16], (0,)))
    asked += [([2, 8], [a, 16 // a], (i,)) for a in (2, 4, 8) for i in (0, 1)]
    asked.append(([4, 8], [4, 2, 4], (0, 2)))
    every = [Reduction(p, axes) for hierarchy, sizes, axes in asked for p in arrangements(hierarchy, sizes)]
    return [each for each in every if 4 not in next(zip(*each.placement.matrix, strict=True))]


def named(reduction: Reduction) -> str:
    return f"{reduction.placement.matrix} over {reduction.axes}".replace(",)", ")")


@pytest.mark.parametrize("reduction", some(paper(), 4), ids=named)
def test_every_enumerated_and_every_optimal_program_sums(tmp_path: Path, reduction: Reduction) -> None:
    """The paper's groups as they are: 16 to 64 ranks, at most 47 programs each."""
    nodes, gpus = reduction.placement.hierarchy
    machine = Machine.load({8: "gcp-v100", 16: "gcp-a100"}[gpus], nodes=nodes)
    check(tmp_path, enumerated(len(reduction.sizes)) | optima(reduction, machine), reduction)


@pytest.mark.parametrize(
    "reduction",
    [
        Reduction(of_rows([(2, 3)]), (0,)),
        Reduction(of_rows([(3, 2), (2, 1)]), (0,)),
        Reduction(of_rows([(3, 1), (1, 2), (1, 2)]), (0, 2)),
        Reduction(of_rows([(2, 1), (2, 2), (1, 3)]), (2, 1)),
    ],
    ids=named,
)
@pytest.mark.parametrize("ring", [False, True])
def test_sizes_that_differ_and_the_ring(tmp_path: Path, reduction: Reduction, ring: bool) -> None:
    check(tmp_path, enumerated(len(reduction.sizes)) | optima(reduction), reduction, ring)


def test_three_levels(tmp_path: Path) -> None:
    """With a size of 3 some scatter after gathering, and cut a chunk of the outer level in two: sorted by a list."""
    reduction = Reduction(of_rows([(2, 3, 2)]), (0,))
    every = enumerated(3)
    check(tmp_path, every | optima(reduction), reduction)
    assert "[order].flatten()" in (tmp_path / "reduction.py").read_text()
    assert len(every) == 825


def test_what_only_first_devices_do_shortens_the_buffers_of_all(tmp_path: Path) -> None:
    """While the first scatter, the others keep a buffer of the same length, into which they receive the part."""
    of_first = (1,)
    program = (
        Step(Collective.REDUCE, 1, 1),
        Step(RS, 0, 0, of_first),
        Step(Collective.BROADCAST, 1, 1),
        Step(AG, 0, 0),
    )
    check(tmp_path, {"all-gather last": program}, Reduction(of_rows([(3, 2)]), (0,)))


def test_text() -> None:
    """Few readable lines a program: groups by the names of the levels, the same text every time."""
    machine = Machine.load("gcp-a100", nodes=2)
    reduction = Reduction(of_rows([(2, 4), (1, 4)]), (0,))
    text = emit({"flat": flat((2, 4)), "best": HIERARCHICAL, "turned": PERMUTED}, reduction, machine)
    assert 'LEVELS = {"node": 2, "gpu": 4}' in text
    assert "MEMBERS = torch.arange(RANKS).reshape(2, 4, 4).permute(2, 0, 1).reshape(-1, 2, 4)" in text
    assert 'self.node_gpu = make_group("node", "gpu")\n        self.gpu = make_group("gpu")\n' in text
    assert (
        """
def sum_best(x, on):
    \"""Reduce-scatter in gpu, all-reduce in node, all-gather in gpu.\"""
    x = reduce_scatter(x, on.gpu, on.ring)
    x = all_reduce(x, on.node)
    return all_gather(x, on.gpu)
"""
        in text
    )
    assert "return x.reshape(4, 2, -1).permute(1, 0, 2).flatten()  # the chunks are permuted\n" in text
    assert text == emit({"flat": flat((2, 4)), "best": HIERARCHICAL, "turned": PERMUTED}, reduction, machine)


def test_many_devices() -> None:
    """Where a proof on all members is too large, one on a small model tells the transpose."""
    text = emit({"turned": PERMUTED}, Reduction(of_rows([(64, 16)]), (0,)))
    assert "return x.reshape(16, 64, -1).permute(1, 0, 2).flatten()  # the chunks are permuted\n" in text
    gathered = (Step(RS, 1, 2), Step(AG, 1, 1), Step(RS, 0, 0), Step(AG, 2, 2), Step(AG, 0, 0))
    with pytest.raises(PartitaError, match="in level 0 end in an order that no transpose corrects for 1024 ranks"):
        emit({"mixed": gathered}, Reduction(of_rows([(16, 8, 8)]), (0,)))


def test_only_what_is_used_is_emitted() -> None:
    text = emit({"flat": flat((2, 4))}, Reduction(of_rows([(2, 4)]), (0,)))
    assert "def all_reduce(" in text
    assert not any(f"def {name}(" in text for name in ("reduce_scatter", "all_gather", "reduce", "broadcast"))
    assert "_single" not in text


def test_names_that_collide() -> None:
    reduction = Reduction(of_rows([(2, 4)]), (0,))
    text = emit({"a-b": flat((2, 4)), "a b": HIERARCHICAL, 'say "so"': flat((2, 4))}, reduction)
    assert '"a-b": sum_a_b,' in text and '"a b": sum_a_b_2,' in text and r'"say \"so\"": sum_say_so,' in text
    compile(text, "reduction.py", "exec")


@pytest.mark.parametrize("names", [("ring", "gpu"), ("a-b", "a b"), ("node_gpu", "node", "gpu")])
def test_levels_whose_names_collide_are_numbered(names: tuple[str, ...]) -> None:
    machine = Machine.adhoc((2,) * len(names))
    levels = tuple(replace(level, name=name) for level, name in zip(machine.levels, names, strict=True))
    program = (*(Step(AR, i, i) for i in range(len(names) - 2)), Step(AR, len(names) - 2, len(names) - 1))
    every = {"flat": program, "apart": tuple(Step(AR, i, i) for i in range(len(names)))}
    text = emit(every, Reduction(of_rows([(2,) * len(names)]), (0,)), replace(machine, levels=levels))
    assert 'LEVELS = {"level0": 2, "level1": 2' in text


@pytest.mark.parametrize("names", [{"flat": flat((2, 4))}, {"best": HIERARCHICAL, "turned": PERMUTED}])
def test_formatted(tmp_path: Path, names: dict[str, ReductionProgram]) -> None:
    path = tmp_path / "reduction.py"
    path.write_text(emit(names, Reduction(of_rows([(2, 4)]), (0,))))
    for command in (["check", "--select", "E,F,W,I,B"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", path],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("chosen", "matrix", "words"),
    [
        ({}, [(2, 4)], "at least one program"),
        ({"none": ()}, [(1, 1), (2, 4)], "more than one device"),
        ({"half": (Step(AR, 1, 1),)}, [(2, 4)], "lacks the addends"),
        ({"twice": (Step(AR, 1, 1), Step(AR, 0, 1))}, [(2, 4)], "counted twice"),
    ],
)
def test_what_is_refused(chosen: dict[str, ReductionProgram], matrix: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        emit(chosen, Reduction(of_rows(matrix), (0,)))


def test_a_machine_of_another_shape_is_refused() -> None:
    with pytest.raises(PartitaError, match=r"gcp-a100 has levels \(4, 16\)"):
        emit({"flat": flat((2, 4))}, Reduction(of_rows([(2, 4)]), (0,)), Machine.load("gcp-a100", nodes=4))


def test_a_program_with_wrong_sums_is_not_timed(tmp_path: Path) -> None:
    module = loaded(tmp_path, {"flat": flat((2, 2))}, Reduction(of_rows([(2, 2)]), (0,)))
    module.PROGRAMS["flat"] = lambda x, on: x
    with pytest.raises(RuntimeError, match=r"rank \d: flat gives wrong sums"):
        run_threads(lambda rank: module.measure(1000, 1), 4)


def test_torchrun(tmp_path: Path) -> None:
    """The file runs by itself on real ranks, over the ring, and prints seconds of every program."""
    path = tmp_path / "reduction.py"
    parts = (Step(RS, 0, 0), Step(AG, 0, 0))
    path.write_text(emit({"flat": flat((2,)), "parts": parts}, Reduction(of_rows([(2,)]), (0,))))
    result = json.loads(torchrun(path, 2, ["100_001", "2"]))
    assert (result["ranks"], result["bytes"]) == (2, 100_001)
    assert list(result["programs"]) == ["flat", "parts"]
    assert all(0 < p["seconds"] < 60 and len(p["runs"]) == 2 for p in result["programs"].values())
