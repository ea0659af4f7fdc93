"""Swap: what backward needs of the first half of the layers waits on the host (SwapAdvisor, Huang et al., ASPLOS'20).

It is the half that waits longest. Transfers run beside the computation; the first layers come back last.
"""

from partita import layers, op_assign, op_trans, split, swap

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    found = [layer for layer in layers(graph) if layer[0].layer]
    early = [layer[0].layer for layer in found[: len(found) // 2]]
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    for device in devices:
        for layer in early:
            swap(op for op in graph.forward if op.layer == layer and op.device == device)
