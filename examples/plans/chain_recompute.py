"""Activation checkpointing in segments of about sqrt(L) layers (Chen et al., 2016; Kirisame et al., ICLR'21).

Only the inputs of each segment are saved; its activations are recomputed before its backward.

    F0 F1 | F2 F3 ... R2 R3 B3 B2 | R0 R1 B1 B0
"""

from math import isqrt

from partita import layers, op_assign, op_trans, recompute, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    chain = [layer for layer in layers(graph) if layer[0].layer]
    length = isqrt(len(chain))
    segment = {op.node: at // length for at, layer in enumerate(chain) for op in layer}
    groups = {}
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
            if op.node in segment:
                groups.setdefault((segment[op.node], device), []).append(part)
    for ops in groups.values():
        recompute(ops)
