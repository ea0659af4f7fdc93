"""What messages add to a step, beside a simulation of devices and links that shares nothing with the prices."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from partita.codegen.plan.plan import PipelinePlan
from partita.codegen.pricing.pipeline_runs import _chain, weights_ns
from partita.codegen.pricing.plan_price import plan_price
from partita.model.machine.collective_price import FREE, CollectivePrice

from ..levels import some
from .pipelines import captured, piped


def over(plan: PipelinePlan, line: CollectivePrice, overlap: bool = True) -> PipelinePlan:
    """The plan with another price of messages between its stages."""
    return replace(plan, stages=tuple(replace(part, transfer=line, overlap=overlap) for part in plan.stages))


def simulated(plan: PipelinePlan) -> int:
    """The end of a step: devices work slot by slot; a link carries one message after the other, each way for itself."""
    count, size, last = plan.micro_batches, plan.size, len(plan.stages) - 1
    times: dict[tuple[str, int], int] = {}
    message: dict[int, int] = {}  # into every stage, and its gradients out of it
    sums, updates = Counter[int](), Counter[int]()  # before the norm of all gradients, and after it
    for s, (part, cost) in enumerate(zip(plan.stages, plan_price(over(plan, FREE)).stages, strict=True)):
        total = Counter[str]()
        for item in cost.items:
            total[item.phase] += item.total_ns
        late = weights_ns(part, cost) if plan.schedule.splits_backward and s else 0
        times["F", s] = total["forward"] // count
        times["B", s] = (total["backward"] + total["recompute"]) // count - late // count
        times["W", s] = late // count
        sums[s % size] += sum(item.total_ns for item in cost.items if item.precedes_norm)
        updates[s % size] += sum(x.total_ns for x in cost.items if x.phase == "update" and not x.precedes_norm)
        sizes = [4 * part.graph.nodes[i].numel for i in part.graph.of("receive")]
        message[s] = part.transfer.ns(sum(sizes)) if part.transfer is not None and sizes else 0
    orders, here = plan.orders, [0] * size
    free, link, arrived = Counter[int](), Counter[tuple[int, int]](), dict[tuple[str, int, int], int]()
    while any(at < len(own) for at, own in zip(here, orders, strict=True)):
        for device, own in enumerate(orders):
            while here[device] < len(own):
                kind, s, m = own[here[device]]
                before = {"F": s - 1, "B": s + 1}.get(kind, -1)
                needed = (kind, before, m) if 0 <= before <= last else None
                if needed is not None and needed not in arrived:
                    break
                start = max(free[device], arrived[needed] if needed is not None else 0)
                end = free[device] = start + max(1, times[kind, s]) if times[kind, s] or kind != "W" else start
                there = {"F": s + 1, "B": s - 1}.get(kind, -1)
                if 0 <= there <= last:
                    way = device, there % size
                    link[way] = max(link[way], end) + message[max(s, there)]
                    arrived[kind, s, m] = link[way]
                here[device] += 1
    return max(free[d] + sums[d] for d in range(size)) + max(updates.values())


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    some(
        [
            ("1f1b", (2, 3, 4)),
            ("gpipe", (2, 4)),
            ("zero-bubble", (2, 3, 4)),
            ("interleaved", (2,)),
            ("eager-1f1b", (3, 4)),
        ],
        2,
    ),
)
def test_messages_add_no_more_than_is_priced(schedule: str, sizes: tuple[int, ...]) -> None:
    """Short and long ones, and less than if both ends waited: at most half where slots are as long and hide them."""
    rng, chunks = random.Random(schedule), 2 if schedule == "interleaved" else 1
    for size in sizes:
        plan = piped(captured("gpt2", 24), (size,), (size,), 2 * size, schedule=schedule, chunks=chunks)
        alone, free = plan_price(over(plan, FREE)).objective_ns, simulated(over(plan, FREE))
        assert abs(alone - free) < (1e-4 if plan.schedule.delays_messages else 0.06) * free
        for _ in range(6):
            line = CollectivePrice(rng.choice((0.0, 1e3, 1e4, 1e5)), rng.choice((0.01, 0.1, 1.0)))
            made, waiting = over(plan, line), plan_price(over(plan, line, overlap=False)).objective_ns
            added = plan_price(made).objective_ns - alone
            assert 0 < simulated(made) - free <= added < waiting - alone
            assert not plan.schedule.delays_messages or line.latency_ns > 1e4 or 2 * added <= waiting - alone


def test_messages_that_do_not_hide_are_priced_as_waited_for() -> None:
    """Where cores that compute carry them, though the program sends ahead."""
    plan = piped(captured("gpt2", 24), (2,), (2,), 4)
    line, busy = CollectivePrice(1e4, 0.1), replace(plan.stages[0].machine, hidden_share=0.37)
    hidden = over(plan, line)
    alike = replace(
        hidden,
        machine=replace(hidden.machine, hidden_share=0.37),
        stages=tuple(replace(part, machine=busy) for part in hidden.stages),
    )
    waiting = plan_price(over(plan, line, overlap=False)).objective_ns
    assert plan_price(hidden).objective_ns < plan_price(alike).objective_ns == waiting


def test_tensors_of_a_slot_pay_one_latency() -> None:
    """Encoder states and what the decoder computes cross mBART's cuts, and gradients of both come back."""
    plan = over(piped(captured("mbart-4.7b", 8), (2,), (2,), 2, schedule="eager-1f1b"), CollectivePrice(1e6, 1.0))
    received = [item for item in plan_price(plan).stages[1].items if item.kind == "receive"]
    assert len(received) > 1
    assert sum(item.ns for item in received) == 1e6 + sum(item.bytes for item in received)
    first, last = _chain(plan, plan_price(plan).stages)
    assert first.forward_message_ns == last.backward_message_ns == sum(item.ns for item in received)
