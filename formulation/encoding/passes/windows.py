"""Windows: a layer computes while weights are gathered and gradients reduced; see `encoding.overlap`.

Forward and backward of a layer are windows of three streams: G, kernels and all that they wait for, W, conversions of
weights and reductions of gradients, and H, the host, which issues the calls of both. Weights that are exchanged before
they are gathered do not travel ahead (`Table.waits`): they are in G. Kernels lose a share of W's time to it where cores
that compute carry messages (`Machine.busy_ns`), which is in G. What is reduced once a step hides in the last
micro-batch only, so that of several micro-batches the last backward is a window of its own. A layer's costs
move from its tables to the streams; what belongs to no micro-batch, such as the update, stays.

A window has no H where that is never longer than G, whatever is chosen: the sum over its tables of the most that H
exceeds G is not above 0. Where a network bounds what layers cost inside a larger part, one that may be the first layer
there has no H either: the first layer hides nothing, and its host time is not priced. Nor has the last backward where
updates are left out: its host time may hide behind reductions, which are left out as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ....model.graph.origin import origin
from ...bundles.bundles import find_bundles
from ...network.network import INFINITE, SwitchTables, Table, Window
from ...strategies.tensor_classes import classes
from ...weights.storage import accumulate_ns, cast_ns, reduce_ns, reduced_once, scatter_ns
from ..builder import Conversion
from ..overlap import HOST, KERNELS, hiding_layers
from ..recomputable_segments import uncertain
from .encoding_pass import EncodingPass
from .operators import operator_key

Array = npt.NDArray[np.int64]


class _Streams(NamedTuple):
    """ns of a step, and calls of the host in it; `again`: traffic, and calls, of forward that recomputation repeats.

    `regathered`: traffic of forward that backward repeats in any mode. `parted`: what forward takes longer in each
    mode, in parts. Calls may be of each mode, too.
    """

    forward: Array | int = 0
    forward_traffic: Array | int = 0
    backward: Array | int = 0
    backward_traffic: Array | int = 0
    reduced: Array | int = 0
    again: Array | int = 0
    regathered: Array | int = 0
    forward_calls: Array | int = 0
    backward_calls: Array | int = 0
    reduced_calls: Array | int = 0
    again_calls: Array | int = 0
    parted: Array | int = 0


class _Split(NamedTuple):
    """A cost table and the windows of a layer: what stays of it, and in each window the streams G and W.

    `with_host`: G, W and H, empty without a host; `excess`: the most that H is longer than G.
    """

    stays: Table
    streams: tuple[Table, ...]
    with_host: tuple[Table, ...]
    excess: tuple[int, ...]


class _Moved(NamedTuple):
    """A table of the layer of this number."""

    layer: int
    split: _Split


class Windows(EncodingPass):
    """Moves what layers compute and send from the tables of variables, edges and switches to windows."""

    def finish(self) -> None:
        builder = self.builder
        layers = hiding_layers(builder.pcg, builder.together, builder.stage.inside)
        if not layers:
            return
        self.layer = {i: layer for layer, segment in enumerate(layers) for i in segment.nodes}
        self.cache: dict[tuple[int, str], _Split] = {}
        variables = {**self._operators(), **self._weights()}
        edges = self._conversions()
        windows = []
        for layer in range(len(layers)):
            own, between = ({key: m.split for key, m in of.items() if m.layer == layer} for of in (variables, edges))
            host = layer >= self._hostless
            for place in range(self._windows):
                hidden = builder.stage.without_updates and place == self._windows - 1
                windows.append(_window(own, between, place, host=host and not hidden))
        builder.windows = tuple(windows)
        self._leave(variables, edges)

    @property
    def _hostless(self) -> int:
        """How many leading layers have no H: those that may be first in a larger part, or all if none hides there."""
        if not self.builder.stage.inside:
            return 0
        at = origin(self.builder.pcg)
        whole = at if at.part is None else origin(at.part[0])
        return len(self.layer) if find_bundles(whole) or uncertain(whole, classes(whole)) else 1

    @property
    def _windows(self) -> int:
        """The windows of a layer: forward, backward, and backward of the last of several micro-batches."""
        return 2 if self.builder.micro_batches == 1 else 3

    def _operators(self) -> dict[int, _Moved]:
        builder, decided = self.builder, {v: t for s in self.builder.switches for v, t in s.variables.items()}
        found = {}
        for node, (variable, _) in builder.operators.items():
            if node in self.layer:
                plain = builder.tables[operator_key(builder, node)][0]
                cost = decided[variable][0] if variable in decided else plain
                split = self._moved(cost, plain, "operator", partial(self._operator, node))
                found[variable] = _Moved(self.layer[node], split)
        return found

    def _weights(self) -> dict[int, _Moved]:
        builder, found = self.builder, {}
        for base, (variable, _) in builder.weights.items():
            layer = self.layer.get(builder.classes.uses[base][0].node)
            if layer is not None and builder.pcg.nodes[base].gradient and base not in builder.sparse:
                cost = builder.variables[variable].cost
                found[variable] = _Moved(layer, self._moved(cost, cost, "weight", partial(self._weight, base)))
        return found

    def _conversions(self) -> dict[int, _Moved]:
        builder, decided = self.builder, {k: t for s in self.builder.switches for k, t in s.edges.items()}
        found = {}
        for edge, conversion in builder.conversions.items():
            layer = builder.part_of(conversion, self.layer)
            if layer is not None:
                plain = builder.tables[conversion.key][0]
                cost = decided[edge][0] if edge in decided else plain
                split = self._moved(cost, plain, conversion.source, partial(self._conversion, conversion))
                found[edge] = _Moved(layer, split)
        return found

    def _operator(self, node: int) -> _Streams:
        """Kernels, and conversions of constants that it reads."""
        builder, k = self.builder, self.builder.micro_batches
        found = builder.node_options.of(node)
        constants = [p for p in range(len(found.inputs)) if builder.costs.kind(node, p) == "constant"]
        converted = sum((builder.costs.undecided_ns(node, p) for p in constants), np.zeros_like(found.time_ns))
        forward = found.forward_ns * k + converted
        plain = {"forward": forward, "backward": (found.time_ns - found.forward_ns) * k}
        number = builder.segments.number.get(node)
        if number is None:
            calls, back = found.calls * k
            reads = sum((builder.costs.undecided_calls(node, p) for p in constants), np.zeros_like(calls))
            return _Streams(**plain, forward_calls=calls + reads, backward_calls=back, again_calls=calls + reads)
        parted, calls, again = [], [], []
        for mode, at in builder.segments.in_modes(number):
            of_part = at.options(node).calls * at.micro_batches
            reads = sum((at.constant_calls(node, p) for p in constants), np.zeros_like(of_part[0]))
            parted.append(sum((at.constant_ns(node, p) for p in constants), -forward) + at.forward_of(node))
            calls.append((of_part[0] + reads, of_part[1]))
            again.append(np.where(builder.segments.output_kept(node, mode), 0, of_part[0]) + reads)
        ahead, back = (np.array(each) for each in zip(*calls, strict=True))
        return _Streams(
            **plain, parted=np.array(parted), forward_calls=ahead, backward_calls=back, again_calls=np.array(again)
        )

    def _weight(self, base: int) -> _Streams:
        """The gradient: added up over micro-batches, and reduced."""
        builder, stored = self.builder, self.builder.weights[base][1]
        precision, mesh, k = builder.precision, builder.transitions, builder.micro_batches
        once = int(not builder.stage.without_updates)
        return _Streams(
            backward=k * accumulate_ns(stored, precision, builder.roofline),
            backward_traffic=k * scatter_ns(stored, mesh, precision),
            reduced=once * reduce_ns(stored, mesh, precision),
            backward_calls=k * (1 + stored.scattered),
            reduced_calls=once * reduced_once(stored).astype(np.int64),
        )

    def _conversion(self, conversion: Conversion) -> _Streams:
        """A conversion of an activation, for which kernels wait, or of a weight."""
        builder, base, k = self.builder, conversion.base, self.builder.micro_batches
        table = builder.costs.table(base)
        required = builder.required(conversion)
        stored = builder.weights[base][1] if conversion.source == "weight" else None
        if stored is not None:
            given = stored.codes
        else:
            given = table.codes if conversion.source == "hub" else builder.node_options.of(base).output
        a, b = table.position[given], table.position[required]
        forward, both = table.forward[a][:, b] * k, table.total[a][:, b] * k
        calls, back = table.calls[:, a][:, :, b].astype(np.int64) * k
        if builder.pcg.nodes[base].op != "parameter":
            return self._activation(conversion, (given, required), (forward, both - forward), (calls, back))
        counted = {"forward_calls": calls, "backward_calls": back, "again_calls": calls}
        waits = table.waits[a][:, b]
        ahead, behind = np.where(waits, 0, forward), np.where(waits, 0, both - forward)
        if stored is None:
            return _Streams(forward - ahead, ahead, both - forward - behind, behind, again=ahead, **counted)
        cast, twice = k * cast_ns(stored, builder.precision, builder.roofline)[:, None], stored.regather[:, None]
        regathered = np.where(twice, ahead, 0)
        calls = calls + k * builder.precision.mixed  # a cast
        segment = builder.part_of(conversion, builder.segments.number)
        further: Array | int = 0  # parts
        if segment is not None:
            further = np.array([at.parts - 1 for _, at in builder.segments.in_modes(segment)]).reshape(-1, 1, 1)
        casts = k * builder.precision.mixed * further
        return _Streams(
            forward=cast + forward - ahead,
            forward_traffic=ahead,
            backward=np.where(twice, cast + forward - ahead, 0) + both - forward - behind,
            backward_traffic=behind,
            again=ahead - regathered,
            regathered=regathered,
            forward_calls=calls + casts,
            backward_calls=back + np.where(twice, calls, 0) + k * builder.pcg.nodes[base].gradient * further,
            again_calls=(np.where(twice, 0, calls) + casts).astype(np.int64),
            parted=np.zeros_like(forward) + cast * further,
        )

    def _activation(
        self, conversion: Conversion, layouts: tuple[Array, Array], ns: tuple[Array, Array], calls: tuple[Array, Array]
    ) -> _Streams:
        """A conversion with these times and calls, forward and backward, if nothing is in parts."""
        builder, base, use = self.builder, conversion.base, conversion.use
        segment = builder.part_of(conversion, builder.segments.number)
        if segment is None:
            return _Streams(ns[0], 0, ns[1], forward_calls=calls[0], backward_calls=calls[1], again_calls=calls[0])
        parted, counted, again = [], [], []
        for _, at in builder.segments.in_modes(segment):
            more, (ahead, back) = at.forward_ns(base, *layouts) - ns[0], at.calls(base, *layouts)
            again.append(ahead)
            if at.parts > 1 and use is None and builder.segments.leaves(base):
                more = more + at.joined_ns(at.bytes(base, layouts[1]))
                ahead = ahead + builder.micro_batches
            if use is not None and builder.segments.reads_first(segment, base, use):
                back = back + at.read_calls(base)
            parted.append(more)
            counted.append((ahead, back))
        ahead, back = (np.array(each) for each in zip(*counted, strict=True))
        return _Streams(
            ns[0],
            0,
            ns[1],
            parted=np.array(parted),
            forward_calls=ahead,
            backward_calls=back,
            again_calls=np.array(again),
        )

    def _moved(self, cost: Table, plain: Table, kind: str, make: Callable[[], _Streams]) -> _Split:
        """What stays of a cost table [..., or M, ...], and the tables [K, ...] of its streams; made once.

        `plain` is the table without recomputation.
        """
        if (id(cost), kind) not in self.cache:
            self.cache[id(cost), kind] = self._split(cost, plain, make())
        return self.cache[id(cost), kind]

    def _split(self, cost: Table, plain: Table, streams: _Streams) -> _Split:
        allowed = (plain < INFINITE) & (cost < INFINITE)

        def whole(part: Array | int) -> Array | int:
            """In the shape of `cost`, or 0; tables of hubs that choose retention have their layouts twice."""
            if isinstance(part, int):
                return part
            repeats = [n // m for n, m in zip(plain.shape, part.shape[-plain.ndim :], strict=True)]
            return np.where(allowed, np.tile(part, repeats) if max(repeats, default=1) > 1 else part, 0)

        forward, gathered, backward, scattered, reduced, again, regathered = map(whole, streams[:7])
        parted = whole(streams.parted)
        more = np.where(allowed, cost - plain, 0)
        again = np.where(more > 0, again, 0)
        each, once = (scattered, again, regathered), np.asarray(reduced)
        forward, backward, traffic = forward + parted, backward + more - again - parted, sum(each)
        stays = cost - (forward + gathered + backward + traffic + reduced)
        assert (stays >= 0).all()
        sides: list[tuple[Array | int, ...]] = [
            (forward + self._busy_ns(gathered), gathered),
            (backward + sum(map(self._busy_ns, each)), traffic),
            (self.builder.machine.busy_ns(once), once),
        ]
        host_ns = self.builder.machine.device.host_ns
        if not host_ns:
            return _Split(stays, self._in_windows(cost.shape, *sides), (), ())
        calls, back, after, again = map(whole, streams[7:11])
        if cost.ndim > plain.ndim:
            recomputed = [mode != "none" for mode in self.builder.options.recompute]
            back = back + again * np.array(recomputed).reshape(-1, *[1] * plain.ndim)
        host = (calls * host_ns, back * host_ns, after * host_ns)
        with_host = self._in_windows(cost.shape, *((*side, ns) for side, ns in zip(sides, host, strict=True)))
        excess = tuple(int((of[HOST] - of[KERNELS])[allowed].max()) for of in with_host)
        without = tuple(of[:HOST] for of in with_host)  # views: these tables are the planner's largest
        return _Split(stays, without, with_host, excess)

    def _busy_ns(self, traffic: Array | int) -> Array:
        """What kernels lose to a message in each micro-batch."""
        k = self.builder.micro_batches
        return k * self.builder.machine.busy_ns(np.asarray(traffic) // k)

    def _in_windows(self, shape: tuple[int, ...], *streams: tuple[Array | int, ...]) -> tuple[Table, ...]:
        """The streams in each window, from those of forward, of backward, and of what follows the last micro-batch."""
        forward, backward, after = streams
        k = self.builder.micro_batches
        last = tuple(x // k + more for x, more in zip(backward, after, strict=True))
        before = [tuple(x - x // k for x in backward)] if k > 1 else []
        return tuple(_stacked(shape, each) for each in (forward, *before, last))

    def _leave(self, variables: dict[int, _Moved], edges: dict[int, _Moved]) -> None:
        """Take the moved costs out of the tables."""
        builder = self.builder
        switched = {v for s in builder.switches for v in s.variables}, {k for s in builder.switches for k in s.edges}
        for v, moved in variables.items():
            cost = moved.split.stays[0] if v in switched[0] else moved.split.stays
            builder.variables[v] = replace(builder.variables[v], cost=cost)
        for k, moved in edges.items():
            cost = moved.split.stays[0] if k in switched[1] else moved.split.stays
            builder.edges[k] = replace(builder.edges[k], cost=cost)
        builder.switches = tuple(
            replace(s, variables=_left(s.variables, variables), edges=_left(s.edges, edges)) for s in builder.switches
        )


def _stacked(shape: tuple[int, ...], parts: tuple[Array | int, ...]) -> Table:
    """The parts, of this shape or a number each, as one table; zeros are not written, so that they take no memory."""
    found = np.zeros((len(parts), *shape), dtype=np.int64)
    for row, part in zip(found, parts, strict=True):
        if np.any(part):
            row[...] = part
    return found


def _window(variables: Mapping[int, _Split], edges: Mapping[int, _Split], place: int, *, host: bool) -> Window:
    """One of a layer's windows, with the `host` if that can be the longest."""
    host = host and sum(split.excess[place] for of in (variables, edges) for split in of.values() if split.excess) > 0
    own, between = (
        {key: (split.with_host if host else split.streams)[place] for key, split in of.items()}
        for of in (variables, edges)
    )
    return Window(own, between)


def _left(tables: Mapping[int, SwitchTables], moved: Mapping[int, _Moved]) -> dict[int, SwitchTables]:
    """The tables of a switch without the costs that were moved."""
    return {
        key: (moved[key].split.stays if key in moved else cost, use, extra)
        for key, (cost, use, extra) in tables.items()
    }
