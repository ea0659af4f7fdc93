"""Calls whose results nothing reads, as of an output that the loss does not need: left out before translation."""

import operator as python
import re

import torch
from torch import fx

from .memory import destination, storage, writes

SILENT = re.compile(r"_assert|sym_|_guard|mark_")
"""Operators of assertions and of numbers that only these look at; programs do without them."""


def drop_unread_calls(graph: fx.Graph) -> None:
    """Erase what neither the outputs nor a written tensor needs. Random calls stay: their call sites are counted.

    But not calls that only write to memory of the graph's own which no call after them reads, such as the initial
    values of parameters that forward makes and replaces; the reference of `verify` does not count them either. A call
    reads the memory of an operand unless its result lies there too, as a view does.
    """
    _list_readers(graph)
    given = {storage(node) for node in graph.nodes if node.op in ("placeholder", "get_attr")} | {None}
    read: set[int | None] = set()
    for node in reversed(graph.nodes):
        own = storage(node)
        read |= {storage(operand) for operand in node.all_input_nodes} - {own}
        unread = own not in read | given and _only_writes(node)
        if not node.users and node.op == "call_function" and (unread or not _acts(node)):
            graph.erase_node(node)


def _list_readers(graph: fx.Graph) -> None:
    """Make every node a user of what it reads, where torch.export forgot it.

    It splits a graph at `no_grad` and `enable_grad`, and forgets who reads the only result of a piece within the piece.
    """
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            operand.users.setdefault(node)


def _only_writes(node: fx.Node) -> bool:
    """True for a call of ATen that changes one tensor and nothing else."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or not writes(node):
        return False
    changed = [item for item in target._schema.arguments if item.alias_info and item.alias_info.is_write]
    return len(changed) == 1 and isinstance(destination(node), fx.Node)


def _acts(node: fx.Node) -> bool:
    """True for a call that does more than to give its results."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not python.getitem and getattr(target, "__module__", "") != "_operator"
    if SILENT.match(target._schema.name.rpartition("::")[2]):
        return False
    random = torch.Tag.nondeterministic_seeded in target.tags
    return random or target._schema.is_mutable or target.namespace == "partita"
