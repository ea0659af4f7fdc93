"""Chimera: two pipelines in opposite directions, each with half of the micro-batches (Li and Hoefler, SC'21).

Every device has the weights of two stages, one of each direction; the gradients of both copies are added up.

    0 | 0 0 1 1 ...      micro-batches 0 and 2 go down,
    1 |   0 1 ...        1 and 3 go up
    2 |   1 0 ...
    3 | 1 1 0 0 ...
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
