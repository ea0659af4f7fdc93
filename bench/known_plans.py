"""Plans that are not searched: data parallelism, ZeRO-1, fully sharded weights, Megatron-LM's tensor parallelism.

One mesh axis over all ranks. Operators are fixed to rows of their strategies; of the weights the plan's choices are
edited, which are then checked and priced as of any plan.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from ..codegen.plan.choice import Choice
from ..codegen.plan.plan import Plan
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.search_space import SearchSpace
from ..formulation.strategies.named_rows import named_row
from ..formulation.strategies.strategy import row_names
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.graph.atoms import atoms
from ..model.graph.layout import B, S
from ..model.graph.pcg import PCG, SOURCES
from ..model.machine.machine import Machine
from ..model.operators.operator import operator
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial
from .step_models import MODELS

DATA, ZERO, GATHERED_ONCE, GATHERED_AGAIN = "data parallel", "ZeRO-1", "fully sharded, gathered once", "fully sharded"
TENSOR = "tensor parallel"
WEIGHTS = (DATA, ZERO, GATHERED_ONCE, GATHERED_AGAIN)
"""Where every operator splits the batch: how the weights are stored.

Of `GATHERED_AGAIN` the weights of layers are gathered a second time for backward, the others (embeddings, the last
norm, the scores) once, as `fully_shard` does by default.
"""


def planned(model: str, plan: str, machine: Machine, samples: int, overlap: bool = True) -> Plan:
    """One of `MODELS` in one of `WEIGHTS`, or `TENSOR`, over all ranks of a machine."""
    graph, training = graph_of(model, samples), Training(samples)
    if plan == TENSOR:
        return tensor_split(graph, machine, training, MODELS[model].split, overlap)
    return batch_split(graph, machine, training, plan, overlap)


@cache
def graph_of(model: str, samples: int) -> PCG:
    """One of `MODELS`, captured."""
    return capture(MODELS[model].module(), MODELS[model].batch(samples), batch=samples)


def batch_split(graph: PCG, machine: Machine, training: Training, weights: str, overlap: bool = True) -> Plan:
    """Every rank computes a part of the batch; `weights`: one of `WEIGHTS`.

    PartitaError: an operator without such a row, or a weight that has no dim that all ranks can split.
    """
    plan = _planned(graph, machine, training, dict(_batch_rows(graph)), overlap)
    stored = {i: _stored(graph, i, machine.devices, weights, plan.choices[i]) for i in graph.of("parameter")}
    return replace(plan, choices=tuple(stored.get(i, choice) for i, choice in enumerate(plan.choices)))


def tensor_split(
    graph: PCG, machine: Machine, training: Training, split: Mapping[str, str], overlap: bool = True
) -> Plan:
    """Operators whose names match a pattern of `split` have its row; others that read a weight are on all ranks.

    What lies between is left to the search.
    """
    fixed = {}
    for index, node in enumerate(graph.nodes):
        if node.op in SOURCES or not any(graph.nodes[i].op == "parameter" for i in node.inputs):
            continue
        fixed[node.name] = next((row for name, row in split.items() if fnmatchcase(node.name, name)), "R")
        if fixed[node.name] not in row_names(graph, index):
            raise PartitaError(
                f"{node.name!r} has no row {fixed[node.name]}; it has {', '.join(row_names(graph, index))}"
            )
    return _planned(graph, machine, training, fixed, overlap)


def _planned(graph: PCG, machine: Machine, training: Training, fixed: Mapping[str, str], overlap: bool) -> Plan:
    space = SearchSpace(
        mesh=(machine.devices,),
        micro_batches=1,
        stages=1,
        recompute="none",
        bundles=False,
        offload=False,
        overlap=overlap,
        fix=tuple(fixed.items()),
    )
    return plan_graph(graph, machine, training, space, Budget(executor=Serial()))


def _batch_rows(graph: PCG) -> Iterator[tuple[str, str]]:
    """For every operator that reads samples, its name and the row that splits them."""
    known = atoms(graph)
    for index, node in enumerate(graph.nodes):
        samples = [i for i in node.inputs if known[i].batch]
        if node.op in SOURCES or operator(node.op).view or not samples:
            continue
        row = named_row(graph, index, "batch")
        if row is None:
            raise PartitaError(f"{node.name!r} ({node.op}) cannot split the batch")
        yield node.name, row


def _stored(graph: PCG, index: int, ranks: int, weights: str, planned: Choice) -> Choice:
    """How a weight is stored: whole, or split along the first dim that all ranks can split evenly."""
    node = graph.nodes[index]
    if not node.gradient:
        return planned
    if weights in (DATA, ZERO):
        return replace(planned, output=(B,), shared=None, regather=False, sharded_states=weights == ZERO)
    number = next((a for a, size in enumerate(atoms(graph)[index].sizes) if size % ranks == 0), None)
    if number is None:
        raise PartitaError(f"{node.name!r} has no dim that {ranks} ranks can split")
    several = len(graph.consumers[index]) > 1
    again = weights == GATHERED_AGAIN and node.name.startswith("layers.") and not several
    return replace(planned, output=(S(number),), shared=(B,) if several else None, regather=again, sharded_states=False)
