"""Interleaved 1F1B: several virtual stages per device, so that the pipeline fills sooner (Narayanan et al., SC'21).

Stage k lies on device k mod D. Two devices with two virtual stages each, the second in small letters:

    0 | F0 F1 f0 f1 .. b0 .. b1 B0 B1
    1 | .. F0 F1 f0 b0 f1 b1 B0 B1
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
