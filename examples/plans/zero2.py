"""ZeRO-2: sharded gradients as well (Rajbhandari et al., SC'20).

The gradients of a layer are reduce-scattered and applied during backward: its update runs before the backward of the
second layer below, so no device holds the gradients of more than two layers.

    backward   layer 3 | layer 2 | layer 1 | layer 0
    update               layer 3 | layer 2 | layer 1 | layer 0
"""

from partita import evenly, layers, op_assign, op_order, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    updates = {}
    for op in graph.optimizer:
        parts = op_trans(op, evenly(op, len(devices)))
        updates.setdefault(op.layer, []).extend(parts)
        for part, device in zip(parts, devices):
            op_assign(part, device)
    found = layers(graph)
    for below, _, layer in zip(found, found[1:], found[2:]):
        if layer[0].layer:  # parameters outside of layers are used at both ends of the model
            op_order(updates[layer[0].layer], [op.backward for op in below])
