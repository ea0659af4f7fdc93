"""Gradient accumulation with data parallelism: micro-batches in sequence, one all-reduce at the end.

F0 B0 F1 B1 F2 B2 F3 B3 all-reduce update
"""

from partita import op_assign, op_order, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 16
MICROS = 4


def plan(graph, devices, micros=MICROS):
    batches = [[] for _ in range(micros)]
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            for micro, ops in zip(op_trans(part, split("batch", micros, "micro")), batches):
                op_assign(micro, device)
                ops.append(micro)
    for before, after in zip(batches, batches[1:]):
        op_order([op.backward for op in before], after)
