"""Named pipeline schedules as orders: what every device runs, one slot after another.

A slot is one task: its kind, its stage and its micro-batch, all counted from 0. Kinds: "F" forward, "B" backward (of
the inputs alone where the order has "W" slots for the weights' gradients, else of both), "R" the forward run again
before its backward. A stage runs on the device whose order has its slots; in Chimera that depends on the micro-batch.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ...model.errors import PartitaError
from . import device_orders


class Slot(NamedTuple):
    """One task in the order of a device."""

    kind: str
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}(stage {self.stage}, micro-batch {self.micro})"


Orders: TypeAlias = tuple[tuple[Slot, ...], ...]
"""For every device its slots in order. A slot that several devices run together stands in the order of each."""

DeviceOrder: TypeAlias = Callable[..., Iterable[tuple[str, int, int]]]
"""(device, devices, micro-batches, ...) -> the slots of that device, their kinds spelled out (`KIND_NAMES`)."""

KINDS = ("F", "R", "B", "W")
KIND_NAMES = {"F": "forward", "B": "backward", "W": "weights"}
"""The kinds as emitted programs and timelines call them."""
_LETTERS = {name: kind for kind, name in KIND_NAMES.items()}


def device_slots(order: DeviceOrder, device: int, devices: int, micros: int, *more: int) -> list[Slot]:
    """The slots of one device; updates between steps are left out. PartitaError: a kind is unknown."""
    found = [slot for slot in order(device, devices, micros, *more) if slot[0] != "update"]
    unknown = next((kind for kind, *_ in found if kind not in _LETTERS), None)
    if unknown is not None:
        raise PartitaError(f"device {device} has a slot of kind {unknown!r}: choose from {', '.join(_LETTERS)}")
    return [Slot(_LETTERS[kind], stage, micro) for kind, stage, micro in found]


def slot_lines(orders: Orders, chunks: int = 1) -> list[str]:
    """Orders as text, a line a device: kind and micro-batch of every slot, and its chunk where there are several.

    >>> slot_lines(one_f_one_b(2, 2))
    ['F0 F1 B0 B1', 'F0 B0 F1 B1']
    """

    def text(slot: Slot) -> str:
        return f"{slot.kind}{slot.micro}" + (f".{slot.stage // len(orders)}" if chunks > 1 else "")

    return [" ".join(map(text, own)) for own in orders]


def read_slot_lines(lines: Sequence[str]) -> Orders:
    """The orders that `slot_lines` gave for one stage a device. PartitaError: a word is no slot."""

    def slot(word: str, device: int) -> Slot:
        if not re.fullmatch(r"[FBW][0-9]{1,9}", word, re.ASCII):
            raise PartitaError(f"the order of device {device}: {word!r:.60} is no slot, such as F0, B0 or W0")
        return Slot(word[0], device, int(word[1:]))

    return tuple(tuple(slot(word, device) for word in line.split()) for device, line in enumerate(lines))


def gpipe(stages: int, micros: int, recompute: bool = False) -> Orders:
    """All forwards, then all backwards (GPipe); every activation is kept until then."""
    _check(stages=stages, micros=micros)
    return _recomputed((device_slots(device_orders.gpipe, s, stages, micros) for s in range(stages)), recompute)


def one_f_one_b(stages: int, micros: int, recompute: bool = False) -> Orders:
    """1F1B (PipeDream-Flush, DAPPLE): stage s keeps at most S - s micro-batches, then alternates.

    With `recompute` every backward has an "R" before it.
    """
    _check(stages=stages, micros=micros)
    return _recomputed((device_slots(device_orders.one_f_one_b, s, stages, micros) for s in range(stages)), recompute)


def interleaved(devices: int, micros: int, chunks: int = 2) -> Orders:
    """Interleaved 1F1B (Megatron-LM, SC'21): stage k of D·v lies on device k mod D.

    PartitaError: D does not divide the micro-batches.
    """
    _check(devices=devices, micros=micros, chunks=chunks)
    if micros % devices:
        raise PartitaError(
            f"interleaved 1F1B runs micro-batches in groups of as many as there are devices: {micros} are no multiple "
            f"of {devices}"
        )
    return tuple(tuple(device_slots(device_orders.interleaved, d, devices, micros, chunks)) for d in range(devices))


def chimera(stages: int, micros: int) -> Orders:
    """Two pipelines in opposite directions (Chimera, SC'21): odd micro-batches run stage s on device S - 1 - s.

    Sorted by the steps of its figure, with S steps of forwards and S of backwards for every S micro-batches.
    PartitaError: the number of stages is odd.
    """
    _check(stages=stages, micros=micros)
    if stages % 2:
        raise PartitaError(f"Chimera pairs stages on devices: their number is even, not {stages}")

    def steps(d: int) -> Iterator[tuple[int, Slot]]:
        for m in range(micros):
            s = d if m % 2 == 0 else stages - 1 - d
            start = 2 * (m // 2 % (stages // 2)) + 2 * stages * (m // stages)
            yield start + s, Slot("F", s, m)
            yield start + 2 * stages - 1 - s, Slot("B", s, m)

    return tuple(tuple(slot for _, slot in sorted(steps(d))) for d in range(stages))


def both_directions(device: int, devices: int, micro_batches: int) -> Iterator[tuple[str, int, int]]:
    """The slots of a device in `chimera`, their kinds spelled out, with this number of micro-batches each way.

    Of every two the first goes down, so micro-batch m of a direction is 2 m, or 2 m + 1 upwards.
    """
    return ((KIND_NAMES[slot.kind], slot.stage, slot.micro) for slot in _both(devices, micro_batches)[device])


@lru_cache(maxsize=256)
def _both(devices: int, micro_batches: int) -> Orders:
    return chimera(devices, 2 * micro_batches)


def zero_bubble(stages: int, micros: int, doubled: bool = False) -> Orders:
    """Zero-bubble with split backwards (Qi et al., ICLR'24): ZB-H1, which keeps at most S micro-batches everywhere.

    `doubled`: ZB-H2, which keeps up to 2S - 1, so that no device ever waits once it has begun.
    """
    _check(stages=stages, micros=micros)

    def own(s: int) -> list[Slot]:
        if not doubled:
            return device_slots(device_orders.zero_bubble, s, stages, micros)
        twice = device_slots(device_orders.zero_bubble, 2 * s, 2 * stages - 1, micros)
        return [slot._replace(stage=s) for slot in twice]

    return tuple(tuple(own(s)) for s in range(stages))


def three_f_one_b(stages: int, micros: int, passes: int = 3, in_turn: bool = False) -> Orders:
    """Several forwards through the whole pipeline, one backward through the last (SuperScaler's 3F1B, AlphaFold2).

    Pass p of stage s is stage p·S + s here, on device s; only stages of the last pass have a "B", and at most S - s
    micro-batches are kept there. A device takes the furthest task that is ready, with backwards of two steps; so few
    micro-batches are between two passes. `in_turn`: every pass for all micro-batches, then the next, and 1F1B in the
    last; outputs of up to K micro-batches wait between passes.
    """
    _check(stages=stages, micros=micros, passes=passes)
    last = (passes - 1) * stages
    if in_turn:
        early = (tuple(Slot("F", p, m) for p in range(s, last, stages) for m in range(micros)) for s in range(stages))
        alternated = one_f_one_b(stages, micros)
        return tuple(
            (*own, *(slot._replace(stage=last + slot.stage) for slot in alternated[s])) for s, own in enumerate(early)
        )
    orders: list[list[Slot]] = [[] for _ in range(stages)]
    ends: dict[Slot, int] = {}  # the step with which a task ends
    count: Counter[tuple[str, int]] = Counter()  # of a kind and stage, in order

    def ready(s: int, step: int) -> Iterator[Slot]:
        """What device s may begin, the furthest first."""
        full = count["F", last + s] - count["B", last + s] == stages - s
        for kind, stage in [("B", last + s), *(("F", p) for p in range(last + s, -1, -stages))]:
            slot = Slot(kind, stage, count[kind, stage])
            turns = slot._replace(kind="F") if stage == last + stages - 1 else slot._replace(stage=stage + 1)
            needed = turns if kind == "B" else slot._replace(stage=stage - 1)
            waits = needed.stage >= 0 and ends.get(needed, step + 1) > step
            if slot.micro < micros and not waits and not (full and (kind, stage) == ("F", last + s)):
                yield slot

    step, free = 0, [0] * stages
    while count.total() < stages * micros * (passes + 1):
        for s in range(stages):
            slot = next(ready(s, step), None) if free[s] <= step else None
            if slot is not None:
                orders[s].append(slot)
                count[slot.kind, slot.stage] += 1
                ends[slot] = free[s] = step + (2 if slot.kind == "B" else 1)
        step += 1
    return tuple(map(tuple, orders))


def repeated_passes(device: int, devices: int, micro_batches: int, passes: int) -> Iterator[tuple[str, int, int]]:
    """The slots of a device in `three_f_one_b`, their kinds spelled out: pass p of stage s is stage p·S + s."""
    return (
        (KIND_NAMES[slot.kind], slot.stage, slot.micro) for slot in _repeated(devices, micro_batches, passes)[device]
    )


@lru_cache(maxsize=256)
def _repeated(devices: int, micro_batches: int, passes: int) -> Orders:
    return three_f_one_b(devices, micro_batches, passes)


def interlaced(stages: int, micros: int, shared: Sequence[int] = (0,), recompute: bool = False) -> Orders:
    """1F1B among S stages, one a device, with stages that all devices run together between them (SuperScaler, Alg. 2).

    The model is a chain of S + len(shared) stages; `shared` are the places of the embeddings in it, the others lie on
    devices 0 to S - 1 in turn. Step 2m + t runs the forward of micro-batch m on device t, step 2S - 1 - t + 2m its
    backward; a shared stage comes between the steps of its neighbours. With `recompute` an "R" precedes every backward
    by a step, while the gradient is still on its way.
    """
    _check(stages=stages, micros=micros)
    own, chain = _own_places(stages, shared), stages + len(shared)

    def steps(d: int) -> Iterator[tuple[int, int, int, int, Slot]]:
        """Step, what comes first in it, and the slot."""
        for m in range(micros):
            forward, backward = 2 * m + d, 2 * (stages + m) - 1 - d
            yield forward, 1, 0, 0, Slot("F", own[d], m)
            yield backward, 1, 0, 0, Slot("B", own[d], m)
            if recompute:
                yield backward - 1, 2, 0, 0, Slot("R", own[d], m)
            for k in shared:
                t = sum(k > other for other in own)
                yield 2 * m + t, 0, m, k, Slot("F", k, m)
                yield 2 * (stages + m) - t, 0, m, 2 * chain - k, Slot("B", k, m)

    return tuple(tuple(slot for *_, slot in sorted(steps(d))) for d in range(stages))


def in_lock_step(stages: int, micros: int, shared: Sequence[int] = (0,)) -> Orders:
    """S stages, one a device, in pairs of a forward and a backward, with stages that all devices run together between.

    Pair j: the forwards of shared stages before the last of the others; the forward of micro-batch j - s on device s;
    the shared stages at the end of the chain, forward and backward, for micro-batch j - S + 1; the backward of
    micro-batch j - 2 (S - 1) + s; the backwards of the other shared stages. So all devices run forwards at once, then
    backwards, and barriers between them make none wait for an equal one, whatever a backward takes; the order of a
    device's own stage is that of eager 1F1B. `shared`: as for `interlaced`.
    """
    _check(stages=stages, micros=micros)
    own = _own_places(stages, shared)

    def slots(d: int) -> Iterator[tuple[int, int, int, int, Slot]]:
        """Pair, what comes first in it, and the slot."""
        for m in range(micros):
            yield m + d, 1, 0, 0, Slot("F", own[d], m)
            yield m + 2 * (stages - 1) - d, 4, 0, 0, Slot("B", own[d], m)
            for k in shared:
                t = sum(k > other for other in own)
                last = t == stages
                yield m + t - last, 2 if last else 0, m, k, Slot("F", k, m)
                yield m + 2 * (stages - 1) - t + last, 3 if last else 5, m, -k, Slot("B", k, m)

    return tuple(tuple(slot for *_, slot in sorted(slots(d))) for d in range(stages))


def _own_places(stages: int, shared: Sequence[int]) -> list[int]:
    """The places of stages of one device in a chain. PartitaError: the shared ones are no different places in it."""
    chain = stages + len(shared)
    if len(set(shared)) != len(shared) or not all(0 <= k < chain for k in shared):
        raise PartitaError(f"shared stages are different places among {chain} stages, 0 to {chain - 1}, not {shared}")
    return [k for k in range(chain) if k not in shared]


def _recomputed(orders: Iterable[Sequence[Slot]], recompute: bool) -> Orders:
    """An "R" right before every "B"."""

    def slots(slot: Slot) -> tuple[Slot, ...]:
        return (slot._replace(kind="R"), slot) if recompute and slot.kind == "B" else (slot,)

    return tuple(tuple(one for slot in order for one in slots(slot)) for order in orders)


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise PartitaError(f"{name} is {count}: a pipeline has at least one")
