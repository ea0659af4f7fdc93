"""ZeRO-1: data parallelism whose optimizer states are sharded (Rajbhandari et al., SC'20).

Every device updates a part of each parameter, for which it needs the sum of that part's gradient alone, and sends it to
the others. Gradients are kept whole until all of backward is done.
"""

from partita import evenly, op_assign, op_order, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    for op in graph.optimizer:
        for part, device in zip(op_trans(op, evenly(op, len(devices))), devices):
            op_assign(part, device)
    op_order([op.backward for op in graph.forward], graph.optimizer)
