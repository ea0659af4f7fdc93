"""Pipeline, tensor and data parallelism together (Narayanan et al., SC'21): every stage on a device group.

Two replicas of two stages of two devices, 1F1B within each replica:

              stage 0     stage 1
    samples 0 [0 1]  -->  [2 3]
    samples 1 [4 5]  -->  [6 7]
"""

from partita import in_order, one_f_one_b, op_assign, op_trans, split, stages

MODEL, DEVICES, BATCH = "gpt3-1.3b", 8, 8
STAGES, TENSOR, MICROS = 2, 2, 4

HEADS, HIDDEN = ("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0)


def plan(graph, devices, micros=MICROS):
    replicas = len(devices) // (STAGES * TENSOR)
    for op in graph.forward:
        for samples in op_trans(op, split("batch", replicas, "replica")):
            for micro in op_trans(samples, split("batch", micros, "micro")):
                op_trans(micro, split([HEADS, HIDDEN], TENSOR, "tensor"))
    parts = stages(graph, STAGES)
    for stage, ops in enumerate(parts):
        for op in ops:
            group = op.coordinate("replica") * STAGES + stage
            op_assign(op, devices[group * TENSOR + op.coordinate("tensor")])
    in_order(one_f_one_b(STAGES, micros), parts)
