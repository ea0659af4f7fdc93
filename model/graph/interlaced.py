"""The two graphs of an interlaced pipeline: what all devices compute together, and the layers, which become stages.

All devices together look up the tokens in tables, and compute the scores and the loss (SuperScaler, section 3.4.2).
These are the operators with the most weights and the least work: as parts of stages they would fill the memory of a
device that then waits. In the graph of the layers a `from_all` stands for every tensor looked up, where it is first
read, and a `to_all` for the one that the scores are computed from; the shared graph sends and receives these.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache

from ..errors import PartitaError
from ..operators.operator import operator
from .atoms import atoms
from .boundaries import needed, stage_local
from .joined_tables import table_rows
from .origin import origin
from .pcg import PCG, SOURCES
from .segments import is_product
from .sparse_tables import sparse_tables
from .stages import Stage, graph_of


@dataclass(frozen=True)
class Interlaced:
    """`layers` become the stages of a pipeline, one a device; what is `shared` is on all devices."""

    layers: Stage
    shared: Stage


def interlaced(pcg: PCG) -> Interlaced:
    """The graphs of an interlaced pipeline. PartitaError: the model does not end with a product and a loss of it alone,
    a weight is read on both sides, or a table is sparse, or joined from several."""
    at = origin(pcg)
    found = _division(at)
    kept = [i for i in range(len(pcg.nodes)) if i in found.layers or i in found.looked_up]
    layers = [(i, "from_all" if i in found.looked_up else "") for i in kept] + [(found.hidden, "to_all")]
    shared = [(i, "") for i in sorted(found.shared) if pcg.nodes[i].op in SOURCES] + [(found.hidden, "receive")]
    shared += [(i, "") for i in sorted(found.shared) if pcg.nodes[i].op not in SOURCES]
    shared += [(i, "send") for i in sorted(found.looked_up)]
    if at is pcg:
        return Interlaced(graph_of(pcg, layers, None), graph_of(pcg, shared, None))
    first = interlaced(at)
    return Interlaced(graph_of(pcg, layers, first.layers.graph), graph_of(pcg, shared, first.shared.graph))


def lookup_tables(pcg: PCG) -> set[int]:
    """The tables of which all devices look up rows together. PartitaError: see `interlaced`."""
    return {pcg.nodes[index].inputs[0] for index in _division(pcg).looked_up}


@dataclass(frozen=True)
class _Division:
    """Nodes by their index: those of both graphs, the tensors looked up, and the one that the scores read."""

    layers: Set[int]
    shared: Set[int]
    looked_up: Set[int]
    hidden: int


@lru_cache(maxsize=16)
def _division(pcg: PCG) -> _Division:
    scores, hidden = _scores(pcg)
    local, lookups = stage_local(pcg), set(_lookups(pcg, scores))
    shared = needed(pcg, (pcg.loss, *lookups), {hidden})
    layers = needed(pcg, (hidden,), lookups)
    for index in sorted(shared & layers - local):
        node = pcg.nodes[index]
        if node.op != "input" and node.op != "buffer":
            raise PartitaError(
                f"interlaced pipelines: {node.op} {node.name!r} is read both by the layers and by the look-ups, the "
                "scores or the loss, which all devices compute together: plan with another --schedule"
            )
    return _Division(frozenset(layers), frozenset(shared), frozenset(lookups), hidden)


def _scores(pcg: PCG) -> tuple[set[int], int]:
    """The last product with what follows it up to the loss, and the one tensor that these read."""
    local = stage_local(pcg)
    last = max((i for i in pcg.plain if is_product(pcg, i)), default=0)
    found = {i for i in pcg.plain if i >= last and pcg.nodes[i].op not in SOURCES and i not in local}

    def read() -> set[int]:
        every = {i for n in found for i in pcg.nodes[n].inputs} - found
        return {i for i in every if pcg.nodes[i].op not in SOURCES and i not in local}

    hidden = read()
    while len(hidden) == 1 and operator(pcg.nodes[min(hidden)].op).view:  # views are taken on the far side
        found |= hidden
        hidden = read()
    if len(hidden) != 1 or not pcg.nodes[min(hidden)].gradient or pcg.nodes[pcg.loss].shape:
        names = ", ".join(repr(pcg.nodes[i].name) for i in sorted(hidden)) or "nothing"
        raise PartitaError(
            f"interlaced pipelines need a model that ends with scores and their loss: its last product, "
            f"{pcg.nodes[last].name!r}, and what follows it read {names}, not one tensor: plan with another --schedule"
        )
    return found, min(hidden)


def _lookups(pcg: PCG, scores: Set[int]) -> Iterable[int]:
    """The look-ups of trained tables by inputs, one for every sample, whose tables only they and the scores read."""
    local = stage_local(pcg)
    every = {i for i in pcg.plain if i not in scores and i not in local and _is_lookup(pcg, i)}
    for index in sorted(every):
        table = pcg.nodes[index].inputs[0]
        if table in sparse_tables(pcg) or table_rows(pcg.nodes[table]):
            raise PartitaError(
                f"interlaced pipelines: {pcg.nodes[table].name!r} has a sparse gradient or joins several tables, which "
                "are not computed by all devices together: plan with another --schedule"
            )
        if every | scores >= set(pcg.consumers[table]):
            yield index


def _is_lookup(pcg: PCG, index: int) -> bool:
    """True if a node looks up rows of a trained table by an input.

    Not by computed ids: what computes them runs with the scores, after the layers that read the rows.
    """
    node = pcg.nodes[index]
    if node.op in SOURCES or not atoms(pcg)[index].batch:
        return False
    inputs = tuple(pcg.nodes[i] for i in node.inputs)
    found = operator(node.op).looked_up(node, inputs)
    given = all(n.op == "input" for n in inputs[1:])
    return found is not None and found.operand == 0 and inputs[0].op == "parameter" and inputs[0].gradient and given
