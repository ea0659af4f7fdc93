"""Transitions between device groups (SuperScaler, Figure 10, g and h)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from .path import Message, Step
from .prices import Floor
from .reach import Tensor
from .roles import Counts, D, R, V
from .sends import elements, fetch, price_of
from .state import State


class Crossing(NamedTuple):
    """A transition between groups: kind, dim cut or joined, messages per receiver (`each`), bytes per message."""

    kind: str
    dim: int | None
    each: int
    size_bytes: int


def crossing(a: Counts, b: Counts, tensor: Tensor) -> Crossing | None:
    """The transition between two RVDs: at most one count (R or a dim) grows or shrinks; None if there is none.

    If neither device count divides the other, pieces are sent overlap by overlap.
    """
    if a[V] != b[V]:
        return None
    size = min(tensor.size_bytes(a), tensor.size_bytes(b))
    changed = [role for role, counts in enumerate(zip(a, b, strict=True)) if counts[0] != counts[1]]
    if not changed:
        return Crossing("move", None, 1, size)
    i = changed[0]
    if prod(a) % prod(b) and prod(b) % prod(a):
        each = prod(-(-x // y) for x, y in zip(a[D:], b[D:], strict=True))
        return Crossing("send-recv", None, each, tensor.size_bytes(b) // each)
    if len(changed) > 1 or (a[i] % b[i] and b[i] % a[i]):
        return None
    dim = i - D if i >= D else None
    if b[i] % a[i]:
        return Crossing("RD-gather", dim, 1 if dim is None else a[i] // b[i], size)
    return Crossing("broadcast" if dim is None else "RD-scatter", dim, 1, size)


def partners(counts: Counts, devices: int, candidates: Iterable[Counts]) -> Iterable[Counts]:
    """RVDs on `devices` devices that a crossing may reach; `candidates` if neither device count divides the other."""
    here = prod(counts)
    if here % devices and devices % here:
        return list(candidates)
    if here == devices:
        return (counts,)
    roles = (R, *range(D, len(counts)))
    if devices > here:
        return [(*counts[:i], counts[i] * devices // here, *counts[i + 1 :]) for i in roles]
    k = here // devices
    return [(*counts[:i], counts[i] // k, *counts[i + 1 :]) for i in roles if counts[i] % k == 0]


def least(kind: Crossing, a: Counts, b: Counts, floor: Floor, tensor: Tensor) -> int:
    """Lower bound on the price of a crossing (ns), for any assignment to devices."""
    prices, mine, theirs = tensor.prices, tensor.size_bytes(a), tensor.size_bytes(b)
    bound = floor.ns(kind.each, kind.size_bytes, prices.machine.device.launch_ns)
    if not bound:
        return 0
    # Plus the copies: what a sender cuts (its whole piece if no receiver keeps any) and what a receiver joins.
    cut = mine if floor.receivers == prod(b) else kind.size_bytes
    cut *= kind.kind == "RD-scatter"
    return bound + prices.local(cut) + prices.local(theirs if kind.each > 1 else 0)


def crossed(source: State, target: State, kind: Crossing, tensor: Tensor) -> Step:
    """The step of a crossing between two states."""
    messages = fetch(source, target, tensor.shape, tensor.prices)
    by = {"RD-gather": "receiver", "RD-scatter": "sender", "broadcast": "sender"}.get(kind.kind)
    groups = pairs(messages) if by is None else _grouped(messages, by)
    cost = price_of(messages, source, target, tensor.shape, tensor.itemsize, tensor.prices)
    size = largest(messages, tensor.itemsize)
    return Step(kind.kind, kind.dim, groups, source, target, size_bytes=size, cost_ns=cost, messages=messages)


def pairs(messages: Iterable[Message]) -> tuple[tuple[int, ...], ...]:
    """(sender, receiver) of every message between different devices."""
    return tuple((m.sender, m.receiver) for m in messages if m.sender != m.receiver)


def largest(messages: Iterable[Message], itemsize: int) -> int:
    """Bytes of the largest message between different devices."""
    return max((elements(m.box) * itemsize for m in messages if m.sender != m.receiver), default=0)


def _grouped(messages: Iterable[Message], by: str) -> tuple[tuple[int, ...], ...]:
    """Groups per receiver (senders, then receiver) or per sender (sender, then receivers)."""
    found: dict[int, list[int]] = defaultdict(list)
    for m in messages:
        if m.sender != m.receiver:
            found[getattr(m, by)].append(m.sender if by == "receiver" else m.receiver)
    return tuple((*others, one) if by == "receiver" else (one, *others) for one, others in found.items())
