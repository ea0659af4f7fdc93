"""The orders in emitted programs are those that are priced, and their messages meet, however little is buffered."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from partita.codegen.verification.worker import load_program
from partita.formulation.pipeline.schedule import schedule_named, schedule_names
from partita.formulation.pipeline.stage_transfers import messages

from .pipelines import captured, piped

SCHEDULES = [
    name for name in schedule_names() if name != "solve" and not schedule_named(name).by_operators
]  # which have no order of their own, or none without operators on all devices
KINDS = {"F": "forward", "B": "backward", "W": "weights"}


def emitted(schedule: str, overlap: bool, folder: Path) -> ModuleType:
    chunks = 2 if schedule == "interleaved" else 1
    plan = piped(captured("mlp", 24), (2,), (2,), 4, schedule=schedule, chunks=chunks)
    replace(plan, stages=tuple(replace(part, overlap=overlap) for part in plan.stages)).emit(folder / "program.py")
    return load_program(folder / "program.py")


@pytest.fixture(scope="module", params=SCHEDULES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ModuleType]:
    return str(request.param), emitted(str(request.param), True, tmp_path_factory.mktemp("program"))


def sizes(schedule: str) -> list[tuple[int, int, int]]:
    """Devices, stages of each, micro-batches."""
    counts = [(p, v, k) for p in (2, 3, 4, 7) for v in (1, 2, 3) for k in (1, 2, 3, 4, 8, 14)]
    if schedule == "interleaved":
        return [(p, v, k) for p, v, k in counts if v > 1 and k % p == 0]
    return [(p, v, k) for p, v, k in counts if v == 1 and (schedule != "2bw" or k >= p)]


def of_size(program: ModuleType, devices: int, chunks: int, micros: int) -> list[list[tuple[str, Any]]]:
    """What the devices do, where there are so many of all."""
    program.PIPELINE, program.MICRO_BATCHES = devices, micros
    program.STAGES, program.LAST = [None] * (devices * chunks), devices * chunks - 1
    steps = (3,) if hasattr(program, "train_steps") else ()
    return [list(program.timetable(device, *steps)) for device in range(devices)]


def test_the_orders_are_those_that_are_priced(program: tuple[str, ModuleType]) -> None:
    schedule, module = program
    for devices, chunks, micros in sizes(schedule):
        found = of_size(module, devices, chunks, micros)
        for own, order in zip(found, schedule_named(schedule).orders(devices, chunks, micros), strict=True):
            ran = [slot for action, slot in own if action == "run" and slot[0] != "update"]
            priced = [(KINDS[kind], stage, micro) for kind, stage, micro in order]
            if schedule == "2bw":  # of three steps, whose slots mix
                steps = [(kind, stage, micro + t * micros) for t in range(3) for kind, stage, micro in priced]
                assert sorted(ran) == sorted(steps)
            else:
                assert ran == priced


def test_what_is_in_flight_is_what_the_orders_keep() -> None:
    """Activations are there from the forward to the end of what needs them."""
    for schedule in SCHEDULES:
        last = "W" if schedule == "zero-bubble" else "B"
        for devices, chunks, micros in sizes(schedule):
            for stage in range(devices * chunks):
                order = schedule_named(schedule).orders(devices, chunks, micros)[stage % devices]
                steps = [{"F": 1, last: -1}.get(kind, 0) for kind, s, _ in order if s == stage]
                assert max(accumulate(steps)) == schedule_named(schedule).in_flight(devices, chunks, micros, stage)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "2bw"])
def test_messages_that_are_waited_for_meet(schedule: str, tmp_path: Path) -> None:
    """Even if each send waited for its receive and each receive for its send, all would come to an end."""
    module = emitted(schedule, False, tmp_path)
    for devices, chunks, micros in sizes(schedule):
        left = of_size(module, devices, chunks, micros)
        here: list[set[Any]] = [set() for _ in left]
        while any(left):
            before = sum(map(len, left))
            update_together(left)
            for device, own in enumerate(left):
                action, slot = own[0] if own else ("end", ())
                if action == "run" and slot[0] != "update":
                    assert module.needed(*slot) in here[device] | {None}
                    del own[0]
                elif action == "send":
                    to = (slot[1] + (1 if slot[0] == "forward" else -1)) % devices
                    if left[to][:1] == [("receive", slot)]:
                        here[to].add(slot)
                        del own[0], left[to][0]
            assert sum(map(len, left)) < before, (devices, chunks, micros, [own[:1] for own in left])


def test_messages_posted_ahead_meet_in_priced_memory(program: tuple[str, ModuleType]) -> None:
    """Even if a message is under way only once its receive is posted, and the one before it has arrived.

    Receives are posted in the order in which the neighbour sends. The reserve has room for what is received or awaited
    during a slot and for what may be under way.
    """
    schedule, module = program
    for devices, chunks, micros in sizes(schedule):
        left = of_size(module, devices, chunks, micros)
        posted: dict[tuple[int, int], list[Any]] = {}
        sent: dict[tuple[int, int], list[Any]] = {}
        waiting: list[set[Any]] = [set() for _ in left]
        stages = devices * chunks
        ends = [(s, t) for s in range(stages) for t in (s - 1, s + 1) if 0 <= t < stages]
        neighbours = [[t for s, t in ends if s % devices == d] for d in range(devices)]
        while any(left):
            before = sum(map(len, left))
            update_together(left)
            for device, own in enumerate(left):
                action, slot = own[0] if own else ("end", ())
                if action == "receive":
                    posted.setdefault((slot[1] % devices, device), []).append(slot)
                    waiting[device].add(slot)
                elif action == "run" and slot[0] != "update":
                    needed = module.needed(*slot)
                    if needed is not None and needed not in sent.get((needed[1] % devices, device), ()):
                        continue
                    waiting[device] -= {needed}
                    others = {t % devices for t in neighbours[device]}
                    assert len(waiting[device]) + len(others) <= messages(True) * len(neighbours[device])
                elif action == "send":
                    way = device, module.taker(*slot) % devices
                    if len(posted.get(way, ())) < len(sent.setdefault(way, [])):
                        continue
                    sent[way].append(slot)
                else:
                    continue
                del own[0]
            assert sum(map(len, left)) < before, (devices, chunks, micros, [own[:1] for own in left])
        assert posted == sent and not any(waiting)


def update_together(left: list[list[tuple[str, Any]]]) -> None:
    """Update the weights where all devices have come to it."""
    if all(own and own[0][1][0] == "update" for own in left):
        assert len({own.pop(0)[1][2] for own in left}) == 1
