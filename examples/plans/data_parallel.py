"""Data parallelism: every device computes its samples; gradients are all-reduced (SuperScaler, Algorithm 1)."""

from partita import op_assign, op_trans, replicate, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.ops:
        if op in graph.forward:  # its backward follows
            parts = op_trans(op, split("batch", len(devices)))
        else:  # the update of a parameter
            parts = op_trans(op, replicate(len(devices)))
        for part, device in zip(parts, devices):
            op_assign(part, device)
