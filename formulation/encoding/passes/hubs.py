"""Hubs: the layout to which a tensor is converted once, for several readers, or where layers end."""

from collections.abc import Mapping
from functools import partial

from ...network.chains import Position
from ...network.joined_pairs import LEAST_COPIES
from ..builder import Conversion, NetworkBuilder
from ..hub_retention import fill_both
from .encoding_pass import EncodingPass


class Hubs(EncodingPass):
    """h_t: the shared layout of a computed tensor that several readers have in common, or that leaves a segment."""

    def __init__(self, builder: NetworkBuilder) -> None:
        super().__init__(builder)
        found = builder.pairs.items() if len(builder.pairs) > LEAST_COPIES else ()
        self.pairs = {node for pair in found for node in pair}

    def publish(self, node: int) -> None:
        builder = self.builder
        shared = builder.choices.read_together(builder.classes.uses.get(node, ()))
        if node in builder.cuts or node in self.pairs or shared or builder.segments.leaves(node):
            self._add(node)

    def _add(self, node: int) -> None:
        builder, retention = self.builder, self.builder.retention
        by_alternatives, kept = retention.by_alternatives(node), bool(retention.keepers(node))
        halves = (kept and not by_alternatives, True) if retention.is_chosen(node) else (kept,)
        producers = {
            builder.operators[producer][0]: tuple(self._tables(node, producer, half) for half in halves)
            for producer in builder.choices.of(node)
        }
        connect_hub(builder, node, "operator", producers, self._position(node))

    def _position(self, node: int) -> Position:
        builder, beside = self.builder, self.builder.beside.get(node)
        known = builder.hubs.get(beside) if beside is not None else None
        cut = node in builder.cuts or known is not None
        return Position(node + 0.25, cut=cut, beside=None if known is None else known[0])

    def _tables(self, node: int, producer: int, kept: bool) -> object:
        """The key of the tables from an alternative to the layouts of the hub, kept for backward or not."""
        builder, costs = self.builder, self.builder.costs
        repeats = sum(n not in builder.classes.handed for n in builder.classes.passes.get(node, ()))
        tables = id(costs.table(node)), id(costs.without_gradient(node))
        key = ("to hub", builder.node_options.number(producer), tables, kept, repeats)
        return builder.keep(key, lambda: costs.to_hub(node, builder.operators[producer][1], kept, repeats))


def connect_hub(
    builder: NetworkBuilder, base: int, source: str, producers: Mapping[int, tuple[object, ...]], position: Position
) -> None:
    """Add the hub of a tensor, and edges from variables with the tables of their keys.

    Two keys: for every layout not kept for backward, then for all of them kept.
    """
    table = builder.costs.table(base)
    size = len(table.codes) * len(next(iter(producers.values())))
    hub = builder.add_free_variable(f"{builder.pcg.nodes[base].name} shared", "hub", size, position)
    builder.hubs[base] = hub, table
    for producer, keys in producers.items():
        tables = [builder.tables[key] for key in keys]
        key = keys[0] if len(keys) == 1 else builder.keep(keys, partial(fill_both, *tables))
        builder.add_conversion(producer, hub, Conversion(base, source, None, key))
