"""The items of a price: every kernel, every collective and all memory, each with its name and place.

Totals are sums of items, and `show` prints the same list. ns are of a whole step, bytes of the rank that holds most.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, TypeAlias

from ...model.graph.layout import Action

Part: TypeAlias = Literal["compute", "conversions", "weights", "gradients"]
Phase: TypeAlias = Literal["forward", "recompute", "backward", "update"]
PARTS: tuple[Part, ...] = ("compute", "conversions", "weights", "gradients")
CAST = "cast"  # the kind of an item that casts a weight
MEMORY = ("states", "activations", "weights", "recomputed", "prefetched", "reserve")


class PriceSlot(IntEnum):
    """When an item runs relative to its node's kernel: forward and recompute run slots upwards, backward downwards."""

    ACCUMULATE = 0
    BEFORE = 1
    KERNEL = 2
    REGATHER = 3  # backward only: a weight is gathered again ahead of the kernel
    AFTER = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One kernel or collective: `ns` once, `count` times a step (the micro-batches, or 1), in `calls` calls each time.

    `node` is the operator, or the tensor that moves or is updated; it runs at node `at`. `axes` are the mesh axes that
    communicate (empty: no communication), `bytes` the size of the message. Steps of one conversion share its number.
    `waits`: kernels wait for it, though it is of a weight.
    """

    part: Part
    kind: str
    phase: Phase
    node: int
    at: int
    slot: PriceSlot
    ns: int
    count: int
    axes: tuple[int, ...] = ()
    bytes: int = 0
    calls: int = 1
    conversion: int = 0
    waits: bool = False

    @property
    def total_ns(self) -> int:
        return self.ns * self.count

    @property
    def reduces(self) -> bool:
        """True if it adds up a gradient over ranks."""
        return self.part == "gradients" and self.kind in (Action.SUM.value, Action.SCATTER_SUM.value)

    @property
    def precedes_norm(self) -> bool:
        """True if it completes a gradient once a step: the norm of all gradients, which clips updates, waits for it."""
        return self.phase == "update" and (self.reduces or self.kind in (Action.SEND.value, "accumulate"))

    @property
    def hides(self) -> bool:
        """True if it may run beside kernels: a weight is converted, or a gradient reduced."""
        return self.reduces or (self.part == "weights" and self.kind != CAST and not self.waits)


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory that a node accounts for; `node` is -1 for memory of no node."""

    part: str
    node: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """ns of a step in one phase of a layer: kernels with all that they wait for, and traffic of weights beside them.

    `busy_ns`: what kernels lose to the traffic. `reduced_ns` of the traffic runs once a step, which is counted as part
    of the update. `host_ns`: what the host needs to issue all of it.
    """

    layer: str
    phase: Phase
    kernels_ns: int
    traffic_ns: int
    busy_ns: int = 0
    reduced_ns: int = 0
    host_ns: int = 0

    @property
    def hidden_ns(self) -> int:
        """Time saved by running both at once."""
        return min(self.kernels_ns, self.traffic_ns - self.busy_ns)

    @property
    def hidden_in_phase_ns(self) -> int:
        """Time by which the phase itself is shorter: what is reduced once hides first, and shortens the update."""
        return max(0, self.hidden_ns - self.reduced_ns)

    @property
    def host_bound_ns(self) -> int:
        """Time in which the device waits for the host."""
        return max(0, self.host_ns - max(self.slowed_ns, self.traffic_ns))

    @property
    def slowed_ns(self) -> int:
        """What the kernels take beside the traffic."""
        return self.kernels_ns + self.busy_ns

    @property
    def longest(self) -> str:
        """Which of the three takes as long as all of them: "kernels", "weights" or "host"; kernels if equal."""
        each = {"kernels": self.slowed_ns, "weights": self.traffic_ns, "host": self.host_ns}
        return max(each, key=lambda name: each[name])


@dataclass
class StagePrice:
    """All items of a step, and all memory.

    `layer_of` names, for nodes of layers that hide the traffic of their weights (`formulation.encoding.overlap`), the
    layer; there are `micro_batches` in a step. `host_ns`: what the host needs for a call. `busy_ns`: what kernels lose
    to messages of so many ns (`Machine.busy_ns`).
    """

    items: list[Item] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    layer_of: Mapping[int, str] = field(default_factory=dict)
    micro_batches: int = 1
    host_ns: int = 0
    busy_ns: Callable[[int], int] = field(default=lambda ns: 0, repr=False, compare=False)

    @property
    def overlaps(self) -> list[Overlap]:
        """Forward and backward of every layer that hides traffic; the last micro-batch's backward on its own.

        Recomputation counts as backward. Reductions that run once a step hide in the last micro-batch.
        """
        # Of a layer kernels, traffic, what they lose to it, and the host in forward and backward, and once reduced.
        each: dict[str, list[Counter[str]]] = {}
        messages = Counter[tuple[str, int, int, object]]()  # ns of the items of one conversion or reduction
        for item in self.items:
            layer = self.layer_of.get(item.at)
            if layer is None or (item.phase == "update" and not item.reduces):
                continue
            place = 2 if item.phase == "update" else int(item.phase != "forward")
            streams = each.setdefault(layer, [Counter() for _ in range(3)])[place]
            streams["traffic" if item.hides else "kernels"] += item.total_ns
            streams["host"] += item.calls * item.count * self.host_ns
            if item.hides:
                one = item.part, item.phase, item.slot, item.node, item.at, item.conversion
                messages[layer, place, item.count, one] += item.ns
        for (layer, place, count, _), ns in messages.items():
            each[layer][place]["busy"] += self.busy_ns(ns) * count
        found, k = [], self.micro_batches
        for layer, (forward, backward, once) in each.items():
            found.append(Overlap(layer, "forward", *_streams(forward), host_ns=forward["host"]))
            last = Counter({name: ns // k for name, ns in backward.items()})
            if k > 1:
                before = backward - last
                found.append(Overlap(layer, "backward", *_streams(before), host_ns=before["host"]))
            last += once
            found.append(Overlap(layer, "backward", *_streams(last), once["traffic"], last["host"]))
        return found

    @property
    def hidden_ns(self) -> int:
        """ns of a step in which weights are gathered, or gradients reduced, while a layer computes."""
        return sum(overlap.hidden_ns for overlap in self.overlaps)

    @property
    def host_bound_ns(self) -> int:
        """ns of a step in which layers wait for the host."""
        return sum(overlap.host_bound_ns for overlap in self.overlaps)

    def phase_ns(self, phase: Phase) -> int:
        """ns of a step in one phase; what is hidden counts less, and waiting for the host more."""
        taken = sum(item.total_ns for item in self.items if item.phase == phase)
        if phase == "update":
            return taken - sum(min(overlap.hidden_ns, overlap.reduced_ns) for overlap in self.overlaps)
        hidden = (o.hidden_in_phase_ns - o.host_bound_ns for o in self.overlaps if o.phase == phase)
        return taken - sum(hidden)

    @property
    def completing_ns(self) -> int:
        """ns of the update phase that complete gradients: sums over ranks and stages, less what hides of them."""
        hidden = sum(min(overlap.hidden_ns, overlap.reduced_ns) for overlap in self.overlaps)
        return sum(item.total_ns for item in self.items if item.precedes_norm) - hidden

    @property
    def ns(self) -> dict[str, int]:
        """ns of a step by part, hidden or not."""
        result: dict[str, int] = dict.fromkeys(PARTS, 0)
        for item in self.items:
            result[item.part] += item.total_ns
        return result

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by part."""
        result = dict.fromkeys(MEMORY, 0)
        for kept in self.kept:
            result[kept.part] += kept.bytes
        return result

    @property
    def recompute_ns(self) -> int:
        """Recomputation in a step, in ns."""
        return sum(item.total_ns for item in self.items if item.phase == "recompute")

    @property
    def objective_ns(self) -> int:
        return sum(item.total_ns for item in self.items) - self.hidden_ns + self.host_bound_ns

    @property
    def memory_bytes(self) -> int:
        return sum(kept.bytes for kept in self.kept)


def _streams(of: Counter[str]) -> tuple[int, int, int]:
    return of["kernels"], of["traffic"], of["busy"]
