"""The primitives op-trans, op-assign and op-order; recomputation, split backward, swap and weight placement.

for op in graph.forward:
    for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
        op_assign(part, device)
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import ceil
from typing import TypeAlias

from ...model.errors import PartitaError
from ...model.graph.layout import atom_of, is_split
from ...model.wording import did_you_mean
from .graph import Graph, Order
from .op import Cut, Op, Phase
from .site import caller
from .transformation import MicroBatches, Transformation, with_own_statistics

Ops: TypeAlias = "Op | Iterable[Op | None] | None"


def op_trans(op: Op, transformation: Transformation) -> list[Op]:
    """Replace an operator by the parts of a transformation, in order and unassigned.

    The vTensors of other operators stay as they are (§3.1). Of sizes that do not divide the last part is smaller.
    Orders of the operator hold for its parts. Raises PartitaError for an unknown dimension, more parts than entries, or
    a transformation that is disproved.
    """
    if not isinstance(op, Op):
        raise PartitaError(f"op_trans transforms one operator, not {_shown(op)}")
    if not hasattr(transformation, "row"):
        hint = did_you_mean(transformation, ("split", "replicate", "split_value", "special", "transformation"))
        raise PartitaError(
            f"{op.name} is transformed by split(), replicate(), ..., not by {_shown(transformation)}{hint}"
        )
    if op.phase not in (Phase.FORWARD, Phase.UPDATE):
        raise PartitaError(f"{op.name} follows from its forward operator: transform that one")
    made, where = _parts(op, transformation), caller()
    for part in made:
        part.made = where
        part.split, part.swapped, part.group = op.split, op.swapped, op.group
    op.graph.replace([op], made)
    return made


def op_join(ops: Iterable[Op]) -> Op:
    """Undo transformations: the operator that these parts are all parts of, in their place and unassigned.

    An operator that stands for all of its micro-batches is all parts by itself.
    It can be transformed in another way; what its parts are ordered after and before, it is too. It is recomputed,
    swapped or split into two backwards as all parts are: with others if these are in one group, else by itself. Raises
    PartitaError for parts of several operators, if some are missing, and if only some are recomputed, swapped or split.
    """
    parts = listed(ops)
    if not parts:
        raise PartitaError("op_join joins the parts of an operator, and there are none")
    first = parts[0]
    for op in parts:
        if op.phase not in (Phase.FORWARD, Phase.UPDATE):
            raise PartitaError(f"{op.name} follows from its forward operator: join the parts of that one")
        if op.graph is not first.graph or (op.node, op.phase) != (first.node, first.phase):
            raise PartitaError(f"{first.name} and {op.name} are not parts of one operator")
        if op.gone:
            raise PartitaError(f"{op.name} was replaced before: join the operators that are there now")
    shared = [
        cuts[0] for cuts in takewhile(lambda cuts: len({*cuts}) == 1, zip(*(op.cuts for op in parts), strict=False))
    ]
    every = [op for op in first.graph.parts(first.node) if [*op.cuts[: len(shared)]] == shared]
    missing = [op for op in every if op not in parts]
    if missing:
        raise PartitaError(f"{first.name} is joined with all parts of the same operator: {missing[0].name} is missing")
    if len(parts) == 1 and first.cuts and first.cuts[-1].loop:  # it stands for all parts
        shared = shared[:-1]
    elif len(parts) == 1 and first.cuts:
        raise PartitaError(f"{first.name} is one part: give op_join all parts that it is to be joined with")
    made, where = Op(first.graph, first.node, first.phase, tuple(shared)), caller()
    made.made = where
    for name, call in (("split", "split_backward"), ("swapped", "swap"), ("group", "recompute")):
        values = {getattr(op, name) for op in parts}
        if len(values) > 1 and not all(values):
            raise PartitaError(
                f"{call}() was called for some parts of {first.of.name} only: call it for all, or for none"
            )
        if len(values) == 1:
            setattr(made, name, values.pop())
            continue
        kinds = {value in first.graph.selective for value in values}
        if len(kinds) > 1:
            raise PartitaError(f"only some parts of {first.of.name} are recomputed selectively: do it for all, or none")
        setattr(made, name, first.graph.new_group(where, kinds.pop()))
    first.graph.replace(parts, [made])
    return made


def _parts(op: Op, transformation: Transformation) -> list[Op]:
    """The parts of an operator. Raises PartitaError if some would be empty, or do not fit each other."""
    parts, loop = transformation.parts, isinstance(transformation, MicroBatches)
    row = with_own_statistics(op, transformation.row(op.graph, op.node), parts)
    if loop and op.phase is not Phase.FORWARD:
        raise PartitaError(f"{op.name} runs once in a step: it has no micro-batches")
    if loop and op.loop is not None:
        raise PartitaError(f"{op.name} has micro-batches already: {op.loop.parts} of {op.loop.label!r}")
    cuts = [Cut(row, parts, number, transformation.label, loop) for number in range(1 if loop else parts)]
    made = [Op(op.graph, op.node, op.phase, (*op.cuts, cut)) for cut in cuts]
    for operand in (None, *(range(len(op.of.inputs)) if op.phase is Phase.FORWARD else ())):
        try:
            made[0].mask(operand)
            made[0].mask(operand, gradient=True)
        except ValueError as error:
            size = int(str(error))
            raise PartitaError(
                f"{transformation.label}: {op.name} has {size} entries there, too few for {parts} parts: of "
                f"{ceil(size / parts)} each, the last would be empty"
            ) from None
    sizes = {
        op.mask(operand).sizes[atom_of(letter)]
        for operand, letter in ((None, row.output), *enumerate(row.inputs))
        if is_split(letter)
    }
    if len(sizes) > 1 and not row.special and any(size % parts for size in sizes):  # special strategies exchange rows
        counts = " and ".join(map(str, sorted(sizes)))
        raise PartitaError(
            f"{transformation.label}: {op.name} has {counts} entries there, which {parts} parts do not divide alike: "
            "operands and result would be cut at different places"
        )
    return made


def op_assign(ops: Ops, device: int) -> None:
    """Assign operators to a device (a rank); derived operators follow their forward operator."""
    where = caller()
    for op in listed(ops):
        if op.gone:
            raise PartitaError(f"{op.name} was transformed: assign its parts")
        op.device = device
        op.assigned = where


def op_order(first: Ops, second: Ops) -> None:
    """Run all of `first` before all of `second`.

    Raises PartitaError for an update before a forward operator: that forward would belong to the next step.
    """
    a, b = listed(first), listed(second)
    if not a or not b:
        return
    for op in (*a, *b):
        if op.replaced:
            raise PartitaError(f"{op.name} was transformed: order its parts")
        if op.graph is not a[0].graph:
            raise PartitaError(f"{a[0].name} and {op.name} belong to different graphs: a plan has one")
    looped = next((op for op in (*a, *b) if op.loop is not None), None)
    if looped is not None:
        raise PartitaError(
            f"{looped.name} stands for all its micro-batches: give in_order the stages as a list, or make them with "
            "split()"
        )
    update = next((op for op in a if op.phase is Phase.UPDATE), None)
    forward = next((op for op in b if op.phase is Phase.FORWARD), None)
    if update is not None and forward is not None:
        raise PartitaError(
            f"{update.name} ends the step that {forward.name} is part of: a plan is one step, with the weights at its "
            "start; it cannot order one step's operators among another's (asynchronous pipelines, ByteScheduler)"
        )
    a[0].graph.orders.append(Order(a, b, caller()))


def recompute(ops: Ops, selective: bool = False) -> None:
    """Recompute forward operators before their backward instead of saving tensors (activation checkpointing).

    The operators of one call form a group that saves only its external inputs, and if it is `selective` the results of
    matrix products, convolutions and attention in which no devices exchange data: these are not computed again.
    `op.recomputed` is the recomputation; it can be ordered.
    """
    for op in _group(ops, "recomputed", selective=selective):
        if op.swapped is not None:
            raise PartitaError(f"{op.name} is swapped: its saved tensors are on the host, not recomputed")
        op.group = len(op.graph.groups)


def swap(ops: Ops) -> None:
    """Keep on the host what operators need later: tensors saved for backward, states of the optimizer.

    What the forward operators of one call save is offloaded and reloaded together. The states of an update, with the
    copy of the weights that some dtypes have, come to the device for it alone, and go back.
    """
    for op in _group(ops, "swapped", (Phase.FORWARD, Phase.UPDATE)):
        if op.group is not None:
            raise PartitaError(f"{op.name} is recomputed: it saves no tensors that could be swapped")
        op.swapped = len(op.graph.groups)


def split_backward(ops: Ops) -> None:
    """Split parameter gradients (`op.weight`) from the rest of the backward (`op.backward`), as zero-bubble does."""
    for op in _current(listed(ops), "split"):
        op.split = True


def shard_gradients(ops: Ops) -> None:
    """Sum the gradients of these updates' parameters after every micro-batch instead of once a step.

    So a device keeps only those parts of the sums that it updates (ZeRO-2). It makes no difference where one device has
    all that is summed. Raises PartitaError for other operators.
    """
    for op in listed(ops):
        if op.phase is not Phase.UPDATE:
            raise PartitaError(f"{op.name} updates no parameter: shard gradients of operators of graph.optimizer")
        op.graph.scattered.add(op.node)


def place(
    graph: Graph,
    name: str,
    transformation: Transformation | Sequence[Transformation] | None,
    devices: Sequence[int],
    *,
    shared: bool = False,
    retained: bool = False,
) -> None:
    """Keep the parts of a parameter between steps one on each device; by default it lies with its readers.

    One that has a place already, as in a converted plan, is moved.

    Several transformations are applied one after the other, each to the parts of the one before. Operators fetch the
    parts that their device lacks before they run, and release them afterwards (ZeRO-3). Where it is `shared`, all that
    read it in a pass, forward or backward, fetch it once, before the first of them. Where it is `retained`, what
    forward, or its recomputation, fetched is kept for backward; else backward fetches it again.
    """
    index = next((i for i in graph.pcg.of("parameter") if graph.pcg.nodes[i].name == name), None)
    if index is None:
        known = [graph.pcg.nodes[i].name for i in graph.pcg.of("parameter")]
        raise PartitaError(f"no parameter {name!r} in the graph{did_you_mean(name, known, 3)}")
    parts = [Op(graph, index, Phase.STORE)]
    several = transformation if isinstance(transformation, Sequence) else [transformation]
    for each in filter(None, several):
        parts = [part for op in parts for part in _parts(op, each)]
    if len(parts) != len(devices):
        raise PartitaError(f"{name!r} has {len(parts)} parts and {len(devices)} devices")
    where = caller()
    for part, device in zip(parts, devices, strict=True):
        part.device, part.assigned = device, where
    graph.stores = [store for store in graph.stores if store.node != index] + parts
    for named, given in ((graph.shared, shared), (graph.retained, retained)):
        named.discard(index)
        named.update({index} if given else ())


def listed(ops: Ops) -> tuple[Op, ...]:
    """One or several operators as a tuple; drops None, which stands for a missing backward."""
    found = (ops,) if ops is None or isinstance(ops, Op) or not isinstance(ops, Iterable) else tuple(ops)
    for op in found:
        if op is not None and not isinstance(op, Op):
            raise PartitaError(f"expected an operator of the graph, or several, not {_shown(op)}")
    return tuple(op for op in found if op is not None)


def _shown(found: object) -> str:
    """A wrong argument, shortened for a message."""
    return type(found).__name__ if isinstance(found, (list, tuple)) else repr(found)


def _group(ops: Ops, what: str, phases: Sequence[Phase] = (Phase.FORWARD,), selective: bool = False) -> Sequence[Op]:
    """Start a new group, numbered from 1 in `graph.groups`, with these operators."""
    found = listed(ops)
    if found:
        found[0].graph.new_group(caller(), selective)
    return _current(found, what, phases)


def _current(ops: Sequence[Op], what: str, phases: Sequence[Phase] = (Phase.FORWARD,)) -> Sequence[Op]:
    for op in ops:
        if op.phase not in phases:
            also = " and updates" if Phase.UPDATE in phases else ""
            raise PartitaError(f"{op.name} cannot be {what}: only forward operators{also} are")
        if op.gone:
            raise PartitaError(f"{op.name} was transformed: name its parts")
    return ops
