"""Data parallelism for a batch that the devices do not divide: of five samples the first has three, the other two.

0 | samples 0 1 2 | gradients
1 | samples 3 4   | gradients
"""

from partita import op_assign, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 2, 5


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
