"""Names of mesh axes, by what they mostly split: data, tensor, sequence, space, branches, shard."""

from collections.abc import Sequence
from typing import TypeAlias

from ...model.graph.atoms import atoms
from ...model.graph.layout import atom_of, is_split
from ...model.graph.pcg import PCG, SOURCES
from ...model.operators.convolution import CONVOLUTIONS
from ...model.operators.operator import operator
from .choice import Choice

Chosen: TypeAlias = tuple[PCG, tuple[Choice, ...]]
"""A graph with the choices of its nodes."""

USES = ("data", "tensor", "sequence", "space", "branches")


def axis_names(axes: int, stages: Sequence[Chosen]) -> tuple[str, ...]:
    """The name of each axis, by the dims that it splits most of the work, in FLOPs, by: samples, weights, or others.

    An axis that stores most weights in parts, and splits no work or samples that another axis splits too, is `shard`
    (fully sharded data parallelism). Any other axis without work is named by its number. Repeated names get a number.
    """
    work = [dict.fromkeys(USES, 0.0) for _ in range(axes)]
    for graph, choices in stages:
        _add_work(graph, choices, work)
    uses = [max(USES, key=shares.__getitem__) if any(shares.values()) else "" for shares in work]
    stored = [_stores_parts(stages, axis) for axis in range(axes)]
    if uses.count("data") > 1 or "" in uses:
        data = [a for a, use in enumerate(uses) if use == "data"]
        first = next((a for a in data if not stored[a]), data[0] if data else None)
        uses = ["shard" if stored[a] and a != first and use in ("data", "") else use for a, use in enumerate(uses)]
    result: list[str] = []
    for axis, use in enumerate(uses):
        name = use or f"axis{axis}"
        result.append(name if name not in result else f"{name}{sum(r.startswith(name) for r in result) + 1}")
    return tuple(result)


def _add_work(graph: PCG, choices: Sequence[Choice], work: Sequence[dict[str, float]]) -> None:
    """Add to `work` the FLOPs that each axis splits, by use."""
    for index, (node, choice) in enumerate(zip(graph.nodes, choices, strict=True)):
        if node.op in SOURCES or operator(node.op).creates:
            continue
        amount = node.numel * 1e-6
        if operator(node.op).matmul:
            amount += operator(node.op).work(node, tuple(graph.nodes[i] for i in node.inputs))
        for axis, shares in enumerate(work):
            if axis in choice.alone:
                shares["branches"] += amount
            use = _use(graph, index, choice, axis)
            if use is not None:
                shares[use] += amount


def _use(graph: PCG, index: int, choice: Choice, axis: int) -> str | None:
    """The use of an axis in a node; None if the node is whole on it."""
    node, known = graph.nodes[index], atoms(graph)
    letters = [(i, x[axis]) for i, x in zip(node.inputs, choice.inputs, strict=True)]
    split = [(i, x) for i, x in (*letters, (index, choice.output[axis])) if is_split(x)]
    if not split:
        return None
    if any(atom_of(x) in known[i].batch for i, x in split):
        return "data"
    if node.op in CONVOLUTIONS and any(known[i].dim_of(atom_of(x))[0] > 1 for i, x in split[:1]):
        return "space"
    if any(graph.nodes[i].op == "parameter" for i, _ in split) or not operator(node.op).matmul:
        return "tensor"
    return "sequence"


def _stores_parts(stages: Sequence[Chosen], axis: int) -> bool:
    """True if most of the weights, by elements, are stored in parts over an axis."""
    weights = [(g.nodes[i].numel, choices[i].output[axis]) for g, choices in stages for i in g.of("parameter")]
    return 2 * sum(n for n, letter in weights if is_split(letter)) > sum(n for n, _ in weights)
