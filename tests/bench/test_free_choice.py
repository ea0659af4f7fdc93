"""The planner's own choice for groups of runs: which groups, what is compared, and why something cannot be."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from partita import PartitaError
from partita.bench import bench, free_choice
from partita.bench.free_choice import compared, groups, memory_error, summary, verdict
from partita.bench.published_runs import Decoder, Run
from partita.formulation.parallelism import Parallelism
from partita.formulation.search_space import SearchSpace
from partita.model.machine.machine import Machine

SMALL = Decoder(2, 64, 4, 4, 128, 256, 16, tied=False)


def run(model: str, devices: int, seconds: float | None) -> Run:
    name = f"{model} dp{devices} {seconds}"
    sizes = Parallelism(dp=devices, zero=0, micro_batch=1)
    one = Run(name, SMALL, "p5-h100", devices, sizes, 16, "mixed-bfloat16-fp32grad", "none", (2,))
    return replace(one, seconds=seconds, model=model)


def row(of: Run, predicted: float, **given: Any) -> dict[str, Any]:
    made = {"run": of.name, "tier": "A", "predicted_s": predicted, "measured_gib": 12.0, "predicted_gib": 10.0}
    return made | {"fits": True} | given


RUNS = [run(model, n, t) for model in ("a", "b") for n in (8, 16, 32, 64, 128) for t in (2.0, 1.0, 3.0, 4.0, None)]
RUNS += [run("a", 256, 1.0)]


def plan(seconds: float, gib: float) -> Any:
    device = Machine.load("p5-h100").device
    report = {"objective_ns": int(seconds * 1e9), "memory_bytes": int(gib * 2**30), "gap": 0.01}
    return SimpleNamespace(
        report=report, machine=SimpleNamespace(device=device), axes=("data", "tensor"), micro_batches=4,
        placement=SimpleNamespace(sizes=(4, 2)), size=2, recompute={"layers.0": "full"},
    )  # fmt: skip


def test_groups_are_the_smallest_the_middle_and_the_largest() -> None:
    found = groups(RUNS)
    assert [(own[0].model, own[0].devices, len(own)) for own in found] == [
        (model, devices, 4) for model in ("a", "b") for devices in (8, 32, 128)
    ]


def test_a_choice_is_compared_with_the_fastest_run() -> None:
    rows = [row(of, 1.2 * (of.seconds or 1.0)) for of in RUNS if of.model == "a" and of.devices == 8]
    (found,) = compared(RUNS, rows, lambda _: None, lambda _, error: plan(0.9, 20.0 * error))
    assert (found["group"], found["plan"]) == ("a, 8 GPUs", "data4 tensor2, k=4, 1 recomputed")
    assert found["fastest run"] == "dp8 1.0" and found["verdict"] == "at least as fast"
    assert (found["ratio"], found["best_ratio"]) == pytest.approx((0.9, 1.2))
    assert found["memory_gib"] == pytest.approx(24.0)
    assert found["limit_gib"] == pytest.approx(Machine.load("p5-h100").device.capacity_bytes / 1.2 / 2**30)
    assert summary([found])[0]["at least as fast"] == 1


def test_a_refusal_is_the_reason() -> None:
    def refused(_: Run, error: float) -> Any:
        raise PartitaError("does not fit")

    (found,) = compared(RUNS, [row(RUNS[0], 2.0), row(RUNS[1], 1.0)], lambda _: None, refused)
    assert found["verdict"] == "not comparable: does not fit" and found["plan"] is None


def test_nothing_is_planned_without_an_error_of_memory() -> None:
    (found,) = compared(
        RUNS, [row(RUNS[0], 2.0, tier="B"), row(RUNS[1], 1.0, tier="B")], lambda _: None, cast("Any", None)
    )
    assert found["verdict"] == "not comparable: no run of tier A says how far memory is off"
    assert found["plan"] is None and found["limit_gib"] is None and list(found)[-1] == "verdict"


def test_verdicts() -> None:
    assert verdict(1.0, 1.3, 1.0, fits=True) == "at least as fast"
    assert verdict(1.2, 1.3, 1.0, fits=True) == "not comparable: the run itself is predicted +30.0%"
    assert verdict(1.4, 1.3, 1.0, fits=False) == "not comparable: the run is predicted not to fit"
    assert verdict(1.4, 1.3, 1.0, fits=True) == "slower than the run's own prediction, by 7.7%"
    assert verdict(0.99, 0.9, 1.0, fits=True) == "slower than the run's own prediction, by 10.0%"
    assert verdict(0.91, 0.9, 1.0, fits=True) == "at least as fast"
    verdicts = ("at least as fast", "slower than the run's own prediction, by 7.7%", "not comparable: x")
    assert list(summary([{"verdict": one} for one in verdicts])[0].values()) == [3, 1, 1, 1]


def test_the_error_of_memory_is_that_of_tier_a() -> None:
    rows = [row(RUNS[0], 1.0), row(RUNS[0], 1.0, tier="B", measured_gib=90.0), row(RUNS[0], 1.0, measured_gib=None)]
    assert memory_error(rows) == pytest.approx(1.2)
    assert memory_error([row(RUNS[0], 1.0, measured_gib=5.0)]) == 1.0
    assert memory_error(rows[1:]) is None


def test_the_planner_has_the_memory_and_the_batch_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_choice, "captured", lambda decoder: decoder)
    monkeypatch.setattr(free_choice, "plan_graph", lambda *given: given)
    graph, machine, training, space, budget, _ = cast("tuple[Any, ...]", free_choice.planned(run("a", 32, 1.0), 1.25))
    base = Machine.load("p5-h100", nodes=4)
    assert graph == SMALL and machine.levels == base.levels and training.batch == 16
    assert machine.device.capacity_bytes == int(base.device.capacity_bytes / 1.25)
    assert space == SearchSpace(offload=False, compile=True) and budget.gap == free_choice.GAP


def test_free_needs_a_sweep() -> None:
    with pytest.raises(PartitaError, match="--free needs --sweep"):
        bench("truth", free=True)
