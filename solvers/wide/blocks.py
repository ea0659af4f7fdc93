"""Tree blocks: an exact dynamic program over a random induced tree of a network, all else fixed.

A block grows from a random variable: a neighbour joins while exactly one of its own neighbours is inside, so that the
block induces a tree. Messages go up by min-plus products, choices come down.
"""

from typing import NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE
from ...model.errors import PartitaError
from ..elimination.kernels import Floats, Ints, compiled, least_sums
from .form import Flat
from .passes import arcs_of


class Net(NamedTuple):
    """A `Flat` as the compiled loops read it: edges from both ends, and pieces sorted by variable.

    `cost` [options] and `pool` are float64; forbidden ones cost a finite number above all others, so that a choice with
    forbidden pairs can be improved too. The arcs of variable v are first[v] to first[v+1]: `other` is the
    neighbour, `back` its arc to v, and the table [n_other, n_v] begins at at[arc] of `pool`. The pieces of v are
    piece[v] to piece[v+1], of `rows`, `use_at` and `use`.
    """

    start: Ints
    cost: Floats
    first: Ints
    other: Ints
    back: Ints
    at: Ints
    pool: Floats
    limits: Ints
    piece: Ints
    rows: Ints
    use_at: Ints
    use: Ints
    forbidden: float


class Scratch(NamedTuple):
    """Work arrays of a block, sized as in `Net`; their contents mean nothing between blocks."""

    order: Ints  # [V] the block, every parent before its children
    up: Ints  # [V] the arc to the parent, -1 at the root
    near: Ints  # [V] how many neighbours are in the block, -1 inside it
    front: Ints  # [V] where the block may grow
    new: Ints  # [V] the proposed choice; the current one outside of the block
    belief: Floats  # [options] the minimum over the subtree
    message: Floats  # [most options]
    ahead: Floats  # [most options] finite beliefs of a sender
    finite: Ints  # [most options] and their options
    prefix: Floats  # [R+1] prices summed up to a row
    load: Ints  # [R+1] what the proposal adds to every row


def net_of(flat: Flat) -> Net:
    """The arrays of a network whose pairs use no capacity; threads may share them."""
    if flat.pair_use is not None:
        raise PartitaError("descent takes only networks whose pairs use no capacity")
    arcs, source = arcs_of(flat)
    finite = max(int(x[x < INFINITE].max(initial=1)) for x in (flat.cost, flat.table))
    forbidden = float(64 * finite)  # small enough that sums stay exact
    order = np.argsort(flat.piece_of, kind="stable")
    return Net(
        start=flat.start,
        cost=np.minimum(flat.cost, forbidden),
        first=arcs.first,
        other=arcs.target,
        back=arcs.back,
        at=arcs.at[arcs.back],
        pool=np.minimum(flat.table[source], forbidden),
        limits=flat.limits,
        piece=np.searchsorted(flat.piece_of[order], np.arange(flat.variables + 1)),
        rows=np.ascontiguousarray(flat.rows[order]),
        use_at=np.ascontiguousarray(flat.use_at[:-1][order]),
        use=flat.use,
        forbidden=forbidden,
    )


def scratch(net: Net, choice: Ints) -> Scratch:
    """Work arrays for the blocks of a network."""
    variables, rows = len(net.start) - 1, len(net.limits)
    most = int(np.diff(net.start).max(initial=1))
    return Scratch(
        order=np.zeros(variables, np.int64),
        up=np.zeros(variables, np.int64),
        near=np.zeros(variables, np.int64),
        front=np.zeros(variables, np.int64),
        new=choice.copy(),
        belief=np.zeros(len(net.cost)),
        message=np.zeros(most),
        ahead=np.zeros(most),
        finite=np.zeros(most, np.int64),
        prefix=np.zeros(rows + 1),
        load=np.zeros(rows + 1, np.int64),
    )


@compiled
def random(state: Ints, n: int) -> int:
    """A number below n (xorshift); `state` [1] is never 0."""
    x = state[0]
    x ^= x << 13
    x ^= (x >> 7) & 0x01FFFFFFFFFFFFFF
    x ^= x << 17
    state[0] = x
    number: int = ((x >> 11) & 0x7FFFFFFFFFFF) % n
    return number


@compiled
def grow(net: Net, room: Scratch, root: int, most: int, state: Ints) -> int:
    """Grow a random block of at most `most` variables from the root; returns their number."""
    order, up, near, front = room.order, room.up, room.near, room.front
    front[0], up[root] = root, -1
    waiting, count = 1, 0
    while waiting > 0 and count < most:
        i = random(state, waiting)
        v = front[i]
        waiting -= 1
        front[i] = front[waiting]
        if near[v] > 1:
            continue  # it would close a cycle
        near[v] = -1
        order[count] = v
        count += 1
        for arc in range(net.first[v], net.first[v + 1]):
            w = net.other[arc]
            if near[w] >= 0:
                near[w] += 1
                if near[w] == 1:
                    up[w] = net.back[arc]
                    front[waiting] = w
                    waiting += 1
    return count


@compiled
def clear(net: Net, room: Scratch, count: int) -> None:
    """Reset `near` for the variables that the block touched."""
    for i in range(count):
        v = room.order[i]
        room.near[v] = 0
        for arc in range(net.first[v], net.first[v + 1]):
            room.near[net.other[arc]] = 0


@compiled
def _believe(net: Net, room: Scratch, v: int, choice: Ints, noise: float, state: Ints) -> None:
    """Set the costs of v's options under the prices, noise, and the choice outside of the block."""
    belief, low, n = room.belief, net.start[v], net.start[v + 1] - net.start[v]
    for x in range(n):
        belief[low + x] = net.cost[low + x]
        if noise > 0:
            belief[low + x] += noise * random(state, 1 << 30) / (1 << 30)
    for p in range(net.piece[v], net.piece[v + 1]):
        price, used = room.prefix[net.rows[p, 1]] - room.prefix[net.rows[p, 0]], net.use_at[p]
        if price > 0:
            for x in range(n):
                belief[low + x] += price * net.use[used + x]
    for arc in range(net.first[v], net.first[v + 1]):
        w = net.other[arc]
        if room.near[w] >= 0:
            row = net.at[arc] + choice[w] * n
            for x in range(n):
                belief[low + x] += net.pool[row + x]


@compiled
def solve_tree(net: Net, room: Scratch, count: int, choice: Ints, noise: float, state: Ints) -> None:
    """Set `room.new` to the best choice of the block under the prices of `room.prefix`; ties at random.

    Every option costs a random amount of up to `noise` more.
    """
    order, up, belief, message, start = room.order, room.up, room.belief, room.message, net.start
    for i in range(count):
        _believe(net, room, order[i], choice, noise, state)
    for i in range(count - 1, 0, -1):
        v = order[i]
        arc = net.back[up[v]]
        parent = net.other[up[v]]
        low, high = start[parent], start[parent + 1] - start[parent]
        least, rows = belief[start[v] : start[v + 1]].min(), 0
        for x in range(start[v + 1] - start[v]):
            if belief[start[v] + x] < least + net.forbidden:
                room.ahead[rows], room.finite[rows] = belief[start[v] + x], x
                rows += 1
        least_sums(room.ahead, room.finite, rows, net.pool, net.at[arc], message[:high])
        for y in range(high):
            belief[low + y] += message[y]
    for i in range(count):
        v = order[i]
        low, n = start[v], start[v + 1] - start[v]
        if i > 0:
            row = net.at[up[v]] + room.new[net.other[up[v]]] * n
            for x in range(n):
                belief[low + x] += net.pool[row + x]
        x = random(state, n)
        best = x
        for _ in range(n):
            best = x if belief[low + x] < belief[low + best] else best
            x = x + 1 if x + 1 < n else 0
        room.new[v] = best


@compiled
def changed_cost(net: Net, room: Scratch, count: int, choice: Ints) -> float:
    """The cost of `room.new` minus that of the choice, without prices."""
    total, new = 0.0, room.new
    for i in range(count):
        v = room.order[i]
        if new[v] == choice[v]:
            continue
        low, n = net.start[v], net.start[v + 1] - net.start[v]
        total += net.cost[low + new[v]] - net.cost[low + choice[v]]
        for arc in range(net.first[v], net.first[v + 1]):
            w = net.other[arc]
            if new[w] == choice[w] or v < w:  # an edge whose two ends change counts once
                row = net.at[arc]
                total += net.pool[row + new[w] * n + new[v]] - net.pool[row + choice[w] * n + choice[v]]
    return total


@compiled
def changed_load(net: Net, room: Scratch, count: int, choice: Ints) -> None:
    """Set `room.load` [R]: the use of `room.new` minus that of the choice."""
    load = room.load
    load[:] = 0
    for i in range(count):
        v = room.order[i]
        if room.new[v] == choice[v]:
            continue
        for p in range(net.piece[v], net.piece[v + 1]):
            more = net.use[net.use_at[p] + room.new[v]] - net.use[net.use_at[p] + choice[v]]
            load[net.rows[p, 0]] += more
            load[net.rows[p, 1]] -= more
    for r in range(1, load.shape[0]):
        load[r] += load[r - 1]


@compiled
def sum_prices(prices: Floats, prefix: Floats) -> None:
    """prefix[r] = the prices of all rows before r."""
    prefix[0] = 0.0
    for r in range(prices.shape[0]):
        prefix[r + 1] = prefix[r] + prices[r]


@compiled
def take(room: Scratch, count: int, choice: Ints, load: Ints) -> None:
    """Make `room.new` the choice."""
    for i in range(count):
        choice[room.order[i]] = room.new[room.order[i]]
    for r in range(load.shape[0]):
        load[r] += room.load[r]
