"""Networks of equal layers with two hubs between them, `u` and `v`, which both operators of the next layer read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from partita.formulation.network.network import Edge, Network, Switch, SwitchTables, Table, Variable, Window, evaluate
from partita.solvers.protocol import Solution

Key: TypeAlias = tuple[str, str, bool]
"""The two ends of an edge, and whether the first one is in the layer before."""


def layered(
    count: int,
    variables: Mapping[str, tuple[Table, Table]],
    edges: Mapping[Key, tuple[Table, Table | None]],
    modes: Mapping[Key, SwitchTables],
    streams: Mapping[Key, Table],
    room: int,
) -> Network:
    """So many layers; `modes`: the tables of edges that a switch of each layer decides on, if there are any."""
    made: list[Variable] = []
    between: list[Edge] = []
    at: list[dict[str, int]] = []
    switches, windows, of_modes = [], [], (np.zeros(2, np.int64), np.zeros((2, 1), np.int64))  # layers share tables
    for number in range(count):
        at.append({})
        if modes:
            at[-1]["z"] = len(made)
            made.append(Variable(f"z{number}", *of_modes))
        for name in "abuv":
            at[-1][name] = len(made)
            made.append(Variable(f"{name}{number}", *variables[name]))
        decided, hidden = {}, {}
        for (x, y, further), tables in edges.items():
            if further and not number:
                continue
            if (x, y, further) in modes:
                decided[len(between)] = modes[x, y, further]
            elif (x, y, further) in streams:
                hidden[len(between)] = streams[x, y, further]
            between.append(Edge(at[-1 - further][x], at[-1][y], *tables))
        switches += [Switch(at[-1]["z"], {}, decided)] if modes else []
        windows += [Window({}, hidden)] if streams else []
    pairs, line = tuple((own["u"], own["v"]) for own in at), tuple(range(len(made)))
    return Network(tuple(made), tuple(between), (room,), 7, (), tuple(switches), tuple(windows), pairs, line)


def assert_agrees(network: Network, answer: Solution, reference: Solution) -> None:
    """The bound of an answer is not above the optimum (`reference`), and its assignment costs what it says."""
    if reference.objective is None:
        assert answer.assignment is None
        return
    assert answer.bound <= reference.objective
    if answer.assignment is not None:
        assert evaluate(network, answer.assignment).cost == answer.objective >= reference.objective
