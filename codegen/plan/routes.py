"""The conversions of a plan: the cheapest moves between two layouts of a tensor."""

from functools import lru_cache
from itertools import pairwise

from ...formulation.encoding.overlap import latency_shares
from ...formulation.placement.placement import Placement
from ...formulation.strategies.transitions import Table, Transitions, space
from ...model.graph.atoms import atoms
from ...model.graph.layout import Layout, Step, steps
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from .memo import once_per_plan
from .plan import Plan


@lru_cache(maxsize=32)
def _transitions(machine: Machine, placement: Placement) -> Transitions:
    return Transitions(machine, placement)


def table(plan: Plan, node: int) -> Table:
    """The priced routes between all layouts of a node's tensor."""
    declared = plan.graph.nodes[node]
    tensor = space(plan.placement.sizes, atoms(plan.graph)[node].sizes)
    itemsize = precision(plan.dtype).itemsize(declared.dtype)
    share = latency_shares_of(plan).get(node, 1.0)
    return _transitions(plan.machine, plan.placement).table(tensor, itemsize, declared.gradient, share)


@once_per_plan
def latency_shares_of(plan: Plan) -> dict[int, float]:
    """Of the weights of a plan that travel together, the share of a message's latency that each pays."""
    return latency_shares(plan.graph, plan.together)


def route(plan: Plan, node: int, source: Layout, target: Layout) -> tuple[Step, ...]:
    """The moves that bring the tensor of `node` from `source` to `target`."""
    if source == target:
        return ()
    known = table(plan, node)
    tensor = space(plan.placement.sizes, atoms(plan.graph)[node].sizes)
    ends = tensor.code(source), tensor.code(target)
    stops = [source, *(tensor.layout(c) for c in known.route(*ends)), target]
    return tuple(step for a, b in pairwise(stops) for step in steps(a, b))
