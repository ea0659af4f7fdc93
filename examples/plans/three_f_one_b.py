"""3F1B: three forward passes through a pipeline, one backward, as in AlphaFold 2 training (SuperScaler, Figure 2).

The result of a pass goes from the last device to the first; the first two passes save nothing. Two micro-batches with
passes a, b, c:

    0 | 0a 1a .. .. 0b 1b .. .. 0c 1c .. .. .. .. .. B0 .. B1
    1 | .. 0a 1a .. .. 0b 1b .. .. 0c 1c .. .. .. B0 .. B1
    2 | .. .. 0a 1a .. .. 0b 1b .. .. 0c 1c .. B0 .. B1
    3 | .. .. .. 0a 1a .. .. 0b 1b .. .. 0c B0 1c B1
"""

from partita import in_order, op_assign, op_trans, passes, split, stages, three_f_one_b

MODEL, DEVICES, BATCH = "alphafold2-87m", 4, 8
MICROS = 4


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
    number = passes(graph)
    chain = [[op for op in ops if number[op.node] == k] for k in range(max(number) + 1) for ops in parts]
    in_order(three_f_one_b(len(devices), micros), chain)
