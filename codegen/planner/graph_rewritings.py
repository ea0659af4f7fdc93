"""All rewritings of a captured graph by the rules of a search space, and the rules behind the changes of a plan."""

from collections.abc import Callable
from dataclasses import replace

from ...formulation.rewriting.cost_bound import kernel_cost
from ...formulation.rewriting.saturate import Rewritten, rewritings
from ...formulation.search_space import SearchSpace
from ...model.graph.pcg import PCG
from ...model.machine.machine import Machine
from ...model.training import Training


def all_rewritings(
    graph: PCG, machine: Machine, training: Training, space: SearchSpace, tell: Callable[[str], None]
) -> Rewritten:
    """All rewritings of a graph by the space's rules, which are proved first; what `fix` names is left alone.

    If it names alternatives, which rewriting makes, nothing is left alone.
    """
    from ...solvers.proof.rewriting_rules import is_proved, rewriting_rules  # a prover, which few plans need

    fixed = {name for name, _ in space.fix}
    kept = fixed if fixed <= {node.name for node in graph.nodes} else set()
    rules = rewriting_rules(space.rules, graph)
    if rules.words():
        tell(rules.words())
    cost = kernel_cost(machine, training.dtype)
    found = rewritings(graph, rules.own, space.saturation, kept, bounded=rules.bounded, cost=cost, proved=is_proved)
    return replace(found, rules=rules.to_json())


def credited(changes: list[dict[str, str]], rewritten: Rewritten) -> list[dict[str, str]]:
    """Changes of a graph with the rule that made each, in the place of the alternative's name."""
    made = [({**change}, rewritten.made_by.get(change["by"])) for change in changes]
    return [
        {key: value for key, value in change.items() if key != "by"} | ({"rule": rule} if rule else {})
        for change, rule in made
    ]
