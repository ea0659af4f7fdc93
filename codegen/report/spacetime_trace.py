"""A predicted step as a timeline for Perfetto (ui.perfetto.dev): Chrome's trace events, `ts` and `dur` in us.

Every device is a process with a thread for each stream: computing, collectives, weights, copies to and from the host,
messages that it sends and that it receives.
Consecutive operators of one phase and micro-batch are children of one slice. Arrows lead from a send to its receive; a
counter shows the memory.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...formulation.spacetime.materialized import Collective, Receive, Run, Send, reads, writes
from ...formulation.spacetime.op import Cut
from ...formulation.spacetime.predict import Prediction, Timed
from ...formulation.spacetime.timeline import COMPUTE, STREAMS
from ...model.graph.pcg import PCG

Event = dict[str, Any]


def timeline(prediction: Prediction) -> dict[str, Any]:
    """The trace's JSON."""
    pcg = prediction.program.tasks.graph.pcg
    events: list[Event] = []
    for device, own in enumerate(prediction.devices):
        used = {timed.stream for timed in own if timed.ns}
        events.append(_named("process_name", device, 0, f"device {device}"))
        events += [_named("thread_name", device, t, s) for t, s in enumerate(STREAMS) if s in used]
        events += _slices(pcg, device, own)
        events += _arrows(device, own, prediction.looped.count)
        for ns, size in prediction.memory[device].over_time:
            counted = {"name": "memory", "ph": "C", "pid": device, "ts": ns / 1e3, "args": {"MiB": size / 2**20}}
            events.append(counted)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _slices(pcg: PCG, device: int, own: Sequence[Timed]) -> Iterator[Event]:
    """The slices of all instructions that take time, and around each group of operators a slice for the group."""
    several = _several(own)
    shown = [timed for timed in own if timed.ns]
    computed = [timed for timed in shown if timed.stream == COMPUTE]
    for words, run in _runs(computed, several):
        first, last = run[0], run[-1]
        details = {"from": _name(pcg, first), "to": _name(pcg, last), "operators": len(run)}
        yield _slice(words, device, COMPUTE, first.start_ns, last.end_ns, details)
    for timed in shown:
        details = {"bytes": timed.size_bytes} if timed.size_bytes else {}
        name = _name(pcg, timed)
        yield _slice(name, device, timed.stream, timed.start_ns, timed.end_ns, details)


def _runs(computed: Sequence[Timed], several: frozenset[str]) -> Iterator[tuple[str, list[Timed]]]:
    """Consecutive slices of one group; data movement on the device belongs to the group before it."""
    words, end, run = "", 0, list[Timed]()
    for timed in computed:
        now = (
            _group(timed.instruction, timed.micro, several)
            if isinstance(timed.instruction, Run)
            else words or "data movement"
        )
        if run and (now != words or timed.start_ns > end):
            yield words, run
            run = []
        words, end = now, timed.end_ns
        run.append(timed)
    if run:
        yield words, run


def _several(own: Sequence[Timed]) -> frozenset[str]:
    """The labels of cuts of which a device runs several parts of one node: micro-batches, parts in sequence."""
    parts: dict[tuple[int, object, str], set[int]] = defaultdict(set)
    for timed in own:
        if isinstance(timed.instruction, Run):
            op = timed.instruction.op
            for cut in op.cuts:
                parts[op.node, op.phase, cut.label].add(cut.number)
    return frozenset(label for (_, _, label), numbers in parts.items() if len(numbers) > 1)


def _words(cut: Cut, micro: int) -> str:
    """The number of a part; of a template's micro-batch, that for which it runs."""
    return cut.numbered(micro) if cut.of else str(cut)


def _group(run: Run, micro: int, several: frozenset[str]) -> str:
    """The phase and the cuts that consecutive operators share: `backward micro 2/4`."""
    return " ".join([run.op.phase.value, *(_words(cut, micro) for cut in run.op.cuts if cut.label in several)])


def _name(pcg: PCG, timed: Timed) -> str:
    instruction = timed.instruction
    if isinstance(instruction, Run):
        return instruction.op.named(_words(cut, timed.micro) for cut in instruction.op.cuts)
    register = (*writes(instruction), *reads(instruction))[0]
    what = {"value": ""}.get(register.tensor.kind, f"{register.tensor.kind} of ")
    kind = (
        instruction.kind.replace("_", "-")
        if isinstance(instruction, Collective)
        else type(instruction).__name__.lower()
    )
    return f"{kind} {what}{pcg.nodes[register.tensor.node].name}"


def _arrows(device: int, own: Sequence[Timed], micros: int) -> Iterator[Event]:
    """Both ends of every message; one of a loop is sent for each of its micro-batches."""
    for timed in own:
        if isinstance(timed.instruction, Send | Receive):
            sent = isinstance(timed.instruction, Send)
            end = {"ph": "s"} if sent else {"ph": "f", "bp": "e"}
            number = timed.instruction.key * micros + timed.micro
            at = {"id": number, "pid": device, "tid": STREAMS.index(timed.stream)}
            yield {"name": "message", "cat": "transfer", **end, **at, "ts": timed.start_ns / 1e3}


def _slice(name: str, device: int, stream: str, start_ns: int, end_ns: int, details: Mapping[str, Any]) -> Event:
    place = {"pid": device, "tid": STREAMS.index(stream), "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"name": name, "cat": stream, "ph": "X", **place, "args": dict(details)}


def _named(kind: str, device: int, thread: int, words: str) -> Event:
    return {"name": kind, "ph": "M", "pid": device, "tid": thread, "args": {"name": words}}
