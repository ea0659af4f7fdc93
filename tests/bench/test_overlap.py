"""The bench of overlapped programs: both forms run, and what is made of their times."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from partita.bench import bench
from partita.bench import overlap as overlap_bench
from partita.bench.emulated import Emulation
from partita.bench.known_plans import DATA, planned
from partita.bench.network import described
from partita.bench.overlap import CASES, Case, compared, hops, latency_of, measure, slowed, totals, with_latency
from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.program import Reduction, flat
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine


def test_both_forms_run_on_loopback() -> None:
    result = bench("overlap", small=True)
    (row,) = result["rows"]
    assert result["not_run"] == 0, row["why"]
    assert row["overlapped"] > 0 and row["waiting"] > 0 and row["why"] in ("", "both forms are the same program")
    assert result["worst_on_loopback"] == row["overlapped"] / row["waiting"]
    assert (result["cases"], result["not_run"], result["predicted"]) == (1, 0, 0)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_rows_say_why_no_network_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PartitaError("no network can be emulated: only root may")

    monkeypatch.setattr(overlap_bench, "emulated", refuse)
    row = measure(Case("gpt, tiny", DATA, 2, 100e6, rounds=5, steps=2, samples=4))
    assert row["why"] == "no network can be emulated: only root may" and row["overlapped"] is None
    assert totals([row])["not_run"] == 1


def test_totals() -> None:
    base = {"network": "100 Mbit/s", "waiting": 2.0, "overlapped": 1.5}
    good = base | {"predicted_waiting": 2.1, "predicted_overlapped": 1.5}
    far = base | {"predicted_waiting": 2.0, "predicted_overlapped": 1.0}
    rows = [row | compared(row) for row in (good, far)]
    assert [row["share"] for row in rows] == pytest.approx([0.5 / 0.6, 0.5])
    local = {"network": "loopback", "waiting": 1.0, "overlapped": 1.1, "ratio": None, "share": None}
    found = totals([*rows, local])
    assert found == {
        "cases": 3,
        "not_run": 0,
        "predicted": 2,
        "within_15": 1,
        "least_share_of_gain": pytest.approx(0.5),
        "worst_on_loopback": pytest.approx(1.1),
    }
    nothing = base | {"predicted_waiting": 2.0, "predicted_overlapped": 2.0}
    assert compared(nothing)["share"] is None  # where no gain is predicted there is no share of it


def test_a_slower_device_prices_longer_steps() -> None:
    cpu = Machine.load("cpu")
    slow = slowed(cpu, 2.0).device
    assert slow.flops("float32") == cpu.device.flops("float32") / 2 and slow.launch_ns == 2 * cpu.device.launch_ns


@pytest.mark.parametrize("size_bytes", [64, 100_000])
def test_latency_is_what_a_reduction_takes_beyond_its_bytes(size_bytes: int) -> None:
    network = described(Emulation((6, 1), (50e6,)))
    axis = Reduction(of_rows([network.hierarchy]), (0,))
    latency_ns = latency_of(network, 1e8, size_bytes)
    priced = program_price(with_latency(network, latency_ns), axis, flat(axis.sizes))
    assert 0 < latency_ns < 1e8 / hops(6) and priced.ns(size_bytes) == pytest.approx(1e8, rel=0.01)
    assert latency_of(network, 1e5, 100_000) == 0  # faster than its bytes


@pytest.mark.parametrize(
    ("latency_ns", "hidden_share", "least"),
    [(1.0, 1.0, 1_000_000), (1e5, 1.0, 3_300_000), (1e5, 0.5, 6_500_000), (1e5, 0.01, 25_000_000)],
)
def test_buckets_grow_with_latency(latency_ns: float, hidden_share: float, least: int) -> None:
    """As the preset has it: 6 hops of 1e5 ns are a tenth of what 3.2 MB take at 1.5 / 0.8 ns a byte, and a launch.

    Where half of a message hides, twice the bytes; where nothing does, a full bucket.
    """
    machine = with_latency(replace(Machine.load("cpu", nodes=4), hidden_share=hidden_share), latency_ns)
    assert f"LEAST = {least:_} " in planned("gpt, tiny", DATA, machine, 4).emit()


def test_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
