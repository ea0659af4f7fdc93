"""Plans whose ranks have parts of weights, by rows or by columns at random, whatever is fastest."""

from collections.abc import Iterator, Sequence
from random import Random

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..formulation.strategies.strategy import row_names, rows
from ..model.graph.atoms import atoms
from ..model.graph.layout import atom_of, is_split, splittable
from ..model.graph.pcg import PCG
from ..model.initial_values import InitialValues
from ..model.training import Training
from ..solvers.budget import Budget
from .models import BATCH, MESH, slow_machine

GAP, SECONDS = 0.2, 20.0
"""The search may end early: any such plan will do."""


def split_plan(graph: PCG, initial: InitialValues) -> Plan:
    """A plan whose ranks have parts of weights. Raises PartitaError where there is none."""
    sparse = any(graph.nodes[i].get("sparse") for i in range(len(graph.nodes)))
    training = Training(BATCH, optimizer="sgd" if sparse else "adamw")
    space = SearchSpace(mesh=MESH, stages=1, fix=tuple(splits(graph, Random(0))))
    return plan_graph(
        graph, slow_machine(), training, space, Budget(time_limit=SECONDS, gap=GAP), Context(initial=initial)
    )


def splits(graph: PCG, rng: Random) -> Iterator[tuple[str, str]]:
    """For every operator that reads a weight, and can split it, one way of doing that on each axis of the mesh."""
    parameters = {*graph.of("parameter")}
    for index, node in enumerate(graph.nodes):
        read = [k for k, i in enumerate(node.inputs) if i in parameters]
        if not read:
            continue
        choices = [
            (name, row)
            for name, row in zip(row_names(graph, index), rows(graph, index), strict=True)
            if not row.special and any(is_split(row.inputs[k]) for k in read)
        ]
        if not choices:
            continue
        picked = [rng.choice(choices) for _ in MESH]
        layouts = zip(*((*row.inputs, row.output) for _, row in picked), strict=True)
        tensors = zip((*node.inputs, index), layouts, strict=True)
        if all(_fits(graph, i, letters) for i, letters in tensors):
            yield node.name, ",".join(name for name, _ in picked)


def _fits(graph: PCG, index: int, letters: Sequence[int]) -> bool:
    """True if no rank is left with nothing of a tensor."""
    known, parts = atoms(graph)[index], dict[int, tuple[int, ...]]()
    for letter, size in zip(letters, MESH, strict=True):
        if is_split(letter):
            parts[atom_of(letter)] = (*parts.get(atom_of(letter), ()), size)
    return all(splittable(known.sizes[atom], sizes) for atom, sizes in parts.items())
