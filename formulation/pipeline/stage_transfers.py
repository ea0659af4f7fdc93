"""The cost of sending a tensor to the next stage of a pipeline, and of summing the gradient of a shared weight."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...model.graph.pcg import PCG
from ...model.machine.collective_price import FREE, CollectivePrice
from ...model.machine.link_flows import busiest
from ...model.machine.machine import Machine
from ..placement.placement import of_rows
from ..reduction.cost import exchange_price, step_price
from ..reduction.program import Collective, Reduction, Step
from ..rvd.prices import prices_on
from .shares import blocks


def transfer_price(machine: Machine, row: tuple[int, ...]) -> CollectivePrice:
    """Every device sends to the one in its place in the next stage, all at once, the last stage to the first.

    `row`: the pipeline's factor on every level. A line in the bytes that a device sends; the outermost level that the
    pipeline uses gives the latency, and the busiest link on any level the rate. Free for a single stage.
    """
    if math.prod(row) == 1:
        return FREE
    inner = tuple(size // factor for size, factor in zip(machine.hierarchy, row, strict=True))
    return exchange_price(machine, Reduction(of_rows((row, inner)), (0,)), "send")


def stage_transfers(
    machine: Machine, row: tuple[int, ...], shares: Sequence[int], stages: int
) -> tuple[CollectivePrice, ...]:
    """What every stage receives from the one before, per byte of a device: of equal stages, or of those with shares.

    The first stage, which receives nothing, has the price of its own messages.
    """
    if not shares:
        return (transfer_price(machine, row),) * stages
    lines = tuple(received_price(machine, before, own) for before, own in pairwise(blocks(shares)))
    return (lines[0], *lines)


@lru_cache(maxsize=1024)
def received_price(machine: Machine, before: range, own: range) -> CollectivePrice:
    """Every device of a stage receives its part of a tensor from the devices of the one before.

    The side with more devices has several partners for each device of the other, with which it exchanges messages in
    turn: a device that receives from several gets a share of its part from each, one that sends to several sends each
    its whole part. A line in the bytes of a receiver.
    """
    prices, rounds = prices_on(machine), -(-max(len(before), len(own)) // min(len(before), len(own)))
    gathers, total = len(before) > len(own), FREE
    for turn in range(rounds):
        few, many = (own, before) if gathers else (before, own)
        pairs = [(few[i], many[i * rounds + turn]) for i in range(len(few)) if i * rounds + turn < len(many)]
        source, target = zip(*(pair[::-1] if gathers else pair for pair in pairs), strict=True)
        latency = prices.sends(source, target, [0] * len(pairs))
        seconds = busiest(machine, np.array(source), np.array(target), np.ones(len(pairs)))
        total += CollectivePrice(latency, 1e9 * seconds / (rounds if gathers else 1))
    return total


def broadcast_price(machine: Machine, row: tuple[int, ...]) -> CollectivePrice:
    """Every device of one stage sends to those in its place in all other stages; `row` as above.

    A line in the bytes that a device sends.
    """
    inner = tuple(size // factor for size, factor in zip(machine.hierarchy, row, strict=True))
    reduction = Reduction(of_rows((row, inner)), (0,))
    return step_price(machine, reduction, Step(Collective.BROADCAST, 0, len(reduction.sizes) - 1), 1.0)


def in_one_message(price: CollectivePrice, graph: PCG, node: int, *, gradient: bool) -> CollectivePrice:
    """What a tensor pays that a stage sends to another, or its gradient: a slot sends all of its results at once.

    Each pays its share of the latency.
    """
    sent = graph.nodes[node]
    if sent.op not in ("send", "receive"):
        return price
    together = sum(graph.nodes[i].gradient or not gradient for i in graph.of(sent.op))
    return _share_of(price, together)


def together_ns(price: CollectivePrice, sizes: Sequence[int]) -> int:
    """What tensors of these bytes pay that a stage sends in one message."""
    each = _share_of(price, len(sizes))
    return sum(map(each.ns, sizes))


def _share_of(price: CollectivePrice, together: int) -> CollectivePrice:
    """The price of each of several tensors in one message."""
    return CollectivePrice(price.latency_ns / max(1, together), price.ns_per_byte)


def messages(gradient: bool) -> int:
    """Buffers of a tensor that a stage receives or sends, besides what backward keeps.

    Of what it sends one message each way is under way; what it receives is posted ahead of the slot that runs before
    its use, and eager orders have two of these. Of programs that wait, two may be in flight.
    """
    return 2 + gradient


def exchanged_bytes(size_bytes: NDArray[np.int64], stages: int) -> NDArray[np.int64]:
    """Bytes that a device sends to sum a gradient over the `stages` that share the weight: a ring."""
    sent: NDArray[np.int64] = -(-2 * (stages - 1) * size_bytes // stages)
    return sent
