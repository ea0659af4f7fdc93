"""The tables of what a segment computes, converts and gathers, in each mode of recomputation.

    none       all that backward needs is kept
    full       what enters the segment is kept, in the layout that it is given in; its forward runs once more
    selective  so are the outputs of its products, which are not computed again

With c and m the time and the bytes kept in mode none, and f the time of forward alone, a product costs c and keeps its
output in mode selective; anything else costs c + f and keeps nothing. The bytes that it brings back while the segment
runs again are its `extra`: m, but for what is there already. Memory holds the largest sum of extras of a segment, since
one segment runs again at a time. What leaves a segment has a hub, whose conversion belongs to the segment.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ....model.operators.operator import operator
from ...network.network import SwitchTables
from ...strategies.operator_options import OperatorOptions
from ...strategies.tensor_classes import Use
from ...weights.storage import cast_ns
from ..builder import Conversion, NetworkBuilder

Array = npt.NDArray[np.int64]
ModeTables: TypeAlias = tuple[Array, Array, Array]
"""Of one mode: ns of a step, bytes kept, bytes brought back."""


class SegmentTables:
    """Made once for all parts that are alike, from their tables in mode none."""

    def __init__(self, builder: NetworkBuilder) -> None:
        self.builder, self.costs, self.segments = builder, builder.costs, builder.segments
        self.modes, self.in_flight = self.segments.modes, builder.stage.in_flight
        self.micro_batches = builder.micro_batches

    def of_operator(self, node: int, key: object) -> SwitchTables:
        """The tables of an operator's variable, of which `key` names those in mode none."""
        return self._cached(key, (), lambda: self._operator(node, key))

    def of_conversion(self, conversion: Conversion, segment: int) -> SwitchTables:
        """The tables of an edge that a segment recomputes."""
        base, use, key = conversion.base, conversion.use, conversion.key
        if conversion.source == "weight":
            read = self.builder.classes.uses[base] if use is None else (use,)
            saved = any(self.costs.saves(each) for each in read)
            return self._cached(key, (saved,), lambda: self._weight(conversion, saved))
        if use is None:
            kept = self.segments.kept_inside(base), self.segments.kept_outside(base)
            halves = 1 + bool(self.segments.outside_readers(base))
            return self._cached(key, (kept, halves > 1), lambda: self._to_hub(conversion, *kept, halves))
        if conversion.source == "hub":
            return self._cached(key, (), lambda: self._from_hub(conversion, use))
        if self.segments.number.get(base) == segment:
            return self._cached(key, (True,), lambda: self._inside(conversion, use))
        return self._cached(key, (False,), lambda: self._entering(conversion, use))

    def _operator(self, node: int, key: object) -> Iterator[ModeTables]:
        (cost, use), found, this = self.builder.tables[key], self.costs.options.of(node), self.builder.pcg.nodes[node]
        constants = [p for p in range(len(found.inputs)) if self.costs.kind(node, p) == "constant"]
        converted = sum((self.costs.undecided_ns(node, p) for p in constants), np.zeros_like(cost))
        own = found.kept_bytes + sum(self.costs.undecided_bytes(node, p) for p in constants) // self.in_flight
        output = found.output_space.numel[found.output] * self.builder.precision.itemsize(this.dtype)
        made = output if this.gradient and "y" in operator(this.op).saved else np.zeros_like(output)
        assert use is not None
        for mode in self.modes:
            if mode == "none":
                yield cost, use[:, 0], np.zeros_like(cost)
                continue
            given = self.segments.output_kept(node, mode)
            time = cost + converted + np.where(given, 0, found.forward_ns * self.micro_batches)
            kept = use[:, 0] - self.in_flight * (own - np.where(given, output, 0))
            yield time, kept, own - np.where(given, made, 0)

    def _inside(self, conversion: Conversion, use: Use) -> Iterator[ModeTables]:
        """From where a tensor is computed to its one reader in the segment."""
        (cost, kept), base = self._plain(conversion), conversion.base
        once, copied = self._converted(base, self.costs.options.of(base).output, use)
        for mode in self.modes:
            given = self.segments.output_kept(base, mode)[:, None]
            yield self._recomputed(mode, (cost, kept), once, np.where(given, copied, kept // self.in_flight))

    def _entering(self, conversion: Conversion, use: Use) -> Iterator[ModeTables]:
        """From where a tensor is computed to its one reader, in the segment that it enters."""
        (cost, kept), base = self._plain(conversion), conversion.base
        given = self.costs.options.of(base)
        once, copied = self._converted(base, given.output, use)
        size = self.in_flight * np.where(given.saves_output, 0, self._bytes(base, given, given.output))
        entry = np.broadcast_to(size[:, None], cost.shape)
        for mode in self.modes:
            yield (cost, kept, np.zeros_like(cost)) if mode == "none" else (cost + once, entry, copied)

    def _from_hub(self, conversion: Conversion, use: Use) -> Iterator[ModeTables]:
        cost, kept = self._plain(conversion)
        codes = self.builder.hubs[conversion.base][1].codes
        once = np.tile(self._converted(conversion.base, codes, use)[0], (len(cost) // len(codes), 1))
        return (self._recomputed(mode, (cost, kept), once, kept // self.in_flight) for mode in self.modes)

    def _to_hub(self, conversion: Conversion, inside: bool, outside: bool, halves: int) -> Iterator[ModeTables]:
        """From where a tensor is computed to its hub; a reader `inside` the segment or `outside` of it keeps that."""
        (cost, kept), base = self._plain(conversion), conversion.base
        given, table = self.costs.options.of(base), self.costs.table(base)
        out = table.position[given.output]
        size, moves, held = self._bytes(base, given, table.codes), table.moves[out], given.saves_output[:, None]
        once = np.tile(table.forward[out] * self.micro_batches, halves)
        for mode in self.modes:
            if mode == "none":
                yield cost, kept, np.zeros_like(cost)
                continue
            stays = self.segments.output_kept(base, mode)[:, None]
            there, back = np.where(moves | ~stays, size, 0), np.where(moves | ~(held | stays), inside * size, 0)
            layouts = [outside * there, there][:halves]
            yield cost + once, self.in_flight * np.concatenate(layouts, axis=1), np.tile(back, halves)

    def _weight(self, conversion: Conversion, saved: bool) -> Iterator[ModeTables]:
        """From storage, if only a segment reads it: cast and gathered again, and not kept until then.

        `saved`: a reader keeps it for backward, which is in memory again while the segment runs again.
        """
        (cost, kept), base, precision = self._plain(conversion), conversion.base, self.builder.precision
        stored, table = self.builder.weights[base][1], self.costs.table(base)
        required = self.builder.required(conversion)
        a, b = table.position[stored.codes], table.position[required]
        once = table.forward[a][:, b] + cast_ns(stored, precision, self.builder.roofline)[:, None]
        copied = table.moves[a][:, b] | precision.mixed
        back = np.where(copied & saved, stored.space.numel[required] * precision.itemsize("float32"), 0)
        once = np.where(stored.regather[:, None], 0, once * self.micro_batches)  # if regathered, it counts already
        return (self._recomputed(mode, (cost, kept), once, back) for mode in self.modes)

    def _converted(self, base: int, given: Array, use: Use) -> tuple[Array, Array]:
        """Time to convert a tensor once more for a reader, and bytes of the copy that the reader keeps of it."""
        table, found = self.costs.table(base), self.costs.options.of(self.builder.classes.decides(use.node))
        out, to = table.position[given], table.position[self.costs.required(use)]
        kept = self.costs.input_bytes(found, use.operand) // self.in_flight
        return table.forward[out][:, to] * self.micro_batches, np.where(table.moves[out][:, to], kept, 0)

    def _bytes(self, base: int, given: OperatorOptions, codes: Array) -> Array:
        """Bytes of a tensor in these layouts."""
        item = self.builder.precision.itemsize(self.builder.pcg.nodes[base].dtype)
        size: Array = given.output_space.numel[codes] * item
        return size

    def _plain(self, conversion: Conversion) -> tuple[Array, Array]:
        """Time and bytes of an edge in mode none."""
        cost, use = self.builder.tables[conversion.key]
        return cost, np.zeros_like(cost) if use is None else use[:, :, 0]

    def _recomputed(self, mode: str, plain: tuple[Array, Array], once: Array, back: Array) -> ModeTables:
        """What is done once more, and not kept until then."""
        cost, kept = plain
        none = np.zeros_like(cost)
        return (cost, kept, none) if mode == "none" else (cost + once, none, back)

    def _cached(self, key: object, facts: tuple[object, ...], make: Callable[[], Iterator[ModeTables]]) -> SwitchTables:
        """The tables in every mode, made on first use."""
        cache = self.builder.mode_tables
        if (key, facts) not in cache:
            costs, uses, extras = (np.stack(tables) for tables in zip(*make(), strict=True))
            cache[key, facts] = costs, uses[..., None] if uses.any() else None, extras if extras.any() else None
        return cache[key, facts]
