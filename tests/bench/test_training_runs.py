"""Statistics of predicted training runs, on rows made by hand; memory of the first rank; files that hold no runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita.bench.first_rank import BUCKETS, FIXED, INNER, LEFTOVER, WIDTH, first_rank_bytes
from partita.bench.published_runs import Decoder, Run, megatron, sweep
from partita.bench.training_runs import constant_mfu_error, planned, summary, totals
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.parallelism import Parallelism
from partita.model.errors import PartitaError


def row(predicted: float, measured: float | None, **given: Any) -> dict[str, Any]:
    ratio = None if measured is None else predicted / measured
    made = {"model": "1B", "tier": "A", "gpus": 8, "samples": 4, "predicted_gib": 10.0, "measured_gib": 10.0}
    made |= {"run": "r", "predicted_s": predicted, "measured_s": measured, "ratio": ratio, "fits": True, "flops": 1.0}
    return made | given


ROWS = [
    row(1.0, 1.0),
    row(2.2, 2.0, measured_gib=20.0),
    row(0.9, 1.2),  # predicted to be the fastest, a fifth slower than the fastest
    row(4.0, 4.0, fits=False),
    row(9.0, None, measured_gib=None, fits=False),
    row(9.0, None, measured_gib=None),
]


def test_totals_are_what_they_say() -> None:
    found = totals(ROWS)
    assert found["runs"] == 4 and found["top1_regret"] == pytest.approx(0.2)
    assert found["constant_regret"] == pytest.approx((1 + 2 + 1.2 + 4) / 4 - 1)
    assert found["group_spearman"] == found["spearman"] == pytest.approx(0.8)
    assert found["median_abs_error"] == pytest.approx(0.05) and found["median_ratio"] == pytest.approx(1.0)
    assert found["memory_within_15"] == 0.75 and found["oom_caught"] == 0.5 and found["oom_false"] == 0.25


def test_groups_of_fewer_than_four_runs_say_nothing() -> None:
    found = totals(ROWS[:3])
    assert found["group_spearman"] is None and found["top1_regret"] is None and found["oom_caught"] is None


def test_constant_mfu_is_exact_where_time_follows_flops() -> None:
    assert constant_mfu_error([row(1.0, 2.0, flops=4.0), row(1.0, 3.0, flops=6.0)]) == 0.0


def test_errors_of_held_out_runs_stand_beside_the_others() -> None:
    assert "held_out_mean_abs_error" not in totals(ROWS)
    known = [row(1.0, 1.0, held_out_s=1.1, constant_mfu_s=1.5), row(1.0, 2.0, held_out_s=1.4, constant_mfu_s=1.0)]
    found = totals([*known, row(1.0, 2.0, held_out_s=None, constant_mfu_s=None)])
    assert found["held_out_mean_abs_error"] == found["held_out_median_abs_error"] == pytest.approx(0.2)
    assert found["held_out_p90_abs_error"] == pytest.approx(0.28)
    assert found["held_out_max_abs_error"] == pytest.approx(0.3)
    assert found["held_out_constant_mfu_max_abs_error"] == pytest.approx(0.5)
    assert found["held_out_constant_mfu_mean_abs_error"] == pytest.approx(0.5)


def test_the_summary_has_tiers_and_models() -> None:
    assert [own["rows"] for own in summary(ROWS)] == ["model 1B", "tier A"]


def decoder(**given: Any) -> Decoder:
    sizes = {"layers": 2, "width": 64, "heads": 4, "key_heads": 4, "inner": 128, "vocabulary": 96, "sequence": 32}
    return Decoder(**(sizes | {"tied": True} | given))


def of_program(program: str, **given: Any) -> Run:
    sizes = Parallelism(dp=4, tp=2, zero=0, micro_batch=1, sequence_parallel=True)
    made: dict[str, Any] = {
        "parallelism": sizes,
        "batch": 8,
        "dtype": "mixed-bfloat16-fp32grad",
        "recompute": "none",
        "stages": (2,),
    }
    return Run("r", decoder(), "p5-h100", 8, **(made | given), program=program)


def test_nanotron_holds_what_the_planner_does_and_its_own() -> None:
    case = of_program("nanotron")
    plan = planned(case)
    memory = stage_price(plan).memory
    assert first_rank_bytes(of_program(""), plan) == sum(memory.values())
    weights = (2 * (4 * 64 * 64 + 3 * 64 * 128) + 96 * 64) / 2
    own = LEFTOVER * 32 * 96 / 2 + (WIDTH * 64 + INNER * 128) * 32 * 2 / 2 + BUCKETS * weights + FIXED
    assert first_rank_bytes(case, plan) == memory["states"] + memory["activations"] + own


def test_empty_stages_have_micro_batches_in_flight() -> None:
    sizes = Parallelism(dp=1, tp=2, zero=0, micro_batch=1, sequence_parallel=True)
    case = of_program("nanotron", parallelism=sizes, stages=(1, 1), empty=2)
    plan = planned(case)
    assert plan.parts[0].in_flight == 2
    more = first_rank_bytes(case, plan) - first_rank_bytes(replace(case, empty=0), plan)
    assert more == stage_price(plan.parts[0]).memory["activations"] + 2 * (WIDTH * 64 + INNER * 128) * 32 / 2


@pytest.mark.parametrize(
    ("data", "words"),
    [([], "has no 'ultrascale_sweep'"), ({"ultrascale_sweep": {}}, "'about' is missing")],
)
def test_files_without_runs_are_refused(tmp_path: Path, data: Any, words: str) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(data))
    with pytest.raises(PartitaError, match=words):
        sweep(file)
    with pytest.raises(PartitaError, match="has no 'megatron_table1'"):
        megatron(file)
