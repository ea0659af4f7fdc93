"""Whether the guess is right that dim 0 of the inputs counts samples: the module at another batch tells.

An input may have as many rows as there are samples by accident, such as a mask of 12 x 12 beside 12 samples. With
another number of samples the module then fails, and does not where that input keeps its size. A module that fails
either way is made for one batch.

Where the first dim is positions and the second samples, as torch's recurrent and attention modules have it by default,
the module runs with any number of either. Samples are separate until the loss adds them up. Where this does not hold
for the first dim, and does for the second, the first dim is not that of samples.
"""

from collections.abc import Callable, Iterator

from ..errors import PartitaError
from ..graph.atoms import batch_dims, semantics
from ..graph.notation import WHOLE, Access, accesses
from ..graph.origin import Samples
from ..graph.pcg import PCG, SOURCES, Node
from ..operators.operator import operator
from .inputs import Inputs

Runs = Callable[[Inputs, int], bool]
"""Whether the module runs with this many samples in these inputs."""


def refuse_failed_guess(inputs: Inputs, batch: int, runs: Runs) -> None:
    """After a capture that failed: raise PartitaError if guessed batch dims are why."""
    if inputs.guessed and batch != inputs.batch and runs(inputs, inputs.batch):
        _refuse_rows(inputs, batch, runs)


def refuse_wrong_guess(inputs: Inputs, graph: PCG, runs: Runs, captured: Callable[[Inputs], PCG]) -> None:
    """After a capture at `graph.batch`: raise PartitaError if guessed batch dims are wrong.

    `captured` makes the graph of the same inputs with other batch dims.
    """
    if not inputs.guessed:
        return
    other = graph.batch + 1
    if graph.batch == inputs.batch and not runs(inputs, other) and runs(inputs, inputs.batch):
        _refuse_rows(inputs, other, runs)
    if len(inputs.guessed) < len(inputs.tensors) or graph.batch < 2:
        return
    second = _second_dims(inputs)
    if second is None or (problem := _joined(graph)) is None or not runs(second, second.batch + 1):
        return
    try:
        swapped = captured(second)
    except PartitaError:
        return
    if _joined(swapped) is None:
        raise PartitaError(
            f"dim 0 of {_names(inputs)} would count samples, but {problem}, and samples in dim 1 would be separate "
            "until the loss: give batch_dim=1 (--batch-dim 1) if dim 1 counts samples, else batch_dim=0"
        )


def _refuse_rows(inputs: Inputs, batch: int, runs: Runs) -> None:
    """Raise PartitaError if the module runs once some guessed inputs have no samples."""
    for numbers in _suspects(inputs):
        if runs(inputs.with_dims(dict.fromkeys(numbers)), batch):
            names = ", ".join(inputs.names[i] for i in numbers)
            given = ", ".join(f"{inputs.names[i]!r}: None" for i in numbers)
            typed = ",".join(f"{inputs.names[i]}=none" for i in numbers)
            raise PartitaError(
                f"dim 0 of {names} is {inputs.batch}, like the number of samples, but it counts none: with {batch} "
                f"samples the module runs only if {names} stays as it is. Give batch_dim={{{given}}} "
                f"(--batch-dim {typed})"
            )


def _suspects(inputs: Inputs) -> Iterator[tuple[int, ...]]:
    """Guessed inputs that may have no samples: each one alone, then all but the first."""
    counted = [i for i, dim in enumerate(inputs.batch_dims) if dim is not None]
    guessed = [i for i in inputs.guessed if i in counted]
    if len(counted) < 2:
        return
    yield from ((i,) for i in reversed(guessed))
    if len(guessed) > 2:
        yield tuple(guessed[1:])


def _second_dims(inputs: Inputs) -> Inputs | None:
    """The same inputs with samples in dim 1, if they agree on how many; in dim 0 of inputs with one dim, if it fits."""
    counts = {t.shape[1] for t in inputs.tensors if t.dim() > 1}
    if len(counts) != 1:
        return None
    flat = {i: 0 if t.shape[0] in counts else None for i, t in enumerate(inputs.tensors) if t.dim() == 1}
    return inputs.with_dims({i: 1 for i, t in enumerate(inputs.tensors) if t.dim() > 1} | flat)


def _joined(graph: PCG) -> str | None:
    """Where samples do not stay separate until the loss; None if they do."""
    samples = batch_dims(graph)
    for index, node in enumerate(graph.nodes):
        if samples[index] and calculates(node) and reads_several(graph, index, samples):
            return f"{node.op} {node.name!r} combines them"
    return None if _added_up(graph, samples) else "the loss is not a sum over them"


def calculates(node: Node) -> bool:
    """True for an operator that is no source, no view, and does not just make a tensor."""
    return node.op not in SOURCES and not operator(node.op).creates and not operator(node.op).view


def reads_several(graph: PCG, index: int, samples: Samples) -> bool:
    """True if an element of a node's tensor depends on several samples."""
    node = graph.nodes[index]
    numbers = dict(zip(operator(node.op).named(node), node.inputs, strict=True))
    return any(
        {WHOLE, *term.sums} & set(access.indices[d].split())
        for term in semantics(graph, index).terms
        for access in accesses(term)
        for d in samples[numbers[access.operand]]
    )


def _added_up(graph: PCG, samples: Samples) -> bool:
    """True if the loss is a sum over samples, of what a function reads of them."""
    waiting, seen = [graph.loss], {graph.loss}
    while waiting:
        index = waiting.pop()
        node = graph.nodes[index]
        if samples[index] or any(samples[i] for i in node.inputs):
            return True
        terms = semantics(graph, index).terms if calculates(node) else ()
        if all(isinstance(factor, Access) for term in terms for factor in term.factors):  # only sums and products
            waiting += {*node.inputs} - seen
            seen.update(node.inputs)
    return False


def _names(inputs: Inputs) -> str:
    return ", ".join(name for name, dim in zip(inputs.names, inputs.batch_dims, strict=True) if dim == 0)
