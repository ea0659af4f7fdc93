"""Flexible tensor parallelism: each operator has its own dimension and devices (Tofu, FlexFlow, GSPMD).

Attention is split by heads on all devices; perceptrons alternate between tokens on the first half and samples on the
second; the embedding is split by channels on one half, the scores by vocabulary on all; norms and sums by samples. The
embedding table is tied to the scores: it is stored by vocabulary, and its channels are fetched.
"""

from partita import op_assign, op_trans, place, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8

HEADS, TOKENS = ("layers.*.attention.qkv.weight", 0, 1), ("ids", 1)
CHANNELS, VOCABULARY = ("token_embedding.weight", 1), ("token_embedding.weight", 0)


def plan(graph, devices):
    first, second = devices[: len(devices) // 2], devices[len(devices) // 2 :]
    perceptron = ("up", "gelu", "down")
    for op in graph.forward:
        name = op.of.name.rpartition(".")[2]
        if op.of.path.endswith("attention"):
            dims, group = [HEADS, "batch"], devices
        elif op.layer and name in perceptron:
            even = int(op.layer.split(".")[1]) % 2 == 0
            dims, group = (TOKENS, first) if even else ("batch", second)
        elif op.of.op == "embedding":
            dims, group = CHANNELS, first
        elif name == "scores":
            dims, group = VOCABULARY, devices
        else:
            dims, group = "batch", devices
        for part, device in zip(op_trans(op, split(dims, len(group))), group):
            op_assign(part, device)
    place(graph, "token_embedding.weight", split(VOCABULARY, len(devices)), devices)
