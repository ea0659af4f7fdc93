"""What the operators of a hand-written plan decide, in the planner's words.

The planner's plans are meshes: every stage has as many devices, each an operator's part, and a strategy is one row per
axis. So a plan's transformations are read as axes: all cuts but those into micro-batches, outermost first, and where
one operator has a cut of four and another two of two, the mesh has two axes of two. Where operators are assigned, their
devices say where the mesh lies and which stage they are in. An operator that is not assigned may lack some axes, which
are then open; its cuts are those of the same labels elsewhere.

An operator that is assigned is decided as it stands: also that it is not recomputed, and that a weight that only
decided operators read lies where they read it. Views have the layout of what they show, and are no decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np

from ...formulation.decisions import StoredAs
from ...formulation.pipeline.configuration import rows as pipeline_rows
from ...formulation.placement.placement import Placement, Row, of_rows, placements, ranks
from ...formulation.search_space import MAX_AXES
from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.mask import Mask, whole
from ...formulation.spacetime.op import Cut, Op
from ...formulation.spacetime.site import told
from ...formulation.strategies.strategy import ANY, row_names, rows
from ...model.errors import PartitaError
from ...model.graph.layout import B, S, is_split
from ...model.machine.machine import Machine, stage_machine
from ...model.options import times
from ..plan.spacetime_graph import MICRO, STAGE
from .graph_order import schedules_of
from .partial_plan import Openness, PartialPlan


def decisions_in(graph: Graph, machine: Machine, stages: int | None, openness: Openness) -> PartialPlan:
    """What a graph's operators decide; `stages`: those of an option, None if none says it.

    PartitaError, with the operator and the plan's line: what no plan of the planner has.
    """
    return _Reading(graph, machine, stages, openness).decisions()


def refusal(op: Op, message: str) -> PartitaError:
    """The error about an operator of a partial plan, with its line."""
    return PartitaError(told(op.where, f"--start: {message}"))


@dataclass(frozen=True)
class _Parts:
    """The parts of a decided node; `cuts`: those of its transformations but micro-batches and copies for stages.

    `devices`: one for every part, in the order of the cuts; None if it is not assigned.
    """

    node: int
    op: Op
    cuts: tuple[Cut, ...]
    devices: tuple[int, ...] | None
    micro_batches: int | None

    @property
    def count(self) -> int:
        return prod(cut.parts for cut in self.cuts)


class _Reading:
    def __init__(self, graph: Graph, machine: Machine, stages: int | None, openness: Openness) -> None:
        self.graph, self.pcg, self.machine, self.openness = graph, graph.pcg, machine, openness
        self.given_stages = stages
        self.strategic = openness.operators(self.pcg)
        readers = (reader for index in openness.weights(self.pcg) for reader in self.pcg.consumers[index])
        found = {node: _parts(graph, node) for node in sorted({*self.strategic, *readers})}
        self.parts = {node: parts for node, parts in found.items() if parts is not None}
        self.decided = [self.parts[node] for node in self.strategic if node in self.parts]
        self.assigned = [parts for parts in self.decided if parts.devices is not None]

    def decisions(self) -> PartialPlan:
        self._check_swaps()
        places = self.places
        return PartialPlan(
            mesh=self.sizes,
            row=None if places is None else places[0],
            placement=None if places is None else places[1],
            stages=self.stages if self.assigned else None,
            chunks=self.chunks,
            schedule=schedules_of(self.graph, self._stages_of_ops(), self.stages, self.chunks, self.micro_batches or 1),
            micro_batches=self.micro_batches,
            rows=self._rows(),
            stage_of={self.pcg.nodes[parts.node].name: self.stage_of[parts.node] for parts in self.assigned},
            sites={parts.op.of.name: parts.op.assigned for parts in self.assigned},
            weights=dict(self._weights()),
            layers=dict(self._layers()),
        )

    # Micro-batches, stages and meshes

    @cached_property
    def micro_batches(self) -> int | None:
        counts = {parts.micro_batches: parts for parts in self.decided if self._has_samples(parts.node)}
        counts |= {parts.micro_batches: parts for parts in self.decided if parts.micro_batches is not None}
        known = [count for count in counts if count is not None]
        if len(known) > 1:
            one, other = (counts[count].op.of.name for count in known[:2])
            raise refusal(
                counts[known[1]].op,
                f"{one!r} has {known[0]} micro-batches and {other!r} {known[1]}: the planner has one number of them",
            )
        without = counts.get(None)
        if known and without is not None and without.devices is not None:
            raise refusal(
                without.op,
                f"{without.op.of.name!r} has no micro-batches, and others have {known[0]}: split it too, by "
                f'split("batch", {known[0]}, "{MICRO}") or micro_batches({known[0]})',
            )
        return known[0] if known else 1 if self.assigned else None

    def _has_samples(self, node: int) -> bool:
        return not self.graph.batch.isdisjoint(self.graph.dimensions[node])

    @cached_property
    def ranks_of_stage(self) -> int:
        """The devices of a stage."""
        every = self.machine.devices
        if not self.assigned:
            return every // (self.given_stages or 1)
        first = self.assigned[0]
        for parts in self.assigned:
            if parts.count != first.count:
                raise refusal(
                    parts.op,
                    f"{parts.op.of.name!r} is on {parts.count} device{'s' * (parts.count != 1)}, "
                    f"{first.op.of.name!r} on {first.count}: the planner computes every operator on all devices of its "
                    "stage, and stages have equally many: replicate() it, or leave it unassigned",
                )
        if every % first.count:
            raise refusal(first.op, f"{first.count} devices of a stage do not divide the machine's {every}")
        return first.count

    @property
    def stages(self) -> int:
        return self.machine.devices // self.ranks_of_stage

    @cached_property
    def sizes(self) -> tuple[int, ...] | None:
        """The sizes of the mesh's axes: the coarsest of which every operator's cuts are groups; None if none is cut."""
        complete = [parts for parts in self.decided if parts.count == self.ranks_of_stage and parts.cuts]
        ends = {self.ranks_of_stage: None}
        for parts in complete:
            inner = np.cumprod([cut.parts for cut in parts.cuts]).tolist()
            ends |= dict.fromkeys(end for end in inner if end > 1)
        cumulative = sorted(ends)
        for end, after in pairwise(cumulative):
            if after % end:
                one, other = (self._with_end(complete, e) for e in (end, after))
                raise refusal(
                    other.op,
                    f"{one.op.of.name!r} is cut into {_sizes(one)} and {other.op.of.name!r} into {_sizes(other)}, "
                    "which are no axes of one mesh: cut them into parts of equal numbers",
                )
        found = tuple(after // end for end, after in pairwise((1, *cumulative)))
        if len(found) > MAX_AXES:
            raise refusal(
                complete[0].op, f"the plan has a mesh {times(found)}, the planner's have up to {MAX_AXES} axes"
            )
        if complete or self.assigned:
            return found
        cut = next((parts for parts in self.decided if parts.cuts), None)
        if cut is not None:
            raise refusal(
                cut.op,
                f"{cut.op.of.name!r} is cut into {_sizes(cut)}, of {self.ranks_of_stage} devices, and no operator into "
                "as many parts: say what the others do, with another split() or replicate()",
            )
        return None

    @staticmethod
    def _with_end(complete: Sequence[_Parts], end: int) -> _Parts:
        return next(p for p in reversed(complete) if end in np.cumprod([cut.parts for cut in p.cuts]).tolist())

    @cached_property
    def labels(self) -> dict[str, tuple[int, ...]]:
        """The axes of every label that operators with all axes agree on."""
        found: dict[str, set[tuple[int, ...]]] = {}
        for parts in self.decided:
            if parts.count == self.ranks_of_stage:
                for cut, axes in self._axes(parts):
                    found.setdefault(cut.label, set()).add(axes)
        return {label: min(axes) for label, axes in found.items() if len(axes) == 1}

    def _axes(self, parts: _Parts) -> Iterator[tuple[Cut, tuple[int, ...]]]:
        """Every cut of an operator with the axes that it is: in their order, or by its label."""
        sizes, axis = self.sizes or (), 0
        if parts.count == self.ranks_of_stage:
            for cut in parts.cuts:
                start, left = axis, cut.parts
                while left > 1:
                    left //= sizes[axis]
                    axis += 1
                yield cut, tuple(range(start, axis))
            return
        for cut in parts.cuts:
            axes = self.labels.get(cut.label, ())
            if prod(sizes[axis] for axis in axes) != cut.parts or not axes:
                known = ", ".join(
                    f"{label!r} of {times([sizes[a] for a in own])}" for label, own in self.labels.items()
                )
                raise refusal(
                    parts.op,
                    f"{parts.op.of.name!r} is cut into {parts.count} parts, of {self.ranks_of_stage} devices, and the "
                    f"label {cut.label!r} of {cut.parts} names no axis of the mesh {times(sizes)}: give it one of "
                    f"{known or 'none'}, or cut it into as many parts",
                )
            yield cut, axes

    def cut_on(self, parts: _Parts) -> tuple[Cut | None, ...]:
        """The cut of an operator on every axis; None where it is open. PartitaError: uneven parts over two axes."""
        found: list[Cut | None] = [None] * len(self.sizes or ())
        for cut, axes in self._axes(parts):
            if len(axes) > 1 and not parts.op.even:
                raise refusal(
                    parts.op,
                    f"{parts.op.of.name!r} has {cut.parts} unequal parts, which are not those of axes "
                    f"{times([(self.sizes or ())[a] for a in axes])}: cut it along each of these",
                )
            for axis in axes:
                found[axis] = cut
        return tuple(found)

    @cached_property
    def places(self) -> tuple[Row, Placement] | None:
        """The pipeline's row and the placement of a stage's mesh on which all devices are; None without devices."""
        if not self.assigned or self.sizes is None:
            return None
        wanted = {parts.devices: parts for parts in reversed(self.assigned) if parts.devices is not None}
        for row, place in self._every_place():
            if wanted.keys() <= set(self._stage_ranks(row, place)):
                return row, place
        first = set(self._stage_ranks(*next(self._every_place())))
        strange = next((parts for devices, parts in wanted.items() if devices not in first), self.assigned[0])
        raise refusal(
            strange.op,
            f"{strange.op.of.name!r} is on devices {' '.join(map(str, strange.devices or ()))}, which with those of "
            f"the other operators are no mesh {times(self.sizes or (1,))} in {self.stages} "
            f"stage{'s' * (self.stages != 1)} on the levels {times(self.machine.hierarchy)} of {self.machine.name}: "
            f"such as {' '.join(map(str, min(first)))}",
        )

    def _every_place(self) -> Iterator[tuple[Row, Placement]]:
        """Every row of a pipeline of these stages, with every placement of a stage's mesh."""
        hierarchy = self.machine.hierarchy
        for row in [(1,) * len(hierarchy)] if self.stages == 1 else pipeline_rows(hierarchy, self.stages):
            for place in placements(stage_machine(self.machine, row).hierarchy, mesh=self.sizes or (1,)):
                yield row, place

    def _stage_ranks(self, row: Row, place: Placement) -> list[tuple[int, ...]]:
        """The devices of every place in the pipeline, in the order of its mesh."""
        numbers = ranks(of_rows((row, *place.matrix))).reshape(self.stages, -1)
        return [tuple(own) for own in numbers.tolist()]

    @cached_property
    def stage_of(self) -> Mapping[int, int]:
        """The stage of every assigned operator, in the order of the model: another one wherever its devices change."""
        if self.places is None:
            return {}
        place_of = {devices: number for number, devices in enumerate(self._stage_ranks(*self.places))}
        found, chunk, before = dict[int, int](), 0, 0
        for parts in self.assigned:
            place = place_of[parts.devices or ()]
            chunk += place < before
            before = place
            found[parts.node] = chunk * self.stages + place
        return found

    @cached_property
    def chunks(self) -> int:
        return 1 + max(self.stage_of.values(), default=0) // self.stages

    def _stages_of_ops(self) -> list[list[Op]]:
        """The assigned operators of every stage."""
        found: list[list[Op]] = [[] for _ in range(self.stages * self.chunks)]
        for node, stage in self.stage_of.items():
            found[stage] += self.graph.parts(node)
        return found

    # Strategies

    def _rows(self) -> dict[str, tuple[str, ...]]:
        if self.ranks_of_stage == 1:
            return {}
        return {
            parts.op.of.name: tuple(self._row_name(parts, cut) for cut in self.cut_on(parts)) for parts in self.decided
        }

    def _row_name(self, parts: _Parts, cut: Cut | None) -> str:
        """The planner's name of a cut's row."""
        if cut is None:
            return ANY
        known = zip(row_names(self.pcg, parts.node), rows(self.pcg, parts.node), strict=True)
        wanted = cut.row.inputs, cut.row.output, cut.row.special
        names = [name for name, row in known if (row.inputs, row.output, row.special) == wanted]
        if not names:
            has = ", ".join(row_names(self.pcg, parts.node))
            raise refusal(
                parts.op,
                f"the transformation {cut.label!r} of {parts.op.of.name!r} is none of the planner's strategies, which "
                f"are {has}",
            )
        return names[0]

    # Layers

    def _check_swaps(self) -> None:
        swapped = next((op for op in self.graph.forward if op.swapped is not None and self._kept(op)), None)
        if swapped is not None:
            raise refusal(swapped, f"{swapped.of.name!r} is swapped, as no layer of the planner's is: recompute() it")

    def _kept(self, op: Op) -> bool:
        return op.of.name not in self.openness.loosened

    def _layers(self) -> Iterator[tuple[str, str]]:
        """The layers whose operators are all assigned, or all recomputed, with their modes."""
        strategic, seen = {*self.strategic}, set[int]()
        layers = self.openness.layers(self.pcg)
        for name, nodes in layers.items():
            ops = [op for node in nodes if node in strategic for op in self.graph.parts(node)]
            groups = {op.group for op in ops}
            seen |= {group for group in groups if group is not None}
            if groups == {None}:
                if all(op.device is not None for op in ops):
                    yield name, "none"
                continue
            self._check_groups(name, nodes, ops)
            yield name, self._mode(ops)
        opened = self.openness.open_layers(self.pcg)
        for op in self.graph.forward:
            if op.group is not None and op.group not in seen and op.node not in opened and self._kept(op):
                raise refusal(op, f"{op.of.name!r} is recomputed, and belongs to no layer that the planner recomputes")

    def _mode(self, ops: Sequence[Op]) -> str:
        """The mode of a layer that is recomputed: what its products give is kept of all its groups, or of none."""
        whole = [op for op in ops if op.group not in self.graph.selective]
        if whole and len(whole) < len(ops):
            raise refusal(
                whole[0],
                f"{whole[0].of.name!r} is recomputed whole, and other parts of its layer selectively: the planner "
                "recomputes a layer in one mode: recompute() all of it alike",
            )
        return "full" if whole else "selective"

    def _check_groups(self, layer: str, nodes: Sequence[int], ops: Sequence[Op]) -> None:
        """PartitaError unless the groups are the layer on every device, for every micro-batch."""
        inside = {op.group for op in ops}
        places = {(op.device, op.coordinate(MICRO)) for op in ops}
        other = next((op for op in ops if op.group is None), None)
        beyond = (op for op in self.graph.forward if op.group in inside and op.group is not None)
        names = {op.of.name for op in ops}
        strange = next((op for op in beyond if op.node not in nodes and op.of.name not in names), None)
        if other is None and strange is None and len(inside) <= len(places):
            return
        found = other or strange or ops[0]
        how = "is not" if other is not None else "is with it" if strange is not None else "is in several groups"
        raise refusal(
            found,
            f"of layer {layer!r} operators are recomputed, and {found.of.name!r} {how}: the planner recomputes layers, "
            "each alone and whole: recompute() all of its operators in one group for each device and micro-batch",
        )

    # Weights

    def _weights(self) -> Iterator[tuple[str, StoredAs]]:
        """How the weights are stored that only assigned operators read, or that have a place of their own."""
        for index in self.openness.weights(self.pcg):
            stores = [op for op in self.graph.stores if op.node == index]
            readers = self.pcg.consumers[index]
            assigned = all((found := self.parts.get(i)) and found.devices is not None for i in readers)
            if self.sizes is None or not assigned:
                updates = self.graph.parts(index)
                known = stores or [op for op in updates if op.cuts or op.device is not None]
                away = any(op.swapped is not None for op in updates)
                if known or away or index in self.graph.scattered:
                    what = "a place or a device of its own" if known else "gradients in shards"
                    what = "states on the host" if away and not known else what
                    raise refusal(
                        (known or updates)[0],
                        f"{self.pcg.nodes[index].name!r} has {what}, and not all that reads it has a device: "
                        "op_assign() the operators that read it, or leave it open",
                    )
                continue
            read = self._read(index)
            layout = self._placed(index, stores) if stores else self._lies(index, read)
            shared = [
                axis for axis, letters in enumerate(read) if layout[axis] is None and any(x != 0 for x in letters)
            ]
            sharded = self.pcg.nodes[index].gradient and self._sharded(index, layout, shared)
            scattered = index in self.graph.scattered and (self.micro_batches or 1) > 1
            if scattered and shared and not sharded and not stores:
                raise refusal(
                    self.graph.parts(index)[0],
                    f"gradients of {self.pcg.nodes[index].name!r} are in shards, and its updates are whole: op_trans() "
                    "and op_assign() these, or leave out shard_gradients()",
                )
            in_shards = scattered or (None if sharded else False)
            yield self.pcg.nodes[index].name, StoredAs(layout, sharded, in_shards, self._on_host(index))

    def _on_host(self, index: int) -> bool:
        """True if the states of a weight are on the host."""
        updates = self.graph.parts(index)
        there = [op for op in updates if op.swapped is not None]
        if there and len(there) < len(updates):
            name = self.pcg.nodes[index].name
            raise refusal(
                there[0],
                f"the states of some parts of {name!r} are on the host, where the planner has those of all parts or "
                "of none: swap() all of its updates, or none",
            )
        return bool(there)

    def _read(self, index: int) -> list[set[int]]:
        """The letters in which a weight's readers read it, on every axis."""
        found: list[set[int]] = [set() for _ in self.sizes or ()]
        for reader in self.pcg.consumers[index]:
            cuts = self.cut_on(self.parts[reader])
            for operand, source in enumerate(self.pcg.nodes[reader].inputs):
                for axis, cut in enumerate(cuts):
                    if source == index and cut is not None:
                        found[axis].add(cut.row.inputs[operand])
        return found

    def _lies(self, index: int, read: Sequence[set[int]]) -> tuple[int | None, ...]:
        """The layout of a weight that lies where it is read."""
        found = []
        for letters in read:
            splits = {letter if is_split(letter) else None for letter in letters}
            if len(splits) > 1:
                op = self.parts[self.pcg.consumers[index][0]].op
                raise refusal(
                    op, f"{self.pcg.nodes[index].name!r} is read in several layouts: say with place() where it lies"
                )
            found.append(splits.pop() if splits else None)
        return tuple(found)

    def _placed(self, index: int, stores: Sequence[Op]) -> tuple[int | None, ...]:
        """The layout of a weight in the place that a plan gave it."""
        own = stores[0]
        cuts = tuple(cut for cut in own.cuts if cut.label != STAGE)
        parts = _Parts(index, own, cuts, None, None)
        if parts.count != self.ranks_of_stage:
            raise refusal(
                own,
                f"{own.of.name!r} has {parts.count} places, of {self.ranks_of_stage} devices that read it: give it one "
                "on each, replicate()d where they are copies",
            )
        layout: list[int | None] = [None] * len(self.sizes or ())
        for cut, axes in self._axes(parts):
            for axis in axes:
                layout[axis] = cut.row.output if is_split(cut.row.output) else None
        self._check_same(index, stores, list(map(_letter, layout)), "lies")
        return tuple(layout)

    def _sharded(self, index: int, layout: Sequence[int | None], shared: Sequence[int]) -> bool:
        """True if a weight's update is in parts, those of ZeRO over the axes `shared`."""
        updates = self.graph.parts(index)
        if not any(is_split(cut.row.output) for op in updates for cut in op.cuts):  # every copy is updated as a whole
            return False
        letters, left = list(map(_letter, layout)), whole(self.graph.atoms[index].sizes)
        for axis, size in enumerate(self.sizes or ()):
            if axis not in shared:
                left = left.cut(letters[axis], size, 0)
        for axis in shared:
            size = (self.sizes or ())[axis]
            letters[axis] = next((S(atom) for atom, length in enumerate(left.sizes) if length % size == 0), B)
            left = left.cut(letters[axis], size, 0)
        order = [axis for axis in range(len(letters)) if axis not in shared] + list(shared)
        self._check_same(index, updates, letters, "is updated", order)
        return True

    def _check_same(
        self, index: int, ops: Sequence[Op], letters: Sequence[int], what: str, order: Sequence[int] = ()
    ) -> None:
        """PartitaError unless every device has the part of a weight that its coordinates give it."""
        assert self.places is not None
        sizes, stages = self.sizes or (), self._stage_ranks(*self.places)
        holders = {self.stage_of[i] % self.stages for i in self.pcg.consumers[index] if i in self.stage_of}
        wanted = set[tuple[int | None, Mask]]()
        for place in holders or {0}:
            for number, device in enumerate(stages[place]):
                mask, at = whole(self.graph.atoms[index].sizes), np.unravel_index(number, sizes or (1,))
                for axis in order or range(len(letters)):
                    mask = mask.cut(letters[axis], sizes[axis], int(at[axis]))
                wanted.add((device, mask))
        strange = next((op for op in ops if (op.device, op.mask(None)) not in wanted), None)
        if strange is not None:
            raise refusal(
                strange,
                f"{strange.name} {what} on device {strange.device}, where the planner has another part of it, or none",
            )


def _letter(letter: int | None) -> int:
    """The letter of a stored weight on an axis; it is whole where none is given."""
    return B if letter is None else letter


def _sizes(parts: _Parts) -> str:
    return times([cut.parts for cut in parts.cuts]) or "1"


def _parts(graph: Graph, node: int) -> _Parts | None:
    """The parts of a node; None if nothing is decided of it. PartitaError: parts that are cut in different ways."""
    ops = graph.parts(node)
    first, name = ops[0], graph.pcg.nodes[node].name
    shapes = {tuple((cut.label, cut.total, cut.row) for cut in op.cuts) for op in ops}
    if len(shapes) > 1:
        other = next(
            op for op in ops if [c.row for c in op.cuts] != [c.row for c in first.cuts] or op.cuts != first.cuts
        )
        raise refusal(other, f"parts of {name!r} are transformed in different ways: the planner transforms all alike")
    if not first.cuts and first.device is None:
        return None
    micro = [cut for cut in first.cuts if cut.loop or cut.label == MICRO]
    cuts = tuple(cut for cut in first.cuts if cut not in micro and cut.label != STAGE and cut.parts > 1)
    count = prod(cut.total for cut in micro)
    for cut in micro:
        if any(is_split(x) for x in (*cut.row.inputs, cut.row.output)) and not _by_samples(graph, node, cut):
            raise refusal(first, f"{name!r} is cut into micro-batches along another dim than the batch")
    devices = _devices(ops, name, cuts)
    return _Parts(node, first, cuts, devices, count if micro else None)


def _by_samples(graph: Graph, node: int, cut: Cut) -> bool:
    tensors = (*graph.pcg.nodes[node].inputs, node)
    letters = (*cut.row.inputs, cut.row.output)
    return any(
        is_split(letter) and graph.dimensions[tensor][letter - S(0)] in graph.batch
        for letter, tensor in zip(letters, tensors, strict=True)
    )


def _devices(ops: Sequence[Op], name: str, cuts: Sequence[Cut]) -> tuple[int, ...] | None:
    """The device of every part, the same for all micro-batches; None if no part has one."""
    if all(op.device is None for op in ops):
        return None
    found: dict[tuple[int, ...], int] = {}
    labels = {cut.label for cut in cuts}
    for op in ops:
        if op.device is None:
            raise refusal(op, f"{op.name} has no device, and other parts of {name!r} have: assign all or none")
        place = tuple(cut.number for cut in op.cuts if cut.label in labels and not cut.loop and cut.parts > 1)
        if found.setdefault(place, op.device) != op.device and not any(cut.label == STAGE for cut in op.cuts):
            raise refusal(op, f"micro-batches of {name!r} are on devices {found[place]} and {op.device}: give them one")
    if len({*found.values()}) < len(found):
        device = next(d for d in found.values() if list(found.values()).count(d) > 1)
        raise refusal(
            ops[0],
            f"device {device} has several parts of {name!r}: the planner gives each device one; parts that are "
            f'computed one after another are micro-batches, with the label "{MICRO}"',
        )
    return tuple(device for _, device in sorted(found.items()))
