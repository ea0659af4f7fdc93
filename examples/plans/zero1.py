"""ZeRO-1: data parallelism with sharded optimizer states (Rajbhandari et al., SC'20).

After backward every device updates one shard of each parameter. It needs only that shard's gradient and sends the new
shard to the others: a reduce-scatter and an all-gather instead of an all-reduce.
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
