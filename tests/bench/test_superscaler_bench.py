"""The planner beside other systems' spaces, on a small twin."""

from __future__ import annotations

from collections import Counter

from partita.bench import bench
from partita.bench.co_shard import Alone, measure_alone
from partita.bench.superscaler import FAMILIES, SYSTEMS, totals, with_ratios


def test_no_system_beats_the_planner() -> None:
    result = bench("superscaler", small=True)
    *every, interlaced = [row for row in result["rows"] if "case" in row]
    rows = {row["system"]: row for row in every}
    assert [*rows] == [name for name in SYSTEMS if name not in FAMILIES]
    assert all(row["plan"] and not row["why"] for row in (*every, interlaced))
    assert rows["planner"]["ratio"] == 1 and result["compared"] == 3
    assert interlaced["case"].startswith("mbart-4.7b small") and interlaced["plan"].startswith("pipeline2")
    alone = {row["system"]: row for row in result["rows"] if "figure" in row}
    assert [*alone] == ["recompute", "co-shard", "offload"] and all(row["fits"] for row in alone.values())
    assert result["faster"] == 0 and result["least_ratio"] >= 1 - rows["planner"]["gap"]


def test_every_product_of_sizes_is_a_space() -> None:
    (spaces,) = SYSTEMS["megatron"](32, 8)
    sizes = {(s.parallelism.dp, s.parallelism.tp, s.stages, s.recompute) for s in spaces}
    assert len(sizes) == len(spaces) == 42 and all(d * t * p == 32 for d, t, p, _ in sizes)
    assert Counter(recompute for *_, recompute in sizes) == {"none": 21, "full": 21}


def test_interlaced_stages_have_tensor_parallelism_in_a_node() -> None:
    (spaces,) = SYSTEMS["interlaced"](16, 8)
    sizes = [(s.stages, s.parallelism.tp, s.parallelism.dp, s.schedule) for s in spaces]
    assert sizes == [(stages, 16 // stages, 1, "interlaced") for stages in (2, 4, 8, 16)]


def test_stages_of_3f1b_share_samples() -> None:
    (spaces,) = SYSTEMS["3f1b"](16, 8)
    sizes = [(s.stages, s.parallelism.tp, s.parallelism.dp, s.schedule) for s in spaces]
    assert sizes == [(stages, 1, 16 // stages, "3f1b") for stages in (2, 4, 8, 16)]


def test_ratios_are_to_the_best_plan_that_the_planner_finds() -> None:
    """Here the interlaced pipeline, which another system beats by more than its gap."""
    steps = {"planner": 4.0, "interlaced": 3.0, "megatron": 2.0}
    rows = [{"case": "one", "system": name, "step_s": step, "gap": 0.1} for name, step in steps.items()]
    given = with_ratios([*rows, {"figure": 13, "system": "co-shard", "step_s": 1.0}])
    assert [row.get("ratio") for row in given] == [4 / 3, 1, 2 / 3, None]
    assert totals(given)["faster"] == 1 and totals(given)["compared"] == 1


def test_co_shard_saves_activations_of_long_sequences() -> None:
    rows = measure_alone(Alone(14, "gpt3-1.3b", {"sequence": 256}, small=True))["rows"]
    recompute, co_shard, _ = (row["memory_gib"] for row in rows)
    assert co_shard < recompute
