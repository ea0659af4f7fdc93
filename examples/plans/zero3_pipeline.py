"""All that saves memory at once: ZeRO-3 in a zero-bubble pipeline, with swap and recomputation.

Two stages, each on two replicas. All parameters are sharded over all devices and fetched for every use; weight
gradients are deferred. In turn the layers keep nothing and run again before backward, and wait on the host.

    samples 0 [0]  -->  [1]     layer 0 swapped, 1 recomputed | 2 swapped, 3 recomputed
    samples 1 [2]  -->  [3]
"""

from partita import (
    evenly,
    in_order,
    layers,
    op_assign,
    op_trans,
    place,
    recompute,
    split,
    split_backward,
    stages,
    swap,
    zero_bubble,
)

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
STAGES, MICROS = 2, 2


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        for samples in op_trans(op, split("batch", len(devices) // STAGES, "replica")):
            op_trans(samples, split("batch", micros, "micro"))
    split_backward(graph.forward)
    parts = stages(graph, STAGES)
    for stage, ops in enumerate(parts):
        for op in ops:
            op_assign(op, devices[op.coordinate("replica") * STAGES + stage])
    for number, layer in enumerate(layer for layer in layers(graph) if layer[0].layer):
        groups = {}
        for op in layer:
            groups.setdefault((op.device, op.coordinate("micro")), []).append(op)
        for ops in groups.values():
            (recompute if number % 2 else swap)(ops)
    for op in graph.optimizer:
        place(graph, op.of.name, evenly(op, len(devices)), devices)
    in_order(zero_bubble(STAGES, micros), parts)
