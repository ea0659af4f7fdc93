"""3F1B: three passes forward through a pipeline, one backward, as AlphaFold 2 is trained (SuperScaler, Figure 2).

What a pass hands on goes from the last device to the first. Of the first two passes nothing is kept. Two micro-batches,
whose passes are a, b, c:

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
