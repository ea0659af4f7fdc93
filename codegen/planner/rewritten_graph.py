"""The graph of a plan where nodes have alternatives: the chosen ones, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ...formulation.encoding.encoding import Encoding
from ...model.graph.atoms import Atoms, atoms
from ...model.graph.batch import with_batch
from ...model.graph.layout import Layout, S, atom_of, is_split
from ...model.graph.pcg import PCG
from ..plan.choice import Choice
from .decode import choices


def decided(found: Encoding, assignment: Sequence[int]) -> tuple[PCG, tuple[Choice, ...]]:
    """The graph with the alternatives that an assignment chooses, and the choice of each of its nodes."""
    made = choices(found, assignment)
    if not found.pcg.alternatives:
        return found.pcg, made
    graph, number = taken_graph(found.pcg, _chosen(found, assignment))
    every, known = atoms(found.pcg), atoms(graph)
    result: list[Choice | None] = [None] * len(graph.nodes)
    for old, new in number.items():
        inputs = zip(made[old].inputs, found.pcg.nodes[old].inputs, graph.nodes[new].inputs, strict=False)
        shared = made[old].shared
        result[new] = replace(
            made[old],
            inputs=tuple(_renumbered(layout, every[before], known[after]) for layout, before, after in inputs),
            output=_renumbered(made[old].output, every[old], known[new]),
            shared=None if shared is None else _renumbered(shared, every[old], known[new]),
        )
    assert all(choice is not None for choice in result)
    return graph, tuple(choice for choice in result if choice is not None)


def _chosen(found: Encoding, assignment: Sequence[int]) -> Mapping[int, int]:
    """For every node that has alternatives, and is needed, the chosen one."""
    chosen = {node: found.computed_by(assignment, node) for node in found.pcg.members}
    return {node: alternative for node, alternative in chosen.items() if alternative is not None}


def changes(found: Encoding, assignment: Sequence[int]) -> list[dict[str, str]]:
    """The tensors whose operator differs from the captured graph: name, operator, the operator before.

    `by` names the alternative in the graph with all of them.
    """
    nodes = found.pcg.nodes
    return [
        {
            "name": nodes[node].name,
            "operator": nodes[alternative].op,
            "was": nodes[node].op,
            "by": nodes[alternative].name,
        }
        for node, alternative in _chosen(found, assignment).items()
        if alternative != node
    ]


def taken_graph(pcg: PCG, chosen: Mapping[int, int]) -> tuple[PCG, Mapping[int, int]]:
    """The graph with the chosen alternatives alone, and the new number of every node of `pcg` that it has.

    An alternative gets the name and the path of the node that it computes.
    """
    whole = pcg.origin or pcg
    stands = {node: chosen.get(node, node) for node in range(len(whole.nodes))}
    needed, waiting = set(whole.of("input")), [stands[i] for i in whole.results]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [stands[i] for i in whole.nodes[node].inputs]
    number = {old: new for new, old in enumerate(sorted(needed))}
    reads = {i: tuple(number[stands[j]] for j in whole.nodes[i].inputs) for i in number}
    named = {i: whole.nodes[node] for node, i in stands.items() if i in number}
    nodes = tuple(
        replace(whole.nodes[i], inputs=inputs, name=named[i].name, path=named[i].path) for i, inputs in reads.items()
    )
    samples = tuple(whole.samples[i] for i in number) if whole.samples else ()
    kept = {name for i in number for name in whole.nodes[i].originals if whole.nodes[i].op == "parameter"}
    aliases = tuple(pair for pair in whole.aliases if pair[1] in kept)
    graph = PCG(nodes, number[stands[whole.loss]], whole.batch, aliases, samples)
    return with_batch(graph, pcg.batch), number


def _renumbered(layout: Layout, old: Atoms, new: Atoms) -> Layout:
    """A layout in the atoms of the same tensor in another graph."""
    if old.dims == new.dims:
        return layout
    return tuple(S(_same(old, atom_of(x), new)) if is_split(x) else x for x in layout)


def _same(old: Atoms, atom: int, new: Atoms) -> int:
    """The atom of another graph that starts where this one does and is a multiple of it."""
    dim, position = old.dim_of(atom)
    before = old.dims[dim][:position]
    for place, number in enumerate(new.of_dim(dim)):
        if prod(new.dims[dim][:place]) == prod(before) and new.dims[dim][place] % old.dims[dim][position] == 0:
            return number
    raise AssertionError((old, atom, new))
