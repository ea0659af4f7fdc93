"""Merge variables that are functions of a neighbour into it."""

from typing import NamedTuple

import numpy as np

from ...formulation.network.network import INFINITE
from ..elimination.kernels import Bools, Ints, compiled
from .form import Flat, Pairs, offsets
from .substitution import Incidence, Reduced, Substitution, incidence, substituted


class _Forest(NamedTuple):
    """[V] each: the neighbour that determines a variable (-1: none), the edge to it, a pointer towards the root."""

    parent: Ints
    via: Ints
    above: Ints


def merged(flat: Flat) -> Reduced:
    """Merge every variable that has one finite option per option of some neighbour into that neighbour.

    Its costs, edges and pieces move to the neighbour; pieces keep their rows. If the neighbour has more options, the
    variable's other tables grow: by no more entries than the merged edge had.
    """
    parent, via = np.full((2, flat.variables), -1, np.int64)
    forest = _Forest(parent, via, np.arange(flat.variables))
    facing = np.bincount(flat.ends.ravel(), flat.sizes[flat.ends[:, ::-1]].ravel(), flat.variables).astype(np.int64)
    _parents(flat.pairs, incidence(flat), facing, forest, np.zeros(flat.variables, np.bool_))
    if (parent < 0).all():
        return Reduced(flat)
    root = parent.copy()
    roots = np.flatnonzero(parent < 0)
    root[roots] = roots
    while (root[root] != root).any():
        root = root[root]
    number = np.full(flat.variables, -1, np.int64)
    number[roots] = np.arange(len(roots))
    first = offsets(flat.sizes[root])
    options = np.empty(first[-1], np.int64)
    _compose(flat.pairs, forest, root, first, options)
    return substituted(flat, Substitution(number[root], first[:-1], options, offsets(flat.sizes[roots])))


@compiled
def _functional(table: Ints, rows: tuple[int, int], columns: tuple[int, int]) -> bool:
    """True if every row has exactly one finite entry; `rows` and `columns` are (count, stride in the table)."""
    for x in range(rows[0]):
        finite = 0
        for y in range(columns[0]):
            finite += table[x * rows[1] + y * columns[1]] < INFINITE
            if finite > 1:
                break
        if finite != 1:
            return False
    return True


@compiled
def _parents(pairs: Pairs, incidence: Incidence, facing: Ints, forest: _Forest, grown: Bools) -> None:
    """Fill in the acyclic forest.

    `facing` [V] is the total number of options of a variable's neighbours: the entries that one more option adds. A
    table of each of the `grown` variables grows: no other one may in this pass.
    """
    start, ends, at, table = pairs
    around, edges = incidence
    parent, via, above = forest
    for e in range(ends.shape[0]):
        for side in range(2):
            by, own = (ends[e, 0], ends[e, 1]) if side == 0 else (ends[e, 1], ends[e, 0])
            if parent[own] >= 0:
                continue
            width = start[ends[e, 1] + 1] - start[ends[e, 1]]
            step, across = (width, 1) if side == 0 else (1, width)
            count, own_count = start[by + 1] - start[by], start[own + 1] - start[own]
            if not _functional(table[at[e] : at[e + 1]], (count, step), (own_count, across)):
                continue
            top = by
            while above[top] != top:
                above[top] = above[above[top]]
                top = above[top]
            growth = (facing[own] - count) * (start[top + 1] - start[top] - own_count)
            if top == own or growth > count * own_count:
                continue
            if growth > 0:
                busy = grown[own] or grown[top]
                for k in range(around[own], around[own + 1]):
                    busy |= grown[ends[edges[k], 0]] or grown[ends[edges[k], 1]]
                if busy:
                    continue
                grown[top] = True
                for k in range(around[own], around[own + 1]):
                    grown[ends[edges[k], 0]] = grown[ends[edges[k], 1]] = True
            facing[top] += facing[own] - count - own_count
            parent[own], via[own], above[own] = by, e, top


@compiled
def _compose(pairs: Pairs, forest: _Forest, root: Ints, first: Ints, options: Ints) -> None:
    """Fill in the option of every variable under every option of its root."""
    start, ends, at, table = pairs
    parent, via, _ = forest
    done, path = np.zeros(len(parent), np.bool_), np.empty(len(parent), np.int64)
    for last in range(parent.shape[0]):
        v, length = last, 0
        while not done[v] and parent[v] >= 0:
            path[length] = v
            length += 1
            v = parent[v]
        if not done[v]:
            done[v] = True
            for x in range(start[v + 1] - start[v]):
                options[first[v] + x] = x
        while length:
            length -= 1
            v = path[length]
            done[v] = True
            e, by, r = via[v], parent[v], root[v]
            width = start[ends[e, 1] + 1] - start[ends[e, 1]]
            step, across = (width, 1) if ends[e, 0] == by else (1, width)
            for x in range(start[r + 1] - start[r]):
                base = at[e] + options[first[by] + x] * step
                y = 0
                while table[base + y * across] >= INFINITE:
                    y += 1
                options[first[v] + x] = y
