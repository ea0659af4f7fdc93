"""The messages of each collective, as NCCL's and gloo's algorithms send them.

The members of a group are numbered 0 .. m-1, level-major: with the sizes (s_0 .. s_k) of the levels that the group
spreads over, outermost first, the members of one unit are consecutive. Bytes are in units of D, the data of one member
before the collective (after it, for an all-gather).

    nccl-ring   all_reduce 2 (m-1)/m D on every edge of a ring, reduce_scatter and all_gather (m-1)/m D;
                reduce and broadcast D/2 each way round the ring, from the root or to it, so that an end of each half
                crosses the edge that closes the ring (src/device/reduce.h and broadcast.h, runRing)
    nccl-tree   the same, but all_reduce up and down two binary trees over the nodes, D/2 each, and along a chain of D
                each way inside a node
    nccl-nvls   as nccl-tree, but all_reduce inside a node by the switch (NVLink SHARP): each member has D read from it
                and reads its D/m of the sums, then writes that to the switch and receives D, (m+1)/m D each way
                (src/device/all_reduce.h, NCCL_ALGO_NVLS)
    all         all_to_all D/m from each to each; send D to the next
    gloo        all_reduce and all_gather on a ring; reduce_scatter is an all_reduce of which a member keeps its part;
                reduce is a reduce-scatter on the ring, then a gather at the root; broadcast sends D to twice as many
                members each round, and rounds may overlap (`STREAMED`)
                (gloo/allreduce.cc, allgather_ring.cc, reduce.cc, broadcast.cc; ProcessGroupGloo.cpp)
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .wiring import MAX_UNITS

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Simultaneous messages: `share` of D from member `source` to member `target`.

    `hops`: for every level of the group, the length of its longest chain of dependent messages.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]
    hops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrafficPhase:
    """A shape with `share` times its bytes and `laps` times its hops."""

    shape: Shape
    share: float = 1.0
    laps: int = 1


Pattern = Callable[[Sizes, int], tuple[TrafficPhase, ...]]
"""(sizes of a group's levels, how many of them are between nodes) -> consecutive phases."""


@cache
def ring(sizes: Sizes) -> Shape:
    """Each member sends D/2 to the next and D/2 to the previous one, the last next to the first; m-1 hops.

    On a switch the direction makes no difference; NCCL runs rings both ways to use both directions of NVLink.
    """
    members = np.arange(math.prod(sizes))
    after = np.roll(members, -1)
    both = np.concatenate([members, after]), np.concatenate([after, members])
    return Shape(*both, np.full(2 * len(members), 0.5), _walk(sizes))


@cache
def from_root(sizes: Sizes) -> Shape:
    """D/2 goes from the first member through all to the last, D/2 the other way round the ring."""
    members = np.arange(math.prod(sizes))
    onward, backward = members, np.roll(members[::-1], 1)  # 0 1 2 3 and 0 3 2 1
    source, target = (np.concatenate([onward[part], backward[part]]) for part in (slice(-1), slice(1, None)))
    return Shape(source, target, np.full(len(source), 0.5), _walk(sizes))


@cache
def reverse(shape: Shape) -> Shape:
    """The same messages in the other direction."""
    return Shape(shape.target, shape.source, shape.share, shape.hops)


@cache
def double_tree(sizes: Sizes, across: int) -> Shape:
    """Two binary trees over the nodes, D/2 up and down each (NCCL, src/graph/trees.cc), a chain inside each node.

    The outer `across` levels are those between nodes. A node's first member exchanges one half of the data with other
    nodes, its last member the other half, which takes the chain in the other direction.
    """
    nodes, node_size = math.prod(sizes[:across]), math.prod(sizes[across:])
    members = np.arange(nodes * node_size)
    chained = members[members % node_size > 0]
    child = np.arange(1, nodes)
    bit = child & -child
    parent = (child ^ bit) | (bit << 1)
    parent = np.where(parent < nodes, parent, child ^ bit)
    # The second tree is the first one mirrored, or shifted by one where the number of nodes is odd.
    second = [(node + 1) % nodes if nodes % 2 else nodes - 1 - node for node in (child, parent)]
    trees = [(child, parent), second]
    outer_members = (0, node_size - 1)
    low = np.concatenate([chained, *(lower * node_size + member for lower, _ in trees for member in outer_members)])
    high = np.concatenate(
        [chained - 1, *(upper * node_size + member for _, upper in trees for member in outer_members)]
    )
    share = np.concatenate([np.ones(len(chained)), np.full(4 * len(child), 0.25)])
    hops = (*((size - 1).bit_length() for size in sizes[:across]), *_walk(sizes[across:]))
    return Shape(np.concatenate([low, high]), np.concatenate([high, low]), np.concatenate([share, share]), hops)


@cache
def doubling(sizes: Sizes, round_: int) -> Shape:
    """The first 2^round members send D to the next 2^round, or to all that remain."""
    source = np.arange(min(2**round_, math.prod(sizes) - 2**round_))
    target = source + 2**round_
    units = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    outermost = next(i for i, unit in enumerate(units) if (source // unit != target // unit).any())
    return Shape(source, target, np.ones(len(source)), tuple(int(i == outermost) for i in range(len(sizes))))


@cache
def forward(sizes: Sizes) -> Shape:
    """Each member sends D to the next, the last to the first, all at once."""
    members = np.arange(math.prod(sizes))
    return Shape(members, np.roll(members, -1), np.ones(len(members)), (1, *(0 for _ in sizes[1:])))


@cache
def exchange(sizes: Sizes) -> Shape:
    """Each member sends D/m to each other member; all it sends to one unit counts as one message.

    That message goes to the member in the sender's own position there, which loads every link equally. On a level of
    more than `MAX_UNITS` units, which has no wiring, all of them go to the next unit.
    """
    m = math.prod(sizes)
    members = np.arange(m)
    source, target, share = [], [], []
    for i, size in enumerate(sizes):
        inside = math.prod(sizes[i + 1 :])
        digit = members // inside % size
        steps = range(1, size) if size <= MAX_UNITS else (1,)
        for step in steps:
            source.append(members)
            target.append(members + ((digit + step) % size - digit) * inside)
            share.append(np.full(m, (size - 1) / len(steps) * inside / m))
    hops = tuple(size - 1 for size in sizes)
    return Shape(np.concatenate(source), np.concatenate(target), np.concatenate(share), hops)


@cache
def gather(sizes: Sizes) -> Shape:
    """Each member sends D to the root at once."""
    members = np.arange(1, math.prod(sizes))
    return Shape(members, np.zeros_like(members), np.ones(len(members)), (1, *(0 for _ in sizes[1:])))


def _walk(sizes: Sizes) -> tuple[int, ...]:
    """Hops on every level of a level-major walk over all members."""
    return tuple(math.prod(sizes[:i]) * (size - 1) for i, size in enumerate(sizes))


# Patterns


def _around(laps: int) -> Pattern:
    """Every part passes all members `laps` times."""

    def pattern(sizes: Sizes, across: int) -> tuple[TrafficPhase, ...]:
        m = math.prod(sizes)
        return (TrafficPhase(ring(sizes), laps * (m - 1) / m, laps),)

    return pattern


def _by_switch(sizes: Sizes, across: int) -> tuple[TrafficPhase, ...]:
    """The switch adds up inside a node; between nodes by trees."""
    if across:
        return (TrafficPhase(double_tree(sizes, across), laps=2),)
    m = math.prod(sizes)
    return (TrafficPhase(forward(sizes), (m + 1) / m, laps=2),)


def _gloo_reduce(sizes: Sizes, across: int) -> tuple[TrafficPhase, ...]:
    return (*_around(1)(sizes, across), TrafficPhase(gather(sizes), 1 / math.prod(sizes)))


def _gloo_broadcast(sizes: Sizes, across: int) -> tuple[TrafficPhase, ...]:
    return tuple(TrafficPhase(doubling(sizes, i)) for i in range((math.prod(sizes) - 1).bit_length()))


_RING: Mapping[str, Pattern] = {
    "all_reduce": _around(2),
    "reduce_scatter": _around(1),
    "all_gather": _around(1),
    "reduce": lambda sizes, across: (TrafficPhase(reverse(from_root(sizes))),),
    "broadcast": lambda sizes, across: (TrafficPhase(from_root(sizes)),),
    "all_to_all": lambda sizes, across: (TrafficPhase(exchange(sizes)),),
    "send": lambda sizes, across: (TrafficPhase(forward(sizes)),),
}
PATTERNS: Mapping[str, Mapping[str, Pattern]] = {
    "nccl-ring": _RING,
    "nccl-tree": {**_RING, "all_reduce": lambda sizes, across: (TrafficPhase(double_tree(sizes, across), laps=2),)},
    "nccl-nvls": {**_RING, "all_reduce": _by_switch},
    "gloo": {**_RING, "reduce_scatter": _around(2), "reduce": _gloo_reduce, "broadcast": _gloo_broadcast},
}
"""Profile (`Machine.collectives`) -> collective -> pattern."""

STREAMED = frozenset({("gloo", "broadcast")})
"""Collectives whose members start the sends of all rounds once they have the data (gloo/broadcast.cc).

On one level, members proceed round by round; over several levels, some have the data earlier, so rounds overlap."""

MOST_STREAMED = 64
"""Most devices for which mixed rounds are simulated message by message."""
