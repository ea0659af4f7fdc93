"""Interleaved 1F1B: every device has several short stages, so that pipelines fill sooner (Narayanan et al., SC'21).

Stage k lies on device k mod D:

    0 | F0.0 F1.0 F0.1 F1.1 ...      (stage 0, then stage D, of every device the first chunk and the second)
    1 |      F0.0 F1.0 F0.1 ...
"""

from partita import in_order, interleaved, op_assign, op_trans, split, stages

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
CHUNKS = 2


def plan(graph, devices, chunks=CHUNKS):
    micros = len(devices)
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    parts = stages(graph, chunks * len(devices))
    for stage, ops in enumerate(parts):
        op_assign(ops, devices[stage % len(devices)])
    in_order(interleaved(len(devices), micros, chunks), parts)
