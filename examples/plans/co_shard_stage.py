"""Swin in a 1F1B pipeline with data parallelism, and co-shard where activations are large (SuperScaler, Figure 3).

The first of Swin's stages has most patches and few channels: its activations fill the memory of the first devices. In
it a device computes heads and hidden units one part after the other, and again before their backward.

              stage 0 (co-shard)   stage 1
    samples 0 [0]             -->  [1]
    samples 1 [2]             -->  [3]
"""

from itertools import pairwise

from partita import in_order, one_f_one_b, op_assign, op_order, op_trans, recompute, split, stages

MODEL, DEVICES, BATCH = "swin-1.8b", 4, 8
STAGES, MICROS, SHARDS = 2, 2, 2

HEADS, HIDDEN = ("stages.0.*.attention.qkv.weight", 0, 1), ("stages.0.*.up.weight", 0)


def plan(graph, devices, micros=MICROS, shards=SHARDS):
    for op in graph.forward:
        for samples in op_trans(op, split("batch", len(devices) // STAGES, "replica")):
            op_trans(samples, split("batch", micros, "micro"))
    parts, blocks = [], {}
    for stage, ops in enumerate(stages(graph, STAGES)):
        parts.append([])
        for op in ops:
            device = devices[op.coordinate("replica") * STAGES + stage]
            dim = next((dim for dim in (HEADS, HIDDEN) if op.has(dim)), None)
            pieces = [op] if dim is None else op_trans(op, split(dim, shards, "shard"))
            op_assign(pieces, device)
            parts[-1] += pieces
            if dim is not None:
                blocks.setdefault((op.layer, dim, device, op.coordinate("micro")), []).append(pieces)
    for block in blocks.values():
        groups = list(zip(*block))  # one group of operators per shard
        for ops in groups:
            recompute(ops)
        for before, after in pairwise(groups):
            op_order(before, after)
            op_order([op.backward for op in after], [op.recomputed for op in before])
    in_order(one_f_one_b(STAGES, micros), parts)
