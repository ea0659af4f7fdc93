"""ZeRO-2: gradients are sharded too (Rajbhandari et al., SC'20).

The gradients of a layer are reduce-scattered and used while backward goes on: its update comes before the backward of
the second layer below, so that no device ever has more than those of two layers.

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
        if layer[0].layer:  # what lies outside of layers is used at both ends of the model
            op_order(updates[layer[0].layer], [op.backward for op in below])
