"""Zero-bubble pipeline ZB-H1: weight gradients fill the bubbles of 1F1B (Qi et al., ICLR'24).

Backward is split into B, which the previous stage waits for, and W, which no other stage needs.

    0 | F0 F1 F2 F3 .. .. .. B0 W0 B1 W1 B2 W2 B3 W3
    1 | .. F0 F1 F2 .. .. B0 F3 B1 W0 B2 W1 B3 W2 W3
    2 | .. .. F0 F1 .. B0 F2 B1 F3 B2 W0 B3 W1 W2 W3
    3 | .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3
"""

from partita import in_order, op_assign, op_trans, split, split_backward, stages, zero_bubble

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
MICROS = 4


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    split_backward(graph.forward)
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
    in_order(zero_bubble(len(devices), micros), parts)
