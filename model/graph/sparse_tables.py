"""Tables whose gradients are sparse (`nn.Embedding(..., sparse=True)`): of the rows looked up, not of the whole table.

Such a table is stored as its look-ups ask for it: the backward of a conversion would make the gradient dense. Nor is it
ever at B, since sparse gradients are not added up over ranks. Only SGD can apply them: an optimizer with states moves
every row in every step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from ..errors import PartitaError
from ..optimizers import optimizer_states
from .pcg import PCG, Node


@lru_cache(maxsize=64)
def sparse_tables(pcg: PCG) -> Mapping[int, int]:
    """The parameters with sparse gradients, and how many rows of each a micro-batch looks up for training."""
    found: dict[int, int] = {}
    for node in pcg.nodes:
        if node.get("sparse"):
            ids = prod(pcg.nodes[node.inputs[1]].shape)
            found[node.inputs[0]] = found.get(node.inputs[0], 0) + node.gradient * ids
    return found


def settled(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with `sparse` only where it can be: a trained table all of whose readers are sparse look-ups."""
    dense = _dense(nodes)
    return [
        replace(node, attributes=tuple(a for a in node.attributes if a[0] != "sparse"))
        if node.get("sparse") and node.inputs[0] in dense
        else node
        for node in nodes
    ]


def check_sparse(nodes: Sequence[Node]) -> None:
    """Raise PartitaError unless every sparse look-up is of a table that can have sparse gradients."""
    dense = _dense(nodes)
    wrong = next((n for n in nodes if n.get("sparse") and n.inputs[0] in dense), None)
    if wrong is not None:
        raise PartitaError(
            f"{wrong.name!r} ({wrong.op}) is sparse, but {nodes[wrong.inputs[0]].name!r} is no trained parameter that "
            "only sparse look-ups read"
        )


def check_optimizer(pcg: PCG, optimizer: str) -> None:
    """Raise PartitaError where an optimizer cannot apply the graph's sparse gradients."""
    tables = sparse_tables(pcg)
    if tables and optimizer_states(optimizer):
        name = next(iter(pcg.nodes[min(tables)].originals))
        raise PartitaError(
            f"the gradient of {name!r} is sparse, which {optimizer} cannot apply: take the optimizer sgd, or make the "
            "embedding with sparse=False"
        )


def _dense(nodes: Sequence[Node]) -> set[int]:
    """What cannot have a sparse gradient: all but trained parameters, and what others than sparse look-ups read."""
    found = {i for i, node in enumerate(nodes) if node.op != "parameter" or not node.gradient}
    for node in nodes:
        found.update(node.inputs[1:] if node.get("sparse") else node.inputs)
    return found
