"""3F1B: three passes forward through a pipeline, one backward, as AlphaFold 2 is trained (SuperScaler, Figure 2).

What a pass hands on goes from the last device to the first. Of the first two passes nothing is kept.

    0 | 0a 1a 2a 3a 0b 1b .. 0c .. ...         a, b, c: the passes of a micro-batch
    1 |    0a 1a 2a 3a 0b ...
    2 |       0a 1a 2a ...
    3 |          0a 1a ...       0c 0' ...     0': its backward
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
