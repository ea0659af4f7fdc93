"""Sequence parallelism of all operators (Li et al., Sequence parallelism: making 4D parallelism possible, 2021).

Every device holds some tokens of each sample. Only attention mixes tokens: its queries stay split; its keys and values
are gathered from all devices (in the paper around a ring).
"""

from partita import op_assign, op_trans, split

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8

TOKENS = ("ids", 1)


def plan(graph, devices):
    for op in graph.forward:
        for part, device in zip(op_trans(op, split(TOKENS, len(devices))), devices):
            op_assign(part, device)
