"""Verification of a whole graph: its structure, every operator, buffers changed in place, joined and sparse tables."""

from collections.abc import Hashable
from math import prod

from ..errors import PartitaError
from ..operators.operator import operator
from .buffer_updates import check_updates
from .dtypes import ITEMSIZE
from .joined_tables import check_joined
from .pcg import PCG, SOURCES, Node, form_of, is_name
from .sparse_tables import check_sparse

_LARGEST = 2**48  # elements of a tensor, samples of a batch: products with costs stay within 64 bits


def verify(pcg: PCG) -> None:
    """Check that a graph is well formed: order, unique names, known operators, shapes that fit their notation.

    Raises PartitaError naming the node. Holds before and after every pass.
    """
    names: set[str] = set()
    fitting: set[Hashable] = set()
    for index, node in enumerate(pcg.nodes):
        where = f"node {index} ({node.op} {node.name!r})"
        if node.name in names:
            raise PartitaError(f"{where}: the name is taken")
        names.add(node.name)
        fault = _fault(pcg, index)
        if fault:
            raise PartitaError(f"{where}: {fault}")
        if node.op in SOURCES:
            continue
        inputs = tuple(pcg.nodes[i] for i in node.inputs)
        form = form_of(node, inputs)
        try:
            if form not in fitting:
                operator(node.op).check(node, inputs)
        except (ValueError, IndexError) as error:
            raise PartitaError(f"{where}: {error}") from error
        fitting.add(form)
    check_updates(pcg.nodes)
    check_sparse(pcg.nodes)
    check_joined(pcg)
    if pcg.batch < 1:
        raise PartitaError(f"batch {pcg.batch} is not positive")
    _check_alternatives(pcg)
    handed_on = (*pcg.sends[-1:], *pcg.of("to_all"))
    if not 0 <= pcg.loss < len(pcg.nodes) or (pcg.nodes[pcg.loss].shape != () and pcg.loss not in handed_on):
        raise PartitaError(f"the loss (node {pcg.loss}) is not a scalar of the graph")


def verify_file(pcg: PCG) -> None:
    """Check a graph from a file before `verify`: kinds of attributes, dtypes, sizes that fit 64 bits, aliases."""
    from .attributes import check_attributes  # knows operators that import torch

    for index, node in enumerate(pcg.nodes):
        where = f"node {index} ({node.op} {node.name!r})"
        try:
            check_attributes(node)
        except ValueError as error:
            raise PartitaError(f"{where}: {error}") from error
        if node.dtype not in ITEMSIZE:
            raise PartitaError(f"{where}: unknown dtype {node.dtype!r}")
        if node.numel > _LARGEST or pcg.batch > _LARGEST:
            raise PartitaError(f"{where}: shape {node.shape} is too large")
    known = {name for i in pcg.of("parameter") for name in pcg.nodes[i].originals}
    for alias, name in pcg.aliases:
        if not is_name(alias) or name not in known:
            raise PartitaError(f"graph file: {alias!r} is not an alias of a parameter")


def _fault(pcg: PCG, index: int) -> str:
    """What is wrong with a node by itself; empty if nothing is."""
    node = pcg.nodes[index]
    if not (is_name(node.name) and (not node.path or is_name(node.path))):
        return "names must be printable, without quotes, braces and backslashes"
    if not all(0 <= i < index for i in node.inputs):
        return f"inputs {node.inputs} are not earlier nodes"
    if not all(size > 0 for size in node.shape):
        return f"shape {node.shape} has an empty dim"
    factors = node.get("atoms")
    if factors is not None and tuple(prod(x or pcg.batch for x in dim) for dim in factors) != node.shape:
        return f"atoms {factors} do not multiply to its shape {node.shape}"
    if node.op in SOURCES and node.inputs:
        return "a source has no inputs"
    return ""


def _check_alternatives(pcg: PCG) -> None:
    """Raise PartitaError unless every alternative comes before what it replaces, unread and of the same kind."""

    def kind(node: Node) -> tuple[object, ...]:
        return node.shape, node.dtype, node.gradient

    for index, target in pcg.alternatives:
        node, replaced = pcg.nodes[index], pcg.nodes[target]
        if not index < target or pcg.consumers[index] or kind(node) != kind(replaced):
            raise PartitaError(f"node {index} ({node.op} {node.name!r}) is not an alternative to {replaced.name!r}")
