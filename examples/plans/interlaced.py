"""Interlaced pipeline: embeddings on all devices, between the stages of a 1F1B pipeline (SuperScaler, Algorithm 2).

mBART's token table holds most of the weights but little work: as a stage it would fill the memory of an idle device.
Here it is sharded by vocabulary over all devices. Its look-ups (E) and the scores with the loss (S), and their backward
(e, s), are barriers between the devices' own stages; recomputation (R) overlaps with gradient transfers.

    0 | E0 F0 .. .. S0 s0 E1 F1 R0 B0 e0 S1 s1 R1 B1 e1
    1 | E0 .. F0 R0 S0 s0 E1 B0 F1 R1 e0 S1 s1 B1 .. e1
"""

from partita import in_order, interlaced, op_assign, op_trans, recompute, split, stages

MODEL, DEVICES, BATCH = "mbart-4.7b", 4, 8
MICROS = 4

VOCABULARY, TOKENS = ("token_embedding.weight", 0), ("labels", 1)


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    embeddings = [op for op in graph.forward if op.of.path == "token_embedding"]
    scores = [op for op in graph.forward if op.of.name in ("scores", "view", "view_2", "cross_entropy")]
    own = stages(graph, len(devices), [op for op in graph.forward if op not in (*embeddings, *scores)])
    for ops, device in zip(own, devices):
        op_assign(ops, device)
        for micro in range(micros):
            recompute(op for op in ops if op.coordinate("micro") == micro)
    order = interlaced(len(devices), micros, shared=(0, len(devices) + 1), recompute=True)
    in_order(order, [share(embeddings, devices), *own, share(scores, devices)])


def share(ops, devices):
    """Split operators over all devices, by vocabulary or else by tokens (the loss)."""
    parts = [op_trans(op, split([VOCABULARY, TOKENS], len(devices))) for op in ops]
    for device, shards in zip(devices, zip(*parts)):
        op_assign(shards, device)
    return [part for each in parts for part in each]
