"""ZeRO-3: parameters are sharded as well (Rajbhandari et al., SC'20).

Between steps every device keeps a part of each parameter. What an operator needs of the others is gathered before its
forward, given back after it, and gathered again for its backward; gradients are reduce-scattered to where the parts
are, which are updated in place.
"""

from partita import evenly, op_assign, op_trans, place, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    for op in graph.optimizer:
        place(graph, op.of.name, evenly(op, len(devices)), devices)
