"""The planner beside other systems' spaces, on a small twin."""

from __future__ import annotations

from partita.bench import bench
from partita.bench.co_shard import Alone, measure_alone
from partita.bench.superscaler import SYSTEMS


def test_no_system_beats_the_planner() -> None:
    result = bench("superscaler", small=True)
    rows = {row["system"]: row for row in result["rows"] if "case" in row}
    assert [*rows] == [name for name in SYSTEMS if name != "dap"]
    assert all(row["plan"] and not row["why"] for row in rows.values())
    assert rows["planner"]["ratio"] == 1 and result["compared"] == 3
    alone = {row["system"]: row for row in result["rows"] if "figure" in row}
    assert [*alone] == ["recompute", "co-shard", "offload"] and all(row["fits"] for row in alone.values())
    assert result["faster"] == 0 and result["least_ratio"] >= 1 - rows["planner"]["gap"]


def test_every_product_of_sizes_is_a_space() -> None:
    (first, second) = SYSTEMS["megatron"](32, 8)
    sizes = [(s.parallelism.dp, s.parallelism.tp, s.stages) for s in first]
    assert len({*sizes}) == len(sizes) == 21 and all(d * t * p == 32 for d, t, p in sizes)
    assert {s.recompute for s in first} == {"none"} and {s.recompute for s in second} == {"full"}


def test_co_shard_saves_activations_of_long_sequences() -> None:
    rows = measure_alone(Alone(14, "gpt3-1.3b", {"sequence": 256}, small=True))["rows"]
    recompute, co_shard, _ = (row["memory_gib"] for row in rows)
    assert co_shard < recompute
