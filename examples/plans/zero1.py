"""ZeRO-1: data parallelism whose optimizer states are sharded (Rajbhandari et al., SC'20).

Every device updates a part of each parameter once backward is done. It needs the sum of that part's gradient alone, and
sends the others the new part: a reduce-scatter and an all-gather in the place of an all-reduce.
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
