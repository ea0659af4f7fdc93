"""A pipeline with an optimal schedule found by a solver, for stages that no named schedule fits.

mBART's encoder, decoder and scores make stages of unequal length. CP-SAT searches for the best order of the plan's
tasks at their predicted times, starting from the zero-bubble schedule, and proves a lower bound.
"""

from partita import in_order, op_assign, op_trans, schedule, split, split_backward, stages, zero_bubble

MODEL, DEVICES, BATCH = "mbart-4.7b", 4, 8
MICROS, SECONDS = 4, 20.0


def plan(graph, devices, micros=MICROS, seconds=SECONDS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    split_backward(graph.forward)
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
    found = schedule(parts, known=[zero_bubble(len(devices), micros)], seconds=seconds)
    in_order(found.orders, parts)
    return found
