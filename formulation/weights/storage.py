"""How a parameter is stored: its layout, where its gradient and optimizer states are, whether it is gathered twice.

Fully sharded data parallelism is a layout: stored split, required whole (S -> B is an all-gather forward and a
reduce-scatter backward, per micro-batch). ZeRO-1 shards the states over the axes on which the layout is B: gradients
are reduce-scattered and parameters all-gathered, once a step. ZeRO-2 reduce-scatters gradients in every micro-batch,
and accumulates shards (Rajbhandari et al., 2020). Offloaded states live in the host's memory, and visit the device for
the update (Ren et al., 2021, without the update on the host). `regather` converts the weight a second time for the
backward instead of keeping the converted copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import numpy as np
import numpy.typing as npt

from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.layout import B, P, R, S
from ...model.machine.collective_price import ROUNDING_NS, CollectivePrice
from ...model.machine.machine import Device
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from ..decisions import StoredAs
from ..network.network import INFINITE
from ..parallelism import ZERO, Parallelism, Role
from ..pipeline.stage_transfers import exchanged_bytes
from ..reduction.optimal import cheapest_programs
from ..special.table_spread import TableSpread
from ..strategies.transitions import Codes, Space, Transitions
from .buckets import BUCKET_BYTES

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Storage:
    """Options of a parameter: `codes[o]` the stored layout, and flags.

    `sharded`: its optimizer states are split over the axes at B, `scattered`: its accumulated gradient too,
    `offloaded`: the states are in the host's memory, `regather`: it is converted again for backward. `spreads`: of
    joined tables how they are spread over each axis, where the code has P.
    """

    space: Space
    codes: Codes
    sharded: Flags
    scattered: Flags
    offloaded: Flags
    regather: Flags
    spreads: tuple[TableSpread | None, ...] = ()

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def numel(self) -> Array:
        """Elements stored on a rank: the most that one has."""
        return self.with_spread(self.space.numel[self.codes], lambda spread: spread.largest.elements)

    @cached_property
    def updated(self) -> Array:
        """Elements that a rank updates: of sharded states its share."""
        copies = np.where(self.space.has(self.codes, B), np.array(self.space.axes), 1).prod(axis=1)
        return -(-self.numel // np.where(self.sharded, copies, 1))

    @property
    def flags(self) -> tuple[Flags, Flags, Flags, Flags]:
        return self.sharded, self.scattered, self.offloaded, self.regather

    @property
    def plain(self) -> Flags:
        """Which options have no flag."""
        flagged: Flags = np.logical_or.reduce(self.flags)
        return ~flagged

    def only(self, keep: Flags) -> Storage:
        """Some of the options."""
        sharded, scattered, offloaded, regather = (flag[keep] for flag in self.flags)
        return Storage(self.space, self.codes[keep], sharded, scattered, offloaded, regather, spreads=self.spreads)

    def with_spread(self, amounts: Array, amount: Callable[[TableSpread], int]) -> Array:
        """`amounts` of every option, but for spread tables another one."""
        for spread, there in zip(self.spreads, self.space.has(self.codes, P).T, strict=False):
            if spread is not None:
                amounts = np.where(there, amount(spread), amounts)
        return amounts


SHARDS = ((False, False), (True, False), (True, True))
"""(states sharded, gradients too): data parallelism, ZeRO-1, ZeRO-2."""


def transient_buffers(ranks: int, micro_batches: int) -> int:
    """Transient buffers, in units of the largest weight.

    On several ranks the gathered weight and its gradient; on one the gradient of a micro-batch, before it is added to
    that of the previous ones.
    """
    return 2 if ranks > 1 else int(micro_batches > 1)


def prefetched_copies(trainable: bool, regathered: bool, recomputed: bool) -> int:
    """Copies of a layer's gathered weights that a program holds for a moment where they travel ahead of their use.

    The message and what it becomes; in backward the gradients, their message and that of the layer after, and where
    weights are gathered again, they and the message of the layer before. Recomputation counts the weights itself.
    """
    if not trainable:
        return 2
    return 3 + 2 * regathered if not recomputed else 4


LEAST = 64
"""Weights below 1/LEAST of the largest are neither scattered nor offloaded: too few bytes to matter."""


def storage(
    tensor: Space,
    trainable: bool,
    kept: bool,
    spreads: tuple[TableSpread | None, ...] = (),
    *,
    scatter: bool = False,
    offload: bool = False,
) -> Storage:
    """All options of storing a parameter; `kept`: a reader keeps it for backward, so it may be gathered again there.

    Joined tables may be spread over one axis, and are whole on the others. `scatter`: gradients may be scattered in
    every micro-batch, `offload`: states may be on the host; these options are the last.
    """
    legal = tensor.legal(addends=trainable)
    at = tensor.has(legal, P)
    spread = np.logical_and(at, [x is not None for x in spreads] or False).any(axis=1) & (at.sum(axis=1) == 1)
    spread &= np.isin(tensor.letters[legal], (R, B, P)).all(axis=1)
    legal = legal[~at.any(axis=1) | spread]
    copies = legal[tensor.has(legal, B).any(axis=1)]
    parts: list[tuple[Codes, tuple[bool, ...]]] = []
    every = product((False, True)[: 1 + kept], (False, True)[: 1 + offload], SHARDS[: 2 + scatter])
    for again, offloaded, shards in sorted(every, key=lambda flags: flags[1] or flags[2][1]):
        parts.append((copies if shards[0] else legal, (*shards, offloaded, again)))
    codes = np.concatenate([part for part, _ in parts])
    sharded, scattered, offloaded, regather = np.concatenate([np.tile(flags, (len(c), 1)) for c, flags in parts]).T
    return Storage(tensor, codes, sharded, scattered, offloaded, regather, spreads=spreads)


def stored_as(choice: Storage, keep: Flags, parallelism: Parallelism, roles: Sequence[Role]) -> Flags:
    """The options to `keep` that a stage of ZeRO admits, or the nearest to it: of small weights, or if ranks are empty.

    The axes are those whose ranks share samples or positions, as `roles` say. ZeRO-3 stores a weight in shards over the
    `SHARD` ranks if there are some, and gathers it again for backward (Rajbhandari et al., 2020, section 5.3).
    """
    if parallelism.zero is None:
        return keep
    letters = choice.space.letters[choice.codes]
    shares = Role.SHARD if Role.SHARD in roles else Role.DATA
    for axis, role in enumerate(roles):
        if role in (Role.FREE, Role.TENSOR):
            continue
        is_split = letters[:, axis] >= S(0)
        if parallelism.zero == ZERO[-1] and role in (shares, Role.CONTEXT, Role.EXPERT):
            keep = _preferred(keep, is_split)
        elif role is not Role.EXPERT:
            keep = _preferred(keep, letters[:, axis] == B)  # whole, and its gradient is added up once a step
    wanted = {0: (~choice.sharded,), 1: (~choice.scattered, choice.sharded), 2: (choice.sharded, choice.scattered)}
    for flag in wanted.get(parallelism.zero, (choice.regather,)):
        keep = _preferred(keep, flag)
    return keep


def whole_each_way(choice: Storage, trainable: bool) -> Flags:
    """The options that both directions of a pipeline have to themselves until the end of a step (the first axis)."""
    whole: Flags = choice.space.letters[choice.codes][:, 0] == (B if trainable else R)
    return whole & ~choice.scattered


def agreeing(choice: Storage, decided: StoredAs) -> Flags:
    """The options that are as a partial plan decides; gradients in shards and states on the host where `worthwhile`."""
    letters = choice.space.letters[choice.codes]
    keep = np.ones(len(choice), dtype=np.bool_)
    for axis, letter in enumerate(decided.layout):
        keep &= np.isin(letters[:, axis], (R, B) if letter is None else (letter,))
    for flag, flags in ((decided.sharded, choice.sharded), (decided.regather, choice.regather)):
        keep &= True if flag is None else flags == flag
    for flag, flags in ((decided.offloaded, choice.offloaded), (decided.scattered, choice.scattered)):
        keep = keep if flag is None else _preferred(keep, flags == flag)
    return keep


def _preferred(keep: Flags, wanted: Flags) -> Flags:
    both: Flags = keep & wanted
    return both if both.any() else keep


def worthwhile(choice: Storage, cost: Array, use: Array) -> Flags:
    """Which options to keep: of scattered gradients and offloaded states those that some memory is a reason for.

    An option is no better than another that converts alike and takes no more time (ns of a step) and memory (bytes).
    """
    alike, group = np.unique(choice.codes * 2 + choice.regather, return_inverse=True)
    kind = choice.sharded + choice.scattered + len(SHARDS) * choice.offloaded
    both = np.full((2, 2 * len(SHARDS), len(alike)), INFINITE, dtype=np.int64)
    both[:, kind, group] = cost, use
    beaten = np.zeros(both.shape[1:], dtype=np.bool_)
    for one, other in permutations(range(len(beaten)), 2):
        no_worse = (both[:, one] <= both[:, other]).all(axis=0)
        beaten[other] |= no_worse & ((both[:, one] < both[:, other]).any(axis=0) | (one < other))
    kept: Flags = ~(choice.scattered | choice.offloaded) | ~beaten[kind, group]
    return kept


# What a parameter keeps, and what training it costs


def stored_itemsize(precision: Precision, sparse: bool = False) -> int:
    """Bytes of an element of a parameter as it is stored; a table with a sparse gradient is updated as it is stored."""
    return ITEMSIZE[precision.master if sparse else precision.parameters]


def stored_bytes(
    choice: Storage, trainable: bool, precision: Precision, states: int, sparse: bool = False, weight_versions: int = 0
) -> Array:
    """Memory of the parameter, its gradient, optimizer states and further `weight_versions` on a rank."""
    stored: Array = choice.numel * stored_itemsize(precision, sparse)
    if not trainable:
        return stored
    gradients: Array = np.where(choice.scattered, choice.updated, choice.numel) * ITEMSIZE[precision.gradients]
    kept: Array = np.where(choice.offloaded, 0, update_bytes(choice, precision, states, weight_versions))
    return stored + gradients + kept + weight_versions * ITEMSIZE[precision.master] * choice.numel


def update_bytes(choice: Storage, precision: Precision, states: int, weight_versions: int = 0) -> Array:
    """What the optimizer keeps: states, and copies where it updates in another dtype.

    Shards are parts of the weights, but copies of several versions of the weights.
    """
    copies = precision.copied | choice.sharded & (weight_versions > 0)
    size: Array = choice.updated * (states + copies.astype(np.int64)) * ITEMSIZE[precision.master]
    return size


def reduce_ns(choice: Storage, mesh: Transitions, precision: Precision) -> Array:
    """Time of adding up the gradient over the axes at B once a step, each rank's shard of it if states are sharded.

    None if gradients are scattered, which is done in every micro-batch (`scatter_ns`).
    """
    return _exchanged_ns(choice, mesh, precision)[0]


def per_step_ns(choice: Storage, mesh: Transitions, precision: Precision, roofline: Roofline, states: int) -> Array:
    """Time of synchronizing the gradient over the axes at B and of the update: once a step."""
    total = sum(_exchanged_ns(choice, mesh, precision))
    total += roofline.memory_ns(np.float64(precision.update_traffic(states)) * choice.updated)
    if choice.offloaded.any():
        assert mesh.machine.device.host_bandwidth is not None
        visits = 2 * update_bytes(choice, precision, states) / mesh.machine.device.host_bandwidth * 1e9
        total += np.where(choice.offloaded, np.ceil(visits).astype(np.int64), 0)
    return total


def _exchanged_ns(choice: Storage, mesh: Transitions, precision: Precision) -> tuple[Array, Array]:
    """Time of reducing gradients, and of gathering the parameters that were updated in shards."""
    gradient, parameter = ITEMSIZE[precision.gradients], ITEMSIZE[precision.parameters]
    reduced, gathered = np.zeros((2, len(choice)), dtype=np.int64)
    for axes, here in _summed(choice):
        total_of, part_of, whole_of = (
            cheapest_programs(mesh.machine, mesh.placement, axes, kind, mesh.flat).at(BUCKET_BYTES)
            for kind in ("all_reduce", "reduce_scatter", "all_gather")
        )
        summed, sharded, scattered = (
            here & ~choice.sharded,
            here & choice.sharded & ~choice.scattered,
            here & choice.scattered,
        )
        reduced[summed] += _bucketed([(total_of, gradient)], choice.numel[summed])
        reduced[sharded] += _bucketed([(part_of, gradient)], choice.numel[sharded])
        both = _bucketed([(part_of, gradient), (whole_of, parameter)], choice.numel[sharded])  # rounded up once
        gathered[sharded] += both - _bucketed([(part_of, gradient)], choice.numel[sharded])
        gathered[scattered] += _bucketed([(whole_of, parameter)], choice.numel[scattered])
    return reduced, gathered


def scatter_ns(choice: Storage, mesh: Transitions, precision: Precision) -> Array:
    """Time of adding up and splitting scattered gradients over the axes at B: in every micro-batch."""
    total, gradient = np.zeros(len(choice), dtype=np.int64), ITEMSIZE[precision.gradients]
    for axes, here in _summed(choice):
        line = cheapest_programs(mesh.machine, mesh.placement, axes, "reduce_scatter", mesh.flat).at(BUCKET_BYTES)
        those = here & choice.scattered
        total[those] += _bucketed([(line, gradient)], choice.numel[those])
    return total


def _summed(choice: Storage) -> Iterator[tuple[tuple[int, ...], Flags]]:
    """Axes over which gradients are added up, with the options of which they are."""
    axes = [tuple(a for a, x in enumerate(row) if x == B) for row in choice.space.letters.tolist()]
    of_option = [axes[code] for code in choice.codes.tolist()]
    for found in dict.fromkeys(of_option):
        if found:
            yield found, np.array([other == found for other in of_option])


def reduced_once(choice: Storage) -> Flags:
    """Which options add up the gradient over axes, once a step; see `reduce_ns`."""
    return choice.space.has(choice.codes, B).any(axis=1) & ~choice.scattered


def _bucketed(moved: Sequence[tuple[CollectivePrice, int]], numel: Array) -> Array:
    """Time of the elements' share of full buckets; `moved`: collectives, and the bytes of an element in each."""
    latency = sum(line.latency_ns * item for line, item in moved)
    rate = sum(line.ns_per_byte * item for line, item in moved)
    times: Array = np.ceil(latency * numel / BUCKET_BYTES + rate * numel - ROUNDING_NS).astype(np.int64)
    return times


def exchange_ns(choice: Storage, stages: int, precision: Precision, transfer: CollectivePrice) -> Array:
    """Adding up the gradients of a weight that several stages of a pipeline have: once a step."""
    whole = choice.numel * ITEMSIZE[precision.gradients]
    return transfer.ns_array(exchanged_bytes(whole, stages))


def cast_ns(choice: Storage, precision: Precision, roofline: Roofline) -> Array:
    """Casting the stored part to the compute dtype, once a use."""
    if not precision.mixed:
        return np.zeros(len(choice), dtype=np.int64)
    item = ITEMSIZE[precision.parameters] + ITEMSIZE[precision.compute]
    return roofline.memory_ns(np.float64(item) * choice.numel)


def accumulate_ns(choice: Storage, precision: Precision, roofline: Roofline) -> Array:
    """Adding a micro-batch's gradient to the accumulated one; of a scattered one then the share that it leaves."""
    made, item = ITEMSIZE[precision.compute], ITEMSIZE[precision.gradients]
    shares = np.where(choice.scattered, 3 * item * choice.updated, 0)
    return roofline.memory_ns(np.float64(made + 2 * item) * choice.numel + shares)


def looked_up_bytes(
    choice: Storage, rows: Collection[int], ids: int, precision: Precision, device: Device | None = None
) -> Array:
    """Bytes of a sparse gradient of one micro-batch: for each of `ids` look-ups its id, and the part of a row here.

    `rows` are the atoms of the table's rows; every rank has all look-ups, zeros for rows that it does not store. With a
    `device` the bytes that it moves where the parts lie apart.
    """
    columns = choice.space.only([a for a in range(len(choice.space.sizes)) if a not in rows]).numel[choice.codes]
    parts: Array = columns * ITEMSIZE[precision.master]
    whole: Array = ids * ((parts if device is None else device.touched(parts)) + ITEMSIZE["int64"])
    return choice.with_spread(whole, lambda spread: spread_bytes(spread, ids, precision, device))


def spread_bytes(spread: TableSpread, ids: int, precision: Precision, device: Device | None = None) -> int:
    """Bytes of such a gradient of spread tables: the ids of each table are looked up in every unit of it."""
    unit = spread.unit * ITEMSIZE[precision.master]
    each = (unit if device is None else device.touched(unit)) + ITEMSIZE["int64"]
    return ids // len(spread.rows) * spread.largest.units * each


def looked_up_ns(looked_up: Array, moved: Array, micro_batches: int, roofline: Roofline) -> Array:
    """Joining the sparse gradients of micro-batches, and updating the rows looked up: once a step.

    `looked_up` are the bytes of one gradient, `moved` those that memory moves for its rows.
    """
    k = micro_batches
    joined = k * (k + 1) - 2  # the j-th of them is joined by copying j: 2 * (2 + ... + k), read and written
    # Gradients of one row are added up (read and written), then read; parameters are read and written.
    joining, updating = (
        roofline.memory_ns(np.float64(passes) * size) for passes, size in ((joined, looked_up), (5 * k, moved))
    )
    times: Array = joining + updating
    return times
