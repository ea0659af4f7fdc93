"""Prefetching: weights that travel ahead of the layer that reads them take memory; see `encoding.overlap`.

While a layer goes backward, the weights of the layer before arrive and its own gradients leave. The copies are
transient use of the layer's switch: that of the layer with the most counts. A layer without modes of recomputation gets
a switch of one mode.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...network.chains import Position
from ...network.network import Edge, Switch, SwitchTables
from ...weights.storage import prefetched_copies
from ..builder import Conversion, NetworkBuilder
from ..overlap import hiding_layers
from .encoding_pass import EncodingPass

Array = npt.NDArray[np.int64]


class Prefetching(EncodingPass):
    """Adds the copies of a layer's gathered weights to its transient use."""

    def __init__(self, builder: NetworkBuilder) -> None:
        super().__init__(builder)
        self.alone: dict[int, SwitchTables] = {}  # by the identity of tables, which the values keep alive
        self.more: dict[tuple[int, int], SwitchTables] = {}

    def finish(self) -> None:
        builder = self.builder
        layers = hiding_layers(builder.pcg, builder.together)
        number = {i: layer for layer, segment in enumerate(layers) for i in segment.nodes}
        found: list[dict[int, Array]] = [{} for _ in layers]
        known: dict[int, Array] = {}
        for edge, conversion in builder.conversions.items():
            layer = builder.part_of(conversion, number) if conversion.source == "weight" else None
            repeated = conversion.use is not None and conversion.use.node in builder.classes.twin
            if layer is not None and not repeated:
                key = id(builder.edges[edge].cost)
                if key not in known:
                    known[key] = builder.interned(self._copies(conversion, builder.edges[edge].cost.shape))
                if known[key].any():
                    found[layer][edge] = known[key]
        of_name = {segment.name: number for number, segment in enumerate(builder.segments.segments)}
        switches = list(builder.switches)
        for segment, copies in zip(layers, found, strict=True):
            if not copies:
                continue
            if segment.name in of_name:
                switch = switches[of_name[segment.name]]
                edges = {k: self._more(t, copies[k]) if k in copies else t for k, t in switch.edges.items()}
                switches[of_name[segment.name]] = replace(switch, edges=edges)
            else:
                at = Position(min(i for i in segment.nodes if builder.classes.base[i] == i) - 0.6)
                variable = builder.add_free_variable(f"{segment.name} recompute", "switch", 1, at)
                tables = {k: self._more(self._alone(builder.edges[k]), each) for k, each in copies.items()}
                switches.append(Switch(variable, {}, tables))
        builder.switches = tuple(switches)

    def _copies(self, conversion: Conversion, shape: tuple[int, ...]) -> Array:
        """Bytes [M, given, required] of the copies of a weight that is gathered, in each mode."""
        builder, base = self.builder, conversion.base
        stored, trainable = builder.weights[base][1], builder.pcg.nodes[base].gradient
        whole = stored.space.numel[builder.required(conversion)]
        part = stored.space.numel[stored.codes][:, None]  # not the share of a spread table, which is never gathered
        gathered = np.where(whole > part, whole, 0) * builder.precision.itemsize("float32")
        copies = np.array(
            [
                [prefetched_copies(trainable, again, mode != "none") for again in stored.regather.tolist()]
                for mode in builder.options.recompute
            ]
        )
        repeats = [n // m for n, m in zip(shape, gathered.shape, strict=True)]  # hubs have their layouts twice
        made: Array = np.tile(copies[..., None] * gathered, [1, *repeats])
        return made

    def _alone(self, edge: Edge) -> SwitchTables:
        """Tables of an edge in the one mode of a switch."""
        key = id(edge.cost)
        if key not in self.alone:
            self.alone[key] = edge.cost[None], None if edge.use is None else edge.use[None], None
        return self.alone[key]

    def _more(self, tables: SwitchTables, copies: Array) -> SwitchTables:
        """Tables with more transient use: made once, so that equal layers share them."""
        cost, use, extra = tables
        key = id(cost), id(copies)
        if key not in self.more:
            self.more[key] = cost, use, copies if extra is None else extra + copies
        return self.more[key]
