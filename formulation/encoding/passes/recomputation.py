"""Recomputation: every segment has a mode, and a switch with the tables of its variables and edges in each mode."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ...network.chains import Position
from ...network.network import INFINITE, Edge, Switch, SwitchTables, Variable
from ...strategies.operand_cost import EdgeTables
from ..builder import NetworkBuilder
from .encoding_pass import EncodingPass
from .operators import operator_key
from .segment_tables import SegmentTables


class Recomputation(EncodingPass):
    """z_g: the mode of a segment; see `segment_tables` for what it decides."""

    def __init__(self, builder: NetworkBuilder) -> None:
        super().__init__(builder)
        self.segments, self.modes = builder.segments, builder.options.recompute
        self.tables = SegmentTables(builder)

    def finish(self) -> None:
        builder = self.builder
        variables: list[dict[int, SwitchTables]] = [{} for _ in self.segments.segments]
        edges: list[dict[int, SwitchTables]] = [{} for _ in self.segments.segments]
        if not variables:
            return
        for node, (variable, _) in builder.operators.items():
            if node in self.segments.number:
                number = self.segments.number[node]
                tables = self.tables.of_operator(node, operator_key(builder, node))
                variables[number][variable] = self._beside(tables, builder.variables[variable], variable)
        for edge, conversion in builder.conversions.items():
            segment = builder.part_of(conversion, self.segments.number)
            if segment is not None:
                tables = self.tables.of_conversion(conversion, segment)
                edges[segment][edge] = self._beside(
                    tables, builder.edges[edge], builder.edges[edge].u, builder.edges[edge].v
                )
        builder.switches = tuple(
            Switch(self._add_variable(number), variables[number], edges[number]) for number in range(len(variables))
        )
        builder.edges.extend(self._retention_edges())
        if self.modes[0] != "none":
            self._replace_tables()

    def _beside(self, tables: SwitchTables, none: Variable | Edge, *scope: int) -> SwitchTables:
        """Tables with the options of parallel branches, which are not recomputed; in mode none those of `none`.

        What a recomputed segment reads may be joined from branches: the option then counts as the one it stands for.
        """
        further = [self.builder.bundled.get(v, ()) for v in scope]
        if not any(further):
            return tables
        cost, use, extra = tables
        shape = none.cost.shape
        longer = [np.full((len(self.modes), *shape), INFINITE, np.int64)]
        longer += [np.zeros((len(self.modes), *shape), np.int64) for _ in range(2)]
        ordinary = cost.shape[1:]
        for made, table in zip(longer, (cost, None if use is None else use[..., 0], extra), strict=True):
            if table is None:
                continue
            made[:, *(slice(n) for n in ordinary)] = table
            for row, placed in enumerate(further[0], ordinary[0]) if len(scope) > 1 else ():
                join = self.builder.operators[placed.levels[0].bundle.join][0]
                if join == scope[0]:
                    made[:, row, : ordinary[1]] = table[:, placed.option]
        if "none" in self.modes:
            mode = self.modes.index("none")
            longer[0][mode], longer[2][mode] = none.cost, 0
            longer[1][mode] = 0 if none.use is None else none.use[..., 0]
        cost, use, extra = map(self.builder.interned, longer)
        return cost, self.builder.interned(use[..., None]) if use.any() else None, extra if extra.any() else None

    def _add_variable(self, number: int) -> int:
        """The mode of a segment, which computes its constants again unless it is none."""
        builder, segment = self.builder, self.segments.segments[number]
        constants = sum(builder.constants.get(node, 0) for node in segment.nodes)
        cost = [self._constants_ns(number, mode, constants) for mode in self.modes]
        tables = np.array(cost, np.int64), np.zeros((len(cost), 1), np.int64)
        key = builder.keep(("switch", *cost), lambda: tables)
        classes = builder.classes
        first = next(i for i in segment.nodes if classes.base[i] == i and not classes.constant[i])
        return builder.add_variable(f"{segment.name} recompute", key, Position(first - 0.6))  # before its weights

    def _constants_ns(self, number: int, mode: str, once: int) -> int:
        """What the constants of a segment add: none of them has samples, so that parts compute all of them."""
        if not self.segments.allows(number, mode):
            return INFINITE
        return 0 if mode == "none" else once * (2 * self.segments.parts(number, mode) - 1)

    def _retention_edges(self) -> Iterator[Edge]:
        """Between modes and hubs that choose retention: a recomputed segment reads the hub only if it is kept.

        If it is the hub's one reader from outside, the hub is kept only then.
        """
        builder = self.builder
        for base, (hub, table) in builder.hubs.items():
            readers = self.segments.outside_readers(base)
            key = layouts, several, beside = len(table.codes), len(readers) > 1, len(builder.bundled.get(hub, ()))
            for number in readers:
                tables = builder.table(("retention", *key), partial(self._retention_tables, layouts, several, beside))
                yield Edge(builder.switches[number].variable, hub, *tables)

    def _retention_tables(self, layouts: int, several: bool, beside: int) -> EdgeTables:
        """The tables of an edge from modes to a hub; `several`: more than one segment reads it.

        Its last options, `beside`, are those of parallel branches, which are not recomputed.
        """
        recomputed = np.array([mode != "none" for mode in self.modes])
        cost = np.zeros((len(recomputed), 2 * layouts + beside), np.int64)
        cost[recomputed, :layouts] = cost[recomputed, 2 * layouts :] = INFINITE
        cost[~recomputed, layouts : 2 * layouts] = 0 if several else INFINITE
        return cost, None

    def _replace_tables(self) -> None:
        """Variables and edges of segments get the tables of the first mode."""
        builder = self.builder
        for switch in builder.switches:
            for v, (cost, use, _) in switch.variables.items():
                none = np.zeros((*cost[0].shape, 1), np.int64)
                builder.variables[v] = replace(builder.variables[v], cost=cost[0], use=none if use is None else use[0])
            for k, (cost, use, _) in switch.edges.items():
                builder.edges[k] = replace(builder.edges[k], cost=cost[0], use=None if use is None else use[0])
