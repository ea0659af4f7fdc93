"""Measured kernels: exact where they were measured, between the least and the greatest ratio elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.model.errors import PartitaError
from partita.model.graph.pcg import Node
from partita.model.machine.kernel_times import KernelTimes
from partita.model.machine.machine import PRESETS, Device, Machine
from partita.model.machine.measured_kernels import least_ratio, measured_ratio, ratios_of, roofline_ns
from partita.model.machine.merged_device import merged_device
from partita.model.machine.roofline import Roofline

OF = ("linear", "float32", "forward")
CPU = Machine.load("cpu")
counts = st.tuples(*[st.floats(1, 1e12)] * 2, st.sampled_from([0.0, 1.0, 3.0]), st.floats(1e3, 1e9))
tables = st.lists(counts, min_size=1, max_size=8, unique_by=lambda p: (round(np.log2(p[0])), round(np.log2(p[1]))))


def device(points: list[tuple[float, float, float, float]]) -> Device:
    return replace(CPU.device, kernels=(KernelTimes(*OF, tuple(points)),))


@given(tables)
def test_what_was_measured_is_predicted(points: list[tuple[float, float, float, float]]) -> None:
    own = device(points)
    for flops, size_bytes, kernels, ns in points:
        roofline = float(roofline_ns(own, "float32", np.float64(flops), np.float64(size_bytes), kernels))
        assert roofline * measured_ratio(own, OF, flops, size_bytes) == pytest.approx(ns, rel=1e-6)


@given(tables, st.lists(st.tuples(st.floats(0, 1e13), st.floats(0, 1e13)), min_size=1, max_size=9))
def test_no_interpolation_leaves_the_measured_ratios(points: list, places: list[tuple[float, float]]) -> None:
    own = device(points)
    known = ratios_of(own, *OF)
    assert known is not None
    found = known.at(*np.array(places).T)
    assert (found >= known.least).all() and (found <= np.exp(known.ratio.max())).all()
    assert [measured_ratio(own, OF, *place) for place in places] == pytest.approx(found.tolist(), rel=1e-12)


def test_a_roofline_counts_them_by_operator_phase_and_dtype() -> None:
    own = replace(CPU, device=device([(1e6, 1e4, 1.0, 5e6)]))
    node, work, size = Node("linear", "x"), np.array([1e6]), np.array([1e4])
    plain, measured = Roofline(CPU, "float32"), Roofline(own, "float32")
    assert measured.ns(work, size, 1.0, measured.measured(node, "forward")).tolist() == [5_000_000]
    for other in (None, ("linear", "backward"), ("matmul", "forward")):
        assert measured.ns(work, size, 1.0, other) == plain.ns(work, size, 1.0)
    double = Roofline(own, "float64")
    assert double.ns(work, size, 1.0, ("linear", "forward")) == Roofline(CPU, "float64").ns(work, size, 1.0)


def test_compiled_layers_take_measured_products_only() -> None:
    roofline = Roofline(CPU, "float32", compiled=True)
    assert roofline.measured(Node("matmul", "x"), "forward") == ("matmul", "forward")
    assert roofline.measured(Node("gelu", "x"), "forward") is None


@pytest.mark.parametrize("launches", [True, False])
def test_devices_together_are_no_slower_than_apart(launches: bool) -> None:
    own = replace(CPU, device=device([(1e6, 1e4, 1.0, 3e5), (1e9, 1e7, 1.0, 9e9), (1e3, 1e3, 1.0, 2e3)]))
    merged = merged_device(own, 4, launches)
    assert least_ratio(merged.device, *OF) == pytest.approx(least_ratio(own.device, *OF))
    draw = np.random.default_rng(0)
    work, size = 10 ** draw.uniform(2, 11, 200), 10 ** draw.uniform(2, 9, 200)
    apart = Roofline(own, "float32").ns(work / 4, size / 4, 1.0, ("linear", "forward"))
    together = Roofline(merged, "float32").ns(work, size, 1.0, ("linear", "forward"))
    assert (together <= apart).all()


def test_leaving_one_out() -> None:
    known = ratios_of(device([(1e6, 1e4, 1.0, 1e5), (1e7, 1e5, 1.0, 1e6)]), *OF)
    assert known is not None
    first, second = known.leave_one_out()  # the only other point's ratio, by the own
    assert first * second == pytest.approx(1) and first == pytest.approx(np.exp(known.ratio[1] - known.ratio[0]))


# Files


LINES = '["1e9 4e6 1 70000000", "1e8 1e6 1 2000000"]'


def written(tmp_path: Path, points: str, phase: str = "forward") -> Path:
    text = (PRESETS / "cpu.yaml").read_text()
    of = f"op: linear, dtype: float32, phase: {phase}, source: measured"
    (tmp_path / "own.yaml").write_text(f"{text}  kernels:\n    - {{{of}, points: {points}}}\n")
    return tmp_path / "own.yaml"


def test_a_machine_file_has_them(tmp_path: Path) -> None:
    machine = Machine.load(written(tmp_path, LINES))
    assert machine.device.kernels == (KernelTimes(*OF, ((1e9, 4e6, 1, 7e7), (1e8, 1e6, 1, 2e6))),)
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


@pytest.mark.parametrize(
    ("points", "phase", "words"),
    [
        ('["1 2 3"]', "forward", "four numbers"),
        ('["1 2 3 x"]', "forward", "four numbers"),
        ("[]", "forward", "at least 1 item"),
        ('["1 2 3 0"]', "forward", "no point"),
        ('["0 0 0 5"]', "forward", "no point"),
        ('["1 1 0 1e29"]', "forward", "no point"),
        ('["1 2 -3 4"]', "forward", "not a number of 0 or more"),
        ('["1 nan 3 4"]', "forward", "not a number of 0 or more"),
        (LINES, "sideways", "no phase"),
    ],
)
def test_wrong_points_are_refused(tmp_path: Path, points: str, phase: str, words: str) -> None:
    with pytest.raises(PartitaError, match=words) as caught:
        Machine.load(written(tmp_path, points, phase))
    assert "own.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_tables_are_of_known_dtypes_and_listed_once() -> None:
    data = CPU.to_json()
    table = KernelTimes(*OF, ((1.0, 1.0, 1.0, 5.0),)).to_json()
    for kernels, words in (([table, table], "twice"), ([table | {"dtype": "float8"}], "no peak for float8")):
        with pytest.raises(ValueError, match=words):
            Machine.from_json(data | {"device": data["device"] | {"kernels": kernels}})
