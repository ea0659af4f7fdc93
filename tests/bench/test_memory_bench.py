"""Plans that save memory, predicted beside measured."""

from __future__ import annotations

import pytest

from partita.bench import bench
from partita.bench.memory import PLANS, SMALL, longest, planned
from partita.bench.memory import _gpt as gpt

from ..levels import exhaustive


def test_co_shard_is_measured_to_save_what_is_predicted() -> None:
    """More than recomputation of whole layers does."""
    rows = {row["plan"]: row for row in bench("memory", small=True, only=("recompute", "co-shard"))["rows"]}
    assert rows.keys() == {"recompute", "co-shard"}
    for row in rows.values():
        assert row["measured_of_plain"] == pytest.approx(row["predicted_of_plain"], abs=0.05)
        assert row["predicted_time_of_plain"] > 1 and row["measured_ms"] > 0
    assert rows["co-shard"]["measured_mib"] < rows["recompute"]["measured_mib"]


def test_every_plan_is_predicted_to_save_memory() -> None:
    peaks = {name: planned(SMALL[0], name).prediction.peak_bytes[0] for name in PLANS}
    assert all(peaks[name] < peaks["plain"] for name in PLANS if name != "plain")
    assert peaks["co-shard"] < peaks["nested"] < peaks["recompute"]


def test_longer_sequences_fit_where_less_is_kept() -> None:
    def longer(sequence: int) -> object:
        return gpt(sequence, 2, 64, 2)

    room = planned(gpt(256, 2, 64, 2), "plain").prediction.peak_bytes[0]
    assert longest(longer, "plain", room, step=256) == 256
    assert longest(longer, "co-shard", room, step=256) > 256


@exhaustive
def test_planned_programs_take_what_is_predicted() -> None:
    """By samples, by weights where memory is short, in stages; without recomputation, in full, and keeping products.

    Selective: of a segment that runs again, outputs of products are let go that are predicted to be there still.
    """
    rows = bench("memory", small=True, only=("micro-batches",))["rows"]
    assert len(rows) == 9
    for row in rows:
        most = 1.13 if row["plan"].partition(";")[0].endswith("selective") else 1.07
        assert 0.93 * row["measured_mib"] < row["predicted_mib"] < most * row["measured_mib"]
        if row["measured_kept_mib"] is not None:
            assert row["predicted_kept_mib"] == pytest.approx(row["measured_kept_mib"], rel=0.1)
    for split in range(0, 9, 3):
        none, full, selective = rows[split : split + 3]
        assert full["measured_mib"] < selective["measured_mib"] < none["measured_mib"]
