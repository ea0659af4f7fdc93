"""GPipe: all micro-batches forward, then all backward, with recomputation in every stage (Huang et al., NeurIPS'19).

0 | F0 F1 F2 F3 R3 .. .. .. .. .. .. B3 R2 B2 R1 B1 R0 B0
1 | .. F0 F1 F2 F3 R3 .. .. .. .. B3 R2 B2 R1 B1 R0 B0
2 | .. .. F0 F1 F2 F3 R3 .. .. B3 R2 B2 R1 B1 R0 B0
3 | .. .. .. F0 F1 F2 F3 R3 B3 R2 B2 R1 B1 R0 B0
"""

from partita import gpipe, in_order, op_assign, op_trans, recompute, split, stages

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
MICROS = 4


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
        for micro in range(micros):
            recompute(op for op in ops if op.coordinate("micro") == micro)
    in_order(gpipe(len(devices), micros, recompute=True), parts)
