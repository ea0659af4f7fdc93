"""Tables with sparse gradients (`nn.Embedding(..., sparse=True)`): for the rows looked up, not for the whole table.

Such a table is stored in the layout that its look-ups need, since the backward of a conversion would make the gradient
dense. It is never in layout B, since sparse gradients are not reduced over ranks. Only SGD can apply them: an optimizer
with states updates every row in every step.
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
    """Parameter with a sparse gradient -> rows of it that a micro-batch looks up for training."""
    found: dict[int, int] = {}
    for node in pcg.nodes:
        if node.get("sparse"):
            ids = prod(pcg.nodes[node.inputs[1]].shape)
            found[node.inputs[0]] = found.get(node.inputs[0], 0) + node.gradient * ids
    return found


def settled(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, `sparse` only where all readers of a trained table are sparse look-ups."""
    dense = _dense(nodes)
    return [
        replace(node, attributes=tuple(a for a in node.attributes if a[0] != "sparse"))
        if node.get("sparse") and node.inputs[0] in dense
        else node
        for node in nodes
    ]


def check_sparse(nodes: Sequence[Node]) -> None:
    """Raise PartitaError unless every table of a sparse look-up can have a sparse gradient."""
    dense = _dense(nodes)
    wrong = next((n for n in nodes if n.get("sparse") and n.inputs[0] in dense), None)
    if wrong is not None:
        raise PartitaError(
            f"{wrong.name!r} ({wrong.op}) is sparse, but {nodes[wrong.inputs[0]].name!r} is not a trained parameter "
            "read by sparse look-ups alone"
        )


def check_optimizer(pcg: PCG, optimizer: str) -> None:
    """Raise PartitaError if an optimizer is unknown, or cannot apply the graph's sparse gradients."""
    tables = sparse_tables(pcg)
    if optimizer_states(optimizer) and tables:
        name = next(iter(pcg.nodes[min(tables)].originals))
        raise PartitaError(
            f"the gradient of {name!r} is sparse, which {optimizer} cannot apply: use the optimizer sgd, or create the "
            "embedding with sparse=False"
        )


def _dense(nodes: Sequence[Node]) -> set[int]:
    """Nodes that cannot have a sparse gradient: all but trained parameters read by sparse look-ups alone."""
    found = {i for i, node in enumerate(nodes) if node.op != "parameter" or not node.gradient}
    for node in nodes:
        found.update(node.inputs[1:] if node.get("sparse") else node.inputs)
    return found
