"""Compiled loops of tree-reweighted messages: arcs, a pass, its gradient."""

from typing import NamedTuple

import numpy as np

from ..elimination.kernels import Floats, Ints, compiled, least_sums
from .form import Flat, as_floats


class Arcs(NamedTuple):
    """Both directions of a network's edges, sorted by variable, then by the other end.

    Variable v has the options start[v] to start[v+1] and the arcs first[v] to first[v+1], those from middle[v]
    on to later variables. Arc a leads to target[a]; its reverse is arc back[a]. The message to v along a begins at
    inbox[a], its costs [n_v, n_target] at at[a] of a table that stores equal ones once. `of_edge` [2E]: the arcs from
    the first end of every edge, then those from the second.
    """

    start: Ints
    first: Ints
    middle: Ints
    target: Ints
    back: Ints
    inbox: Ints
    at: Ints
    of_edge: Ints


def arcs_of(flat: Flat) -> tuple[Arcs, Ints]:
    """The arcs, and the entry of the network's table for each entry of theirs."""
    edges, sizes = len(flat.ends), flat.sizes
    here, there = np.concatenate([flat.ends, flat.ends[:, ::-1]]).T
    order = np.lexsort((there, here))
    place = np.empty(2 * edges, np.int64)
    place[order] = np.arange(2 * edges)
    here, there = here[order], there[order]
    first = np.searchsorted(here, np.arange(flat.variables + 1))
    ahead = np.concatenate([[0], np.cumsum(there < here)])
    at, source = _distinct(flat)
    return Arcs(
        start=flat.start,
        first=first,
        middle=first[:-1] + np.diff(ahead[first]),
        target=np.ascontiguousarray(there),
        back=place[(order + edges) % max(2 * edges, 1)],
        inbox=(np.cumsum(sizes[here]) - sizes[here]).astype(np.int64),
        at=at[order],
        of_edge=place,
    ), source


def _distinct(flat: Flat) -> tuple[Ints, Ints]:
    """Offsets of each edge's table, then of its transpose, equal ones shared; and the source of each entry."""
    u, v = flat.ends.T
    seen: dict[tuple[int, bytes, bytes], int] = {}
    places, sources, total = [], [np.zeros(0, np.int64)], 0
    for low, high, n, m in np.stack([flat.at[:-1], flat.at[1:], flat.sizes[u], flat.sizes[v]], axis=1).tolist():
        use = b"" if flat.pair_use is None else flat.pair_use[low:high].tobytes()
        key = n, flat.table[low:high].tobytes(), use
        if key not in seen:
            seen[key] = total
            index = np.arange(low, high).reshape(n, m)
            sources += [index.ravel(), index.T.ravel()]
            total += 2 * (high - low)
        places.append(seen[key])
    straight = np.array(places, np.int64)
    return np.concatenate([straight, straight + np.diff(flat.at)]), np.concatenate(sources)


def floats(costs: Ints, grain: float) -> Floats:
    """Costs as floats, +inf where forbidden, rounded down to the grain."""
    return on_grid(as_floats(costs), grain)


def on_grid(values: Floats, grain: float) -> Floats:
    """Round down to multiples of the grain."""
    rounded: Floats = np.floor(values / grain) * grain
    return rounded


@compiled
def extrapolate(messages: Floats, before: Floats, momentum: float, grain: float) -> None:
    """Momentum: extrapolate the messages by their change since `before`, and set `before` to them."""
    for i in range(messages.shape[0]):
        here = messages[i]
        if abs(here) < np.inf and abs(before[i]) < np.inf:
            messages[i] = here + np.floor(momentum * (here - before[i]) / grain) * grain
        before[i] = here


@compiled
def margins(start: Ints, hat: Floats, best: Ints, gap: Floats) -> None:
    """The best option of every variable, the first of equals, and the margin to the next (inf: there is none)."""
    for v in range(best.shape[0]):
        first, second, at = np.inf, np.inf, 0
        for x in range(start[v], start[v + 1]):
            if hat[x] < first:
                first, second, at = hat[x], first, x - start[v]
            elif hat[x] < second:
                second = hat[x]
        best[v], gap[v] = at, second - first if second < np.inf else np.inf


class PassState(NamedTuple):
    """The state of a pass: costs [options], `messages`, and results.

    `hat` [options] are min-marginals, `rest` [V] what each variable keeps; the sum of `rest` is the bound. If `rest`
    was valid before a pass, `proved` [options] bounds the solutions that take the option.
    """

    cost: Floats
    messages: Floats
    hat: Floats
    rest: Floats
    proved: Floats


@compiled
def send(forward: bool, arcs: Arcs, table: Floats, state: PassState, grain: float) -> float:
    """One pass over all variables, renewing the messages of one direction; returns the largest magnitude met.

    Options without a partner get an infinite cost; returns inf if a variable has none left.
    """
    cost, messages, hat, rest, proved = state
    start, first, middle = arcs.start, arcs.first, arcs.middle
    variables = start.shape[0] - 1
    most = 1
    for v in range(variables):
        most = max(most, start[v + 1] - start[v])
    ahead, share, rows = np.empty(most), np.empty(most), np.empty(most, np.int64)
    credit = rest.copy()  # each variable's part of the bound
    total, largest, spread = credit.sum(), 0.0, 0.0
    for step in range(variables):
        v = step if forward else variables - 1 - step
        low, n = start[v], start[v + 1] - start[v]
        mine = hat[low : low + n]
        mine[:] = cost[low : low + n]
        for a in range(first[v], first[v + 1]):
            received = messages[arcs.inbox[a] : arcs.inbox[a] + n]
            for x in range(n):
                mine[x] += received[x]
                size = abs(mine[x])
                largest = size if largest < size < np.inf else largest
        count = 0
        for x in range(n):
            if mine[x] < np.inf:
                rows[count] = x
                count += 1
                largest = max(largest, abs(cost[low + x]))
            else:
                cost[low + x] = np.inf
        if count == 0:
            rest[v] = np.inf
            return np.inf
        total -= credit[v]
        largest = max(largest, abs(total))
        for x in range(n):
            proved[low + x] = total + mine[x]
        begin, end = (middle[v], first[v + 1]) if forward else (first[v], middle[v])
        part = grain * max(end - begin, first[v + 1] - first[v] - (end - begin), 1)
        kept, least = np.inf, np.inf
        for i in range(count):
            x = mine[rows[i]]
            share[i] = np.floor(x / part) * grain
            kept = min(kept, x - share[i] * (end - begin))
            least = min(least, share[i])
        total += kept + least * (end - begin)
        rest[v] = kept
        spread += abs(kept)
        for a in range(begin, end):
            received = messages[arcs.inbox[a] : arcs.inbox[a] + n]
            for i in range(count):
                ahead[i] = share[i] - received[rows[i]]
                largest = max(largest, abs(ahead[i]))
            w, place = arcs.target[a], arcs.inbox[arcs.back[a]]
            credit[w] += least
            least_sums(ahead, rows, count, table, arcs.at[a], messages[place : place + start[w + 1] - start[w]])
    return max(largest, spread)


@compiled
def origins(
    forward: bool, arcs: Arcs, table: Floats, state: PassState, grain: float, weight: Floats, pairs: Floats
) -> None:
    """A subgradient of the bound after a pass: `weight` [options], of sum 1 per variable, and `pairs` [entries].

    The bound is a sum of minima; its gradient by the costs is propagated back from what each variable keeps. An empty
    `pairs` is not filled.
    """
    start, first, middle = arcs.start, arcs.first, arcs.middle
    messages, hat = state.messages, state.hat
    variables = start.shape[0] - 1
    weight[:] = 0.0
    pairs[:] = 0.0
    for step in range(variables):
        v = variables - 1 - step if forward else step
        low, high = start[v], start[v + 1]
        begin, end = (first[v], middle[v]) if forward else (middle[v], first[v + 1])  # arcs of received messages
        sent = first[v + 1] - first[v] - (end - begin)
        parts = max(sent, end - begin, 1)
        kept, best = -1, np.inf
        if sent < parts:
            for x in range(low, high):
                if hat[x] < np.inf:
                    here = hat[x] - np.floor(hat[x] / (grain * parts)) * grain * sent
                    if here < best:
                        kept, best = x, here
            weight[kept] += 1.0 - sent / parts
        for a in range(begin, end):
            u, back = arcs.target[a], arcs.inbox[arcs.back[a]]
            n = start[u + 1] - start[u]
            ahead = middle[u] - first[u]
            parts = max(ahead, first[u + 1] - first[u] - ahead, 1)
            for x in range(low, high):
                if weight[x] < 1e-9:
                    continue
                row = arcs.at[a] + (x - low) * n
                chosen, best = 0, np.inf
                for y in range(n):
                    if hat[start[u] + y] < np.inf:
                        here = (
                            np.floor(hat[start[u] + y] / (grain * parts)) * grain - messages[back + y] + table[row + y]
                        )
                        if here < best:
                            chosen, best = y, here
                weight[start[u] + chosen] += weight[x] / parts
                if pairs.shape[0]:
                    pairs[row + chosen] += weight[x]
