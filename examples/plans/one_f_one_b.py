"""1F1B: alternates forward and backward to keep few activations (PipeDream-Flush, DAPPLE).

0 | F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3
1 | .. F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
2 | .. .. F0 F1 .. B0 F2 B1 F3 B2 .. B3
3 | .. .. .. F0 B0 F1 B1 F2 B2 F3 B3
"""

from partita import in_order, one_f_one_b, op_assign, op_trans, split, stages

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
MICROS = 4


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
    in_order(one_f_one_b(len(devices), micros), parts)
