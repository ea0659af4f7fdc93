"""Ranks that differ in their numbers alone: what one of them does stands for all, in predictions and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import partita
from partita import op_assign, op_trans, split, stages
from partita.codegen.emission.spacetime.emit import emit
from partita.codegen.plan.spacetime_plan import SpaceTimePlan
from partita.codegen.report.spacetime_trace import timeline
from partita.formulation.spacetime.looped import Looped
from partita.model.capture.load import import_file
from partita.model.zoo import build

FOLDER = Path(__file__).parents[2] / "examples" / "plans"


def each_by_itself(looped: Looped, keys: Any) -> tuple[int, ...]:
    """No rank stands for another."""
    return tuple(range(len(looped.program.devices)))


def compared(made: Any, monkeypatch: pytest.MonkeyPatch) -> SpaceTimePlan:
    """A plan, whose times, memory and program are as without equal ranks."""
    folded, reference = made(), made()
    times, text = timeline(folded.prediction), emit(folded.looped, initial=folded.initial)
    monkeypatch.setattr(Looped, "equal_ranks", each_by_itself)
    assert times == timeline(reference.prediction)
    assert folded.prediction.memory[-1].peak == reference.prediction.memory[-1].peak
    assert folded.prediction.peak_bytes == reference.prediction.peak_bytes
    assert folded.prediction.busy_ns == reference.prediction.busy_ns
    assert text == emit(reference.looped, initial=reference.initial)
    monkeypatch.undo()
    return folded


def example(name: str, layers: int = 2) -> SpaceTimePlan:
    module = import_file(FOLDER / f"{name}.py")
    sizes = {"layers": layers} if module.MODEL.startswith("gpt3") else {}
    graph = partita.graph(*build(module.MODEL, small=True, sizes=sizes), batch=module.BATCH)
    module.plan(graph, range(module.DEVICES))
    return partita.space_time(graph)


EXAMPLES = {
    "data_parallel": (0, 0, 0, 0),
    "flexible_tensor": None,
    "pipeline_tensor_data": (0, 1, 2, 3, 0, 1, 2, 3),
    "ring_sequence": None,
    "sequence_parallel": None,
    "unlike_stages": None,
    "zero1": None,
    "zero3": None,
    "uneven_batch": None,
    "chimera": None,
    "interlaced": None,
    "swap": None,
    "selective_recompute": None,
}
"""The equal ranks of example plans, where the plan makes them plain."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_plans_are_as_with_every_rank_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(lambda: example(name), monkeypatch)
    print(found.looped.equal_ranks([0] * found.ranks))
    if EXAMPLES[name] is not None:
        assert found.looped.equal_ranks([0] * found.ranks) == EXAMPLES[name]


def test_equal_ranks_may_take_part_in_different_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank of the first stage sends to the other one of the second: the first ranks of both never meet."""

    def made() -> SpaceTimePlan:
        graph = partita.graph(*build("gpt3-1.3b", small=True, sizes={"layers": 2}), batch=4)
        for ops, ranks in zip(stages(graph, 2), ((0, 1), (3, 2)), strict=True):
            for op in ops:
                for rank, part in zip(ranks, op_trans(op, split("batch", 2)), strict=True):
                    op_assign(part, rank)
        return partita.space_time(graph)

    found = compared(made, monkeypatch)
    assert found.looped.equal_ranks([0] * found.ranks) == (0, 0, 2, 2)
