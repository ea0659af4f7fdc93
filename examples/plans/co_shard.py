"""co-shard: heads and hidden units split on one device, run in sequence and recomputed (SuperScaler, Figure 3).

Tensor parallelism saves memory because each device holds only some heads; co-shard because it holds them one at a time,
without communication. Across devices it is data parallelism.

    device 0, samples 0   heads 0 | heads 1 | heads 2 | heads 3 | + | hidden 0 | hidden 1 | ...
    device 1, samples 1   heads 0 | heads 1 | heads 2 | heads 3 | + | hidden 0 | hidden 1 | ...
"""

from itertools import pairwise

from partita import op_assign, op_order, op_trans, recompute, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
SHARDS = 4

HEADS, HIDDEN = ("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0)


def plan(graph, devices, shards=SHARDS):
    blocks = {}
    for op in graph.forward:
        dim = next((dim for dim in (HEADS, HIDDEN) if op.has(dim)), None)
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
            if dim is not None:
                pieces = op_trans(part, split(dim, shards, "shard"))
                op_assign(pieces, device)
                blocks.setdefault((op.layer, dim, device), []).append(pieces)
    for block in blocks.values():
        parts = list(zip(*block))  # one group of operators per shard
        for ops in parts:
            recompute(ops)
        for before, after in pairwise(parts):
            op_order(before, after)
            op_order([op.backward for op in after], [op.recomputed for op in before])
