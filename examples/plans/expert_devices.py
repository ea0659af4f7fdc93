"""Mixtral's experts on devices of their own, apart from attention (as MegaScale-Infer does for inference, 2025).

Two devices compute everything else by samples. Each of four others has two of the eight experts of every layer: it
gets the tokens routed to them from both, and returns what they give.

    0 1       attention, router, dispatch |                  | combine | ...
    2 3 4 5                               | two experts each |         | ...
"""

from partita import op_assign, op_trans, split

MODEL, DEVICES, BATCH = "mixtral-8x7b", 6, 8

EXPERTS = ("layers.*.mixture.gate.weight", 0)
INSIDE = ("mixture.gate.einsum", "mixture.silu", "mixture.up.einsum", "mixture.mul", "mixture.down.einsum")


def plan(graph, devices):
    samples, experts = devices[:2], devices[2:]
    for op in graph.forward:
        dim, group = (EXPERTS, experts) if op.of.name.endswith(INSIDE) else ("batch", samples)
        for part, device in zip(op_trans(op, split(dim, len(group))), group):
            op_assign(part, device)
