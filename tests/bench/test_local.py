"""Steps on this machine: what the totals say of rows."""

from __future__ import annotations

from typing import Any

import pytest

from partita.bench import bench
from partita.bench.local import OF_GPUS, since, totals
from partita.bench.local_cases import TEN, cases
from partita.bench.step_times import TRACED, trace_of
from partita.codegen.profile.local import Local

from ..levels import exhaustive


def rows(model: str, predicted: list[float], measured: list[float]) -> list[dict[str, Any]]:
    order = sorted(measured)
    return [
        {
            **{"model": model, "ranks": 2, "ratio": p / m, "rank": order.index(m) + 1, "chosen": p == min(predicted)},
            **{"measured_s": m, "predicted_s": p, "flops": 1.0},
            **dict.fromkeys(OF_GPUS),
        }
        for p, m in zip(predicted, measured, strict=True)
    ]


def test_the_choice_among_ten_is_judged_by_its_place() -> None:
    steps = [1.0 + number / 10 for number in range(len(TEN))]
    right, wrong = rows("a", steps, steps), rows("b", steps, steps[::-1])
    few = rows("c", [1.0, 2.0], [2.0, 1.0])  # too few configurations for a choice
    found = totals([*right, *wrong, *few, {**few[0], "ratio": None}])
    assert (found["runs"], found["not_run"], found["choices"], found["among_two_fastest"]) == (23, 1, 2, 1)
    assert found["within_20"] == len(TEN) + sum(abs(row["ratio"] - 1) <= 0.2 for row in wrong)
    assert found["constant_mfu_median_abs_error"] > 0


def test_a_round_is_priced_by_its_own_measurements() -> None:
    before = {"a": {"windows": {"forward": [1.0, 1.0, 9.0]}}, "once": {"windows": {"call": [5.0]}}}
    known = {
        "a": {"windows": {"forward": [1.0, 1.0, 9.0, 2.0, 4.0, 3.0], "backward": [7.0]}},
        "once": {"windows": {"call": [5.0]}},
        "new": {"windows": {"call": [6.0, 8.0]}},
    }
    times = {part: {name: ns for name, (ns, _) in of["times"].items()} for part, of in since(before, known).items()}
    assert times == {"a": {"forward": 3.0, "backward": 7.0}, "once": {"call": 5.0}, "new": {"call": 7.0}}


def test_a_trace_says_how_busy_a_gpu_is() -> None:
    """Of 8 us two kernels take 6, side by side for one of them; the host waits once before the last launch."""
    kernels = [{"cat": "kernel", "name": "k", "ts": ts, "dur": dur} for ts, dur in ((10, 4), (13, 2), (17, 1))]
    calls = {"cudaLaunchKernel": (1, 2, 6), "cudaStreamSynchronize": (0, 4), "cudaDeviceSynchronize": (20,)}
    host = [{"cat": "cuda_runtime", "name": name, "ts": ts, "dur": 1} for name, at in calls.items() for ts in at]
    found = trace_of([*host, *kernels, {"cat": "cpu_op", "name": "add", "ts": 0, "dur": 100}])
    assert found == {"busy": 6 / 8, "waits": 1 / TRACED, "kernels": 3 / TRACED, "us": 8 / TRACED}


def test_every_model_runs_on_one_rank_and_on_four() -> None:
    every = cases(Local("cpu", "a processor", 2, 1 << 33))
    assert {case.ranks for case in every} >= {1, 4} and len({case.model for case in every}) == 8
    assert all(configuration.space(case.ranks) for case in every for configuration in case.configurations)


@exhaustive
def test_a_small_model_is_profiled_planned_and_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path))
    found = bench("local", small=True)
    assert found["not_run"] == 0 and found["runs"] == 2
