"""Dynamic Axial Parallelism with data parallelism, for AlphaFold 2 (FastFold, Cheng et al., 2022).

Alignment [sequences, residues] and pairs [residues, residues] are split along the axis that an operator does not mix;
weights are replicated. An all-to-all changes the axis:

    rows (by sequences) | columns, outer product (by residues) | pairs that start at i (by i) | that end at j (by j)
"""

from partita import op_assign, op_trans, split

MODEL, DEVICES, BATCH = "alphafold2-87m", 4, 8
AXIAL = 2  # devices that share a sample

SEQUENCES = [("alignment", 1), ("cat*", 1), ("masked", 1)]  # of the embedding, and of the recycled input
RESIDUES = [("alignment", 2)]  # of the two axes of pairs, the first


def plan(graph, devices):
    for op in graph.forward:
        columns = ".columns" in op.of.path or ".outer" in op.of.path
        dims = RESIDUES + SEQUENCES if columns else SEQUENCES + RESIDUES
        parts = [
            part
            for samples in op_trans(op, split("batch", len(devices) // AXIAL))
            for part in op_trans(samples, split(dims, AXIAL, "axis"))
        ]
        for part, device in zip(parts, devices):
            op_assign(part, device)
