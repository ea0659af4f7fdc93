"""How a parameter is stored: its layout, whether its optimizer states are sharded, whether it is gathered twice.

Fully sharded data parallelism is a layout: stored split, asked whole (S -> B is an all-gather forward and a
reduce-scatter backward, per micro-batch). ZeRO-1 shards the states over the axes on which the layout is B: gradients
are reduce-scattered and parameters all-gathered, once a step. `regather` converts the weight a second time for the
backward instead of keeping the converted copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..model.collectives import ROUNDING_NS, CollectivePrice
from ..model.cost import ITEMSIZE, Precision, Roofline
from ..model.layout import B, P, R
from ..model.machine import Machine
from ..model.pcg import FLOATS
from .placement import Placement
from .reduction.schedule import schedule
from .special.balance import Spread
from .transfers import exchanged_bytes
from .transition import Codes, Space, space

Array = npt.NDArray[np.int64]

BUCKET_BYTES = 25_000_000
"""Gradients are synchronized in flat buckets of this size; a weight pays its share of what a full bucket costs."""


@dataclass(frozen=True, eq=False)
class Storage:
    """Options of a parameter: `codes[o]` the stored layout, and the two flags.

    `spreads`: of joined tables how they are spread over each axis, where the code has P.
    """

    space: Space
    codes: Codes
    sharded: npt.NDArray[np.bool_]
    regather: npt.NDArray[np.bool_]
    spreads: tuple[Spread | None, ...] = ()

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def numel(self) -> Array:
        """Elements stored on a rank: the most that one has."""
        return self.with_spread(self.space.numel[self.codes], lambda spread: spread.largest.elements)

    def only(self, keep: npt.NDArray[np.bool_]) -> Storage:
        """Some of the options."""
        return replace(self, codes=self.codes[keep], sharded=self.sharded[keep], regather=self.regather[keep])

    def with_spread(self, amounts: Array, amount: Callable[[Spread], int]) -> Array:
        """`amounts` of every option, but for spread tables another one."""
        for spread, there in zip(self.spreads, self.space.has(self.codes, P).T, strict=False):
            if spread is not None:
                amounts = np.where(there, amount(spread), amounts)
        return amounts


def storage(tensor: Space, trainable: bool, kept: bool, spreads: tuple[Spread | None, ...] = ()) -> Storage:
    """All ways to store a parameter; `kept`: some consumer keeps it for backward, so it may be gathered again there.

    Joined tables may be spread over one axis, and are whole on the others.
    """
    legal = tensor.legal(addends=trainable)
    at = tensor.has(legal, P)
    spread = np.logical_and(at, [x is not None for x in spreads] or False).any(axis=1) & (at.sum(axis=1) == 1)
    spread &= np.isin(tensor.letters[legal], (R, B, P)).all(axis=1)
    legal = legal[~at.any(axis=1) | spread]
    shardable = tensor.has(legal, B).any(axis=1)
    parts = [(legal, False, False), (legal[shardable], True, False)]
    if kept:
        parts += [(codes, sharded, True) for codes, sharded, _ in tuple(parts)]
    return Storage(
        tensor,
        np.concatenate([codes for codes, _, _ in parts]),
        np.concatenate([np.full(len(codes), sharded) for codes, sharded, _ in parts]),
        np.concatenate([np.full(len(codes), again) for codes, _, again in parts]),
        spreads,
    )


def stored_itemsize(dtype: str, precision: Precision) -> int:
    """Bytes of an element of a parameter or buffer as it is stored."""
    return ITEMSIZE[precision.master if dtype in FLOATS else dtype]


def _axes_at(tensor: Space, letter: int) -> list[tuple[int, ...]]:
    """For every code the axes with this letter."""
    return [tuple(a for a, x in enumerate(row) if x == letter) for row in tensor.letters.tolist()]


def stored_bytes(choice: Storage, trainable: bool, precision: Precision, states: int) -> Array:
    """Memory of the parameter, its gradient and its optimizer states on a rank."""
    item = ITEMSIZE[precision.master]
    if not trainable:
        return choice.numel * item
    ranks = _shards(choice)
    # Shards are updated in copies of their own.
    updated: Array = -(-choice.numel // ranks) * (states + choice.sharded.astype(np.int64))
    return (2 * choice.numel + updated) * item


def _shards(choice: Storage) -> Array:
    """Over how many ranks the update is spread beyond the layout: the axes at B where states are sharded."""
    whole = np.where(choice.space.has(choice.codes, B), np.array(choice.space.axes), 1).prod(axis=1)
    return np.where(choice.sharded, whole, 1)


def per_step_ns(
    choice: Storage,
    machine: Machine,
    placement: Placement,
    precision: Precision,
    roofline: Roofline,
    states: int,
    flat: bool = False,
) -> Array:
    """Synchronizing the gradient over the axes at B, and updating: once a step; `flat`: by collectives of one step."""
    item = ITEMSIZE[precision.master]
    axes = _axes_at(choice.space, B)
    total = np.zeros(len(choice), dtype=np.int64)
    for group in {axes[c] for c in choice.codes.tolist()} - {()}:
        total_of, part_of, whole_of = (
            schedule(machine, placement, group, kind, flat).at(BUCKET_BYTES)
            for kind in ("all_reduce", "reduce_scatter", "all_gather")
        )
        for sharded, line in ((False, total_of), (True, part_of + whole_of)):
            here = (choice.sharded == sharded) & np.array([axes[c] == group for c in choice.codes.tolist()])
            total[here] += _bucketed(line, choice.numel[here] * item)
    updated = -(-choice.numel // _shards(choice))
    # Parameter and states are read and written, the gradient is read.
    return total + roofline.memory_ns(np.float64(item * (3 + 2 * states)) * updated)


def _bucketed(line: CollectivePrice, size_bytes: Array) -> Array:
    shares = line.latency_ns * size_bytes / BUCKET_BYTES
    times: Array = np.ceil(shares + line.ns_per_byte * size_bytes - ROUNDING_NS).astype(np.int64)
    return times


def exchange_ns(choice: Storage, stages: int, precision: Precision, transfer: CollectivePrice) -> Array:
    """Adding up the gradients of a weight that several stages of a pipeline have: once a step."""
    whole = choice.numel * ITEMSIZE[precision.master]
    return transfer.ns_array(exchanged_bytes(whole, stages))


def cast_ns(choice: Storage, precision: Precision, roofline: Roofline) -> Array:
    """Casting the stored part to the compute dtype, once a use."""
    if not precision.mixed:
        return np.zeros(len(choice), dtype=np.int64)
    return roofline.memory_ns(np.float64(ITEMSIZE[precision.master] + ITEMSIZE[precision.compute]) * choice.numel)


def accumulate_ns(choice: Storage, precision: Precision, roofline: Roofline) -> Array:
    """Adding a micro-batch's gradient to the accumulated one."""
    return roofline.memory_ns(np.float64(ITEMSIZE[precision.compute] + 2 * ITEMSIZE[precision.master]) * choice.numel)


def looked_up_bytes(choice: Storage, rows: Collection[int], ids: int, precision: Precision) -> Array:
    """Bytes of a sparse gradient of one micro-batch: for each of `ids` look-ups its id, and the part of a row here.

    `rows` are the atoms of the table's rows; every rank has all look-ups, zeros for rows that it does not store.
    """
    sizes = tuple(1 if a in rows else size for a, size in enumerate(choice.space.sizes))
    columns = space(choice.space.axes, sizes).numel[choice.codes]
    whole: Array = ids * (columns * ITEMSIZE[precision.master] + ITEMSIZE["int64"])
    return choice.with_spread(whole, lambda spread: spread_bytes(spread, ids, precision))


def spread_bytes(spread: Spread, ids: int, precision: Precision) -> int:
    """Bytes of such a gradient of spread tables: the ids of each table are looked up in every unit of it."""
    of_each = ids // len(spread.rows)
    return of_each * (spread.largest.columns * ITEMSIZE[precision.master] + spread.largest.units * ITEMSIZE["int64"])


def looked_up_ns(looked_up: Array, micro_batches: int, roofline: Roofline) -> Array:
    """Joining the sparse gradients of micro-batches, and updating the rows looked up: once a step."""
    k = micro_batches
    joined = k * (k + 1) - 2  # the j-th of them is joined by copying j: 2 * (2 + ... + k), read and written
    # Gradients of one row are added up (read and written), then read; parameters are read and written.
    joining, updating = (roofline.memory_ns(np.float64(passes) * looked_up) for passes in (joined, 5 * k))
    times: Array = joining + updating
    return times
