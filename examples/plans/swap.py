"""Swap: saved activations of the first half of the layers go to the host (SwapAdvisor, Huang et al., ASPLOS'20).

They wait longest for their backward. Transfers overlap with computation; the first layers are reloaded last.
"""

from partita import layers, op_assign, op_trans, split, swap

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    names = [layer[0].layer for layer in layers(graph) if layer[0].layer]
    for layer in layers(graph):
        parts = [op_trans(op, split("batch", len(devices))) for op in layer]
        for device, ops in zip(devices, zip(*parts)):  # the operators of a layer on one device
            op_assign(ops, device)
            if ops[0].layer in names[: len(names) // 2]:
                swap(ops)
