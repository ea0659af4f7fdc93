"""A planner's plan as a graph of operators that a user may go on to transform, assign and order.

What a plan chooses is written with the primitives of hand-written plans: micro-batches and the row of every mesh axis
by `op_trans`, ranks by `op_assign`, weights stored in another layout than they are read in by `place`, sharded states
by parts of updates, recomputed segments by `recompute`, a schedule by `in_order`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...formulation.placement.placement import ranks
from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.mask import whole
from ...formulation.spacetime.op import Op
from ...formulation.spacetime.primitives import op_assign, op_trans, place, recompute, split_backward
from ...formulation.spacetime.stages import in_order
from ...formulation.spacetime.transformation import Chosen, Transformation, replicate, split
from ...formulation.strategies.row import Row
from ...formulation.strategies.strategy import row_names, rows, rows_taken
from ...model.errors import PartitaError
from ...model.graph.constants import built_once
from ...model.graph.layout import B, Layout, S, is_split
from ...model.graph.segments import segments
from ...model.graph.sparse_tables import sparse_tables
from ...model.graph.stages import stage
from ...model.options import times
from .choice import Choice
from .plan import Plan
from .spacetime_plan import graph

MICRO, STAGE = "micro", "stage"
"""Labels of the transformations into micro-batches, and of operators that several stages compute for themselves."""


def space_time_graph(plan: Plan) -> Graph:
    """The operators of a plan with its choices made. PartitaError: a choice that the primitives cannot express."""
    if plan.schedule.double_buffered:
        raise PartitaError(
            f"schedule {plan.schedule} computes two steps at once, and a space-time plan is one step: plan again with "
            "--schedule 1f1b"
        )
    parts = [_Stage(plan, number) for number in range(len(plan.stages))]
    for part in parts:
        part.check()
    made = graph(plan.graph, batch=plan.batch)
    made.module = plan.module
    _transform(made, plan.micro_batches, parts)
    for index in made.pcg.of("parameter"):
        holders = [part for part in parts if index in part.own]
        _store(made, index, holders)
        if made.pcg.nodes[index].gradient:
            _update(made, index, holders)
    for part in parts:
        _recompute(made, part)
        if plan.schedule.splits_backward and part.number:  # nobody waits for what the first stage sends back
            split_backward(part.ops)
    in_order(plan.orders, [part.ops for part in parts], MICRO)
    return made


class _Stage:
    """A stage of a plan: its nodes by their index in the whole graph, its ranks, and what became of its operators."""

    def __init__(self, whole: Plan, number: int) -> None:
        self.plan, self.number = whole.parts[number], number
        numbers = ranks(whole.placement)
        self.ranks: NDArray[np.int64] = numbers if whole.size == 1 else numbers[number % whole.size]
        self.ops: list[Op] = []
        at = tuple(range(len(whole.graph.nodes)))
        if whole.size > 1:
            between = stage(whole.graph, *whole.bounds[number : number + 2])
            if between.graph != self.plan.graph:
                raise PartitaError(
                    f"stage {number} is a rewritten graph, of which the whole model's operators are not known: plan "
                    "again without --rewrite, or with --stages 1"
                )
            at = between.nodes
        self.own = {
            i: n for n, i in enumerate(at) if self.plan.graph.nodes[n].op not in ("receive", "send")
        }  # by index in the whole graph, the one in the stage's
        self.whole = at

    def choice(self, index: int) -> Choice:
        return self.plan.choices[self.own[index]]

    @cached_property
    def axes(self) -> tuple[tuple[int, str, int], ...]:
        """Number, name and size of every axis that has more than one rank."""
        sized = zip(self.plan.axes, self.plan.placement.sizes, strict=True)
        return tuple((axis, name, size) for axis, (name, size) in enumerate(sized) if size > 1)

    def check(self) -> None:
        """Raise PartitaError for what space-time plans cannot express, with its name and what to plan instead."""
        pcg = self.plan.graph
        for table in sparse_tables(pcg):
            raise PartitaError(f"{pcg.nodes[table].name!r} has a sparse gradient, which space-time plans lack")
        for name, mode in self.plan.recompute.items():
            if mode != "full":
                how = "but for its products" if mode == "selective" else f"in {mode}"
                raise PartitaError(
                    f"segment {name!r} is recomputed {how}, and recompute() takes whole groups: plan again with "
                    "--recompute full or none"
                )
        for node, choice in zip(pcg.nodes, self.plan.choices, strict=True):
            if choice.offloaded:
                raise PartitaError(
                    f"the optimizer states of {node.name!r} are on the host, for which space-time plans have no "
                    "primitive: plan again with --no-offload"
                )
            if choice.beside or choice.joins:
                raise PartitaError(
                    f"{node.name!r} belongs to branches that run side by side, which a conversion does not take apart: "
                    "plan again with another --mesh or a pipeline, of which the best plan may have none"
                )

    def rows(self, index: int) -> list[Row]:
        """The row of an operator on every axis of more than one rank. PartitaError: one of a special strategy."""
        pcg, at, choice = self.plan.graph, self.own[index], self.choice(index)
        taken = rows_taken(pcg, at, choice.inputs, choice.output)
        found = [row for axis, _, _ in self.axes if (row := taken[axis]) is not None]
        assert len(found) == len(self.axes), pcg.nodes[at].name
        special = next((row.special for row in found if row.special), None)
        if special is not None:
            name, known = pcg.nodes[at].name, zip(row_names(pcg, at), rows(pcg, at), strict=True)
            others = ", ".join(name for name, row in known if not row.special)
            sizes = self.plan.placement.sizes
            fixed = f"{name}={','.join(['ROW'] * len(sizes))}"
            raise PartitaError(
                f"{pcg.nodes[at].op} {name!r} has the strategy {special}, which communicates within the operator, as "
                f"no transformation does: plan again with --mesh {times(sizes)} --fix {fixed}, of the rows {others}"
            )
        return found

    def assign(self, op: Op, index: int, everywhere: bool) -> Iterator[Op]:
        """An operator, cut along every axis of the mesh, each part on its rank; or whole on every rank."""
        parts = [op]
        rows = [None] * len(self.axes) if everywhere else self.rows(index)
        for (_, name, size), row in zip(self.axes, rows, strict=True):
            how = replicate(size, label=name) if row is None else Chosen(row, size, name)
            try:
                parts = [part for each in parts for part in op_trans(each, how)]
            except PartitaError as error:
                raise PartitaError(
                    f"{error}. Plan again with --mesh or --micro-batches of sizes that divide it, or with another "
                    f"--fix {op.of.name}=ROW"
                ) from error
        for part, rank in zip(parts, self.ranks.ravel().tolist(), strict=True):
            op_assign(part, rank)
        return iter(parts)


def _transform(made: Graph, micro_batches: int, parts: Sequence[_Stage]) -> None:
    """Cut and assign all operators.

    What depends on no input is computed once for all micro-batches, and as in programs of plans whole on every rank;
    so is what several stages compute for themselves, since replicas are cut alike.
    """
    constants = built_once(made.pcg)
    for op in made.forward:
        once = op.node in constants
        computing = [part for part in parts if op.node in part.own]
        everywhere = once or len(computing) > 1
        copies = [op] if len(computing) == 1 else op_trans(op, replicate(len(computing), label=STAGE))
        for part, copy in zip(computing, copies, strict=True):
            micros = [copy] if once or micro_batches == 1 else op_trans(copy, split("batch", micro_batches, MICRO))
            cut = [made_part for micro in micros for made_part in part.assign(micro, op.node, everywhere)]
            part.ops += [] if once else cut


def _store(made: Graph, index: int, holders: Sequence[_Stage]) -> None:
    """Place a parameter unless it lies where it is read, and is updated there as a whole."""
    choice = holders[0].choice(index)
    layout, updated = choice.output, choice.sharded_states
    if not updated and all(
        _splits(layout, part) == _splits(read, part) for part in holders for read in _readings(part, index)
    ):
        return
    cuts: list[Transformation] = [replicate(len(holders), label=STAGE)] if len(holders) > 1 else []
    cuts += _stored(made, index, holders[0])
    devices = [rank for part in holders for rank in part.ranks.ravel().tolist()]
    place(made, made.pcg.nodes[index].name, cuts, devices, shared=choice.shared is not None)


def _stored(made: Graph, index: int, part: _Stage, shared: Collection[int] = ()) -> list[Chosen]:
    """How a parameter is cut where it is stored, axis by axis, and then once more along the axes `shared`.

    Along shared axes the first atom that divides is split; the parameter is whole on an axis if there is none.
    """
    found, left = list[Chosen](), whole(made.atoms[index].sizes)
    for axis, name, size in sorted(part.axes, key=lambda known: known[0] in shared):
        letter = part.choice(index).output[axis]
        if axis in shared:
            letter = next((S(atom) for atom, length in enumerate(left.sizes) if length % size == 0), B)
        found.append(Chosen(Row((), letter), size, name))
        left = left.cut(letter, size, 0)
    return found


def _readings(part: _Stage, index: int) -> Iterator[Layout]:
    pcg, at = part.plan.graph, part.own[index]
    for reader in pcg.consumers[at]:
        yield from (
            x for i, x in zip(pcg.nodes[reader].inputs, part.plan.choices[reader].inputs, strict=True) if i == at
        )


def _splits(layout: Layout, part: _Stage) -> list[int]:
    return [layout[axis] if is_split(layout[axis]) else B for axis, _, _ in part.axes]


def _update(made: Graph, index: int, holders: Sequence[_Stage]) -> None:
    """Split the update of a parameter with sharded states among the ranks that have copies of it."""
    choice, part = holders[0].choice(index), holders[0]
    if not choice.sharded_states:
        return
    shared = [axis for axis, _, _ in part.axes if choice.output[axis] == B]
    parts = list(made.parts(index))
    for cut in _stored(made, index, part, shared):
        parts = [made_part for op in parts for made_part in op_trans(op, cut)]
    for op in parts:
        op_assign(op, int(part.ranks[tuple(op.coordinate(name) for name in part.plan.axes)]))


def _recompute(made: Graph, part: _Stage) -> None:
    if not part.plan.recompute:
        return
    known = {segment.name: segment.nodes for segment in segments(part.plan.graph)}
    by_node = defaultdict[int, list[Op]](list)
    for op in part.ops:
        by_node[op.node].append(op)
    for name in part.plan.recompute:
        groups = defaultdict[object, list[Op]](list)
        for node in known[name]:
            for op in by_node[part.whole[node]]:
                groups[op.device, op.coordinate(MICRO)].append(op)
        for ops in groups.values():
            recompute(ops)
