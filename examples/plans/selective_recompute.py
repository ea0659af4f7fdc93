"""LLaMA by pipeline, tensor, sequence and data parallelism; attention is recomputed (Korthikanti et al., 2022).

Two replicas of two stages of two devices. Within a stage heads and hidden units are split, what lies between them by
tokens. Attention keeps scores for every pair of tokens but takes little work: it alone runs again before backward.

              stage 0     stage 1
    samples 0 [0 1]  -->  [2 3]
    samples 1 [4 5]  -->  [6 7]
"""

from partita import in_order, one_f_one_b, op_assign, op_trans, recompute, split, stages

MODEL, DEVICES, BATCH = "llama-7b", 8, 8
STAGES, TENSOR, MICROS = 2, 2, 2

HEADS, HIDDEN = ("layers.*.attention.query.weight", 0, 0), ("layers.*.up.weight", 0)
TOKENS = ("ids", 1)


def plan(graph, devices, micros=MICROS):
    replicas = len(devices) // (STAGES * TENSOR)
    for op in graph.forward:
        for samples in op_trans(op, split("batch", replicas, "replica")):
            for micro in op_trans(samples, split("batch", micros, "micro")):
                op_trans(micro, split([HEADS, HIDDEN, TOKENS], TENSOR, "tensor"))
    parts, attention = stages(graph, STAGES), {}
    for stage, ops in enumerate(parts):
        for op in ops:
            group = op.coordinate("replica") * STAGES + stage
            op_assign(op, devices[group * TENSOR + op.coordinate("tensor")])
            if op.of.path.endswith("attention"):  # without its projections
                attention.setdefault((op.layer, op.device, op.coordinate("micro")), []).append(op)
    for ops in attention.values():
        recompute(ops)
    in_order(one_f_one_b(STAGES, micros), parts)
