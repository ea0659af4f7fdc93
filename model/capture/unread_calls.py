"""Calls whose results nothing reads, as of an output that the loss does not need: left out before translation."""

import operator as python
import re

import torch
from torch import fx

SILENT = re.compile(r"_assert|sym_|_guard|mark_")
"""Operators of assertions and of numbers that only these look at; programs do without them."""


def drop_unread_calls(graph: fx.Graph) -> None:
    """Erase what neither the outputs nor a written tensor needs. Random calls stay: their call sites are counted."""
    for node in reversed(graph.nodes):
        if not node.users and node.op == "call_function" and not _acts(node):
            graph.erase_node(node)


def _acts(node: fx.Node) -> bool:
    """True for a call that does more than to give its results."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not python.getitem and getattr(target, "__module__", "") != "_operator"
    if SILENT.match(target._schema.name.rpartition("::")[2]):
        return False
    random = torch.Tag.nondeterministic_seeded in target.tags
    return random or target._schema.is_mutable or target.namespace == "partita"
