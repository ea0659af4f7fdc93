"""What stays where it is: rows of tables with sparse gradients, and buffers that a step changes.

No device can send another a sparse gradient, or a new running statistic: each has its own, and a plan is right where
every device that keeps a part computes all that changes it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from ...model.graph.buffer_updates import updated
from ...model.graph.sparse_tables import sparse_tables
from .graph import Graph
from .mask import Box, Interval, Mask, meet
from .op import Op
from .site import told


def moved_rows(graph: Graph, stores: Sequence[Op], updates: Sequence[Op]) -> Iterator[str]:
    """Problems of tables with sparse gradients, one of each: these would be sent, cut or summed over devices."""
    for table in sparse_tables(graph.pcg):
        own = [[op for op in ops if op.node == table] for ops in (stores, updates)]
        yield from islice(_of_table(graph, table, *own), 1)


def _of_table(graph: Graph, table: int, stores: Sequence[Op], updates: Sequence[Op]) -> Iterator[str]:
    name = graph.pcg.nodes[table].name
    kept = {(store.device, store.mask(None).box) for store in stores}
    readers = [op for reader in graph.pcg.consumers[table] for op in graph.parts(reader)]
    for op in readers:
        if (op.device, op.mask(0).box) not in kept:
            words = f"device {op.device} keeps {name} in other parts than {op.name}, {Mask(op.mask(0).box)}"
            yield told(op.where, f"{words}: {_SPARSE}")
    for update in updates:
        box = update.mask(None).box
        given = [op for op in readers if op.of.gradient and meet(op.mask(0).box, box) is not None]
        own = {(op.node, op.mask(0, gradient=True)) for op in given if op.device == update.device}
        other = next((op for op in given if (op.node, op.mask(0, gradient=True)) not in own), None)
        if other is not None:
            words = f"{other.name} looks up ids that device {update.device} does not, which updates {name}"
            yield told(other.where, f"{words}{Mask(box)}: {_SPARSE}")
        elif any(op.mask(0).box != box for op in given):
            words = f"device {update.device} updates {name}{Mask(box)}, and looks it up in other parts"
            yield told(update.assigned, f"{words}: {_SPARSE}")


_SPARSE = (
    "its gradient is sparse, which is neither sent nor cut, so that each device looks up all ids in the part that it "
    "keeps (split its rows or columns), or create it with sparse=False"
)


def unlike_changes(graph: Graph, stores: Sequence[Op]) -> Iterator[str]:
    """Problems of buffers that a step changes: what is kept is not what is changed, or would be changed otherwise."""
    wrong = dict[int, str]()  # of each operator that changes some, of the first
    for buffer, (reader, operand) in updated(graph.pcg).items():
        found = (*_elsewhere(graph, buffer, operand, stores), *_of_samples(graph, buffer))
        if found:
            wrong.setdefault(reader, found[0])
    yield from wrong.values()


def mixed_statistics(graph: Graph) -> Iterator[str]:
    """Problems of batch norms over micro-batches whose operators are not of one micro-batch each."""
    for sums in graph.pcg.of("moments"):
        parts = graph.pcg.nodes[sums].get("parts", 1)
        if parts > 1:
            yield from islice(_mixed(graph, sums, parts), 1)


def _mixed(graph: Graph, sums: int, parts: int) -> Iterator[str]:
    """Problems of the operators that give or read the statistics of so many micro-batches."""
    of, name = graph.atoms[sums].of_dim(1)[-1], graph.pcg.nodes[sums].path or graph.pcg.nodes[sums].name
    (reader,) = graph.pcg.consumers[sums]
    found = dict[tuple[int | None, Box], set[Interval]]()
    for op in (*graph.parts(sums), *graph.parts(reader)):
        side = op.mask(None if op.node == sums else 1).box[of]
        if side[1] - side[0] > 1:
            words = f"{name} normalizes each of {parts} micro-batches by its own statistics, and {op.name} has several"
            yield told(op.where, f"{words}: split its batch into {parts} first")
        if op.node == reader:
            kept = "mean" in op.of["operands"]
            found.setdefault((op.device, op.mask(2).box if kept else ()), set()).add(side)
    kept = "mean" in graph.pcg.nodes[reader]["operands"]
    for (device, _), sides in found.items():
        if kept and len(sides) < parts:
            op = next(op for op in graph.parts(reader) if op.device == device)
            words = f"{name} has running statistics on device {device}, which normalizes {len(sides)} of {parts}"
            yield told(op.where, f"{words} micro-batches: assign all micro-batches of it to the same devices")


def _elsewhere(graph: Graph, buffer: int, operand: int, stores: Sequence[Op]) -> Iterator[str]:
    """Problems of parts that are kept and not changed, or changed in other parts."""
    ops = graph.parts(updated(graph.pcg)[buffer][0])
    changed = {(op.device, op.mask(operand).box): op for op in ops}
    kept = {(store.device, store.mask(None).box) for store in stores if store.node == buffer}
    for device, box in sorted(changed.keys() ^ kept, key=str):
        op = changed.get((device, box)) or next((op for op in ops if op.device == device), ops[0])
        what = f"{graph.pcg.nodes[buffer].name}{Mask(box)}"
        does = f"is not all that device {device} keeps" if (device, box) in changed else f"is kept by device {device}"
        yield told(
            op.where,
            f"{what} {does}, and {op.of.name} changes it in other parts, or elsewhere: each device that keeps a part "
            "computes what changes it, and no device has overlapping parts",
        )


def _of_samples(graph: Graph, buffer: int) -> Iterator[str]:
    """Problems of operators that would change a buffer by some of the samples, or read it later."""
    name = graph.pcg.nodes[buffer].name
    ops = graph.parts(updated(graph.pcg)[buffer][0])
    for op in ops:
        if op.of.op == "local_batch_norm":
            known, own = graph.atoms[op.of.inputs[0]], op.mask(0).sizes
            if any(own[a] != size for a, size in enumerate(known.sizes) if a not in known.of_dim(1)):
                yield told(
                    op.where,
                    f"{op.name} would normalize by the statistics of its own samples, which {name} follows: capture "
                    'the model with statistics="batch"',
                )
        elif op.of.op == "store" and any(other.device == op.device and other is not op for other in ops):
            yield told(op.where, f"{op.name} changes {name}, which needs the whole batch at once")
    again = (op for reader in graph.pcg.consumers[buffer] for op in graph.parts(reader) if op.group is not None)
    for op in again:
        if op.of.op == "clone":
            yield told(op.where, f"{op.name} reads {name}, which has changed when it is recomputed")
