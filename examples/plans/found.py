"""A pipeline whose schedule is found: the shortest there is, in the memory that 1F1B takes, with split backwards.

Stages are as uneven as layers, embeddings and scores make them, so no schedule with a name fits; CP-SAT finds the best
order of the plan's own tasks at their predicted times, and proves how far from the shortest it can be.
"""

from partita import in_order, op_assign, op_trans, schedule, split, split_backward, stages, zero_bubble

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
MICROS, SECONDS = 4, 5.0


def plan(graph, devices, micros=MICROS, seconds=SECONDS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    split_backward(graph.forward)
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
    named = [zero_bubble(len(devices), micros)]
    found = schedule(parts, known=named, seconds=seconds)
    in_order(found.orders, parts)
    return found
