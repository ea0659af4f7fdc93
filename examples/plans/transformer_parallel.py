"""Tensor parallelism of transformers: heads, hidden units and vocabulary split (Megatron-LM, Shoeybi et al., 2019).

x --> qkv (columns) --> heads --> output (rows) --> all-reduce --> + --> up (columns) --> down (rows) --> all-reduce
"""

from partita import op_assign, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8

HEADS, HIDDEN = ("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0)
VOCABULARY = ("token_embedding.weight", 0)


def plan(graph, devices):
    for op in graph.forward:  # norms and sums have none of these dimensions: they are replicated
        parts = op_trans(op, split([HEADS, HIDDEN, VOCABULARY], len(devices)))
        for part, device in zip(parts, devices):
            op_assign(part, device)
