"""Recomputation in a cost network: every segment has a mode, and a switch that gives all that it computes in each mode.

    none       all that the backward needs is kept
    full       what enters the segment is kept, in the layout that it is given in; its forward runs once more
    selective  so are the outputs of its products, which are not computed again

With c and m the time and the bytes kept in mode none, f the time of the forward alone, a product costs c and keeps its
output in mode selective; anything else that a segment computes, converts or gathers costs c + f and keeps nothing. What
running it again brings back for a while is `extra`: m, but for what is there already. Memory holds the largest sum of
extras of a segment, since one segment runs again at a time.

What leaves a segment has a hub, whose conversion belongs to the segment. Where no other reader keeps that hub, but a
segment that may run again reads it, the hub says itself whether it is kept: its first options are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from ...model.graph.segments import MODES, Segment, gives_product, segments
from ...model.operators.operator import operator
from ..bundles.bundles import find_bundles
from ..network.network import INFINITE, Edge, Switch, SwitchTables, Variable
from ..strategies.alternatives import Alternatives
from ..strategies.operand_cost import EdgeTables, OperandCosts
from ..strategies.operator_options import LOSS_TRANSIENTS, OperatorOptions
from ..strategies.tensor_classes import Classes, Use
from ..strategies.transitions import Table
from ..weights.storage import Storage, cast_ns

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ModeTables: TypeAlias = tuple[Array, Array, Array]
"""Of one mode: ns of a step, bytes kept, bytes that are brought back."""


def check_modes(modes: Sequence[str]) -> None:
    """PartitaError unless these are different modes, at least one."""
    if not modes or len({*modes}) < len(modes) or not {*modes} <= {*MODES}:
        raise PartitaError(f"recomputation {', '.join(modes) or 'in no mode'}: choose among {', '.join(MODES)}")


def recomputable_segments(pcg: PCG, classes: Classes, bundles: bool) -> tuple[Segment, ...]:
    """The segments that may run again: not where branches can run beside others, or nodes be computed in other ways."""
    ways, base = Alternatives(pcg, classes), classes.base
    apart = {i for b in find_bundles(pcg) for i in (*b.nodes, b.join)} if bundles else set()
    unsure = {*ways.conditional, *(i for several in pcg.members.values() for i in several)}

    def fits(segment: Segment) -> bool:
        near = {*segment.nodes, *(base[i] for n in segment.nodes for i in pcg.nodes[n].inputs)}
        readers = {u.node for i in near for u in classes.reads.get(i, ())} if unsure else set()
        return near.isdisjoint(apart) and unsure.isdisjoint(near | readers)

    return tuple(s for s in segments(pcg) if fits(s))


@dataclass
class Recomputation:
    """Collects the switches of the segments; tables are made once for all that are alike, by the keys of `cache`."""

    pcg: PCG
    classes: Classes
    reads: OperandCosts
    modes: tuple[str, ...]
    bundles: bool
    cache: dict[object, EdgeTables]
    tables: dict[object, SwitchTables] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_modes(self.modes)
        self.segments = () if self.modes == ("none",) else recomputable_segments(self.pcg, self.classes, self.bundles)
        self.of = {i: number for number, segment in enumerate(self.segments) for i in segment.nodes}
        self.variables: list[dict[int, SwitchTables]] = [{} for _ in self.segments]
        self.edges: list[dict[int, SwitchTables]] = [{} for _ in self.segments]
        self.constants = [0] * len(self.segments)

    # What enters and leaves

    def leaves(self, base: int) -> bool:
        """Whether a tensor is computed in a segment and read outside of it."""
        here = self.of.get(base)
        return here is not None and any(self.of.get(u.node) != here for u in self.classes.uses.get(base, ()))

    def keepers(self, base: int) -> tuple[bool, bool]:
        """Whether a reader in the segment that computes a tensor keeps it, and one that is not."""
        here = self.of.get(base)
        saving = [self.of.get(u.node) for u in self.classes.uses.get(base, ()) if self._keeps(u)]
        return here is not None and here in saving, any(number != here or here is None for number in saving)

    def _keeps(self, use: Use) -> bool:
        return self.reads.saves(use) and self.pcg.nodes[use.node].op not in LOSS_TRANSIENTS

    def readers(self, base: int) -> tuple[int, ...]:
        """The segments for which a tensor is kept if they run again only, since no other reader keeps it as it is."""
        if self.pcg.nodes[base].op == "parameter" or self.keepers(base)[1]:
            return ()
        twin, here = self.classes.twin, self.of.get(base)
        found = {self.of.get(u.node) for u in self.classes.uses.get(base, ()) if u.node not in twin}
        return tuple(sorted(number for number in found if number is not None and number != here))

    # What a segment computes, converts and gathers

    def constant(self, node: int, ns: int) -> None:
        """A constant is computed again."""
        if node in self.of:
            self.constants[self.of[node]] += ns

    def operator(self, index: int, variable: int, key: object) -> None:
        """An operator, of whose variable the plain tables have this key."""
        if index in self.of:
            self.variables[self.of[index]][variable] = self._made(key, lambda plain: self._operator(index, plain))

    def _operator(self, index: int, plain: EdgeTables) -> Iterator[ModeTables]:
        (cost, use), found, node, flight = plain, self.reads.domains.of(index), self.pcg.nodes[index], self._flight
        constants = [p for p in range(len(found.inputs)) if self.reads.kind(index, p) == "constant"]
        again = sum((self.reads.time_of_fixed(index, p, "constant") for p in constants), np.zeros_like(cost))
        own = found.kept_bytes + sum(self.reads.kept_of_fixed(index, p, "constant") for p in constants) // flight
        output = found.output_space.numel[found.output] * self.reads.precision.itemsize(node.dtype)
        made = output if node.gradient and "y" in operator(node.op).saved else np.zeros_like(output)
        assert use is not None
        for mode in self.modes:
            if mode == "none":
                yield cost, use[:, 0], np.zeros_like(cost)
                continue
            given = self._given(index, mode)
            time = cost + again + np.where(given, 0, found.forward_ns * self.reads.k)
            yield time, use[:, 0] - flight * (own - np.where(given, output, 0)), own - np.where(given, made, 0)

    def _given(self, index: int, mode: str) -> Mask:
        """Of which options of a node the output is kept besides what enters: of a product, if nothing is sent inside
        of it."""
        found = self.reads.domains.of(index)
        special = np.array([bool(row.special) for row in found.rows])[found.choice]
        whole: Mask = ~np.logical_and(special, np.array(self.reads.placement.sizes) > 1).any(axis=1)
        return whole if mode == "selective" and gives_product(self.pcg, index) else np.zeros_like(whole)

    def direct(self, edge: int, base: int, use: Use, key: object) -> None:
        """From where a tensor is computed to its one reader."""
        number = self._reader(use)
        if number is not None:
            inside = self.of.get(base) == number
            make = self._inside if inside else self._entering
            self.edges[number][edge] = self._made(key, lambda plain: make(base, use, plain), inside)

    def _inside(self, base: int, use: Use, plain: EdgeTables) -> Iterator[ModeTables]:
        cost, kept = _whole(plain)
        again, copied = self._converted(base, self.reads.domains.of(base).output, use)
        for mode in self.modes:
            given = self._given(base, mode)[:, None]
            yield self._dropped(mode, cost, kept, again, np.where(given, copied, kept // self._flight))

    def _entering(self, base: int, use: Use, plain: EdgeTables) -> Iterator[ModeTables]:
        (cost, kept), offers = _whole(plain), self.reads.domains.of(base)
        again, copied = self._converted(base, offers.output, use)
        size = self._flight * np.where(offers.saves_output, 0, self._bytes(base, offers, offers.output))
        for mode in self.modes:
            entry = np.broadcast_to(size[:, None], cost.shape)
            yield (cost, kept, np.zeros_like(cost)) if mode == "none" else (cost + again, entry, copied)

    def shared(self, edge: int, base: int, codes: Array, use: Use, key: object) -> None:
        """From a hub with these layouts to a reader."""
        number = self._reader(use)
        if number is not None:
            self.edges[number][edge] = self._made(key, lambda plain: self._shared(base, codes, use, plain))

    def _shared(self, base: int, codes: Array, use: Use, plain: EdgeTables) -> Iterator[ModeTables]:
        cost, kept = _whole(plain)
        again = np.tile(self._converted(base, codes, use)[0], (len(cost) // len(codes), 1))
        return (self._dropped(mode, cost, kept, again, kept // self._flight) for mode in self.modes)

    def to_hub(self, edge: int, base: int, codes: Array, key: object) -> None:
        """From where a tensor is computed to a hub of these layouts; options that are kept follow the others."""
        if base in self.of:
            keeps, twofold = self.keepers(base), bool(self.readers(base))
            self.edges[self.of[base]][edge] = self._made(
                key, lambda plain: self._to_hub(base, codes, plain, keeps, twofold), keeps, twofold
            )

    def _to_hub(
        self, base: int, codes: Array, plain: EdgeTables, keeps: tuple[bool, bool], twofold: bool
    ) -> Iterator[ModeTables]:
        offers, table = self.reads.domains.of(base), self.reads.table(base)
        (cost, kept), (inner, outer), out = _whole(plain), keeps, table.position[offers.output]
        size, moves, held = self._bytes(base, offers, codes), table.moves[out], offers.saves_output[:, None]
        again = np.tile(table.forward[out] * self.reads.k, 1 + twofold)
        for mode in self.modes:
            if mode == "none":
                yield cost, kept, np.zeros_like(cost)
                continue
            given = self._given(base, mode)[:, None]
            there, back = np.where(moves | ~given, size, 0), np.where(moves | ~(held | given), inner * size, 0)
            halves = [outer * there, there] if twofold else [outer * there]
            yield cost + again, self._flight * np.concatenate(halves, axis=1), np.tile(back, 1 + twofold)

    def weight(self, edge: int, base: int, stored: Storage, asked: Array, key: object) -> None:
        """From storage, if a segment reads it, which alone does: cast and gathered again, and not kept till then."""
        found = next((self.of[u.node] for u in self.classes.uses[base] if u.node in self.of), None)
        if found is not None and base not in self.reads.sparse:
            self.edges[found][edge] = self._made(key, lambda plain: self._weight(base, stored, asked, plain))

    def _weight(self, base: int, stored: Storage, asked: Array, plain: EdgeTables) -> Iterator[ModeTables]:
        (cost, kept), precision, table = _whole(plain), self.reads.precision, self.reads.table(base)
        a, b = table.position[stored.codes], table.position[asked]
        once = (table.forward[a][:, b] + cast_ns(stored, precision, self.reads.roofline)[:, None]) * self.reads.k
        copied = table.moves[a][:, b] | precision.mixed
        back = np.where(copied & kept.any(), stored.space.numel[asked] * precision.itemsize("float32"), 0)
        again = np.where(stored.regather[:, None], 0, once)  # which counts that already
        return (self._dropped(mode, cost, kept, again, back) for mode in self.modes)

    # The switches

    def finish(
        self,
        variables: list[Variable],
        edges: list[Edge],
        hubs: Mapping[int, tuple[int, Table]],
        add: Callable[[str, Array, Array, float], int],
    ) -> tuple[Switch, ...]:
        """The switches; their variables are added by name, cost, use and place in the order.

        What they decide on has the tables of the first mode.
        """
        switches = tuple(map(self._switch, range(len(self.segments)), repeat(add)))
        edges.extend(self._entries(switches, hubs))
        for switch in switches if self.modes[0] != "none" else ():
            for v, (cost, use, _) in switch.variables.items():
                none = np.zeros((*cost[0].shape, 1), np.int64)
                variables[v] = replace(variables[v], cost=cost[0], use=none if use is None else use[0])
            for number, (cost, use, _) in switch.edges.items():
                edges[number] = replace(edges[number], cost=cost[0], use=None if use is None else use[0])
        return switches

    def _switch(self, number: int, add: Callable[[str, Array, Array, float], int]) -> Switch:
        segment, key = self.segments[number], ("switch", self.constants[number])
        if key not in self.cache:
            cost = np.array([0 if mode == "none" else self.constants[number] for mode in self.modes], np.int64)
            self.cache[key] = cost, np.zeros((len(cost), 1), np.int64)
        cost, use = self.cache[key]
        assert use is not None
        first = next(i for i in segment.nodes if self.classes.base[i] == i and not self.classes.constant[i])
        variable = add(f"{segment.name} recompute", cost, use, first - 0.6)  # before its weights
        return Switch(variable, self.variables[number], self.edges[number])

    def _entries(self, switches: Sequence[Switch], hubs: Mapping[int, tuple[int, Table]]) -> Iterator[Edge]:
        """A segment that runs again reads no hub that says that it is not kept; else a single reader none that is."""
        for base, (hub, table) in hubs.items():
            readers, count = self.readers(base), len(table.codes)
            key = ("kept for", count, len(readers) > 1)
            if readers and key not in self.cache:
                again = np.array([mode != "none" for mode in self.modes])
                cost = np.zeros((len(again), 2 * count), np.int64)
                cost[again, :count] = INFINITE
                cost[~again, count:] = 0 if len(readers) > 1 else INFINITE
                self.cache[key] = cost, None
            for number in readers:
                yield Edge(switches[number].variable, hub, *self.cache[key])

    # Tables

    @property
    def _flight(self) -> int:
        return self.reads.in_flight

    def _reader(self, use: Use) -> int | None:
        """The segment of a reader; a pass without gradient is in none."""
        return None if use.node in self.classes.twin else self.of.get(use.node)

    def _converted(self, base: int, given: Array, use: Use) -> tuple[Array, Array]:
        """Time to convert a tensor once more for a reader, and bytes of the copy that the reader keeps of it."""
        table, found = self.reads.table(base), self.reads.domains.of(self.classes.decides(use.node))
        out, to = table.position[given], table.position[self.reads.asked(use)]
        kept = self.reads.kept(found, use.operand) // self._flight
        return table.forward[out][:, to] * self.reads.k, np.where(table.moves[out][:, to], kept, 0)

    def _bytes(self, base: int, offers: OperatorOptions, codes: Array) -> Array:
        """Bytes of a tensor in these layouts."""
        size: Array = offers.output_space.numel[codes] * self.reads.precision.itemsize(self.pcg.nodes[base].dtype)
        return size

    def _dropped(self, mode: str, cost: Array, kept: Array, again: Array, back: Array) -> ModeTables:
        """What is done again, and not kept but for a while."""
        nothing = np.zeros_like(cost)
        return (cost, kept, nothing) if mode == "none" else (cost + again, nothing, back)

    def _made(self, key: object, make: Callable[[EdgeTables], Iterator[ModeTables]], *more: object) -> SwitchTables:
        """The tables in every mode, made once of the plain ones."""
        if (key, more) not in self.tables:
            costs, uses, extras = (np.stack(tables) for tables in zip(*make(self.cache[key]), strict=True))
            self.tables[key, more] = costs, uses[..., None] if uses.any() else None, extras if extras.any() else None
        return self.tables[key, more]


def _whole(plain: EdgeTables) -> tuple[Array, Array]:
    """Time and bytes of an edge."""
    cost, use = plain
    return cost, np.zeros_like(cost) if use is None else use[:, :, 0]
