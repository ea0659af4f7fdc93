"""The items of a price: every kernel, every collective and all memory, each with its name and place.

Totals are sums of items, and `show` prints the same list. ns are of a whole step, bytes of the rank that holds most.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["compute", "conversions", "weights", "gradients"]
Phase: TypeAlias = Literal["forward", "recompute", "backward", "update"]
PARTS: tuple[Part, ...] = ("compute", "conversions", "weights", "gradients")
MEMORY = ("states", "activations", "weights", "recomputed", "reserve")


class PriceSlot(IntEnum):
    """When an item runs relative to its node's kernel: forward and recompute run slots upwards, backward downwards."""

    ACCUMULATE = 0
    BEFORE = 1
    KERNEL = 2
    REGATHER = 3  # backward only: a weight is gathered again ahead of the kernel
    AFTER = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One kernel or collective: `ns` once, `count` times a step (the micro-batches, or 1).

    `node` is the operator, or the tensor that moves or is updated; it runs at node `at`. `axes` are the mesh axes that
    communicate (empty: no communication), `bytes` the size of the message.
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

    @property
    def total_ns(self) -> int:
        return self.ns * self.count


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory that a node accounts for; `node` is -1 for memory of no node."""

    part: str
    node: int
    bytes: int


@dataclass
class StagePrice:
    """All items of a step, and all memory."""

    items: list[Item] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    @property
    def ns(self) -> dict[str, int]:
        """ns of a step by part."""
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
        return sum(item.total_ns for item in self.items)

    @property
    def memory_bytes(self) -> int:
        return sum(kept.bytes for kept in self.kept)
