"""LLaMA in a pipeline whose stages have different numbers of devices: 1, 4 and 2 (as Alpa's stages, OSDI'22).

The first stage is one device, the second computes two samples at a time on two devices each, the third splits heads
and hidden units over two. Tensors between stages go to the devices that lack their parts.

    [0]  -->  [1 2]  -->  [5 6]
              [3 4]
"""

from partita import in_order, one_f_one_b, op_assign, op_trans, split, stages

MODEL, DEVICES, BATCH = "llama-7b", 7, 8
WIDTHS, TENSOR, MICROS = (1, 4, 2), 2, 4

HEADS, HIDDEN = ("layers.*.attention.query.weight", 0, 0), ("layers.*.up.weight", 0)


def plan(graph, devices, micros=MICROS):
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    parts, first = [], 0
    for ops, width in zip(stages(graph, len(WIDTHS)), WIDTHS):
        parts.append([part for op in ops for part in spread(op, devices[first : first + width])])
        first += width
    in_order(one_f_one_b(len(WIDTHS), micros), parts)


def spread(op, devices):
    """Split an operator of a stage by samples over pairs of devices, and by heads or hidden units within a pair."""
    tensor = min(TENSOR, len(devices))
    samples = op_trans(op, split("batch", len(devices) // tensor, "samples"))
    parts = [part for own in samples for part in op_trans(own, split([HEADS, HIDDEN], tensor, "tensor"))]
    for part, device in zip(parts, devices):
        op_assign(part, device)
    return parts
