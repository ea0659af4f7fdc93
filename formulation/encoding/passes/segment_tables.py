"""The tables of what a segment computes, converts and gathers, in each mode of recomputation.

    none       all that backward needs is kept
    full       what enters the segment is kept, in the layout that it is given in; its forward runs once more
    selective  so are the outputs of its products, which are not computed again
    p parts    as full, but one p-th of the samples is computed after the other, forward and again

With c and m the time and the bytes kept in mode none, and f the time of forward alone, a product costs c and keeps its
output in mode selective; anything else costs c + f and keeps nothing. The bytes that it brings back while the segment
runs again are its `extra`: m, but for what is there already. Memory holds the largest sum of extras of a segment, since
one segment runs again at a time. What leaves a segment has a hub, whose conversion belongs to the segment.

In p parts all of c and f is that of a part, p times, and m that of one part. What leaves the segment is then joined,
and so are, in backward, the gradients of what enters it; those of weights, and of what all parts read whole, are added
up. No conversion may move a sample to other ranks, whose parts would not be the same, nor gather weights, p times.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ....model.graph.dtypes import ITEMSIZE
from ....model.operators.operator import operator
from ...network.network import INFINITE, SwitchTables
from ...strategies.operator_options import OperatorOptions
from ...strategies.tensor_classes import Use
from ...weights.storage import cast_ns
from ..builder import Conversion, NetworkBuilder
from ..recomputable_segments import Modes
from ..segment_costs import SegmentCosts

Array = npt.NDArray[np.int64]
ModeTables: TypeAlias = tuple[Array, Array, Array]
"""Of one mode: ns of a step, bytes kept, bytes brought back."""


class SegmentTables:
    """Made once for all parts that are alike, from their tables in mode none."""

    def __init__(self, builder: NetworkBuilder) -> None:
        self.builder, self.costs, self.segments = builder, builder.costs, builder.segments
        self.in_flight = builder.stage.in_flight
        self.micro_batches = builder.micro_batches

    def of_operator(self, node: int, key: object) -> SwitchTables:
        """The tables of an operator's variable, of which `key` names those in mode none."""
        modes = self.segments.in_modes(self.segments.number[node])
        return self._cached(key, (), modes, lambda: self._operator(node, key, modes))

    def of_conversion(self, conversion: Conversion, segment: int) -> SwitchTables:
        """The tables of an edge that a segment recomputes."""
        base, use, key, modes = conversion.base, conversion.use, conversion.key, self.segments.in_modes(segment)
        if conversion.source == "weight":
            read = self.builder.classes.uses[base] if use is None else (use,)
            saved = any(self.costs.saves(each) for each in read)
            return self._cached(key, (saved,), modes, lambda: self._weight(conversion, saved, modes))
        if use is None:
            kept = self.segments.kept_inside(base), self.segments.kept_outside(base)
            halves, leaves = 1 + bool(self.segments.outside_readers(base)), self.segments.leaves(base)
            facts = kept, halves > 1, leaves
            return self._cached(key, facts, modes, lambda: self._to_hub(conversion, (*kept, leaves), halves, modes))
        first = self.segments.reads_first(segment, base, use)
        if conversion.source == "hub":
            return self._cached(key, (first,), modes, lambda: self._from_hub(conversion, use, first, modes))
        if self.segments.number.get(base) == segment:
            return self._cached(key, (True,), modes, lambda: self._inside(conversion, use, modes))
        return self._cached(key, (False,), modes, lambda: self._entering(conversion, use, modes))

    def _operator(self, node: int, key: object, modes: Modes) -> Iterator[ModeTables]:
        (cost, use), found, this = self.builder.tables[key], self.costs.options.of(node), self.builder.pcg.nodes[node]
        constants = [p for p in range(len(found.inputs)) if self.costs.kind(node, p) == "constant"]
        converted = sum((self.costs.undecided_ns(node, p) for p in constants), np.zeros_like(cost))
        own = found.kept_bytes + sum(self.costs.undecided_bytes(node, p) for p in constants) // self.in_flight
        output = found.output_space.numel[found.output] * self.builder.precision.itemsize(this.dtype)
        made = output if this.gradient and "y" in operator(this.op).saved else np.zeros_like(output)
        moved = {p: self.costs.undecided_bytes(node, p) > 0 for p in constants}
        assert use is not None
        for mode, at in modes:
            if mode == "none":
                yield cost, use[:, 0], np.zeros_like(cost)
                continue
            part, given = at.options(node), self.segments.output_kept(node, mode)
            again = sum((at.constant_ns(node, p) for p in constants), np.zeros_like(cost))
            more = part.time_ns * at.micro_batches - found.time_ns * self.micro_batches + again - converted
            time = cost + more + again + np.where(given, 0, part.forward_ns * at.micro_batches)
            kept = use[:, 0] - self.in_flight * (own - np.where(given, output, 0))
            restored = [np.where(moved[p], at.input_bytes(node, p), 0) for p in constants]
            back = sum(restored, part.kept_bytes) - np.where(given, made, 0)
            yield np.where(at.fits(node), time, INFINITE), kept, back

    def _inside(self, conversion: Conversion, use: Use, modes: Modes) -> Iterator[ModeTables]:
        """From where a tensor is computed to its one reader in the segment."""
        (cost, kept), base = self._plain(conversion), conversion.base
        output = self.costs.options.of(base).output
        moves = self._moves(base, output, use)
        for mode, at in modes:
            given = self.segments.output_kept(base, mode)[:, None]
            copy = self._copied(at, use)
            back = np.where(given, np.where(moves, copy, 0), np.where(kept > 0, copy, 0))
            time = self._in_mode(at, base, (cost, output, self.costs.required(use)))
            yield self._recomputed(mode, (cost, kept), time, back)

    def _entering(self, conversion: Conversion, use: Use, modes: Modes) -> Iterator[ModeTables]:
        """From where a tensor is computed to its one reader, in the segment that it enters."""
        (cost, kept), base = self._plain(conversion), conversion.base
        given = self.costs.options.of(base)
        moves = self._moves(base, given.output, use)
        size = self.in_flight * np.where(given.saves_output, 0, self._bytes(base, given, given.output))
        entry = np.broadcast_to(size[:, None], cost.shape)
        for mode, at in modes:
            if mode == "none":
                yield cost, kept, np.zeros_like(cost)
                continue
            time = self._in_mode(at, base, (cost, given.output, self.costs.required(use)))
            yield time + at.read_ns(base, given.output)[:, None], entry, np.where(moves, self._copied(at, use), 0)

    def _from_hub(self, conversion: Conversion, use: Use, first: bool, modes: Modes) -> Iterator[ModeTables]:
        """From a hub to a reader, which may be the `first` of the segment that the tensor enters."""
        (cost, kept), base = self._plain(conversion), conversion.base
        codes = self.builder.hubs[base][1].codes
        for mode, at in modes:
            time = self._in_mode(at, base, (cost, codes, self.costs.required(use)))
            if first:
                time = time + np.tile(at.read_ns(base, codes), len(cost) // len(codes))[:, None]
            yield self._recomputed(mode, (cost, kept), time, np.where(kept > 0, self._copied(at, use), 0))

    def _to_hub(
        self, conversion: Conversion, held_by: tuple[bool, bool, bool], halves: int, modes: Modes
    ) -> Iterator[ModeTables]:
        """From where a tensor is computed to its hub; a reader `inside` the segment or `outside` of it keeps that."""
        (cost, kept), base, (inside, outside, leaves) = self._plain(conversion), conversion.base, held_by
        given, table = self.costs.options.of(base), self.costs.table(base)
        out = table.position[given.output]
        size, moves, held = self._bytes(base, given, table.codes), table.moves[out], given.saves_output[:, None]
        for mode, at in modes:
            if mode == "none":
                yield cost, kept, np.zeros_like(cost)
                continue
            stays = self.segments.output_kept(base, mode)[:, None]
            there, restored = np.where(moves | ~stays, size, 0), self._bytes(base, at.options(base), table.codes)
            back = np.where(moves | ~(held | stays), inside * restored, 0)
            layouts = [outside * there, there][:halves]
            time = self._in_mode(at, base, (cost, given.output, table.codes))
            time = time + np.tile(leaves * at.joined_ns(size), halves)
            yield time, self.in_flight * np.concatenate(layouts, axis=1), np.tile(back, halves)

    def _weight(self, conversion: Conversion, saved: bool, modes: Modes) -> Iterator[ModeTables]:
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
        item = ITEMSIZE[precision.parameters]
        for mode, at in modes:
            time = cost + once
            if at.parts > 1:
                casts = 2 * (at.parts - 1) * self.micro_batches * cast_ns(stored, precision, self.builder.roofline)
                added = at.added_ns(stored.numel * item) * self.builder.pcg.nodes[base].gradient
                time = np.where(table.total[a][:, b] > 0, INFINITE, time + (casts + added)[:, None])
            yield self._recomputed(mode, (cost, kept), time, back)

    def _in_mode(self, at: SegmentCosts, base: int, plain: tuple[Array, Array, Array]) -> Array:
        """Time of conversions in a mode other than none, from that in none, the layouts given, and those required."""
        cost, *layouts = plain
        once = at.forward_ns(base, *layouts)
        if at.parts > 1:
            once = once + at.total_ns(base, *layouts) - self.segments.whole.total_ns(base, *layouts)
            once = np.where(at.stays(base, *layouts), once, INFINITE)
        repeats = [n // m for n, m in zip(cost.shape, once.shape, strict=True)]  # hubs have their layouts twice
        time: Array = np.minimum(cost + np.tile(once, repeats), INFINITE)
        return time

    def _moves(self, base: int, given: Array, use: Use) -> npt.NDArray[np.bool_]:
        """[given, required]: whether a reader's copy is apart from the tensor that it reads."""
        table = self.costs.table(base)
        found: npt.NDArray[np.bool_] = table.moves[table.position[given]][:, table.position[self.costs.required(use)]]
        return found

    def _copied(self, at: SegmentCosts, use: Use) -> Array:
        """Bytes that a reader keeps of what it reads."""
        return at.input_bytes(self.builder.classes.decides(use.node), use.operand)

    def _bytes(self, base: int, given: OperatorOptions, codes: Array) -> Array:
        """Bytes of a tensor in these layouts."""
        item = self.builder.precision.itemsize(self.builder.pcg.nodes[base].dtype)
        size: Array = given.output_space.numel[codes] * item
        return size

    def _plain(self, conversion: Conversion) -> tuple[Array, Array]:
        """Time and bytes of an edge in mode none."""
        cost, use = self.builder.tables[conversion.key]
        return cost, np.zeros_like(cost) if use is None else use[:, :, 0]

    def _recomputed(self, mode: str, plain: tuple[Array, Array], time: Array, back: Array) -> ModeTables:
        """What takes this time in a mode other than none, and is not kept until it is needed."""
        cost, kept = plain
        none = np.zeros_like(cost)
        return (cost, kept, none) if mode == "none" else (time, none, np.broadcast_to(back, cost.shape))

    def _cached(
        self, key: object, facts: tuple[object, ...], modes: Modes, make: Callable[[], Iterator[ModeTables]]
    ) -> SwitchTables:
        """The tables in every mode, made on first use."""
        cache, known = self.builder.mode_tables, (key, facts, max(at.parts for _, at in modes))
        if known not in cache:
            costs, uses, extras = (np.stack(tables) for tables in zip(*make(), strict=True))
            cache[known] = costs, uses[..., None] if uses.any() else None, extras if extras.any() else None
        return cache[known]
