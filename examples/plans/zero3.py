"""ZeRO-3: sharded parameters as well (Rajbhandari et al., SC'20).

Between steps every device keeps one shard of each parameter. Operators gather parameters before forward, release them
after it, and gather them again for backward; gradients are reduce-scattered to the shards, which are updated in place.
"""

from partita import evenly, op_assign, op_trans, place, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    for op in graph.optimizer:
        place(graph, op.of.name, evenly(op, len(devices)), devices)
