"""The timeline of a predicted step: a trace that Perfetto reads, with all that the prediction says."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from partita.codegen.report.spacetime_trace import timeline
from partita.formulation.pipeline.orders import one_f_one_b
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.materialize import materialize
from partita.formulation.spacetime.predict import Prediction, predict
from partita.formulation.spacetime.primitives import op_assign, op_trans, swap
from partita.formulation.spacetime.stages import in_order, stages
from partita.formulation.spacetime.tasks import tasks
from partita.formulation.spacetime.timeline import STREAMS
from partita.formulation.spacetime.transformation import split
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.batch import with_batch
from partita.model.machine.machine import Machine
from partita.solvers.spacetime.validate import validate

Event = dict[str, Any]


@cache
def predicted() -> Prediction:
    """A pipeline of two stages and two micro-batches, of which the first stage is swapped."""
    module, inputs = load_module("llama-7b", small=True)
    graph = Graph(with_batch(capture(module, inputs), 4))
    for op in graph.forward:
        op_trans(op, split("batch", 2, "micro"))
    parts = stages(graph, 2)
    for device, ops in enumerate(parts):
        op_assign(ops, device)
    swap(parts[0])
    in_order(one_f_one_b(2, 2), parts)
    machine = Machine.load("dgx-a100")
    return predict(materialize(validate(tasks(graph)), machine), machine)


@pytest.fixture(scope="module")
def events() -> list[Event]:
    trace = json.loads(json.dumps(timeline(predicted()), allow_nan=False))
    assert trace.keys() == {"displayTimeUnit", "traceEvents"}
    found: list[Event] = trace["traceEvents"]
    return found


def slices(events: list[Event], device: int, stream: str) -> list[Event]:
    thread = STREAMS.index(stream)
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (device, thread)]


def test_every_event_has_what_the_format_asks(events: list[Event]) -> None:
    asked = {"X": {"ts", "dur", "tid"}, "M": {"args", "tid"}, "C": {"ts", "args"}, "s": {"ts", "id"}, "f": {"ts", "id"}}
    for event in events:
        assert {"name", "pid", "ph"} | asked[event["ph"]] <= event.keys()
        assert all(event.get(key, 0) >= 0 for key in ("ts", "dur"))


def test_a_device_is_a_process_with_a_thread_for_each_stream(events: list[Event]) -> None:
    named = {(e["pid"], e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert named == {
        *((device, "process_name", f"device {device}") for device in (0, 1)),
        *((device, "thread_name", stream) for device in (0, 1) for stream in ("compute", "sends", "receives")),
        (0, "thread_name", "host"),
    }


def test_slices_nest_and_end_with_the_step(events: list[Event]) -> None:
    ends = []
    for device in (0, 1):
        for stream in STREAMS:
            mine = sorted(slices(events, device, stream), key=lambda e: (e["ts"], -e["dur"]))
            open_: list[float] = []
            for event in mine:
                end = event["ts"] + event["dur"]
                while open_ and open_[-1] <= event["ts"] + 1e-6:
                    open_.pop()
                assert not open_ or end <= open_[-1] + 1e-6, event
                open_.append(end)
                ends.append(end)
    assert max(ends) == pytest.approx(predicted().step_ns / 1e3)


def test_operators_stand_in_their_micro_batch(events: list[Event]) -> None:
    """1F1B on the last device: forward and backward of the first micro-batch, then of the second."""
    groups = [e for e in slices(events, 1, "compute") if "operators" in e["args"]]
    words = [e["name"] for e in groups]
    assert list(dict.fromkeys(words)) == [
        f"{phase} micro {k}/2" for k in (1, 2) for phase in ("forward", "backward")
    ] + ["update"]
    inside = [e for e in slices(events, 1, "compute") if "operators" not in e["args"]]
    assert sum(e["args"]["operators"] for e in groups) == len(inside)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(groups))


def test_arrows_lead_from_sends_to_receives(events: list[Event]) -> None:
    ends = {ph: {e["id"]: e for e in events if e["ph"] == ph} for ph in "sf"}
    assert ends["s"].keys() == ends["f"].keys() and len(ends["s"]) >= 4
    for key, start in ends["s"].items():
        finish = ends["f"][key]
        assert start["pid"] != finish["pid"] and finish["bp"] == "e" and start["ts"] <= finish["ts"]
        for end, stream in ((start, "sends"), (finish, "receives")):
            assert any(e["ts"] == end["ts"] for e in slices(events, end["pid"], stream))


def test_the_counter_reaches_the_peak(events: list[Event]) -> None:
    for device, most in enumerate(predicted().peak_bytes):
        counted = [e for e in events if e["ph"] == "C" and e["pid"] == device]
        assert max(e["args"]["MiB"] for e in counted) * 2**20 == most
        assert [e["ts"] for e in counted] == sorted({e["ts"] for e in counted})


def test_the_host_s_slices_say_what_they_move(events: list[Event]) -> None:
    moved = Counter[bool]()
    for event in slices(events, 0, "host"):
        moved[" offload" in event["name"]] += event["args"]["bytes"]
    assert moved[True] == moved[False] > 0
