"""The dtype of every tensor of a space-time plan, in the plan's precision (docs/cost-model.md, Dtypes).

Messages and registers have the dtype of what they hold: gradients of parameters that of gradients, updated parameters
that of stored ones, and all else the compute dtype, fetched parameters too. Losses and statistics, what is computed
of them, and constants from which others are computed stay in at least float32, and so do tables with sparse gradients.
"""

from functools import lru_cache

from ...model.graph.dtypes import FLOATS, ITEMSIZE
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.precision import Precision
from ...model.operators.loss import LOSSES
from ..strategies.tensor_classes import classes
from .mask import GRADIENT, UPDATED, PTensor

PRECISE = (*LOSSES, "moments")
"""Operators whose results have at least float32, whatever they read."""
_NARROWING = ("batch_norm", "local_batch_norm")
"""Operators that read statistics and give the dtype of what they normalize."""


def dtype_of(pcg: PCG, tensor: PTensor, of: Precision) -> str:
    """The dtype of a tensor on its way between tasks."""
    node = pcg.nodes[tensor.node]
    if node.dtype not in FLOATS:
        return node.dtype
    if node.op == "parameter":
        if tensor.node in sparse_tables(pcg):  # read as it is stored, and so are its rows
            return of.master
        return {GRADIENT: of.gradients, UPDATED: of.parameters}.get(tensor.kind, of.compute)
    if of.narrow and (node.op == "buffer" or tensor.node in precise(pcg)):
        return "float32"
    return of.compute


def item_bytes(pcg: PCG, tensor: PTensor, of: Precision) -> int:
    """Bytes of an element of a tensor on its way between tasks."""
    return ITEMSIZE[dtype_of(pcg, tensor, of)]


def stored_dtype(pcg: PCG, node: int, of: Precision) -> str:
    """The dtype of a parameter, or of a buffer, as its devices keep it between steps."""
    found = pcg.nodes[node]
    if found.dtype not in FLOATS:
        return found.dtype
    if found.op == "buffer":
        return "float32" if of.narrow else of.compute
    return of.master if node in sparse_tables(pcg) else of.parameters


def constants(pcg: PCG) -> tuple[bool, ...]:
    """Which nodes depend on no input and no weight."""
    return classes(pcg).constant


@lru_cache(maxsize=8)
def precise(pcg: PCG) -> frozenset[int]:
    """The nodes with at least float32 where the plan computes in 16 bits."""
    constant, found = constants(pcg), set[int]()
    for index, node in enumerate(pcg.nodes):
        if node.op in SOURCES or node.dtype != "float32":
            continue
        if constant[index]:
            wide = any(constant[reader] for reader in pcg.consumers[index])
        else:
            wide = node.op in PRECISE or (
                node.op not in _NARROWING and any(i in found and not constant[i] for i in node.inputs)
            )
        if wide:
            found.add(index)
    return frozenset(found)
