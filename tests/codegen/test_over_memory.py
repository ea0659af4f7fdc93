"""Hand-written plans that need more memory than a device has: refused, with what is alive and what would mend it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

from partita.codegen.plan.over_memory import Mended, mended
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.formulation.pipeline.orders import gpipe
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.materialize import materialize
from partita.formulation.spacetime.peak import MOST_SHOWN, alive, shown_lines
from partita.formulation.spacetime.predict import Prediction, predict
from partita.formulation.spacetime.primitives import op_assign, op_order, op_trans, place, recompute, swap
from partita.formulation.spacetime.stages import evenly, in_order, layers, stages
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.transformation import replicate, split
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import DoesNotFitError
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.solvers.spacetime.validate import validate

Write = Callable[[Graph], object]
Run = Callable[..., tuple[int, str, str]]


@cache
def captured(sequence: int) -> PCG:
    module, inputs = load_module("gpt3-1.3b", small=True, sequence=sequence)
    return with_batch(capture(module, inputs, dropout="counters"), 8)


def written(write: Write, sequence: int = 128) -> Graph:
    made = Graph(captured(sequence))
    write(made)
    return made


def machine(devices: int, capacity_bytes: int) -> Machine:
    made = Machine.load("cpu", nodes=devices)
    memory = made.device.reserved_bytes + capacity_bytes
    return replace(made, device=replace(made.device, memory_bytes=memory))


@cache
def free(write: Write, devices: int, sequence: int = 128) -> SpaceTimePlan:
    return space_time(written(write, sequence), Machine.load("cpu", nodes=devices).without_memory_limit())


@cache
def ways(write: Write, devices: int, capacity_bytes: int, sequence: int) -> dict[str, Mended]:
    """The remedies of a plan on devices of so much memory, by their first words."""
    where = machine(devices, capacity_bytes)

    def predicted(graph: Graph) -> Prediction:
        return predict(materialize(validate(tasks(graph), devices), where), where)

    return {way.text.split()[0]: way for way in mended(predicted(written(write, sequence)), predicted)}


# Plans


def plain(graph: Graph) -> None:
    op_assign(graph.forward, 0)


def recomputed(graph: Graph) -> None:
    plain(graph)
    for layer in layers(graph):
        if layer[0].layer:
            recompute(layer)


def swapped(graph: Graph) -> None:
    plain(graph)
    for layer in layers(graph):
        if layer[0].layer:
            swap(layer)


def hosted(graph: Graph) -> None:
    plain(graph)
    swap(graph.optimizer)


def accumulated(graph: Graph, micros: int = 2) -> None:
    batches = list(zip(*(op_trans(op, split("batch", micros, "micro")) for op in graph.forward), strict=True))
    op_assign([op for ops in batches for op in ops], 0)
    for before, after in pairwise(batches):
        op_order([op.backward for op in before], after)


def pipeline(graph: Graph, limit: int = 0) -> None:
    """GPipe on two stages; with `limit` at most so many micro-batches in flight instead."""
    for op in graph.forward:
        op_trans(op, split("batch", 4, "micro"))
    parts = stages(graph, 2)
    for device, ops in enumerate(parts):
        op_assign(ops, device)
        batches = [[op for op in ops if op.coordinate("micro") == micro] for micro in range(4)]
        for before, after in zip(batches, batches[limit:] if limit else (), strict=False):
            op_order([op.backward for op in before], after)
    if not limit:
        in_order(gpipe(2, 4), parts)


def data_parallel(graph: Graph, zero: int = 0) -> None:
    for op in graph.forward:
        for device, part in enumerate(op_trans(op, split("batch", 2))):
            op_assign(part, device)
    for op in graph.optimizer:
        how = evenly(op, 2) if zero else replicate(2)
        if zero == 3:
            place(graph, op.of.name, how, [0, 1])
        for device, part in enumerate(op_trans(op, how)):
            op_assign(part, device)


# What is refused


def test_a_plan_that_just_fits_is_accepted_and_one_byte_less_refuses_it() -> None:
    peak = max(free(plain, 1).prediction.peak_bytes)
    kept = space_time(written(plain), machine(1, peak))
    assert kept.summary()["memory_bytes"] == kept.summary()["capacity_bytes"] == peak
    with pytest.raises(DoesNotFitError, match=r"device 0 needs .* at its peak, of .* that a plan may use"):
        space_time(written(plain), machine(1, peak - 1))


def test_without_a_machine_nothing_is_refused() -> None:
    assert space_time(written(plain)).summary()["capacity_bytes"] is None
    assert "no machine was named that limits it" in str(space_time(written(plain)))
    assert free(plain, 1).summary()["capacity_bytes"] is None


def test_every_device_is_compared() -> None:
    def uneven(graph: Graph) -> None:
        *most, last = stages(graph, 4)
        op_assign([op for ops in most for op in ops], 1)
        op_assign(last, 0)

    peaks = free(uneven, 2).prediction.peak_bytes
    with pytest.raises(DoesNotFitError, match="device 1 needs") as error:
        space_time(written(uneven), machine(2, peaks[0]))
    assert peaks[0] < peaks[1] and "as well" not in str(error.value)


def test_weights_gradients_states_and_activations_count_in_their_dtypes() -> None:
    program, where = free(plain, 1).program, Machine.load("cpu", nodes=1)
    parameters = sum(node.numel for node in captured(128).nodes if node.op == "parameter")
    found = {}
    for dtype in ("float32", "float64", "mixed-bfloat16"):
        predicted = predict(program, where, dtype, "adamw")
        living, item = predicted.living[0], 8 if dtype == "float64" else 4
        assert (living.always["weights"], living.always["states"]) == (item * parameters, 2 * item * parameters)
        gradients = [span for span in living.spans if span.kind == "gradients"]
        assert sum(span.size_bytes for span in gradients) >= item * parameters
        found[dtype] = predicted.memory[0].peak["activations"]
    assert found["mixed-bfloat16"] < found["float32"] < found["float64"]
    assert predict(program, where, "float32", "sgd").living[0].always["states"] == 0


# What is alive


def test_what_is_alive_adds_up_to_the_peak_largest_first() -> None:
    for write, devices in ((plain, 1), (pipeline, 2), (partial(data_parallel, zero=3), 2)):
        found = free(write, devices).prediction
        for device in range(devices):
            lines = alive(found, device)
            assert sum(line.size_bytes for line in lines) == found.peak_bytes[device]
            by_kind = {kind: sum(x.size_bytes for x in lines if x.kind == kind) for kind in found.memory[device].peak}
            assert by_kind == found.memory[device].peak
            assert [line.size_bytes for line in lines] == sorted((x.size_bytes for x in lines), reverse=True)
            assert len(shown_lines(lines)) <= MOST_SHOWN


def test_equal_layers_and_micro_batches_are_told_once_with_a_count() -> None:
    texts = [line.text for line in alive(free(pipeline, 2).prediction, 0)]
    assert "layers.*.up, for backward (2 layers; micro 1 to 4 of 4)" in texts
    assert any(re.match(r"optimizer states of \d+ parameters, \d+% of it for ", text) for text in texts)
    assert any(re.match(r"weights of \d+ parameters", text) for text in texts)
    assert any(text.startswith("inputs") for text in texts)
    resting = [line.text for line in alive(free(data_parallel, 2, sequence=16).prediction, 0)]
    assert any(text.startswith("gradients of ") for text in resting)


# What would mend it


@pytest.mark.parametrize(
    ("name", "write", "applied", "devices"),
    [
        ("recompute()", plain, recomputed, 1),
        ("swap()", plain, swapped, 1),
        ("micro-batches", plain, partial(accumulated, micros=8), 1),
        ("states", plain, hosted, 1),
        ("at", pipeline, partial(pipeline, limit=1), 2),
        ("ZeRO-1:", data_parallel, partial(data_parallel, zero=1), 2),
        ("ZeRO-3:", data_parallel, partial(data_parallel, zero=3), 2),
    ],
)
def test_a_remedy_applied_by_hand_takes_what_was_said(name: str, write: Write, applied: Write, devices: int) -> None:
    sequence = 16 if write is data_parallel else 128
    told_of = ways(write, devices, 1, sequence)[name]
    assert not told_of.fits
    peak = max(free(applied, devices, sequence).prediction.peak_bytes)
    assert told_of.peak_bytes == peak < max(free(write, devices, sequence).prediction.peak_bytes)


def test_the_mildest_that_is_enough_is_said() -> None:
    needs = {micros: max(free(partial(accumulated, micros=micros), 1).prediction.peak_bytes) for micros in (2, 4)}
    found = ways(plain, 1, needs[2], 128)["micro-batches"]
    assert found.fits and found.peak_bytes == needs[2] and '"batch", 2' in found.text
    assert '"batch", 4' in ways(plain, 1, needs[4], 128)["micro-batches"].text


def test_co_shard_splits_heads_and_hidden_units_on_their_device() -> None:
    found = ways(plain, 1, 1, 128)["co-shard:"]
    assert "('layers.*.attention.qkv.weight', 0, 1) or ('layers.*.up.weight', 0, 0)" in found.text
    assert found.peak_bytes < ways(plain, 1, 1, 128)["recompute()"].peak_bytes


def test_remedies_of_different_sorts_are_also_tried_together() -> None:
    found = ways(pipeline, 2, 1, 128)
    assert found["numbers"].peak_bytes < min(way.peak_bytes for name, way in found.items() if name != "numbers")
    peak = found["numbers"].peak_bytes
    assert ways(pipeline, 2, peak, 128)["numbers"].fits


def test_what_does_not_apply_is_not_proposed() -> None:
    assert {"recompute()", "swap()", "co-shard:"}.isdisjoint(
        ways(recomputed, 1, 1, 128)
    )  # nothing is left to recompute
    assert {"ZeRO-1:", "ZeRO-3:"}.isdisjoint(ways(plain, 1, 1, 128))  # no parameter is on two devices
    assert "states" not in ways(hosted, 1, 1, 128)
    assert "micro-batches" not in ways(pipeline, 2, 1, 128) and "at" not in ways(plain, 1, 1, 128)
    where = machine(1, 1)
    no_host = replace(where, device=replace(where.device, host_bandwidth=None))
    with pytest.raises(DoesNotFitError) as error:
        space_time(written(plain), no_host)
    assert "recompute()" in str(error.value) and "swap()" not in str(error.value)  # nor of updates


def test_trying_remedies_leaves_the_plan_as_it_is() -> None:
    graph = written(partial(pipeline))
    with pytest.raises(DoesNotFitError):
        space_time(graph, machine(2, 1))
    unlimited = Machine.load("cpu", nodes=2).without_memory_limit()
    assert space_time(graph, unlimited).source() == free(pipeline, 2).source()
    assert space_time(graph.copy(), unlimited).prediction.peak_bytes == free(pipeline, 2).prediction.peak_bytes


# On the command line


PLAN = """
from partita import op_assign

MODEL, SEQUENCE, DEVICES, BATCH = "gpt3-1.3b", 128, 1, 8


def plan(graph, devices):
    op_assign(graph.forward, 0)
"""


def test_the_command_line_says_so_in_lines_and_writes_nothing(partita: Run, tmp_path: Path) -> None:
    file, where = tmp_path / "plan.py", tmp_path / "small.yaml"
    file.write_text(PLAN)
    text = (Path(__file__).parents[2] / "model" / "machine" / "presets" / "cpu.yaml").read_text()
    where.write_text(text.replace("value: 5e9", "value: 510e6"))
    code, out, err = partita("check", file, "--machine", where, "-o", tmp_path / "kept")
    lines = err.splitlines()
    assert (code, out, "Traceback" in err) == (2, "", False)
    assert lines[0].startswith("partita: the plan does not fit cpu: device 0 needs ")
    assert lines[1] == "alive at the peak of device 0:" and any(" fits: " in line for line in lines)
    assert not (tmp_path / "kept").exists()
    code, out, _ = partita("check", file, "-o", tmp_path / "kept")
    assert (code, "no machine was named" in out) == (0, True)
