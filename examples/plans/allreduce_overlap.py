"""All-reduce of gradients overlapped with backward (Horovod, Sergeev and Del Balso, 2018).

The all-reduce of a layer's gradients starts after its backward. Its update runs after the backward of the next layer
below, which hides the all-reduce, and before the one below that.

    compute      B3 | B2 | U3 B1 | U2 B0 | U1 ...
    all-reduce        ---3 ---2    ---1    ---0
"""

from partita import layers, op_assign, op_order, op_trans, replicate, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    updates = {}
    for op in graph.optimizer:
        parts = op_trans(op, replicate(len(devices)))
        updates.setdefault(op.layer, []).extend(parts)
        for part, device in zip(parts, devices):
            op_assign(part, device)
    found = layers(graph)
    for below, next_below, layer in zip(found, found[1:], found[2:]):
        if layer[0].layer:
            update = updates[layer[0].layer]
            op_order([op.backward for op in next_below], update)
            op_order(update, [op.backward for op in below])
