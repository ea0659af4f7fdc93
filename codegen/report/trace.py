"""One predicted step as a timeline for Perfetto.

Without a pipeline these are the priced items in the order in which they run; with one, the slots of the schedule.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ...model.graph.layout import COLLECTIVES
from ...model.graph.segments import segments
from ..plan.plan import Plan
from ..pricing.pipeline_runs import SHARED, SlotRun, runs
from ..pricing.plan_price import PlanPrice
from ..pricing.price_items import Item, Phase, PriceSlot, StagePrice
from .cost_tables import why
from .facts import Facts
from .words import contents

Event: TypeAlias = dict[str, Any]
_Window: TypeAlias = tuple[list[Item], list[Item], list[Item]]
"""Streams that run at the same time: kernels, traffic, and the host, with what it needs for each of these."""

_COLLECTIVE = frozenset(action.value for action in COLLECTIVES)
DEVICE = 0  # the track of the device itself; one for each group of axes follows


def timeline(facts: Facts) -> dict[str, Any]:
    """The trace's JSON: `ts` and `dur` in us."""
    if facts.plan.size > 1:
        events = _slots(facts.plan, facts.price, facts.title)
    else:
        events = _items(facts.plan, facts.price.stages[0], facts.title)
    return {"displayTimeUnit": "ms", "traceEvents": events}


# Slots of a pipeline


def _slots(plan: Plan, price: PlanPrice, title: str) -> list[Event]:
    """A track for every coordinate of the pipeline."""
    events = [_name("process_name", 0, title)]
    for device in range(plan.size):
        own = ", ".join(
            contents(plan.stages[stage].graph) for stage in plan.schedule.stages_of(device, plan.size, len(plan.stages))
        )
        events.append(_name("thread_name", device, f"pipeline {device}: {own}"))
    return events + [_slot(run) for run in runs(plan, price.stages, price.shared) if run.length_ns]


def _slot(run: SlotRun) -> Event:
    details = {"stage": "all devices" if run.stage == SHARED else run.stage} | (
        {"micro_batch": run.micro_batch} if run.micro_batch >= 0 else {}
    )
    name = f"{run.kind} {run.micro_batch}" if run.micro_batch >= 0 else run.kind
    return _slice(name, run.kind, run.device, run.start_ns, run.length_ns) | {"args": details}


# Items of a single stage


def _items(plan: Plan, price: StagePrice, title: str) -> list[Event]:
    """The last item ends with the step: beside a layer's kernels run its traffic and the host, the rest in turn.

    Of more than two micro-batches the first and the last are shown in full, those between as one block.
    """
    k = plan.micro_batches
    items = [_once(item, k) for item in price.items]
    groups = sorted({item.axes for item in items if item.kind in _COLLECTIVE})
    tracks = {axes: DEVICE + 1 + number for number, axes in enumerate(groups)}
    late = [item for item in items if item.phase == "update" and item.reduces and item.at in price.layer_of]
    update = [item for item in _ordered(items, "update") if item not in late]
    forward, backward = _beside(price, _ordered(items, "forward")), list(_backward(plan, items))
    micro, last = forward + _beside(price, backward), forward + _beside(price, [*backward, *late])
    events = [_name("process_name", DEVICE, f"every rank of {title}"), _name("thread_name", DEVICE, "device")]
    for axes, track in tracks.items():
        events.append(_name("thread_name", track, "+".join(plan.axes[a] for a in axes)))
    copies = DEVICE + 1 + len(groups)
    if any(item.hides and item.kind not in _COLLECTIVE for item in items if item.at in price.layer_of):
        events.append(_name("thread_name", copies, "copies of weights"))
    host = copies + 1
    if price.host_ns and price.layer_of:
        events.append(_name("thread_name", host, "host"))
    now = 0

    def run(windows: Sequence[_Window], words: str) -> None:
        nonlocal now
        for window in windows:
            for own, stream in zip((DEVICE, copies, host), window, strict=True):
                start = now
                for item in stream:
                    if item.ns:
                        track = tracks[item.axes] if item.kind in _COLLECTIVE and own != host else own
                        events.append(_event(plan, item, track, start, words))
                        start += item.ns
            now += _length(window)

    run(micro if k > 1 else last, "micro-batch 1")
    if k > 2:
        length = (k - 2) * sum(map(_length, micro))
        words = f"{k - 2} more micro-batches, like the first"
        events.append(_slice(words, "micro-batches", DEVICE, now, length))
        now += length
    if k > 1:
        run(last, f"micro-batch {k}")
    run([([item], [], []) for item in update], "once a step")
    assert now == price.objective_ns, (now, price.objective_ns)
    return events


def _beside(price: StagePrice, items: Iterable[Item]) -> list[_Window]:
    """The items of a phase as windows: of a layer that hides traffic its three streams; other items alone."""
    found: dict[object, _Window] = {}
    for number, item in enumerate(items):
        layer = price.layer_of.get(item.at)
        window = found.setdefault(number if layer is None else layer, ([], [], []))
        window[layer is not None and item.hides].append(item)
        if layer is not None:
            window[2].append(replace(item, ns=item.calls * price.host_ns))
    return list(found.values())


def _length(window: _Window) -> int:
    return max(sum(item.ns for item in stream) for stream in window)


def _once(item: Item, micro_batches: int) -> Item:
    """An item with all its repetitions in one micro-batch: a special strategy may send several times."""
    times = 1 if item.phase == "update" else item.count // micro_batches
    return replace(item, ns=item.ns * times, count=item.count // times, calls=item.calls * times)


def _ordered(items: Sequence[Item], phase: Phase) -> Iterator[Item]:
    """The items of forward as they run through the graph, or of the update."""
    found = [(number, item) for number, item in enumerate(items) if item.phase == phase]
    found.sort(key=lambda pair: (pair[1].at if phase == "forward" else 0, pair[1].slot, pair[0]))
    return (item for _, item in found)


def _backward(plan: Plan, items: Sequence[Item]) -> Iterator[Item]:
    """The items of backward, in reverse; a recomputed segment's forward comes before its backward."""
    last = {i: s.nodes[-1] for s in (segments(plan.graph) if plan.recompute else ()) for i in s.nodes}

    def place(pair: tuple[int, Item]) -> tuple[int, ...]:
        number, item = pair
        if item.phase == "recompute":
            return -last[item.at], 0, item.at, item.slot, number
        # A weight that is gathered again takes the same moves as forward.
        return -item.at, 1, -item.slot, number if item.slot is PriceSlot.REGATHER else -number

    found = [pair for pair in enumerate(items) if pair[1].phase in ("recompute", "backward")]
    return (item for _, item in sorted(found, key=place))


def _event(plan: Plan, item: Item, track: int, now: int, words: str) -> Event:
    node = plan.graph.nodes[item.node]
    details: dict[str, Any] = {"when": f"{words}, {item.phase}"}
    if item.kind in _COLLECTIVE:
        details |= {"purpose": why(item), "bytes": item.bytes}
    return _slice(f"{node.name} {item.kind}", item.part, track, now, item.ns) | {"args": details}


def _slice(name: str, category: str, track: int, start_ns: int, length_ns: int) -> Event:
    span = {"ts": start_ns / 1e3, "dur": length_ns / 1e3}
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": track, **span}


def _name(kind: str, track: int, words: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": track, "args": {"name": words}}
