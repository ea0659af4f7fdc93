"""mBART with its tables on devices of their own: look-ups and scores on four, the layers on two in a 1F1B pipeline.

The table of tokens is most of the weights and little of the work. By vocabulary it lies on devices 0 to 3, which look
up tokens (E) and score them (S) for the stages of the layers on devices 4 and 5.

    0 to 3 | E0 .. .. S0 s0 E1 .. .. e0 S1 s1 .. e1
    4      | .. F0 .. .. .. .. F1 B0 .. .. .. B1
    5      | .. .. F0 .. .. B0 .. F1 .. .. B1
"""

from partita import in_order, interlaced, op_assign, op_trans, split, stages

MODEL, DEVICES, BATCH = "mbart-4.7b", 6, 8
MICROS = 2

VOCABULARY, TOKENS = ("token_embedding.weight", 0), ("labels", 1)


def plan(graph, devices, micros=MICROS):
    tables, pipeline = devices[:-2], devices[-2:]
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    embeddings = [op for op in graph.forward if op.of.path == "token_embedding"]
    scores = [op for op in graph.forward if op.of.name in ("scores", "view", "view_2", "cross_entropy")]
    own = stages(graph, len(pipeline), [op for op in graph.forward if op not in (*embeddings, *scores)])
    for ops, device in zip(own, pipeline):
        op_assign(ops, device)
    order = interlaced(len(pipeline), micros, shared=(0, len(pipeline) + 1))
    in_order(order, [share(embeddings, tables), *own, share(scores, tables)])


def share(ops, devices):
    """Split operators over devices, by vocabulary or else by tokens (the loss)."""
    parts = [op_trans(op, split([VOCABULARY, TOKENS], len(devices))) for op in ops]
    for device, shards in zip(devices, zip(*parts)):
        op_assign(shards, device)
    return [part for each in parts for part in each]
