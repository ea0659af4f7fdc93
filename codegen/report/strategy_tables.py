"""Tables of a plan's splits: axes, operators, weights, embedding tables."""

from ...formulation.strategies.tensor_classes import classes
from ...model.graph.layout import B, P, is_split
from ...model.graph.pcg import SOURCES
from ...model.operators.loss import LOSSES
from ...model.operators.operator import operator
from ..plan.plan import Plan
from ..plan.table_spread import places, plan_spread, spread_axis
from ..pricing.price_items import StagePrice
from .tables import Table, axis_heads, place
from .words import bytes_text, equal_layers, percent, shape_text, split_word


def axes_table(plan: Plan) -> Table:
    """For every axis the shares of the arithmetic that it splits by batch, heads, columns, ..."""
    graph = plan.graph
    trained = [i for i in graph.of("parameter") if i in classes(graph).uses]
    elements = sum(graph.nodes[i].numel for i in trained)
    rows = []
    for axis, name in enumerate(plan.axes):
        work: dict[str, float] = {}
        for index, node in enumerate(graph.nodes):
            if node.op in SOURCES or not operator(node.op).matmul:
                continue
            flops = operator(node.op).work(node, tuple(graph.nodes[i] for i in node.inputs))
            word = split_word(plan, index, axis)
            work[word] = work.get(word, 0) + flops
        total = sum(work.values())
        shares = sorted(work.items(), key=lambda pair: (-pair[1], pair[0]))
        stored = sum(
            graph.nodes[i].numel
            for i in trained
            if is_split(plan.choices[i].output[axis]) or spread_axis(plan, i) == axis
        )
        states = sum(graph.nodes[i].numel for i in trained if _sharded(plan, i, axis))
        rows.append(
            (
                f"{name}={plan.placement.sizes[axis]}",
                place(plan, (axis,)),
                ", ".join(f"{word} {percent(flops, total)}" for word, flops in shares if flops) or "no products",
                percent(stored, elements),
                percent(stored + states, elements),
            )
        )
    return Table(
        "Mesh",
        "What each axis splits: shares of the arithmetic of matrix products, of the weights, of optimizer states.",
        ("axis", "over", "splits", "weights", "states"),
        tuple(rows),
        words=3,
    )


def _sharded(plan: Plan, index: int, axis: int) -> bool:
    choice = plan.choices[index]
    return choice.sharded_states and choice.output[axis] == B


def operators_table(plan: Plan) -> Table:
    """The split of every product, norm, look-up and loss; equal layers in one row."""
    graph = plan.graph

    def cells(index: int) -> tuple[str, ...] | None:
        node = graph.nodes[index]
        if node.op in SOURCES or operator(node.op).creates or classes(graph).constant[index]:
            return None
        weights = [graph.nodes[i] for i in node.inputs if graph.nodes[i].op == "parameter"]
        if not (weights or operator(node.op).matmul or node.op in (*LOSSES, "softmax")):
            return None
        shape = shape_text(weights[0].shape) if weights else ""
        return (node.op, shape, *(split_word(plan, index, axis) for axis in range(len(plan.axes))))

    return Table(
        "Operators",
        "What each mesh axis splits of an operator (rows, columns: of the matrix that multiplies from the right).",
        ("module", "operator", "weight", *axis_heads(plan)),
        equal_layers(plan, range(len(graph.nodes)), cells),
        words=3 + len(plan.axes),
    )


def weights_table(plan: Plan, price: StagePrice) -> Table:
    """How weights are stored, gathered and updated; vectors are left out where there are matrices."""
    graph = plan.graph
    states: dict[int, int] = {}
    for kept in price.kept:
        if kept.part == "states":
            states[kept.node] = states.get(kept.node, 0) + kept.bytes
    stored = [i for i in graph.of("parameter") if i in states]
    matrices = [i for i in stored if len(graph.nodes[i].shape) > 1] or stored

    def cells(index: int) -> tuple[str, ...]:
        choice = plan.choices[index]
        use = classes(graph).uses[index][0]
        used = choice.shared if choice.shared is not None else plan.choices[use.node].inputs[use.operand]
        joined = "tables" if graph.nodes[index].get("tables") else "weights"
        axes = (_stored(*letters) for letters in zip(choice.output, used, strict=True))
        notes = [
            text
            for text, holds in (
                ("ZeRO-2" if choice.sharded_gradients else "ZeRO-1", choice.sharded_states),
                ("states on the host", choice.offloaded),
                ("gathered again in backward", choice.regather),
                ("frozen", not graph.nodes[index].gradient),
                (f"{len(graph.nodes[index].originals)} {joined} joined", len(graph.nodes[index].originals) > 1),
            )
            if holds
        ]
        return (shape_text(graph.nodes[index].shape), *axes, ", ".join(notes) or "-", bytes_text(states[index]))

    vectors = sum(states.values()) - sum(states[i] for i in matrices)
    rest = f" {len(stored) - len(matrices)} vectors take {bytes_text(vectors)} more." if vectors else ""
    return Table(
        "Weights",
        "How a matrix is stored: FSDP is stored split and gathered for use; ZeRO-1 splits the optimizer's states over "
        "the axes with copies, ZeRO-2 gradients too. Bytes are those of weight, gradient and states on one device."
        + rest,
        ("weight", "shape", *axis_heads(plan), "update", "each"),
        equal_layers(plan, matrices, cells),
        words=3 + len(plan.axes),
    )


def _stored(stored: int, used: int) -> str:
    if stored == P:
        return "spread"
    if is_split(stored):
        return "split" if stored == used else "moved" if is_split(used) else "FSDP"
    return "cut for use" if is_split(used) else "copies"


def spread_table(plan: Plan) -> Table:
    """Where the tables lie that are spread over an axis, and their columns there."""
    rows = []
    for index in plan.graph.of("parameter"):
        spread, axis = plan_spread(plan, index), spread_axis(plan, index)
        for table, (name, at) in enumerate(places(plan, index).items()):
            assert spread is not None and axis is not None
            own = [p.stop - p.start for part in spread.pieces for p in part if p.table == table]
            rows.append((name, f"{plan.axes[axis]} {at}", f"{spread.rows[table]:,}", ", ".join(map(str, own))))
    return Table(
        "Tables",
        "Joined tables that are spread over the coordinates of an axis: at which of them each table lies, its rows, "
        "and how many of its columns each of these has.",
        ("table", "at", "rows", "columns"),
        tuple(rows),
        words=2,
    )
