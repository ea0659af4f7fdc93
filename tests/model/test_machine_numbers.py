"""Errors of a machine's numbers: what files state, what follows where they are silent, and machines with one moved."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from partita import Machine, PartitaError
from partita.model.machine.machine import PRESETS, machines
from partita.model.machine.machine_numbers import blended, improves, moved, numbers, uncertain
from partita.model.machine.number_errors import ASSUMED, DEFAULT_ERROR

TEXT = (PRESETS / "dgx-a100.yaml").read_text().replace("size: {value: 1,", "size: {value: 2,")


def load(tmp_path: Path, text: str) -> Machine:
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    return Machine.load(file)


def with_error(text: str, field: str, error: object) -> str:
    """The text with an error for the first number of this name."""
    assert f"{field}: {{" in text
    return text.replace(f"{field}: {{", f"{field}: {{error: {error}, ", 1)


def test_a_stated_error_replaces_the_default(tmp_path: Path) -> None:
    silent = uncertain(load(tmp_path, TEXT))
    assert silent["device.matmul_efficiency"] == DEFAULT_ERROR  # fitted
    assert silent["device.launch_ns"] == ASSUMED  # its source says assumption
    assert silent["levels.0.bandwidth"] == ASSUMED  # 80 % (assumption) of a data sheet
    text = with_error(with_error(with_error(TEXT, "matmul_efficiency", 0.03), "launch_ns", 0.4), "bfloat16", 0.5)
    stated = uncertain(load(tmp_path, text))
    changed = {"device.matmul_efficiency": 0.03, "device.launch_ns": 0.4, "device.peak.bfloat16": 0.5}
    assert stated == silent | changed


def test_only_a_stated_error_moves_the_memory(tmp_path: Path) -> None:
    assert "device.memory_bytes" not in uncertain(load(tmp_path, TEXT))
    assert uncertain(load(tmp_path, with_error(TEXT, "memory_bytes", 0.05)))["device.memory_bytes"] == 0.05


@pytest.mark.parametrize("error", [0, 1, -0.1, ".inf", "lots"])
def test_an_error_is_a_share(tmp_path: Path, error: object) -> None:
    with pytest.raises(PartitaError, match=r"machine\.yaml: device\.launch_ns\.error: ") as caught:
        load(tmp_path, with_error(TEXT, "launch_ns", error))
    assert "\n" not in str(caught.value)


def test_a_size_has_no_error(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match=r"levels\.0\.size\.error: is not a field"):
        load(tmp_path, with_error(TEXT, "size", 0.1))


def test_errors_change_neither_the_machine_nor_its_name_and_are_kept(tmp_path: Path) -> None:
    silent, stated = load(tmp_path, TEXT), load(tmp_path, with_error(TEXT, "matmul_efficiency", 0.03))
    assert silent == stated and hash(silent) == hash(stated)
    again = Machine.from_json(json.loads(json.dumps(stated.to_json())))
    assert again.errors == stated.errors and again.to_json() == stated.to_json()
    assert again.with_nodes(4).errors == stated.errors


def test_machines_of_older_plan_files_have_the_default() -> None:
    data = Machine.load("dgx-h100").to_json()
    del data["errors"]
    assert set(uncertain(Machine.from_json(data)).values()) == {DEFAULT_ERROR}


@pytest.mark.parametrize("errors", [{"device.launch_ns": 1.0}, {"device.launch_ns": "much"}, {"device.launch_ns": 0}])
def test_malformed_errors_are_refused(errors: object) -> None:
    with pytest.raises(ValueError, match=r"rate|share|number"):
        Machine.from_json(Machine.load("dgx-h100").to_json() | {"errors": errors})


@pytest.mark.parametrize("name", machines())
def test_a_moved_number_is_the_only_one_that_changes(name: str) -> None:
    machine = Machine.load(name).with_nodes(2)
    before = numbers(machine)
    for path, error in uncertain(machine).items():
        after = numbers(moved(machine, path, 1 - error))
        assert {p for p in before if after[p] != before[p]} == {path}
        assert after[path] == pytest.approx(before[path] * (1 - error))


def test_moved_shares_stay_shares_and_whole_numbers_whole() -> None:
    machine = Machine.load("p5-h100")
    device = replace(machine.device, matmul_efficiency=0.95)
    assert moved(replace(machine, device=device), "device.matmul_efficiency", 1.1).device.matmul_efficiency == 1.0
    assert isinstance(moved(machine, "device.host_ns", 1.0123).device.host_ns, int)


def test_single_units_and_bandwidths_of_wired_levels_are_left_out() -> None:
    found = uncertain(Machine.load("gcp-v100"))
    assert not any(path.startswith("levels.0") for path in found)  # one node
    assert "levels.1.bandwidth" not in found and "levels.1.wiring.switches.0.bandwidth" in found


def test_more_bandwidth_and_less_latency_are_better() -> None:
    assert improves("levels.0.bandwidth", 1.1) and improves("levels.0.latency_ns", 0.9)
    assert not improves("levels.0.bandwidth", 0.9) and not improves("device.reserved_bytes", 1.1)


def test_a_blend_has_geometric_means() -> None:
    one, two = Machine.load("dgx-a100"), Machine.load("dgx-h100")
    blend = blended([one, two])
    assert blend is not None
    for path, mean in numbers(blend).items():
        assert mean == pytest.approx(math.sqrt(numbers(one)[path] * numbers(two)[path])), path
    assert blended([one, one]) == one
    assert blended([two, Machine.load("p5-h100")]) is None  # which has host_ns
    assert blended([one, one.with_nodes(2)]) is None


def test_a_transaction_has_no_error(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match=r"transaction_bytes\.error: is not a field"):
        load(tmp_path, with_error(TEXT, "transaction_bytes", 0.1))
    machine = load(tmp_path, TEXT)
    named = Machine.from_json(
        machine.to_json() | {"errors": {"device.transaction_bytes": 0.5, "device.launch_ns": 0.5}}
    )
    assert "device.transaction_bytes" not in uncertain(named) and uncertain(named)["device.launch_ns"] == 0.5


def test_a_blend_changes_all_numbers_at_once(tmp_path: Path) -> None:
    """One at a time, a device would reserve more than its memory on the way."""
    one = load(tmp_path, TEXT)
    large, small = (
        replace(one, device=replace(one.device, memory_bytes=memory, reserved_bytes=reserved))
        for memory, reserved in ((16 * 10**9, 8 * 10**9), (3 * 10**9, 5 * 10**8))
    )
    blend = blended([large, small])
    assert blend is not None and blend.device.reserved_bytes == 2 * 10**9
