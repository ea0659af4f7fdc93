"""What all devices of an interlaced pipeline compute together (`model.graph.interlaced`): bounds, and its solution.

The shared graph is one network on the mesh of all ranks, the pipeline's axis outermost. What crosses between it and the
layers is whole on that axis: looked-up rows come to all stages, and the scores' input from the last one. Its least time
and memory bound every plan of a configuration. Once the stages are found it is solved again, with their layouts and in
the memory that they leave.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...formulation.decisions import UNDECIDED
from ...formulation.encoding.encode import encode
from ...formulation.encoding.encoding import Encoding
from ...formulation.encoding.encoding_options import EncodingOptions, StageContext
from ...formulation.network.network import INFINITE, Edge, Network, evaluate
from ...formulation.parallelism import ANY_PARALLELISM
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.stage_transfers import broadcast_price
from ...formulation.placement.placement import of_rows
from ...formulation.strategies.operator_options import OperatorOptions
from ...model.errors import PartitaError
from ...model.graph.batch import with_batch
from ...model.graph.interlaced import interlaced
from ...model.graph.layout import Layout, R, atom_of, is_split
from ..protocol import Limits, Solver
from .memory_limits import least_use, without_limit
from .planning_problem import PlanningProblem
from .result import Solved

CROSSING = {"from_all": "send", "to_all": "receive"}
"""Transfers of the layers, and those of the shared graph at the other end."""


@dataclass(frozen=True, slots=True)
class Least:
    """The least time (ns of a step) and the least bytes on a device that shared operators take in any plan."""

    ns: int = 0
    bytes: int = 0


NOTHING = Least()
_MOST_SHARES, _FINEST = 12, 128
"""The most shares of memory that are told apart, and the least difference, as a part of all of it."""
_MOST_SECONDS = 60.0
"""Seconds for a network of a dozen operators, which takes milliseconds: a limit for the unforeseen."""


def least(problem: PlanningProblem, configuration: Configuration, solver: Solver) -> Least:
    """Bounds of a configuration in which all devices share operators."""
    try:
        found = encoding(problem, configuration)
    except PartitaError:  # a tensor cannot be split so finely
        return Least(INFINITE, INFINITE)
    network = _allowed(found)
    use = least_use(network)
    if use > network.capacities[0]:  # no stages fit beside them, so none are looked for
        return Least(INFINITE, INFINITE)
    return Least(solver.solve(without_limit(network), Limits(_MOST_SECONDS)).bound, use + found.fixed_bytes)


def shares(problem: PlanningProblem, configuration: Configuration, solver: Solver) -> tuple[Least, ...]:
    """What shared operators may take: any plan of theirs has the ns and the bytes of one of these, or more of both.

    The more memory they have, the less time they need, and the less memory stages have: fastest first, each is the
    bound of those in less memory than the one before.
    """
    try:
        found = encoding(problem, configuration)
    except PartitaError:
        return ()
    network = _allowed(found)
    lowest, limit = least_use(network), network.capacities[0]
    apart, made = max(1, limit // _FINEST), list[Least]()
    while limit >= lowest:
        solution = solver.solve(replace(network, capacities=(limit,)), Limits(_MOST_SECONDS))
        if solution.bound >= INFINITE:
            break
        known = solution.assignment is not None and len(made) < _MOST_SHARES - 1
        used = evaluate(network, solution.assignment).use[0] if known and solution.assignment else lowest
        limit = max(lowest, used - apart + 1) - 1
        made.append(Least(solution.bound, limit + 1 + found.fixed_bytes))
    return tuple(made)


def beside(
    problem: PlanningProblem, configuration: Configuration, solver: Solver, stages: Sequence[Solved]
) -> Solved | None:
    """The shared network with the layouts of these stages, in the memory that they leave; None: it has no solution."""
    found = encoding(problem, configuration)
    left = problem.machine.device.capacity_bytes - max(map(_used_bytes, stages))
    layouts = {name: layout for stage in stages for name, layout in _crossing(*stage)}
    network = replace(_allowed(found, layouts), capacities=(left - found.fixed_bytes,))
    solution = solver.solve(network, Limits(_MOST_SECONDS))
    return None if solution.assignment is None else (found, solution.assignment)


def encoding(problem: PlanningProblem, configuration: Configuration) -> Encoding:
    """The network of the shared graph. PartitaError: a node has no strategy on this mesh."""
    assert problem.interlaced is not None
    k, space = configuration.micro_batches, problem.space
    return encode(
        interlaced(with_batch(problem.interlaced, problem.batch // k)).shared.graph,
        problem.machine,
        of_rows((configuration.row, *configuration.matrix)),
        micro_batches=k,
        dtype=problem.training.dtype,
        optimizer=problem.training.optimizer,
        options=EncodingOptions(
            replace(space, fix=(), bundles=False, decided=UNDECIDED, parallelism=ANY_PARALLELISM, mesh=None)
        ),
        stage=StageContext(transfer=broadcast_price(problem.machine, configuration.row), read_as_stored=True),
    )


def _used_bytes(solved: Solved) -> int:
    found, assignment = solved
    return evaluate(found.network, assignment).use[0] + found.fixed_bytes


def _crossing(found: Encoding, assignment: Sequence[int]) -> Iterator[tuple[str, Layout]]:
    """The tensors that a stage has from all devices, or gives to all, by name, with their layouts."""
    for op in CROSSING:
        for node in found.pcg.of(op):
            variable, options = found.operators[node]
            option, _ = found.option(assignment, variable)
            yield found.pcg.nodes[node]["peer"], options.output_space.layout(int(options.output[option]))


def _allowed(found: Encoding, layouts: Mapping[str, Layout] | None = None) -> Network:
    """The network of what a program can do: what crosses is whole on the pipeline's axis, and on others as `layouts`.

    It has no special strategies, and weights are read as they are stored.
    """
    variables = list(found.network.variables)
    for node, (variable, options) in found.operators.items():
        forbidden = np.array([any(options.rows[r].special for r in rows) for rows in options.choice], dtype=np.bool_)
        this = found.pcg.nodes[node]
        if this.op in CROSSING.values():
            wanted = None if layouts is None else layouts[this["peer"]]
            forbidden |= ~_crosses_as(options, wanted, found.placement.sizes)
        cost = variables[variable].cost
        variables[variable] = replace(variables[variable], cost=np.where(forbidden, INFINITE, cost))
    edges = (*found.network.edges, *_read_as_stored(found))
    return replace(found.network, variables=tuple(variables), edges=edges, chains=())


def _read_as_stored(found: Encoding) -> Iterator[Edge]:
    """Edges that forbid to gather a weight: a program would keep it so from each look-up to its backward."""
    for base, (variable, stored) in found.weights.items():
        kept = [_split(stored.space.layout(int(code))) for code in stored.codes]
        for use in found.classes.uses[base]:
            reader, options = found.operators[use.node]
            codes, own = options.inputs[use.operand], options.input_spaces[use.operand]
            read = [_split(own.layout(int(code)), use.atoms) for code in codes]
            differ = [[INFINITE if a != b else 0 for b in read] for a in kept]
            yield Edge(variable, reader, np.array(differ, dtype=np.int64))


def _split(layout: Layout, shown: Sequence[int] | None = None) -> list[int | None]:
    """The atom that every axis splits, in those of the tensor that a view shows."""
    atoms = [atom_of(letter) if is_split(letter) else None for letter in layout]
    return atoms if shown is None else [None if atom is None else shown[atom] for atom in atoms]


def _crosses_as(options: OperatorOptions, wanted: Layout | None, sizes: Sequence[int]) -> npt.NDArray[np.bool_]:
    def fits(layout: Layout) -> bool:
        inner = zip(layout[1:], layout[1:] if wanted is None else wanted, sizes[1:], strict=True)
        return layout[0] == R and all(a == b for a, b, size in inner if size > 1)

    return np.array([fits(options.output_space.layout(int(code))) for code in options.output], dtype=np.bool_)
