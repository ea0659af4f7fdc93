"""Activation checkpointing of every layer (Chen et al., 2016), with data parallelism."""

from partita import layers, op_assign, op_trans, recompute, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8


def plan(graph, devices):
    for layer in layers(graph):
        parts = [op_trans(op, split("batch", len(devices))) for op in layer]
        for device, ops in zip(devices, zip(*parts)):  # the operators of a layer on one device
            op_assign(ops, device)
            if ops[0].layer:
                recompute(ops)
