"""Data parallelism: samples split over devices, gradients all-reduced (SuperScaler, Algorithm 1)."""

from partita import op_assign, op_trans, replicate, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.ops:  # forward operators (backward follows them) and parameter updates
        how = split("batch", len(devices)) if op.is_forward else replicate(len(devices))
        for part, device in zip(op_trans(op, how), devices):
            op_assign(part, device)
