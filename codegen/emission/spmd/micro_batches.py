"""Micro-batches as one more axis: which values each of them would count again, and whether the batch can be cut.

On this axis tensors with the batch atom are split, all others whole, and what is summed over the batch is an addend.
The same rows that say what can be split over ranks say what can be split over micro-batches.
"""

from collections.abc import Sequence
from functools import lru_cache

from ....formulation.strategies.row import Row
from ....formulation.strategies.strategy import rows
from ....model.errors import PartitaError
from ....model.graph.atoms import atoms
from ....model.graph.layout import B, P, R, S, atom_of, is_split
from ....model.graph.origin import origin
from ....model.graph.pcg import PCG, SOURCES, Node
from ....model.operators.operator import operator
from .repeated_blocks import Divided


def divided(stages: Sequence[PCG], micro_batches: int) -> list[tuple[Divided, bool]]:
    """For every stage the (node, operand) pairs to divide by the number of micro-batches, and whether the loss is.

    Raises PartitaError where an operator needs the whole batch at once.
    """
    result, letters = [], tuple[int, ...]()  # of what a stage sends the next one
    for graph in stages:
        # The same for every number of micro-batches above 1.
        found, loss, letters = (frozenset(), False, ()) if micro_batches == 1 else _divided(origin(graph), letters)
        result.append((found, loss))
    return result


@lru_cache(maxsize=64)
def _divided(graph: PCG, received: tuple[int, ...]) -> tuple[Divided, bool, tuple[int, ...]]:
    """Also the letters of sent tensors; `received` are those of received ones (any split is that of the batch)."""
    known = atoms(graph)
    letters: list[int] = []
    found: set[tuple[int, int]] = set()
    handed = iter(received)
    for index, node in enumerate(graph.nodes):
        batch = sorted(known[index].batch)
        if node.op == "receive":
            letter = next(handed)
            letters.append(S(batch[0]) if is_split(letter) else letter)
            continue
        if node.op == "send":
            letters.append(letters[node.inputs[0]])
            continue
        if node.op in SOURCES or operator(node.op).creates:
            if batch and node.op == "arange":
                raise PartitaError(f"{node.name!r} numbers the samples of a batch: it cannot be cut into micro-batches")
            letters.append(S(batch[0]) if batch else R)
            continue
        given = [letters[i] for i in node.inputs]
        if node.op == "moments" and (given[0] == R or is_split(given[0])):
            letters.append(_moments(node))
            continue
        derived = (row for row in rows(graph, index) if not row.special)  # micro-batches do not communicate
        fitting = [row for row in derived if all(map(_fits, given, row.inputs))]
        if not fitting:
            raise PartitaError(
                f"{node.name!r} ({node.op}) needs the whole batch at once: it cannot be cut into micro-batches"
            )
        # A tensor with samples is cut, even if none of its operands has any: an expansion to the batch.
        row = min(fitting, key=lambda row: (is_split(row.output) != bool(batch), _divisions(given, row)))
        found |= {
            (index, k) for k, (have, want) in enumerate(zip(given, row.inputs, strict=True)) if _divides(have, want)
        }
        letters.append(R if row.output == B else row.output)
        if is_split(row.output) and atom_of(row.output) not in known[index].batch:
            raise PartitaError(f"{node.name!r} ({node.op}) mixes the batch with other dims: it cannot be cut")
    return frozenset(found), letters[graph.loss] == R, tuple(letters[i] for i in graph.of("send"))


def _moments(node: Node) -> int:
    """The letter of sums over a micro-batch, if the statistics are its own; else they need the whole batch."""
    if node["statistics"] != "micro-batch":
        raise PartitaError(
            f"{node.path or node.name!r} normalizes over the whole batch: it cannot be cut into micro-batches, unless "
            "their own statistics suffice (--statistics micro-batch, or local); or plan one micro-batch"
        )
    return R


def _fits(have: int, want: int) -> bool:
    """Whole values can be read whole, or as addends (divided); addends and parts as they are."""
    return have == want or (have == R and want in (R, B, P))


def _divides(have: int, want: int) -> bool:
    return have == R and want == P


def _divisions(given: list[int], row: Row) -> int:
    return sum(map(_divides, given, row.inputs))
