"""Sequence parallelism between tensor-parallel parts (Korthikanti et al., Reducing activation recomputation, 2022).

Norms and residual sums, which tensor parallelism replicates, are split by tokens. An all-reduce becomes a
reduce-scatter before and an all-gather after them:

    norm (tokens) --> all-gather --> qkv, attention, output (heads) --> reduce-scatter --> + , norm (tokens) --> ...
"""

from partita import op_assign, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8

HEADS, HIDDEN = ("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0)
TOKENS = ("ids", 1)


def plan(graph, devices):
    for op in graph.forward:  # split along the first of these dimensions it has
        parts = op_trans(op, split([HEADS, HIDDEN, TOKENS], len(devices)))
        for part, device in zip(parts, devices):
            op_assign(part, device)
