"""Chimera: two pipelines in opposite directions, each with half of the micro-batches (Li and Hoefler, SC'21).

Even micro-batches go down, odd ones up. Every device holds the weights of two stages, one per direction; the gradients
of both replicas are summed.

    0 | F0 F2 .. F1 B1 F3 B3 B0 .. B2
    1 | .. F0 F1 F2 F3 B1 B0 B3 B2
    2 | .. F1 F0 F3 F2 B0 B1 B2 B3
    3 | F1 F3 .. F0 B0 F2 B2 B1 .. B3
"""

from partita import chimera, in_order, op_assign, op_trans, split, stages

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
MICROS = 4


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    parts = stages(graph, len(devices))
    for ops, down, up in zip(parts, devices, reversed(devices)):
        for op in ops:
            op_assign(op, up if op.coordinate("micro") % 2 else down)
    in_order(chimera(len(devices), micros), parts)
