"""The bench of plans that grow: what a plan derives does not grow with its micro-batches."""

from __future__ import annotations

from partita.bench import bench


def test_small_cases() -> None:
    few, many, llama = bench("folding", small=True)["rows"]
    assert many["tasks"] > 3 * few["tasks"] and many["step_ms"] > 2 * few["step_ms"]
    assert many["program_kb"] < 1.05 * few["program_kb"]
    assert few["distinct"] == 4  # the first rank of a stage adds the biases, the other one zeros
    assert llama["ranks"] == 4 and llama["distinct"] == 2  # no biases
